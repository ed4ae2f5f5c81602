//! Deadlines of connections: one wheel of coarse ticks, no timer in the kernel.
//!
//! A connection's deadline moves with almost every event, its wheel entry does not: an entry that
//! fires early is put back at the deadline of that moment, so moving a deadline later costs a store.

use std::time::{Duration, Instant};

use super::token::Token;

/// Length of a tick. **Why**: deadlines are seconds, and a tick is the most they are late.
pub(crate) const TICK: Duration = Duration::from_millis(100);

const NANOSECOND: Duration = Duration::from_nanos(1);

/// Ticks that have passed after `elapsed`. By hand, since it is asked several times a request and a
/// division of 128-bit nanoseconds costs as much as the rest.
fn whole_ticks(elapsed: Duration) -> u64 {
    const TICK_NANOSECONDS: u32 = TICK.subsec_nanos();
    const TICKS_PER_SECOND: u64 = (1_000_000_000 / TICK_NANOSECONDS) as u64;
    elapsed.as_secs() * TICKS_PER_SECOND + u64::from(elapsed.subsec_nanos() / TICK_NANOSECONDS)
}

/// Ticks of one turn of the wheel: about 102 s, more than the default keep-alive. A later deadline
/// goes round again.
const BUCKET_COUNT: usize = 1024;

/// The entry a connection has in the wheel.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Timer {
    /// When something must have happened.
    deadline: Option<Instant>,
    /// The tick of the entry that counts; entries of other ticks are stale.
    queued_tick: Option<u64>,
}

/// The wheel.
#[derive(Debug)]
pub(crate) struct Wheel {
    start: Instant,
    /// Ticks that were handled.
    tick: u64,
    buckets: Vec<Vec<(Token, u64)>>,
    entry_count: usize,
    /// No entry is due before this tick.
    earliest_tick: u64,
}

