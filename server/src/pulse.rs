//! Whether the interpreter lock moves: a thread of the bridge asks for it once a second and stamps
//! when it asked and when it got it, and the reactor, which never asks, looks at the stamps.

use std::time::{Duration, Instant};

use crate::clock;
use crate::sync::{AtomicU64, Ordering};

/// How often the lock is asked for.
pub const PULSE_INTERVAL: Duration = Duration::from_secs(1);

/// The stamps.
#[derive(Debug)]
pub struct Pulse {
    start: Instant,
    /// A wait of this length is a stall.
    stall: Duration,
    /// Milliseconds since `start`.
    asked_ms: AtomicU64,
    got_ms: AtomicU64,
    /// Of the last stall that ended; zero: it was taken. **Unit**: milliseconds.
    ended_ms: AtomicU64,
}

impl Pulse {
    /// Nobody waits for the lock.
    #[must_use]
    pub fn new(stall: Duration) -> Self {
        Self {
            start: clock::now(),
            stall,
            asked_ms: AtomicU64::new(0),
            got_ms: AtomicU64::new(0),
            ended_ms: AtomicU64::new(0),
        }
    }

    /// About to ask for the lock.
    pub fn ask(&self) {
        self.asked_ms.store(self.milliseconds(clock::now()), Ordering::SeqCst);
    }

    /// The lock is had.
    pub fn get(&self) {
        let now = self.milliseconds(clock::now());
        let waited = now.saturating_sub(self.asked_ms.load(Ordering::SeqCst));
        if Duration::from_millis(waited) >= self.stall {
            self.ended_ms.store(waited, Ordering::SeqCst);
        }
        self.got_ms.store(now, Ordering::SeqCst);
    }

    /// Reactor: how long the lock has not been got, if that is a stall.
    pub(crate) fn stalled(&self, now: Instant) -> Option<Duration> {
        let asked = self.asked_ms.load(Ordering::SeqCst);
        if self.got_ms.load(Ordering::SeqCst) >= asked {
            return None;
        }
        let waited = Duration::from_millis(self.milliseconds(now).saturating_sub(asked));
        (waited >= self.stall).then_some(waited)
    }

    /// Reactor: how long a stall was that is over, once.
    pub(crate) fn take_ended(&self) -> Option<Duration> {
        let ended = self.ended_ms.swap(0, Ordering::SeqCst);
        (ended > 0).then(|| Duration::from_millis(ended))
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        // More than the age of the universe does not fit.
        u64::try_from(now.saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_not_got_is_a_stall_until_it_is() {
        let pulse = Pulse::new(Duration::from_secs(2));
        let after = |seconds| pulse.start + Duration::from_secs(seconds);
        pulse.asked_ms.store(1_000, Ordering::SeqCst);
        assert_eq!(pulse.stalled(after(2)), None);
        assert_eq!(pulse.stalled(after(4)), Some(Duration::from_secs(3)));
        assert_eq!(pulse.take_ended(), None);
        pulse.get();
        pulse.got_ms.store(9_000, Ordering::SeqCst);
        assert_eq!(pulse.stalled(after(60)), None);
    }

    #[test]
    fn the_length_of_a_stall_is_told_once_after_its_end() {
        let pulse =
            Pulse { start: clock::now() - Duration::from_secs(9), ..Pulse::new(Duration::ZERO) };
        let pulse = Pulse { stall: Duration::from_secs(2), ..pulse };
        pulse.asked_ms.store(1_000, Ordering::SeqCst);
        pulse.get();
        assert!(pulse.take_ended().is_some_and(|ended| ended >= Duration::from_secs(8)));
        assert_eq!(pulse.take_ended(), None);
        pulse.ask();
        pulse.get();
        assert_eq!(pulse.take_ended(), None);
    }
}
