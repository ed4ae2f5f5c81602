//! From outputs to bytes on the wire, and what follows the last one.

use std::io as std_io;
use std::os::fd::AsFd;

use bytes::{Bytes, BytesMut};

use super::io::{self, Io};
use super::run::Reactor;
use super::session::{Answer, FilePiece, Piece, Sending, State, Watch};
use super::timers::Wheel;
use super::token::Token;
use crate::access::AccessEntry;
use crate::exchange::{Durations, End, Output};
use crate::limits;
use crate::sync::Arc;
use crate::sys::file::is_cached;

impl<I: Io> Reactor<I> {
    /// A ring entry says that a slot has output.
    pub(super) fn on_output(&mut self, token: Token) {
        let Some(session) = self.slots.of(token) else {
            self.late_count += 1;
            return;
        };
        if let State::Answering(Answer::InsteadOf(_)) = session.state {
            // The request is answered, and what its thread pushed at that moment is nobody's.
            self.late_count += 1;
            return;
        }
        let Some(exchange) = session.exchange().cloned() else { return };
        exchange.take_outputs(&mut session.outputs);
        if session.watch == Watch::Answer && session.outputs.iter().any(Output::is_of_response) {
            session.watch = Watch::Nothing;
            Wheel::clear(&mut session.timer);
        }
        // Not in its turn: what the application pushed behind the file waits for it.
        let warmed = session.outputs.iter().position(|output| matches!(output, Output::Warmed));
        if let Some(index) = warmed {
            session.outputs.remove(index);
            exchange.refund(0, 1);
            match std::mem::take(&mut session.sending) {
                Sending::ColdFile(file) => self.send_slice(token, file),
                // Nothing else may be lost because a file was read.
                other @ (Sending::Idle | Sending::InFlight(_) | Sending::File(_)) => {
                    session.sending = other;
                }
            }
            return self.pump(token);
        }
        if let State::Body(_) = session.state {
            while let Some(output) = self.slots.of(token).and_then(|session| {
                let spooled = matches!(session.outputs.front(), Some(Output::Spooled(_)));
                if spooled { session.outputs.pop_front() } else { None }
            }) {
                if let Output::Spooled(result) = output {
                    self.on_spooled(token, result);
                }
            }
        }
        self.pump(token);
    }

    /// Sends outputs in order until one has to wait.
    pub(super) fn pump(&mut self, token: Token) {
        while !self.is_sending(token) {
            let Some(session) = self.slots.of(token) else { return };
            if let State::Closing | State::Lingering(_) = session.state {
                session.outputs.clear();
                return;
            }
            let Some(output) = session.outputs.pop_front() else { return };
            if self.settings.access_log.is_some() {
                self.note_beginning(token, &output);
            }
            match output {
                Output::Data { head, body, end } => self.send_data(token, head, body, end),
                Output::File { head, file, offset, length, end } => {
                    let file = Arc::new(file);
                    let piece = FilePiece { file, offset, remaining: length, end };
                    self.send_file(token, head, piece);
                }
                Output::Abort => self.abort(token),
                // The body was complete or given up before the answer: nothing to settle.
                Output::Spooled(_) | Output::Warmed => {}
            }
        }
    }

    /// For the access log: when the response began to leave, and how, if it wants to know.
    fn note_beginning(&mut self, token: Token, output: &Output) {
        let (Output::Data { head, .. } | Output::File { head, .. }) = output else { return };
        let now = self.now;
        let wants_response =
            self.settings.access_log.as_ref().is_some_and(|sink| sink.wants_response());
        let Some(session) = self.slots.of(token) else { return };
        // `100 Continue` is not the response.
        let State::Answering(answer) = &session.state else { return };
        if let Some(exchange) = answer.exchange() {
            exchange.mark_sent(now);
        }
        if wants_response && session.response.is_empty() {
            // One more reference; the bytes live until the entry is made.
            session.response = head.clone();
        }
    }

