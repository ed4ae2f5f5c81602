//! When the next request may be sent, and when there is none left.
//!
//! A *closed* loop sends as soon as a connection is free. An *open* loop releases requests at a
//! fixed rate whether or not the server keeps up, and measures latency from the moment a request
//! was due, so that a stall is charged to every request it delays.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::task::{Poll, Waker};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio_uring::fs::File;

use crate::clock::Stopwatch;

/// How much a run sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Limit {
    /// This many requests.
    Requests(u64),
    /// For this long.
    Time(Duration),
}

/// Requests that one connection may send now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Batch {
    /// At least one.
    pub(crate) requests: u32,
    /// When they were due, in nanoseconds of the run; latency counts from here.
    pub(crate) due_nanos: u64,
}

/// Hands out requests to the connections of one thread.
#[derive(Debug)]
pub(crate) struct Pace {
    stopwatch: Stopwatch,
    /// Requests not handed out yet; `u64::MAX` when only time limits the run.
    left: Cell<u64>,
    /// When the run stops sending, in nanoseconds of the run.
    deadline_nanos: u64,
    open: Option<OpenLoop>,
}

#[derive(Debug)]
struct OpenLoop {
    requests_per_second: u64,
    released: Cell<u64>,
    taken: Cell<u64>,
    closed: Cell<bool>,
    idle: RefCell<VecDeque<Waker>>,
}

/// The shortest time between two releases. **Why**: below it the client's own wake-ups cost more
/// than the requests; at 20 000 requests a second and less each still gets its own release.
const RELEASE_NANOS_MIN: u64 = 50_000;

impl Pace {
    /// A pace that starts with the stopwatch; `rate` in requests a second makes it an open loop.
    pub(crate) fn new(stopwatch: Stopwatch, limit: Limit, rate: Option<u64>) -> Self {
        let (left, deadline_nanos) = match limit {
            Limit::Requests(requests) => (requests, u64::MAX),
            Limit::Time(time) => (u64::MAX, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        };
        let open = rate.map(|requests_per_second| OpenLoop {
            requests_per_second,
            released: Cell::new(0),
            taken: Cell::new(0),
            closed: Cell::new(false),
            idle: RefCell::new(VecDeque::new()),
        });
        Self { stopwatch, left: Cell::new(left), deadline_nanos, open }
    }

    /// Waits until at most `wanted` requests may be sent; `None` when the run sends no more.
    pub(crate) async fn take(&self, wanted: u32) -> Option<Batch> {
        match &self.open {
            None => self.take_now(wanted),
            Some(open) => {
                let due_nanos = poll_fn(|context| open.poll_take(context.waker())).await?;
                Some(Batch { requests: 1, due_nanos })
            }
        }
    }

    fn take_now(&self, wanted: u32) -> Option<Batch> {
        let now = self.stopwatch.nanos();
        let left = self.left.get();
        let requests = wanted.min(u32::try_from(left).unwrap_or(u32::MAX));
        if requests == 0 || now >= self.deadline_nanos {
            return None;
        }
        if left != u64::MAX {
            self.left.set(left - u64::from(requests));
        }
        Some(Batch { requests, due_nanos: now })
    }

    /// Releases requests on time until the run's limit; returns at once in a closed loop.
    ///
    /// **Errors**: the kernel refuses a timer.
    pub(crate) async fn release(&self) -> io::Result<()> {
        let Some(open) = &self.open else { return Ok(()) };
        let timer = Timer::every(open.release_nanos())?;
        let mut expiries = Vec::with_capacity(EXPIRIES_BYTES);
        loop {
            expiries = timer.expired(expiries).await?;
            let now = self.stopwatch.nanos();
            let due = open.due_by(now.min(self.deadline_nanos.saturating_sub(1)));
            open.release_up_to(due.min(self.left.get()));
            if now >= self.deadline_nanos || due >= self.left.get() {
                open.close();
                return Ok(());
            }
        }
    }

    /// Whether nothing will be handed out any more: no reason to connect again.
    pub(crate) fn is_over(&self) -> bool {
        match &self.open {
            None => self.left.get() == 0 || self.stopwatch.nanos() >= self.deadline_nanos,
            Some(open) => open.closed.get() && open.taken.get() == open.released.get(),
        }
    }

    /// Requests that were never handed out: the rest of a count, or what an open loop's connections
    /// were too busy to send. Asked after the run.
    pub(crate) fn unsent(&self) -> u64 {
        match (&self.open, self.left.get()) {
            (None, u64::MAX) => 0,
            (None, left) => left,
            (Some(open), u64::MAX) => open.released.get() - open.taken.get(),
            (Some(open), requests) => requests - open.taken.get(),
        }
    }
}

impl OpenLoop {
    fn release_nanos(&self) -> u64 {
        (NANOS_PER_SECOND / self.requests_per_second).max(RELEASE_NANOS_MIN)
    }

    /// How many requests are due at this moment of the run; the first is due at zero.
    fn due_by(&self, nanos: u64) -> u64 {
        let whole = u128::from(nanos) * u128::from(self.requests_per_second);
        u64::try_from(whole / u128::from(NANOS_PER_SECOND) + 1).unwrap_or(u64::MAX)
    }

