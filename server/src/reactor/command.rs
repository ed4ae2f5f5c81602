//! What the rest of the worker tells the reactor, and what the reactor tells it at its end.

use std::os::fd::{AsFd, BorrowedFd};

use super::wake::Waker;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, lock};

/// What the reactor is to do. Only ever goes down the list.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Command {
    /// Serve.
    Serve,
    /// Serve, and tell balancers to look elsewhere (`--shutdown-delay`).
    Leave,
    /// Answer what is there and end.
    Drain,
    /// End.
    Stop,
}

/// Shared by the reactor's thread and whoever commands it.
#[derive(Debug)]
pub(crate) struct Commands {
    wanted: AtomicU32,
    /// It ended because the drain was complete.
    drained: AtomicBool,
    finished: AtomicBool,
    /// Readable once the reactor has ended.
    finished_signal: Waker,
    unanswered: Mutex<Vec<String>>,
    /// Why the worker asks for a successor; said once.
    recycle: Mutex<Option<String>>,
    recycle_was_wanted: AtomicBool,
    recycle_was_taken: AtomicBool,
    /// Readable once `recycle` was set.
    notice: Waker,
}

impl Commands {
    pub(crate) fn new(finished_signal: Waker, notice: Waker) -> Self {
        Self {
            wanted: AtomicU32::new(Command::Serve as u32),
            drained: AtomicBool::new(false),
            finished: AtomicBool::new(false),
            finished_signal,
            unanswered: Mutex::new(Vec::new()),
            recycle: Mutex::new(None),
            recycle_was_wanted: AtomicBool::new(false),
            recycle_was_taken: AtomicBool::new(false),
            notice,
        }
    }

    /// The reactor has to be woken afterwards.
    pub(crate) fn want(&self, command: Command) {
        self.wanted.fetch_max(command as u32, Ordering::SeqCst);
    }

    pub(crate) fn wanted(&self) -> Command {
        match self.wanted.load(Ordering::Relaxed) {
            0 => Command::Serve,
            1 => Command::Leave,
            2 => Command::Drain,
            3.. => Command::Stop,
        }
    }

    pub(crate) fn set_unanswered(&self, request_lines: Vec<String>) {
        *lock(&self.unanswered) = request_lines;
    }

    pub(crate) fn unanswered(&self) -> Vec<String> {
        lock(&self.unanswered).clone()
    }

    /// Reactor: this worker is worth replacing. Only the first reason counts.
    pub(crate) fn want_recycling(&self, reason: String) {
        if !self.recycle_was_wanted.swap(true, Ordering::SeqCst) {
            *lock(&self.recycle) = Some(reason);
            self.notice.wake();
        }
    }

    /// Why the worker is worth replacing, once.
    pub(crate) fn take_recycling(&self) -> Option<String> {
        let reason = lock(&self.recycle).take();
        if reason.is_some() {
            self.recycle_was_taken.store(true, Ordering::SeqCst);
        }
        reason
    }

    /// `None` when there is nothing more to come.
    pub(crate) fn notice_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.recycle_was_taken.load(Ordering::SeqCst)).then(|| self.notice.as_fd())
    }

    /// Reactor: everything was answered; said before [`Self::set_finished`].
    pub(crate) fn set_drained(&self) {
        self.drained.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_drained(&self) -> bool {
        self.drained.load(Ordering::SeqCst)
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
