//! The job ring and its threads: announce, re-check, block; push, read the announcement, wake.
//!
//! ```text
//! thread: announce PARKED, parked += 1 · fence · pop again, pill again · block on its own word
//! reactor: push · fence · read spinners, parked · wake the thread that parked last, by name
//! ```
//! Whoever moves a thread's word off PARKED first owns the transition and takes it off the parked
//! count, so a burst into a parked lane wakes one thread and no wake is left over for later. A job wakes
//! a thread only if all of them show the word: one on its way to or from it looks at the ring itself. A
//! spinner goes to park when it has found nothing, so a push that relied on it is found by the
//! parking's second look.

use std::time::{Duration, Instant};

use super::figures::{Count, LaneFigures, ThreadCounts};
use super::held::Held;
use super::knobs::Knobs;
use super::spin;
use super::turn::Turn;
use crate::clock;
use crate::exchange::Completions;
use crate::limits::{HOLD_BACK, POOL_SPIN, POOL_SPIN_ALL};
use crate::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Ordering, Padded, Parker, Queue, fence,
};

const RUNNING: u32 = 0;
const PARKED: u32 = 1;
const WOKEN: u32 = 2;

/// Names a thread of a lane: 0 to `thread_count - 1`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ThreadIndex(pub usize);

/// What a thread does next.
#[derive(Debug, Eq, PartialEq)]
pub enum Next<J> {
    /// Run this.
    Job(J),
    /// Leave: the lane is stopping.
    Stop,
}

/// One thread: what wakers look at, and what only it writes.
#[derive(Debug)]
struct Thread {
    sleep: Padded<Sleep>,
    own: Padded<Own>,
}

#[derive(Debug)]
struct Sleep {
    parker: Parker,
    /// When it parked, in the lane's count of parkings: the highest parked last and is warmest.
    park_sequence: AtomicU64,
    pill: AtomicBool,
}

#[derive(Debug)]
struct Own {
    held: Held,
    counts: ThreadCounts,
}

impl Thread {
    fn new(timed: bool) -> Self {
        let sleep = Sleep {
            parker: Parker::new(RUNNING),
            park_sequence: AtomicU64::new(0),
            pill: AtomicBool::new(false),
        };
        let own = Own { held: Held::default(), counts: ThreadCounts::new(timed) };
        Self { sleep: Padded(sleep), own: Padded(own) }
    }

    fn parker(&self) -> &Parker {
        &self.sleep.0.parker
    }

    fn counts(&self) -> &ThreadCounts {
        &self.own.0.counts
    }

    fn held(&self) -> &Held {
        &self.own.0.held
    }
}

/// What only the thread that submits writes.
#[derive(Debug, Default)]
struct Submitter {
    pushes: Count,
    idle_wakes: Count,
    aged_wakes: Count,
}

/// When an idle thread spins and when a job wakes a parked one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Policy {
    /// At most one idle thread spins, and a job wakes nobody while a thread is awake. Otherwise every
    /// idle thread spins and every job wakes a parked thread.
    pub elastic: bool,
    /// Every job wakes a parked thread: without an interpreter lock that is a core that idles.
    pub parallel: bool,
    /// How long an idle thread looks at the ring before it parks.
    pub spin: Duration,
    /// How long jobs may take, in all, whose answers share a wake of the reactor.
    pub hold_back: Duration,
    /// Times are taken, see `figures`.
    pub timed: bool,
}

impl Policy {
    /// What the knobs and the machine make of it. `free_threaded`: there is no interpreter lock.
    #[must_use]
    pub fn new(knobs: &Knobs, free_threaded: bool, cpu_count: usize) -> Self {
        let usual = if knobs.elastic { POOL_SPIN } else { POOL_SPIN_ALL };
        let spin = knobs.spin.unwrap_or(usual);
        Self {
            elastic: knobs.elastic,
            parallel: knobs.parallel.unwrap_or(free_threaded),
            // On one CPU a spin burns the very core that the producer needs.
            spin: if cpu_count > 1 { spin } else { Duration::ZERO },
            hold_back: HOLD_BACK,
            timed: knobs.debug,
        }
    }

    fn every_job_wakes(&self) -> bool {
        self.parallel || !self.elastic
    }
}

