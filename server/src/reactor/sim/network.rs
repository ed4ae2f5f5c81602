//! The network of the simulation: links, virtual time, and the clients' side of them.

use std::collections::VecDeque;
use std::time::Duration;

use crate::reactor::custody::Ending;
use crate::reactor::io::ListenerIndex;
use crate::sync::{Arc, Mutex, lock};

/// Names a client of the simulated network.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ClientId(pub(super) usize);

/// What a client's read found.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ClientRead {
    /// Bytes, at most as many as asked for.
    Bytes(Vec<u8>),
    /// Nothing yet.
    Nothing,
    /// The server's FIN, after all bytes.
    Eof,
    /// The connection was reset.
    Reset,
}

/// What a client does later: see [`Network::schedule`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Act {
    /// Writes all of it, whatever the window.
    Write(Vec<u8>),
    /// Sends FIN.
    Finish,
    /// Sends RST.
    Reset,
}

/// One connection, both directions.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) to_server: VecDeque<u8>,
    pub(super) to_client: VecDeque<u8>,
    pub(super) client_finished: bool,
    pub(super) server_finished: bool,
    /// Beyond that: nobody would read what the client sends.
    pub(super) server_closed: bool,
    /// Reset by either side or by the network.
    pub(super) broken: bool,
    /// Bytes that the client has read.
    pub(super) read_count: u64,
}

impl Link {
    /// What the server may send before the client reads. **Unit**: bytes.
    pub(super) fn room(&self) -> usize {
        if self.server_finished { 0 } else { WINDOW_BYTES.saturating_sub(self.to_client.len()) }
    }

    /// Whether a read of the server would return.
    pub(super) fn is_readable(&self) -> bool {
        !self.to_server.is_empty() || self.client_finished || self.broken
    }

    /// Whether a send of the server would return.
    pub(super) fn is_writable(&self) -> bool {
        self.room() > 0 || self.broken
    }

    /// The server's bytes leave: the first `count` of head and body.
    pub(super) fn carry(&mut self, [head, body]: [&[u8]; 2], count: usize) {
        let of_head = count.min(head.len());
        self.to_client.extend(&head[..of_head]);
        self.to_client.extend(&body[..count - of_head]);
    }

    /// The server's socket is gone.
    pub(super) fn end(&mut self, ending: Ending) {
        match ending {
            // Closing with unread bytes sends RST, as the kernel does, and what the client has not
            // read yet is lost: the reason for a lingering close.
            Ending::Close if !self.to_server.is_empty() => self.end(Ending::Reset),
            Ending::Close => {
                self.server_finished = true;
                self.server_closed = true;
            }
            Ending::Reset => {
                self.to_client.clear();
                self.broken = true;
            }
        }
        self.to_server.clear();
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) now: Duration,
    pub(super) links: Vec<Link>,
    /// Connections that no accept has taken, by listener.
    pub(super) backlogs: Vec<VecDeque<usize>>,
    /// What clients do later, not in order.
    pub(super) scheduled: Vec<(Duration, ClientId, Act)>,
}

impl State {
    /// Does what is due.
    pub(super) fn act(&mut self) {
        let now = self.now;
        let (mut due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.scheduled).into_iter().partition(|(at, ..)| *at <= now);
        self.scheduled = later;
        due.sort_by_key(|(at, ..)| *at);
        for (_, client, act) in due {
            let link = &mut self.links[client.0];
            match act {
                Act::Write(bytes) => link.to_server.extend(bytes),
                Act::Finish => link.client_finished = true,
                Act::Reset => link.broken = true,
            }
        }
    }

    pub(super) fn next_act(&self) -> Option<Duration> {
        self.scheduled.iter().map(|(at, ..)| *at).min()
    }
}

/// The test's hold on the network. Cloned freely.
#[derive(Clone, Debug)]
pub struct Network(pub(super) Arc<Mutex<State>>);

impl Network {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(State::default())))
    }

    /// Virtual time since the start. Only a wait of the simulated `Io` moves it.
    #[must_use]
    pub fn now(&self) -> Duration {
        lock(&self.0).now
    }

    /// A client connects; the connection waits for an accept.
    ///
    /// **Panics** if there is no such listener.
    #[must_use]
    pub fn connect(&self, listener: ListenerIndex) -> ClientId {
        let mut state = lock(&self.0);
        state.links.push(Link {
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            client_finished: false,
            server_finished: false,
            server_closed: false,
            broken: false,
            read_count: 0,
        });
        let link = state.links.len() - 1;
        state.backlogs[listener.0].push_back(link);
        ClientId(link)
    }

    /// The client writes what the window takes; returns how many bytes that were.
    #[must_use]
    pub fn write(&self, client: ClientId, bytes: &[u8]) -> usize {
        let mut state = lock(&self.0);
        let link = &mut state.links[client.0];
        if link.server_closed {
            // Nobody is there any more: the answer is a reset.
            link.broken = true;
            return bytes.len();
        }
        let count = bytes.len().min(WINDOW_BYTES.saturating_sub(link.to_server.len()));
        link.to_server.extend(&bytes[..count]);
        count
    }

    /// The client reads up to `limit` bytes.
    #[must_use]
    pub fn read(&self, client: ClientId, limit: usize) -> ClientRead {
        let mut state = lock(&self.0);
        let link = &mut state.links[client.0];
        if link.to_client.is_empty() {
            return match (link.broken, link.server_finished) {
                (true, _) => ClientRead::Reset,
                (false, true) => ClientRead::Eof,
                (false, false) => ClientRead::Nothing,
            };
        }
        let count = limit.min(link.to_client.len());
        link.read_count += count as u64;
        ClientRead::Bytes(link.to_client.drain(..count).collect())
    }

    /// The client sends FIN and goes on reading.
    pub fn finish(&self, client: ClientId) {
        lock(&self.0).links[client.0].client_finished = true;
    }

    /// The client sends RST.
    pub fn reset(&self, client: ClientId) {
        lock(&self.0).links[client.0].broken = true;
    }

    /// The client acts when so much virtual time has passed.
    pub fn schedule(&self, after: Duration, client: ClientId, act: Act) {
        let mut state = lock(&self.0);
        let at = state.now + after;
        state.scheduled.push((at, client, act));
    }
}

/// Bytes under way in one direction. **Why**: small enough that tests fill it.
pub const WINDOW_BYTES: usize = 64 * 1024;

/// An accepted connection; dropping it closes it.
#[derive(Debug)]
pub struct SimulatedSocket {
    pub(super) link: usize,
    pub(super) network: Network,
    /// Its end was done already, under the lock.
    pub(super) ended: bool,
}

impl Drop for SimulatedSocket {
    fn drop(&mut self) {
        if !self.ended {
            lock(&self.network.0).links[self.link].end(Ending::Close);
        }
    }
}

/// A small generator (SplitMix64): the whole run follows from one seed.
#[derive(Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Zero to `bound` less one; zero if `bound` is zero.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.roll() % bound as u64) as usize }
    }

    pub(super) fn chance(&mut self, per_mille: u32) -> bool {
        self.roll() % 1000 < u64::from(per_mille)
    }
}
