//! Writes a response head (RFC 9112 §4, §6) and decides how its body is delimited.
//!
//! | status, method | body length | written | `ResponseFraming` |
//! |---|---|---|---|
//! | 204 | any | no `Content-Length` | `None` |
//! | 205 | any | `Content-Length: 0` | `None` |
//! | 304 | any | the application's `Content-Length` | `None` |
//! | HEAD | any | the application's `Content-Length`, else that of a body it gave | `None` |
//! | other | the application's `Content-Length: n` | it | `Length(n)` |
//! | other | `Known(n)` | `Content-Length: n` | `Length(n)` |
//! | other, 1.1 | `Unknown` | `Transfer-Encoding: chunked` | `Chunked` |
//! | other, 1.0 | `Unknown` | `Connection: close` | `UntilClose` |

use super::grammar::{is_field_text, is_token, list, parse_decimal, trim_optional_space};
use super::head::{RequestHead, Version};
pub use super::reason::reason_phrase;
use crate::clock::push_http_date;

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
    /// The value of `X-Request-ID` where the application sets none; `None` sends none.
    pub request_id: Option<&'server [u8]>,
}

impl<'server> ResponseContext<'server> {
    /// From a request.
    #[must_use]
    pub fn of(head: &RequestHead, keep_alive: bool, server: Option<&'server [u8]>) -> Self {
        let (version, is_head) = (head.version(), head.is_head());
        Self { version, is_head, keep_alive, server, request_id: None }
    }

    /// The same for a request that has a name.
    #[must_use]
    pub fn named(self, request_id: Option<&'server [u8]>) -> Self {
        Self { request_id, ..self }
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
    /// HEAD, 204, 205, 304: whatever the application gives is dropped.
    None,
    /// Exactly so many bytes: fewer is an abort, more is cut off and logged. It is the
    /// application's own `Content-Length` where it set one, also when `BodyLength::Known` says
    /// otherwise.
    Length(u64),
    /// Each piece as a chunk, then `LAST_CHUNK`.
    Chunked,
    /// The end of the connection ends the body.
    UntilClose,
}

/// The end of a chunked body without trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Tells a client that waits for it that its body is wanted (RFC 9110 §15.2.1).
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

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

/// What is known of a head that is begun and not finished.
#[derive(Clone, Copy, Debug)]
pub struct HeadProgress {
    status: u16,
    content_length: Option<u64>,
    has_date: bool,
    has_server: bool,
    has_request_id: bool,
    wants_close: bool,
}

impl HeadProgress {
    /// The status that was written.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status
    }
}

/// Writes one head: `begin`, `field` for each, `finish`. After an error `out` holds a part of a
/// head, which the caller removes.
#[derive(Debug)]
pub struct HeadEncoder<'out> {
    out: &'out mut Vec<u8>,
    context: ResponseContext<'out>,
    status: u16,
    content_length: Option<u64>,
    has_date: bool,
    has_server: bool,
    has_request_id: bool,
    wants_close: bool,
}

impl<'out> HeadEncoder<'out> {
    /// Writes the status line. With an empty `reason` the status's standard phrase is written,
    /// where it has one.
    ///
    /// # Errors
    /// A status outside 200–999 (an application sends no 1xx here) or a reason with control bytes.
    pub fn begin(
        out: &'out mut Vec<u8>,
        context: ResponseContext<'out>,
        status: u16,
        reason: &[u8],
    ) -> Result<Self, BadResponse> {
        if !(200..=999).contains(&status) {
            return Err(BadResponse(format!("the status {status} is not between 200 and 999")));
        }
        if !is_field_text(reason) {
            return Err(BadResponse(format!(
                "the reason phrase {} has control bytes",
                quoted(reason)
            )));
        }
        let reason = match (reason, reason_phrase(status)) {
            ([], "Unknown") => b"",
            ([], standard) => standard.as_bytes(),
            (own, _) => own,
        };
        Ok(Self::start(out, context, status, reason))
    }

    fn start(
        out: &'out mut Vec<u8>,
        context: ResponseContext<'out>,
        status: u16,
        reason: &[u8],
    ) -> Self {
        out.extend_from_slice(b"HTTP/1.1 ");
        push_decimal(out, u64::from(status));
        out.push(b' ');
        out.extend_from_slice(reason);
        out.extend_from_slice(b"\r\n");
        Self {
            out,
            context,
            status,
            content_length: None,
            has_date: false,
            has_server: false,
            has_request_id: false,
            wants_close: false,
        }
    }

