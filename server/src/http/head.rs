//! A parsed request head: spans over the bytes as they came.
//!
//! The end of the head is searched line by line, and the search goes on where it stopped when more
//! bytes come, so a head that arrives byte by byte costs what it costs in one piece. The search
//! enforces what needs no more than lines (their ends, the bounds); `httparse` then cuts the
//! fields. Bytes from 0x80 are allowed in field values (obs-text) and not in names.

use bytes::{Bytes, BytesMut};
use httparse::{EMPTY_HEADER, Error as ParseError, Header, Status};

use super::connection::HttpLimits;
use super::fields::{Gathered, Meaning};
use super::framing::RequestFraming;
use super::grammar::{find_line, is_field_text, is_token, is_token_byte, split_once};
use super::request_line::{MethodKind, RequestLine};
use super::violation::Violation;
use crate::limits::LEADING_EMPTY_LINES_MAX;

/// The protocol version of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// One header field.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Field<'head> {
    /// As sent.
    pub name: &'head [u8],
    /// Without surrounding white space.
    pub value: &'head [u8],
}

/// A request head. Cheap to move; all slices point into one refcounted buffer.
#[derive(Clone, Debug)]
pub struct RequestHead {
    bytes: Bytes,
    line: RequestLine,
    fields: Vec<FieldSpan>,
    meaning: Meaning,
}

#[derive(Clone, Copy, Debug)]
struct FieldSpan {
    name: Span,
    value: Span,
}

impl RequestHead {
    /// As sent: case is significant.
    #[must_use]
    pub fn method(&self) -> &[u8] {
        self.line.method.of(&self.bytes)
    }

    /// The request target as sent.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        self.line.target.of(&self.bytes)
    }

    /// The path, undecoded, before `?`; `*` for `OPTIONS *`; `/` for an absolute form without one.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        match self.line.path.of(&self.bytes) {
            [] => b"/",
            path => path,
        }
    }

    /// What follows the first `?`; empty without one.
    #[must_use]
    pub fn query(&self) -> &[u8] {
        self.line.query.of(&self.bytes)
    }

    /// The authority of an absolute-form target, which replaces the Host field (RFC 9112 §3.2.2).
    #[must_use]
    pub fn authority(&self) -> Option<&[u8]> {
        self.line.authority.map(|authority| authority.of(&self.bytes))
    }

    /// The version, as far as it changes what we do.
    #[must_use]
    pub fn version(&self) -> Version {
        self.line.version
    }

    /// All fields in order, duplicates kept.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = Field<'_>> + DoubleEndedIterator {
        self.fields.iter().map(|field| Field {
            name: field.name.of(&self.bytes),
            value: field.value.of(&self.bytes),
        })
    }

    /// The first field of that name; `lower_name` in lower case.
    #[must_use]
    pub fn field(&self, lower_name: &[u8]) -> Option<&[u8]> {
        let mut fields = self.fields();
        fields.find(|field| field.name.eq_ignore_ascii_case(lower_name)).map(|field| field.value)
    }

    /// `part`, which is a part of this head, as a share of its buffer; anything else is copied.
    #[must_use]
    pub fn share(&self, part: &[u8]) -> Bytes {
        let start = part.as_ptr().addr().wrapping_sub(self.bytes.as_ptr().addr());
        let range = start..start.saturating_add(part.len());
        match self.bytes.get(range.clone()) {
            Some(same) if std::ptr::eq(same, part) => self.bytes.slice(range),
            Some(_) | None => Bytes::copy_from_slice(part),
        }
    }

    /// How its body is delimited.
    #[must_use]
    pub fn framing(&self) -> RequestFraming {
        self.meaning.framing
    }

    /// Whether the client lets the connection stay open (RFC 9112 §9.3).
    #[must_use]
    pub fn keep_alive(&self) -> bool {
        self.meaning.keep_alive
    }

    /// `Expect: 100-continue` of an HTTP/1.1 request with a body.
    #[must_use]
    pub fn expects_continue(&self) -> bool {
        self.meaning.expects_continue
    }

    /// Whether the method is HEAD.
    #[must_use]
    pub fn is_head(&self) -> bool {
        self.line.kind == MethodKind::Head
    }

    /// A GET of HTTP/1.1 that asks to become a WebSocket (RFC 6455 §4.2.1); other upgrades are
    /// ignored.
    #[must_use]
    pub fn wants_websocket(&self) -> bool {
        self.meaning.wants_websocket
    }

    /// Cuts a complete head from the front of `input`.
    fn take(input: &mut BytesMut, found: CompleteHead) -> Result<Self, Violation> {
        let CompleteHead { line, fields_start, field_count, length } = found;
        let section = input.get(fields_start..length).unwrap_or_default();
        let (fields, meaning) = if field_count <= USUAL_FIELD_COUNT {
            read_fields(section, fields_start, &line, &mut [EMPTY_HEADER; USUAL_FIELD_COUNT])?
        } else {
            read_fields(section, fields_start, &line, &mut vec![EMPTY_HEADER; field_count])?
        };
        Ok(Self { bytes: input.split_to(length).freeze(), line, fields, meaning })
    }
}

