//! Writes a response head (RFC 9112 §4, §6) and decides how its body is delimited.

use super::head::{RequestHead, Version};

/// What of the request decides the shape of the response.
#[derive(Clone, Copy, Debug)]
pub struct ResponseContext<'server> {
    /// The request's version.
    pub version: Version,
    /// The request's method is HEAD.
    pub is_head: bool,
    /// The connection may stay open.
    pub keep_alive: bool,
    /// The value of the `Server` field where the application sets none; `None` sends none.
    pub server: Option<&'server [u8]>,
}

impl<'server> ResponseContext<'server> {
    /// From a request.
    #[must_use]
    pub fn of(head: &RequestHead, keep_alive: bool, server: Option<&'server [u8]>) -> Self {
        Self { version: head.version(), is_head: head.is_head(), keep_alive, server }
    }
}

/// What is known of the body before it is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BodyLength {
    /// All of it. **Unit**: bytes.
    Known(u64),
    /// Pieces will follow.
    Unknown,
}

/// How the body is delimited on the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ResponseFraming {
    /// HEAD, 204, 304: whatever the application gives is dropped.
    None,
    /// Exactly so many bytes: fewer is an abort, more is cut off and logged.
    Length(u64),
    /// Each piece as a chunk, then `LAST_CHUNK`.
    Chunked,
    /// The end of the connection ends the body.
    UntilClose,
}

/// The end of a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// What the application did wrong in its head; the text is for the log.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BadResponse(pub String);

/// A head that is finished.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EncodedHead {
    /// How the body goes on.
    pub framing: ResponseFraming,
    /// Whether the connection may carry another request.
    pub keep_alive: bool,
}

/// Writes one head: `begin`, `field` for each, `finish`.
#[derive(Debug)]
pub struct HeadEncoder<'out> {
    out: &'out mut Vec<u8>,
}

impl<'out> HeadEncoder<'out> {
    /// Writes the status line. `reason` may be empty.
    ///
    /// # Errors
    /// A status outside 200–999 (an application sends no 1xx here) or a reason with control bytes.
    pub fn begin(
        out: &'out mut Vec<u8>,
        context: ResponseContext<'_>,
        status: u16,
        reason: &[u8],
    ) -> Result<Self, BadResponse> {
        let _ = (context, status, reason);
        Ok(Self { out })
    }

    /// Writes one field as the application gave it, or takes from it what belongs to the server.
    ///
    /// # Errors
    /// A name that is no token, a value with control bytes, a `Content-Length` that is no number.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadResponse> {
        let _ = (&self.out, name, value);
        unimplemented!()
    }

    /// Writes the server's own fields and the empty line.
    pub fn finish(self, body: BodyLength) -> EncodedHead {
        let _ = body;
        unimplemented!()
    }
}

/// Writes the line before a chunk of `length` bytes; the chunk is followed by CR LF.
pub fn push_chunk_line(out: &mut Vec<u8>, length: usize) {
    let _ = (out, length);
    unimplemented!()
}

/// Writes a whole response of the server's own: `status`, a one-line text body, `Connection: close`
/// unless the context keeps the connection.
pub fn push_own_response(
    out: &mut Vec<u8>,
    context: ResponseContext<'_>,
    status: u16,
    detail: &str,
    extra_fields: &[(&str, &str)],
) {
    let _ = (out, context, status, detail, extra_fields);
    unimplemented!()
}

/// The standard phrase of a status code (RFC 9110 §15); `Unknown` for others.
#[must_use]
pub fn reason_phrase(status: u16) -> &'static str {
    let _ = status;
    "Unknown"
}
