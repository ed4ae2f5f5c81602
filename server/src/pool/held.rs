//! Wakes of the reactor that a thread holds back, so that the answers of short jobs share one.
//!
//! A job's length is known from two readings of the clock: one when a batch begins (a job was taken and
//! others wait behind it) and one at each answer that has a job behind. Where no job waits nothing is
//! held back and no clock is read. Each value belongs to one thread, so the words order nothing and are
//! std's also under the model checker.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

#[cfg(not(loom))]
use crate::clock;

/// Answers that may share a wake, however short their jobs are.
const ANSWERS_MAX: usize = 64;

/// What one thread holds back.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Answers pushed without a wake since the last one.
    answers: AtomicUsize,
    /// When the jobs that are to share a wake began, since the lane's epoch; zero: none did.
    /// **Unit**: nanoseconds.
    batch_start: AtomicU64,
}

impl Held {
    /// A job was taken and others wait behind it.
    pub(super) fn begin(&self, epoch: Instant) {
        if self.batch_start.load(Ordering::Relaxed) == 0 {
            self.batch_start.store(nanoseconds_since(epoch), Ordering::Relaxed);
        }
    }

    /// An answer was pushed.
    pub(super) fn add(&self) {
        self.answers.store(self.answers.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Whether there is an answer without a wake.
    pub(super) fn is_any(&self) -> bool {
        self.answers.load(Ordering::Relaxed) > 0
    }

    /// Whether the jobs of this batch took less than `limit`, in all, and are few enough to go on. A
    /// batch whose begin is not known is long. If it is over, the next one begins now.
    pub(super) fn goes_on(&self, epoch: Instant, limit: Duration) -> bool {
        let (start, now) = (self.batch_start.load(Ordering::Relaxed), nanoseconds_since(epoch));
        let took = Duration::from_nanos(now.saturating_sub(start));
        let goes_on =
            start != 0 && took < limit && self.answers.load(Ordering::Relaxed) < ANSWERS_MAX;
        if !goes_on {
            self.batch_start.store(now, Ordering::Relaxed);
        }
        goes_on
    }

    /// The thread goes to wait, or has no job behind: what comes next is another batch.
    pub(super) fn end(&self) {
        self.batch_start.store(0, Ordering::Relaxed);
    }

    /// Whether a wake is due for what was held back, which is then held back no more.
    pub(super) fn take(&self) -> bool {
        let is_any = self.is_any();
        if is_any {
            self.answers.store(0, Ordering::Relaxed);
        }
        is_any
    }
}

/// Never zero.
#[cfg(not(loom))]
fn nanoseconds_since(epoch: Instant) -> u64 {
    let elapsed = clock::now().saturating_duration_since(epoch).as_nanos();
    u64::try_from(elapsed).unwrap_or(u64::MAX).max(1)
}

/// Under the model checker no time passes: a limit of zero makes every job long, another none.
#[cfg(loom)]
fn nanoseconds_since(_epoch: Instant) -> u64 {
    1
}
