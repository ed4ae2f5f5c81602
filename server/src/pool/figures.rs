//! What the pool counts and, when asked, times: for the table of `HOOPSNAKE_POOL_DEBUG=1` and for
//! metrics.
//!
//! A counter has one writer, so it costs a load and a store of a line that only its thread writes.
//! Times cost clock reads and are taken only by a timed lane. None of this orders anything, so the
//! words are std's also under the model checker.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A count with one writer and any number of readers.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Only from the thread that owns it.
    pub(crate) fn add_one(&self) {
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Values below this have a bucket each. **Unit**: a power of two, as its exponent.
const EXACT_BITS: u32 = 3;

/// Buckets of one power of two: a reading is at most an eighth too high.
const BUCKETS_PER_OCTAVE: usize = 1 << EXACT_BITS;

/// 2^42 ns are 73 minutes.
const OCTAVES: usize = 40;

const BUCKET_COUNT: usize = BUCKETS_PER_OCTAVE * OCTAVES;

/// Times of one thread, in buckets that grow with the value.
#[derive(Debug)]
pub(super) struct Histogram {
    buckets: [Count; BUCKET_COUNT],
    max_ns: AtomicU64,
}

impl Histogram {
    fn new() -> Self {
        Self { buckets: std::array::from_fn(|_| Count::default()), max_ns: AtomicU64::new(0) }
    }

    /// Only from the thread that owns it.
    pub(super) fn record(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket_of(ns)].add_one();
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    fn summary(&self) -> Summary {
        let counts = self.buckets.each_ref().map(Count::get);
        let count: u64 = counts.iter().sum();
        let max = Duration::from_nanos(self.max_ns.load(Ordering::Relaxed));
        let quantile = |per_mille: u64| {
            let rank = (count * per_mille).div_ceil(1_000).max(1);
            let mut seen = 0;
            let bucket = counts.iter().position(|bucket| {
                seen += bucket;
                seen >= rank
            });
            bucket.map_or(Duration::ZERO, |index| Duration::from_nanos(upper_of(index)).min(max))
        };
        Summary { count, p50: quantile(500), p99: quantile(990), p999: quantile(999), max }
    }
}

fn bucket_of(ns: u64) -> usize {
    let exponent = (u64::BITS - ns.leading_zeros()).saturating_sub(EXACT_BITS + 1);
    let within = (ns >> exponent) as usize;
    // Within the first two octaves the exponent is zero and the value is the bucket.
    (exponent as usize * BUCKETS_PER_OCTAVE + within).min(BUCKET_COUNT - 1)
}

/// The largest value of a bucket.
fn upper_of(bucket: usize) -> u64 {
    let exponent = (bucket / BUCKETS_PER_OCTAVE).saturating_sub(1);
    let within = (bucket - exponent * BUCKETS_PER_OCTAVE) as u64;
    ((within + 1) << exponent) - 1
}

/// What one thread writes about itself.
#[derive(Debug, Default)]
pub(super) struct ThreadCounts {
    pub(super) jobs: Count,
    pub(super) kept: Count,
    pub(super) kept_alone: Count,
    pub(super) drops_in_slice: Count,
    pub(super) yields: Count,
    pub(super) completions: Count,
    pub(super) pokes: Count,
    /// Only of a timed lane.
    pub(super) times: Option<Box<Times>>,
}

/// What one thread times about itself.
#[derive(Debug)]
pub(super) struct Times {
    pub(super) ring_wait: Histogram,
    pub(super) lock_wait: Histogram,
    pub(super) service: Histogram,
}

impl ThreadCounts {
    pub(super) fn new(timed: bool) -> Self {
        let times = || {
            Box::new(Times {
                ring_wait: Histogram::new(),
                lock_wait: Histogram::new(),
                service: Histogram::new(),
            })
        };
        Self { times: timed.then(times), ..Self::default() }
    }

    pub(super) fn snapshot(&self) -> ThreadFigures {
        let times = |times: &Times| TimeFigures {
            ring_wait: times.ring_wait.summary(),
            lock_wait: times.lock_wait.summary(),
            service: times.service.summary(),
        };
        ThreadFigures {
            jobs: self.jobs.get(),
            kept: self.kept.get(),
            kept_alone: self.kept_alone.get(),
            drops_in_slice: self.drops_in_slice.get(),
            yields: self.yields.get(),
            completions: self.completions.get(),
            pokes: self.pokes.get(),
            times: self.times.as_deref().map(times),
        }
    }
}

/// The bounds of [`ReactorFigures::long_passes`]. **Unit**: milliseconds.
pub const LONG_PASS_MS: [u64; 4] = [1, 2, 4, 8];

/// What the reactor writes about itself.
#[derive(Debug, Default)]
pub struct ReactorCounts {
    timed: bool,
    waits: Count,
    long_passes: [Count; LONG_PASS_MS.len()],
}

impl ReactorCounts {
    /// `timed`: the reactor reads the clock once more a pass.
    #[must_use]
    pub fn new(timed: bool) -> Self {
        Self { timed, ..Self::default() }
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.timed
    }

    pub(crate) fn waited(&self) {
        self.waits.add_one();
    }

    /// From the end of one wait to the begin of the next.
    pub(crate) fn pass_took(&self, time: Duration) {
        for (limit, count) in LONG_PASS_MS.iter().zip(&self.long_passes) {
            if time > Duration::from_millis(*limit) {
                count.add_one();
            }
        }
    }

    /// `pokes`: wakes that producers sent; the completions that needed none are the lane's to know.
    #[must_use]
    pub fn figures(&self, pokes: u64, lane: &LaneFigures) -> ReactorFigures {
        let sum = |of: fn(&ThreadFigures) -> u64| lane.threads.iter().map(of).sum::<u64>();
        ReactorFigures {
            waits: self.waits.get(),
            pokes_sent: pokes,
            // The counts are read one after another while their threads go on.
            pokes_skipped: sum(|thread| thread.completions)
                .saturating_sub(sum(|thread| thread.pokes)),
            long_passes: self.timed.then(|| self.long_passes.each_ref().map(Count::get)),
        }
    }
}

/// Times in short. A quantile is at most an eighth too high.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Summary {
    /// How many there are.
    pub count: u64,
    /// Half of them are not longer.
    pub p50: Duration,
    /// 99 of 100 are not longer.
    pub p99: Duration,
    /// 999 of 1000 are not longer.
    pub p999: Duration,
    /// The longest.
    pub max: Duration,
}