    fn due_nanos(&self, index: u64) -> u64 {
        let whole = u128::from(index) * u128::from(NANOS_PER_SECOND);
        u64::try_from(whole / u128::from(self.requests_per_second)).unwrap_or(u64::MAX)
    }

    fn release_up_to(&self, due: u64) {
        let released = self.released.get();
        if due > released {
            self.released.set(due);
            let released = usize::try_from(due - released).unwrap_or(usize::MAX);
            let mut idle = self.idle.borrow_mut();
            let woken = idle.len().min(released);
            idle.drain(..woken).for_each(Waker::wake);
        }
    }

    fn close(&self) {
        self.closed.set(true);
        self.idle.take().into_iter().for_each(Waker::wake);
    }

    /// A late request is still taken after the close: only idle connections end.
    fn poll_take(&self, waker: &Waker) -> Poll<Option<u64>> {
        let index = self.taken.get();
        if index < self.released.get() {
            self.taken.set(index + 1);
            return Poll::Ready(Some(self.due_nanos(index)));
        }
        if self.closed.get() {
            return Poll::Ready(None);
        }
        self.idle.borrow_mut().push_back(waker.clone());
        Poll::Pending
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// A periodic timer, finer than the runtime's own, which counts milliseconds. Read through the ring.
struct Timer {
    file: File,
}

impl Timer {
    fn every(nanos: u64) -> io::Result<Self> {
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        let period = Timespec {
            tv_sec: i64::try_from(nanos / NANOS_PER_SECOND).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(nanos % NANOS_PER_SECOND).unwrap_or(0),
        };
        let setting = Itimerspec { it_interval: period, it_value: period };
        timerfd_settime(&descriptor, TimerfdTimerFlags::empty(), &setting)?;
        Ok(Self { file: File::from_std(descriptor.into()) })
    }

    /// Waits for the next expiry; several missed ones count as one. Returns the buffer.
    async fn expired(&self, count: Vec<u8>) -> io::Result<Vec<u8>> {
        let (read, count) = self.file.read_at(count, 0).await;
        read.map(|_| count)
    }
}

/// A timer's read returns the number of its expiries. **Source**: timerfd_create(2).
const EXPIRIES_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    fn closed(limit: Limit) -> Pace {
        Pace::new(Stopwatch::start(), limit, None)
    }

    fn open(limit: Limit, rate: u64) -> Pace {
        Pace::new(Stopwatch::start(), limit, Some(rate))
    }

    #[test]
    fn a_closed_loop_hands_out_exactly_its_count() {
        let pace = closed(Limit::Requests(10));
        let taken: Vec<u32> =
            std::iter::from_fn(|| pace.take_now(4)).map(|batch| batch.requests).collect();
        assert_eq!(taken, [4, 4, 2]);
        assert!(pace.is_over());
        assert_eq!(pace.unsent(), 0);
    }

    #[test]
    fn a_closed_loop_ends_with_its_time() {
        let pace = closed(Limit::Time(Duration::ZERO));
        assert_eq!(pace.take_now(1), None);
        assert_eq!(pace.unsent(), 0);
        assert!(closed(Limit::Time(Duration::from_secs(3600))).take_now(1).is_some());
    }

    #[test]
    fn an_open_loop_keeps_its_schedule() {
        let pace = open(Limit::Requests(5), 1000);
        let open = pace.open.as_ref().expect("open");
        assert_eq!((open.due_by(0), open.due_by(999_999), open.due_by(1_000_000)), (1, 1, 2));
        open.release_up_to(2);
        let waker = Waker::noop();
        assert_eq!(open.poll_take(waker), Poll::Ready(Some(0)));
        assert_eq!(open.poll_take(waker), Poll::Ready(Some(1_000_000)));
        assert_eq!(open.poll_take(waker), Poll::Pending);
        open.release_up_to(4);
        open.close();
        assert_eq!(open.poll_take(waker), Poll::Ready(Some(2_000_000)));
        assert_eq!(pace.unsent(), 2);
        assert!(!pace.is_over());
        assert_eq!(open.poll_take(waker), Poll::Ready(Some(3_000_000)));
        assert_eq!(open.poll_take(waker), Poll::Ready(None));
        assert_eq!(pace.unsent(), 1);
        assert!(pace.is_over());
    }

    #[test]
    fn a_release_wakes_no_more_than_it_releases_and_forgets_nobody() {
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let pace = open(Limit::Requests(10), 1000);
        let open = pace.open.as_ref().expect("open");
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        for _ in 0..5 {
            assert_eq!(open.poll_take(&waker), Poll::Pending);
        }
        open.release_up_to(2);
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        open.close();
        assert_eq!(count.0.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn releases_are_never_finer_than_the_bound() {
        let released = |rate| open(Limit::Requests(1), rate).open.expect("open").release_nanos();
        assert_eq!(released(1), NANOS_PER_SECOND);
        assert_eq!(released(20_000), RELEASE_NANOS_MIN);
        assert_eq!(released(1_000_000), RELEASE_NANOS_MIN);
    }
}
