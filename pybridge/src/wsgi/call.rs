//! One request on a pool thread: from the job to the last byte and `close()`.

use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use hoopsnake_server::exchange::{Body, Exchange, SyncLane};
use hoopsnake_server::http::BodyLength;
use hoopsnake_server::pool::ThreadIndex;
use pyo3::exceptions::PyConnectionResetError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pycell::PyBorrowMutError;
use pyo3::types::{PyBytes, PyIterator, PyList, PyTuple};

use super::Application;
use super::environ::EnvironFactory;
use super::errors::ErrorStream;
use super::file_wrapper::{FileWrapper, file_rest};
use super::input::Input;
use super::port::{Callables, ResponsePort};
use super::report;
use super::response::{NotStarted, Response};
use super::running::Place;
use crate::capi::EnteredContext;
use crate::{attach, convert, forked, names};

/// Characters of an application's value that a message shows.
const SHOWN_CHARACTERS_MAX: usize = 80;

/// What one pool thread keeps from request to request.
#[derive(Debug)]
pub(super) struct Worker<'app> {
    application: &'app Application,
    lane: &'app SyncLane,
    index: ThreadIndex,
    environs: EnvironFactory,
    callables: Callables,
    errors: Py<ErrorStream>,
    place: Arc<Place>,
}

/// Why there is no answer of the application's own.
#[derive(Debug)]
enum Failure {
    /// It raised; `doing` completes "the application …".
    Raised { doing: Cow<'static, str>, error: PyErr },
    /// It broke a rule of PEP 3333.
    Broke(String),
    /// It was not called, or could not be served: there is no memory.
    Ours(PyErr),
}

impl Failure {
    fn raised(doing: impl Into<Cow<'static, str>>) -> impl FnOnce(PyErr) -> Self {
        let doing = doing.into();
        move |error| Self::Raised { doing, error }
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Ours(error)
    }
}

impl From<PyBorrowMutError> for Failure {
    fn from(error: PyBorrowMutError) -> Self {
        Self::Ours(error.into())
    }
}

impl From<NotStarted> for Failure {
    fn from(_: NotStarted) -> Self {
        Self::Broke("the application did not call start_response before its body began".into())
    }
}

/// Tells the lane once that the last output of a job is pushed.
struct Completion<'app> {
    lane: &'app SyncLane,
    index: ThreadIndex,
    told: Cell<bool>,
}

impl Completion<'_> {
    fn tell(&self) {
        if !self.told.replace(true) {
            self.lane.completed(self.index);
        }
    }
}

/// Calls `close()` of what the application returned: once, whatever happens, also in an unwinding.
struct Closing<'call, 'py> {
    exchange: &'call Exchange,
    result: Bound<'py, PyAny>,
}

impl Drop for Closing<'_, '_> {
    fn drop(&mut self) {
        let result = &self.result;
        // Neither has a `close`, and they are what most applications return.
        if result.is_exact_instance_of::<PyList>() || result.is_exact_instance_of::<PyTuple>() {
            return;
        }
        let py = result.py();
        let closed = match result.getattr_opt(intern!(py, "close")) {
            Ok(Some(close)) => close.call0().map(drop),
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = closed {
            report::raised(py, self.exchange, "raised in close()", error);
        }
    }
}

impl<'app> Worker<'app> {
    /// # Errors
    /// Out of memory.
    pub(super) fn new(
        py: Python<'_>,
        application: &'app Application,
        lane: &'app SyncLane,
        index: ThreadIndex,
    ) -> PyResult<Self> {
        let errors = Bound::new(py, ErrorStream::default())?;
        Ok(Self {
            application,
            lane,
            index,
            environs: EnvironFactory::new(py, &application.options, &errors)?,
            callables: Callables::new(py, &application.garbage, lane.turn())?,
            errors: errors.unbind(),
            place: application.running.register(index, thread_ident(py)?),
        })
    }

    /// Answers one request. Whatever the application does, the thread lives.
    pub(super) fn run(&mut self, py: Python<'_>, exchange: Arc<Exchange>, body: Body) {
        let completion = Completion { lane: self.lane, index: self.index, told: Cell::new(false) };
        if self.application.options.timed {
            exchange.mark_started();
        }
        self.place.set(Some(Arc::clone(&exchange)));
        // In its place before it has begun: who finds it overdue finds its thread.
        if self.application.options.expires && !exchange.begin() {
            return self.place.set(None);
        }
        let served =
            catch_unwind(AssertUnwindSafe(|| self.serve(py, &exchange, body, &completion)));
        if served.is_err() {
            tracing::error!("bug: {}: its thread panicked", exchange.request_line());
            self.fail(py);
        }
        completion.tell();
        if let Ok(mut errors) = self.errors.bind(py).try_borrow_mut() {
            errors.log_pending();
        }
        self.callables.end(py);
        if self.callables.are_shared(py) {
            self.replace_callables(py);
        }
        self.place.set(None);
    }

