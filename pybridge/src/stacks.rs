//! Stacks of all threads without the interpreter lock: `faulthandler` writes them to the server's pipe.

use std::sync::Arc;

use hoopsnake_server::stacks::{StackSource, Threads, signal, signal_name};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Installs the handler. `None`, and a line in the log, where that is not possible: everything is
/// served, and what hangs is said without its stack.
pub(crate) fn open(py: Python<'_>, threads: Arc<dyn Threads>) -> Option<StackSource> {
    try_open(py, threads)
        .inspect_err(|error| {
            tracing::warn!(%error, "stacks of threads cannot be had through {}", signal_name());
        })
        .ok()
}

fn try_open(py: Python<'_>, threads: Arc<dyn Threads>) -> PyResult<StackSource> {
    let mut source = StackSource::open(threads)?;
    let arguments = PyDict::new(py);
    arguments.set_item("file", source.writer())?;
    arguments.set_item("all_threads", true)?;
    arguments.set_item("chain", false)?;
    py.import("faulthandler")?.getattr("register")?.call((signal(),), Some(&arguments))?;
    source.arm()?;
    Ok(source)
}

/// In a forked child: the pipe is not there any more.
pub(crate) fn close_in_child(py: Python<'_>) {
    let unregistered = py
        .import("faulthandler")
        .and_then(|faulthandler| faulthandler.call_method1("unregister", (signal(),)));
    if let Err(error) = unregistered {
        error.write_unraisable(py, None);
    }
}
