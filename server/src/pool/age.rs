//! The aged wake: a ring that holds a job and does not move is behind a thread that is not coming
//! back, so a parked sibling is woken for it.
//!
//! Judged by progress and not by age: a deep queue that one thread drains has an old head and needs
//! nobody, and waking for it makes the hand-offs that keep it deep (POOL §3). A parallel pool is
//! judged by age: there a parked thread beside a waiting job is an idle core, and nothing is handed
//! on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Judges one lane. Owned by the reactor.
#[derive(Debug)]
pub struct AgeWatch {
    limit: Duration,
    pops_seen: u64,
    /// Since when the ring has held a job without moving.
    still_since: Option<Instant>,
    /// When to look next; `None` while the ring is empty, or stands still although nobody is parked.
    next_look: Option<Instant>,
    /// In a parallel pool: when the jobs of the ring were pushed.
    pushes: Option<Pushes>,
}

impl AgeWatch {
    /// `limit`: how long a ring may hold a job without moving or, in a `parallel` pool, how old the
    /// job at its head may become.
    #[must_use]
    pub fn new(limit: Duration, parallel: bool) -> Self {
        Self {
            limit,
            pops_seen: 0,
            still_since: None,
            next_look: None,
            pushes: parallel.then(Pushes::default),
        }
    }

    /// Once per pass, after the submits. `wake` wakes one parked thread, or says that none is parked.
    /// Then a look at the same ring is of no use: whoever ends a job takes the next one, which moves it.
    pub fn judge(&mut self, now: Instant, waiting: usize, pops: u64, wake: impl FnOnce() -> bool) {
        let moved = pops != self.pops_seen;
        self.pops_seen = pops;
        let head_pushed = self.pushes.as_mut().and_then(|pushes| pushes.head(now, waiting, pops));
        if waiting == 0 {
            self.still_since = None;
            self.next_look = None;
            return;
        }
        if moved || self.still_since.is_none() {
            let since = head_pushed.unwrap_or(now);
            self.still_since = Some(since);
            self.next_look = Some(since + self.limit);
        }
        if self.next_look.is_some_and(|due| now >= due) {
            self.next_look = wake().then(|| now + self.limit);
        }
    }

    /// Jobs wait and nothing but their being taken brings the reactor back: nobody holds a wake back.
    #[must_use]
    pub fn is_left_to_threads(&self) -> bool {
        self.still_since.is_some() && self.next_look.is_none()
    }

    /// The reactor does not sleep past this.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.next_look
    }
}

/// When what waits on a ring was pushed, as the reactor, which alone pushes, can tell from counts.
#[derive(Debug, Default)]
struct Pushes {
    /// Jobs pushed since the start.
    count: u64,
    /// Of each look that found new jobs and whose jobs wait: how many had been pushed after it, and
    /// when that was. Bounded by the ring: each entry is for a job on it.
    looks: VecDeque<(u64, Instant)>,
}

