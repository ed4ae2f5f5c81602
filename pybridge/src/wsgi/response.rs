//! One response: the legal order of its steps, its framing, and its way into the exchange.
//!
//! Knows no Python.
//!
//! | stage | start | put | finish | fail |
//! |---|---|---|---|---|
//! | Waiting (no head) | Started | error | error | our 500, Complete |
//! | Started (head not sent) | replaces the head | Sending, or Complete | Complete | our 500, Complete |
//! | Sending (head sent) | error | Sending, or Complete | Complete, or Aborted | Aborted |
//! | Complete | error | dropped | Complete | Complete |
//! | Aborted | error | dropped | Aborted | Aborted |
//!
//! A body longer than its Content-Length is cut off and said once; a shorter one aborts the
//! connection, so that the client sees it.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use hoopsnake_server::exchange::{End, Exchange, Output};
use hoopsnake_server::http::encode::{
    self, BadResponse, EncodedHead, HeadEncoder, HeadProgress, LAST_CHUNK,
};
use hoopsnake_server::http::{BodyLength, ResponseContext, ResponseFraming};
use hoopsnake_server::limits::COALESCE_BYTES_MAX;
use hoopsnake_server::request_id::RequestId;

/// What a thread's responses are written into, kept from one to the next.
mod buffers {
    use std::cell::RefCell;

    use bytes::Bytes;
    use hoopsnake_server::arena::Arena;

    /// Room made for a head and a small body. **Unit**: bytes. **Why**: the heads of Django and Flask
    /// with a few cookies are below it, so the buffer does not grow.
    const HEAD_BYTES_USUAL: usize = 1024;

    thread_local! {
        static KEPT: RefCell<(Arena, Vec<u8>)> = RefCell::default();
    }

    /// An empty buffer with the usual room.
    pub(super) fn take() -> Vec<u8> {
        let mut buffer = KEPT.with_borrow_mut(|(_, kept)| std::mem::take(kept));
        buffer.reserve(HEAD_BYTES_USUAL);
        buffer
    }

    /// What was written, for the wire; the buffer is kept for the next.
    pub(super) fn bytes_of(mut buffer: Vec<u8>) -> Bytes {
        KEPT.with_borrow_mut(|(arena, kept)| {
            let bytes = arena.bytes_of(&mut buffer);
            if kept.capacity() < buffer.capacity() {
                *kept = buffer;
            }
            bytes
        })
    }
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Started { head: Vec<u8>, progress: HeadProgress },
    Sending(Sending),
    Complete { framing: ResponseFraming },
    Aborted,
}

#[derive(Debug)]
struct Sending {
    framing: ResponseFraming,
    status: u16,
    keep_alive: bool,
    /// Body bytes put so far, framing not counted; never more than a `Length`.
    body_bytes: u64,
    /// On its way to the exchange: the head, chunk lines and small pieces.
    buffer: Vec<u8>,
}

/// A body before `start_response`: the only step out of order that an application can take here.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotStarted;

/// The response of one request.
#[derive(Debug)]
pub(super) struct Response {
    exchange: Arc<Exchange>,
    server_name: Option<Arc<[u8]>>,
    stage: Stage,
    has_surplus: bool,
    /// The last bytes wake the reactor by themselves.
    wakes_at_end: bool,
    is_timed: bool,
}

impl Response {
    /// No head yet. `is_timed`: the access log wants to know when the application was done.
    pub(super) fn new(
        exchange: Arc<Exchange>,
        server_name: Option<Arc<[u8]>>,
        is_timed: bool,
    ) -> Self {
        let stage = Stage::Waiting;
        Self { exchange, server_name, stage, has_surplus: false, wakes_at_end: false, is_timed }
    }

    pub(super) fn exchange(&self) -> &Arc<Exchange> {
        &self.exchange
    }

    /// The end may come long before the application returns: `write` is in use.
    pub(super) fn wake_at_end(&mut self) {
        self.wakes_at_end = true;
    }

    /// Whether a head was given.
    pub(super) fn is_started(&self) -> bool {
        !matches!(self.stage, Stage::Waiting)
    }

    /// Whether the head is on its way and cannot be replaced.
    pub(super) fn is_head_sent(&self) -> bool {
        !matches!(self.stage, Stage::Waiting | Stage::Started { .. })
    }

