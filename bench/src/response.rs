//! Reads the responses of one connection, sans-io, and checks each against what is expected.
//!
//! Nothing is kept but an unfinished head: the memory of a run does not depend on its length.

use std::mem::MaybeUninit;

use crate::body::{BodyCheck, Chunk, Expectation, Framing};

/// A peer's breach of RFC 9112, in words. The connection cannot be used after it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// One whole final response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Response {
    /// 200 to 999.
    pub(crate) status: u16,
    /// Whether the body is the expected one.
    pub(crate) body_matches: bool,
    /// Whether the next request may use the same connection.
    pub(crate) keep_alive: bool,
}

/// What one call of [`ResponseReader::feed`] did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// All input is taken, the response is not complete.
    NeedMore,
    /// A response is complete; it ended after `taken` bytes of the input.
    Complete {
        /// Bytes of the input that belong to this response or an interim one before it.
        taken: usize,
        /// The response.
        response: Response,
    },
}

/// The state of one connection's responses to GET requests.
#[derive(Debug)]
pub(crate) struct ResponseReader {
    state: State,
    /// The bytes of an unfinished head; empty in every other state.
    head: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Before or inside a head.
    Head,
    /// Inside a body.
    Body { head: HeadFacts, framing: Framing, check: BodyCheck },
}

#[derive(Clone, Copy, Debug)]
struct HeadFacts {
    status: u16,
    keep_alive: bool,
}

/// Bytes of one response head. Ours are under 300; Django's with cookies stay under 4 KiB.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Fields of one response head.
const HEAD_FIELDS_MAX: usize = 64;

impl ResponseReader {
    /// A reader at the start of a connection.
    pub(crate) fn new() -> Self {
        Self { state: State::Head, head: Vec::new() }
    }

    /// Whether nothing of a response has arrived yet.
    pub(crate) fn is_between_responses(&self) -> bool {
        matches!(self.state, State::Head) && self.head.is_empty()
    }

    /// Takes input up to the end of the first response that becomes complete.
    ///
    /// **Errors**: the first breach of the protocol; the connection is of no use afterwards.
    pub(crate) fn feed(
        &mut self,
        input: &[u8],
        expectation: &Expectation,
    ) -> Result<Step, Violation> {
        let mut taken = 0;
        loop {
            match &mut self.state {
                State::Head => {
                    let Some((head_bytes, interim, state)) = self.take_head(&input[taken..])?
                    else {
                        return Ok(Step::NeedMore);
                    };
                    taken += head_bytes;
                    if !interim {
                        self.state = state;
                    }
                }
                State::Body { head, framing, check } => {
                    taken += framing.take(&input[taken..], check, expectation)?;
                    if *framing != Framing::Done {
                        return Ok(Step::NeedMore);
                    }
                    let response = head.complete(check, expectation);
                    self.state = State::Head;
                    return Ok(Step::Complete { taken, response });
                }
            }
        }
    }

    /// The peer has closed: a body that lasts until then is complete.
    pub(crate) fn end(&mut self, expectation: &Expectation) -> Option<Response> {
        match self.state {
            State::Body { head, framing: Framing::UntilClose, check } => {
                self.state = State::Head;
                Some(head.complete(&check, expectation))
            }
            State::Body { .. } | State::Head => None,
        }
    }

    /// Returns the bytes taken, whether the head was an interim one, and the state after it;
    /// `None` if the head is not complete, with the input kept.
    fn take_head(&mut self, input: &[u8]) -> Result<Option<(usize, bool, State)>, Violation> {
        if input.is_empty() {
            return Ok(None);
        }
        let kept = self.head.len();
        if kept > 0 {
            self.head.extend_from_slice(input);
        }
        let bytes = if kept > 0 { &self.head[..] } else { input };
        match parse_head(bytes)? {
            Some((head_bytes, head, framing)) => {
                self.head.clear();
                let interim = head.status < 200;
                let state = State::Body { head, framing, check: BodyCheck::default() };
                Ok(Some((head_bytes - kept, interim, state)))
            }
            None if bytes.len() > HEAD_BYTES_MAX => Err(Violation("a head over 64 KiB")),
            None => {
                if kept == 0 {
                    self.head.extend_from_slice(input);
                }
                Ok(None)
            }
        }
    }
}

