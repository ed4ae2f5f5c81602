//! Waking the reactor from another thread: an eventfd that nobody reads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Ends the reactor's wait. Cloned freely; a wake costs a system call, so callers ask first whether
/// the reactor sleeps (see `exchange::Completions`).
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the eventfd.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> std::io::Result<Self> {
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        Ok(Self(Arc::new(rustix::event::eventfd(0, flags)?)))
    }

    /// Ends the reactor's current or next wait. Wakes coalesce.
    pub fn wake(&self) {
        // The counter is never read, so it could only overflow after 2^64 - 2 wakes (EAGAIN), and an
        // eventfd at its maximum is readable all the same.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
