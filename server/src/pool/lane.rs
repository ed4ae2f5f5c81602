//! The job ring and its threads: announce, re-check, block; push, read the announcement, wake.
//!
//! ```text
//! thread: announce PARKED, parked += 1 · fence · pop again, pill again · block on its own word
//! reactor: push · fence · read parked · wake the thread that parked last, by name
//! ```
//! Whoever moves a thread's word off PARKED first owns the transition and takes it off the parked
//! count, so a burst into a parked lane wakes one thread and no wake is left over for later.

use crate::exchange::Completions;
use crate::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Ordering, Padded, Parker, Queue, fence,
};

/// Completions a thread may hold back from a sleeping reactor while more jobs wait behind them.
const DEFERRED_WAKES_MAX: usize = 64;

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

#[derive(Debug)]
struct Thread {
    parker: Parker,
    /// When it parked, in the lane's count of parkings: the highest parked last and is warmest.
    park_sequence: AtomicU64,
    pill: AtomicBool,
    /// Completions pushed without a wake since the last one. Only its own thread writes it.
    deferred: AtomicUsize,
}

/// One pool of threads and the bounded ring of jobs they take from.
#[derive(Debug)]
pub struct Lane<J> {
    jobs: Queue<J>,
    threads: Box<[Padded<Thread>]>,
    parked: Padded<AtomicUsize>,
    parkings: Padded<AtomicU64>,
    pops: Padded<AtomicU64>,
    completions: Arc<Completions>,
}

impl<J> Lane<J> {
    /// A lane of `thread_count` threads, registered here before any of them exists, and a ring of
    /// `capacity` jobs.
    #[must_use]
    pub fn new(thread_count: usize, capacity: usize, completions: Arc<Completions>) -> Self {
        let thread = |_| {
            Padded(Thread {
                parker: Parker::new(RUNNING),
                park_sequence: AtomicU64::new(0),
                pill: AtomicBool::new(false),
                deferred: AtomicUsize::new(0),
            })
        };
        Self {
            jobs: Queue::new(capacity.max(1)),
            threads: (0..thread_count).map(thread).collect(),
            parked: Padded(AtomicUsize::new(0)),
            parkings: Padded(AtomicU64::new(0)),
            pops: Padded(AtomicU64::new(0)),
            completions,
        }
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

    /// How many jobs were taken since the start: the sign of progress.
    #[must_use]
    pub fn pop_count(&self) -> u64 {
        self.pops.0.load(Ordering::Relaxed)
    }

    /// Puts a job on the ring and wakes nobody: see [`Lane::wake_for_work`].
    ///
    /// # Errors
    /// The ring is full; the job comes back.
    pub fn submit(&self, job: J) -> Result<(), J> {
        self.jobs.push(job)
    }

    /// After submits: wakes one thread if every thread is parked. A thread that is awake comes back
    /// to the ring sooner than a wake lands; one that does not is found by [`super::AgeWatch`].
    pub fn wake_for_work(&self) {
        fence(Ordering::SeqCst);
        if self.parked.0.load(Ordering::SeqCst) >= self.threads.len() {
            self.wake_one();
        }
    }

    /// Wakes the thread that parked last. False: none is parked.
    pub fn wake_one(&self) -> bool {
        loop {
            let mut chosen: Option<(u64, &Thread)> = None;
            for Padded(thread) in &self.threads {
                if thread.parker.word().load(Ordering::SeqCst) == PARKED {
                    let sequence = thread.park_sequence.load(Ordering::SeqCst);
                    if chosen.is_none_or(|(highest, _)| sequence > highest) {
                        chosen = Some((sequence, thread));
                    }
                }
            }
            let Some((_, thread)) = chosen else { return false };
            if self.unpark(thread, WOKEN) {
                thread.parker.unblock();
                return true;
            }
        }
    }

    /// Moves a thread off PARKED and takes it off the count; false if somebody else did.
    fn unpark(&self, thread: &Thread, to: u32) -> bool {
        let moved =
            thread.parker.word().compare_exchange(PARKED, to, Ordering::SeqCst, Ordering::SeqCst);
        if moved.is_ok() {
            self.parked.0.fetch_sub(1, Ordering::SeqCst);
        }
        moved.is_ok()
    }

    /// Takes a job without waiting; a pill is for [`Lane::next_job`].
    pub fn try_next_job(&self) -> Option<J> {
        let job = self.jobs.pop()?;
        self.pops.0.fetch_add(1, Ordering::Relaxed);
        Some(job)
    }

    /// Takes a job, waiting for one. A thread's pill is read only when the ring is empty: what was
    /// accepted is answered. **Panics** if `index` is not a thread of this lane.
    pub fn next_job(&self, index: ThreadIndex) -> Next<J> {
        let Padded(thread) = &self.threads[index.0];
        loop {
            if let Some(next) = self.take(thread) {
                if self.jobs.is_empty() {
                    // No job is left behind this one, so nothing brings the reactor back by itself.
                    self.flush(thread);
                }
                return next;
            }
            self.flush(thread);
            let sequence = self.parkings.0.fetch_add(1, Ordering::SeqCst) + 1;
            thread.park_sequence.store(sequence, Ordering::SeqCst);
            self.parked.0.fetch_add(1, Ordering::SeqCst);
            thread.parker.word().store(PARKED, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if let Some(next) = self.take(thread) {
                if !self.unpark(thread, RUNNING) {
                    // Somebody's wake came first and is spent on us: we are awake.
                    thread.parker.word().store(RUNNING, Ordering::SeqCst);
                }
                return next;
            }
            thread.parker.block_while(PARKED);
            thread.parker.word().store(RUNNING, Ordering::SeqCst);
        }
    }

    fn take(&self, thread: &Thread) -> Option<Next<J>> {
        if let Some(job) = self.try_next_job() {
            return Some(Next::Job(job));
        }
        // Jobs precede pills, but the look above may have come before both: look again, or the last
        // job stays on the ring (the model found this).
        let stopping = thread.pill.load(Ordering::SeqCst);
        stopping.then(|| self.try_next_job().map_or(Next::Stop, Next::Job))
    }

    /// After a job whose output was pushed quietly: wakes a sleeping reactor, or holds the wake
    /// back while jobs wait behind this one. Held back is bounded by a count, by [`Lane::next_job`]
    /// (the last job on the ring flushes before it runs) and by the reactor, which does not sleep
    /// past the ageing limit while the ring holds a job.
    pub fn completed(&self, index: ThreadIndex) {
        let Padded(thread) = &self.threads[index.0];
        let deferred = thread.deferred.load(Ordering::Relaxed) + 1;
        thread.deferred.store(deferred, Ordering::Relaxed);
        if deferred >= DEFERRED_WAKES_MAX || self.jobs.is_empty() {
            self.flush(thread);
        }
    }

    fn flush(&self, thread: &Thread) {
        if thread.deferred.load(Ordering::Relaxed) > 0 {
            thread.deferred.store(0, Ordering::Relaxed);
            self.completions.wake_if_parked();
        }
    }

    /// Gives every thread its pill and wakes all of them: each leaves when the ring is empty.
    pub fn stop(&self) {
        for Padded(thread) in &self.threads {
            thread.pill.store(true, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        while self.wake_one() {}
    }
}
