//! Whether this worker takes connections: not when it has more than its share (RULES 24).
//!
//! All workers accept from the same queue, and the kernel gives a connection to whoever asks first.
//! So a worker that is ahead stops asking until the others have caught up. That is safe only because
//! *somebody* always asks: the least loaded of those that are counted never stops, and one that does
//! not answer for itself (silent, full, draining) is not counted.

use std::time::{Duration, Instant};

use crate::board::{CellState, Reading, WorkerCell};
use crate::limits;

/// What the listeners are to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// Accept.
    Take,
    /// Accept, and ask anew where that was asked before: a worker that has fallen silent may have
    /// taken the kernel's wake for a connection with it.
    TakeAnew,
    /// Leave it to the others.
    Hold,
}

impl Verdict {
    /// The same for listeners that nobody leaves to others.
    pub(super) fn without_holding(self) -> Self {
        match self {
            Self::TakeAnew => Self::TakeAnew,
            Self::Take | Self::Hold => Self::Take,
        }
    }
}

/// What this worker tells the others.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Standing {
    pub(super) connections: usize,
    /// It would take more.
    pub(super) is_accepting: bool,
}

/// This worker's part in the balance. Without a cell it takes everything.
#[derive(Debug)]
pub(super) struct Balance {
    cell: Option<WorkerCell>,
    /// As last published.
    standing: Option<Standing>,
    is_holding: bool,
    next_look: Option<Instant>,
    /// The last look found other processes.
    has_others: bool,
    /// Others that were counted at the last regular look.
    counted: usize,
}

impl Balance {
    pub(super) fn new(cell: Option<WorkerCell>) -> Self {
        Self {
            cell,
            standing: None,
            is_holding: false,
            next_look: None,
            has_others: false,
            counted: 0,
        }
    }

    /// When to wake for a look if nothing happens before. `None`: there is nobody to look at; whether
    /// somebody has come is seen at the first pass after the look is due.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look.filter(|_| self.has_others)
    }

    /// Once a pass. Looks at the others only if the standing has changed or it is time to.
    pub(super) fn look(&mut self, now: Instant, standing: Standing) -> Verdict {
        let Some(cell) = &self.cell else { return Verdict::Take };
        let is_due = self.next_look.is_some_and(|moment| now >= moment);
        if !is_due && self.standing == Some(standing) {
            return if self.is_holding { Verdict::Hold } else { Verdict::Take };
        }
        self.standing = Some(standing);
        let Standing { connections, is_accepting } = standing;
        if !is_accepting {
            cell.publish(now, CellState::Declining, connections);
            self.is_holding = false;
            self.next_look = None;
            return Verdict::Take;
        }
        cell.publish(now, CellState::Accepting, connections);
        let view = View::of(connections as u64, cell.others(), cell.board().moment(now));
        self.is_holding = view.is_above;
        self.has_others = view.has_others;
        self.next_look = Some(now + view.next_look());
        let has_lost = view.silent > 0 || view.counted < self.counted;
        if is_due {
            self.counted = view.counted;
        }
        match (view.is_above, is_due && has_lost) {
            (true, _) => Verdict::Hold,
            (false, true) => Verdict::TakeAnew,
            (false, false) => Verdict::Take,
        }
    }
}

/// What the board says to one worker.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct View {
    /// It has more than its share, and somebody who is counted has less.
    is_above: bool,
    /// There are other processes.
    has_others: bool,
    /// Others that take connections.
    counted: usize,
    /// Others that should, and have not said anything for too long.
    silent: usize,
}

impl View {
    fn of(own: u64, others: impl Iterator<Item = Reading>, now: Duration) -> Self {
        let mut view = Self::default();
        let (mut total, mut least) = (own, own);
        for other in others {
            view.has_others = true;
            match other.state {
                CellState::Free | CellState::Starting | CellState::Declining => continue,
                CellState::Accepting => {}
            }
            if now.saturating_sub(other.heartbeat) > limits::HEARTBEAT_AGE_MAX {
                view.silent += 1;
                continue;
            }
            view.counted += 1;
            total = total.saturating_add(other.connections);
            least = least.min(other.connections);
        }
        let is_ahead = exceeds_mean(own, total, view.counted as u64 + 1);
        // The least loaded is never above, so somebody always takes.
        view.is_above = own > least && (is_ahead || breaks_margin(own, least));
        view
    }

