//! Decodes the chunked coding (RFC 9112 §7.1).
//!
//! | state | takes | next |
//! |---|---|---|
//! | `Size` | a size line | `Data`, or `Trailers` after size 0 |
//! | `Data` | what there is of the chunk | `Data`, `DataEnd` |
//! | `DataEnd` | CR LF | `Size` |
//! | `Trailers` | one field line, dropped | `Trailers` |
//! | `Trailers` | the empty line | the end |

use bytes::{Bytes, BytesMut};

use super::grammar::{
    find_line, find_line_feed, is_field_line, is_field_text, is_token_byte, trim_optional_space,
};
use super::violation::Violation;
use crate::limits::{CHUNK_LINE_BYTES_MAX, TRAILER_BYTES_MAX};

/// Where in the coding the next byte is. An incomplete line stays in the input; `scanned` bytes of
/// it hold no line end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChunkedDecoder {
    /// At a chunk-size line.
    Size {
        /// Of the line.
        scanned: usize,
    },
    /// In a chunk.
    Data {
        /// Bytes of the chunk to come; not zero.
        remaining: u64,
    },
    /// At the CR LF after a chunk.
    DataEnd,
    /// At a trailer line.
    Trailers {
        /// Of the line.
        scanned: usize,
        /// Bytes of the trailer lines before it.
        taken: usize,
    },
}

/// A unit of the coding.
#[derive(Debug, Eq, PartialEq)]
pub enum ChunkedStep {
    /// More bytes are needed.
    Incomplete(ChunkedDecoder),
    /// A piece of the body; never empty.
    Piece(Bytes, ChunkedDecoder),
    /// The coding is at its end; trailers were dropped.
    End,
}

impl ChunkedDecoder {
    /// At the first chunk-size line.
    pub const START: Self = Self::Size { scanned: 0 };

    /// Takes from the front of `input` up to the next piece of the body.
    ///
    /// # Errors
    /// The coding is broken or crosses a bound.
    pub fn step(self, input: &mut BytesMut) -> Result<ChunkedStep, Violation> {
        let mut state = self;
        loop {
            state = match state {
                Self::Size { scanned } => match take_size(input, scanned)? {
                    Line::Unfinished { scanned } => {
                        return Ok(ChunkedStep::Incomplete(Self::Size { scanned }));
                    }
                    Line::Taken(0) => Self::Trailers { scanned: 0, taken: 0 },
                    Line::Taken(remaining) => Self::Data { remaining },
                },
                Self::Data { remaining } => {
                    let Some((piece, remaining)) = take_up_to(input, remaining) else {
                        return Ok(ChunkedStep::Incomplete(state));
                    };
                    let next =
                        if remaining == 0 { Self::DataEnd } else { Self::Data { remaining } };
                    return Ok(ChunkedStep::Piece(piece, next));
                }
                Self::DataEnd => match input.as_ref() {
                    [b'\r', b'\n', ..] => {
                        drop(input.split_to(2));
                        Self::START
                    }
                    [] | [b'\r'] => return Ok(ChunkedStep::Incomplete(state)),
                    _ => return Err(Violation::ChunkEndInvalid),
                },
                Self::Trailers { scanned, taken } => match take_trailer(input, scanned, taken)? {
                    Line::Unfinished { scanned } => {
                        return Ok(ChunkedStep::Incomplete(Self::Trailers { scanned, taken }));
                    }
                    Line::Taken(Trailer::End) => return Ok(ChunkedStep::End),
                    Line::Taken(Trailer::Field { taken }) => Self::Trailers { scanned: 0, taken },
                },
            };
        }
    }
}

/// Takes at most `remaining` bytes; gives them and how many are left to come. `None` without any.
pub(super) fn take_up_to(input: &mut BytesMut, remaining: u64) -> Option<(Bytes, u64)> {
    let length = usize::try_from(remaining).unwrap_or(usize::MAX).min(input.len());
    if length == 0 {
        return None;
    }
    let piece = input.split_to(length).freeze();
    Some((piece, remaining.saturating_sub(length as u64)))
}

enum Line<T> {
    Unfinished { scanned: usize },
    Taken(T),
}

enum Trailer {
    Field { taken: usize },
    End,
}