impl Default for Policy {
    /// Elastic, without spin and without times.
    fn default() -> Self {
        Self {
            elastic: true,
            parallel: false,
            spin: Duration::ZERO,
            hold_back: HOLD_BACK,
            timed: false,
        }
    }
}

#[derive(Debug)]
struct Entry<J> {
    job: J,
    is_request: bool,
    /// In a timed lane.
    pushed: Option<Instant>,
}

/// One pool of threads and the bounded ring of jobs they take from.
#[derive(Debug)]
pub struct Lane<J> {
    jobs: Queue<Entry<J>>,
    threads: Box<[Thread]>,
    parked: Padded<AtomicUsize>,
    spinners: Padded<AtomicUsize>,
    parkings: Padded<AtomicU64>,
    completions: Arc<Completions>,
    policy: Policy,
    turn: Arc<Turn>,
    epoch: Instant,
    submitter: Padded<Submitter>,
}

impl<J> Lane<J> {
    /// A lane of `thread_count` threads, registered here before any of them exists, and a ring of
    /// `capacity` jobs, with the default policy and without a turn.
    #[must_use]
    pub fn new(thread_count: usize, capacity: usize, completions: Arc<Completions>) -> Self {
        let turn = Arc::new(Turn::off());
        Self::with_policy(thread_count, capacity, completions, Policy::default(), turn)
    }

    /// The same with a policy and the turn of the interpreter that its threads run.
    #[must_use]
    pub fn with_policy(
        thread_count: usize,
        capacity: usize,
        completions: Arc<Completions>,
        policy: Policy,
        turn: Arc<Turn>,
    ) -> Self {
        Self {
            jobs: Queue::new(capacity.max(1)),
            threads: (0..thread_count).map(|_| Thread::new(policy.timed)).collect(),
            parked: Padded(AtomicUsize::new(0)),
            spinners: Padded(AtomicUsize::new(0)),
            parkings: Padded(AtomicU64::new(0)),
            completions,
            policy,
            turn,
            epoch: clock::now(),
            submitter: Padded::default(),
        }
    }

    /// What its threads have in common with everybody who wants the interpreter lock.
    #[must_use]
    pub fn turn(&self) -> &Arc<Turn> {
        &self.turn
    }

    /// The policy that it was made with.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// What it counted and timed since its start.
    #[must_use]
    pub fn figures(&self) -> LaneFigures {
        LaneFigures {
            threads: self.threads.iter().map(|thread| thread.counts().snapshot()).collect(),
            idle_wakes: self.submitter.0.idle_wakes.get(),
            aged_wakes: self.submitter.0.aged_wakes.get(),
        }
    }

    pub(super) fn counts(&self, index: ThreadIndex) -> &ThreadCounts {
        self.threads[index.0].counts()
    }

    /// How many threads the lane has.
    #[must_use]
    pub fn thread_count(&self) -> usize {
        self.threads.len()
    }

    /// How many threads are blocked for want of work.
    #[must_use]
    pub fn parked_count(&self) -> usize {
        self.parked.0.load(Ordering::Relaxed)
    }

    /// How many jobs wait in the ring.
    #[must_use]
    pub fn waiting_count(&self) -> usize {
        self.jobs.len()
    }

    /// How many jobs were taken since the start, the sign of progress: those that were pushed and wait
    /// no more. Who does not submit may be told less.
    #[must_use]
    pub fn pop_count(&self) -> u64 {
        self.progress().1
    }

    /// [`Lane::waiting_count`] and [`Lane::pop_count`] of one moment.
    pub(crate) fn progress(&self) -> (usize, u64) {
        let waiting = self.jobs.len();
        (waiting, self.submitter.0.pushes.get().saturating_sub(waiting as u64))
    }

    /// Puts a job on the ring. Whom it wakes is up to [`Lane::wake_for_work`], unless the policy says
    /// that every job wakes a thread.
    ///
    /// # Errors
    /// The ring is full; the job comes back.
    pub fn submit(&self, job: J) -> Result<(), J> {
        self.push(job, true)
    }

    /// The same for what is no request: the figures do not count it.
    ///
    /// # Errors
    /// The ring is full; the job comes back.
    pub fn submit_errand(&self, job: J) -> Result<(), J> {
        self.push(job, false)
    }

