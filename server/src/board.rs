//! The board: a cache line a worker process, in memory that all of them share.
//!
//! A worker writes its own cell and reads the others'. The supervisor leases cells to the processes
//! that it forks and frees them when it has reaped them. Numbers only, so that a reader of a cell that
//! is being written sees a mixture of two moments and nothing worse.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock;
use crate::sys::shm::SharedWords;

/// Words of a cell: one cache line.
const CELL_WORDS: usize = 8;

/// Which word of its cell is what.
const STATE: usize = 0;
const CONNECTIONS: usize = 1;
const HEARTBEAT: usize = 2;

/// What the process of a cell does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
pub enum CellState {
    /// Nobody's.
    Free,
    /// Of a process that has not begun to accept.
    Starting,
    /// It takes connections.
    Accepting,
    /// It serves what it has: full, without descriptors, or draining.
    Declining,
}

impl CellState {
    fn of(word: u64) -> Self {
        match word {
            1 => Self::Starting,
            2 => Self::Accepting,
            3 => Self::Declining,
            // Nothing else is ever written.
            _ => Self::Free,
        }
    }
}

/// A cell as it was a moment ago.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reading {
    /// What its process does.
    pub state: CellState,
    /// Connections on the public listeners.
    pub connections: u64,
    /// When it was last written, since the board was made. **Unit**: whole milliseconds.
    pub heartbeat: Duration,
}

/// The cells of all worker processes.
#[derive(Debug)]
pub struct Board {
    /// A line of our own (the first word says how many cells were ever used), then the cells.
    words: SharedWords,
    /// Heartbeats count from here. A child has a copy, and the same clock.
    epoch: Instant,
}

impl Board {
    /// Makes a board for so many processes at once. Before the first fork.
    ///
    /// # Errors
    /// Out of memory.
    pub fn new(cell_count: usize) -> io::Result<Arc<Self>> {
        let words = SharedWords::new((1 + cell_count) * CELL_WORDS)?;
        Ok(Arc::new(Self { words, epoch: clock::now() }))
    }

    /// A cell for a process that is about to be forked; it is free again when the lease is dropped by
    /// the process that took it. `None`: all are leased.
    #[must_use]
    pub fn lease(self: &Arc<Self>) -> Option<CellLease> {
        let is_free = |cell: &[AtomicU64]| {
            let (free, starting) = (CellState::Free as u64, CellState::Starting as u64);
            let taken =
                cell[STATE].compare_exchange(free, starting, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        };
        let index = self.cells().position(is_free)?;
        for word in &self.cell(index)[STATE + 1..] {
            word.store(0, Ordering::Relaxed);
        }
        self.used_count().fetch_max(index as u64 + 1, Ordering::AcqRel);
        Some(CellLease { board: Arc::clone(self), index, owner: std::process::id() })
    }

    /// What a process writes with whose cell was leased by another one. `None`: there is no such cell.
    #[must_use]
    pub fn worker_cell(self: &Arc<Self>, index: usize) -> Option<WorkerCell> {
        let exists = index < self.cells().count();
        exists.then(|| WorkerCell { board: Arc::clone(self), index })
    }

    /// All cells that have ever been leased. The others need not be looked at.
    fn used_cells(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.cells().take(self.used_count().load(Ordering::Acquire) as usize)
    }

    fn cells(&self) -> impl Iterator<Item = &[AtomicU64]> {
        self.words.words().chunks_exact(CELL_WORDS).skip(1)
    }

    fn cell(&self, index: usize) -> &[AtomicU64] {
        &self.words.words()[(1 + index) * CELL_WORDS..][..CELL_WORDS]
    }

    fn used_count(&self) -> &AtomicU64 {
        &self.words.words()[0]
    }

    /// A moment as heartbeats are written.
    pub(crate) fn moment(&self, now: Instant) -> Duration {
        Duration::from_millis(self.milliseconds(now))
    }

    fn milliseconds(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_millis() as u64
    }
}

/// A cell in use by a forked process. Whoever reaps the process drops it.
#[derive(Debug)]
pub struct CellLease {
    board: Arc<Board>,
    index: usize,
    /// Children of this process have copies, which free nothing.
    owner: u32,
}

impl CellLease {
    /// Its place on the board.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// What the forked process writes with.
    #[must_use]
    pub fn worker_cell(&self) -> WorkerCell {
        WorkerCell { board: Arc::clone(&self.board), index: self.index }
    }
}

impl Drop for CellLease {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            let state = &self.board.cell(self.index)[STATE];
            state.store(CellState::Free as u64, Ordering::Release);
        }
    }
}