    fn next_look(self) -> Duration {
        if self.is_above {
            limits::BALANCE_LOOK
        } else if self.has_others {
            limits::HEARTBEAT
        } else {
            // The reactor passes that often anyway.
            limits::SLEEP_MAX
        }
    }
}

/// Whether `own` is more than 1.125 × the mean, and by more than the slack.
fn exceeds_mean(own: u64, total: u64, workers: u64) -> bool {
    // In parts of a connection: times the number of workers.
    let excess = own.saturating_mul(workers).saturating_sub(total);
    excess.saturating_mul(8) > total && excess > workers * limits::BALANCE_SLACK as u64
}

/// Whether one more would be 1.25 × the least loaded, and more by twice the slack. In a burst the mean
/// alone is not enough: of four workers three may be at 1.12 of it and the last, which has had no time
/// on a processor yet, at 0.64.
fn breaks_margin(own: u64, least: u64) -> bool {
    let next = own.saturating_add(1);
    let is_ahead = next > least.saturating_add(2 * limits::BALANCE_SLACK as u64);
    is_ahead && next.saturating_mul(4) > least.saturating_mul(5)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::board::{Board, CellLease};
    use crate::clock;

    const NOW: Duration = Duration::from_secs(60);

    fn other(state: CellState, connections: u64, age_ms: u64) -> Reading {
        Reading { state, connections, heartbeat: NOW - Duration::from_millis(age_ms) }
    }

    fn accepting(connections: &[u64]) -> Vec<Reading> {
        connections.iter().map(|count| other(CellState::Accepting, *count, 0)).collect()
    }

    fn is_above(own: u64, others: &[u64]) -> bool {
        View::of(own, accepting(others).into_iter(), NOW).is_above
    }

    #[test]
    fn rules_24_above_is_more_than_an_eighth_over_the_mean() {
        // Own count, the others', whether it holds.
        let table: &[(u64, &[u64], bool)] = &[
            // Alone, or all the same.
            (0, &[], false),
            (10_000, &[], false),
            (0, &[0, 0, 0], false),
            (100, &[100, 100, 100], false),
            // 113 of a mean of 100 is, 112 is not: three sit between.
            (112, &[96, 96, 96], false),
            (113, &[96, 96, 95], true),
            (126, &[112, 112, 112], false),
            // Few: the slack.
            (1, &[0, 0, 0], false),
            (4, &[0, 0, 0], false),
            (6, &[0, 0, 0], true),
            (4, &[0], false),
            (7, &[0], false),
            (8, &[0], true),
            (8, &[4, 4, 4], false),
            (10, &[4, 4, 4], true),
            // One comes anew: the others leave it to him, until he is near.
            (100, &[100, 100, 0], true),
            (0, &[100, 100, 100], false),
            (100, &[100, 100, 70], true),
            (100, &[100, 100, 81], false),
            // The mean is kept and the margin is not: 109/73 = 1.49.
            (109, &[109, 109, 73], true),
            (73, &[109, 109, 109], false),
            // Absurd numbers do not overflow.
            (u64::MAX, &[u64::MAX, 0], true),
            (0, &[u64::MAX, u64::MAX], false),
        ];
        for (own, others, expected) in table {
            assert_eq!(is_above(*own, others), *expected, "{own} beside {others:?}");
        }
    }

    #[test]
    fn rules_24_a_silent_full_or_starting_worker_is_not_counted() {
        use CellState::{Accepting, Declining, Starting};
        // Hundred of our own beside one that has none: is it waited for?
        let table = [
            (other(Accepting, 0, 0), true),
            (other(Accepting, 0, 100), true),
            (other(Accepting, 0, 101), false),
            (other(Accepting, 0, 60_000), false),
            (other(Declining, 0, 0), false),
            (other(Starting, 0, 0), false),
            // Its clock was read a moment after ours.
            (Reading { heartbeat: NOW + Duration::from_millis(3), ..other(Accepting, 0, 0) }, true),
        ];
        for (reading, expected) in table {
            let view = View::of(100, [reading].into_iter(), NOW);
            assert_eq!(view.is_above, expected, "{reading:?}");
            assert_eq!(view.counted, usize::from(expected), "{reading:?}");
            let is_silent = reading.state == Accepting && !expected;
            assert_eq!(view.silent, usize::from(is_silent), "{reading:?}");
            assert!(view.has_others);
        }
    }

    /// Whatever the counts, one of those that are counted accepts: no connection waits because each
    /// worker leaves it to another.
    #[test]
    fn rules_24_somebody_always_takes() {
        let mut state = 24_u64;
        let mut roll = move |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        for _ in 0..20_000 {
            let bound = 1 << roll(12);
            let counts: Vec<u64> = (0..=roll(8)).map(|_| roll(bound)).collect();
            let takes = |index: usize| {
                let mut others = counts.clone();
                let own = others.remove(index);
                !is_above(own, &others)
            };
            assert!((0..counts.len()).any(takes), "nobody takes: {counts:?}");
        }
    }

    /// The worst scheduler there is: only who may not take any more lets the next one run.
    #[test]
    fn behaviour_22_the_margin_holds_whoever_is_given_the_processor() {
        for workers in 2..=32 {
            let mut counts = vec![0_u64; workers];
            for _ in 0..workers * 100 {
                let takes = |index: &usize| {
                    let mut others = counts.clone();
                    let own = others.remove(*index);
                    !is_above(own, &others)
                };
                let taker = (0..workers).find(takes).expect("somebody");
                counts[taker] += 1;
            }
            let (least, most) = (counts.iter().min(), counts.iter().max());
            let (least, most) = (*least.expect("one"), *most.expect("one"));
            assert!(most * 10 <= least * 13, "{counts:?}");
        }
    }

    struct World {
        board: Arc<Board>,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            Self { board: Board::new(8).expect("memory"), now: clock::now() }
        }

        fn join(&self) -> (Balance, CellLease) {
            let lease = self.board.lease().expect("a cell");
            (Balance::new(Some(lease.worker_cell())), lease)
        }

        fn pass(&mut self, milliseconds: u64) {
            self.now += Duration::from_millis(milliseconds);
        }

        fn look(&self, balance: &mut Balance, connections: usize) -> Verdict {
            balance.look(self.now, Standing { connections, is_accepting: true })
        }

        /// **Unit**: milliseconds from now.
        fn wait_of(&self, balance: &Balance) -> Option<u128> {
            balance.next_look().map(|moment| (moment - self.now).as_millis())
        }
    }

    #[test]
    fn without_others_nobody_is_looked_at_and_nothing_is_waited_for() {
        let world = World::new();
        let mut unbalanced = Balance::new(None);
        assert_eq!(world.look(&mut unbalanced, 1000), Verdict::Take);
        assert_eq!(world.wait_of(&unbalanced), None);
        let (mut alone, _lease) = world.join();
        assert_eq!(world.look(&mut alone, 1000), Verdict::Take);
        assert_eq!(world.wait_of(&alone), None);
    }

    /// And is not silent in the eyes of one that comes while it idles.
    #[test]
    fn rules_24_one_that_was_alone_sees_within_a_second_that_somebody_has_come() {
        let mut world = World::new();
        let (mut alone, _first) = world.join();
        world.look(&mut alone, 3);
        world.pass(500);
        let (mut newcomer, _second) = world.join();
        world.look(&mut newcomer, 0);
        world.look(&mut alone, 3);
        assert_eq!(world.wait_of(&alone), None, "between its looks it does nothing");
        world.pass(500);
        world.look(&mut newcomer, 0);
        assert_eq!(world.look(&mut newcomer, 0), Verdict::Take);
        world.look(&mut alone, 3);
        assert_eq!(world.wait_of(&alone), Some(50));
        for _ in 0..3 {
            world.pass(50);
            assert_eq!(world.look(&mut alone, 3), Verdict::Take);
            assert_eq!(world.look(&mut newcomer, 0), Verdict::Take, "both beat, none is silent");
        }
    }

    #[test]
    fn one_that_is_ahead_looks_every_10_ms_and_takes_again_when_the_other_has_caught_up() {
        let mut world = World::new();
        let ((mut ahead, _first), (mut behind, _second)) = (world.join(), world.join());
        assert_eq!(world.look(&mut behind, 10), Verdict::Take);
        assert_eq!(world.look(&mut ahead, 40), Verdict::Hold);
        assert_eq!((world.wait_of(&ahead), world.wait_of(&behind)), (Some(10), Some(50)));
        world.pass(5);
        assert_eq!(world.look(&mut behind, 39), Verdict::Take);
        assert_eq!(world.look(&mut ahead, 40), Verdict::Hold, "not looked again before its time");
        world.pass(5);
        assert_eq!(world.look(&mut ahead, 40), Verdict::Take);
        assert_eq!(world.wait_of(&ahead), Some(50));
    }

    #[test]
    fn one_that_closes_connections_need_not_wait_for_the_tick() {
        let world = World::new();
        let ((mut ahead, _first), (mut behind, _second)) = (world.join(), world.join());
        world.look(&mut behind, 10);
        assert_eq!(world.look(&mut ahead, 40), Verdict::Hold);
        assert_eq!(world.look(&mut ahead, 11), Verdict::Take);
    }

    #[test]
    fn one_that_falls_silent_is_waited_for_at_most_100_ms_and_then_asked_around() {
        let mut world = World::new();
        let ((mut ahead, _first), (mut stuck, _second)) = (world.join(), world.join());
        world.look(&mut stuck, 0);
        let mut waited = 0;
        while world.look(&mut ahead, 100) == Verdict::Hold {
            world.pass(10);
            waited += 10;
        }
        assert_eq!(waited, 110);
        // It may have taken a wake with it: whoever is awake asks anew, twenty times a second.
        for _ in 0..3 {
            world.pass(50);
            assert_eq!(world.look(&mut ahead, 100), Verdict::TakeAnew);
            assert_eq!(world.look(&mut ahead, 101), Verdict::Take, "not for every connection");
        }
        world.look(&mut stuck, 0);
        assert_eq!(world.look(&mut ahead, 102), Verdict::Hold, "it goes on, and is behind");
    }

    #[test]
    fn one_that_dies_and_is_reaped_between_two_looks_is_missed_once() {
        let mut world = World::new();
        let ((mut survivor, _first), (mut dead, lease)) = (world.join(), world.join());
        world.look(&mut dead, 5);
        world.look(&mut survivor, 5);
        world.pass(50);
        world.look(&mut dead, 5);
        assert_eq!(world.look(&mut survivor, 5), Verdict::Take);
        drop(lease);
        world.pass(50);
        assert_eq!(world.look(&mut survivor, 5), Verdict::TakeAnew);
        assert_eq!(world.wait_of(&survivor), None, "alone");
    }

    #[test]
    fn one_that_is_full_or_drains_says_so_and_holds_nobody_up() {
        let world = World::new();
        let ((mut ahead, _first), (mut full, _second)) = (world.join(), world.join());
        world.look(&mut full, 10);
        assert_eq!(world.look(&mut ahead, 100), Verdict::Hold);
        let declining = Standing { connections: 10, is_accepting: false };
        assert_eq!(full.look(world.now, declining), Verdict::Take, "its listeners know better");
        assert_eq!(world.wait_of(&full), None);
        assert_eq!(world.look(&mut ahead, 101), Verdict::Take);
    }
}
