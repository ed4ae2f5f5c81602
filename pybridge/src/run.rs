//! From a configuration to a running server: what is done once, before the first fork.

use std::io;
use std::sync::Arc;

use hoopsnake_server::config::{Config, Interpreter};
use hoopsnake_server::error::Fault;
use hoopsnake_server::log::{self, Role};
use hoopsnake_server::supervisor::{self, Fork, Host, Listeners, PidFile, TEMPLATE, WorkerSeed};
use hoopsnake_server::{machine, sys};
use pyo3::prelude::*;

use crate::{forked, template, worker};

/// Whom the workers become.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// For `initgroups`; `None`: only the group changes.
    pub(crate) user: Option<(String, u32)>,
    pub(crate) group_id: Option<u32>,
}

/// Serves until told to stop; the exit code of the supervisor.
///
/// # Errors
/// Start or Machine: the first thing that is not possible.
pub(crate) fn serve(
    py: Python<'_>,
    config: Config,
    interpreter: &Interpreter,
    reload: &mut dyn FnMut() -> Result<Config, Fault>,
) -> Result<u8, Fault> {
    let config = &Arc::new(config);
    change_directory(config)?;
    let worker = Role::Worker { number: 1 };
    log::set_role(if config.single_process { worker } else { Role::Supervisor });
    log::install(&config.log);
    refuse_threads(py, config)?;
    let identity = identity(py, config)?;
    let machine = machine::find_out(config)?;
    let mut listeners = Listeners::open(config)?;
    let owner = identity.user.as_ref().map(|(_, user_id)| *user_id);
    let prepared = listeners
        .give_to(owner, identity.group_id)
        .and_then(|()| config.pid_file.as_deref().map(PidFile::create).transpose());
    let pid_file = match prepared {
        Ok(pid_file) => pid_file,
        Err(fault) => {
            listeners.remove_paths();
            return Err(fault);
        }
    };
    name_process(&config.process_name, "");
    if config.single_process {
        let site = worker::Site { config, interpreter, identity: &identity };
        return Ok(worker::run_alone(py, &site, machine, listeners, pid_file));
    }
    let mut body = |seed: WorkerSeed| -> u8 {
        let config = Arc::clone(&seed.config);
        let site = worker::Site { config: &config, interpreter, identity: &identity };
        if seed.number == TEMPLATE {
            template::run(py, &site, seed)
        } else {
            worker::run_forked(py, &site, seed)
        }
    };
    let mut host = PythonHost { py };
    let result =
        supervisor::run(config, interpreter, machine, listeners, &mut host, reload, &mut body);
    if let Some(pid_file) = pid_file {
        pid_file.remove();
    }
    result
}

/// `--chdir`, before anything is opened; once more in each child, for a symbolic link that leads to
/// another release by then.
///
/// # Errors
/// Start: the directory cannot be entered.
pub(crate) fn change_directory(config: &Config) -> Result<(), Fault> {
    let Some(directory) = &config.chdir else { return Ok(()) };
    std::env::set_current_dir(directory).map_err(|error| {
        Fault::start(format!("chdir {} is not possible: {error}", directory.display()))
    })
}

/// Bytes of a process's name. **Source**: TASK_COMM_LEN of the kernel, less the NUL.
const PROCESS_NAME_BYTES_MAX: usize = 15;

/// Names this process: `--proc-name`, cut so that what follows it is kept.
pub(crate) fn name_process(name: &str, suffix: &str) {
    let kept = name.len().min(PROCESS_NAME_BYTES_MAX.saturating_sub(suffix.len()));
    // The configuration refuses a NUL.
    if let Ok(name) = std::ffi::CString::new([&name.as_bytes()[..kept], suffix.as_bytes()].concat())
    {
        sys::process::name_thread(&name);
    }
}

/// A process that forks must have one thread: a lock that another thread holds at that moment stays
/// locked in the child for ever.
fn refuse_threads(py: Python<'_>, config: &Config) -> Result<(), Fault> {
    let count = thread_count();
    if config.single_process || count <= 1 {
        return Ok(());
    }
    Err(Fault::start(format!(
        "this process has {count} threads (Python knows {}) and workers are forked: start the server \
         before any thread, or use --single-process",
        thread_names(py)
    )))
}

/// Threads of this process, as the kernel counts them.
pub(crate) fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}

/// Names of the threads that Python knows.
pub(crate) fn thread_names(py: Python<'_>) -> String {
    let names: Vec<String> = py
        .import("threading")
        .and_then(|threading| threading.call_method0("enumerate"))
        .and_then(|threads| {
            threads.try_iter()?.map(|thread| thread?.getattr("name")?.extract()).collect()
        })
        .unwrap_or_default();
    names.join(", ")
}

/// Looks up `--user` and `--group`.
///
/// # Errors
/// Start: one of them does not exist, or this process may not become it.
pub(crate) fn identity(py: Python<'_>, config: &Config) -> Result<Identity, Fault> {
    let mut identity = Identity { user: None, group_id: None };
    let lookup = |module: &str, function: &str, name: &str, field: &str| -> PyResult<u32> {
        py.import(module)?.getattr(function)?.call1((name,))?.getattr(field)?.extract()
    };
    if let Some(user) = &config.user {
        let unknown = |_| Fault::start(format!("user {user:?} does not exist on this machine"));
        let user_id = lookup("pwd", "getpwnam", user, "pw_uid").map_err(unknown)?;
        let group_id = lookup("pwd", "getpwnam", user, "pw_gid").map_err(unknown)?;
        identity.user = Some((user.clone(), user_id));
        identity.group_id = Some(group_id);
    }
    if let Some(group) = &config.group {
        let group_id = lookup("grp", "getgrnam", group, "gr_gid")
            .map_err(|_| Fault::start(format!("group {group:?} does not exist on this machine")))?;
        identity.group_id = Some(group_id);
    }
    let changes = identity.user.is_some() || identity.group_id.is_some();
    if changes && !rustix::process::geteuid().is_root() {
        return Err(Fault::start(
            "user and group can be changed by root only: start the server as root, or leave \
             --user and --group out",
        ));
    }
    Ok(identity)
}

/// Forks through `os.fork`, so that CPython's own hooks and the application's `register_at_fork` run.
pub(crate) struct PythonHost<'py> {
    pub(crate) py: Python<'py>,
}

impl Host for PythonHost<'_> {
    fn fork(&mut self) -> io::Result<Fork> {
        let forked: PyResult<i32> = forked::as_ours(|| {
            self.py.import("os").and_then(|os| os.call_method0("fork")?.extract())
        });
        match forked {
            Ok(0) => Ok(Fork::Child),
            Ok(pid) => Ok(Fork::Parent(pid)),
            Err(error) => Err(io::Error::other(error.to_string())),
        }
    }
}