    fn replace_callables(&mut self, py: Python<'_>) {
        match Callables::new(py, &self.application.garbage, self.lane.turn()) {
            Ok(fresh) => self.callables = fresh,
            // The old ones still work; whoever kept them could only disturb a later request.
            Err(error) => error.write_unraisable(py, None),
        }
    }

    fn serve(
        &mut self,
        py: Python<'_>,
        exchange: &Arc<Exchange>,
        body: Body,
        completion: &Completion<'_>,
    ) {
        let server_name = self.application.server_name.clone();
        let response =
            Response::new(Arc::clone(exchange), server_name, self.application.options.timed);
        let begun = self.callables.begin(py, response);
        if let Err(failure) =
            begun.map_err(Failure::Ours).and_then(|()| self.call(py, exchange, body, completion))
        {
            self.failed(py, exchange, failure);
        }
    }

    /// Calls the application and sends what it returns, in one copy of the base context (RULES 5).
    fn call(
        &mut self,
        py: Python<'_>,
        exchange: &Arc<Exchange>,
        body: Body,
        completion: &Completion<'_>,
    ) -> Result<(), Failure> {
        let body_bytes = body.len();
        let input = Input::of(py, body)?;
        let environ = self.environs.make(py, exchange, &input.stream, body_bytes)?;
        let _context = EnteredContext::copy_of(self.application.base_context.bind(py))?;
        let callable = self.application.callable.bind(py);
        let result = callable.call1((environ, self.callables.start_response(py)));
        forked::end_if_child(py, result.as_ref().err());
        let result = result.map_err(Failure::raised("raised"))?;
        let closing = Closing { exchange, result };
        let sent = self.send(py, exchange, &closing.result, completion);
        // The client is told before `close`, which may take its time.
        if let Err(failure) = sent {
            self.failed(py, exchange, failure);
        }
        completion.tell();
        Ok(())
    }

    #[cold]
    fn failed(&self, py: Python<'_>, exchange: &Exchange, failure: Failure) {
        match failure {
            Failure::Raised { error, .. }
                if exchange.is_gone() && error.is_instance_of::<PyConnectionResetError>(py) =>
            {
                tracing::debug!("{}: the client left", exchange.request_line());
            }
            Failure::Raised { doing, error } => report::raised(py, exchange, &doing, error),
            Failure::Broke(what) => report::broke(exchange, &what),
            Failure::Ours(error) => {
                report::raised(py, exchange, "could not be served by us", error);
            }
        }
        self.fail(py);
    }

    fn fail(&self, py: Python<'_>) {
        if let Ok(mut port) = self.callables.port(py).try_borrow_mut()
            && let Ok(response) = port.response()
        {
            response.fail();
        }
    }

