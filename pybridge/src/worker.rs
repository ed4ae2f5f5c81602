//! A worker's life in Python: import, threads, ready.

use std::path::Path;
use std::sync::Arc;

use hoopsnake_server::access::AccessSink;
use hoopsnake_server::access_log::AccessLog;
use hoopsnake_server::board::WorkerCell;
use hoopsnake_server::config::{Config, Interpreter};
use hoopsnake_server::log::{self, Role};
use hoopsnake_server::machine;
use hoopsnake_server::pool::{Knobs, ThreadIndex};
use hoopsnake_server::reactor::Insight;
use hoopsnake_server::supervisor::control::ToSupervisor;
use hoopsnake_server::supervisor::{
    self, EXIT_NOT_LOADED, EXIT_NOT_LOADED_SILENT, Listeners, Machine, PidFile, Sockets, Voice,
    WorkerSeed,
};
use hoopsnake_server::sys::held::Held;
use hoopsnake_server::sys::process::Parent;
use hoopsnake_server::sys::signals::SignalWatch;
use hoopsnake_server::sys::socket::{LocalAddress, local_address};
use hoopsnake_server::worker::{Plan, Running, start};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::hooks::Hooks;
use crate::import::{self, LoadError, Loaded};
use crate::python_log::{self, PythonLog};
use crate::run::{Identity, change_directory, name_process};
use crate::vigil::Vigil;
use crate::wsgi::running::thread_name;
use crate::wsgi::{Application, ListenerEnviron, PoolThread, WsgiOptions};
use crate::{ending, forked, pulse, stacks};

/// What every worker of a server shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site<'run> {
    pub(crate) config: &'run Config,
    pub(crate) interpreter: &'run Interpreter,
    pub(crate) identity: &'run Identity,
}

/// A worker that serves.
#[derive(Debug)]
pub(crate) struct Serving<'py> {
    pub(crate) app_name: String,
    pub(crate) application: Arc<Application>,
    pub(crate) running: Running,
    /// `threading.Thread` objects, in the order of their index.
    pub(crate) threads: Vec<Bound<'py, PyAny>>,
    pub(crate) access_log: Option<Arc<AccessLog>>,
    pub(crate) python_log: Option<PythonLog>,
    pub(crate) hooks: Hooks<'py>,
}

/// What a child has of its supervisor until it is ready.
#[derive(Debug)]
pub(crate) struct Forked {
    pub(crate) parent: Parent,
    pub(crate) voice: Voice,
    pub(crate) cell: Option<WorkerCell>,
}

impl Forked {
    /// Whether this process is the one to say why the application cannot be loaded.
    fn may_speak(forked: Option<&Self>) -> bool {
        forked.is_none_or(|forked| forked.voice.take())
    }
}

/// The body of a forked worker. Ends the process.
pub(crate) fn run_forked(py: Python<'_>, site: &Site<'_>, seed: WorkerSeed) -> u8 {
    run_worker(py, site, seed, None)
}

/// The same for one that the template forked: the application is there, and the user is the right one.
pub(crate) fn run_preloaded<'py>(
    py: Python<'py>,
    site: &Site<'_>,
    seed: WorkerSeed,
    loaded: Loaded<'py>,
) -> u8 {
    run_worker(py, site, seed, Some(loaded))
}

fn run_worker<'py>(
    py: Python<'py>,
    site: &Site<'_>,
    seed: WorkerSeed,
    loaded: Option<Loaded<'py>>,
) -> u8 {
    log::set_role(Role::Worker { number: seed.number });
    name_process(&site.config.process_name, &format!(":{}", seed.number));
    // An import may take for ever, and nothing else would end this process then.
    if !tie(seed.parent) {
        return ending::exit_unready(py, 1);
    }
    // A preloaded worker has it from the template.
    if loaded.is_none() && !keep_from_forks(py) {
        return ending::exit_unready(py, 1);
    }
    // Before the import: a Ctrl-C meanwhile prints no traceback, and SIGTERM drains right after it.
    let signals = watch_signals(py, &[libc::SIGTERM, libc::SIGINT], &MEANT_FOR_THE_SUPERVISOR);
    seed.mask.restore();
    let machine = seed.machine.clone();
    let forked = Forked { parent: seed.parent, voice: seed.voice, cell: seed.cell };
    let prepared = prepare(py, site, seed.number, seed.listeners, &machine, Some(&forked), loaded);
    let serving = match prepared {
        Ok(serving) => serving,
        Err(code) => ending::exit_unready(py, code),
    };
    // The application may have installed handlers of its own.
    if let Err(error) = signals.assert_again() {
        tracing::error!(%error, "SIGTERM cannot be handled");
    }
    // From here on the supervisor's end is an end of file, and the worker drains.
    seed.parent.untie();
    let ready = ToSupervisor::Ready { app: serving.app_name.clone() };
    // A supervisor that is gone is seen by the wait, at once.
    let _ = seed.control.send(&ready);
    let control = Some(&seed.control);
    let ended = Vigil::new(&signals, control, &serving.running.reactor, site.config)
        .reopening(serving.access_log.as_deref())
        .keep(py, || serving.hooks.ready());
    ending::end(py, serving, ended)
}

