//! One connection of a run: sends, reads, checks, reconnects.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio_uring::net::TcpStream;

use crate::body::Expectation;
use crate::clock::Stopwatch;
use crate::order::{Order, SendRank};
use crate::pace::{Batch, Pace};
use crate::response::{Response, ResponseReader, Step, Violation};
use crate::tally::{ErrorKind, Tally};
use crate::target::Target;
use crate::watch::Watch;

/// What all connections of a run share.
#[derive(Debug)]
pub(crate) struct Run {
    /// Where to.
    pub(crate) target: Target,
    /// Requests sent before the first answer is awaited; at least one.
    pub(crate) pipeline: u32,
    /// The status of every answer.
    pub(crate) status: u16,
    /// The body of every answer.
    pub(crate) body: Expectation,
    /// Time of the run.
    pub(crate) stopwatch: Stopwatch,
    /// Answers that come before this moment of the run are checked and neither counted nor judged.
    pub(crate) warm_up_nanos: u64,
    /// What may be sent.
    pub(crate) pace: Pace,
    /// What happened.
    pub(crate) tally: Tally,
    /// In which order, if anybody asks; who was sent in the warm-up too.
    pub(crate) order: Option<Rc<Order>>,
}

/// A batch on its way.
struct Exchange {
    batch: Batch,
    /// Requests of it that have no answer yet.
    owed: u32,
    /// Of its first request; none where no order is recorded.
    first_rank: Option<SendRank>,
}

impl Run {
    /// A batch is sent now.
    fn begin(&self, batch: Batch) -> Exchange {
        let first_rank = self.order.as_ref().map(|order| order.send(batch.requests));
        Exchange { batch, owed: batch.requests, first_rank }
    }

    /// The next answer of a batch is there, right or wrong, at this moment of the run.
    fn count(&self, exchange: &mut Exchange, response: Response, now_nanos: u64) {
        self.settle(exchange, now_nanos);
        if response.status != self.status {
            let words = || format!("{} instead of {}", response.status, self.status);
            self.tally.failure(ErrorKind::Status, 1, words);
        } else if !response.body_matches {
            self.tally.failure(ErrorKind::Body, 1, || "not the expected body".to_owned());
        } else if !self.is_warm_up(now_nanos) {
            self.tally.answer(now_nanos.saturating_sub(exchange.batch.due_nanos));
        }
    }

    /// The rest of a batch will not be answered: known at this moment of the run.
    fn fail(
        &self,
        mut exchange: Exchange,
        kind: ErrorKind,
        now_nanos: u64,
        words: impl FnOnce() -> String,
    ) {
        self.tally.failure(kind, exchange.owed, words);
        while exchange.owed > 0 {
            self.settle(&mut exchange, now_nanos);
        }
    }

    /// One request less is waited for.
    fn settle(&self, exchange: &mut Exchange, now_nanos: u64) {
        if let (Some(order), Some(first)) = (&self.order, exchange.first_rank) {
            let rank = first.after(exchange.batch.requests - exchange.owed);
            if self.is_warm_up(now_nanos) {
                order.answer_in_warm_up(rank);
            } else {
                order.answer(rank);
            }
        }
        exchange.owed -= 1;
    }

    fn is_warm_up(&self, now_nanos: u64) -> bool {
        now_nanos < self.warm_up_nanos
    }
}

/// One client connection over its whole life, reconnects included.
pub(crate) struct Connection {
    run: Rc<Run>,
    watch: Rc<Watch>,
    /// Whole requests, as many as the last batch had.
    output: Vec<u8>,
    /// Where the kernel puts what it reads; its capacity is the bound.
    input: Vec<u8>,
}

/// A small answer fits many times; 256 connections take 4 MiB.
const INPUT_BYTES: usize = 16 * 1024;
/// A server that is not there for this many tries, five seconds, ends the connection's part.
const CONNECT_TRIES_MAX: u32 = 50;
const CONNECT_RETRY_AFTER: Duration = Duration::from_millis(100);

/// What a connection is good for after a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum After {
    Reuse,
    Reconnect,
}

/// Why a batch ended early.
struct Cut {
    kind: ErrorKind,
    words: String,
}

impl Connection {
    /// A connection that is not made yet.
    pub(crate) fn new(run: Rc<Run>, watch: Rc<Watch>) -> Self {
        Self { run, watch, output: Vec::new(), input: Vec::with_capacity(INPUT_BYTES) }
    }

    /// Takes batches until the pace has no more, or no server answers.
    pub(crate) async fn drive(mut self) {
        while let Some(stream) = self.connect().await {
            let mut reader = ResponseReader::new();
            loop {
                let Some(batch) = self.run.pace.take(self.run.pipeline).await else { return };
                match self.exchange(&stream, &mut reader, batch).await {
                    After::Reuse => {}
                    After::Reconnect => break,
                }
            }
        }
    }