    /// Sends the iterable that the application returned.
    fn send(
        &self,
        py: Python<'_>,
        exchange: &Exchange,
        result: &Bound<'_, PyAny>,
        completion: &Completion<'_>,
    ) -> Result<(), Failure> {
        let port = self.callables.port(py);
        if let Ok(list) = result.cast_exact::<PyList>() {
            return match list.len() {
                1 => send_whole(port, &[bytes_of(list.get_item(0)?)?]),
                _ => send_whole(port, &list.iter().map(bytes_of).collect::<Result<Vec<_>, _>>()?),
            };
        }
        if let Ok(tuple) = result.cast_exact::<PyTuple>() {
            return send_whole(port, &tuple.iter().map(bytes_of).collect::<Result<Vec<_>, _>>()?);
        }
        if let Ok(wrapper) = result.cast_exact::<FileWrapper>()
            && let Some(rest) = file_rest(wrapper)
        {
            let mut port = port.try_borrow_mut()?;
            let response = port.response()?;
            response.open(BodyLength::Known(rest.length))?;
            response.put_file(rest.file, rest.offset, rest.length);
            return Ok(response.finish()?);
        }
        let iterator = result.try_iter().map_err(Failure::raised(format!(
            "returned {}, which cannot be iterated",
            convert::type_name(result)
        )))?;
        let kind = iterator.get_type();
        if kind.is(names::list_iterator(py)?) || kind.is(names::tuple_iterator(py)?) {
            // Django's HttpResponse: not a list, but over one.
            let pieces = iterator.map(|item| bytes_of(item?)).collect::<Result<Vec<_>, _>>()?;
            return send_whole(port, &pieces);
        }
        let length_known =
            len_is_one(result).map_err(Failure::raised("raised in len() of its response"))?;
        Stream { port, exchange, completion, length_known }.send(iterator)
    }
}

fn thread_ident(py: Python<'_>) -> PyResult<u64> {
    py.import("threading")?.call_method0("get_ident")?.extract()
}

/// Sends pieces that all exist: as one buffer with the head where they are small.
fn send_whole(
    port: &Bound<'_, ResponsePort>,
    pieces: &[Bound<'_, PyBytes>],
) -> Result<(), Failure> {
    let total = pieces.iter().map(|piece| piece.as_bytes().len() as u64).sum();
    let mut port = port.try_borrow_mut()?;
    let (response, garbage) = port.parts()?;
    response.open(BodyLength::Known(total))?;
    for piece in pieces {
        response.put(piece.as_bytes(), || garbage.lend(piece));
    }
    Ok(response.finish()?)
}

/// Sends pieces as they come.
struct Stream<'call, 'py> {
    port: &'call Bound<'py, ResponsePort>,
    exchange: &'call Exchange,
    completion: &'call Completion<'call>,
    /// There will be one piece: its length is the body's (PEP 3333, "Handling the Content-Length
    /// Header").
    length_known: bool,
}

/// Whether the iterable is worth another step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Next,
    Enough,
}

impl<'py> Stream<'_, 'py> {
    fn send(&self, iterator: Bound<'py, PyIterator>) -> Result<(), Failure> {
        let py = self.port.py();
        if self.port.try_borrow_mut()?.response()?.has_no_body() {
            // Its pieces would be made for nothing.
            return self.finish();
        }
        let mut iterator = iterator;
        loop {
            if !self.may_go_on(py)? {
                return Ok(());
            }
            let Some(item) = iterator.next() else { return self.finish() };
            let item = item.map_err(Failure::raised("raised while its response was iterated"))?;
            if self.piece(&bytes_of(item)?)? == Step::Enough {
                return self.finish();
            }
        }
    }

    /// Waits for the client to keep up. False: it is gone, and nobody wants the next piece (RULES 18).
    fn may_go_on(&self, py: Python<'_>) -> PyResult<bool> {
        // The generator is also run to its end when the last byte of a known length is out.
        let is_over = self.port.try_borrow_mut()?.response()?.is_over();
        Ok(is_over || attach::wait_for_credit(py, self.exchange, self.completion.lane.turn()))
    }

    fn piece(&self, piece: &Bound<'_, PyBytes>) -> Result<Step, Failure> {
        let data = piece.as_bytes();
        let mut port = self.port.try_borrow_mut()?;
        let (response, garbage) = port.parts()?;
        if data.is_empty() {
            // "The start_response callable must not actually transmit the response headers. Instead,
            // it must store them ... until after the first iteration of the application return value
            // that yields a non-empty bytestring": PEP 3333.
            return Ok(if response.has_no_body() { Step::Enough } else { Step::Next });
        }
        let length = if self.length_known {
            BodyLength::Known(data.len() as u64)
        } else {
            BodyLength::Unknown
        };
        response.open(length)?;
        response.put(data, || garbage.lend(piece));
        response.flush();
        if response.is_over() {
            self.completion.tell();
        }
        let is_enough = response.has_no_body() || response.has_surplus();
        Ok(if is_enough { Step::Enough } else { Step::Next })
    }

    fn finish(&self) -> Result<(), Failure> {
        Ok(self.port.try_borrow_mut()?.response()?.finish()?)
    }
}

fn bytes_of<'py>(item: Bound<'py, PyAny>) -> Result<Bound<'py, PyBytes>, Failure> {
    item.cast_into::<PyBytes>().map_err(|error| {
        let item = error.into_inner();
        Failure::Broke(format!(
            "the application's response has a piece of type {}, which must be bytes: {}",
            convert::type_name(&item),
            convert::shown(&item, SHOWN_CHARACTERS_MAX)
        ))
    })
}

/// `len(result) == 1`, where the type has a length at all.
fn len_is_one(result: &Bound<'_, PyAny>) -> PyResult<bool> {
    let has_len = result.get_type().hasattr(intern!(result.py(), "__len__"))?;
    Ok(has_len && result.len()? == 1)
}
