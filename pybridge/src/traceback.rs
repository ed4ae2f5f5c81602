//! An exception as text for the log.

use pyo3::prelude::*;

use crate::{convert, names};

/// A traceback in the log is cut in the middle of what is longer. **Unit**: bytes. **Why**: a
/// RecursionError is 3 KiB, since Python folds repeated lines; an exception with a huge text is the
/// application's data.
const TRACEBACK_BYTES_MAX: usize = 64 * 1024;

/// A traceback and the exception, shortened.
pub(crate) fn formatted(py: Python<'_>, error: PyErr) -> String {
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
