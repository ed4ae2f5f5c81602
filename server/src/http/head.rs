//! A parsed request head: spans over the bytes as they came.

use super::framing::RequestFraming;

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
    framing: RequestFraming,
}

impl RequestHead {
    /// As sent: case is significant.
    #[must_use]
    pub fn method(&self) -> &[u8] {
        unimplemented!()
    }

    /// The request target as sent.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        unimplemented!()
    }

    /// The path, undecoded, before `?`; `*` for `OPTIONS *`; `/` for an absolute form without one.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        unimplemented!()
    }

    /// What follows the first `?`; empty without one.
    #[must_use]
    pub fn query(&self) -> &[u8] {
        unimplemented!()
    }

    /// The authority of an absolute-form target, which replaces the Host field (RFC 9112 §3.2.2).
    #[must_use]
    pub fn authority(&self) -> Option<&[u8]> {
        unimplemented!()
    }

    /// The version, as far as it changes what we do.
    #[must_use]
    pub fn version(&self) -> Version {
        unimplemented!()
    }

    /// All fields in order, duplicates kept.
    pub fn fields(&self) -> impl ExactSizeIterator<Item = Field<'_>> {
        std::iter::empty()
    }

    /// The first field of that name; `lower_name` in lower case.
    #[must_use]
    pub fn field(&self, lower_name: &[u8]) -> Option<&[u8]> {
        let _ = lower_name;
        unimplemented!()
    }

    /// How its body is delimited.
    #[must_use]
    pub fn framing(&self) -> RequestFraming {
        self.framing
    }

    /// Whether the client lets the connection stay open (RFC 9112 §9.3).
    #[must_use]
    pub fn keep_alive(&self) -> bool {
        unimplemented!()
    }

    /// `Expect: 100-continue` of an HTTP/1.1 request with a body.
    #[must_use]
    pub fn expects_continue(&self) -> bool {
        unimplemented!()
    }

    /// Whether the method is HEAD.
    #[must_use]
    pub fn is_head(&self) -> bool {
        unimplemented!()
    }
}