    fn send_data(&mut self, token: Token, head: Bytes, body: Bytes, end: Option<End>) {
        let mut piece =
            Piece { credit_bytes: head.len() + body.len(), pieces: 1, end, before_file: false };
        let (head, body) = self.coalesce(token, head, body, &mut piece);
        if head.is_empty() && body.is_empty() {
            return self.settle(token, piece);
        }
        match self.hand_over(token, head, body, false) {
            Ok(io::Sending::Complete) => self.settle(token, piece),
            Ok(io::Sending::InFlight { .. }) => self.leave_in_flight(token, piece),
            Err(error) => self.sending_failed(token, &error),
        }
    }

    /// Small pieces that wait one behind the other leave in one send.
    fn coalesce(
        &mut self,
        token: Token,
        head: Bytes,
        body: Bytes,
        piece: &mut Piece,
    ) -> (Bytes, Bytes) {
        let Some(session) = self.slots.of(token) else { return (head, body) };
        let mut joined: Option<BytesMut> = None;
        while piece.end.is_none() && piece.credit_bytes < limits::COALESCE_BYTES_MAX {
            let Some(Output::Data { head: next_head, body: next_body, .. }) =
                session.outputs.front()
            else {
                break;
            };
            let length = next_head.len() + next_body.len();
            if piece.credit_bytes + length > limits::COALESCE_BYTES_MAX {
                break;
            }
            let out = joined.get_or_insert_with(|| {
                let mut out = BytesMut::with_capacity(limits::COALESCE_BYTES_MAX);
                out.extend_from_slice(&head);
                out.extend_from_slice(&body);
                out
            });
            out.extend_from_slice(next_head);
            out.extend_from_slice(next_body);
            piece.credit_bytes += length;
            piece.pieces += 1;
            if let Some(Output::Data { end, .. }) = session.outputs.pop_front() {
                piece.end = end;
            }
        }
        match joined {
            Some(out) => (out.freeze(), Bytes::new()),
            None => (head, body),
        }
    }

    fn leave_in_flight(&mut self, token: Token, piece: Piece) {
        let acknowledged = self.io.acknowledged(token);
        let Some(session) = self.slots.of(token) else { return };
        session.sending = Sending::InFlight(piece);
        session.acknowledged = acknowledged;
        self.watch_send(token);
    }

    /// The kernel has all of a piece.
    fn settle(&mut self, token: Token, piece: Piece) {
        let Some(session) = self.slots.of(token) else { return };
        session.sending = Sending::Idle;
        Wheel::clear(&mut session.send_timer);
        if let State::Answering(Answer::Of(exchange)) = &session.state
            && piece.end.is_none()
        {
            exchange.refund(piece.credit_bytes, piece.pieces);
        }
        if piece.before_file {
            match session.file_after.take() {
                Some(file) => return self.continue_file(token, file),
                None => tracing::error!("bug: a file's head was sent and the file is gone"),
            }
        }
        if let Some(end) = piece.end {
            self.complete_response(token, end);
        }
    }

    pub(super) fn on_sent(&mut self, token: Token, result: std_io::Result<usize>) {
        let Some(session) = self.slots.of(token) else {
            self.late_count += 1;
            return;
        };
        let Sending::InFlight(piece) = &session.sending else { return };
        let piece = *piece;
        match result {
            Ok(_) => {
                self.settle(token, piece);
                self.pump(token);
            }
            Err(error) => self.sending_failed(token, &error),
        }
    }

    // Files.

    fn send_file(&mut self, token: Token, head: Bytes, file: FilePiece) {
        if head.is_empty() {
            return self.continue_file(token, file);
        }
        // One output: its piece is given back with the file's last byte.
        let piece = Piece { credit_bytes: head.len(), pieces: 0, end: None, before_file: true };
        let Some(session) = self.slots.of(token) else { return };
        let more = file.remaining > 0;
        session.file_after = Some(file);
        match self.hand_over(token, head, Bytes::new(), more) {
            Ok(io::Sending::Complete) => self.settle(token, piece),
            Ok(io::Sending::InFlight { .. }) => self.leave_in_flight(token, piece),
            Err(error) => self.sending_failed(token, &error),
        }
    }

