//! Body length rules of a request (RFC 9112 §6): smuggling is decided here, once.

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
