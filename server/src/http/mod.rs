//! HTTP/1.1, sans-io: bytes in, events out; fields in, bytes out. No sockets, no clock, no unsafe.
//!
//! **Source**: RFC 9110 (semantics), RFC 9112 (HTTP/1.1).
#![forbid(unsafe_code)]

pub mod chunked;
pub mod connection;
pub mod encode;
pub mod framing;
pub mod head;
pub mod violation;

pub use connection::{Connection, Input};
pub use encode::{BodyLength, ResponseContext, ResponseFraming};
pub use framing::RequestFraming;
pub use head::{RequestHead, Version};
pub use violation::Violation;
