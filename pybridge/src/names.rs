//! Python objects that are looked up once a process: types and functions of the standard library.
//!
//! Names that are only looked up as keys or attributes are interned where they are used
//! (`pyo3::intern!`).

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyTuple, PyType};

type Cell<T> = PyOnceLock<Py<T>>;

/// `io.BytesIO`.
pub(crate) fn bytes_io(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CELL: Cell<PyType> = PyOnceLock::new();
    CELL.import(py, "io", "BytesIO")
}

/// `io.open`.
pub(crate) fn io_open(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CELL: Cell<PyAny> = PyOnceLock::new();
    CELL.import(py, "io", "open")
}

/// `io.FileIO`.
pub(crate) fn file_io(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CELL: Cell<PyType> = PyOnceLock::new();
    CELL.import(py, "io", "FileIO")
}

/// `io.BufferedReader`.
pub(crate) fn buffered_reader(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CELL: Cell<PyType> = PyOnceLock::new();
    CELL.import(py, "io", "BufferedReader")
}

/// `io.BufferedRandom`.
pub(crate) fn buffered_random(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CELL: Cell<PyType> = PyOnceLock::new();
    CELL.import(py, "io", "BufferedRandom")
}

/// `traceback.format_exception`.
pub(crate) fn format_exception(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CELL: Cell<PyAny> = PyOnceLock::new();
    CELL.import(py, "traceback", "format_exception")
}

/// The type of `iter([])`: its items exist already, so taking them all waits for nothing.
pub(crate) fn list_iterator(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CELL: Cell<PyType> = PyOnceLock::new();
    let made = CELL.get_or_try_init(py, || {
        Ok::<_, PyErr>(PyList::empty(py).try_iter()?.get_type().unbind())
    })?;
    Ok(made.bind(py))
}

/// The type of `iter(())`.
pub(crate) fn tuple_iterator(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CELL: Cell<PyType> = PyOnceLock::new();
    let made = CELL.get_or_try_init(py, || {
        Ok::<_, PyErr>(PyTuple::empty(py).try_iter()?.get_type().unbind())
    })?;
    Ok(made.bind(py))
}

/// The class of `tempfile.NamedTemporaryFile` files, whose methods are functions around those of
/// its `file`.
pub(crate) fn temporary_file_wrapper(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    static CELL: Cell<PyType> = PyOnceLock::new();
    CELL.import(py, "tempfile", "_TemporaryFileWrapper")
}