    fn push(&self, job: J, is_request: bool) -> Result<(), J> {
        let pushed = self.policy.timed.then(clock::now);
        self.jobs.push(Entry { job, is_request, pushed }).map_err(|entry| entry.job)?;
        self.submitter.0.pushes.add_one();
        if self.policy.every_job_wakes() {
            fence(Ordering::SeqCst);
            if self.parked.0.load(Ordering::SeqCst) > 0 && self.wake_one() {
                self.submitter.0.idle_wakes.add_one();
            }
        }
        Ok(())
    }

    /// After submits: wakes one thread if every thread is parked. A thread that is awake comes back
    /// to the ring sooner than a wake lands, a spinner sees the job by itself; a thread that does not
    /// come back is found by [`super::AgeWatch`].
    pub fn wake_for_work(&self) {
        if self.policy.every_job_wakes() {
            return;
        }
        fence(Ordering::SeqCst);
        if self.spinners.0.load(Ordering::SeqCst) == 0
            && self.parked.0.load(Ordering::SeqCst) >= self.threads.len()
            && self.wake_if_all_parked()
        {
            self.submitter.0.idle_wakes.add_one();
        }
    }

    /// The count runs ahead of the words: a thread counts itself before it shows itself, and takes
    /// itself off after. One that does not show itself parked is awake and looks at the ring, also if
    /// it is found out only by the attempt to wake it; then no colder one is woken in its place.
    fn wake_if_all_parked(&self) -> bool {
        let (count, latest) = self.parked_threads();
        count == self.threads.len() && latest.is_some_and(|thread| self.wake(thread))
    }

    /// For a ring that does not move: wakes the thread that parked last. False: none is parked.
    pub fn wake_aged(&self) -> bool {
        let is_woken = self.wake_one();
        if is_woken {
            self.submitter.0.aged_wakes.add_one();
        }
        is_woken
    }

    /// Wakes the thread that parked last. False: none is parked.
    pub fn wake_one(&self) -> bool {
        while let (_, Some(thread)) = self.parked_threads() {
            if self.wake(thread) {
                return true;
            }
        }
        false
    }

    /// How many threads show themselves parked, and which of them parked last.
    fn parked_threads(&self) -> (usize, Option<&Thread>) {
        let is_parked = |thread: &&Thread| thread.parker().word().load(Ordering::SeqCst) == PARKED;
        let mut count = 0;
        let parked = self.threads.iter().filter(is_parked);
        let latest = parked
            .inspect(|_| count += 1)
            .max_by_key(|thread| thread.sleep.0.park_sequence.load(Ordering::SeqCst));
        (count, latest)
    }

    /// False: somebody else, or it itself, was first.
    fn wake(&self, thread: &Thread) -> bool {
        let is_ours = self.unpark(thread, WOKEN);
        if is_ours {
            thread.parker().unblock();
        }
        is_ours
    }

    /// Moves a thread off PARKED and takes it off the count; false if somebody else did.
    fn unpark(&self, thread: &Thread, to: u32) -> bool {
        let moved =
            thread.parker().word().compare_exchange(PARKED, to, Ordering::SeqCst, Ordering::SeqCst);
        if moved.is_ok() {
            self.parked.0.fetch_sub(1, Ordering::SeqCst);
        }
        moved.is_ok()
    }

    /// Takes a job, or the pill of an empty ring, without waiting: what a thread may do that holds the
    /// interpreter lock. **Panics** if `index` is not a thread of this lane.
    pub fn try_next_job(&self, index: ThreadIndex) -> Option<Next<J>> {
        let thread = &self.threads[index.0];
        let next = self.take(thread)?;
        if !self.jobs.is_empty() {
            thread.held().begin(self.epoch);
        } else if thread.held().is_any() {
            // No job is left behind this one, so nothing brings the reactor back by itself.
            self.flush(thread);
        }
        Some(next)
    }

    /// Takes a job, waiting for one. A thread's pill is read only when the ring is empty: what was
    /// accepted is answered. **Panics** if `index` is not a thread of this lane.
    pub fn next_job(&self, index: ThreadIndex) -> Next<J> {
        let thread = &self.threads[index.0];
        if let Some(next) = self.try_next_job(index) {
            return next;
        }
        self.flush(thread);
        if let Some(next) = self.spin(thread) {
            return next;
        }
        loop {
            if let Some(next) = self.park(thread) {
                return next;
            }
            if let Some(next) = self.take(thread) {
                return next;
            }
        }
    }

