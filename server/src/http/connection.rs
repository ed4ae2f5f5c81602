//! One connection's machine: bytes in, heads and bodies out, one request at a time.

use bytes::{Bytes, BytesMut};

use super::head::RequestHead;
use super::violation::Violation;

/// Bounds of a request head. **Unit**: bytes and fields.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HttpLimits {
    /// Request line.
    pub request_line_bytes_max: usize,
    /// Whole head.
    pub head_bytes_max: usize,
    /// Header fields.
    pub field_count_max: usize,
}

/// What the machine found in the bytes.
#[derive(Debug)]
pub enum Input {
    /// A request begins. With `RequestFraming::None` it is complete; else `Body`s and one `BodyEnd` follow.
    Head(RequestHead),
    /// A piece of the body, coding removed; never empty.
    Body(Bytes),
    /// The body is complete.
    BodyEnd,
}

/// The machine.
#[derive(Debug)]
pub struct Connection {}

impl Connection {
    /// Waits for the first request.
    #[must_use]
    pub fn new(limits: HttpLimits) -> Self {
        let _ = limits;
        unimplemented!()
    }

    /// Takes the next unit from the front of `input`, and nothing of an incomplete one. After a
    /// complete request it takes nothing until `response_complete`.
    ///
    /// # Errors
    /// The peer broke a rule; every later call returns the same.
    pub fn receive(&mut self, input: &mut BytesMut) -> Result<Option<Input>, Violation> {
        let _ = input;
        unimplemented!()
    }

    /// The peer has closed its sending side and `input` is what is left. `Ok(true)`: in the middle of
    /// a request (the body will not come). `Ok(false)`: between requests or after a complete one.
    #[must_use]
    pub fn is_mid_request(&self, input: &BytesMut) -> bool {
        let _ = input;
        unimplemented!()
    }

    /// Whether a request head is awaited.
    #[must_use]
    pub fn awaits_head(&self) -> bool {
        unimplemented!()
    }

    /// Whether a request was begun and its body is not complete.
    #[must_use]
    pub fn awaits_body(&self) -> bool {
        unimplemented!()
    }

    /// The response is out. True: the next request may be received. False: the connection must end
    /// (no keep-alive, or the request's body was not read to its end).
    pub fn response_complete(&mut self, keep_alive: bool) -> bool {
        let _ = keep_alive;
        unimplemented!()
    }
}
