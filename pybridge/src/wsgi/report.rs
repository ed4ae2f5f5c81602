//! What an application did wrong, in the log: the request, a sentence, and its own traceback.

use hoopsnake_server::exchange::Exchange;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::{convert, names};

/// A traceback in the log is cut in the middle of what is longer. **Unit**: bytes. **Why**: a
/// RecursionError is 3 KiB, since Python folds repeated lines; an exception with a huge text is the
/// application's data.
const TRACEBACK_BYTES_MAX: usize = 64 * 1024;

/// The application raised. `doing` completes "the application …".
pub(super) fn raised(py: Python<'_>, exchange: &Exchange, doing: &str, error: PyErr) {
    // SystemExit, KeyboardInterrupt, GeneratorExit: who raises them may have meant the process.
    let note = if error.is_instance_of::<PyException>(py) {
        ""
    } else {
        " (this ends the request, not the worker)"
    };
    let line = exchange.request_line();
    let traceback = traceback(py, error);
    tracing::error!(target: "hoopsnake.app", "{line}: the application {doing}{note}\n{traceback}");
}

/// The application broke a rule of PEP 3333.
pub(super) fn broke(exchange: &Exchange, what: &str) {
    let line = exchange.request_line();
    tracing::error!(target: "hoopsnake.app", "{line}: {what}");
}

fn traceback(py: Python<'_>, error: PyErr) -> String {
    let error = error.into_value(py).into_bound(py).into_any();
    let text = names::format_exception(py)
        .and_then(|format| format.call1((&error,)))
        .and_then(|lines| lines.extract::<Vec<String>>())
        .map(|lines| lines.concat());
    let text = text.unwrap_or_else(|unprintable| {
        // The exception's own `__str__` may raise, or there is no memory or stack left.
        drop(unprintable);
        format!("{}: its traceback cannot be printed", convert::type_name(&error))
    });
    shortened(text.trim_end())
}

fn shortened(text: &str) -> String {
    if text.len() <= TRACEBACK_BYTES_MAX {
        return text.to_owned();
    }
    let half = TRACEBACK_BYTES_MAX / 2;
    // A boundary is at most three bytes away.
    let boundary = |from: usize| (from..from + 4).find(|&at| text.is_char_boundary(at));
    let start = &text[..boundary(half).unwrap_or(0)];
    let end = &text[boundary(text.len() - half).unwrap_or(text.len())..];
    format!("{start}\n… {} bytes left out …\n{end}", text.len() - start.len() - end.len())
}
