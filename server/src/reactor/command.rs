//! What the rest of the worker tells the reactor, and what the reactor tells it at its end.

use std::os::fd::{AsFd, BorrowedFd};

use super::wake::Waker;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, lock};

/// What the reactor is to do. Only ever goes down the list.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Command {
    /// Serve.
    Serve,
    /// Answer what is there and end.
    Drain,
    /// End.
    Stop,
}

/// Shared by the reactor's thread and whoever commands it.
#[derive(Debug)]
pub(crate) struct Commands {
    wanted: AtomicU32,
    finished: AtomicBool,
    /// Readable once the reactor has ended.
    finished_signal: Waker,
    unanswered: Mutex<Vec<String>>,
}

impl Commands {
    pub(crate) fn new(finished_signal: Waker) -> Self {
        Self {
            wanted: AtomicU32::new(Command::Serve as u32),
            finished: AtomicBool::new(false),
            finished_signal,
            unanswered: Mutex::new(Vec::new()),
        }
    }

    /// The reactor has to be woken afterwards.
    pub(crate) fn want(&self, command: Command) {
        self.wanted.fetch_max(command as u32, Ordering::SeqCst);
    }

    pub(crate) fn wanted(&self) -> Command {
        match self.wanted.load(Ordering::Relaxed) {
            0 => Command::Serve,
            1 => Command::Drain,
            2.. => Command::Stop,
        }
    }

    pub(crate) fn set_unanswered(&self, request_lines: Vec<String>) {
        *lock(&self.unanswered) = request_lines;
    }

    pub(crate) fn unanswered(&self) -> Vec<String> {
        lock(&self.unanswered).clone()
    }

    pub(crate) fn set_finished(&self) {
        self.finished.store(true, Ordering::SeqCst);
        self.finished_signal.wake();
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst)
    }

    pub(crate) fn finished_fd(&self) -> BorrowedFd<'_> {
        self.finished_signal.as_fd()
    }
}
