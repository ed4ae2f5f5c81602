//! `wsgi.file_wrapper` (PEP 3333, "Optional Platform-Specific File Handling"): a file that is
//! returned as the body is sent by the kernel, any other object is read in blocks.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt as _;

use pyo3::exceptions::PyStopIteration;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyCFunction;

use crate::names;

/// An iterable over a file-like object, closed with it.
#[pyclass(name = "FileWrapper", module = "hoopsnake._hoopsnake")]
#[derive(Debug)]
pub(crate) struct FileWrapper {
    /// `None` only after the collector broke a cycle.
    filelike: Option<Py<PyAny>>,
    block_bytes: usize,
}

#[pymethods]
impl FileWrapper {
    #[new]
    #[pyo3(signature = (filelike, block_size = 8192))]
    fn new(filelike: Py<PyAny>, block_size: usize) -> Self {
        Self { filelike: Some(filelike), block_bytes: block_size.max(1) }
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        // Nothing stays borrowed while code of the application runs.
        let (filelike, block_bytes) = Self::parts(slf)?;
        let block = filelike.call_method1(intern!(py, "read"), (block_bytes,))?;
        if block.is_truthy()? { Ok(block.unbind()) } else { Err(PyStopIteration::new_err(())) }
    }

    /// Closes the file-like object, if it can be closed.
    fn close(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (filelike, _) = Self::parts(slf)?;
        match filelike.getattr_opt(intern!(slf.py(), "close"))? {
            Some(close) => close.call0().map(drop),
            None => Ok(()),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.filelike)
    }

    fn __clear__(&mut self) {
        self.filelike = None;
    }
}

impl FileWrapper {
    fn parts<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, usize)> {
        let this = slf.try_borrow()?;
        let filelike = this.filelike.as_ref().ok_or_else(|| PyStopIteration::new_err(()))?;
        Ok((filelike.bind(slf.py()).clone(), this.block_bytes))
    }
}

/// The rest of a regular file, for the kernel to send.
#[derive(Debug)]
pub(super) struct FileRest {
    /// A descriptor of our own: closing the file-like object does not touch it.
    pub(super) file: File,
    /// **Unit**: bytes.
    pub(super) offset: u64,
    /// **Unit**: bytes.
    pub(super) length: u64,
}

/// What the wrapper would read, as a part of a file; `None` where only `read` knows.
pub(super) fn file_rest(wrapper: &Bound<'_, FileWrapper>) -> Option<FileRest> {
    let py = wrapper.py();
    let (filelike, _) = FileWrapper::parts(wrapper).ok()?;
    // Whatever this raises, reading the object in blocks raises it again where it can be told.
    rest_of(&filelike).unwrap_or_else(|error| {
        drop(error.into_value(py));
        None
    })
}

fn rest_of(filelike: &Bound<'_, PyAny>) -> PyResult<Option<FileRest>> {
    let py = filelike.py();
    let Some(reader) = true_reader(filelike)? else { return Ok(None) };
    let number: i32 = reader.call_method0(intern!(py, "fileno"))?.extract()?;
    let offset: u64 = reader.call_method0(intern!(py, "tell"))?.extract()?;
    if number < 0 {
        return Ok(None);
    }
    let borrowed = crate::capi::borrowed_descriptor(&reader, number);
    Ok(own_rest(borrowed, offset))
}

fn own_rest(descriptor: BorrowedFd<'_>, offset: u64) -> Option<FileRest> {
    let file = File::from(rustix::io::fcntl_dupfd_cloexec(descriptor, 0).ok()?);
    let metadata = file.metadata().ok()?;
    // A file without a block says nothing about its length: those of procfs claim 0 bytes and those
    // of sysfs 4096, whatever they hold.
    let has_length = metadata.is_file() && metadata.blocks() > 0;
    let length = metadata.len().saturating_sub(offset);
    has_length.then_some(FileRest { file, offset, length })
}

/// The object of the standard library whose `read` the wrapper would call, if its bytes are those of
/// its descriptor.
///
/// `fileno` alone proves nothing: `gzip.GzipFile` has the descriptor of the compressed file. So the
/// question is what `filelike.read` is bound to: `django.core.files.File` hands out its file's own
/// `read`, and a subclass that decrypts does not.
fn true_reader<'py>(filelike: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = filelike.py();
    let inner = names::temporary_file_wrapper(py)?;
    let read = if filelike.get_type().is(inner) {
        filelike.getattr(intern!(py, "file"))?.getattr(intern!(py, "read"))?
    } else {
        filelike.getattr(intern!(py, "read"))?
    };
    if !read.is_instance_of::<PyCFunction>() {
        return Ok(None);
    }
    let name = read.getattr(intern!(py, "__name__"))?;
    let reader = read.getattr(intern!(py, "__self__"))?;
    let kind = reader.get_type();
    let is_raw =
        |object: &Bound<'_, PyAny>| Ok::<_, PyErr>(object.get_type().is(names::file_io(py)?));
    let is_buffered = kind.is(names::buffered_reader(py)?) || kind.is(names::buffered_random(py)?);
    let is_true = name.eq(intern!(py, "read"))?
        && (is_raw(&reader)? || is_buffered && is_raw(&reader.getattr(intern!(py, "raw"))?)?);
    Ok(is_true.then_some(reader))
}