/// One thread's figures since its start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ThreadFigures {
    /// Requests taken.
    pub jobs: u64,
    /// Of them, taken inside a slice without letting go of the interpreter lock.
    pub kept: u64,
    /// Of them, taken outside a slice without letting go of it: nobody waited.
    pub kept_alone: u64,
    /// Times that the lock was let go within a slice although the ring held a job: none with the keep
    /// rule on.
    pub drops_in_slice: u64,
    /// Times that the slice was used up and the thread stood back for one that waited.
    pub yields: u64,
    /// Jobs whose last output was pushed.
    pub completions: u64,
    /// Of them, those that woke the reactor.
    pub pokes: u64,
    /// Only of a timed lane.
    pub times: Option<TimeFigures>,
}

/// Where one thread's jobs spent their time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TimeFigures {
    /// From the push to the pop.
    pub ring_wait: Summary,
    /// From the pop to the moment when the thread has the interpreter lock; kept jobs wait for none
    /// and are not counted.
    pub lock_wait: Summary,
    /// From there until the thread asks for its next job.
    pub service: Summary,
}

/// One lane's figures since its start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LaneFigures {
    /// In the order of their index.
    pub threads: Vec<ThreadFigures>,
    /// Parked threads woken because a job was put on the ring.
    pub idle_wakes: u64,
    /// Parked threads woken because the ring did not move.
    pub aged_wakes: u64,
}

/// One reactor's figures since its start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ReactorFigures {
    /// Waits for the kernel.
    pub waits: u64,
    /// Wakes that producers sent to a reactor that slept.
    pub pokes_sent: u64,
    /// Completions that needed none: it was awake, or one wake was for several.
    pub pokes_skipped: u64,
    /// Passes that took longer than [`LONG_PASS_MS`]; `None` where they are not timed.
    pub long_passes: Option<[u64; LONG_PASS_MS.len()]>,
}

