//! Threads in lockstep on virtual time, and an interpreter lock with the order of glibc's condition
//! variable.
//!
//! Exactly one thread runs at any moment; it hands on at the points where virtual time passes or where
//! it waits for the lock. So a run is the same run every time, and as fast as its hand-overs.
//!
//! The lock: who waits queues in order. Letting go wakes the one at the front, which needs a moment to
//! come; if it finds the lock taken again it queues anew, behind the rest. That is what CPython's lock
//! does on glibc. Its five milliseconds, after which a waiter asks for a switch if there was none, are
//! left out: in a busy pool there always was one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::clock;
use crate::pool::{Host, Interpreter};
use crate::sync::{Condvar, Mutex, lock};

/// From the wake of a waiter to its look at the lock.
const WAKE_LATENCY: Duration = Duration::from_micros(5);

/// What it takes to give the CPU to others.
const YIELD: Duration = Duration::from_micros(1);

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Status {
    /// Runs at that moment; of two, the one that became ready first.
    Ready(Duration, u64),
    Running,
    /// In the queue of the lock.
    Waiting,
    Gone,
}

#[derive(Debug)]
struct State {
    now: Duration,
    /// Numbers those that become ready.
    sequence: u64,
    threads: Vec<Status>,
    /// There is nobody left to run although somebody waits.
    is_stuck: bool,
    holder: Option<usize>,
    queue: VecDeque<usize>,
}

/// What the simulated threads live in.
#[derive(Debug)]
pub(super) struct World {
    epoch: Instant,
    state: Mutex<State>,
    /// One for each thread: it may run.
    chosen: Vec<Condvar>,
}

impl World {
    /// Nobody runs until all have come ([`World::enter`]).
    pub(super) fn new(thread_count: usize) -> Self {
        Self {
            epoch: clock::now(),
            state: Mutex::new(State {
                now: Duration::ZERO,
                sequence: 0,
                threads: vec![Status::Gone; thread_count],
                is_stuck: false,
                holder: None,
                queue: VecDeque::new(),
            }),
            chosen: (0..thread_count).map(|_| Condvar::new()).collect(),
        }
    }

    /// The first thing that a thread does. The order of coming is by index.
    pub(super) fn enter(&self, thread: usize) {
        let mut state = lock(&self.state);
        state.threads[thread] = Status::Ready(Duration::ZERO, thread as u64);
        if state.threads.iter().all(|status| *status != Status::Gone) {
            state.sequence = self.chosen.len() as u64;
            self.choose(&mut state);
        }
        drop(self.wait_until_chosen(state, thread));
    }

    /// The last thing that a thread does.
    pub(super) fn leave(&self, thread: usize) {
        let mut state = lock(&self.state);
        state.threads[thread] = Status::Gone;
        self.choose(&mut state);
    }

    /// Since the begin.
    pub(super) fn now(&self) -> Duration {
        lock(&self.state).now
    }

    /// The thread is busy for so long; others that are ready meanwhile run.
    pub(super) fn spend(&self, thread: usize, time: Duration) {
        let mut state = lock(&self.state);
        let until = state.now + time;
        make_ready(&mut state, thread, until);
        self.choose(&mut state);
        drop(self.wait_until_chosen(state, thread));
    }

    pub(super) fn acquire(&self, thread: usize) {
        let mut state = lock(&self.state);
        while state.holder.is_some() {
            state.queue.push_back(thread);
            state.threads[thread] = Status::Waiting;
            self.choose(&mut state);
            state = self.wait_until_chosen(state, thread);
        }
        state.holder = Some(thread);
    }

    pub(super) fn release(&self, thread: usize) {
        let mut state = lock(&self.state);
        assert_eq!(state.holder.take(), Some(thread), "only its holder lets go of the lock");
        if let Some(front) = state.queue.pop_front() {
            let at = state.now + WAKE_LATENCY;
            make_ready(&mut state, front, at);
        }
    }

    /// Lets the next thread run, which may be the caller.
    fn choose(&self, state: &mut State) {
        let next = (0..state.threads.len()).min_by_key(|thread| state.threads[*thread]);
        let Some(next) = next else { return };
        match state.threads[next] {
            Status::Ready(at, _) => {
                state.now = state.now.max(at);
                state.threads[next] = Status::Running;
                self.chosen[next].notify_one();
            }
            Status::Gone => {}
            Status::Running | Status::Waiting => {
                state.is_stuck = true;
                self.chosen.iter().for_each(Condvar::notify_one);
            }
        }
    }

    fn wait_until_chosen<'state>(
        &self,
        mut state: std::sync::MutexGuard<'state, State>,
        thread: usize,
    ) -> std::sync::MutexGuard<'state, State> {
        while state.threads[thread] != Status::Running {
            assert!(!state.is_stuck, "nobody can run: {state:?}");
            state =
                self.chosen[thread].wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        state
    }
}

fn make_ready(state: &mut State, thread: usize, at: Duration) {
    state.sequence += 1;
    state.threads[thread] = Status::Ready(at, state.sequence);
}

/// One of its threads, as the scheduling sees an interpreter's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simulated<'world> {
    pub(super) world: &'world World,
    pub(super) thread: usize,
}

impl<'world> Interpreter for Simulated<'world> {
    type Host = Self;

    fn host(&self) -> Self {
        *self
    }

    fn detached<R: Send>(&self, wait: impl FnOnce() -> R + Send) -> R {
        self.world.release(self.thread);
        let result = wait();
        self.world.acquire(self.thread);
        result
    }
}

impl Host for Simulated<'_> {
    fn now(self) -> Instant {
        self.world.epoch + self.world.now()
    }

    fn yield_cpu(self) {
        self.world.spend(self.thread, YIELD);
    }
}
