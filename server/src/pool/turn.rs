//! The turn: who holds the interpreter lock, for how long, and when it is let go.
//!
//! ```text
//! attached for life; run_start = attached_at = now
//! loop:
//!   in the slice (now - run_start < 1 ms), keep rule: take a queued job without letting go
//!   nobody waits, now - attached_at < 1 ms: the same
//!   otherwise:
//!     snap = attaches
//!     let go · slice spent: stand back until attaches != snap · next_job
//!     waiters += 1 · take the lock, timed · waiters -= 1 · attaches += 1
//!     attached_at = now; stood back, or the lock took 50 µs or more: run_start = now
//! ```
//! Letting go for an instant between two jobs is what must not happen while others wait: it wakes the
//! first waiter only to find the lock taken again, and sends it behind the rest. Inside the slice a
//! thread therefore keeps the lock *whether or not* others wait, and after the slice it hands the
//! lock on, holding no job meanwhile. A thread that nobody made wait has no slice; it takes "several
//! jobs per attach, at most 1 ms, and only while nobody waits" (RULES 10).
//!
//! A lone contender has no turn and nobody who says that it waits. It takes several jobs while it holds
//! back the wake for their answers: those were short (see `held`), and no clock is read for it.

use std::time::Instant;

use super::figures::{Count, ThreadCounts};
use super::lane::{Lane, Next, ThreadIndex};
use crate::clock;
use crate::limits::{TURN_SLICE, TURN_WAITED, TURN_YIELD_MAX};
use crate::sync::{AtomicU64, Ordering, Padded};

/// What the scheduling needs of an interpreter. One value belongs to one thread, which is attached
/// (holds the lock, where there is one) except inside [`Interpreter::detached`].
pub trait Interpreter {
    /// What a thread needs also while it is detached.
    type Host: Host;

    /// See [`Host`].
    fn host(&self) -> Self::Host;

    /// Lets go of the lock, runs `wait`, and takes the lock back, for which it may have to wait.
    fn detached<R: Send>(&self, wait: impl FnOnce() -> R + Send) -> R;
}

/// The machine under the interpreter.
pub trait Host: Copy + Send {
    /// A monotonic clock.
    fn now(self) -> Instant;

    /// Gives the CPU to another thread that can run.
    fn yield_cpu(self);
}

/// The machine that this runs on.
#[derive(Clone, Copy, Debug)]
pub struct System;

impl Host for System {
    fn now(self) -> Instant {
        clock::now()
    }

    fn yield_cpu(self) {
        std::thread::yield_now();
    }
}

/// One attach in [`Turn::word`].
const ATTACH: u64 = 1 << 32;

/// What all contenders for one interpreter's lock share.
#[derive(Debug)]
pub struct Turn {
    /// Low half: contenders that wait for the lock, as far as they said so. High half: how often one of
    /// them got it, which only its holder changes and which may wrap. In one word, so that getting it is
    /// one step.
    word: Padded<AtomicU64>,
    is_on: bool,
    keeps: bool,
    /// One contender, and a lock that others than contenders may want.
    keeps_alone: bool,
}

impl Turn {
    /// `contenders`: pool threads and, if the worker has one, the async lane. One contender has
    /// nobody to hand the lock to. **Source**: RULES 10.
    #[must_use]
    pub fn new(has_lock: bool, contenders: usize, knobs: &super::Knobs) -> Self {
        let is_on = has_lock && contenders > 1 && knobs.turn;
        Self {
            word: Padded(AtomicU64::new(0)),
            is_on,
            keeps: is_on && knobs.turn_keep,
            keeps_alone: has_lock && contenders == 1 && knobs.turn && knobs.turn_keep,
        }
    }

    /// No turn: nobody counts, nobody stands back.
    #[must_use]
    pub fn off() -> Self {
        Self::new(false, 0, &super::Knobs::default())
    }

