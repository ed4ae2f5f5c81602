//! `start_response` and `write`, as the application holds them.

use std::sync::Arc;

use hoopsnake_server::http::BodyLength;
use hoopsnake_server::http::encode::{BadResponse, HeadEncoder};
use hoopsnake_server::pool::Turn;
use pyo3::exceptions::{PyAssertionError, PyConnectionResetError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use super::garbage::Garbage;
use super::response::{NotStarted, Response};
use crate::{attach, capi, convert};

/// Characters of an application's value that a message shows.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// The object behind `start_response` and `write`.
#[pyclass(name = "ResponsePort", module = "hoopsnake._hoopsnake")]
#[derive(Debug)]
pub(crate) struct ResponsePort {
    /// `None` before and after a request.
    response: Option<Response>,
    /// What `start_response` returns; only during a request, since it holds this object.
    write: Option<Py<PyAny>>,
    garbage: Arc<Garbage>,
    turn: Arc<Turn>,
}

#[pymethods]
impl ResponsePort {
    /// PEP 3333, "The start_response() Callable".
    #[pyo3(signature = (status, headers, exc_info = None))]
    fn start_response<'py>(
        slf: &Bound<'py, Self>,
        status: &Bound<'py, PyString>,
        headers: &Bound<'py, PyAny>,
        exc_info: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        // Before the borrow, since this may run code of the application.
        let copied;
        let headers = match headers.cast_exact::<PyList>() {
            Ok(list) => list,
            Err(_) => {
                copied = list_of(headers)?;
                &copied
            }
        };
        let mut port = slf.try_borrow_mut()?;
        let port = &mut *port;
        let response = port.response.as_mut().ok_or_else(over)?;
        match exc_info {
            Some(exc_info) if response.is_head_sent() => return Err(raised_again(exc_info)?),
            None if response.is_started() => {
                return Err(PyAssertionError::new_err(
                    "start_response was called a second time without exc_info",
                ));
            }
            Some(_) | None => {}
        }
        let (code, reason) = status_parts(status)?;
        response
            .start(code, reason, |encoder| write_fields(encoder, headers))
            .map_err(|StartError(error)| error)?;
        port.write.as_ref().map(|write| write.clone_ref(py)).ok_or_else(over)
    }

    /// PEP 3333, "The write() Callable".
    fn write(slf: &Bound<'_, Self>, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        let (exchange, turn) = {
            let mut port = slf.try_borrow_mut()?;
            let port = &mut *port;
            let response = port.response.as_mut().ok_or_else(over)?;
            response.wake_at_end();
            response.open(BodyLength::Unknown).map_err(|NotStarted| {
                PyAssertionError::new_err("write was called before start_response")
            })?;
            response.put(data.as_bytes(), || port.garbage.lend(data));
            response.flush();
            (Arc::clone(response.exchange()), Arc::clone(&port.turn))
        };
        if attach::wait_for_credit(slf.py(), &exchange, &turn) {
            Ok(())
        } else {
            Err(PyConnectionResetError::new_err("the client is gone"))
        }
    }
}

impl ResponsePort {
    /// The response of the request that runs.
    pub(super) fn response(&mut self) -> PyResult<&mut Response> {
        self.response.as_mut().ok_or_else(over)
    }

    /// The same, and who lends bytes.
    pub(super) fn parts(&mut self) -> PyResult<(&mut Response, &Arc<Garbage>)> {
        Ok((self.response.as_mut().ok_or_else(over)?, &self.garbage))
    }
}

/// A port and its two bound methods, used again for the next request while nobody else holds them.
#[derive(Debug)]
pub(super) struct Callables {
    port: Py<ResponsePort>,
    start_response: Py<PyAny>,
    write: Py<PyAny>,
}

impl Callables {
    /// # Errors
    /// Out of memory.
    pub(super) fn new(py: Python<'_>, garbage: &Arc<Garbage>, turn: &Arc<Turn>) -> PyResult<Self> {
        let (garbage, turn) = (Arc::clone(garbage), Arc::clone(turn));
        let port = ResponsePort { response: None, write: None, garbage, turn };
        let port = Bound::new(py, port)?;
        Ok(Self {
            start_response: port.getattr(intern!(py, "start_response"))?.unbind(),
            write: port.getattr(intern!(py, "write"))?.unbind(),
            port: port.unbind(),
        })
    }