/// The same in the one process there is (`--single-process`).
pub(crate) fn run_alone(
    py: Python<'_>,
    site: &Site<'_>,
    machine: Machine,
    mut listeners: Listeners,
    pid_file: Option<PidFile>,
) -> u8 {
    if !keep_from_forks(py) {
        clean_up(listeners, pid_file);
        return 1;
    }
    let sockets = std::mem::take(&mut listeners.sockets);
    // Until the import is over, signals do what they do in any Python program.
    let serving = match prepare(py, site, 1, sockets, &machine, None, None) {
        Ok(serving) => serving,
        Err(code) => {
            clean_up(listeners, pid_file);
            return if code == EXIT_NOT_LOADED { 1 } else { code };
        }
    };
    let signals = watch_signals(py, own_signals(py), &[]);
    // What a supervisor would say, where it would say it.
    log::natively(|| {
        tracing::info!(pid = std::process::id(), "worker 1 is ready");
        supervisor::banner(site.config, site.interpreter, &machine, &serving.app_name, &listeners);
    });
    let ended = Vigil::new(&signals, None, &serving.running.reactor, site.config)
        .reopening(serving.access_log.as_deref())
        .keep(py, || serving.hooks.ready());
    ending::end_after(py, serving, ended, || clean_up(listeners, pid_file))
}

fn clean_up(mut listeners: Listeners, pid_file: Option<PidFile>) {
    listeners.remove_paths();
    if let Some(pid_file) = pid_file {
        pid_file.remove();
    }
}

/// Before the application can fork. False: it could not be arranged, and that was said.
pub(crate) fn keep_from_forks(py: Python<'_>) -> bool {
    let watched = forked::watch_forks(py);
    if let Err(error) = &watched {
        tracing::error!(%error, "forks of the application cannot be watched");
    }
    watched.is_ok()
}

/// What is ours to handle where there is no supervisor. SIGUSR1 reopens logs, unless the application
/// has taken it.
fn own_signals(py: Python<'_>) -> &'static [libc::c_int] {
    let is_free = || -> PyResult<bool> {
        let signal = py.import("signal")?;
        let handler = signal.call_method1("getsignal", (libc::SIGUSR1,))?;
        handler.eq(signal.getattr("SIG_DFL")?)
    };
    let all = &[libc::SIGTERM, libc::SIGINT, libc::SIGUSR1];
    if is_free().unwrap_or(false) { all } else { &all[..2] }
}

/// What an operator sends to every process of that name, or a terminal to the group. Its default action
/// would end or suspend a worker, which takes SIGUSR1 as the supervisor's word and ignores the others.
pub(crate) const MEANT_FOR_THE_SUPERVISOR: [libc::c_int; 5] =
    [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGTTIN, libc::SIGTTOU];

/// `absorbed` are counted and no more, unless the application handles them, now or later.
pub(crate) fn watch_signals(
    py: Python<'_>,
    numbers: &[libc::c_int],
    absorbed: &[libc::c_int],
) -> SignalWatch {
    let watch = SignalWatch::install(numbers).and_then(|mut watch| {
        watch.absorb(absorbed)?;
        Ok(watch)
    });
    match watch {
        Ok(watch) => watch,
        Err(error) => {
            tracing::error!(%error, "signals cannot be handled");
            ending::exit_unready(py, 1)
        }
    }
}

/// Everything up to *ready*. The error is an exit code whose reason is printed.
fn prepare<'py>(
    py: Python<'py>,
    site: &Site<'_>,
    number: usize,
    listeners: Sockets,
    machine: &Machine,
    forked: Option<&Forked>,
    loaded: Option<Loaded<'py>>,
) -> Result<Serving<'py>, u8> {
    let config = site.config;
    let failed = |what: &str, error: &dyn std::fmt::Display| fail(forked, what, error);
    let hooked = |what: &str, done: &str, error| not_loaded(py, forked, what, done, error);
    if loaded.is_none() {
        enter_site(py, site, forked)?;
    }
    let mut hooks = Hooks::start(py, config, number)
        .map_err(|error| hooked("on_worker_start", "called", error))?;
    let loaded = match loaded {
        Some(loaded) => loaded,
        None => load(py, config, forked)?,
    };
    hooks.find_others(config).map_err(|error| hooked("a hook", "imported", error))?;
    // From here on there are threads in this process, and it does not fork any more.
    log::start_writer(config.log.overflow).map_err(|error| failed("the log", &error))?;
    let python_log =
        PythonLog::start(py, &config.log).map_err(|error| failed("the log", &error))?;
    if number == 1 {
        name_knobs_not_understood();
    }
    if number == 1
        && let Some(error) = machine::spool_problem(&config.spool_dir)
    {
        tracing::warn!(
            "spool-dir {} cannot hold request bodies ({error}): those over 64 KiB are answered with \
             500; give --spool-dir a directory that the server may write to",
            config.spool_dir.display()
        );
    }
    let access_log = python_log::open_access_log(py, &config.log, number, python_log.as_ref())
        .map_err(|error| failed(&format!("{} cannot be opened", config.log.access), &error))?
        .map(Arc::new);
    let app_name = loaded.name;
    let sink = access_log.clone().map(|log| log as Arc<dyn AccessSink>);
    let cell = forked.and_then(|forked| forked.cell.clone());
    let (application, running, threads) =
        serve(py, site, loaded.callable, listeners, machine, sink, cell)
            .map_err(|error| failed("the worker cannot start", &error))?;
    Ok(Serving { app_name, application, running, threads, access_log, python_log, hooks })
}

