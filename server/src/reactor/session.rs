//! One connection: where its request stands, what it still has to send, when it must have moved.

use std::collections::VecDeque;
use std::fs::File;
use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::io::{ListenerIndex, Peer};
use super::timers::Timer;
use super::token::Token;
use crate::exchange::{Body, End, Exchange, Output};
use crate::http;
use crate::limits;
use crate::spool::Upload;
use crate::sync::Arc;

/// Where the request stands.
#[derive(Debug)]
pub(crate) enum State {
    /// Between requests, or inside a head.
    Head,
    /// The body comes in; the application has not been asked.
    Body(Incoming),
    /// The answer is being made or sent.
    Answering(Answer),
    /// Our last answer is out and our side is closed; what the peer still sends is thrown away, so
    /// that it gets to read the answer (a reset would take it away). Ends at the moment or before.
    Lingering(Instant),
    /// Given up; the slot waits for `Closed`.
    Closing,
}

/// A request whose body comes in.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) exchange: Arc<Exchange>,
    pub(crate) collected: Collected,
    /// Bytes received, coding removed. **Unit**: bytes.
    pub(crate) received: u64,
    /// The last byte is in; only the spool's writer is waited for.
    pub(crate) complete: bool,
}

/// Where the bytes of a body are.
#[derive(Debug)]
pub(crate) enum Collected {
    /// Nothing yet.
    Nothing,
    /// One piece, as it came.
    Whole(Bytes),
    /// Several pieces, put together.
    Memory(BytesMut),
    /// More than memory takes.
    Spooling(Upload),
}

impl Collected {
    /// The finished body. `None`: the spool's writer left no file, a bug of ours.
    pub(crate) fn into_body(self) -> Option<Body> {
        match self {
            Self::Nothing => Some(Body::Empty),
            Self::Whole(bytes) => Some(Body::Memory(bytes)),
            Self::Memory(bytes) => Some(Body::Memory(bytes.freeze())),
            Self::Spooling(upload) => upload
                .into_file()
                .map(|(file, length, reservation)| Body::Spooled { file, length, reservation }),
        }
    }
}

/// Who answers.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The application, or the server in its place for a request that was understood.
    Of(Arc<Exchange>),
    /// The server, to a request that was taken from the application when its time was over.
    InsteadOf(Arc<Exchange>),
    /// The server, to something that was no request.
    Own,
    /// The server, to a request that the application never sees.
    Probe,
}

impl Answer {
    pub(crate) fn exchange(&self) -> Option<&Arc<Exchange>> {
        match self {
            Self::Of(exchange) | Self::InsteadOf(exchange) => Some(exchange),
            Self::Own | Self::Probe => None,
        }
    }
}

/// What is on its way out.
#[derive(Debug, Default)]
pub(crate) enum Sending {
    /// Nothing; the next output may go.
    #[default]
    Idle,
    /// The `Io` has it and will say `Sent`.
    InFlight(Piece),
    /// A file's bytes follow when the `Io` says `Writable`.
    File(FilePiece),
    /// The next slice is not in the page cache and is being read by the files' thread.
    ColdFile(FilePiece),
}

/// What one output was worth, to be settled when the kernel has all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// Credit to give back. **Unit**: bytes.
    pub(crate) credit_bytes: usize,
    /// How many pieces it was made of.
    pub(crate) pieces: usize,
    /// The response is complete with it.
    pub(crate) end: Option<End>,
    /// The head before a file: go on with `file_after`.
    pub(crate) before_file: bool,
}

/// A part of a file that is being sent.
#[derive(Debug)]
pub(crate) struct FilePiece {
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
    /// Bytes still to send.
    pub(crate) remaining: u64,
    pub(crate) end: Option<End>,
}

impl FilePiece {
    /// Bytes of the next slice.
    pub(crate) fn next_count(&self) -> usize {
        self.remaining.min(limits::SEND_FILE_BYTES_MAX as u64) as usize
    }
}

/// Why the connection is watched by the clock, apart from what is on its way out.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Watch {
    /// It is not: the application works.
    #[default]
    Nothing,
    /// `--keep-alive`, between requests.
    Idle,
    /// `--header-timeout`.
    Head,
    /// `--body-timeout`.
    Body,
    /// `--request-timeout`, until the response begins.
    Answer,
    /// The bounds of lingering.
    Linger,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) listener: ListenerIndex,
    pub(crate) peer: Peer,
    /// What it says about clients is believed.
    pub(crate) is_trusted_proxy: bool,
    /// It came to the admin listener: not one of `--max-connections`.
    pub(crate) is_admin: bool,
    pub(crate) http: http::Connection,
    /// Received and not yet understood.
    pub(crate) input: BytesMut,
    pub(crate) state: State,
    /// Outputs that wait for the one that is being sent.
    pub(crate) outputs: VecDeque<Output>,
    pub(crate) sending: Sending,
    /// The file that follows a head in flight.
    pub(crate) file_after: Option<FilePiece>,
    /// The peer will send nothing more (FIN).
    pub(crate) peer_finished: bool,
    /// Not read: its budget is used up.
    pub(crate) paused: bool,
    /// It became idle in a drain, after a response that promised to keep the connection: not closed
    /// before this moment.
    pub(crate) kept_until: Option<Instant>,
    pub(crate) watch: Watch,
    /// Of `watch`.
    pub(crate) timer: Timer,
    /// `--send-timeout`, of `sending`. Beside the other: an interim answer may hang in the peer's full
    /// buffer while the body comes in and the application works.
    pub(crate) send_timer: Timer,
    /// The first bytes of the response that is being sent, for an access log that wants them.
    pub(crate) response: Bytes,
    /// What the peer had acknowledged when the send deadline was last set. **Unit**: bytes.
    pub(crate) acknowledged: u64,
}

