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
    /// Others that were counted at the last regular look.
    counted: usize,
}

impl Balance {
    pub(super) fn new(cell: Option<WorkerCell>) -> Self {
        Self { cell, standing: None, is_holding: false, next_look: None, counted: 0 }
    }

    /// When to look if nothing happens before. `None`: there is nobody to look at.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
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
        self.next_look = view.next_look().map(|wait| now + wait);
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
        // All workers would be above only if the mean were not one: then nobody is.
        view.is_above = own > least && exceeds_share(own, total, view.counted as u64 + 1);
        view
    }

    fn next_look(self) -> Option<Duration> {
        if self.is_above {
            Some(limits::BALANCE_LOOK)
        } else {
            self.has_others.then_some(limits::HEARTBEAT)
        }
    }
}

/// Whether `own` is more than 1.125 × the mean, and by more than the slack.
fn exceeds_share(own: u64, total: u64, workers: u64) -> bool {
    // In parts of a connection: times the number of workers.
    let excess = own.saturating_mul(workers).saturating_sub(total);
    excess.saturating_mul(8) > total && excess > workers * limits::BALANCE_SLACK as u64
}
