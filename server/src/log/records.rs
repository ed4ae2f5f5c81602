//! Lines for a reader that is not a file: Python's `logging`. A bounded queue, which the reader empties
//! in batches.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use tracing::{Event, Level};

use super::progress::{Count, Mutex, lock};
use super::{IS_NATIVE, JsonFields, QUEUE_LINES_MAX, TextFields, natively};
use crate::clock;
use crate::config::LogOverflow;

/// Records of one batch. **Why**: the reader holds the interpreter lock for a batch, and that should
/// be about a millisecond (RULES 10).
const BATCH_RECORDS_MAX: usize = 64;

/// Which logger a record is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Topic {
    /// What the server says.
    Server,
    /// A response.
    Access,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Record {
    /// Which logger it is for.
    pub topic: Topic,
    /// Its severity.
    pub level: Level,
    /// When it happened, since 1970.
    pub time: Duration,
    /// The line as it would stand in a file, without time and level.
    pub message: String,
    /// What the line is made of: one JSON object.
    pub fields: String,
}

impl Record {
    pub(super) fn of(event: &Event<'_>, level: Level, time: Duration) -> Self {
        let mut text = TextFields::default();
        event.record(&mut text);
        let mut message = String::new();
        text.push_to(&mut message);
        let mut fields = JsonFields::default();
        event.record(&mut fields);
        fields.0.remove("message");
        let fields = serde_json::Value::Object(fields.0).to_string();
        Self { topic: Topic::Server, level, time, message, fields }
    }
}

/// How a producer waits for room: calls the function it is given, once. A thread that holds the
/// interpreter lock lets go of it meanwhile, since the reader needs it.
pub type Waiting = fn(&mut (dyn FnMut() + Send));

/// The queue.
#[derive(Debug)]
pub struct RecordQueue {
    sender: SyncSender<Record>,
    receiver: Mutex<Receiver<Record>>,
    /// `None`: what does not fit is dropped.
    waiting: Option<Waiting>,
    handed: AtomicU64,
    dropped: AtomicU64,
    /// Dropped records that were spoken of.
    drops_said: AtomicU64,
    said_while_full: AtomicBool,
    delivered: Count,
}

impl RecordQueue {
    /// An empty queue.
    #[must_use]
    pub fn new(overflow: LogOverflow, waiting: Waiting) -> Self {
        let (sender, receiver) = sync_channel(QUEUE_LINES_MAX);
        Self {
            sender,
            receiver: Mutex::new(receiver),
            waiting: (overflow == LogOverflow::Block).then_some(waiting),
            handed: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            drops_said: AtomicU64::new(0),
            said_while_full: AtomicBool::new(false),
            delivered: Count::default(),
        }
    }