impl Pushes {
    /// When the job at the head was pushed; `None` for an empty ring.
    fn head(&mut self, now: Instant, waiting: usize, pops: u64) -> Option<Instant> {
        let count = pops + waiting as u64;
        while self.looks.front().is_some_and(|(pushed, _)| *pushed <= pops) {
            self.looks.pop_front();
        }
        if count > self.count {
            self.count = count;
            self.looks.push_back((count, now));
        }
        self.looks.front().map(|(_, moment)| *moment)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::clock;

    const LIMIT: Duration = Duration::from_micros(200);

    /// A look; whether it came to a wake, which finds a parked thread.
    fn is_due(watch: &mut AgeWatch, now: Instant, waiting: usize, pops: u64) -> bool {
        let mut is_due = false;
        watch.judge(now, waiting, pops, || {
            is_due = true;
            true
        });
        is_due
    }

    #[test]
    fn a_ring_that_moves_is_never_still_however_deep_it_is() {
        let (mut watch, start) = (AgeWatch::new(LIMIT, false), clock::now());
        for pass in 0..1_000_u64 {
            assert!(!is_due(&mut watch, start + Duration::from_millis(pass), 250, pass));
        }
    }

    #[test]
    fn a_still_ring_wakes_at_its_limit_and_after_each_such_time_again() {
        let (mut watch, start) = (AgeWatch::new(LIMIT, false), clock::now());
        assert!(!is_due(&mut watch, start, 1, 7));
        assert_eq!(watch.deadline(), Some(start + LIMIT));
        assert!(!is_due(&mut watch, start + Duration::from_micros(199), 1, 7));
        assert!(is_due(&mut watch, start + LIMIT, 1, 7));
        assert!(!is_due(&mut watch, start + Duration::from_micros(399), 1, 7));
        assert!(is_due(&mut watch, start + LIMIT * 2, 1, 7));
        assert!(!watch.is_left_to_threads());
    }

    #[test]
    fn a_still_ring_of_a_pool_in_which_nobody_is_parked_is_not_looked_at_until_it_moves() {
        let (mut watch, start) = (AgeWatch::new(LIMIT, false), clock::now());
        watch.judge(start, 3, 8, || unreachable!("it is young"));
        watch.judge(start + LIMIT, 3, 8, || false);
        assert_eq!(watch.deadline(), None);
        assert!(watch.is_left_to_threads());
        watch.judge(start + LIMIT * 50, 3, 8, || unreachable!("each deadline is judged once"));
        assert!(!is_due(&mut watch, start + LIMIT * 60, 2, 9), "it moved");
        assert!(!watch.is_left_to_threads());
        assert_eq!(watch.deadline(), Some(start + LIMIT * 61));
    }

    #[test]
    fn eight_sleeping_views_find_their_threads_by_a_look_for_each_wake_and_one_for_what_came_of_it()
    {
        let (mut watch, mut now) = (AgeWatch::new(LIMIT, false), clock::now());
        // The first thread was woken for the burst and took a job; each that is woken takes one.
        let (start, mut waiting, mut passes) = (now, 7, 0);
        loop {
            let mut woken = 0;
            watch.judge(now, waiting, 8 - waiting as u64, || {
                woken = 1;
                true
            });
            waiting -= woken;
            passes += 1;
            let Some(deadline) = watch.deadline() else { break };
            now = deadline;
        }
        assert_eq!((waiting, passes), (0, 15));
        assert_eq!(now - start, LIMIT * 14);
    }

    #[test]
    fn a_wake_for_a_still_ring_does_not_count_against_the_next_job_once_it_moves() {
        let (mut watch, start) = (AgeWatch::new(LIMIT, false), clock::now());
        assert!(!is_due(&mut watch, start, 2, 0));
        assert!(is_due(&mut watch, start + LIMIT, 2, 0));
        let moved = start + LIMIT * 2;
        assert!(!is_due(&mut watch, moved, 1, 1), "it moved");
        assert_eq!(watch.deadline(), Some(moved + LIMIT));
        assert!(is_due(&mut watch, moved + LIMIT, 1, 1), "and stands still again");
    }

    #[test]
    fn in_a_parallel_pool_the_age_counts_from_the_push_also_while_the_ring_moves() {
        let (mut watch, start) = (AgeWatch::new(LIMIT, true), clock::now());
        let at = |us| start + Duration::from_micros(us);
        assert!(!is_due(&mut watch, at(0), 1, 0));
        assert!(!is_due(&mut watch, at(150), 3, 0), "two more behind the first");
        assert_eq!(watch.deadline(), Some(at(200)));
        assert!(!is_due(&mut watch, at(160), 2, 1), "the first was taken, the second is young");
        assert_eq!(watch.deadline(), Some(at(350)));
        assert!(is_due(&mut watch, at(360), 1, 2), "the third is as old, and the ring moved");
        assert!(!is_due(&mut watch, at(400), 2, 2));
        assert_eq!(watch.deadline(), Some(at(560)), "each deadline is judged once");
        assert!(!is_due(&mut watch, at(500), 1, 3), "the fourth is a job of its own");
        assert_eq!(watch.deadline(), Some(at(600)));
        assert!(!is_due(&mut watch, at(600), 0, 4));
        assert_eq!(watch.deadline(), None);
    }

    #[test]
    fn an_empty_ring_has_no_deadline_and_starts_anew() {
        let (mut watch, start) = (AgeWatch::new(LIMIT, false), clock::now());
        assert!(!is_due(&mut watch, start, 1, 0));
        assert!(!is_due(&mut watch, start + LIMIT, 0, 1));
        assert_eq!(watch.deadline(), None);
        assert!(!is_due(&mut watch, start + LIMIT * 9, 1, 1));
    }
}
