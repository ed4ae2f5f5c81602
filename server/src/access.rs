//! What the access log is told about a finished response. How it is written is the sink's.

use std::fmt::Debug;
use std::time::Duration;

use crate::exchange::{End, Exchange};

/// One finished response.
#[derive(Clone, Copy, Debug)]
pub struct AccessEntry<'exchange> {
    /// The request and who sent it.
    pub exchange: &'exchange Exchange,
    /// The status and the size.
    pub end: End,
    /// From the complete head to the last byte taken by the kernel.
    pub total: Duration,
    /// From dispatch to the call of the application, where it was called.
    pub queue: Option<Duration>,
    /// Inside the application, where it was called.
    pub run: Option<Duration>,
    /// From the first byte handed to the kernel to the last byte taken by it, where there was one.
    pub write: Option<Duration>,
    /// The response's first bytes, head first; empty unless the sink wants them.
    pub response: &'exchange [u8],
    /// The connection broke before the response was complete.
    pub aborted: bool,
}

/// Takes entries on the reactor's thread: never blocks, never fails.
pub trait AccessSink: Debug + Send + Sync {
    /// Hands on one entry.
    fn record(&self, entry: AccessEntry<'_>);

    /// Called ten times a second: says on the server's log what has been lost.
    fn tick(&self);

    /// Whether entries need [`AccessEntry::response`], which is then kept until the response's end.
    fn wants_response(&self) -> bool {
        false
    }
}
