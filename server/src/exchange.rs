//! One request and its answer, shared by the reactor and the thread that runs the application.
//!
//! The payload lives here, in the outbox; an entry on the completion ring only says "this slot has
//! output", and at most one such entry is outstanding per exchange, so the ring cannot fill.

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::clock;
use crate::forwarded::{Client, Origin};
use crate::http::RequestHead;
use crate::limits::{STREAM_CREDIT_BYTES, STREAM_CREDIT_PIECES};
use crate::reactor::io::{ListenerIndex, Peer};
use crate::reactor::token::Token;
use crate::reactor::wake::Waker;
use crate::request_id::RequestId;
use crate::sync::{
    Arc, AtomicBool, AtomicU32, AtomicU64, Condvar, Mutex, Ordering, Padded, Queue, fence, lock,
};

/// Of a request target in a line of the log. **Unit**: bytes.
const SHOWN_TARGET_BYTES_MAX: usize = 512;

/// Written by whoever ends the reactor's sleep, and by the reactor.
#[derive(Debug)]
struct Sleep {
    is_parked: AtomicBool,
    pokes: AtomicU64,
}

/// The completion ring of one reactor and the word that says whether the reactor sleeps.
#[derive(Debug)]
pub struct Completions {
    ready: Queue<Token>,
    sleep: Padded<Sleep>,
    /// A reactor that sleeps does so until it is woken. Seldom written.
    until_woken: AtomicBool,
    waker: Waker,
}

impl Completions {
    /// `capacity`: at least the number of slots, each of which has one entry at the most.
    #[must_use]
    pub fn new(capacity: usize, waker: Waker) -> Self {
        Self {
            ready: Queue::new(capacity.max(1)),
            sleep: Padded(Sleep { is_parked: AtomicBool::new(false), pokes: AtomicU64::new(0) }),
            until_woken: AtomicBool::new(false),
            waker,
        }
    }

    /// Producer: this slot has output. Wakes nobody.
    pub(crate) fn push(&self, token: Token) {
        if self.ready.push(token).is_err() {
            tracing::error!(
                slot = token.slot_index(),
                "bug: the completion ring is full although it has an entry for every slot"
            );
        }
    }

    /// Wakes the reactor if it announced that it sleeps. False: it did not.
    pub fn wake_if_parked(&self) -> bool {
        fence(Ordering::SeqCst);
        let poke = self.sleep.0.is_parked.load(Ordering::SeqCst)
            && self.sleep.0.is_parked.swap(false, Ordering::SeqCst);
        if poke {
            self.sleep.0.pokes.fetch_add(1, Ordering::Relaxed);
            self.waker.wake();
        }
        poke
    }

    /// Reactor: the next slot with output.
    pub fn pop(&self) -> Option<Token> {
        self.ready.pop()
    }

    /// Producer, after a push: whether a reactor that sleeps, or goes to sleep without having seen the
    /// push, does not look by itself, so that nothing may be held back from it.
    pub(crate) fn sleeps_until_woken(&self) -> bool {
        fence(Ordering::SeqCst);
        self.until_woken.load(Ordering::SeqCst)
    }

    /// Reactor: announces that it is about to sleep and looks again. False: something came, do not
    /// sleep. `until_woken`: jobs wait, and it will not look by itself soon.
    pub fn park(&self, until_woken: bool) -> bool {
        if self.until_woken.load(Ordering::Relaxed) != until_woken {
            self.until_woken.store(until_woken, Ordering::SeqCst);
        }
        self.sleep.0.is_parked.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.ready.is_empty() {
            return true;
        }
        self.sleep.0.is_parked.store(false, Ordering::SeqCst);
        false
    }

    /// Reactor: takes the announcement back after its wait.
    pub fn unpark(&self) {
        self.sleep.0.is_parked.store(false, Ordering::SeqCst);
    }

    /// Whether the reactor announced that it sleeps and nobody has woken it.
    #[cfg(all(test, loom))]
    pub(crate) fn is_parked(&self) -> bool {
        self.sleep.0.is_parked.load(Ordering::SeqCst)
    }

    /// How often a producer had to wake the reactor.
    #[must_use]
    pub fn poke_count(&self) -> u64 {
        self.sleep.0.pokes.load(Ordering::Relaxed)
    }

