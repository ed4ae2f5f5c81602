//! `Io` without a kernel: an in-memory network, virtual time, and faults that follow from one seed.
//!
//! It does what a kernel may do and a test on loopback never sees: splits reads anywhere, takes
//! part of a send, completes one connection's operations long after another's, runs out of buffers
//! and descriptors, breaks connections. And it holds its caller to the rules: a broken one panics
//! and names the seed.

mod collect;
mod network;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::custody::{Ending, Remainder, Table};
use super::io::{Chunk, Event, Io, ListenerIndex, Outgoing, Sending};
use super::token::Token;
use super::wake::Waker;
use crate::limits::RECV_BUFFER_BYTES;
use crate::sync::lock;
use crate::sys::held::Held;
pub use network::{Act, ClientId, ClientRead, Network, SimulatedSocket, WINDOW_BYTES};
use network::{Dice, Link, State};

/// How often what goes wrong. **Unit**: per mille, each time it could.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Faults {
    /// A read brings only some of the bytes that are there.
    pub short_read: u32,
    /// A send is taken in part or not at all although there is room.
    pub partial_send: u32,
    /// Whatever a connection or a listener has to report comes 1 to 50 ms later.
    pub late: u32,
    /// The network breaks a connection, on each look at it.
    pub broken: u32,
    /// No buffer is free until the next pass.
    pub starved: u32,
    /// An accept fails with `EMFILE`.
    pub exhausted: u32,
    /// A wake that nobody sent.
    pub spurious_wake: u32,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        short_read: 0,
        partial_send: 0,
        late: 0,
        broken: 0,
        starved: 0,
        exhausted: 0,
        spurious_wake: 0,
    };

    /// All of it and often, but no connection breaks: every byte must arrive.
    pub const ROUGH: Self = Self {
        short_read: 500,
        partial_send: 500,
        late: 300,
        broken: 0,
        starved: 200,
        exhausted: 200,
        spurious_wake: 100,
    };

    /// The same with connections that break.
    pub const BROKEN: Self = Self { broken: 10, ..Self::ROUGH };
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reading {
    Idle,
    Wanted,
    Over,
}

#[derive(Debug)]
struct Connection {
    socket: SimulatedSocket,
    reading: Reading,
    sending: Option<Remainder>,
    wants_writable: bool,
    ending: Option<Ending>,
    /// Reports nothing before.
    not_before: Duration,
}