impl Wheel {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            start: now,
            tick: 0,
            buckets: (0..BUCKET_COUNT).map(|_| Vec::new()).collect(),
            entry_count: 0,
            earliest_tick: u64::MAX,
        }
    }

    /// Sets or moves a connection's deadline.
    pub(crate) fn set(&mut self, token: Token, timer: &mut Timer, deadline: Instant) {
        timer.deadline = Some(deadline);
        let tick = self.tick_after(deadline);
        if timer.queued_tick.is_none_or(|queued| tick < queued) {
            self.queue(token, timer, tick);
        }
    }

    /// Takes a deadline away; its entry fires and finds nothing.
    pub(crate) fn clear(timer: &mut Timer) {
        timer.deadline = None;
    }

    fn queue(&mut self, token: Token, timer: &mut Timer, tick: u64) {
        timer.queued_tick = Some(tick);
        self.buckets[tick as usize % BUCKET_COUNT].push((token, tick));
        self.entry_count += 1;
        self.earliest_tick = self.earliest_tick.min(tick);
    }

    /// The first tick that begins at or after `moment`, and after what was handled.
    fn tick_after(&self, moment: Instant) -> u64 {
        // One nanosecond less, then one tick more: rounded up.
        let before = moment.saturating_duration_since(self.start).saturating_sub(NANOSECOND);
        (whole_ticks(before) + 1).max(self.tick + 1)
    }

    /// Whether a tick has begun that was not handled.
    pub(crate) fn is_behind(&self, now: Instant) -> bool {
        whole_ticks(now.saturating_duration_since(self.start)) > self.tick
    }

    /// When to look next; `None` without entries.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        (self.entry_count > 0)
            .then(|| self.start + TICK * u32::try_from(self.earliest_tick).unwrap_or(u32::MAX))
    }

    /// Moves on to `now` and gives the tokens whose entries are due; each is then asked with
    /// [`Wheel::is_due`].
    pub(crate) fn advance(&mut self, now: Instant, due: &mut Vec<(Token, u64)>) {
        let current = whole_ticks(now.saturating_duration_since(self.start));
        if current < self.earliest_tick {
            self.tick = current;
            return;
        }
        let last = current.min(self.tick + BUCKET_COUNT as u64);
        for tick in self.tick + 1..=last {
            let bucket = &mut self.buckets[tick as usize % BUCKET_COUNT];
            // Entries of a later turn stay.
            due.extend(bucket.extract_if(.., |&mut (_, entry)| entry <= current));
        }
        self.entry_count -= due.len();
        self.tick = current;
        self.earliest_tick = self.find_earliest();
    }

    fn find_earliest(&self) -> u64 {
        if self.entry_count == 0 {
            return u64::MAX;
        }
        let turn = self.tick + 1..=self.tick + BUCKET_COUNT as u64;
        // An entry of a later turn counts as due in this one: early looks are harmless.
        turn.clone()
            .find(|tick| !self.buckets[*tick as usize % BUCKET_COUNT].is_empty())
            .unwrap_or(*turn.end())
    }

    /// An entry fired: whether the deadline has passed. If not, the entry is put back.
    pub(crate) fn is_due(
        &mut self,
        token: Token,
        timer: &mut Timer,
        tick: u64,
        now: Instant,
    ) -> bool {
        if timer.queued_tick != Some(tick) {
            return false;
        }
        timer.queued_tick = None;
        match timer.deadline {
            None => false,
            Some(deadline) if deadline <= now => {
                timer.deadline = None;
                true
            }
            Some(deadline) => {
                let tick = self.tick_after(deadline);
                self.queue(token, timer, tick);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn fired(wheel: &mut Wheel, timers: &mut [Timer], now: Instant) -> Vec<usize> {
        let mut due = Vec::new();
        wheel.advance(now, &mut due);
        let is_due = |(token, tick): (Token, u64)| {
            let index = token.slot_index();
            wheel.is_due(token, &mut timers[index], tick, now).then_some(index)
        };
        due.into_iter().filter_map(is_due).collect()
    }

    #[test]
    fn a_deadline_fires_once_within_a_tick_after_its_moment() {
        let start = clock::now();
        let mut wheel = Wheel::new(start);
        let mut timers = [Timer::default(); 1];
        wheel.set(Token::new(0, 0), &mut timers[0], start + Duration::from_millis(250));
        assert_eq!(wheel.next_look(), Some(start + Duration::from_millis(300)));
        assert!(fired(&mut wheel, &mut timers, start + Duration::from_millis(299)).is_empty());
        assert_eq!(fired(&mut wheel, &mut timers, start + Duration::from_millis(300)), [0]);
        assert!(fired(&mut wheel, &mut timers, start + Duration::from_secs(300)).is_empty());
        assert_eq!(wheel.next_look(), None);
    }

    #[test]
    fn a_deadline_moved_later_fires_at_the_later_moment_and_moved_earlier_at_the_earlier() {
        let start = clock::now();
        let mut wheel = Wheel::new(start);
        let mut timers = [Timer::default(); 2];
        wheel.set(Token::new(0, 0), &mut timers[0], start + Duration::from_secs(1));
        wheel.set(Token::new(0, 0), &mut timers[0], start + Duration::from_secs(9));
        wheel.set(Token::new(1, 0), &mut timers[1], start + Duration::from_secs(9));
        wheel.set(Token::new(1, 0), &mut timers[1], start + Duration::from_secs(2));
        assert!(fired(&mut wheel, &mut timers, start + Duration::from_secs(1)).is_empty());
        assert_eq!(fired(&mut wheel, &mut timers, start + Duration::from_secs(3)), [1]);
        assert_eq!(fired(&mut wheel, &mut timers, start + Duration::from_secs(10)), [0]);
    }

    #[test]
    fn a_deadline_beyond_a_turn_of_the_wheel_is_kept_and_a_cleared_one_never_fires() {
        let start = clock::now();
        let mut wheel = Wheel::new(start);
        let mut timers = [Timer::default(); 2];
        wheel.set(Token::new(0, 0), &mut timers[0], start + Duration::from_secs(620));
        wheel.set(Token::new(1, 0), &mut timers[1], start + Duration::from_secs(5));
        Wheel::clear(&mut timers[1]);
        for second in 1..620 {
            let now = start + Duration::from_secs(second);
            assert!(fired(&mut wheel, &mut timers, now).is_empty(), "at {second} s");
        }
        assert_eq!(fired(&mut wheel, &mut timers, start + Duration::from_secs(621)), [0]);
    }

    #[test]
    fn a_long_sleep_fires_everything_that_is_due() {
        let start = clock::now();
        let mut wheel = Wheel::new(start);
        let mut timers = [Timer::default(); 50];
        for (index, timer) in timers.iter_mut().enumerate() {
            let deadline = start + Duration::from_secs(index as u64 * 20);
            wheel.set(Token::new(index as u32, 0), timer, deadline);
        }
        let mut fired = fired(&mut wheel, &mut timers, start + Duration::from_secs(990));
        fired.sort_unstable();
        assert_eq!(fired, (0..50).collect::<Vec<_>>());
    }
}