/// A worker's own cell, and its view of the others.
#[derive(Clone, Debug)]
pub struct WorkerCell {
    board: Arc<Board>,
    index: usize,
}

impl WorkerCell {
    /// The board it is on.
    #[must_use]
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Writes the cell; that is a sign of life too.
    pub(crate) fn publish(&self, now: Instant, state: CellState, connections: usize) {
        let cell = self.board.cell(self.index);
        cell[CONNECTIONS].store(connections as u64, Ordering::Relaxed);
        cell[HEARTBEAT].store(self.board.milliseconds(now), Ordering::Relaxed);
        cell[STATE].store(state as u64, Ordering::Release);
    }

    /// The cells of all other processes.
    pub(crate) fn others(&self) -> impl Iterator<Item = Reading> {
        let used = self.board.used_cells().enumerate();
        used.filter(|(index, _)| *index != self.index).filter_map(|(_, cell)| {
            let state = CellState::of(cell[STATE].load(Ordering::Acquire));
            (state != CellState::Free).then(|| Reading {
                state,
                connections: cell[CONNECTIONS].load(Ordering::Relaxed),
                heartbeat: Duration::from_millis(cell[HEARTBEAT].load(Ordering::Relaxed)),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::BOUNDS;
    use crate::limits;
    use crate::sys::shm::in_forked_child;

    #[test]
    fn every_worker_and_its_successor_find_a_cell() {
        let workers = BOUNDS.iter().find(|bound| bound.name == "workers").expect("an option");
        assert_eq!(limits::BOARD_CELL_COUNT as u64, 2 * workers.high);
        let board = Board::new(limits::BOARD_CELL_COUNT).expect("memory");
        let leases: Vec<_> =
            (0..limits::BOARD_CELL_COUNT).map(|_| board.lease().expect("a cell")).collect();
        assert!(board.lease().is_none(), "one more than there are");
        assert_eq!(leases[0].worker_cell().others().count(), limits::BOARD_CELL_COUNT - 1);
        drop(leases);
        assert!(board.lease().is_some());
    }

    #[test]
    fn a_worker_reads_what_the_others_wrote_and_not_itself() {
        let board = Board::new(4).expect("memory");
        let leases = [board.lease(), board.lease(), board.lease()].map(|lease| lease.expect("one"));
        let now = clock::now() + Duration::from_millis(1500);
        leases[0].worker_cell().publish(now, CellState::Accepting, 7);
        leases[1].worker_cell().publish(now, CellState::Declining, 9);
        let heartbeat = board.moment(now);
        assert!(heartbeat >= Duration::from_millis(1500));
        let readings: Vec<_> = leases[2].worker_cell().others().collect();
        let of = |state, connections| Reading { state, connections, heartbeat };
        assert_eq!(readings, [of(CellState::Accepting, 7), of(CellState::Declining, 9)]);
        let first: Vec<_> = leases[0].worker_cell().others().map(|reading| reading.state).collect();
        assert_eq!(first, [CellState::Declining, CellState::Starting]);
    }

    #[test]
    fn a_cell_that_is_leased_again_says_nothing_of_its_last_process() {
        let board = Board::new(2).expect("memory");
        let observer = board.lease().expect("a cell");
        let first = board.lease().expect("a cell");
        first.worker_cell().publish(clock::now(), CellState::Accepting, 100);
        drop(first);
        assert_eq!(observer.worker_cell().others().count(), 0);
        let _second = board.lease().expect("the same cell");
        let readings: Vec<_> = observer.worker_cell().others().collect();
        let (state, heartbeat) = (CellState::Starting, Duration::ZERO);
        assert_eq!(readings, [Reading { state, connections: 0, heartbeat }]);
    }

    #[test]
    fn a_forked_child_writes_its_cell_and_its_copy_of_a_lease_frees_nothing() {
        let board = Board::new(2).expect("memory");
        let (ours, theirs) = (board.lease().expect("a cell"), board.lease().expect("a cell"));
        let (now, cell) = (clock::now(), theirs.worker_cell());
        let copy = std::cell::Cell::new(Some(theirs));
        let code = in_forked_child(|| {
            cell.publish(now, CellState::Accepting, 3);
            drop(copy.take());
            0
        });
        assert_eq!(code, Some(0));
        let readings: Vec<_> = ours.worker_cell().others().collect();
        assert_eq!(readings.len(), 1, "the child's drop has freed the cell");
        assert_eq!((readings[0].state, readings[0].connections), (CellState::Accepting, 3));
        drop(copy.take());
        assert_eq!(ours.worker_cell().others().count(), 0);
    }
}