/// Becomes the user, and makes the world as the application is to see it. The error is an exit code
/// whose reason is printed.
pub(crate) fn enter_site(
    py: Python<'_>,
    site: &Site<'_>,
    forked: Option<&Forked>,
) -> Result<(), u8> {
    let failed = |what: &str, error: &dyn std::fmt::Display| fail(forked, what, error);
    become_user(py, site.identity)
        .map_err(|error| failed("the worker cannot change its user", &error))?;
    // Which has untied it.
    if forked.is_some_and(|forked| !tie(forked.parent)) {
        return Err(EXIT_NOT_LOADED_SILENT);
    }
    change_directory(site.config).map_err(|fault| failed("the worker cannot start", &fault))?;
    enter(py, site.config).map_err(|error| failed("--app-dir or --env-file", &error))?;
    python_log::configure(py, &site.config.log)
        .map_err(|error| error.to_string())
        .and_then(|configured| configured)
        .map_err(|reason| failed("the worker cannot start", &reason))
}

/// Says why this process cannot serve, if it is the one to speak; the exit code.
pub(crate) fn fail(forked: Option<&Forked>, what: &str, error: &dyn std::fmt::Display) -> u8 {
    if !Forked::may_speak(forked) {
        return EXIT_NOT_LOADED_SILENT;
    }
    tracing::error!("{what}: {error}");
    EXIT_NOT_LOADED
}

/// False: the supervisor is gone, and nobody waits for this worker.
pub(crate) fn tie(parent: Parent) -> bool {
    parent.tie().unwrap_or_else(|error| {
        tracing::warn!(%error, "this worker would outlive its supervisor while it is imported");
        true
    })
}

/// Groups first: after the user there is no right to change them.
fn become_user(py: Python<'_>, identity: &Identity) -> PyResult<()> {
    let os = py.import("os")?;
    if let Some(group_id) = identity.group_id {
        match &identity.user {
            Some((user, _)) => os.call_method1("initgroups", (user, group_id))?,
            None => os.call_method1("setgroups", ([group_id],))?,
        };
        os.call_method1("setgid", (group_id,))?;
    }
    if let Some((_, user_id)) = &identity.user {
        os.call_method1("setuid", (*user_id,))?;
    }
    Ok(())
}

/// The environment and `sys.path`, before the application sees either.
pub(crate) fn enter(py: Python<'_>, config: &Config) -> PyResult<()> {
    let environ = py.import("os")?.getattr("environ")?;
    for (name, value) in &config.env {
        environ.call_method1("setdefault", (name, value))?;
    }
    let absolute = std::path::absolute(&config.app_dir)?;
    put_first(py, &absolute)
}

/// Puts a directory first on `sys.path`, once.
fn put_first(py: Python<'_>, directory: &Path) -> PyResult<()> {
    let path = py.import("sys")?.getattr("path")?;
    let directory = directory.as_os_str();
    if path.contains(directory)? {
        path.call_method1("remove", (directory,))?;
    }
    path.call_method1("insert", (0, directory))?;
    Ok(())
}

/// Imports the application. The error is an exit code whose reason is printed.
pub(crate) fn load<'py>(
    py: Python<'py>,
    config: &Config,
    forked: Option<&Forked>,
) -> Result<Loaded<'py>, u8> {
    // `Config` demands an application of everything that serves.
    let Some(spec) = &config.app else { return Err(EXIT_NOT_LOADED) };
    let loaded = import::load(py, spec);
    forked::end_if_child(py, loaded.as_ref().err().and_then(LoadError::theirs));
    loaded.map_err(|error| not_loaded(py, forked, &spec.module, "imported", error))
}

