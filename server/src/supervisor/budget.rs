//! How many workers may end young before the supervisor gives up. No system calls.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What is looked back at.
const WINDOW: Duration = Duration::from_secs(60);

/// The moments at which workers ended young. At most one more than `--respawn-max` are kept.
#[derive(Debug, Default)]
pub(super) struct Budget {
    ends: VecDeque<Instant>,
}

/// More ended young than may.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Exhausted {
    pub(super) count: usize,
    /// From the first of them to the last.
    pub(super) time: Duration,
}

impl Budget {
    /// One more ended young. `None` for `max`: as many as will.
    pub(super) fn spend(&mut self, max: Option<usize>, now: Instant) -> Option<Exhausted> {
        let max = max?;
        self.ends.push_back(now);
        while self.ends.len() > max + 1
            || self.ends.front().is_some_and(|end| now.saturating_duration_since(*end) > WINDOW)
        {
            self.ends.pop_front();
        }
        let first = *self.ends.front()?;
        let time = now.saturating_duration_since(first);
        (self.ends.len() > max).then_some(Exhausted { count: self.ends.len(), time })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn one_more_than_the_budget_within_a_minute_exhausts_it() {
        let start = clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (max, ends, exhausted) in [
            (Some(2), vec![0, 10, 20], vec![false, false, true]),
            (Some(2), vec![0, 30, 61, 91, 92], vec![false, false, false, false, true]),
            (Some(1), vec![0, 60, 121, 181], vec![false, true, false, true]),
            (None, vec![0, 0, 0, 0], vec![false; 4]),
        ] {
            let mut budget = Budget::default();
            let seen: Vec<bool> =
                ends.iter().map(|end| budget.spend(max, at(*end)).is_some()).collect();
            assert_eq!(seen, exhausted, "{max:?} {ends:?}");
        }
        let mut budget = Budget::default();
        assert_eq!(budget.spend(Some(1), at(0)), None);
        let time = Duration::from_secs(7);
        assert_eq!(budget.spend(Some(1), at(7)), Some(Exhausted { count: 2, time }));
    }
}