    /// Whether nothing more will be pushed.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Complete { .. } | Stage::Aborted)
    }

    /// Whether the application gave more than its Content-Length.
    pub(super) fn has_surplus(&self) -> bool {
        self.has_surplus
    }

    /// Whether the body is left out, whatever it is: the answer to a HEAD, and the statuses of
    /// `encode` that have none. False while there is no head.
    pub(super) fn has_no_body(&self) -> bool {
        match &self.stage {
            Stage::Started { progress, .. } => {
                self.exchange.head.is_head() || matches!(progress.status(), 204 | 205 | 304)
            }
            Stage::Complete { framing } => *framing == ResponseFraming::None,
            Stage::Waiting | Stage::Sending(_) | Stage::Aborted => false,
        }
    }

    /// Takes a head, whose fields `write_fields` writes, in the place of one that is not sent.
    ///
    /// # Errors
    /// What is wrong with the head; the stage is then as it was.
    pub(super) fn start<E: From<BadResponse>>(
        &mut self,
        status: u16,
        reason: &[u8],
        write_fields: impl FnOnce(&mut HeadEncoder<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut head = buffers::take();
        let mut encoder = HeadEncoder::begin(&mut head, self.context(), status, reason)?;
        write_fields(&mut encoder)?;
        let progress = encoder.suspend();
        if !self.is_head_sent() {
            self.stage = Stage::Started { head, progress };
        }
        Ok(())
    }

    fn context(&self) -> ResponseContext<'_> {
        let keep_alive = self.exchange.keep_alive();
        ResponseContext::of(&self.exchange.head, keep_alive, self.server_name.as_deref())
            .named(self.exchange.request_id.as_ref().map(RequestId::as_bytes))
    }

    /// Finishes the head. `length` is what is known of the body. Nothing to do when it is sent.
    ///
    /// # Errors
    /// There is no head yet.
    pub(super) fn open(&mut self, length: BodyLength) -> Result<(), NotStarted> {
        let (buffer, progress) = match &mut self.stage {
            Stage::Waiting => return Err(NotStarted),
            Stage::Started { head, progress } => (std::mem::take(head), *progress),
            Stage::Sending(_) | Stage::Complete { .. } | Stage::Aborted => return Ok(()),
        };
        let mut buffer = buffer;
        let encoder = HeadEncoder::resume(&mut buffer, self.context(), progress);
        let EncodedHead { framing, keep_alive } = encoder.finish(length);
        let status = progress.status();
        self.stage = Stage::Sending(Sending { framing, status, keep_alive, body_bytes: 0, buffer });
        if matches!(framing, ResponseFraming::None | ResponseFraming::Length(0)) {
            self.complete(Bytes::new());
        }
        Ok(())
    }

    /// Puts a piece of the body behind what was put before. `share` makes bytes of the same piece that
    /// are sent from where they are. What was put goes out with [`Response::flush`], with the last
    /// byte of a known length, or when it is too much to copy.
    pub(super) fn put(&mut self, data: &[u8], share: impl FnOnce() -> Bytes) {
        let kept = usize::try_from(self.room()).unwrap_or(usize::MAX).min(data.len());
        if kept < data.len() {
            self.note_surplus();
        }
        let Stage::Sending(sending) = &mut self.stage else { return };
        if kept == 0 {
            return;
        }
        sending.body_bytes += kept as u64;
        let is_chunked = sending.framing == ResponseFraming::Chunked;
        if is_chunked {
            encode::push_chunk_line(&mut sending.buffer, kept);
        }
        let mut shared = Bytes::new();
        if sending.buffer.len() + kept <= COALESCE_BYTES_MAX {
            sending.buffer.extend_from_slice(&data[..kept]);
        } else {
            shared = share().slice(..kept);
        }
        if sending.framing == ResponseFraming::Length(sending.body_bytes) {
            return self.complete(shared);
        }
        if !shared.is_empty() {
            let head = buffers::bytes_of(std::mem::take(&mut sending.buffer));
            self.exchange.push(Output::Data { head, body: shared, end: None });
        }
        if is_chunked {
            sending.buffer.extend_from_slice(b"\r\n");
        }
    }

    /// Puts a part of a file: `length` bytes from `offset`, or as many of them as the
    /// application's Content-Length has room for (PEP 3333, "Optional Platform-Specific File
    /// Handling").
    pub(super) fn put_file(&mut self, file: File, offset: u64, length: u64) {
        let length = self.room().min(length);
        let Stage::Sending(sending) = &mut self.stage else { return };
        if length == 0 {
            return;
        }
        sending.body_bytes += length;
        let is_chunked = sending.framing == ResponseFraming::Chunked;
        if is_chunked {
            let line_length = usize::try_from(length).unwrap_or(usize::MAX);
            encode::push_chunk_line(&mut sending.buffer, line_length);
        }
        let is_last = sending.framing == ResponseFraming::Length(sending.body_bytes);
        let end = is_last.then(|| sending.end());
        let framing = sending.framing;
        let head = buffers::bytes_of(std::mem::take(&mut sending.buffer));
        if is_chunked {
            sending.buffer.extend_from_slice(b"\r\n");
        }
        if is_last {
            self.mark_ended();
        }
        self.exchange.push_quietly(Output::File { head, file, offset, length, end });
        if is_last {
            self.stage = Stage::Complete { framing };
        }
    }

    /// How many body bytes may still be put. **Unit**: bytes.
    fn room(&self) -> u64 {
        match &self.stage {
            Stage::Sending(sending) => match sending.framing {
                ResponseFraming::Length(length) => length.saturating_sub(sending.body_bytes),
                ResponseFraming::Chunked | ResponseFraming::UntilClose => u64::MAX,
                ResponseFraming::None => 0,
            },
            Stage::Complete { framing: ResponseFraming::Length(_) } => 0,
            // Dropped without a word.
            Stage::Waiting | Stage::Started { .. } | Stage::Complete { .. } | Stage::Aborted => {
                u64::MAX
            }
        }
    }

    /// Sends what was put so far.
    pub(super) fn flush(&mut self) {
        if let Stage::Sending(sending) = &mut self.stage
            && !sending.buffer.is_empty()
        {
            let head = buffers::bytes_of(std::mem::take(&mut sending.buffer));
            self.exchange.push(Output::Data { head, body: Bytes::new(), end: None });
        }
    }

    /// The body is at its end.
    ///
    /// # Errors
    /// There is no head.
    pub(super) fn finish(&mut self) -> Result<(), NotStarted> {
        self.open(BodyLength::Known(0))?;
        let Stage::Sending(sending) = &mut self.stage else { return Ok(()) };
        match sending.framing {
            ResponseFraming::Length(length) => {
                let body_bytes = sending.body_bytes;
                tracing::error!(
                    target: "hoopsnake.app",
                    "{}: the application gave {body_bytes} bytes of body and set Content-Length to \
                     {length}; the connection is reset, so that the client sees it",
                    self.exchange.request_line()
                );
                self.abort();
            }
            ResponseFraming::Chunked => {
                sending.buffer.extend_from_slice(LAST_CHUNK);
                self.complete(Bytes::new());
            }
            ResponseFraming::UntilClose | ResponseFraming::None => self.complete(Bytes::new()),
        }
        Ok(())
    }

    /// The application failed: a 500 of our own while nothing is sent, a reset after that.
    pub(super) fn fail(&mut self) {
        match self.stage {
            Stage::Waiting | Stage::Started { .. } => self.answer_ourselves(500),
            Stage::Sending(_) => self.abort(),
            Stage::Complete { .. } | Stage::Aborted => {}
        }
    }

    fn answer_ourselves(&mut self, status: u16) {
        let context = self.context();
        let (is_head, keep_alive) = (context.is_head, context.keep_alive);
        let detail = encode::reason_phrase(status);
        let mut head = buffers::take();
        encode::push_own_response(&mut head, context, status, detail, &[]);
        let body_bytes = if is_head { 0 } else { detail.len() as u64 + 1 };
        let end = Some(End { status, body_bytes, keep_alive });
        self.mark_ended();
        self.exchange.push_quietly(Output::Data {
            head: buffers::bytes_of(head),
            body: Bytes::new(),
            end,
        });
        self.stage = Stage::Complete { framing: ResponseFraming::None };
    }

    fn abort(&mut self) {
        self.flush();
        self.mark_ended();
        self.exchange.push_quietly(Output::Abort);
        self.stage = Stage::Aborted;
    }

    /// Sends the buffer and `body` as the last bytes; who calls wakes the reactor.
    fn complete(&mut self, body: Bytes) {
        if let Stage::Sending(sending) = &mut self.stage {
            let (framing, end) = (sending.framing, Some(sending.end()));
            let head = buffers::bytes_of(std::mem::take(&mut sending.buffer));
            let output = Output::Data { head, body, end };
            self.mark_ended();
            if self.wakes_at_end {
                self.exchange.push(output);
            } else {
                self.exchange.push_quietly(output);
            }
            self.stage = Stage::Complete { framing };
        }
    }

    /// Before the last push, since the reactor may log the response before `close()` returns.
    fn mark_ended(&self) {
        if self.is_timed {
            self.exchange.mark_ended();
        }
    }

    fn note_surplus(&mut self) {
        if !self.has_surplus {
            self.has_surplus = true;
            tracing::error!(
                target: "hoopsnake.app",
                "{}: the application gave more bytes of body than its Content-Length; the rest is \
                 cut off",
                self.exchange.request_line()
            );
        }
    }
}

impl Sending {
    fn end(&self) -> End {
        End { status: self.status, body_bytes: self.body_bytes, keep_alive: self.keep_alive }
    }
}
