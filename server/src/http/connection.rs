//! One connection's machine: bytes in, heads and bodies out, one request at a time (RULES 17).
//!
//! What each state does with each input; a test makes this table by trying every pair. `kept`
//! inputs stay in the buffer; `false` is the answer of `response_complete`.
//!
//! | state | part of a head | head, no body | head, length | head, chunked | body | rest of body | broken | response complete | response complete, close |
//! |---|---|---|---|---|---|---|---|---|---|
//! | Head | Head | Complete | Length | Chunked | - | - | Failed | Ended, false | Ended, false |
//! | Length | - | - | - | - | Length | Complete | - | Ended, false | Ended, false |
//! | Chunked | - | - | - | - | Chunked | Complete | Failed | Ended, false | Ended, false |
//! | Complete | kept | kept | kept | kept | - | - | kept | Head | Ended, false |
//! | Ended | kept | kept | kept | kept | - | - | kept | Ended, false | Ended, false |
//! | Failed | Failed | Failed | Failed | Failed | - | - | Failed | Failed, false | Failed, false |

use bytes::{Bytes, BytesMut};

use super::chunked::{ChunkedDecoder, ChunkedStep, take_up_to};
use super::framing::RequestFraming;
use super::head::{HeadProgress, HeadStep, RequestHead};
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
    /// A request begins. With `RequestFraming::None` it is complete; else `Body`s and one `BodyEnd`
    /// follow.
    Head(RequestHead),
    /// A piece of the body, coding removed; never empty.
    Body(Bytes),
    /// The body is complete.
    BodyEnd,
}

/// The machine.
#[derive(Debug)]
pub struct Connection {
    limits: HttpLimits,
    reading: Reading,
}

/// What the next byte is part of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reading {
    /// A head.
    Head(HeadProgress),
    /// A body of known length.
    Length { remaining: u64 },
    /// A chunked body.
    Chunked(ChunkedDecoder),
    /// The next request, which has to wait for the response.
    Complete,
    /// Nothing: no request will be received any more.
    Ended,
    /// Nothing: the peer broke a rule.
    Failed(Violation),
}

impl Connection {
    /// Waits for the first request.
    #[must_use]
    pub fn new(limits: HttpLimits) -> Self {
        // The request line is part of the head, and spans are 32 bits wide.
        let head_bytes_max = limits.head_bytes_max.min(u32::MAX as usize);
        let request_line_bytes_max =
            limits.request_line_bytes_max.min(head_bytes_max.saturating_sub(2));
        let limits = HttpLimits { request_line_bytes_max, head_bytes_max, ..limits };
        Self { limits, reading: Reading::Head(HeadProgress::START) }
    }

    /// Takes the next unit from the front of `input`, and nothing of an incomplete one. After a
    /// complete request it takes nothing until `response_complete`. Between two calls the caller
    /// only adds bytes at the end of `input`.
    ///
    /// # Errors
    /// The peer broke a rule; every later call returns the same.
    pub fn receive(&mut self, input: &mut BytesMut) -> Result<Option<Input>, Violation> {
        match self.reading.step(input, &self.limits) {
            Ok((reading, found)) => {
                self.reading = reading;
                Ok(found)
            }
            Err(violation) => {
                self.reading = Reading::Failed(violation);
                Err(violation)
            }
        }
    }

    /// Whether a request head is awaited.
    #[must_use]
    pub fn awaits_head(&self) -> bool {
        matches!(self.reading, Reading::Head(_))
    }

    /// Whether a request was begun and its body is not complete.
    #[must_use]
    pub fn awaits_body(&self) -> bool {
        matches!(self.reading, Reading::Length { .. } | Reading::Chunked(_))
    }

    /// The response is out. True: the next request may be received. False: the connection must end
    /// (no keep-alive, or the request's body was not read to its end).
    pub fn response_complete(&mut self, keep_alive: bool) -> bool {
        self.reading = match self.reading {
            Reading::Complete if keep_alive => Reading::Head(HeadProgress::START),
            // A response without a request is the caller's bug: the connection ends with it.
            Reading::Head(_)
            | Reading::Complete
            | Reading::Length { .. }
            | Reading::Chunked(_)
            | Reading::Ended => Reading::Ended,
            Reading::Failed(violation) => Reading::Failed(violation),
        };
        self.awaits_head()
    }
}

impl Reading {
    fn step(
        self,
        input: &mut BytesMut,
        limits: &HttpLimits,
    ) -> Result<(Self, Option<Input>), Violation> {
        match self {
            Self::Head(progress) => match progress.step(input, limits)? {
                HeadStep::Incomplete(progress) => Ok((Self::Head(progress), None)),
                HeadStep::Complete(head) => {
                    Ok((Self::after_head(head.framing()), Some(Input::Head(head))))
                }
            },
            Self::Length { remaining: 0 } => Ok((Self::Complete, Some(Input::BodyEnd))),
            Self::Length { remaining } => match take_up_to(input, remaining) {
                Some((piece, remaining)) => {
                    Ok((Self::Length { remaining }, Some(Input::Body(piece))))
                }
                None => Ok((self, None)),
            },
            Self::Chunked(decoder) => match decoder.step(input)? {
                ChunkedStep::Incomplete(decoder) => Ok((Self::Chunked(decoder), None)),
                ChunkedStep::Piece(piece, decoder) => {
                    Ok((Self::Chunked(decoder), Some(Input::Body(piece))))
                }
                ChunkedStep::End => Ok((Self::Complete, Some(Input::BodyEnd))),
            },
            Self::Complete | Self::Ended => Ok((self, None)),
            Self::Failed(violation) => Err(violation),
        }
    }

    fn after_head(framing: RequestFraming) -> Self {
        match framing {
            RequestFraming::None => Self::Complete,
            RequestFraming::Length(remaining) => Self::Length { remaining },
            RequestFraming::Chunked => Self::Chunked(ChunkedDecoder::START),
        }
    }
}

#[cfg(test)]
mod tests;
