//! One worker's native half: lane, completion ring and the reactor's thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::exchange::SyncLane;
use crate::reactor::Settings;

/// Hands commands to a running reactor. Every method may be called from any thread and more than once.
#[derive(Clone, Debug)]
pub struct ReactorHandle {}

impl ReactorHandle {
    /// Starts the drain (RULES 25): accept what is queued, close the listeners, answer with
    /// `Connection: close`, let idle connections live for `drain_idle`.
    pub fn drain(&self) {}

    /// Ends now: what is in flight is reset.
    pub fn stop(&self) {}

    /// Whether the reactor has ended: everything drained, or stopped, or failed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        false
    }

    /// Readable (level) when the reactor has ended.
    #[must_use]
    pub fn finished_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        unimplemented!()
    }

    /// Requests dispatched or waiting that have no answer yet, as request lines, for "what was left".
    #[must_use]
    pub fn unanswered(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A started worker.
#[derive(Debug)]
pub struct Running {
    /// Where the pool's threads take their jobs.
    pub lane: Arc<SyncLane>,
    /// Commands.
    pub reactor: ReactorHandle,
}

/// Makes the lane and starts the reactor's thread, which blocks all signals. Nothing is accepted
/// before [`ReactorHandle`] exists, and pool threads may start after it.
///
/// # Errors
/// The `Io` cannot be made, or a thread cannot be started.
pub fn start(
    listeners: Vec<Arc<OwnedFd>>,
    settings: Settings,
    thread_count: usize,
) -> io::Result<Running> {
    let _ = (listeners, settings, thread_count);
    unimplemented!()
}