    /// Whether contenders hand the lock on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// A contender begins to wait for the lock. For the async lane the reactor says so, once a poke and
    /// before it is sent; [`Turn::drained`] answers it.
    pub fn waiting(&self) {
        if self.is_on {
            self.word.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The async lane has the lock and drains what it was poked for: once for each
    /// [`Turn::waiting`], while it holds the lock.
    pub fn drained(&self) {
        self.attached();
    }

    /// A contender that was waiting has the lock, which it holds while it says so.
    fn attached(&self) {
        if self.is_on {
            self.word.0.fetch_add(ATTACH - 1, Ordering::SeqCst);
        }
    }

    /// Lets go of the lock for `wait` inside a job, and takes it back as a contender that says so.
    pub fn detached<R: Send>(
        &self,
        interpreter: &impl Interpreter,
        wait: impl FnOnce() -> R + Send,
    ) -> R {
        let result = interpreter.detached(|| {
            let result = wait();
            self.waiting();
            result
        });
        self.attached();
        result
    }

    /// How many contenders wait for the lock.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        (self.word.0.load(Ordering::SeqCst) % ATTACH) as usize
    }

    fn snapshot(&self) -> u64 {
        self.word.0.load(Ordering::SeqCst) / ATTACH
    }

    /// Stands back until somebody has got the lock since the snapshot. False: nobody waits.
    fn stand_back(&self, snapshot: u64, host: impl Host, before: impl FnOnce()) -> bool {
        if self.waiting_count() == 0 {
            return false;
        }
        before();
        let start = host.now();
        while self.snapshot() == snapshot
            && host.now().saturating_duration_since(start) < TURN_YIELD_MAX
        {
            host.yield_cpu();
        }
        true
    }
}

/// Where one attached thread of a lane gets its jobs.
#[derive(Debug)]
pub struct Runner<'lane, J, I> {
    lane: &'lane Lane<J>,
    index: ThreadIndex,
    interpreter: I,
    /// When its run began; `None` once its slice is known to be spent.
    run_start: Option<Instant>,
    /// When it got the lock, with a turn; `None` once that is known to be a slice ago.
    attached_at: Option<Instant>,
    /// When the job that it runs was its own, in a timed lane.
    service_start: Option<Instant>,
}

impl<'lane, J: Send, I: Interpreter> Runner<'lane, J, I> {
    /// For thread `index` of `lane`, which is attached.
    #[must_use]
    pub fn new(lane: &'lane Lane<J>, index: ThreadIndex, interpreter: I) -> Self {
        let run_start = lane.turn().is_on.then(|| interpreter.host().now());
        Self { lane, index, interpreter, run_start, attached_at: run_start, service_start: None }
    }

    /// The next job, for which it may let go of the lock.
    pub fn next_job(&mut self) -> Next<J> {
        self.end_service();
        let next = if self.lane.turn().is_on { self.next_in_turn() } else { self.next_freely() };
        self.begin_service();
        next
    }

    /// Without a turn: lets go, waits for a job, takes the lock.
    fn next_freely(&self) -> Next<J> {
        let (lane, index) = (self.lane, self.index);
        if lane.turn().keeps_alone
            && lane.holds_back(index)
            && let Some(next) = self.take_attached(|counts| &counts.kept_alone)
        {
            return next;
        }
        let Some(times) = &lane.counts(index).times else {
            return self.interpreter.detached(move || lane.next_job(index));
        };
        let host = self.interpreter.host();
        let (next, asked) = self.interpreter.detached(move || (lane.next_job(index), host.now()));
        times.lock_wait.record(host.now().saturating_duration_since(asked));
        next
    }

    fn next_in_turn(&mut self) -> Next<J> {
        let (lane, index, turn) = (self.lane, self.index, self.lane.turn());
        let (counts, host) = (lane.counts(index), self.interpreter.host());
        let in_slice = self.is_in_slice(host);
        if in_slice {
            if turn.keeps {
                if let Some(next) = self.take_attached(|counts| &counts.kept) {
                    return next;
                }
            } else if lane.waiting_count() > 0 {
                counts.drops_in_slice.add_one();
            }
        } else if self.may_go_on_alone(host)
            && let Some(next) = self.take_attached(|counts| &counts.kept_alone)
        {
            return next;
        }
        // Before the drop: whoever gets the lock after it has changed the count.
        let snapshot = turn.snapshot();
        let (next, stood_back, asked) = self.interpreter.detached(move || {
            // A response that is ready does not wait for other threads' turns.
            let stood_back =
                !in_slice && turn.stand_back(snapshot, host, || lane.flush_held_back(index));
            let next = lane.next_job(index);
            turn.waiting();
            (next, stood_back, host.now())
        });
        turn.attached();
        let now = host.now();
        self.attached_at = Some(now);
        let waited = now.saturating_duration_since(asked);
        if stood_back || waited >= TURN_WAITED {
            self.run_start = Some(now);
        }
        if stood_back {
            counts.yields.add_one();
        }
        if let Some(times) = &counts.times {
            times.lock_wait.record(waited);
        }
        next
    }

    /// Reads the clock only while a slice may be left.
    fn is_in_slice(&mut self, host: I::Host) -> bool {
        let in_slice = |start| host.now().saturating_duration_since(start) < TURN_SLICE;
        self.run_start = self.run_start.filter(|start| in_slice(*start));
        self.run_start.is_some()
    }

    /// Outside a slice: nobody waits for the lock and it was not held for long. Reads the clock only for
    /// a job.
    fn may_go_on_alone(&mut self, host: I::Host) -> bool {
        let turn = self.lane.turn();
        if !turn.keeps || self.lane.waiting_count() == 0 || turn.waiting_count() > 0 {
            return false;
        }
        let is_new = |at| host.now().saturating_duration_since(at) < TURN_SLICE;
        self.attached_at = self.attached_at.filter(|at| is_new(*at));
        self.attached_at.is_some()
    }