    /// Wakes the reactor whatever it does: for commands, not for output.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

/// A request body as the application finds it.
#[derive(Debug)]
pub enum Body {
    /// The request has none.
    Empty,
    /// All of it, up to `BODY_MEMORY_BYTES_MAX`.
    Memory(Bytes),
    /// All of it, in an unnamed file positioned at its start.
    Spooled {
        /// The file; its only name is this descriptor.
        file: File,
        /// **Unit**: bytes.
        length: u64,
        /// Its share of `--spool-bytes`, given back with it.
        reservation: crate::spool::Reservation,
    },
}

impl Body {
    /// **Unit**: bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Memory(bytes) => bytes.len() as u64,
            Self::Spooled { length, .. } => *length,
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How a response ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct End {
    /// What the client was told.
    pub status: u16,
    /// Bytes of the body, framing not counted, of all outputs of this response.
    pub body_bytes: u64,
    /// Whether the connection may carry another request.
    pub keep_alive: bool,
}

/// One step of a response, in the order of the wire.
#[derive(Debug)]
pub enum Output {
    /// Bytes as the wire wants them (heads and chunk framing included): `head`, then `body` from
    /// where it is. `end` on the last.
    Data {
        /// Sent first.
        head: Bytes,
        /// Sent second; may be empty.
        body: Bytes,
        /// The response is complete with these bytes.
        end: Option<End>,
    },
    /// A part of a file, after `head` (which may be empty).
    File {
        /// Sent first.
        head: Bytes,
        /// Read by the kernel.
        file: File,
        /// **Unit**: bytes.
        offset: u64,
        /// **Unit**: bytes.
        length: u64,
        /// The response is complete with these bytes.
        end: Option<End>,
    },
    /// The response cannot be completed: the connection is reset, so that the client sees it.
    Abort,
    /// From the spool's writer: the body's file has this many more bytes, or cannot have them.
    Spooled(io::Result<u64>),
    /// From the same thread: the slice of a file that is being sent is in the page cache.
    Warmed,
}

impl Output {
    /// Whether the response begins, goes on or ends with it.
    pub(crate) fn is_of_response(&self) -> bool {
        match self {
            Self::Data { .. } | Self::File { .. } | Self::Abort => true,
            Self::Spooled(_) | Self::Warmed => false,
        }
    }

    /// What the piece holds of our memory. **Unit**: bytes.
    #[must_use]
    pub fn credit_bytes(&self) -> usize {
        match self {
            Self::Data { head, body, .. } => head.len() + body.len(),
            Self::File { head, .. } => head.len(),
            Self::Abort | Self::Spooled(_) | Self::Warmed => 0,
        }
    }
}

#[derive(Debug, Default)]
struct Outbox {
    /// The usual single output needs no allocation.
    first: Option<Output>,
    rest: VecDeque<Output>,
    /// Bytes pushed and not yet taken by the kernel.
    outstanding_bytes: usize,
    outstanding_pieces: usize,
    producer_waits: bool,
}

/// Where a request was when its time was over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Expired {
    /// On the lane's ring. It will not run.
    Waiting,
    /// Inside the application.
    Running,
}

/// On the lane's ring.
const WAITING: u32 = 0;
/// A thread has taken it.
const BEGUN: u32 = 1;
/// Its time was over before one did.
const EXPIRED: u32 = 2;

/// A moment not yet marked.
const UNMARKED: u32 = u32::MAX;

/// One request and its answer. The reactor and one application thread hold it; everything about the
/// request that outlives its slot lives here and not in the slot.
#[derive(Debug)]
pub struct Exchange {
    /// The connection it came on.
    pub token: Token,
    /// Parsed, immutable.
    pub head: RequestHead,
    /// Where the connection was accepted.
    pub listener: ListenerIndex,
    /// Who is at the other end of the connection.
    pub peer: Peer,
    /// What trusted proxies told about the request; usually nothing.
    pub origin: Option<Box<Origin>>,
    /// When its head was complete.
    pub received: Instant,
    /// Its name, with `--request-id`.
    pub request_id: Option<RequestId>,
    /// No later request on this connection is wanted: the answer says `Connection: close`.
    closing: AtomicBool,
    /// The client cannot be reached any more.
    gone: AtomicBool,
    signalled: AtomicBool,
    /// With `--request-timeout`: `WAITING`, `BEGUN` or `EXPIRED`.
    stage: AtomicU32,
    /// Microseconds since `received`: dispatched, started, ended, first bytes sent.
    dispatched_us: AtomicU32,
    started_us: AtomicU32,
    ended_us: AtomicU32,
    sent_us: AtomicU32,
    outbox: Mutex<Outbox>,
    refunded: Condvar,
    completions: Arc<Completions>,
}

impl Exchange {
    /// An exchange without output, not dispatched.
    #[must_use]
    pub fn new(
        token: Token,
        head: RequestHead,
        listener: ListenerIndex,
        peer: Peer,
        received: Instant,
        completions: Arc<Completions>,
    ) -> Self {
        Self {
            token,
            head,
            listener,
            peer,
            origin: None,
            received,
            request_id: None,
            closing: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            signalled: AtomicBool::new(false),
            stage: AtomicU32::new(WAITING),
            dispatched_us: AtomicU32::new(UNMARKED),
            started_us: AtomicU32::new(UNMARKED),
            ended_us: AtomicU32::new(UNMARKED),
            sent_us: AtomicU32::new(UNMARKED),
            outbox: Mutex::new(Outbox::default()),
            refunded: Condvar::new(),
            completions,
        }
    }

