//! `wsgi.errors`: what an application writes there becomes records of the log, line by line.

use pyo3::prelude::*;
use pyo3::types::PyString;

/// Text held back while no line ends; at this it is logged as it is. **Unit**: bytes.
const PENDING_BYTES_MAX: usize = 16 * 1024;

/// A text stream that can only be written. One per pool thread.
#[pyclass(name = "ErrorStream", module = "hoopsnake._hoopsnake")]
#[derive(Debug, Default)]
pub(crate) struct ErrorStream {
    /// The beginning of a line; at most `PENDING_BYTES_MAX` and the text of one call.
    pending: String,
}

#[pymethods]
impl ErrorStream {
    /// Takes a text and returns its length; complete lines are logged, in one record.
    fn write(&mut self, text: &Bound<'_, PyString>) -> PyResult<usize> {
        self.pending.push_str(&text.to_string_lossy());
        if let Some(end) = self.pending.rfind('\n') {
            let rest = self.pending.split_off(end + 1);
            log(&self.pending);
            self.pending = rest;
        }
        if self.pending.len() >= PENDING_BYTES_MAX {
            self.log_pending();
        }
        text.len()
    }

    /// Takes texts.
    fn writelines(&mut self, lines: &Bound<'_, PyAny>) -> PyResult<()> {
        for line in lines.try_iter()? {
            self.write(line?.cast::<PyString>()?)?;
        }
        Ok(())
    }

    /// Logs the beginning of a line that is not ended yet.
    fn flush(&mut self) {
        self.log_pending();
    }
}

impl ErrorStream {
    /// At the end of a request: what has no end of line is logged all the same.
    pub(super) fn log_pending(&mut self) {
        if !self.pending.is_empty() {
            log(&self.pending);
            self.pending.clear();
        }
    }
}

fn log(text: &str) {
    let text = text.trim_end_matches(['\r', '\n']);
    if !text.is_empty() {
        tracing::error!(target: "hoopsnake.wsgi.errors", "{text}");
    }
}