    /// Looks at the ring for the spin's length, if no sibling does. Ends in a job or on the way to
    /// parking, never in between.
    fn spin(&self, thread: &Thread) -> Option<Next<J>> {
        if self.policy.spin.is_zero() || !self.become_spinner() {
            return None;
        }
        let found = spin::until(self.policy.spin, || self.take(thread));
        self.spinners.0.fetch_sub(1, Ordering::SeqCst);
        found
    }

    fn become_spinner(&self) -> bool {
        let spinners = &self.spinners.0;
        if self.policy.elastic {
            spinners.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        } else {
            spinners.fetch_add(1, Ordering::SeqCst);
            true
        }
    }

    /// Announces, looks again, blocks. `None`: woken.
    fn park(&self, thread: &Thread) -> Option<Next<J>> {
        let sequence = self.parkings.0.fetch_add(1, Ordering::SeqCst) + 1;
        thread.sleep.0.park_sequence.store(sequence, Ordering::SeqCst);
        self.parked.0.fetch_add(1, Ordering::SeqCst);
        thread.parker().word().store(PARKED, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let next = self.take(thread);
        if next.is_none() {
            thread.parker().block_while(PARKED);
        } else if self.unpark(thread, RUNNING) {
            return next;
        }
        // Somebody's wake has taken us off the count, also if it came before we blocked.
        thread.parker().word().store(RUNNING, Ordering::SeqCst);
        next
    }

    fn take(&self, thread: &Thread) -> Option<Next<J>> {
        if let Some(job) = self.pop(thread) {
            return Some(Next::Job(job));
        }
        // Jobs precede pills, but the look above may have come before both: look again, or the last
        // job stays on the ring (the model found this).
        let stopping = thread.sleep.0.pill.load(Ordering::SeqCst);
        stopping.then(|| self.pop(thread).map_or(Next::Stop, Next::Job))
    }

    fn pop(&self, thread: &Thread) -> Option<J> {
        let Entry { job, is_request, pushed } = self.jobs.pop()?;
        if !is_request {
            return Some(job);
        }
        thread.counts().jobs.add_one();
        if let (Some(times), Some(pushed)) = (&thread.counts().times, pushed) {
            times.ring_wait.record(clock::now().saturating_duration_since(pushed));
        }
        Some(job)
    }

    /// After a job whose output was pushed quietly: wakes a sleeping reactor, or holds the wake back
    /// while jobs wait behind this one and those since the last wake were short, so that no answer
    /// waits long for others. What is held back is flushed before the last job on the ring runs and
    /// before the thread waits; behind a job that turns out to be long it is found by the reactor, which
    /// does not sleep past the ageing limit while the ring holds a job, or says that it does.
    pub fn completed(&self, index: ThreadIndex) {
        let thread = &self.threads[index.0];
        thread.counts().completions.add_one();
        thread.held().add();
        if self.jobs.is_empty() {
            self.flush(thread);
        } else if !thread.held().goes_on(self.epoch, self.policy.hold_back)
            || self.completions.sleeps_until_woken()
        {
            self.wake_reactor(thread);
        }
    }

    /// Makes the wake that the thread holds back: before it waits for others. **Panics** if `index`
    /// is not a thread of this lane.
    pub(super) fn flush_held_back(&self, index: ThreadIndex) {
        self.flush(&self.threads[index.0]);
    }

    /// Whether the thread holds a wake back: its last jobs were short and more wait.
    pub(super) fn holds_back(&self, index: ThreadIndex) -> bool {
        self.threads[index.0].held().is_any()
    }

    fn flush(&self, thread: &Thread) {
        thread.held().end();
        self.wake_reactor(thread);
    }

    fn wake_reactor(&self, thread: &Thread) {
        if thread.held().take() && self.completions.wake_if_parked() {
            thread.counts().pokes.add_one();
        }
    }

    /// Whether a wake is on its way to the thread.
    #[cfg(all(test, loom))]
    pub(super) fn is_woken(&self, index: ThreadIndex) -> bool {
        self.threads[index.0].parker().word().load(Ordering::SeqCst) == WOKEN
    }

    /// Gives every thread its pill and wakes all of them: each leaves when the ring is empty.
    pub fn stop(&self) {
        for thread in &self.threads {
            thread.sleep.0.pill.store(true, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        while self.wake_one() {}
    }
}
