//! What an application did wrong, in the log: the request, a sentence, and its own traceback.

use hoopsnake_server::exchange::Exchange;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::traceback::formatted;

/// The application raised. `doing` completes "the application …".
pub(super) fn raised(py: Python<'_>, exchange: &Exchange, doing: &str, error: PyErr) {
    // SystemExit, KeyboardInterrupt, GeneratorExit: who raises them may have meant the process.
    let note = if error.is_instance_of::<PyException>(py) {
        ""
    } else {
        " (this ends the request, not the worker)"
    };
    let line = exchange.request_line();
    let traceback = formatted(py, error);
    tracing::error!(target: "hoopsnake.app", "{line}: the application {doing}{note}\n{traceback}");
}

/// The application broke a rule of PEP 3333.
pub(super) fn broke(exchange: &Exchange, what: &str) {
    let line = exchange.request_line();
    tracing::error!(target: "hoopsnake.app", "{line}: {what}");
}
