//! The only places where a pool thread, attached to the interpreter, lets go of it.
//!
//! A pool thread is Python's own and keeps its thread state for life, so a crossing is one release
//! and one acquire of the interpreter lock and no more. Everything that decides *when* to let go
//! (the turn, the keep rule) belongs in [`next_job`].

use hoopsnake_server::exchange::{Exchange, Job, SyncLane};
use hoopsnake_server::pool::{Next, ThreadIndex};
use pyo3::prelude::*;

/// Waits for the next job without the interpreter lock.
pub(crate) fn next_job(py: Python<'_>, lane: &SyncLane, index: ThreadIndex) -> Next<Job> {
    py.detach(|| lane.next_job(index))
}

/// Waits without the interpreter lock until a streamed response may grow. False: the client is gone.
pub(crate) fn wait_for_credit(py: Python<'_>, exchange: &Exchange) -> bool {
    !exchange.is_gone() && (exchange.has_credit() || py.detach(|| exchange.wait_for_credit()))
}