/// Up to this many fields are parsed without a second allocation. **Unit**: fields.
/// **Why**: browsers send 10 to 16.
const USUAL_FIELD_COUNT: usize = 16;

fn read_fields<'input>(
    section: &'input [u8],
    section_start: usize,
    line: &RequestLine,
    scratch: &mut [Header<'input>],
) -> Result<(Vec<FieldSpan>, Meaning), Violation> {
    let parsed = match httparse::parse_headers(section, scratch) {
        Ok(Status::Complete((length, parsed))) if length == section.len() => parsed,
        // The search has found where the section ends: another end is not ours to accept.
        Ok(_) => return Err(Violation::MalformedRequestLine),
        Err(error) => return Err(explain(section, error)),
    };
    let offset = |part: &[u8]| {
        let start = part.as_ptr().addr().saturating_sub(section.as_ptr().addr());
        Span::starting_at(section_start.saturating_add(start), part.len())
    };
    let mut gathered = Gathered::default();
    let mut fields = Vec::with_capacity(parsed.len());
    for header in parsed {
        let name = header.name.as_bytes();
        gathered.add(name, header.value)?;
        fields.push(FieldSpan { name: offset(name), value: offset(header.value) });
    }
    Ok((fields, gathered.decide(line)?))
}

/// Finds the first line that is at fault: httparse tells less than the client should hear.
#[cold]
fn explain(section: &[u8], error: ParseError) -> Violation {
    for line in section.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let Some((name, value)) = split_once(line, b':') else {
            return Violation::InvalidFieldName;
        };
        if !is_token(name) {
            return match name {
                [.., b' ' | b'\t'] if is_token(name.trim_ascii_end()) => {
                    Violation::SpaceBeforeColon
                }
                _ if line.contains(&b'\r') => Violation::BareCarriageReturn,
                _ => Violation::InvalidFieldName,
            };
        }
        if value.contains(&b'\r') {
            return Violation::BareCarriageReturn;
        }
        if !is_field_text(value) {
            return Violation::InvalidFieldValue;
        }
    }
    match error {
        ParseError::HeaderName | ParseError::Token => Violation::InvalidFieldName,
        ParseError::HeaderValue | ParseError::Status => Violation::InvalidFieldValue,
        ParseError::NewLine | ParseError::TooManyHeaders | ParseError::Version => {
            Violation::BareCarriageReturn
        }
    }
}

/// A part of a head. **Unit**: bytes from the head's start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// Heads are shorter than 4 GiB: `Connection::new` bounds their limit.
    pub(super) fn starting_at(start: usize, length: usize) -> Self {
        let narrow = |offset: usize| u32::try_from(offset).unwrap_or(u32::MAX);
        Self { start: narrow(start), end: narrow(start.saturating_add(length)) }
    }

    pub(super) fn of(self, head: &[u8]) -> &[u8] {
        head.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    pub(super) fn split_at(self, offset: usize) -> (Self, Self) {
        let offset = u32::try_from(offset).unwrap_or(u32::MAX);
        let middle = self.start.saturating_add(offset).min(self.end);
        (Self { start: self.start, end: middle }, Self { start: middle, end: self.end })
    }

    /// Before and after the byte at `offset`.
    pub(super) fn split_around(self, offset: usize) -> (Self, Self) {
        let (before, from) = self.split_at(offset);
        (before, from.split_at(1).1)
    }
}

/// How far the search for a head's end got. Offsets count from the head's first byte and stay right
/// because an incomplete head is left where it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum HeadProgress {
    /// The first `scanned` bytes hold no line end.
    RequestLine { scanned: usize, empty_line_count: usize },
    /// The request line is good; `line_start` is where the unfinished line begins.
    Fields {
        line: RequestLine,
        fields_start: usize,
        line_start: usize,
        scanned: usize,
        field_count: usize,
    },
}

/// Where the parts of a complete head are.
#[derive(Debug)]
struct CompleteHead {
    line: RequestLine,
    fields_start: usize,
    field_count: usize,
    length: usize,
}