impl Connection {
    fn has_something(&self, link: &Link) -> bool {
        self.ending.is_some()
            || self.reading == Reading::Wanted && link.is_readable()
            || (self.sending.is_some() || self.wants_writable) && link.is_writable()
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Accepting {
    Idle,
    Armed,
    Cancelling,
}

#[derive(Debug)]
struct Listener {
    socket: Option<Held>,
    accepting: Accepting,
    closing: bool,
    not_before: Duration,
}

/// `Io` on a simulated network.
#[derive(Debug)]
pub struct Simulated {
    seed: u64,
    dice: Dice,
    faults: Faults,
    network: Network,
    waker: Waker,
    connections: Table<Connection>,
    listeners: Vec<Listener>,
    events: VecDeque<Event<SimulatedSocket>>,
    buffers: Vec<Vec<u8>>,
    /// Buffers that hold bytes of this pass.
    filled_count: usize,
}

impl Simulated {
    /// An `Io` whose whole behaviour follows from `seed`, and the test's hold on its network.
    ///
    /// # Errors
    /// Out of descriptors (the waker is a real one).
    pub fn new(seed: u64, faults: Faults) -> io::Result<(Self, Network)> {
        let network = Network::new();
        let simulated = Self {
            seed,
            dice: Dice(seed),
            faults,
            network: network.clone(),
            waker: Waker::new()?,
            connections: Table::new(),
            listeners: Vec::new(),
            events: VecDeque::new(),
            buffers: vec![vec![POISON; RECV_BUFFER_BYTES]; BUFFER_COUNT],
            filled_count: 0,
        };
        Ok((simulated, network))
    }

    /// Adds a listener that no descriptor stands behind.
    pub fn add_simulated_listener(&mut self) -> ListenerIndex {
        self.push_listener(None)
    }

    fn push_listener(&mut self, socket: Option<Held>) -> ListenerIndex {
        lock(&self.network.0).backlogs.push(VecDeque::new());
        self.listeners.push(Listener {
            socket,
            accepting: Accepting::Idle,
            closing: false,
            not_before: Duration::ZERO,
        });
        ListenerIndex(self.listeners.len() - 1)
    }

    /// The caller broke a rule of custody.
    fn broken_rule(&self, what: impl fmt::Display) -> ! {
        panic!("simulated Io, seed {}: {what}", self.seed)
    }

    fn open(&mut self, token: Token, act: &str) -> &mut Connection {
        let is_open =
            self.connections.find(token).is_some_and(|connection| connection.ending.is_none());
        if !is_open {
            self.broken_rule(format_args!("{act} on {token:?}, which is not open"));
        }
        match self.connections.find_mut(token) {
            Some(connection) => connection,
            None => unreachable!("found above"),
        }
    }

    fn send_state(&mut self, token: Token, act: &str) -> usize {
        let connection = self.open(token, act);
        let link = connection.socket.link;
        if connection.sending.is_some() {
            self.broken_rule(format_args!("{act} on {token:?} beside a send in flight"));
        }
        link
    }

    /// How many of `count` bytes the link takes now.
    fn taken(&mut self, state: &State, link: usize, count: usize) -> io::Result<usize> {
        let link = &state.links[link];
        if link.broken {
            return Err(io::Error::from_raw_os_error(libc::EPIPE));
        }
        if link.server_finished {
            return Err(io::Error::from_raw_os_error(libc::EPIPE));
        }
        let count = count.min(link.room());
        Ok(if self.dice.chance(self.faults.partial_send) {
            self.dice.below(count + 1)
        } else {
            count
        })
    }

    /// Blocks for a wake of another thread, in real time: nothing else can happen any more.
    fn wait_for_a_wake(&self) {
        let mut descriptors = [PollFd::new(&self.waker, PollFlags::IN)];
        let patience = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
        // Interrupted: the caller looks again.
        if rustix::event::poll(&mut descriptors, Some(&patience)) == Ok(0) {
            self.broken_rule("a wait without end, and nothing that could end it");
        }
    }
}

/// What a buffer holds that is not of this pass.
const POISON: u8 = 0xdd;

/// Few, so that they run out.
const BUFFER_COUNT: usize = 16;

fn take_wakes(waker: &Waker) -> bool {
    rustix::io::read(waker.as_fd(), &mut [0_u8; 8]).is_ok()
}

impl Io for Simulated {
    type Socket = SimulatedSocket;

    fn name(&self) -> &'static str {
        "simulated"
    }

    fn add_listener(&mut self, socket: Held) -> ListenerIndex {
        self.push_listener(Some(socket))
    }

    fn arm_accept(&mut self, listener: ListenerIndex) {
        let armed = &mut self.listeners[listener.0];
        if armed.accepting == Accepting::Idle && !armed.closing {
            armed.accepting = Accepting::Armed;
        }
    }

    fn cancel_accept(&mut self, listener: ListenerIndex) {
        let armed = &mut self.listeners[listener.0];
        if armed.accepting == Accepting::Armed {
            armed.accepting = Accepting::Cancelling;
        }
    }

    fn close_listener(&mut self, listener: ListenerIndex) {
        self.cancel_accept(listener);
        let closed = &mut self.listeners[listener.0];
        closed.closing = true;
        if closed.accepting == Accepting::Idle {
            closed.socket = None;
        }
    }

    fn adopt(&mut self, token: Token, socket: SimulatedSocket) {
        let not_before = Duration::ZERO;
        let connection = Connection {
            socket,
            reading: Reading::Idle,
            sending: None,
            wants_writable: false,
            ending: None,
            not_before,
        };
        self.connections.insert(token, connection);
    }

    fn start_recv(&mut self, token: Token) {
        let connection = self.open(token, "start_recv");
        if connection.reading == Reading::Idle {
            connection.reading = Reading::Wanted;
        }
    }

    fn stop_recv(&mut self, token: Token) {
        let connection = self.open(token, "stop_recv");
        if connection.reading == Reading::Wanted {
            connection.reading = Reading::Idle;
        }
    }

    fn send(&mut self, token: Token, outgoing: Outgoing) -> io::Result<Sending> {
        let link = self.send_state(token, "send");
        if outgoing.is_empty() {
            self.broken_rule(format_args!("a send of nothing on {token:?}"));
        }
        let network = self.network.clone();
        let mut state = lock(&network.0);
        let taken = self.taken(&state, link, outgoing.len())?;
        state.links[link].carry([&outgoing.head, &outgoing.body], taken);
        if taken == outgoing.len() {
            return Ok(Sending::Complete);
        }
        self.open(token, "send").sending = Some(Remainder::new(outgoing, taken));
        Ok(Sending::InFlight { taken })
    }

    fn send_file(
        &mut self,
        token: Token,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> io::Result<usize> {
        let link = self.send_state(token, "send_file");
        let network = self.network.clone();
        let mut state = lock(&network.0);
        let count = self.taken(&state, link, count)?;
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = vec![0; count];
        let read = rustix::io::pread(file, &mut bytes[..], offset)?;
        state.links[link].to_client.extend(&bytes[..read]);
        Ok(read)
    }

    fn want_writable(&mut self, token: Token) {
        self.open(token, "want_writable").wants_writable = true;
    }

    fn acknowledged(&self, token: Token) -> u64 {
        let state = lock(&self.network.0);
        let connection = self.connections.find(token);
        connection.map_or(0, |connection| state.links[connection.socket.link].read_count)
    }

    fn is_broken(&self, token: Token) -> bool {
        let connection = self.connections.find(token);
        let state = lock(&self.network.0);
        connection.is_some_and(|connection| state.links[connection.socket.link].broken)
    }

    fn shutdown_write(&mut self, token: Token) {
        let link = self.open(token, "shutdown_write").socket.link;
        lock(&self.network.0).links[link].server_finished = true;
    }

    fn close(&mut self, token: Token) {
        self.open(token, "close").ending = Some(Ending::Close);
    }

    fn reset(&mut self, token: Token) {
        self.open(token, "reset").ending = Some(Ending::Reset);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if self.filled_count != 0 {
            self.broken_rule("a wait before the end of the pass");
        }
        let network = self.network.clone();
        let mut state = lock(&network.0);
        let deadline = timeout.map(|timeout| state.now + timeout);
        loop {
            self.collect(&mut state);
            if !self.events.is_empty() || deadline.is_some_and(|deadline| state.now >= deadline) {
                return Ok(());
            }
            let next = self.next_moment(&state).map(|next| next.max(state.now + INSTANT));
            match next.into_iter().chain(deadline).min() {
                Some(moment) => state.now = moment,
                None => {
                    drop(state);
                    self.wait_for_a_wake();
                    state = lock(&network.0);
                }
            }
        }
    }

    fn next_event(&mut self) -> Option<Event<SimulatedSocket>> {
        loop {
            let event = self.events.pop_front()?;
            let token = match &event {
                Event::Data { token, .. }
                | Event::Eof { token }
                | Event::RecvFailed { token, .. }
                | Event::Sent { token, .. }
                | Event::Writable { token } => *token,
                Event::Accepted { .. }
                | Event::AcceptFailed { .. }
                | Event::Closed { .. }
                | Event::Woken => return Some(event),
            };
            let connection = self.connections.find(token);
            if connection.is_some_and(|connection| connection.ending.is_none()) {
                return Some(event);
            }
        }
    }

    fn chunk(&self, chunk: Chunk) -> &[u8] {
        if chunk.buffer as usize >= self.filled_count {
            self.broken_rule(format_args!("{chunk:?} is not of this pass"));
        }
        let start = chunk.offset as usize;
        &self.buffers[chunk.buffer as usize][start..start + chunk.length as usize]
    }

    fn end_pass(&mut self) {
        for buffer in &mut self.buffers[..self.filled_count] {
            buffer.fill(POISON);
        }
        self.filled_count = 0;
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn shutdown(self) {
        // Dropping the sockets closes them.
    }
}

/// The least that virtual time moves by when something could happen now but was put off.
const INSTANT: Duration = Duration::from_micros(1);

#[cfg(test)]
mod tests;