/// The figures of one worker's pool as a table.
#[must_use]
pub fn table(lane: &LaneFigures, reactor: &ReactorFigures) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "lane: threads={} idle_wakes={} aged_wakes={}",
        lane.threads.len(),
        lane.idle_wakes,
        lane.aged_wakes
    );
    let _ = write!(
        text,
        "reactor: waits={} pokes_sent={} pokes_skipped={}",
        reactor.waits, reactor.pokes_sent, reactor.pokes_skipped
    );
    for (limit, count) in LONG_PASS_MS.iter().zip(reactor.long_passes.iter().flatten()) {
        let _ = write!(text, " passes_over_{limit}ms={count}");
    }
    text.push('\n');
    for (index, thread) in lane.threads.iter().enumerate() {
        let _ = writeln!(
            text,
            "thread {index}: jobs={} kept={} kept_alone={} drops_in_slice={} yields={}",
            thread.jobs, thread.kept, thread.kept_alone, thread.drops_in_slice, thread.yields
        );
        if let Some(times) = &thread.times
            && thread.jobs > 0
        {
            for (name, summary) in [
                ("ring-wait", times.ring_wait),
                ("GIL-wait", times.lock_wait),
                ("service", times.service),
            ] {
                let _ = writeln!(text, "  {name:<9} {}", row(&summary));
            }
        }
    }
    text
}

fn row(summary: &Summary) -> String {
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    format!(
        "n={:<9} p50={:<9.1} p99={:<9.1} p99.9={:<9.1} max={:.1} us",
        summary.count,
        us(summary.p50),
        us(summary.p99),
        us(summary.p999),
        us(summary.max)
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_bucket_whose_upper_end_is_at_most_an_eighth_above_it() {
        let mut previous = 0;
        for ns in (0..5_000).chain((13..42).map(|bits| (1 << bits) + bits)) {
            let bucket = bucket_of(ns);
            assert!(bucket >= previous, "{ns}");
            previous = bucket;
            let upper = upper_of(bucket);
            assert!(ns <= upper && upper <= ns + ns / 8, "{ns} is in a bucket up to {upper}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKET_COUNT - 1);
    }

    #[test]
    fn a_summary_tells_the_middle_from_the_tail() {
        let histogram = Histogram::new();
        assert_eq!(histogram.summary(), Summary::default());
        for _ in 0..985 {
            histogram.record(Duration::from_micros(10));
        }
        for _ in 0..14 {
            histogram.record(Duration::from_millis(3));
        }
        histogram.record(Duration::from_secs(2));
        let summary = histogram.summary();
        assert_eq!(summary.count, 1_000);
        assert_eq!(summary.p50.as_micros(), 10);
        assert_eq!(summary.p99.as_millis(), 3);
        assert_eq!(summary.p999.as_millis(), 3);
        assert_eq!(summary.max, Duration::from_secs(2));
    }

    #[test]
    fn the_table_says_what_there_is() {
        let times = TimeFigures {
            lock_wait: Summary {
                count: 1,
                max: Duration::from_micros(2_500),
                ..Summary::default()
            },
            ..TimeFigures::default()
        };
        let threads = vec![
            ThreadFigures { jobs: 3, kept: 2, times: Some(times), ..ThreadFigures::default() },
            ThreadFigures::default(),
        ];
        let lane = LaneFigures { threads, idle_wakes: 1, aged_wakes: 0 };
        let reactor = ReactorFigures {
            waits: 9,
            long_passes: Some([4, 3, 2, 1]),
            ..ReactorFigures::default()
        };
        let text = table(&lane, &reactor);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "lane: threads=2 idle_wakes=1 aged_wakes=0");
        assert!(lines[1].ends_with("passes_over_4ms=2 passes_over_8ms=1"), "{}", lines[1]);
        assert_eq!(lines[2], "thread 0: jobs=3 kept=2 kept_alone=0 drops_in_slice=0 yields=0");
        assert!(lines[4].starts_with("  GIL-wait  n=1 ") && lines[4].ends_with("max=2500.0 us"));
        assert_eq!(lines[6], "thread 1: jobs=0 kept=0 kept_alone=0 drops_in_slice=0 yields=0");
    }
}
