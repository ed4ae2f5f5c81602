//! From received bytes to a job on the lane's ring.

use std::io as std_io;

use bytes::{Bytes, BytesMut};

use super::io::{Chunk, Io, Outgoing};
use super::run::Reactor;
use super::session::{Answer, Collected, Incoming, Sending, State, Watch};
use super::token::Token;
use crate::exchange::{Body, End, Exchange, Job, Output};
use crate::forwarded;
use crate::http::encode::{CONTINUE, ResponseContext, push_own_response};
use crate::http::{Input, RequestFraming, RequestHead, Version, Violation};
use crate::limits;
use crate::request_id::RequestId;
use crate::spool::{Refused, Spool, Upload};
use crate::sync::Arc;

impl<I: Io> Reactor<I> {
    pub(super) fn on_data(&mut self, token: Token, chunk: Chunk) {
        let Some(session) = self.slots.of(token) else {
            self.late_count += 1;
            return;
        };
        match session.state {
            State::Closing => return,
            State::Lingering(_) => return self.watch(token, Watch::Linger),
            State::Head | State::Body(_) | State::Answering(_) => {}
        }
        let bytes = self.io.chunk(chunk);
        if session.input.is_empty() {
            session.input = self.inbound.copy(bytes);
        } else {
            session.input.extend_from_slice(bytes);
        }
        if session.has_complete_request() {
            if session.input.len() >= limits::PIPELINED_BYTES_MAX && !session.paused {
                session.paused = true;
                self.io.stop_recv(token);
            }
            return;
        }
        self.advance(token);
    }

    /// The peer sends nothing more; it may still read (RULES 18).
    pub(super) fn on_eof(&mut self, token: Token) {
        let Some(session) = self.slots.of(token) else { return };
        session.peer_finished = true;
        match session.state {
            // A complete request is answered whatever the peer closed.
            State::Answering(_) | State::Closing => {}
            // Complete, only the spool is waited for: the same.
            State::Body(Incoming { complete: true, .. }) => {}
            State::Head | State::Body(_) | State::Lingering(_) => self.close(token),
        }
    }

    /// Takes as much from the connection's input as makes sense now.
    pub(super) fn advance(&mut self, token: Token) {
        loop {
            let Some(session) = self.slots.of(token) else { return };
            match &session.state {
                State::Head | State::Body(Incoming { complete: false, .. }) => {}
                State::Body(_) | State::Answering(_) | State::Lingering(_) | State::Closing => {
                    return;
                }
            }
            match session.http.receive(&mut session.input) {
                Ok(Some(Input::Head(head))) => self.begin_request(token, head),
                Ok(Some(Input::Body(bytes))) => self.take_body(token, bytes),
                Ok(Some(Input::BodyEnd)) => self.complete_body(token),
                Ok(None) => return self.await_input(token),
                Err(violation) => return self.refuse(token, violation),
            }
        }
    }

    /// The input holds nothing complete.
    fn await_input(&mut self, token: Token) {
        let Some(session) = self.slots.of(token) else { return };
        if session.peer_finished {
            return self.close(token);
        }
        match session.state {
            // Paused by ourselves: the clock does not run against the client.
            State::Body(_) if session.paused => {}
            State::Body(_) => self.watch(token, Watch::Body),
            State::Head if session.input.is_empty() => {
                // Between requests the next head's buffer is made when its first byte comes.
                session.input = BytesMut::new();
                let unwatched = session.watch == Watch::Nothing;
                if self.idle_is_over() {
                    self.close(token);
                } else if unwatched {
                    // Only an empty line was left of the input.
                    self.watch(token, Watch::Idle);
                }
            }
            // The deadline of a head counts from its first byte and is not moved by the others.
            State::Head if session.watch != Watch::Head => self.watch(token, Watch::Head),
            State::Head | State::Answering(_) | State::Lingering(_) | State::Closing => {}
        }
    }

