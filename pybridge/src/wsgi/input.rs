//! `wsgi.input`: the body, complete before the application is called.

use std::os::fd::IntoRawFd;

use hoopsnake_server::exchange::Body;
use hoopsnake_server::spool::Reservation;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::names;

/// Buffer between the application and a spooled body. **Unit**: bytes.
const SPOOL_READ_BYTES: usize = 64 * 1024;

/// A stream of the body. From memory it is an `io.BytesIO`; from the spool an `io.BufferedReader`,
/// which answers every read as a `BytesIO` does.
#[derive(Debug)]
pub(super) struct Input<'py> {
    pub(super) stream: Bound<'py, PyAny>,
    /// Of a spooled body: its share of the spool, given back when its file is closed, which is not
    /// left to the application.
    spooled: Option<Reservation>,
}

impl<'py> Input<'py> {
    /// # Errors
    /// Out of memory.
    pub(super) fn of(py: Python<'py>, body: Body) -> PyResult<Self> {
        let (stream, spooled) = match body {
            Body::Empty => (names::bytes_io(py)?.call0()?, None),
            Body::Memory(bytes) => (names::bytes_io(py)?.call1((PyBytes::new(py, &bytes),))?, None),
            Body::Spooled { file, length: _, reservation } => {
                // Python owns the descriptor from here on and closes it with the stream.
                let number = file.into_raw_fd();
                let mode = intern!(py, "rb");
                (names::io_open(py)?.call1((number, mode, SPOOL_READ_BYTES))?, Some(reservation))
            }
        };
        Ok(Self { stream, spooled })
    }
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if self.spooled.is_some() {
            let py = self.stream.py();
            if let Err(error) = self.stream.call_method0(intern!(py, "close")) {
                error.write_unraisable(py, Some(&self.stream));
            }
        }
    }
}
