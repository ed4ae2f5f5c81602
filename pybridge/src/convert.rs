//! Rust to Python values, by the byte rules of PEP 3333: a native string is a `str` of bytes.

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::capi;

/// The path of a request target, percent-decoded, as a native string. What is not `%` and two hex
/// digits stays as it was sent, so nothing is refused here and nothing is lost.
///
/// # Errors
/// Out of memory.
pub(crate) fn decoded_path<'py>(py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyString>> {
    if path.contains(&b'%') {
        capi::latin1_string(py, &percent_decoded(path))
    } else {
        capi::latin1_string(py, path)
    }
}

/// Every valid escape replaced by its byte, in one pass: `%2525` becomes `%25`.
pub(crate) fn percent_decoded(path: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, behind)) = rest.split_first() {
        let escape = (byte == b'%').then(|| escaped_byte(behind)).flatten();
        decoded.push(escape.unwrap_or(byte));
        rest = if escape.is_some() { &behind[2..] } else { behind };
    }
    decoded
}

fn escaped_byte(behind: &[u8]) -> Option<u8> {
    let digit = |index: usize| char::from(*behind.get(index)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

/// A number in decimal.
///
/// # Errors
/// Out of memory.
pub(crate) fn decimal(py: Python<'_>, number: u64) -> PyResult<Bound<'_, PyString>> {
    let mut digits = [0_u8; 20];
    let mut start = digits.len();
    let mut left = number;
    loop {
        start -= 1;
        digits[start] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    capi::latin1_string(py, &digits[start..])
}

/// A text of the application for a message: never fails, and never more than `characters_max`.
pub(crate) fn shown(object: &Bound<'_, PyAny>, characters_max: usize) -> String {
    let text = object.repr().map_or_else(
        |_| format!("<{}>", type_name(object)),
        |text| text.to_string_lossy().into_owned(),
    );
    match text.char_indices().nth(characters_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The name of an object's type, for a message.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string_lossy().into_owned())
}