fn take_size(input: &mut BytesMut, scanned: usize) -> Result<Line<u64>, Violation> {
    // A length read as text of the next request, or text read as a length, is told at once.
    if input.first().is_some_and(|first| !first.is_ascii_hexdigit()) {
        return Err(Violation::ChunkSizeInvalid);
    }
    let too_long = |max| Violation::ChunkLineTooLong { max };
    let found = find_line(input, scanned, CHUNK_LINE_BYTES_MAX, too_long)?;
    let Some((line, line_end)) = found else {
        return Ok(Line::Unfinished { scanned: input.len() });
    };
    let size = parse_size_line(line)?;
    drop(input.split_to(line_end));
    Ok(Line::Taken(size))
}

/// `1*HEXDIG [ chunk-ext ]`. Extensions mean nothing to us and are only checked: what another
/// recipient might take for a line's end is refused.
fn parse_size_line(line: &[u8]) -> Result<u64, Violation> {
    let digit_count = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (digits, rest) = line.split_at_checked(digit_count).unwrap_or((line, b""));
    if digits.is_empty() || digits.len() > HEX_DIGITS_MAX {
        return Err(Violation::ChunkSizeInvalid);
    }
    match trim_optional_space(rest) {
        [] if rest.is_empty() => {}
        [b';', ..] if are_extensions(rest) => {}
        [b';', ..] => return Err(Violation::ChunkExtensionInvalid),
        _ => return Err(Violation::ChunkSizeInvalid),
    }
    Ok(digits.iter().fold(0, |size, &digit| (size << 4) | u64::from(hexadecimal_value(digit))))
}

/// `*( BWS ";" BWS token [ BWS "=" BWS ( token / quoted-string ) ] )`. **Source**: RFC 9112 §7.1.1.
fn are_extensions(mut text: &[u8]) -> bool {
    while !text.is_empty() {
        let Some(rest) = after_mark(text, b';') else { return false };
        let Some(rest) = after_token(rest) else { return false };
        text = match after_mark(rest, b'=') {
            None => rest,
            Some([b'"', rest @ ..]) => match after_quoted_string(rest) {
                Some(rest) => rest,
                None => return false,
            },
            Some(rest) => match after_token(rest) {
                Some(rest) => rest,
                None => return false,
            },
        };
    }
    true
}

/// What follows `BWS mark BWS`.
fn after_mark(text: &[u8], mark: u8) -> Option<&[u8]> {
    match skip_space(text) {
        [first, rest @ ..] if *first == mark => Some(skip_space(rest)),
        _ => None,
    }
}

/// What follows a token.
fn after_token(text: &[u8]) -> Option<&[u8]> {
    let length = text.iter().take_while(|&&byte| is_token_byte(byte)).count();
    if length == 0 { None } else { text.get(length..) }
}

/// What follows a quoted string whose first quote is taken. **Source**: RFC 9110 §5.6.4.
fn after_quoted_string(mut text: &[u8]) -> Option<&[u8]> {
    loop {
        text = match text {
            [b'"', rest @ ..] => return Some(rest),
            [b'\\', escaped, rest @ ..] if is_field_text(&[*escaped]) => rest,
            [b'\\', ..] | [] => return None,
            [byte, rest @ ..] if is_field_text(&[*byte]) => rest,
            _ => return None,
        };
    }
}

fn skip_space(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    text
}

/// 64 bits. **Unit**: digits.
const HEX_DIGITS_MAX: usize = 16;

/// Of a byte that is a hexadecimal digit.
const fn hexadecimal_value(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit & 0x0f,
        _ => (digit & 0x0f).wrapping_add(9),
    }
}

fn take_trailer(
    input: &mut BytesMut,
    scanned: usize,
    taken: usize,
) -> Result<Line<Trailer>, Violation> {
    let max = TRAILER_BYTES_MAX;
    let too_large = || Violation::limit(|max| Violation::TrailersTooLarge { max }, max);
    let Some(line_feed) = find_line_feed(input, scanned) else {
        if taken.saturating_add(input.len()) > max {
            return Err(too_large());
        }
        return Ok(Line::Unfinished { scanned: input.len() });
    };
    let taken = taken.saturating_add(line_feed).saturating_add(1);
    if taken > max {
        return Err(too_large());
    }
    let line = input.get(..line_feed).unwrap_or_default();
    let line = line.strip_suffix(b"\r").ok_or(Violation::BareLineFeed)?;
    let trailer = match line {
        [] => Trailer::End,
        _ if is_field_line(line) => Trailer::Field { taken },
        _ => return Err(Violation::TrailerInvalid),
    };
    drop(input.split_to(line_feed.saturating_add(1)));
    Ok(Line::Taken(trailer))
}

#[cfg(test)]
mod tests;
