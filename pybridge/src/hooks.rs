//! What a worker calls in its life (RULES 29): `--on-worker-start`, `-ready` and `-exit`, or functions
//! given to `hoopsnake.run`.

use hoopsnake_server::config::{Config, HookSpec};
use pyo3::prelude::*;

use crate::import::{self, LoadError};
use crate::traceback::formatted;

/// A function that was found.
#[derive(Debug)]
struct Hook<'py> {
    /// `on-worker-ready MODULE:FUNCTION`, for messages.
    name: String,
    function: Bound<'py, PyAny>,
}

/// The hooks of one worker and what they are called with.
#[derive(Debug)]
pub(crate) struct Hooks<'py> {
    /// `hoopsnake.Worker`.
    worker: Bound<'py, PyAny>,
    ready: Option<Hook<'py>>,
    exit: Option<Hook<'py>>,
}

impl<'py> Hooks<'py> {
    /// Calls `on_worker_start`. `sys.path` is ready and the application is not imported.
    ///
    /// # Errors
    /// What it raised, or why it cannot be called; the worker cannot start.
    pub(crate) fn start(
        py: Python<'py>,
        config: &Config,
        number: usize,
    ) -> Result<Self, LoadError> {
        let app = config.app.as_ref().map(ToString::to_string).unwrap_or_default();
        let class = py.import("hoopsnake")?.getattr("Worker")?;
        let worker = class.call1((number, std::process::id(), app))?;
        if let Some(hook) = find(py, "on_worker_start", config.hooks.start.as_ref())? {
            hook.function.call1((&worker,))?;
        }
        Ok(Self { worker, ready: None, exit: None })
    }

    /// Finds the other two, which the application may hold: it is imported. Before they are needed,
    /// so that a wrong name is an error at start.
    ///
    /// # Errors
    /// One of them does not exist or cannot be called.
    pub(crate) fn find_others(&mut self, config: &Config) -> Result<(), LoadError> {
        let py = self.worker.py();
        self.ready = find(py, "on_worker_ready", config.hooks.ready.as_ref())?;
        self.exit = find(py, "on_worker_exit", config.hooks.exit.as_ref())?;
        Ok(())
    }

    /// Calls `on_worker_ready`: the supervisor knows, and requests are answered meanwhile.
    pub(crate) fn ready(&self) {
        self.call(self.ready.as_ref());
    }

    /// Calls `on_worker_exit`: nothing is served any more.
    pub(crate) fn exit(&self) {
        self.call(self.exit.as_ref());
    }

    fn call(&self, hook: Option<&Hook<'py>>) {
        let Some(hook) = hook else { return };
        if let Err(error) = hook.function.call1((&self.worker,)) {
            let traceback = formatted(self.worker.py(), error);
            tracing::error!("{} raised; the worker goes on\n{traceback}", hook.name);
        }
    }
}

/// A function that `hoopsnake.run` was given, or the one that the option names.
fn find<'py>(
    py: Python<'py>,
    name: &str,
    spec: Option<&HookSpec>,
) -> Result<Option<Hook<'py>>, LoadError> {
    let given = py.import("hoopsnake")?.getattr("_hooks")?.call_method1("get", (name,))?;
    if !given.is_none() {
        return Ok(Some(Hook { name: name.to_owned(), function: given }));
    }
    let Some(spec) = spec else { return Ok(None) };
    let name = format!("{} {spec}", name.replace('_', "-"));
    let function = import::hook(py, spec).map_err(|error| match error {
        LoadError::Ours(sentence) => LoadError::Ours(format!("{name}: {sentence}")),
        LoadError::Theirs(error) => LoadError::Theirs(error),
    })?;
    Ok(Some(Hook { name, function }))
}