    fn begin_request(&mut self, token: Token, head: RequestHead) {
        if self.is_probe(token, &head) {
            return self.answer_probe(token, &head);
        }
        let draining = self.is_draining();
        let Some(session) = self.slots.of(token) else { return };
        let is_trusted = session.is_trusted_proxy;
        let request_id = self.request_ids.as_mut().map(|ids| ids.of(&head, is_trusted));
        let origin = if is_trusted {
            forwarded::origin(&head, session.peer, &self.settings.trust)
        } else {
            None
        };
        let framing = head.framing();
        let wants_continue = head.expects_continue() && session.input.is_empty();
        let exchange = Exchange::new(
            token,
            head,
            session.listener,
            session.peer,
            self.now,
            Arc::clone(&self.completions),
        );
        let exchange = Arc::new(exchange.named(request_id).forwarded(origin));
        if draining || self.settings.keep_alive.is_zero() {
            exchange.set_closing();
        }
        match framing {
            RequestFraming::None => return self.dispatch(token, exchange, Body::Empty),
            RequestFraming::Length(_) | RequestFraming::Chunked => {}
        }
        session.state = State::Body(Incoming {
            exchange,
            collected: Collected::Nothing,
            received: 0,
            complete: false,
        });
        match framing {
            RequestFraming::Length(length) if length > self.settings.body_bytes_max => {
                self.refuse(token, Violation::BodyTooLarge { max: self.settings.body_bytes_max });
            }
            RequestFraming::Length(1..) | RequestFraming::Chunked if wants_continue => {
                self.send_continue(token);
            }
            RequestFraming::Length(_) | RequestFraming::Chunked | RequestFraming::None => {}
        }
    }

    fn send_continue(&mut self, token: Token) {
        let head = Bytes::from_static(CONTINUE);
        let Some(session) = self.slots.of(token) else { return };
        session.outputs.push_back(Output::Data { head, body: Bytes::new(), end: None });
        self.pump(token);
    }

    fn take_body(&mut self, token: Token, bytes: Bytes) {
        let Some(session) = self.slots.of(token) else { return };
        let State::Body(incoming) = &mut session.state else { return };
        incoming.received += bytes.len() as u64;
        if incoming.received > self.settings.body_bytes_max {
            return self
                .refuse(token, Violation::BodyTooLarge { max: self.settings.body_bytes_max });
        }
        let declared = match incoming.exchange.head.framing() {
            RequestFraming::Length(length) => length,
            RequestFraming::None | RequestFraming::Chunked => incoming.received,
        };
        let in_memory = declared <= limits::BODY_MEMORY_BYTES_MAX as u64;
        let before = std::mem::replace(&mut incoming.collected, Collected::Nothing);
        let spooled = match (before, in_memory) {
            (Collected::Nothing, true) => {
                incoming.collected = Collected::Whole(bytes);
                return;
            }
            (Collected::Whole(first), true) => {
                let mut memory = BytesMut::with_capacity(declared as usize);
                memory.extend_from_slice(&first);
                memory.extend_from_slice(&bytes);
                incoming.collected = Collected::Memory(memory);
                return;
            }
            (Collected::Memory(mut memory), true) => {
                memory.extend_from_slice(&bytes);
                incoming.collected = Collected::Memory(memory);
                return;
            }
            (Collected::Spooling(mut upload), _) => {
                self.spool.write(&mut upload, &bytes).map(|()| upload)
            }
            (collected, false) => {
                begin_spooling(&self.spool, &incoming.exchange, collected, &bytes)
            }
        };
        match spooled {
            Ok(upload) => {
                let full = upload.unwritten() >= limits::SPOOL_UNWRITTEN_BYTES_MAX;
                incoming.collected = Collected::Spooling(upload);
                if full {
                    self.pause(token);
                } else if self.spool.unwritten() >= limits::SPOOL_UNWRITTEN_TOTAL_BYTES_MAX {
                    self.spool_waiters.push(token);
                    self.pause(token);
                }
            }
            Err(refused) => self.spool_refused(token, refused),
        }
    }

    fn spool_refused(&mut self, token: Token, refused: Refused) {
        match refused {
            Refused::Quota => {
                tracing::error!(
                    spool_bytes = self.settings.spool_bytes_max,
                    "a request body was refused with 507: the bodies on disk have reached \
                     --spool-bytes. Raise it, or lower --max-body"
                );
                self.answer_own(token, 507, "the server has no room for this request body", false);
            }
            Refused::Thread => {
                tracing::error!("bug: the files' thread is gone; large request bodies get 500");
                self.answer_own(token, 500, "the request body could not be stored", false);
            }
        }
    }