    /// Writes one field as the application gave it, or takes from it what belongs to the server.
    ///
    /// # Errors
    /// A name that is no token, a value with control bytes, a `Content-Length` that is no number.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), BadResponse> {
        if !is_token(name) {
            return Err(BadResponse(format!("the field name {} is no token", quoted(name))));
        }
        if !is_field_text(value) {
            return Err(BadResponse(format!(
                "the value {} of the field {} has control bytes",
                quoted(value),
                quoted(name)
            )));
        }
        if self.keeps(name, value)? {
            self.push_field(name, value);
        }
        Ok(())
    }

    /// Whether a field goes to the client as it is. **Source**: PEP 3333 forbids applications the
    /// hop-by-hop fields of RFC 9110 §7.6.1; frameworks that set them mean no harm, so they are
    /// dropped, except that `Connection: close` is obeyed.
    fn keeps(&mut self, name: &[u8], value: &[u8]) -> Result<bool, BadResponse> {
        let first = name.first().map_or(0, u8::to_ascii_lowercase);
        let is = |lower_name: &[u8]| name.eq_ignore_ascii_case(lower_name);
        match (name.len(), first) {
            (2, b't') if is(b"te") => Ok(false),
            (4, b'd') if is(b"date") => {
                self.has_date = true;
                Ok(true)
            }
            (6, b's') if is(b"server") => {
                self.has_server = true;
                Ok(true)
            }
            (7, b't') if is(b"trailer") => Ok(false),
            (7, b'u') if is(b"upgrade") => Ok(false),
            (10, b'c') if is(b"connection") => {
                self.wants_close |= list(value).any(|option| option.eq_ignore_ascii_case(b"close"));
                Ok(false)
            }
            (10, b'k') if is(b"keep-alive") => Ok(false),
            (12, b'x') if is(b"x-request-id") => {
                self.has_request_id = true;
                Ok(true)
            }
            (14, b'c') if is(b"content-length") => self.content_length(value).map(|()| false),
            (16, b'p') if is(b"proxy-connection") => Ok(false),
            (17, b't') if is(b"transfer-encoding") => Ok(false),
            _ => Ok(true),
        }
    }

    fn content_length(&mut self, value: &[u8]) -> Result<(), BadResponse> {
        let length = parse_decimal(trim_optional_space(value)).ok_or_else(|| {
            BadResponse(format!("the Content-Length {} is no number", quoted(value)))
        })?;
        match self.content_length.replace(length) {
            Some(other) if other != length => {
                Err(BadResponse(format!("two different Content-Length: {other} and {length}")))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn push_field(&mut self, name: &[u8], value: &[u8]) {
        let length = name.len().saturating_add(value.len()).saturating_add(4);
        self.out.reserve(length);
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(b": ");
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Sets an encoder aside while its buffer is elsewhere: [`HeadEncoder::resume`] goes on.
    #[must_use]
    pub fn suspend(self) -> HeadProgress {
        HeadProgress {
            status: self.status,
            content_length: self.content_length,
            has_date: self.has_date,
            has_server: self.has_server,
            has_request_id: self.has_request_id,
            wants_close: self.wants_close,
        }
    }

    /// Goes on where [`HeadEncoder::suspend`] stopped; `out` ends as it did then.
    #[must_use]
    pub fn resume(
        out: &'out mut Vec<u8>,
        context: ResponseContext<'out>,
        progress: HeadProgress,
    ) -> Self {
        let HeadProgress {
            status,
            content_length,
            has_date,
            has_server,
            has_request_id,
            wants_close,
        } = progress;
        Self {
            out,
            context,
            status,
            content_length,
            has_date,
            has_server,
            has_request_id,
            wants_close,
        }
    }

    /// Writes the server's own fields and the empty line.
    pub fn finish(mut self, body: BodyLength) -> EncodedHead {
        let framing = self.framing(body);
        if let Some(length) = self.written_length(body, framing) {
            self.out.extend_from_slice(b"Content-Length: ");
            push_decimal(self.out, length);
            self.out.extend_from_slice(b"\r\n");
        }
        if framing == ResponseFraming::Chunked {
            self.out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        if let Some(server) = self.context.server.filter(|_| !self.has_server) {
            self.push_field(b"Server", server);
        }
        if let Some(id) = self.context.request_id.filter(|_| !self.has_request_id) {
            self.push_field(b"X-Request-ID", id);
        }
        if !self.has_date {
            self.out.extend_from_slice(b"Date: ");
            push_http_date(self.out);
            self.out.extend_from_slice(b"\r\n");
        }
        let keep_alive =
            self.context.keep_alive && !self.wants_close && framing != ResponseFraming::UntilClose;
        let connection: &[u8] = match (keep_alive, self.context.version) {
            (false, _) => b"Connection: close\r\n\r\n",
            (true, Version::Http10) => b"Connection: keep-alive\r\n\r\n",
            (true, Version::Http11) => b"\r\n",
        };
        self.out.extend_from_slice(connection);
        EncodedHead { framing, keep_alive }
    }

    fn framing(&self, body: BodyLength) -> ResponseFraming {
        if self.context.is_head || matches!(self.status, 204 | 205 | 304) {
            return ResponseFraming::None;
        }
        match (self.content_length, body, self.context.version) {
            (Some(length), _, _) | (None, BodyLength::Known(length), _) => {
                ResponseFraming::Length(length)
            }
            (None, BodyLength::Unknown, Version::Http11) => ResponseFraming::Chunked,
            (None, BodyLength::Unknown, Version::Http10) => ResponseFraming::UntilClose,
        }
    }

    /// The `Content-Length` to write.
    fn written_length(&self, body: BodyLength, framing: ResponseFraming) -> Option<u64> {
        match (framing, self.status, body) {
            (ResponseFraming::Length(length), _, _) => Some(length),
            (ResponseFraming::Chunked | ResponseFraming::UntilClose, _, _)
            // "A server MUST NOT send a Content-Length header field in any response with a status
            // code of ... 204": RFC 9110 §8.6.
            | (ResponseFraming::None, 204, _) => None,
            // RFC 9110 §15.3.6.
            (ResponseFraming::None, 205, _) => Some(0),
            // The length must be that of a GET's body (RFC 9110 §8.6). An empty body in answer to a
            // HEAD says nothing about it: many applications leave the body away themselves.
            (ResponseFraming::None, 304, _)
            | (ResponseFraming::None, _, BodyLength::Known(0) | BodyLength::Unknown) => {
                self.content_length
            }
            (ResponseFraming::None, _, BodyLength::Known(length)) => {
                Some(self.content_length.unwrap_or(length))
            }
        }
    }
}

/// Writes the line before a chunk of `length` bytes; the chunk is followed by CR LF.
///
/// # Panics
/// With a length of zero, which would end the body: an empty piece is no chunk.
pub fn push_chunk_line(out: &mut Vec<u8>, length: usize) {
    assert!(length > 0, "an empty chunk would end the body");
    let digit_count = usize::BITS.saturating_sub(length.leading_zeros()).div_ceil(4);
    for place in (0..digit_count).rev() {
        let digit = (length >> place.saturating_mul(4)) & 0x0f;
        out.push(HEXADECIMAL.get(digit).copied().unwrap_or_default());
    }
    out.extend_from_slice(b"\r\n");
}

const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";

/// Writes a whole response of the server's own: `status`, a one-line text body, `Connection: close`
/// unless the context keeps the connection. A name or value of `extra_fields` that is none is left
/// out.
pub fn push_own_response(
    out: &mut Vec<u8>,
    context: ResponseContext<'_>,
    status: u16,
    detail: &str,
    extra_fields: &[(&str, &str)],
) {
    let body_length = (detail.len() as u64).saturating_add(1);
    let mut encoder = HeadEncoder::start(out, context, status, reason_phrase(status).as_bytes());
    encoder.push_field(b"Content-Type", b"text/plain; charset=utf-8");
    for (name, value) in extra_fields {
        // An error leaves nothing of the field behind.
        let _ = encoder.field(name.as_bytes(), value.as_bytes());
    }
    let framing = encoder.finish(BodyLength::Known(body_length)).framing;
    if framing != ResponseFraming::None {
        out.extend_from_slice(detail.as_bytes());
        out.push(b'\n');
    }
}

fn push_decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b'0'; DECIMAL_DIGITS_MAX];
    let mut digit_count = 0_usize;
    for place in digits.iter_mut().rev() {
        *place = b'0'.wrapping_add((number % 10) as u8);
        digit_count = digit_count.saturating_add(1);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    let start = DECIMAL_DIGITS_MAX.saturating_sub(digit_count);
    out.extend_from_slice(digits.get(start..).unwrap_or_default());
}

/// Of 2^64 - 1. **Unit**: digits.
const DECIMAL_DIGITS_MAX: usize = 20;

/// An application's bytes for the log: escaped, and cut where they are long.
fn quoted(text: &[u8]) -> String {
    let (shown, rest) = text.split_at_checked(QUOTED_BYTES_MAX).unwrap_or((text, b""));
    let more = if rest.is_empty() { "" } else { "…" };
    format!("\"{}{more}\"", shown.escape_ascii())
}

/// **Unit**: bytes.
const QUOTED_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests;