    async fn connect(&self) -> Option<Rc<TcpStream>> {
        for _ in 0..CONNECT_TRIES_MAX {
            if self.run.pace.is_over() {
                return None;
            }
            self.watch.connecting(self.run.stopwatch.nanos());
            let made = TcpStream::connect(self.run.target.address).await;
            self.watch.over();
            match made.and_then(|stream| stream.set_nodelay(true).map(|()| stream)) {
                Ok(stream) => {
                    self.run.tally.connected();
                    return Some(Rc::new(stream));
                }
                Err(error) => self.run.tally.mishap(ErrorKind::Connect, || error.to_string()),
            }
            tokio::time::sleep(CONNECT_RETRY_AFTER).await;
        }
        None
    }

    /// Sends a batch and reads its answers. Every request of it is counted exactly once.
    async fn exchange(
        &mut self,
        stream: &Rc<TcpStream>,
        reader: &mut ResponseReader,
        batch: Batch,
    ) -> After {
        self.watch.answering(self.run.stopwatch.nanos(), stream);
        let mut exchange = self.run.begin(batch);
        let outcome = self.answers(stream, reader, &mut exchange).await;
        let timed_out = self.watch.over();
        let now = self.run.stopwatch.nanos();
        match outcome {
            Ok(after) => after,
            Err(_) if timed_out => {
                let words = || "no whole answer in time".to_owned();
                self.run.fail(exchange, ErrorKind::Timeout, now, words);
                After::Reconnect
            }
            Err(cut) if exchange.owed == 0 => {
                self.run.tally.mishap(cut.kind, || cut.words);
                After::Reconnect
            }
            Err(cut) => {
                self.run.fail(exchange, cut.kind, now, || cut.words);
                After::Reconnect
            }
        }
    }

    async fn answers(
        &mut self,
        stream: &TcpStream,
        reader: &mut ResponseReader,
        exchange: &mut Exchange,
    ) -> Result<After, Cut> {
        let mut received = self.send_and_receive(stream, exchange.batch.requests).await?;
        loop {
            if received == 0 {
                return self.end_of_stream(reader, exchange);
            }
            let mut rest = &self.input[..received];
            while exchange.owed > 0 {
                match reader.feed(rest, &self.run.body) {
                    Ok(Step::NeedMore) => break,
                    Ok(Step::Complete { taken, response }) => {
                        rest = &rest[taken..];
                        self.run.count(exchange, response, self.run.stopwatch.nanos());
                        if !response.keep_alive {
                            return closing(exchange.owed);
                        }
                    }
                    Err(Violation(words)) => return Err(cut(ErrorKind::Framing, words)),
                }
            }
            if exchange.owed == 0 {
                return if rest.is_empty() {
                    Ok(After::Reuse)
                } else {
                    Err(cut(ErrorKind::Excess, "bytes after the last answer"))
                };
            }
            received = self.receive(stream).await?;
        }
    }

    fn end_of_stream(
        &self,
        reader: &mut ResponseReader,
        exchange: &mut Exchange,
    ) -> Result<After, Cut> {
        if let Some(response) = reader.end(&self.run.body) {
            self.run.count(exchange, response, self.run.stopwatch.nanos());
            return closing(exchange.owed);
        }
        Err(if reader.is_between_responses() {
            cut(ErrorKind::Closed, "closed before the answer")
        } else {
            cut(ErrorKind::Truncated, "closed inside the answer")
        })
    }

    /// Writes the requests and reads at the same time: one pass of the runtime for both, and a
    /// server that answers early cannot block a long batch. Both operations always run to their end.
    async fn send_and_receive(&mut self, stream: &TcpStream, requests: u32) -> Result<usize, Cut> {
        let request = &self.run.target.request;
        let output_bytes = request.len() * requests as usize;
        let mut output = std::mem::take(&mut self.output);
        if output.len() != output_bytes {
            output.clear();
            (0..requests).for_each(|_| output.extend_from_slice(request));
        }
        let input = std::mem::take(&mut self.input);
        let ((written, output), (received, input)) =
            both(stream.write_all(output), stream.read(input)).await;
        self.output = output;
        self.input = input;
        written.map_err(|error| cut(ErrorKind::Write, &error.to_string()))?;
        self.received(received)
    }

    async fn receive(&mut self, stream: &TcpStream) -> Result<usize, Cut> {
        let (received, input) = stream.read(std::mem::take(&mut self.input)).await;
        self.input = input;
        self.received(received)
    }

    fn received(&self, received: std::io::Result<usize>) -> Result<usize, Cut> {
        let bytes = received.map_err(|error| cut(ErrorKind::Read, &error.to_string()))?;
        self.run.tally.received(bytes);
        Ok(bytes)
    }
}