impl HeadFacts {
    fn complete(self, check: &BodyCheck, expectation: &Expectation) -> Response {
        Response {
            status: self.status,
            body_matches: check.matches(expectation),
            keep_alive: self.keep_alive,
        }
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<(usize, HeadFacts, Framing)>, Violation> {
    let mut fields = [const { MaybeUninit::uninit() }; HEAD_FIELDS_MAX];
    let mut head = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut head, bytes, &mut fields)
        .map_err(|error| match error {
            httparse::Error::TooManyHeaders => Violation("a head of more than 64 fields"),
            httparse::Error::Status => Violation("a broken status line"),
            httparse::Error::Version => Violation("a version that is not HTTP/1.x"),
            httparse::Error::HeaderName => Violation("a broken field name"),
            httparse::Error::HeaderValue => Violation("a broken field value"),
            httparse::Error::NewLine => Violation("a broken line end in the head"),
            httparse::Error::Token => Violation("bytes that are not a response"),
        })?;
    let head_bytes = match parsed {
        httparse::Status::Complete(head_bytes) => head_bytes,
        httparse::Status::Partial => return Ok(None),
    };
    let (Some(status), Some(version)) = (head.code, head.version) else {
        return Err(Violation("a head without a status"));
    };
    if status < 100 || status == 101 {
        return Err(Violation("a status that no request asked for"));
    }
    let fields = FramingFields::collect(head.headers)?;
    let framing = fields.framing(status)?;
    let keep_alive =
        !fields.close && (version == 1 || fields.keep_alive) && framing != Framing::UntilClose;
    Ok(Some((head_bytes, HeadFacts { status, keep_alive }, framing)))
}

/// The fields that say where a response ends.
#[derive(Default)]
struct FramingFields {
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
}

impl FramingFields {
    fn collect(fields: &[httparse::Header<'_>]) -> Result<Self, Violation> {
        let mut found = Self::default();
        for field in fields {
            if field.name.eq_ignore_ascii_case("content-length") {
                if found.length.is_some() {
                    return Err(Violation("a second Content-Length"));
                }
                found.length = Some(parse_length(field.value)?);
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") {
                if found.chunked || !field.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Violation("a Transfer-Encoding that is not just chunked"));
                }
                found.chunked = true;
            } else if field.name.eq_ignore_ascii_case("connection") {
                for option in field.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                    found.close |= option.eq_ignore_ascii_case(b"close");
                    found.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
                }
            }
        }
        Ok(found)
    }

    /// **Source**: RFC 9112 §6.3, for a response to GET; stricter where the RFC leaves a choice.
    fn framing(&self, status: u16) -> Result<Framing, Violation> {
        let bodiless = status < 200 || status == 204 || status == 304;
        match (self.length, self.chunked) {
            (Some(_), true) => Err(Violation("both Content-Length and Transfer-Encoding")),
            // "A server MUST NOT send a Transfer-Encoding header field in any response with a
            // status code of 1xx (Informational) or 204 (No Content)": RFC 9112 §6.1.
            (None, true) if status < 200 || status == 204 => {
                Err(Violation("Transfer-Encoding in a response that has no body"))
            }
            (Some(_) | None, _) if bodiless => Ok(Framing::Done),
            (Some(0), false) => Ok(Framing::Done),
            (Some(length), false) => Ok(Framing::Length(length)),
            (None, true) => Ok(Framing::Chunked(Chunk::SizeStart)),
            (None, false) => Ok(Framing::UntilClose),
        }
    }
}

fn parse_length(value: &[u8]) -> Result<u64, Violation> {
    let broken = Violation("a Content-Length that is not a number");
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(broken);
    }
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).ok_or(broken)
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
