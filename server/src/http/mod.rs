//! HTTP/1.1, sans-io: bytes in, events out; fields in, bytes out. No sockets, no clock, no unsafe.
//!
//! One exception: [`encode::HeadEncoder::finish`] writes the `Date` field with
//! [`crate::clock::push_http_date`], the clock's own cached text.
//!
//! **Source**: RFC 9110 (semantics), RFC 9112 (HTTP/1.1).
//!
//! | RFC section | file |
//! |---|---|
//! | 9112 §2.2, §5: lines and fields of a head | `head.rs` |
//! | 9112 §3: request line and target | `request_line.rs` |
//! | 9110 §7.2, §7.6.1, §7.8, §10.1.1: what fields mean for the connection | `fields.rs` |
//! | 9112 §6: body length | `framing.rs` |
//! | 9112 §7.1: chunked coding | `chunked.rs` |
//! | 9112 §9: persistence, one request after the other | `connection.rs` |
//! | 9112 §4, 9110 §15: responses | `encode.rs` |
//! | every rule a peer can break, with its answer | `violation.rs` |
#![forbid(unsafe_code)]
// Peer bytes cannot panic. Tests may: the plain library build is linted too.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

pub mod chunked;
pub mod connection;
pub mod encode;
mod fields;
pub mod framing;
pub(crate) mod grammar;
pub mod head;
mod reason;
mod request_line;
pub mod violation;

#[cfg(test)]
mod testing;

pub use connection::{Connection, Input};
pub use encode::{BodyLength, ResponseContext, ResponseFraming};
pub use framing::RequestFraming;
pub use head::{RequestHead, Version};
pub use violation::Violation;