    /// Hands on one record.
    pub fn push(&self, record: Record) {
        self.handed.fetch_add(1, Ordering::SeqCst);
        let Err(error) = self.sender.try_send(record) else { return };
        match (error, self.waiting) {
            (TrySendError::Full(record), Some(waiting)) => {
                let mut record = Some(record);
                // The receiver lives as long as the sender: both are here.
                waiting(&mut || drop(record.take().map(|record| self.sender.send(record))));
            }
            (TrySendError::Full(_) | TrySendError::Disconnected(_), _) => {
                self.dropped.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Reader: the next records, waiting for the first. What this thread logs from now on goes to
    /// stderr, since it would wait for itself.
    #[must_use]
    pub fn take(&self) -> Vec<Record> {
        IS_NATIVE.set(true);
        let receiver = lock(&self.receiver);
        let mut batch = Vec::new();
        loop {
            let room = BATCH_RECORDS_MAX - batch.len();
            batch.extend(receiver.try_iter().take(room));
            if batch.len() < BATCH_RECORDS_MAX {
                // The queue was empty: there is room again, and time to speak of what did not fit.
                self.said_while_full.store(false, Ordering::Relaxed);
                batch.extend(self.drops());
            }
            if !batch.is_empty() {
                return batch;
            }
            let Ok(first) = receiver.recv() else { return batch };
            batch.push(first);
        }
    }

    /// Reader: so many records of [`Self::take`] are done with.
    pub fn delivered(&self, count: usize) {
        self.delivered.add(count as u64);
    }

    /// A record that says how many were dropped since the last one. It counts as handed on.
    fn drops(&self) -> Option<Record> {
        let dropped = self.dropped.load(Ordering::SeqCst);
        let count = dropped - self.drops_said.swap(dropped, Ordering::Relaxed);
        if count == 0 {
            return None;
        }
        self.handed.fetch_add(1, Ordering::SeqCst);
        let message = format!(
            "hoopsnake-logging dropped lines because no handler took them in time; --log-overflow \
             block waits instead count={count} limit={QUEUE_LINES_MAX}"
        );
        let fields = serde_json::json!({ "count": count, "limit": QUEUE_LINES_MAX }).to_string();
        let (level, time) = (Level::WARN, clock::unix_time());
        Some(Record { topic: Topic::Server, level, time, message, fields })
    }

    /// For handlers that have stopped, so that they cannot say it: on stderr, once until they go on.
    pub fn say_drops_while_full(&self) {
        if self.dropped.load(Ordering::SeqCst) > self.drops_said.load(Ordering::Relaxed)
            && !self.said_while_full.swap(true, Ordering::Relaxed)
        {
            natively(|| {
                tracing::warn!(
                    limit = QUEUE_LINES_MAX,
                    "hoopsnake-logging is full and no handler takes lines: they are lost until one does"
                );
            });
        }
    }

    /// Waits until the records of this moment are done with: for as long as there is progress within
    /// each `step`, and not longer than `patience`. Returns how many are left.
    pub fn flush(&self, step: Duration, patience: Duration) -> u64 {
        let deadline = clock::now() + patience;
        let handed = self.handed.load(Ordering::SeqCst);
        let is_done = |delivered: u64| delivered + self.dropped.load(Ordering::SeqCst) >= handed;
        let mut before = None;
        loop {
            let left = deadline.saturating_duration_since(clock::now());
            let is_over = self.delivered.wait(step.min(left), is_done) || left.is_zero();
            let delivered = self.delivered.get();
            if is_over || before == Some(delivered) {
                let done = delivered + self.dropped.load(Ordering::SeqCst);
                return handed.saturating_sub(done);
            }
            before = Some(delivered);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(message: &str) -> Record {
        Record {
            topic: Topic::Access,
            level: Level::INFO,
            time: Duration::ZERO,
            message: message.to_owned(),
            fields: "{}".to_owned(),
        }
    }

    #[test]
    fn what_does_not_fit_is_counted_and_said_when_there_is_room() {
        let queue = RecordQueue::new(LogOverflow::Drop, |wait| wait());
        for _ in 0..QUEUE_LINES_MAX + 7 {
            queue.push(record("a"));
        }
        let mut taken = 0;
        while taken < QUEUE_LINES_MAX {
            let batch = queue.take();
            assert!(batch.len() <= BATCH_RECORDS_MAX);
            taken += batch.len();
            queue.delivered(batch.len());
        }
        // Nobody has to log another line for that, also where the last batch was a full one.
        let batch = queue.take();
        assert_eq!((batch.len(), taken), (1, QUEUE_LINES_MAX));
        assert!(batch[0].message.contains("count=7 "), "{}", batch[0].message);
        assert_eq!(queue.flush(Duration::ZERO, Duration::ZERO), 1);
        queue.delivered(1);
        assert_eq!(queue.flush(Duration::ZERO, Duration::ZERO), 0);
    }

    #[test]
    fn a_producer_that_blocks_gets_its_record_in() {
        let queue = std::sync::Arc::new(RecordQueue::new(LogOverflow::Block, |wait| wait()));
        for _ in 0..QUEUE_LINES_MAX {
            queue.push(record("a"));
        }
        let (started, producer) = (std::sync::Arc::clone(&queue), std::thread::Builder::new());
        let producer = producer.spawn(move || started.push(record("late"))).unwrap();
        let mut last = String::new();
        for _ in 0..=QUEUE_LINES_MAX / BATCH_RECORDS_MAX {
            let batch = queue.take();
            queue.delivered(batch.len());
            last.clone_from(&batch[batch.len() - 1].message);
        }
        producer.join().unwrap();
        assert_eq!((last.as_str(), queue.flush(Duration::ZERO, Duration::ZERO)), ("late", 0));
    }
}
