//! The raw calls of the C API, which are all of the bridge's unsafe code.
//!
//! Only what the hot path needs and PyO3 has no safe call for. The invariants that the blocks cite:
//!
//! * **I1** The thread is attached: a `Python<'py>` or a `Bound<'py, _>` argument proves it.
//! * **I2** A `Bound<'_, T>` is a live object of type `T`, and stays one while it is borrowed.
//! * **I3** The function returns a new reference, or null with an exception set.
//! * **I4** The characters of a ready `str` do not move or change while the object lives.
//! * **I5** A `str` of kind 1 has one byte a character, `PyUnicode_GET_LENGTH` of them.
//! * **I6** An open file object keeps its descriptor open until it is closed, which only code of the
//!   application does, and none runs while the descriptor is borrowed.
//! * **I7** The function may be called by any thread, attached or not.
#![expect(unsafe_code, reason = "the one owner of unsafe code in this crate")]

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Whether the calling thread holds the interpreter lock, or is attached where there is none.
#[must_use]
pub(crate) fn is_attached() -> bool {
    // SAFETY: I7.
    unsafe { ffi::PyGILState_Check() == 1 }
}

/// A `str` with one character per byte: what PEP 3333 calls a native string of bytes.
///
/// # Errors
/// Out of memory.
pub(crate) fn latin1_string<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyString>> {
    // A slice is never longer than `isize::MAX`.
    let length = bytes.len().cast_signed();
    // SAFETY: I1; the pointer and the length are of one live slice, which is copied.
    let text =
        unsafe { ffi::PyUnicode_DecodeLatin1(bytes.as_ptr().cast(), length, std::ptr::null()) };
    // SAFETY: I1, I3.
    let text = unsafe { Bound::from_owned_ptr_or_err(py, text) }?;
    // SAFETY: I3, and the function makes nothing but `str`.
    Ok(unsafe { text.cast_into_unchecked() })
}

/// The bytes of a `str` whose characters are all below 256; `None` if one is not.
#[must_use]
pub(crate) fn latin1_bytes<'text>(text: &'text Bound<'_, PyString>) -> Option<&'text [u8]> {
    let object = text.as_ptr();
    // SAFETY: I1, I2. Always 0 from 3.12 on; before, it may fail only for want of memory.
    if unsafe { ffi::PyUnicode_READY(object) } != 0 {
        drop(PyErr::take(text.py()));
        return None;
    }
    // SAFETY: I1, I2; made ready above.
    if unsafe { ffi::PyUnicode_KIND(object) } != ffi::PyUnicode_1BYTE_KIND {
        return None;
    }
    // SAFETY: I1, I2; made ready above.
    let data = unsafe { ffi::PyUnicode_DATA(object) };
    // SAFETY: I1, I2.
    let length = unsafe { ffi::PyUnicode_GET_LENGTH(object) };
    // SAFETY: I4, I5; the result borrows the `Bound`, so the object outlives it.
    Some(unsafe { std::slice::from_raw_parts(data.cast(), length.cast_unsigned()) })
}

/// How many references to an object there are.
#[must_use]
pub(crate) fn reference_count(object: &Bound<'_, PyAny>) -> isize {
    // SAFETY: I1, I2.
    unsafe { ffi::Py_REFCNT(object.as_ptr()) }
}

/// A copy of the context that the calling thread is in.
///
/// # Errors
/// Out of memory.
pub(crate) fn copy_current_context(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: I1.
    let context = unsafe { ffi::PyContext_CopyCurrent() };
    // SAFETY: I1, I3.
    unsafe { Bound::from_owned_ptr_or_err(py, context) }
}

/// A fresh copy of a context, entered until it is dropped.
#[derive(Debug)]
pub(crate) struct EnteredContext<'py>(Bound<'py, PyAny>);

impl<'py> EnteredContext<'py> {
    /// Copies `base`, which [`copy_current_context`] made, and enters the copy.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn copy_of(base: &Bound<'py, PyAny>) -> PyResult<Self> {
        // SAFETY: I1, I2; an object of another type is an exception and not a fault.
        let context = unsafe { ffi::PyContext_Copy(base.as_ptr()) };
        // SAFETY: I1, I3.
        let context = unsafe { Bound::from_owned_ptr_or_err(base.py(), context) }?;
        // SAFETY: I1, I2.
        if unsafe { ffi::PyContext_Enter(context.as_ptr()) } != 0 {
            return Err(PyErr::fetch(base.py()));
        }
        Ok(Self(context))
    }
}

impl Drop for EnteredContext<'_> {
    fn drop(&mut self) {
        // SAFETY: I1, I2.
        if unsafe { ffi::PyContext_Exit(self.0.as_ptr()) } != 0 {
            // The application entered a context by hand and did not leave it.
            PyErr::fetch(self.0.py()).write_unraisable(self.0.py(), None);
        }
    }
}

/// The descriptor that `owner.fileno()` returned, for as long as the object is borrowed.
#[must_use]
pub(crate) fn borrowed_descriptor<'owner>(
    owner: &'owner Bound<'_, PyAny>,
    number: std::os::fd::RawFd,
) -> std::os::fd::BorrowedFd<'owner> {
    assert!(number >= 0, "{owner}: a descriptor is not negative");
    // SAFETY: I6.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(number) }
}