    /// Begins a request.
    ///
    /// # Errors
    /// The port is in use, which is a bug.
    pub(super) fn begin(&self, py: Python<'_>, response: Response) -> PyResult<()> {
        let mut port = self.port.bind(py).try_borrow_mut()?;
        port.response = Some(response);
        port.write = Some(self.write.clone_ref(py));
        Ok(())
    }

    /// Ends a request: what the application kept is dead from now on.
    pub(super) fn end(&self, py: Python<'_>) {
        if let Ok(mut port) = self.port.bind(py).try_borrow_mut() {
            port.response = None;
            port.write = None;
        }
    }

    pub(super) fn port<'py>(&self, py: Python<'py>) -> &Bound<'py, ResponsePort> {
        self.port.bind(py)
    }

    pub(super) fn start_response<'py>(&self, py: Python<'py>) -> &Bound<'py, PyAny> {
        self.start_response.bind(py)
    }

    /// Whether the application, or a traceback, kept one of the objects.
    pub(super) fn are_shared(&self, py: Python<'_>) -> bool {
        // Each method holds the port.
        capi::reference_count(self.start_response.bind(py)) > 1
            || capi::reference_count(self.write.bind(py)) > 1
            || capi::reference_count(self.port.bind(py)) > 3
    }
}

fn over() -> PyErr {
    PyAssertionError::new_err("the response is over: start_response and write are of no use now")
}

/// `raise exc_info[1].with_traceback(exc_info[2])`, as PEP 3333 asks when the head is sent.
fn raised_again(exc_info: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    let py = exc_info.py();
    let (_, value, traceback): (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>) =
        exc_info.extract()?;
    let error = value.call_method1(intern!(py, "with_traceback"), (traceback,))?;
    Ok(PyErr::from_value(error))
}

/// PEP 3333 asks for a list; other iterables are taken as they are everywhere else.
fn list_of<'py>(headers: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let items = headers.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    PyList::new(headers.py(), items)
}

/// `"200 OK"` in its two parts; the phrase may be missing.
fn status_parts<'text>(status: &'text Bound<'_, PyString>) -> PyResult<(u16, &'text [u8])> {
    let parts = capi::latin1_bytes(status).and_then(|text| {
        let (code, rest) = text.split_at_checked(3)?;
        let reason = match rest {
            [] => rest,
            [b' ', reason @ ..] => reason,
            _ => return None,
        };
        let digits = code.iter().all(u8::is_ascii_digit);
        let code =
            code.iter().fold(0, |code, digit| code * 10 + u16::from(digit.wrapping_sub(b'0')));
        digits.then_some((code, reason))
    });
    parts.ok_or_else(|| {
        PyValueError::new_err(format!(
            "the status {} is not three digits, a space and a phrase in latin-1",
            convert::shown(status, SHOWN_CHARACTERS_MAX)
        ))
    })
}

struct StartError(PyErr);

impl From<BadResponse> for StartError {
    fn from(BadResponse(text): BadResponse) -> Self {
        Self(PyValueError::new_err(text))
    }
}

impl From<PyErr> for StartError {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

fn write_fields(
    encoder: &mut HeadEncoder<'_>,
    headers: &Bound<'_, PyList>,
) -> Result<(), StartError> {
    for item in headers.iter() {
        let pair = item.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
        let pair = pair.ok_or_else(|| {
            let shown = convert::shown(&item, SHOWN_CHARACTERS_MAX);
            PyTypeError::new_err(format!("the header {shown} is not a tuple of name and value"))
        })?;
        let (name, value) = (pair.get_borrowed_item(0)?, pair.get_borrowed_item(1)?);
        encoder.field(field_bytes(&name)?, field_bytes(&value)?)?;
    }
    Ok(())
}

fn field_bytes<'text>(text: &'text Bound<'_, PyAny>) -> PyResult<&'text [u8]> {
    let Ok(string) = text.cast::<PyString>() else {
        return Err(PyTypeError::new_err(format!(
            "{} in a header is of type {}, not str",
            convert::shown(text, SHOWN_CHARACTERS_MAX),
            convert::type_name(text)
        )));
    };
    capi::latin1_bytes(string).ok_or_else(|| {
        PyValueError::new_err(format!(
            "{} in a header has a character that is not in latin-1",
            convert::shown(text, SHOWN_CHARACTERS_MAX)
        ))
    })
}
