//! Body length rules of a request (RFC 9112 §6): smuggling is decided here, once.

use super::grammar::{list, parse_decimal};
use super::head::Version;
use super::violation::Violation;

/// How the request's body is delimited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestFraming {
    /// No body.
    None,
    /// Exactly so many bytes (zero included, when `Content-Length: 0` was sent).
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// What the fields said so far about the body's length.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FramingFields {
    content_length: Option<u64>,
    coding: Coding,
}

/// The transfer codings so far, over all fields of that name.
#[derive(Clone, Copy, Debug, Default)]
enum Coding {
    /// No such field.
    #[default]
    Absent,
    /// `chunked`, alone.
    Chunked,
    /// Codings that are not known, and no `chunked` yet.
    Unknown,
    /// Codings that are not known, then `chunked`.
    UnknownThenChunked,
}

impl FramingFields {
    /// Takes one `Content-Length` field.
    pub(super) fn content_length(&mut self, value: &[u8]) -> Result<(), Violation> {
        // RFC 9112 §6.3 lets a recipient merge `5, 5`; a server in front that takes the first and
        // one that takes the last agree on nothing else, so repetition is refused.
        let length = parse_decimal(value).ok_or(Violation::ContentLengthInvalid)?;
        match self.content_length.replace(length) {
            None => Ok(()),
            Some(_) => Err(Violation::ContentLengthRepeated),
        }
    }

    /// Takes one `Transfer-Encoding` field: several are one list.
    pub(super) fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Violation> {
        for element in list(value) {
            if element.is_empty() {
                return Err(Violation::CodingInvalid);
            }
            let is_chunked = element.eq_ignore_ascii_case(b"chunked");
            self.coding = match (self.coding, is_chunked) {
                (Coding::Absent, true) => Coding::Chunked,
                (Coding::Unknown, true) => Coding::UnknownThenChunked,
                (Coding::Absent | Coding::Unknown, false) => Coding::Unknown,
                (Coding::Chunked | Coding::UnknownThenChunked, true) => {
                    return Err(Violation::ChunkedRepeated);
                }
                (Coding::Chunked | Coding::UnknownThenChunked, false) => {
                    return Err(Violation::ChunkedNotFinal);
                }
            };
        }
        Ok(())
    }

    /// All fields were seen.
    pub(super) fn decide(self, version: Version) -> Result<RequestFraming, Violation> {
        match (self.coding, self.content_length) {
            (Coding::Absent, None) => Ok(RequestFraming::None),
            (Coding::Absent, Some(length)) => Ok(RequestFraming::Length(length)),
            (Coding::Chunked | Coding::Unknown | Coding::UnknownThenChunked, Some(_)) => {
                Err(Violation::LengthAndCoding)
            }
            // "A server or client that receives an HTTP/1.0 message containing a Transfer-Encoding
            // header field MUST treat the message as if the framing is faulty."
            (Coding::Chunked | Coding::Unknown | Coding::UnknownThenChunked, None)
                if version == Version::Http10 =>
            {
                Err(Violation::CodingInHttp10)
            }
            (Coding::Chunked, None) => Ok(RequestFraming::Chunked),
            // "If ... the chunked transfer coding is not the final encoding, ... the server MUST
            // respond with the 400 (Bad Request) status code and then close the connection."
            (Coding::Unknown, None) => Err(Violation::ChunkedNotFinal),
            (Coding::UnknownThenChunked, None) => Err(Violation::CodingUnknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::head_of;
    use super::*;

    fn framing(fields: &str) -> Result<RequestFraming, Violation> {
        head_of(format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).map(|head| head.framing())
    }

    #[test]
    fn lengths() {
        assert_eq!(framing(""), Ok(RequestFraming::None));
        for (value, length) in [("0", 0), ("5", 5), ("  5\t", 5), ("005", 5)] {
            let answer = framing(&format!("Content-Length:{value}\r\n"));
            assert_eq!(answer, Ok(RequestFraming::Length(length)), "{value:?}");
        }
        for value in
            ["", " ", "5, 5", "5,6", "+5", "-5", "0x5", "5 5", "5;", "99999999999999999999"]
        {
            let answer = framing(&format!("Content-Length: {value}\r\n"));
            assert_eq!(answer, Err(Violation::ContentLengthInvalid), "{value:?}");
        }
        for second in ["5", "6"] {
            let answer = framing(&format!("Content-Length: 5\r\nContent-LENGTH: {second}\r\n"));
            assert_eq!(answer, Err(Violation::ContentLengthRepeated));
        }
    }

    #[test]
    fn codings() {
        let chunked = Ok(RequestFraming::Chunked);
        for (fields, expected) in [
            ("chunked", chunked),
            ("Chunked", chunked),
            ("\tCHUNKED ", chunked),
            ("", Err(Violation::CodingInvalid)),
            (",chunked", Err(Violation::CodingInvalid)),
            ("chunked,", Err(Violation::CodingInvalid)),
            ("gzip", Err(Violation::ChunkedNotFinal)),
            ("identity", Err(Violation::ChunkedNotFinal)),
            ("xchunked", Err(Violation::ChunkedNotFinal)),
            ("chunked;q=1", Err(Violation::ChunkedNotFinal)),
            ("\"chunked\"", Err(Violation::ChunkedNotFinal)),
            ("chunked, gzip", Err(Violation::ChunkedNotFinal)),
            ("chunked, identity", Err(Violation::ChunkedNotFinal)),
            ("chunked, chunked", Err(Violation::ChunkedRepeated)),
            ("gzip, chunked", Err(Violation::CodingUnknown)),
            ("identity, chunked", Err(Violation::CodingUnknown)),
            ("gzip, chunked, chunked", Err(Violation::ChunkedRepeated)),
            ("\x0bchunked", Err(Violation::InvalidFieldValue)),
            ("chunked\r\nTransfer-Encoding: chunked", Err(Violation::ChunkedRepeated)),
            ("chunked\r\nTransfer-Encoding: gzip", Err(Violation::ChunkedNotFinal)),
            ("gzip\r\nTransfer-Encoding: chunked", Err(Violation::CodingUnknown)),
            ("chunked\r\nContent-Length: 5", Err(Violation::LengthAndCoding)),
            ("gzip\r\nContent-Length: 5", Err(Violation::LengthAndCoding)),
        ] {
            let answer = framing(&format!("Transfer-Encoding: {fields}\r\n"));
            assert_eq!(answer, expected, "{fields:?}");
        }
        let earlier = framing("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n");
        assert_eq!(earlier, Err(Violation::LengthAndCoding));
    }

    #[test]
    fn no_coding_in_http_1_0() {
        let head = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(head_of(head).map(|_| ()), Err(Violation::CodingInHttp10));
        // A minor version above 1 is 1.1 for us.
        let head = "POST / HTTP/1.7\r\nHost:\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(head_of(head).map(|head| head.framing()), Ok(RequestFraming::Chunked));
    }
}