    /// The writer stored some of a body, or could not.
    pub(super) fn on_spooled(&mut self, token: Token, result: std_io::Result<u64>) {
        let Some(session) = self.slots.of(token) else { return };
        let State::Body(incoming) = &mut session.state else { return };
        match result {
            Ok(bytes) => {
                incoming.exchange.refund(0, 1);
                let Collected::Spooling(upload) = &mut incoming.collected else { return };
                upload.written(bytes);
                let unwritten = upload.unwritten();
                if incoming.complete {
                    if unwritten == 0 {
                        self.complete_body(token);
                    }
                } else if unwritten < limits::SPOOL_UNWRITTEN_BYTES_MAX / 2 {
                    if self.spool.unwritten() < limits::SPOOL_UNWRITTEN_TOTAL_BYTES_MAX {
                        self.resume(token);
                    } else if unwritten == 0 {
                        // No further answer of the writer will come for it.
                        self.spool_waiters.push(token);
                    }
                }
            }
            Err(error) => {
                let directory = self.settings.spool_dir.display();
                let full = [libc::ENOSPC, libc::EDQUOT, libc::EFBIG].map(Some);
                if full.contains(&error.raw_os_error()) {
                    tracing::error!(
                        %error, %directory,
                        "a request body was refused with 507: the spool's file system is full. Free \
                         room there, or name another with --spool-dir"
                    );
                    let detail = "the server has no room for this request body";
                    self.answer_own(token, 507, detail, false);
                } else {
                    tracing::error!(
                        %error, %directory,
                        "a request body could not be spooled: check that --spool-dir is a writable \
                         directory on a file system with O_TMPFILE"
                    );
                    self.answer_own(token, 500, "the request body could not be stored", false);
                }
            }
        }
    }

    /// Uploads that waited for the spool as a whole go on.
    pub(super) fn resume_spool_waiters(&mut self) {
        if self.spool.unwritten() < limits::SPOOL_UNWRITTEN_TOTAL_BYTES_MAX {
            for token in std::mem::take(&mut self.spool_waiters) {
                self.resume(token);
            }
        }
    }

    fn complete_body(&mut self, token: Token) {
        let Some(session) = self.slots.of(token) else { return };
        let State::Body(incoming) = &mut session.state else { return };
        incoming.complete = true;
        if let Collected::Spooling(upload) = &mut incoming.collected {
            if let Err(refused) = self.spool.flush(upload) {
                return self.spool_refused(token, refused);
            }
            if upload.unwritten() > 0 {
                return self.watch(token, Watch::Nothing);
            }
        }
        let State::Body(incoming) = std::mem::replace(&mut session.state, State::Head) else {
            return;
        };
        match incoming.collected.into_body() {
            Some(body) => self.dispatch(token, incoming.exchange, body),
            None => {
                tracing::error!("bug: a spooled body has no file");
                session.state = State::Answering(Answer::Of(incoming.exchange));
                self.answer_own(token, 500, "the request body could not be stored", false);
            }
        }
    }

    /// Puts a complete request on the lane's ring, or sheds it.
    fn dispatch(&mut self, token: Token, exchange: Arc<Exchange>, body: Body) {
        let Some(session) = self.slots.of(token) else { return };
        session.state = State::Answering(Answer::Of(Arc::clone(&exchange)));
        if session.input.is_empty() {
            // The head keeps the buffer alive; the connection does not need it.
            session.input = BytesMut::new();
        }
        self.watch(token, Watch::Answer);
        self.resume(token);
        if self.settings.access_log.is_some() {
            exchange.mark_dispatched(self.now);
        }
        match self.lane.submit(Job::Request { exchange, body }) {
            Ok(()) => self.submitted = true,
            Err(job) => {
                if let Job::Request { body: Body::Spooled { file, .. }, .. } = job {
                    self.spool.release(file);
                }
                self.shed_count += 1;
                self.answer_own(token, 503, "the server is busy", true);
            }
        }
    }

    /// Answers a peer that broke a rule; the connection ends.
    pub(super) fn refuse(&mut self, token: Token, violation: Violation) {
        self.refusals.note(violation);
        self.answer_own(token, violation.status(), &violation.detail(), false);
    }