fn closing(owed: u32) -> Result<After, Cut> {
    if owed == 0 {
        Ok(After::Reconnect)
    } else {
        Err(cut(ErrorKind::Closed, "closed between pipelined answers"))
    }
}

fn cut(kind: ErrorKind, words: &str) -> Cut {
    Cut { kind, words: words.to_owned() }
}

async fn both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    let mut first = pin!(first);
    let mut second = pin!(second);
    let mut outputs = (None, None);
    poll_fn(move |context| {
        if outputs.0.is_none()
            && let Poll::Ready(output) = first.as_mut().poll(context)
        {
            outputs.0 = Some(output);
        }
        if outputs.1.is_none()
            && let Poll::Ready(output) = second.as_mut().poll(context)
        {
            outputs.1 = Some(output);
        }
        match (outputs.0.take(), outputs.1.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            unfinished => {
                outputs = unfinished;
                Poll::Pending
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::Limit;

    const WARM_UP_NANOS: u64 = 1_000;
    const RIGHT: Response = Response { status: 200, body_matches: true, keep_alive: true };

    fn run() -> Run {
        let stopwatch = Stopwatch::start();
        Run {
            target: Target::resolve("http://127.0.0.1:1/", &[]).expect("a target"),
            pipeline: 1,
            status: 200,
            body: Expectation::Anything,
            stopwatch,
            warm_up_nanos: WARM_UP_NANOS,
            pace: Pace::new(stopwatch, Limit::Requests(1), None),
            tally: Tally::new(0),
            order: Some(Rc::default()),
        }
    }

    fn batch(requests: u32, due_nanos: u64) -> Batch {
        Batch { requests, due_nanos }
    }

    fn judged(run: &Run) -> (usize, u32) {
        let verdict = run.order.as_ref().expect("recorded").judge();
        (verdict.requests, verdict.most_passed_over)
    }

    #[test]
    fn answers_of_the_warm_up_are_checked_and_neither_counted_nor_judged() {
        let run = run();
        let mut early = run.begin(batch(1, 0));
        run.count(&mut early, RIGHT, WARM_UP_NANOS - 1);
        let mut wrong = run.begin(batch(1, 0));
        run.count(&mut wrong, Response { status: 500, ..RIGHT }, WARM_UP_NANOS - 1);
        assert_eq!((run.tally.answered(), run.tally.failed(), judged(&run)), (0, 1, (0, 0)));
        let mut later = run.begin(batch(1, WARM_UP_NANOS));
        run.count(&mut later, RIGHT, WARM_UP_NANOS);
        assert_eq!((run.tally.answered(), judged(&run)), (1, (1, 0)));
    }

    #[test]
    fn a_request_that_starves_from_the_warm_up_on_is_judged_and_timed() {
        const LATE_NANOS: u64 = 5 * WARM_UP_NANOS;
        let run = run();
        let mut starved = run.begin(batch(1, 0));
        for now_nanos in [WARM_UP_NANOS - 1, WARM_UP_NANOS, LATE_NANOS - 1] {
            let mut served = run.begin(batch(1, now_nanos));
            run.count(&mut served, RIGHT, now_nanos);
        }
        run.count(&mut starved, RIGHT, LATE_NANOS);
        assert_eq!((run.tally.answered(), judged(&run)), (3, (3, 3)));
        let longest = run.tally.with_latencies(|histogram| histogram.max());
        assert!(longest >= LATE_NANOS, "{longest} ns");
    }

    #[test]
    fn answers_of_a_batch_are_ranked_one_by_one() {
        let run = run();
        let mut first = run.begin(batch(2, WARM_UP_NANOS));
        let mut second = run.begin(batch(2, WARM_UP_NANOS));
        run.count(&mut first, RIGHT, WARM_UP_NANOS);
        run.count(&mut second, RIGHT, WARM_UP_NANOS);
        run.count(&mut second, RIGHT, WARM_UP_NANOS);
        run.count(&mut first, RIGHT, WARM_UP_NANOS);
        assert_eq!((judged(&run), first.owed, second.owed), ((4, 2), 0, 0));
    }

    #[test]
    fn a_request_that_is_given_up_was_passed_over_until_then() {
        let run = run();
        let lost = run.begin(batch(1, 0));
        for _ in 0..3 {
            let mut served = run.begin(batch(1, WARM_UP_NANOS));
            run.count(&mut served, RIGHT, WARM_UP_NANOS);
        }
        run.fail(lost, ErrorKind::Timeout, WARM_UP_NANOS, || "late".to_owned());
        assert_eq!((run.tally.failed(), judged(&run)), (1, (4, 3)));
    }
}