/// What `HeadProgress::step` gives.
#[derive(Debug)]
pub(super) enum HeadStep {
    /// More bytes are needed.
    Incomplete(HeadProgress),
    /// The head was taken from the input.
    Complete(RequestHead),
}

impl HeadProgress {
    /// Nothing was seen.
    pub(super) const START: Self = Self::RequestLine { scanned: 0, empty_line_count: 0 };

    /// Goes on with the search. Takes empty lines before a head, and a complete head.
    pub(super) fn step(
        self,
        input: &mut BytesMut,
        limits: &HttpLimits,
    ) -> Result<HeadStep, Violation> {
        let mut progress = self;
        if let Self::RequestLine { scanned, empty_line_count } = progress {
            let skipped = skip_empty_lines(input, empty_line_count)?;
            progress = request_line(input, scanned, skipped, limits)?;
        }
        let Self::Fields { line, fields_start, line_start, scanned, field_count } = progress else {
            return Ok(HeadStep::Incomplete(progress));
        };
        let mut search = FieldSearch { line_start, field_count };
        let Some(length) = search.find_end(input, scanned, limits)? else {
            let FieldSearch { line_start, field_count } = search;
            let scanned = input.len();
            return Ok(HeadStep::Incomplete(Self::Fields {
                line,
                fields_start,
                line_start,
                scanned,
                field_count,
            }));
        };
        let found = CompleteHead { line, fields_start, field_count: search.field_count, length };
        RequestHead::take(input, found).map(HeadStep::Complete)
    }
}

/// "A server that is expecting to receive and parse a request-line SHOULD ignore at least one empty
/// line (CRLF) received prior to the request-line": RFC 9112 §2.2. Gives the new count.
fn skip_empty_lines(input: &mut BytesMut, mut count: usize) -> Result<usize, Violation> {
    loop {
        match input.as_ref() {
            [b'\r', b'\n', ..] if count >= LEADING_EMPTY_LINES_MAX => {
                return Err(Violation::TooManyEmptyLines);
            }
            [b'\r', b'\n', ..] => {
                drop(input.split_to(2));
                count = count.saturating_add(1);
            }
            [b'\r', _, ..] => return Err(Violation::BareCarriageReturn),
            [b'\n', ..] => return Err(Violation::BareLineFeed),
            // Said at once: a client that speaks TLS here waits for an answer, not for a deadline.
            [first, ..] if *first != b'\r' && !is_token_byte(*first) => {
                return Err(Violation::MalformedRequestLine);
            }
            _ => return Ok(count),
        }
    }
}

/// Searches the end of the request line and reads it.
fn request_line(
    input: &[u8],
    scanned: usize,
    empty_line_count: usize,
    limits: &HttpLimits,
) -> Result<HeadProgress, Violation> {
    let too_long = |max| Violation::RequestLineTooLong { max };
    let found = find_line(input, scanned, limits.request_line_bytes_max, too_long)?;
    let Some((line, fields_start)) = found else {
        return Ok(HeadProgress::RequestLine { scanned: input.len(), empty_line_count });
    };
    let line = RequestLine::parse(line)?;
    Ok(HeadProgress::Fields {
        line,
        fields_start,
        line_start: fields_start,
        scanned: fields_start,
        field_count: 0,
    })
}

struct FieldSearch {
    line_start: usize,
    field_count: usize,
}

impl FieldSearch {
    /// Goes through the line ends from `scanned` on. Gives the head's length.
    fn find_end(
        &mut self,
        input: &[u8],
        scanned: usize,
        limits: &HttpLimits,
    ) -> Result<Option<usize>, Violation> {
        let HttpLimits { head_bytes_max, field_count_max, .. } = *limits;
        let too_large = || Violation::limit(|max| Violation::HeadTooLarge { max }, head_bytes_max);
        for offset in memchr::memchr_iter(b'\n', input.get(scanned..).unwrap_or_default()) {
            let line_end = scanned.saturating_add(offset).saturating_add(1);
            if line_end > head_bytes_max {
                return Err(too_large());
            }
            match input.get(self.line_start..line_end).unwrap_or_default() {
                b"\r\n" => return Ok(Some(line_end)),
                [b' ' | b'\t', .., b'\r', b'\n'] => return Err(Violation::ObsoleteFold),
                [.., b'\r', b'\n'] => {}
                _ => return Err(Violation::BareLineFeed),
            }
            if self.field_count >= field_count_max {
                let row = |max| Violation::TooManyFields { max };
                return Err(Violation::limit(row, field_count_max));
            }
            self.field_count = self.field_count.saturating_add(1);
            self.line_start = line_end;
        }
        if input.len() > head_bytes_max { Err(too_large()) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests;