    /// Takes what there is without letting go, and counts it if it is a request.
    fn take_attached(&self, kept: impl Fn(&ThreadCounts) -> &Count) -> Option<Next<J>> {
        let counts = self.lane.counts(self.index);
        let requests = counts.jobs.get();
        let next = self.lane.try_next_job(self.index);
        if counts.jobs.get() > requests {
            kept(counts).add_one();
        }
        next
    }

    fn begin_service(&mut self) {
        if self.lane.policy().timed {
            self.service_start = Some(self.interpreter.host().now());
        }
    }

    fn end_service(&mut self) {
        if let Some(start) = self.service_start.take()
            && let Some(times) = &self.lane.counts(self.index).times
        {
            let now = self.interpreter.host().now();
            times.service.record(now.saturating_duration_since(start));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::exchange::Completions;
    use crate::pool::{Knobs, Policy};
    use crate::reactor::wake::Waker;
    use crate::sync::Arc;

    /// A lock whose waits are set, and a clock that only it and yields turn.
    struct Staged {
        epoch: Instant,
        now_us: AtomicU64,
        lock_wait_us: AtomicU64,
        yields: AtomicU64,
        /// Of the contenders that wait, so many get the lock and pass it on at each drop.
        passers: AtomicU64,
        /// When the thread last took the lock back: contenders that waited, itself among them.
        waiting_at_acquire: AtomicU64,
        lane: Lane<u32>,
    }

    impl Staged {
        /// A lane of one thread and one other contender, with jobs on its ring.
        fn new() -> Self {
            Self::with(Policy::default(), Turn::new(true, 2, &Knobs::default()))
        }

        fn with(policy: Policy, turn: Turn) -> Self {
            let completions = Arc::new(Completions::new(1, Waker::new().expect("an eventfd")));
            let lane = Lane::with_policy(1, 16, completions, policy, Arc::new(turn));
            (0..16).for_each(|job| lane.submit(job).expect("room"));
            Self {
                epoch: clock::now(),
                now_us: AtomicU64::new(0),
                lock_wait_us: AtomicU64::new(0),
                yields: AtomicU64::new(0),
                passers: AtomicU64::new(0),
                waiting_at_acquire: AtomicU64::new(0),
                lane,
            }
        }

        fn runner(&self) -> Runner<'_, u32, &Self> {
            Runner::new(&self.lane, ThreadIndex(0), self)
        }

        fn pass(&self, us: u64) {
            self.now_us.fetch_add(us, Ordering::Relaxed);
        }

        fn kept(&self) -> u64 {
            self.lane.figures().threads[0].kept
        }

        fn kept_alone(&self) -> u64 {
            self.lane.figures().threads[0].kept_alone
        }
    }

    impl Interpreter for &Staged {
        type Host = Self;

        fn host(&self) -> Self {
            self
        }

        fn detached<R: Send>(&self, wait: impl FnOnce() -> R + Send) -> R {
            for _ in 0..self.passers.load(Ordering::Relaxed) {
                self.lane.turn().drained();
            }
            let result = wait();
            let waiting = self.lane.turn().waiting_count() as u64;
            self.waiting_at_acquire.store(waiting, Ordering::Relaxed);
            self.pass(self.lock_wait_us.load(Ordering::Relaxed));
            result
        }
    }

    impl Host for &Staged {
        fn now(self) -> Instant {
            self.epoch + Duration::from_micros(self.now_us.load(Ordering::Relaxed))
        }

        fn yield_cpu(self) {
            self.yields.fetch_add(1, Ordering::Relaxed);
            self.pass(100);
        }
    }

    #[test]
    fn rule_10_the_turn_is_on_with_a_lock_and_more_than_one_contender() {
        let is_on = |has_lock, contenders, turn| {
            Turn::new(has_lock, contenders, &Knobs { turn, ..Knobs::default() }).is_on()
        };
        assert!(is_on(true, 2, true));
        assert!(!is_on(true, 1, true));
        assert!(!is_on(false, 8, true));
        assert!(!is_on(true, 8, false));
    }

    #[test]
    fn a_run_begins_with_a_real_wait_for_the_lock_and_lasts_a_millisecond() {
        let stage = Staged::new();
        let mut runner = stage.runner();
        stage.pass(1_000);
        stage.lock_wait_us.store(49, Ordering::Relaxed);
        assert_eq!(runner.next_job(), Next::Job(0));
        stage.pass(1_000);
        assert_eq!(runner.next_job(), Next::Job(1));
        assert_eq!(stage.kept(), 0, "nobody made it wait");
        stage.pass(1_000);
        stage.lock_wait_us.store(50, Ordering::Relaxed);
        assert_eq!(runner.next_job(), Next::Job(2));
        stage.pass(999);
        assert_eq!(runner.next_job(), Next::Job(3));
        assert_eq!(stage.kept(), 1, "inside the slice");
        stage.pass(1);
        stage.lock_wait_us.store(0, Ordering::Relaxed);
        assert_eq!(runner.next_job(), Next::Job(4));
        stage.pass(1_000);
        assert_eq!(runner.next_job(), Next::Job(5));
        assert_eq!((stage.kept(), stage.kept_alone()), (1, 0), "the slice is spent");
    }

    #[test]
    fn a_thread_whose_slice_is_spent_stands_back_for_a_millisecond_at_the_most_and_begins_anew() {
        let stage = Staged::new();
        let mut runner = stage.runner();
        stage.pass(1_000);
        stage.lane.turn().waiting();
        assert_eq!(runner.next_job(), Next::Job(0));
        assert_eq!(stage.yields.load(Ordering::Relaxed), 10);
        assert_eq!(runner.next_job(), Next::Job(1));
        assert_eq!(stage.kept(), 1, "a new run began");
        assert_eq!(stage.lane.figures().threads[0].yields, 1);
    }

    #[test]
    fn a_lock_that_changed_hands_at_the_drop_is_seen_at_once() {
        let stage = Staged::new();
        let mut runner = stage.runner();
        stage.pass(1_000);
        // One of the two that wait gets it before the thread can look.
        stage.lane.turn().waiting();
        stage.lane.turn().waiting();
        stage.passers.store(1, Ordering::Relaxed);
        assert_eq!(runner.next_job(), Next::Job(0));
        assert_eq!(stage.yields.load(Ordering::Relaxed), 0);
        assert_eq!(stage.lane.turn().waiting_count(), 1);
    }

    #[test]
    fn nobody_is_stood_back_for_when_nobody_waits() {
        let stage = Staged::new();
        let mut runner = stage.runner();
        stage.pass(5_000);
        assert_eq!(runner.next_job(), Next::Job(0));
        assert_eq!(stage.yields.load(Ordering::Relaxed), 0);
        assert_eq!(stage.lane.figures().threads[0].yields, 0);
    }
    #[test]
    fn rule_10_several_jobs_an_attach_for_a_millisecond_at_the_most_and_only_while_nobody_waits() {
        let stage = Staged::new();
        let mut runner = stage.runner();
        stage.pass(1_000);
        assert_eq!(runner.next_job(), Next::Job(0));
        stage.pass(999);
        assert_eq!(runner.next_job(), Next::Job(1));
        assert_eq!(stage.kept_alone(), 1);
        stage.pass(1);
        assert_eq!(runner.next_job(), Next::Job(2));
        assert_eq!(stage.kept_alone(), 1, "the lock was held for a millisecond");
        stage.lane.turn().waiting();
        assert_eq!(runner.next_job(), Next::Job(3));
        assert_eq!((stage.kept_alone(), stage.kept()), (1, 0), "somebody waits");
        assert_eq!(stage.lane.figures().threads[0].yields, 1);
    }

    #[test]
    fn a_lone_contender_keeps_the_lock_while_its_jobs_are_short() {
        for (hold_back_s, kept) in [(60, 2), (0, 0)] {
            let hold_back = Duration::from_secs(hold_back_s);
            let policy = Policy { hold_back, ..Policy::default() };
            let turn = Turn::new(true, 1, &Knobs::default());
            let stage = Staged::with(policy, turn);
            let mut runner = stage.runner();
            for job in 0..3 {
                assert_eq!(runner.next_job(), Next::Job(job));
                stage.lane.completed(ThreadIndex(0));
            }
            assert_eq!((stage.kept_alone(), stage.kept()), (kept, 0));
        }
    }
    #[test]
    fn a_thread_that_waits_inside_a_job_says_when_it_wants_the_lock_back() {
        let stage = Staged::new();
        let turn = stage.lane.turn();
        let snapshot = turn.snapshot();
        assert_eq!(turn.detached(&&stage, || turn.waiting_count()), 0);
        assert_eq!(stage.waiting_at_acquire.load(Ordering::Relaxed), 1);
        assert_eq!((turn.waiting_count(), turn.snapshot() - snapshot), (0, 1));
    }
    #[test]
    fn a_pill_is_no_job_that_was_kept() {
        let stage = Staged::new();
        let mut runner = stage.runner();
        stage.lane.stop();
        (0..16).for_each(|job| assert_eq!(runner.next_job(), Next::Job(job)));
        assert_eq!((runner.next_job(), stage.kept()), (Next::Stop, 16));
    }
}