/// Says why the application, or a hook, cannot be had; the exit code. `what` was `done`.
fn not_loaded(
    py: Python<'_>,
    forked: Option<&Forked>,
    what: &str,
    done: &str,
    error: LoadError,
) -> u8 {
    if !Forked::may_speak(forked) {
        return EXIT_NOT_LOADED_SILENT;
    }
    match error {
        LoadError::Ours(sentence) => tracing::error!("{sentence}"),
        LoadError::Theirs(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => {
            tracing::error!("interrupted while {what} was {done}");
        }
        LoadError::Theirs(error) => {
            import::print_traceback(py, &error);
            tracing::error!("{what} cannot be {done}: {error}");
        }
    }
    EXIT_NOT_LOADED
}

fn serve<'py>(
    py: Python<'py>,
    site: &Site<'_>,
    callable: Bound<'py, PyAny>,
    listeners: Sockets,
    machine: &Machine,
    access_log: Option<Arc<dyn AccessSink>>,
    cell: Option<WorkerCell>,
) -> PyResult<(Arc<Application>, Running, Vec<Bound<'py, PyAny>>)> {
    let Site { config, interpreter, .. } = *site;
    let options = WsgiOptions {
        multithread: config.thread_count > 1,
        multiprocess: config.worker_count > 1,
        server_name: config.server_name.clone(),
        root_path: config.root_path.clone(),
        listeners: listeners.public.iter().map(environ_of).collect::<std::io::Result<_>>()?,
        timed: access_log.is_some(),
        expires: config.request_timeout.is_some(),
    };
    let application = Application::new(py, callable, options)?;
    let plan = Plan {
        listeners,
        settings: config.settings(machine.io, machine.connections_max, access_log),
        thread_count: config.thread_count,
        free_threaded: interpreter.free_threaded,
        knobs: Knobs::from_environment().0,
        garbage: application.garbage_counter(),
        cell,
        insight: insight(py, config, interpreter, &application)?,
    };
    let running = start(plan)?;
    let mut threads = Vec::with_capacity(config.thread_count);
    for index in 0..config.thread_count {
        let body = PoolThread::new(
            Arc::clone(&application),
            Arc::clone(&running.lane),
            ThreadIndex(index),
        );
        threads.push(start_thread(py, index, body)?);
    }
    Ok((application, running, threads))
}

/// What the reactor is to see of the threads, as far as an option asks for it.
fn insight(
    py: Python<'_>,
    config: &Config,
    interpreter: &Interpreter,
    application: &Application,
) -> PyResult<Insight> {
    // Without the lock there is nothing to be held.
    let stall = config.stall_timeout.filter(|_| !interpreter.free_threaded);
    let pulse = stall.map(pulse::start).transpose()?;
    let wanted = pulse.is_some() || config.request_timeout.is_some();
    let stacks = wanted.then(|| stacks::open(py, application.threads())).flatten();
    Ok(Insight { stacks, pulse })
}

/// All workers see the same; the first says it.
fn name_knobs_not_understood() {
    let (_, set) = Knobs::from_environment();
    for knob in set.iter().filter(|knob| knob.complaint.is_some()) {
        tracing::warn!("{knob}");
    }
}

/// A thread that Python knows: named, traced, with Python's stack size (RULES 3). Daemon, because
/// `threading._shutdown` must not wait for one that never comes back.
fn start_thread(py: Python<'_>, index: usize, body: PoolThread) -> PyResult<Bound<'_, PyAny>> {
    let arguments = pyo3::types::PyDict::new(py);
    arguments.set_item("target", Py::new(py, body)?)?;
    arguments.set_item("name", thread_name(ThreadIndex(index)))?;
    arguments.set_item("daemon", true)?;
    let thread = py.import("threading")?.getattr("Thread")?.call((), Some(&arguments))?;
    thread.call_method0("start")?;
    Ok(thread)
}

/// `SERVER_NAME` and `SERVER_PORT` of requests that arrive there. A unix socket has neither.
fn environ_of(listener: &Held) -> std::io::Result<ListenerEnviron> {
    let (server_name, server_port) = match local_address(listener)? {
        LocalAddress::Inet(address) => (address.ip().to_string(), address.port().to_string()),
        LocalAddress::Path(_) | LocalAddress::Unnamed => ("localhost".to_owned(), "80".to_owned()),
    };
    Ok(ListenerEnviron { server_name, server_port, url_scheme: "http".to_owned() })
}