    /// The same request with a name.
    #[must_use]
    pub fn named(self, request_id: Option<RequestId>) -> Self {
        Self { request_id, ..self }
    }

    /// The same request with what trusted proxies told about it.
    #[must_use]
    pub fn forwarded(self, origin: Option<Box<Origin>>) -> Self {
        Self { origin, ..self }
    }

    /// Who asked: the peer, or whom trusted proxies name.
    #[must_use]
    pub fn client(&self) -> Client {
        let told = self.origin.as_ref().and_then(|origin| origin.client);
        told.unwrap_or_else(|| Client::from(self.peer))
    }

    /// The request as an operator is shown it: method and target, without control bytes, cut, and its
    /// name if it has one.
    #[must_use]
    pub fn request_line(&self) -> String {
        let target = self.head.target();
        let shown = &target[..target.len().min(SHOWN_TARGET_BYTES_MAX)];
        let more = if shown.len() < target.len() { "…" } else { "" };
        let method = self.head.method().escape_ascii();
        match &self.request_id {
            Some(id) => format!("{method} {}{more} id={}", shown.escape_ascii(), id.as_str()),
            None => format!("{method} {}{more}", shown.escape_ascii()),
        }
    }

    /// Whether the answer may leave the connection open, as far as the server knows at this moment.
    #[must_use]
    pub fn keep_alive(&self) -> bool {
        self.head.keep_alive() && !self.closing.load(Ordering::Relaxed)
    }