impl Session {
    pub(crate) fn new(listener: ListenerIndex, peer: Peer, http: http::Connection) -> Self {
        Self {
            listener,
            peer,
            is_trusted_proxy: false,
            is_admin: false,
            http,
            input: BytesMut::new(),
            state: State::Head,
            outputs: VecDeque::new(),
            sending: Sending::Idle,
            file_after: None,
            peer_finished: false,
            paused: false,
            watch: Watch::Nothing,
            kept_until: None,
            timer: Timer::default(),
            send_timer: Timer::default(),
            response: Bytes::new(),
            acknowledged: 0,
        }
    }

    /// The request that is being received or answered.
    pub(crate) fn exchange(&self) -> Option<&Arc<Exchange>> {
        match &self.state {
            State::Body(incoming) => Some(&incoming.exchange),
            State::Answering(answer) => answer.exchange(),
            State::Head | State::Lingering(_) | State::Closing => None,
        }
    }

    /// Whether nothing is owed to the peer: between requests with nothing received of the next, or
    /// only kept for it to read its last answer.
    pub(crate) fn is_done(&self) -> bool {
        match self.state {
            State::Head => self.input.is_empty(),
            State::Lingering(_) => true,
            State::Body(_) | State::Answering(_) | State::Closing => false,
        }
    }

    /// Whether it may be closed in a drain whose window for idle connections is over.
    pub(crate) fn is_closable(&self, now: Instant) -> bool {
        self.is_done() && self.kept_until.is_none_or(|moment| now >= moment)
    }

    /// Whether a complete request is being dealt with: what comes in meanwhile is the next one's.
    pub(crate) fn has_complete_request(&self) -> bool {
        match &self.state {
            State::Body(incoming) => incoming.complete,
            State::Answering(_) => true,
            State::Head | State::Lingering(_) | State::Closing => false,
        }
    }
}

/// One place for a connection. The token changes with each use.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) token: Token,
    pub(crate) session: Option<Session>,
}

/// All places. An index is reused only after `Closed`, with the next generation.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    public_count: usize,
    admin_count: usize,
}

impl Slots {
    /// Takes a place.
    pub(crate) fn insert(&mut self, session: Session) -> Token {
        *self.count_of(&session) += 1;
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.session = Some(session);
            return slot.token;
        }
        let token = Token::new(self.slots.len() as u32, 0);
        self.slots.push(Slot { token, session: Some(session) });
        token
    }

    /// The connection of a token, unless its slot has been reused or is free.
    pub(crate) fn of(&mut self, token: Token) -> Option<&mut Session> {
        let slot = self.slots.get_mut(token.slot_index())?;
        if slot.token == token { slot.session.as_mut() } else { None }
    }

    /// Frees a place; what late entries call it by will not be found.
    pub(crate) fn remove(&mut self, token: Token) -> Option<Session> {
        let slot = self.slots.get_mut(token.slot_index())?;
        if slot.token != token {
            return None;
        }
        let session = slot.session.take()?;
        slot.token = token.successor();
        self.free.push(token.slot_index() as u32);
        *self.count_of(&session) -= 1;
        Some(session)
    }

    fn count_of(&mut self, session: &Session) -> &mut usize {
        if session.is_admin { &mut self.admin_count } else { &mut self.public_count }
    }

    /// How many connections of the public listeners there are.
    pub(crate) fn len(&self) -> usize {
        self.public_count
    }

    /// How many of the admin listener there are.
    pub(crate) fn admin_len(&self) -> usize {
        self.admin_count
    }

    /// The tokens of all connections that `wanted` names.
    pub(crate) fn tokens(&self, wanted: impl Fn(&Session) -> bool) -> Vec<Token> {
        let of = |slot: &Slot| slot.session.as_ref().is_some_and(&wanted).then_some(slot.token);
        self.slots.iter().filter_map(of).collect()
    }

    /// All connections.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.slots.iter().filter_map(|slot| slot.session.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let limits = http::connection::HttpLimits {
            request_line_bytes_max: limits::REQUEST_LINE_BYTES_MAX,
            head_bytes_max: limits::HEAD_BYTES_MAX,
            field_count_max: limits::FIELD_COUNT_MAX,
        };
        Session::new(ListenerIndex(0), Peer::Unix, http::Connection::new(limits))
    }

    /// Hazard 4, invariant 1: nothing late touches a recycled slot.
    #[test]
    fn a_late_token_does_not_find_the_next_user_of_its_slot() {
        let mut slots = Slots::default();
        let first = slots.insert(session());
        assert!(slots.remove(first).is_some());
        assert!(slots.remove(first).is_none(), "a slot is freed once");
        let second = slots.insert(session());
        assert_eq!(second.slot_index(), first.slot_index());
        assert!(slots.of(first).is_none());
        assert!(slots.of(second).is_some());
        assert_eq!(slots.len(), 1);
    }
}
