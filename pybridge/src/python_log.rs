//! `--log-config`: the worker's lines and those of its responses go to Python's `logging`.
//!
//! Whoever logs puts a record on a bounded queue and goes on. One daemon thread of Python's takes
//! them in batches, and holds the interpreter lock once a batch; what a handler does there, it does
//! to that thread only. What a handler raises for goes to stderr.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hoopsnake_server::access_log::AccessLog;
use hoopsnake_server::clock;
use hoopsnake_server::config::{AccessTarget, LogConfig};
use hoopsnake_server::log::{self, Record, RecordQueue, Topic};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::capi;

/// How long the end of a worker waits for a handler that takes nothing.
const STUCK_AFTER: Duration = Duration::from_secs(1);

const MODULE: &str = "hoopsnake._logging";

/// Configures `logging`, if a file is given. The inner error says why it cannot be, with the file.
///
/// # Errors
/// An exception that is no fault of the file: an interrupt.
pub(crate) fn configure(py: Python<'_>, config: &LogConfig) -> PyResult<Result<(), String>> {
    let Some(path) = &config.python else { return Ok(Ok(())) };
    let configure = py.import(MODULE)?.getattr("configure")?;
    let reason: Option<String> = configure.call1((path.as_os_str(),))?.extract()?;
    Ok(reason.map_or(Ok(()), |reason| Err(refusal(path, &reason))))
}

fn refusal(path: &Path, reason: &str) -> String {
    format!("log-config {}: {reason}", path.display())
}

/// The thread and its queue. Lines go there from now on.
#[derive(Debug)]
pub(crate) struct PythonLog(Arc<RecordQueue>);

impl PythonLog {
    /// Starts the thread, if a file is given.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn start(py: Python<'_>, config: &LogConfig) -> PyResult<Option<Self>> {
        if config.python.is_none() {
            return Ok(None);
        }
        let records = Arc::new(RecordQueue::new(config.overflow, wait_detached));
        let arguments = PyDict::new(py);
        arguments.set_item("target", Py::new(py, LogThread(Arc::clone(&records)))?)?;
        arguments.set_item("name", "hoopsnake-logging")?;
        arguments.set_item("daemon", true)?;
        let thread = py.import("threading")?.getattr("Thread")?.call((), Some(&arguments))?;
        thread.call_method0("start")?;
        log::hand_to(Arc::clone(&records));
        Ok(Some(Self(records)))
    }

    /// Gives what is queued to the handlers, until the deadline or until they are stuck. From now on
    /// lines go to stderr: exit hooks close the handlers.
    pub(crate) fn end(&self, py: Python<'_>, deadline: Instant) {
        log::take_back();
        let patience = deadline.saturating_duration_since(clock::now());
        let left = py.detach(|| self.0.flush(STUCK_AFTER, patience));
        if left == 0 {
            return;
        }
        tracing::error!(
            lines = left,
            "a handler of Python's logging did not take lines in time: they are lost, and \
             logging.shutdown is not called, since it would wait for that handler"
        );
        let unregistered = py.import("logging").and_then(|logging| {
            py.import("atexit")?.call_method1("unregister", (logging.getattr("shutdown")?,))
        });
        if let Err(error) = unregistered {
            error.write_unraisable(py, None);
        }
    }
}

/// Opens the access log. Where it goes to a logger that nobody listens to, there is none.
///
/// # Errors
/// See [`AccessLog::open`].
pub(crate) fn open_access_log(
    py: Python<'_>,
    config: &LogConfig,
    number: usize,
    python_log: Option<&PythonLog>,
) -> PyResult<Option<AccessLog>> {
    let mut records = python_log.map(|log| &log.0);
    if config.access == AccessTarget::Logger
        && !py.import(MODULE)?.call_method0("wants_access")?.is_truthy()?
    {
        records = None;
    }
    Ok(AccessLog::open(config, number, records)?)
}

/// A producer that waits for room lets go of the interpreter lock, which the reader needs.
fn wait_detached(wait: &mut (dyn FnMut() + Send)) {
    if capi::is_attached() {
        Python::attach(|py| py.detach(wait));
    } else {
        wait();
    }
}

/// What `threading.Thread(target=…)` calls.
#[pyclass(name = "LogThread", module = "hoopsnake._hoopsnake", frozen)]
#[derive(Debug)]
struct LogThread(Arc<RecordQueue>);

#[pymethods]
impl LogThread {
    /// Until the process ends.
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        let deliver = py.import(MODULE)?.getattr("deliver")?;
        let mut is_failing = false;
        loop {
            let batch = py.detach(|| self.0.take());
            let arguments: Vec<_> = batch.iter().map(arguments_of).collect();
            let failed = deliver.call1((arguments,)).and_then(|failed| failed.extract());
            // No memory, most likely: nobody has seen the batch.
            let failed: Vec<(usize, String)> = failed.unwrap_or_else(|error: PyErr| {
                (0..batch.len()).map(|index| (index, error.to_string())).collect()
            });
            for (index, reason) in &failed {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(
                        "a handler of Python's logging raised {reason}; lines go to stderr"
                    );
                }
                if let Some(record) = batch.get(*index) {
                    log_natively(record);
                }
            }
            is_failing &= failed.len() == batch.len();
            self.0.delivered(batch.len());
        }
    }
}

/// Logger, level, seconds since 1970, message, attributes.
fn arguments_of(record: &Record) -> (&'static str, u8, f64, &str, &str) {
    let logger = match record.topic {
        Topic::Server => "hoopsnake",
        Topic::Access => "hoopsnake.access",
    };
    let level = match record.level {
        tracing::Level::ERROR => 40,
        tracing::Level::WARN => 30,
        tracing::Level::INFO => 20,
        tracing::Level::DEBUG => 10,
        // Below Python's last name.
        tracing::Level::TRACE => 5,
    };
    (logger, level, record.time.as_secs_f64(), &record.message, &record.fields)
}

/// On stderr, since this thread takes the records.
fn log_natively(record: &Record) {
    let message = &record.message;
    match record.level {
        tracing::Level::ERROR => tracing::error!("{message}"),
        tracing::Level::WARN => tracing::warn!("{message}"),
        tracing::Level::INFO => tracing::info!("{message}"),
        tracing::Level::DEBUG => tracing::debug!("{message}"),
        tracing::Level::TRACE => tracing::trace!("{message}"),
    }
}