    /// Sends one slice and asks to be called again, so that others get their turn.
    fn continue_file(&mut self, token: Token, file: FilePiece) {
        let count = file.next_count();
        if count > 0 && !is_cached(&file.file, file.offset, count) {
            // `sendfile` would wait for the disk, and everybody with it (URING §6.11).
            let Some(session) = self.slots.of(token) else { return };
            if let State::Answering(Answer::Of(exchange)) = &session.state {
                let (exchange, shared) = (Arc::clone(exchange), Arc::clone(&file.file));
                self.spool.warm(shared, file.offset, count, exchange);
                session.sending = Sending::ColdFile(file);
                // The disk is waited for, not the client.
                return Wheel::clear(&mut session.send_timer);
            }
        }
        self.send_slice(token, file);
    }

    fn send_slice(&mut self, token: Token, mut file: FilePiece) {
        if file.remaining > 0 {
            let count = file.next_count();
            match self.io.send_file(token, file.file.as_fd(), file.offset, count) {
                Ok(0) => {
                    tracing::error!(
                        missing_bytes = file.remaining,
                        "a file ended before the length its response promised: response aborted"
                    );
                    self.spool.release(file.file);
                    return self.abort(token);
                }
                Ok(taken) => {
                    file.offset += taken as u64;
                    file.remaining = file.remaining.saturating_sub(taken as u64);
                }
                Err(error) if error.kind() == std_io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.spool.release(file.file);
                    return self.sending_failed(token, &error);
                }
            }
        }
        let acknowledged = self.io.acknowledged(token);
        let Some(session) = self.slots.of(token) else { return };
        if file.remaining == 0 {
            self.spool.release(file.file);
            let piece = Piece { credit_bytes: 0, pieces: 1, end: file.end, before_file: false };
            return self.settle(token, piece);
        }
        session.sending = Sending::File(file);
        session.acknowledged = acknowledged;
        self.watch_send(token);
        self.io.want_writable(token);
    }

    pub(super) fn on_writable(&mut self, token: Token) {
        let Some(session) = self.slots.of(token) else { return };
        if let Sending::File(_) = session.sending
            && let Sending::File(file) = std::mem::take(&mut session.sending)
        {
            self.continue_file(token, file);
            self.pump(token);
        }
    }

    // Ends.

    /// The last byte of a response is the kernel's.
    fn complete_response(&mut self, token: Token, end: End) {
        self.log_access(token, end, false);
        // A response that was begun before the drain has promised to keep the connection: the next
        // request may be on its way, and has the whole window too (RULES 25).
        let window = self.settings.drain_idle;
        let kept_until = (self.is_draining() && !window.is_zero()).then(|| self.now + window);
        let over = self.idle_is_over() && kept_until.is_none();
        let Some(session) = self.slots.of(token) else { return };
        let own = matches!(session.state, State::Answering(Answer::Own));
        // A client that was sure of its connection may be sending the next request.
        let unexpected = own || matches!(session.state, State::Answering(Answer::InsteadOf(_)));
        let unread = session.http.awaits_body() || unexpected;
        if session.http.response_complete(end.keep_alive && !own) {
            session.state = State::Head;
            session.kept_until = kept_until;
            let waiting = !session.input.is_empty() || session.peer_finished;
            if waiting {
                // Not from here: a thousand pipelined requests would be a thousand frames deep.
                session.watch = Watch::Nothing;
                self.ready.push(token);
            } else if over {
                return self.close(token);
            } else {
                self.watch(token, Watch::Idle);
            }
            return self.resume(token);
        }
        if session.peer_finished || (!unread && session.input.is_empty()) {
            return self.close(token);
        }
        // What is not read when a socket is closed makes the kernel send RST, which can overtake
        // the answer (RFC 9112 §9.6).
        session.input = BytesMut::new();
        session.state = State::Lingering(self.now + limits::LINGER_TOTAL);
        self.io.shutdown_write(token);
        self.resume(token);
        self.watch(token, Watch::Linger);
    }

    fn log_access(&mut self, token: Token, end: End, aborted: bool) {
        let Some(sink) = self.settings.access_log.clone() else { return };
        let now = self.now;
        let Some(session) = self.slots.of(token) else { return };
        let response = std::mem::take(&mut session.response);
        if let Some(exchange) = session.exchange() {
            let Durations { queue, run, until_sent } = exchange.durations();
            let total = now.saturating_duration_since(exchange.received);
            let write = until_sent.map(|until_sent| total.saturating_sub(until_sent));
            let response = &response[..];
            sink.record(AccessEntry { exchange, end, total, queue, run, write, response, aborted });
        }
    }

    fn sending_failed(&mut self, token: Token, error: &std_io::Error) {
        tracing::debug!(%error, slot = token.slot_index(), "sending failed: the client is gone");
        self.broken(token);
    }

    /// The connection is of no use any more; whoever works for it is told.
    pub(super) fn broken(&mut self, token: Token) {
        if let Some(session) = self.slots.of(token)
            && let State::Answering(Answer::Of(_) | Answer::InsteadOf(_)) = session.state
        {
            // 499, as nginx writes it: no status reached the client.
            self.log_access(token, End { status: 499, body_bytes: 0, keep_alive: false }, true);
        }
        self.close(token);
    }

    /// The response cannot be completed, and the client has to see that.
    fn abort(&mut self, token: Token) {
        self.log_access(token, End { status: 500, body_bytes: 0, keep_alive: false }, true);
        if self.give_up(token) {
            self.io.reset(token);
        }
    }

    /// Closes the connection; its slot is free at `Closed`.
    pub(super) fn close(&mut self, token: Token) {
        if self.give_up(token) {
            self.io.close(token);
        }
    }

    /// False: given up before.
    fn give_up(&mut self, token: Token) -> bool {
        let Some(session) = self.slots.of(token) else { return false };
        if let State::Closing = session.state {
            return false;
        }
        if let Some(exchange) = session.exchange() {
            exchange.set_gone();
        }
        let mut outputs = std::mem::take(&mut session.outputs);
        if let Some(exchange) = session.exchange() {
            exchange.take_outputs(&mut outputs);
        }
        let mut files = Vec::new();
        files.extend(session.file_after.take().map(|piece| piece.file));
        if let Sending::File(piece) | Sending::ColdFile(piece) =
            std::mem::take(&mut session.sending)
        {
            files.push(piece.file);
        }
        Wheel::clear(&mut session.send_timer);
        session.state = State::Closing;
        session.input = BytesMut::new();
        for output in outputs {
            if let Output::File { file, .. } = output {
                files.push(Arc::new(file));
            }
        }
        for file in files {
            self.spool.release(file);
        }
        self.watch(token, Watch::Nothing);
        true
    }

    /// The clock of what is on its way out; it runs until that is settled, whatever the connection is
    /// watched for besides.
    fn watch_send(&mut self, token: Token) {
        let Some(session) = self.slots.of(token) else { return };
        let deadline = self.now + self.settings.send_timeout;
        self.wheel.set(token, &mut session.send_timer, deadline);
    }

    /// `--send-timeout` passed: was there progress that only the kernel has seen?
    pub(super) fn on_send_deadline(&mut self, token: Token) {
        let acknowledged = self.io.acknowledged(token);
        let Some(session) = self.slots.of(token) else { return };
        if acknowledged != session.acknowledged {
            session.acknowledged = acknowledged;
            return self.watch_send(token);
        }
        tracing::debug!(slot = token.slot_index(), "the client reads nothing: connection reset");
        self.log_access(token, End { status: 499, body_bytes: 0, keep_alive: false }, true);
        if self.give_up(token) {
            self.io.reset(token);
        }
    }
}