    /// Answers in the application's place. What has been received of the request is given up.
    pub(super) fn answer_own(&mut self, token: Token, status: u16, detail: &str, may_keep: bool) {
        let server = self.settings.server_name.clone();
        let request_id;
        let Some(session) = self.slots.of(token) else { return };
        let answer = match std::mem::replace(&mut session.state, State::Closing) {
            State::Body(Incoming { exchange, .. }) => Answer::Of(exchange),
            State::Answering(answer) => answer,
            State::Head | State::Lingering(_) | State::Closing => Answer::Own,
        };
        let context = match answer.exchange() {
            Some(exchange) => {
                let keep_alive = may_keep && exchange.keep_alive();
                request_id = exchange.request_id.clone();
                let context = ResponseContext::of(&exchange.head, keep_alive, server.as_deref())
                    .named(request_id.as_ref().map(RequestId::as_bytes));
                if status >= 500 && !may_keep {
                    tracing::debug!(request = exchange.request_line(), status, "refused");
                }
                context
            }
            None => ResponseContext {
                version: Version::Http11,
                is_head: false,
                keep_alive: false,
                server: server.as_deref(),
                request_id: None,
            },
        };
        let retry_after = limits::RETRY_AFTER_SECONDS.to_string();
        let fields: &[(&str, &str)] =
            if status == 503 { &[("Retry-After", &retry_after)] } else { &[] };
        let mut out = Vec::with_capacity(256);
        push_own_response(&mut out, context, status, detail, fields);
        let end =
            End { status, body_bytes: detail.len() as u64 + 1, keep_alive: context.keep_alive };
        session.state = State::Answering(answer);
        session.outputs.clear();
        session.outputs.push_back(Output::Data {
            head: Bytes::from(out),
            body: Bytes::new(),
            end: Some(end),
        });
        self.watch(token, Watch::Nothing);
        self.pump(token);
    }

    /// Stops reading: a budget is used up.
    fn pause(&mut self, token: Token) {
        let Some(session) = self.slots.of(token) else { return };
        if !session.paused {
            session.paused = true;
            self.io.stop_recv(token);
            self.watch(token, Watch::Nothing);
        }
    }

    /// Reads again if reading was stopped.
    pub(super) fn resume(&mut self, token: Token) {
        let Some(session) = self.slots.of(token) else { return };
        if session.paused && !session.peer_finished {
            session.paused = false;
            self.io.start_recv(token);
            if let State::Body(_) = session.state {
                self.watch(token, Watch::Body);
            }
        }
    }

    /// The deadline of the connection's watch passed.
    pub(super) fn on_deadline(&mut self, token: Token) {
        let Some(session) = self.slots.of(token) else { return };
        match session.watch {
            Watch::Nothing => {}
            // A client that never began is not told anything; nor is one that keeps probes out, which
            // would be given time to read it.
            Watch::Head if session.input.is_empty() || session.is_admin => self.close(token),
            Watch::Head => self.refuse(token, Violation::HeaderTimeout),
            Watch::Body => self.refuse(token, Violation::BodyTimeout),
            Watch::Idle | Watch::Linger => self.close(token),
            Watch::Answer => self.on_request_deadline(token),
        }
    }

    /// Whether something is under way that a further send must wait for.
    pub(super) fn is_sending(&mut self, token: Token) -> bool {
        self.slots.of(token).is_some_and(|session| !matches!(session.sending, Sending::Idle))
    }

    /// Sends at once, or leaves the rest with the `Io`.
    pub(super) fn hand_over(
        &mut self,
        token: Token,
        head: Bytes,
        body: Bytes,
        more: bool,
    ) -> std_io::Result<super::io::Sending> {
        self.io.send(token, Outgoing { head, body, more })
    }
}

/// More than memory takes: what was collected and what came now go to the spool.
fn begin_spooling(
    spool: &Spool,
    exchange: &Arc<Exchange>,
    collected: Collected,
    bytes: &[u8],
) -> Result<Upload, Refused> {
    let mut upload = spool.begin(Arc::clone(exchange)).ok_or(Refused::Thread)?;
    match collected {
        Collected::Whole(first) => spool.write(&mut upload, &first)?,
        Collected::Memory(first) => spool.write(&mut upload, &first)?,
        Collected::Nothing | Collected::Spooling(_) => {}
    }
    spool.write(&mut upload, bytes)?;
    Ok(upload)
}
