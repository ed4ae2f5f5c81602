//! The body of a response: how it ends, and whether its bytes are the expected ones.

use crate::response::Violation;

/// What every body must be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Expectation {
    /// Any bytes.
    Anything,
    /// Any bytes, this many.
    Length(u64),
    /// Exactly these bytes.
    Bytes(Vec<u8>),
}

/// The comparison of one body with its expectation, piece by piece, without keeping the body.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BodyCheck {
    /// Body bytes seen so far.
    pub(crate) bytes: u64,
    differs: bool,
}

impl BodyCheck {
    /// Takes the next piece of the body.
    pub(crate) fn take(&mut self, piece: &[u8], expectation: &Expectation) {
        if let Expectation::Bytes(expected) = expectation {
            let rest = usize::try_from(self.bytes).ok().and_then(|at| expected.get(at..));
            self.differs |= !rest.is_some_and(|rest| rest.starts_with(piece));
        }
        self.bytes += piece.len() as u64;
    }

    /// Whether the whole body was the expected one; asked at its end.
    pub(crate) fn matches(&self, expectation: &Expectation) -> bool {
        match expectation {
            Expectation::Anything => true,
            Expectation::Length(length) => self.bytes == *length,
            Expectation::Bytes(expected) => !self.differs && self.bytes == expected.len() as u64,
        }
    }
}

/// Where a body is. **Source**: RFC 9112 §6.3 and §7.1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Framing {
    /// This many bytes are left.
    Length(u64),
    /// Inside the chunked coding.
    Chunked(Chunk),
    /// Until the connection ends.
    UntilClose,
    /// Complete.
    Done,
}

/// Where the chunked coding is: each state names the next byte.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Chunk {
    /// The first hex digit of a size.
    SizeStart,
    /// A further hex digit of a size, or what ends it.
    Size(u64),
    /// Inside an extension; its bytes so far are counted against the bound.
    Extension { size: u64, bytes: usize },
    /// The LF of a size line.
    SizeLf(u64),
    /// This many bytes of data are left; at least one.
    Data(u64),
    /// The CR after the data.
    DataCr,
    /// The LF after the data.
    DataLf,
    /// The first byte of a trailer line, or the CR of the last line.
    TrailerStart { bytes: usize },
    /// Inside a trailer line.
    Trailer { bytes: usize },
    /// The LF of a trailer line.
    TrailerLf { bytes: usize },
    /// The last LF.
    EndLf,
}

/// Bytes of one chunk extension, and of all trailers: no server sends any unasked, so small.
const CHUNK_NOISE_BYTES_MAX: usize = 4096;

impl Framing {
    /// Takes bytes of the body from `input`, hands its data to `check`, returns the number taken.
    ///
    /// **Errors**: the chunked coding is broken.
    pub(crate) fn take(
        &mut self,
        input: &[u8],
        check: &mut BodyCheck,
        expectation: &Expectation,
    ) -> Result<usize, Violation> {
        let mut taken = 0;
        while taken < input.len() {
            let rest = &input[taken..];
            taken += match self {
                Self::Length(left) => {
                    let piece = &rest[..at_most(*left, rest)];
                    check.take(piece, expectation);
                    *left -= piece.len() as u64;
                    if *left == 0 {
                        *self = Self::Done;
                    }
                    piece.len()
                }
                Self::Chunked(Chunk::Data(left)) => {
                    let piece = &rest[..at_most(*left, rest)];
                    check.take(piece, expectation);
                    *left -= piece.len() as u64;
                    if *left == 0 {
                        *self = Self::Chunked(Chunk::DataCr);
                    }
                    piece.len()
                }
                Self::Chunked(chunk) => {
                    *self = chunk.step(rest[0])?.map_or(Self::Done, Self::Chunked);
                    1
                }
                Self::UntilClose => {
                    check.take(rest, expectation);
                    rest.len()
                }
                Self::Done => break,
            };
        }
        Ok(taken)
    }
}

impl Chunk {
    /// Takes one byte outside data; `None` is the end of the body.
    fn step(self, byte: u8) -> Result<Option<Self>, Violation> {
        let next = match (self, byte) {
            (Self::SizeStart, _) => Self::Size(hex(byte)?),
            (Self::Size(size), b'\r') => Self::SizeLf(size),
            (Self::Size(size), b';' | b' ' | b'\t') => Self::Extension { size, bytes: 0 },
            (Self::Size(size), _) if size >> 60 == 0 => Self::Size(size << 4 | hex(byte)?),
            (Self::Size(_), _) => return Err(Violation("a chunk size over 64 bits")),
            (Self::Extension { size, .. }, b'\r') => Self::SizeLf(size),
            (Self::Extension { size, bytes }, _) => {
                Self::Extension { size, bytes: one_more(bytes, byte)? }
            }
            (Self::SizeLf(0), b'\n') => Self::TrailerStart { bytes: 0 },
            (Self::SizeLf(size), b'\n') => Self::Data(size),
            (Self::DataCr, b'\r') => Self::DataLf,
            (Self::DataLf, b'\n') => Self::SizeStart,
            (Self::TrailerStart { .. }, b'\r') => Self::EndLf,
            (Self::Trailer { bytes }, b'\r') => Self::TrailerLf { bytes },
            (Self::TrailerStart { bytes } | Self::Trailer { bytes }, _) => {
                Self::Trailer { bytes: one_more(bytes, byte)? }
            }
            (Self::TrailerLf { bytes }, b'\n') => Self::TrailerStart { bytes },
            (Self::EndLf, b'\n') => return Ok(None),
            (
                Self::SizeLf(_)
                | Self::Data(_)
                | Self::DataCr
                | Self::DataLf
                | Self::TrailerLf { .. }
                | Self::EndLf,
                _,
            ) => return Err(Violation("a chunk without its CRLF")),
        };
        Ok(Some(next))
    }
}

fn one_more(bytes: usize, byte: u8) -> Result<usize, Violation> {
    if byte == b'\n' {
        Err(Violation("a bare LF in the chunked coding"))
    } else if bytes == CHUNK_NOISE_BYTES_MAX {
        Err(Violation("chunk extensions or trailers over 4096 bytes"))
    } else {
        Ok(bytes + 1)
    }
}

fn hex(byte: u8) -> Result<u64, Violation> {
    match (byte as char).to_digit(16) {
        Some(digit) => Ok(u64::from(digit)),
        None => Err(Violation("a chunk size that is not hexadecimal")),
    }
}

fn at_most(left: u64, bytes: &[u8]) -> usize {
    usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
}