    /// Reactor: the connection ends with this answer.
    pub fn set_closing(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Whether the client is known to be unreachable: output is then dropped.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Producer: hands on a piece and wakes the reactor if it sleeps. False: the client is gone and
    /// the piece was dropped.
    pub fn push(&self, output: Output) -> bool {
        let pushed = self.push_quietly(output);
        self.completions.wake_if_parked();
        pushed
    }

    /// Producer: hands on a piece without a wake; the lane wakes (`Lane::completed`).
    pub fn push_quietly(&self, output: Output) -> bool {
        if self.is_gone() {
            return false;
        }
        {
            let mut outbox = lock(&self.outbox);
            outbox.outstanding_bytes += output.credit_bytes();
            outbox.outstanding_pieces += 1;
            if outbox.first.is_none() && outbox.rest.is_empty() {
                outbox.first = Some(output);
            } else {
                outbox.rest.push_back(output);
            }
        }
        self.signal();
        true
    }

    fn signal(&self) {
        if !self.signalled.swap(true, Ordering::SeqCst) {
            self.completions.push(self.token);
        }
    }

    /// Producer: blocks while the stream has used up its credit. False: the client is gone. The
    /// caller holds nothing that another thread waits for (no interpreter lock).
    pub fn wait_for_credit(&self) -> bool {
        let mut outbox = lock(&self.outbox);
        while !self.is_gone()
            && (outbox.outstanding_bytes >= STREAM_CREDIT_BYTES
                || outbox.outstanding_pieces >= STREAM_CREDIT_PIECES)
        {
            outbox.producer_waits = true;
            outbox = self.refunded.wait(outbox).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        outbox.producer_waits = false;
        !self.is_gone()
    }

    /// Whether the next piece may be made without waiting.
    #[must_use]
    pub fn has_credit(&self) -> bool {
        let outbox = lock(&self.outbox);
        outbox.outstanding_bytes < STREAM_CREDIT_BYTES
            && outbox.outstanding_pieces < STREAM_CREDIT_PIECES
    }

    /// Reactor: takes the ring entry back and moves what there is to `into`, in order.
    pub fn take_outputs(&self, into: &mut VecDeque<Output>) {
        // Cleared before the outbox is read: a piece pushed after the read makes a new entry.
        self.signalled.store(false, Ordering::SeqCst);
        let mut outbox = lock(&self.outbox);
        into.extend(outbox.first.take());
        into.append(&mut outbox.rest);
    }

    /// Reactor: the kernel has `bytes` more of what was pushed, and `pieces` pieces are done with.
    pub fn refund(&self, bytes: usize, pieces: usize) {
        let mut outbox = lock(&self.outbox);
        outbox.outstanding_bytes = outbox.outstanding_bytes.saturating_sub(bytes);
        outbox.outstanding_pieces = outbox.outstanding_pieces.saturating_sub(pieces);
        if outbox.producer_waits {
            self.refunded.notify_one();
        }
    }

    /// Reactor: nothing can be sent any more; a producer that waits is let go.
    pub fn set_gone(&self) {
        self.gone.store(true, Ordering::SeqCst);
        // Under the lock, so that a producer is either before its check or inside its wait.
        let _outbox = lock(&self.outbox);
        self.refunded.notify_all();
    }

    /// Thread, with `--request-timeout`: takes the request. False: its time is over and it is
    /// answered; the application must not be asked.
    #[must_use]
    pub fn begin(&self) -> bool {
        self.move_on(BEGUN).is_ok()
    }

    /// Reactor: the request's time is over. Whichever of this and [`Self::begin`] comes first counts.
    pub(crate) fn expire(&self) -> Expired {
        if self.move_on(EXPIRED).is_ok() { Expired::Waiting } else { Expired::Running }
    }

    fn move_on(&self, stage: u32) -> Result<u32, u32> {
        self.stage.compare_exchange(WAITING, stage, Ordering::SeqCst, Ordering::SeqCst)
    }

    /// The job was put on the ring.
    pub fn mark_dispatched(&self, now: Instant) {
        self.dispatched_us.store(self.microseconds(now), Ordering::Relaxed);
    }

    /// The application was called.
    pub fn mark_started(&self) {
        self.started_us.store(self.microseconds(clock::now()), Ordering::Relaxed);
    }

    /// The application is done, its iterator closed.
    pub fn mark_ended(&self) {
        self.ended_us.store(self.microseconds(clock::now()), Ordering::Relaxed);
    }

    /// Reactor: bytes of the response go to the kernel; the first of them count.
    pub fn mark_sent(&self, now: Instant) {
        if self.sent_us.load(Ordering::Relaxed) == UNMARKED {
            self.sent_us.store(self.microseconds(now), Ordering::Relaxed);
        }
    }

    fn microseconds(&self, now: Instant) -> u32 {
        let elapsed = now.saturating_duration_since(self.received).as_micros();
        u32::try_from(elapsed).unwrap_or(UNMARKED - 1).min(UNMARKED - 1)
    }

    /// What was marked, for the access log.
    #[must_use]
    pub fn durations(&self) -> Durations {
        let mark = |word: &AtomicU32| {
            let value = word.load(Ordering::Relaxed);
            (value != UNMARKED).then(|| Duration::from_micros(u64::from(value)))
        };
        let started = mark(&self.started_us);
        let between = |from: Option<Duration>, end: Option<Duration>| {
            end.zip(from).map(|(end, from)| end.saturating_sub(from))
        };
        Durations {
            queue: between(mark(&self.dispatched_us), started),
            run: between(started, mark(&self.ended_us)),
            until_sent: mark(&self.sent_us),
        }
    }
}

/// How long the parts of an exchange took, where both their ends were marked.
#[derive(Clone, Copy, Debug)]
pub struct Durations {
    /// From dispatch to the call of the application.
    pub queue: Option<Duration>,
    /// Inside the application.
    pub run: Option<Duration>,
    /// From the complete head of the request to the first bytes of the response.
    pub until_sent: Option<Duration>,
}

/// What the reactor puts on a lane's ring.
#[derive(Debug)]
pub enum Job {
    /// Answer this.
    Request {
        /// The request and where its answer goes.
        exchange: Arc<Exchange>,
        /// Complete: no thread waits for a slow client.
        body: Body,
    },
    /// Nothing to answer: the bridge drops what the reactor gave back (see `Bytes::from_owner`).
    Reclaim,
}

/// The sync lane's type.
pub type SyncLane = crate::pool::Lane<Job>;
