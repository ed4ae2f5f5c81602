//! What happened in a run: answers, errors by kind, latencies. Its memory is fixed.

use std::cell::{Cell, RefCell};

use hdrhistogram::Histogram;

/// How a request failed, or what was wrong after one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ErrorKind {
    /// No connection; no request was sent.
    Connect,
    /// The kernel refused to send.
    Write,
    /// The kernel refused to receive, mostly a reset.
    Read,
    /// The peer closed before a byte of the answer.
    Closed,
    /// The peer closed inside an answer.
    Truncated,
    /// The answer breaks RFC 9112.
    Framing,
    /// The status is not the expected one.
    Status,
    /// The body is not the expected one.
    Body,
    /// No whole answer in time.
    Timeout,
    /// Bytes after the last answer that nobody asked for.
    Excess,
}

impl ErrorKind {
    /// All, in the order of the report.
    pub(crate) const ALL: [Self; 10] = [
        Self::Connect,
        Self::Write,
        Self::Read,
        Self::Closed,
        Self::Truncated,
        Self::Framing,
        Self::Status,
        Self::Body,
        Self::Timeout,
        Self::Excess,
    ];

    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Write => "write",
            Self::Read => "read",
            Self::Closed => "closed",
            Self::Truncated => "truncated",
            Self::Framing => "framing",
            Self::Status => "status",
            Self::Body => "body",
            Self::Timeout => "timeout",
            Self::Excess => "excess",
        }
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// The counts of one kind of error.
#[derive(Clone, Debug, Default)]
pub(crate) struct ErrorCount {
    /// How many.
    pub(crate) count: u64,
    /// The first one, in words.
    pub(crate) first: String,
}

/// Counts of one run, shared by the connections of one thread.
#[derive(Debug)]
pub(crate) struct Tally {
    answered: Cell<u64>,
    failed: Cell<u64>,
    received_bytes: Cell<u64>,
    connects: Cell<u64>,
    errors: RefCell<[ErrorCount; ErrorKind::ALL.len()]>,
    latency_nanos: RefCell<Histogram<u64>>,
    progress_every: u64,
}

/// The longest latency that is told from a longer one: over the longest allowed timeout.
const LATENCY_NANOS_MAX: u64 = 4_000_000_000_000;
/// Three digits: an error of 0.1 % in about 350 KiB.
const LATENCY_DIGITS: u8 = 3;

impl Tally {
    /// An empty tally; after each `progress_every` requests it prints a line, never if zero.
    pub(crate) fn new(progress_every: u64) -> Self {
        let histogram = Histogram::new_with_bounds(1, LATENCY_NANOS_MAX, LATENCY_DIGITS)
            .expect("the bounds are constants that hdrhistogram allows");
        Self {
            answered: Cell::new(0),
            failed: Cell::new(0),
            received_bytes: Cell::new(0),
            connects: Cell::new(0),
            errors: RefCell::default(),
            latency_nanos: RefCell::new(histogram),
            progress_every,
        }
    }

    /// A request got the expected answer.
    pub(crate) fn answer(&self, latency_nanos: u64) {
        self.latency_nanos.borrow_mut().saturating_record(latency_nanos);
        self.answered.set(self.answered.get() + 1);
        self.progress();
    }

    /// Requests that got no answer or a wrong one. `first` is kept for the first of its kind.
    pub(crate) fn failure(&self, kind: ErrorKind, requests: u32, first: impl FnOnce() -> String) {
        self.error(kind, u64::from(requests), first);
        for _ in 0..requests {
            self.failed.set(self.failed.get() + 1);
            self.progress();
        }
    }

    /// An error that no single request stands for.
    pub(crate) fn mishap(&self, kind: ErrorKind, first: impl FnOnce() -> String) {
        self.error(kind, 1, first);
    }

    /// Bytes came from the server.
    pub(crate) fn received(&self, bytes: usize) {
        self.received_bytes.set(self.received_bytes.get() + bytes as u64);
    }

    /// A connection was made.
    pub(crate) fn connected(&self) {
        self.connects.set(self.connects.get() + 1);
    }

    /// Requests with the expected answer.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.get()
    }

    /// Requests without it.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.get()
    }

    /// All bytes from the server, heads too.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.get()
    }

    /// Connections made.
    pub(crate) fn connects(&self) -> u64 {
        self.connects.get()
    }

    /// The kinds of errors that happened.
    pub(crate) fn errors(&self) -> Vec<(ErrorKind, ErrorCount)> {
        let errors = self.errors.borrow();
        ErrorKind::ALL
            .into_iter()
            .map(|kind| (kind, errors[kind.index()].clone()))
            .filter(|(_, error)| error.count > 0)
            .collect()
    }

    /// Looks at the latencies, in nanoseconds.
    pub(crate) fn with_latencies<T>(&self, look: impl FnOnce(&Histogram<u64>) -> T) -> T {
        look(&self.latency_nanos.borrow())
    }

    fn error(&self, kind: ErrorKind, count: u64, first: impl FnOnce() -> String) {
        let error = &mut self.errors.borrow_mut()[kind.index()];
        if error.count == 0 {
            error.first = first();
        }
        error.count += count;
    }

    fn progress(&self) {
        let done = self.answered.get() + self.failed.get();
        if self.progress_every != 0 && done.is_multiple_of(self.progress_every) {
            println!("progress {done}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_kind_and_the_first_is_kept() {
        let tally = Tally::new(0);
        tally.failure(ErrorKind::Body, 1, || "first".to_owned());
        tally.failure(ErrorKind::Body, 2, || "second".to_owned());
        tally.mishap(ErrorKind::Excess, || "bytes".to_owned());
        tally.answer(5_000);
        let errors: Vec<_> =
            tally.errors().into_iter().map(|(kind, e)| (kind, e.count, e.first)).collect();
        assert_eq!(
            errors,
            [(ErrorKind::Body, 3, "first".to_owned()), (ErrorKind::Excess, 1, "bytes".to_owned())]
        );
        assert_eq!((tally.answered(), tally.failed()), (1, 3));
    }

    #[test]
    fn every_kind_has_its_own_place() {
        for (index, kind) in ErrorKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index, "{}", kind.name());
        }
    }

    #[test]
    fn a_latency_over_the_range_is_kept_at_its_end() {
        let tally = Tally::new(0);
        tally.answer(u64::MAX);
        tally.answer(0);
        assert!(tally.with_latencies(|histogram| histogram.max()) >= LATENCY_NANOS_MAX);
        assert_eq!(tally.with_latencies(Histogram::len), 2);
    }
}
