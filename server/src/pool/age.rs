//! The aged wake: a ring that holds a job and does not move is behind a thread that is not coming
//! back, so a parked sibling is woken for it.
//!
//! Judged by progress and not by age: a deep queue that one thread drains has an old head and needs
//! nobody, and waking for it makes the hand-offs that keep it deep (POOL §3).

use std::time::{Duration, Instant};

/// Judges one lane. Owned by the reactor.
#[derive(Debug)]
pub struct AgeWatch {
    limit: Duration,
    pops_seen: u64,
    /// Since when the ring has held a job without moving.
    still_since: Option<Instant>,
    /// When to look next.
    next_look: Option<Instant>,
}

/// How often an unmoved ring is looked at again once its deadline has been judged.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl AgeWatch {
    /// `limit`: how long a ring may hold a job without moving.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self { limit, pops_seen: 0, still_since: None, next_look: None }
    }

    /// Once per pass, after the submits. True: wake one parked thread.
    pub fn judge(&mut self, now: Instant, waiting: usize, pops: u64) -> bool {
        if waiting == 0 {
            self.still_since = None;
            self.next_look = None;
            self.pops_seen = pops;
            return false;
        }
        let moved = pops != self.pops_seen;
        self.pops_seen = pops;
        match self.still_since {
            Some(since) if !moved => {
                let due = self.next_look.unwrap_or(since + self.limit);
                if now < due {
                    return false;
                }
                self.next_look = Some(now + LOOK_AGAIN);
                true
            }
            Some(_) | None => {
                self.still_since = Some(now);
                self.next_look = Some(now + self.limit);
                false
            }
        }
    }

    /// The reactor does not sleep past this; `None` while the ring is empty.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.next_look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const LIMIT: Duration = Duration::from_micros(200);

    #[test]
    fn a_ring_that_moves_is_never_still_however_deep_it_is() {
        let (mut watch, start) = (AgeWatch::new(LIMIT), clock::now());
        for pass in 0..1_000_u64 {
            assert!(!watch.judge(start + Duration::from_millis(pass), 250, pass));
        }
    }

    #[test]
    fn a_still_ring_wakes_at_its_limit_and_then_every_millisecond() {
        let (mut watch, start) = (AgeWatch::new(LIMIT), clock::now());
        assert!(!watch.judge(start, 1, 7));
        assert_eq!(watch.deadline(), Some(start + LIMIT));
        assert!(!watch.judge(start + Duration::from_micros(199), 1, 7));
        assert!(watch.judge(start + LIMIT, 1, 7));
        assert!(!watch.judge(start + LIMIT + Duration::from_micros(999), 1, 7));
        assert!(watch.judge(start + LIMIT + LOOK_AGAIN, 1, 7));
    }

    #[test]
    fn an_empty_ring_has_no_deadline_and_starts_anew() {
        let (mut watch, start) = (AgeWatch::new(LIMIT), clock::now());
        assert!(!watch.judge(start, 1, 0));
        assert!(!watch.judge(start + LIMIT, 0, 1));
        assert_eq!(watch.deadline(), None);
        assert!(!watch.judge(start + LIMIT * 9, 1, 1));
    }
}
