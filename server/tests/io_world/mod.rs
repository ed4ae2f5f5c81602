//! A server's and its clients' side in one thread, in lock step, over any `Io`.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use hoopsnake_server::clock;
use hoopsnake_server::reactor::io::{Event, Io, ListenerIndex, Outgoing, Sending};
use hoopsnake_server::reactor::sim::{ClientId, ClientRead, Faults, Network, Simulated};
use hoopsnake_server::reactor::token::Token;
use hoopsnake_server::reactor::wake::Waker;
use hoopsnake_server::sys::epoll::Epoll;
use hoopsnake_server::sys::held::Held;
use hoopsnake_server::sys::ring::{Ring, RingSize};
use hoopsnake_server::sys::socket::{self, LocalAddress, TcpOptions};

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// What a client's read found.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Found {
    Bytes(Vec<u8>),
    Nothing,
    Eof,
    Reset,
}

/// An `Io` with a way to connect to it.
pub(crate) trait World {
    type Io: Io;
    type Client;
    /// Bytes that no window holds.
    const LARGE_BYTES: usize;
    fn io(&mut self) -> &mut Self::Io;
    fn connect(&mut self) -> Self::Client;
    /// Bytes taken, which may be none.
    fn write(&mut self, client: &mut Self::Client, bytes: &[u8]) -> usize;
    fn read(&mut self, client: &mut Self::Client, limit: usize) -> Found;
    fn finish(&mut self, client: &mut Self::Client);
    fn reset(&mut self, client: Self::Client);
}

/// A kernel `Io` on a loopback listener, listener 0.
pub(crate) struct Kernel<I> {
    pub(crate) io: I,
    pub(crate) address: SocketAddr,
}

pub(crate) fn listener() -> (OwnedFd, SocketAddr) {
    let options = TcpOptions { backlog_count: 1024, reuse_port: false };
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = socket::listen_tcp(any, options).expect("a free port");
    match socket::local_address(&listener).expect("bound") {
        LocalAddress::Inet(address) => (listener, address),
        other @ (LocalAddress::Path(_) | LocalAddress::Unnamed) => panic!("{other:?}"),
    }
}

impl<I: Io> Kernel<I> {
    pub(crate) fn new(mut io: I) -> Self {
        let (listener, address) = listener();
        assert_eq!(io.add_listener(Held::new(listener)), ListenerIndex(0));
        Self { io, address }
    }
}

pub(crate) fn waker() -> Waker {
    Waker::new().expect("a descriptor")
}

pub(crate) fn ring() -> Kernel<Ring> {
    Kernel::new(Ring::new(waker()).expect("io_uring is allowed here"))
}

pub(crate) fn small_ring(submission: u32, completion: u32, buffers: u16) -> Kernel<Ring> {
    let size = RingSize::new(submission, completion, buffers);
    Kernel::new(Ring::with_sizes(&[size], waker()).expect("io_uring is allowed here"))
}

pub(crate) fn epoll() -> Kernel<Epoll> {
    Kernel::new(Epoll::new(waker()).expect("epoll"))
}

impl<I: Io> World for Kernel<I> {
    type Io = I;
    type Client = TcpStream;
    const LARGE_BYTES: usize = 8 * 1024 * 1024;

    fn io(&mut self) -> &mut I {
        &mut self.io
    }

    fn connect(&mut self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the listener listens");
        stream.set_nonblocking(true).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        stream
    }

    fn write(&mut self, client: &mut TcpStream, bytes: &[u8]) -> usize {
        match client.write(bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => panic!("client: {error}"),
        }
    }

    fn read(&mut self, client: &mut TcpStream, limit: usize) -> Found {
        let mut bytes = vec![0; limit];
        match client.read(&mut bytes) {
            Ok(0) => Found::Eof,
            Ok(count) => {
                bytes.truncate(count);
                Found::Bytes(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Found::Nothing,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Found::Reset,
            Err(error) => panic!("client: {error}"),
        }
    }

    fn finish(&mut self, client: &mut TcpStream) {
        client.shutdown(std::net::Shutdown::Write).expect("connected");
    }

    fn reset(&mut self, client: TcpStream) {
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("a socket");
    }
}

/// A simulated network with one listener.
pub(crate) struct Simulation {
    io: Simulated,
    pub(crate) network: Network,
}

pub(crate) fn simulation(seed: u64, faults: Faults) -> Simulation {
    let (mut io, network) = Simulated::new(seed, faults).expect("a descriptor");
    assert_eq!(io.add_simulated_listener(), ListenerIndex(0));
    Simulation { io, network }
}

impl World for Simulation {
    type Io = Simulated;
    type Client = ClientId;
    const LARGE_BYTES: usize = 300_000;

    fn io(&mut self) -> &mut Simulated {
        &mut self.io
    }

    fn connect(&mut self) -> ClientId {
        self.network.connect(ListenerIndex(0))
    }

    fn write(&mut self, client: &mut ClientId, bytes: &[u8]) -> usize {
        self.network.write(*client, bytes)
    }

    fn read(&mut self, client: &mut ClientId, limit: usize) -> Found {
        match self.network.read(*client, limit) {
            ClientRead::Bytes(bytes) => Found::Bytes(bytes),
            ClientRead::Nothing => Found::Nothing,
            ClientRead::Eof => Found::Eof,
            ClientRead::Reset => Found::Reset,
        }
    }

    fn finish(&mut self, client: &mut ClientId) {
        self.network.finish(*client);
    }

    fn reset(&mut self, client: ClientId) {
        self.network.reset(client);
    }
}

/// What a server recorded of one connection.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) received: Vec<u8>,
    pub(crate) received_count: usize,
    pub(crate) eof: bool,
    pub(crate) failed: Option<io::ErrorKind>,
    pub(crate) sent: Vec<io::Result<usize>>,
    pub(crate) in_flight: bool,
    pub(crate) writable_count: usize,
    pub(crate) queue: std::collections::VecDeque<Bytes>,
}

/// What is done with bytes as they come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Manner {
    /// Keep them.
    Collect,
    /// Count them.
    Count,
    /// Send them back.
    Echo,
}

/// The server's side: slots, and what happened to each.
pub(crate) struct Server<W: World> {
    pub(crate) world: W,
    pub(crate) manner: Manner,
    pub(crate) open: HashMap<Token, Seen>,
    pub(crate) closed: Vec<(Token, Seen)>,
    pub(crate) accepted: Vec<Token>,
    pub(crate) accept_failures: Vec<io::Error>,
    pub(crate) woken_count: usize,
    pub(crate) pass_count: usize,
    pub(crate) longest_pass: usize,
    closing: HashMap<Token, Seen>,
    free: Vec<Token>,
    slot_count: u32,
    rearm: bool,
}

impl<W: World> Server<W> {
    pub(crate) fn new(mut world: W, manner: Manner) -> Self {
        world.io().arm_accept(ListenerIndex(0));
        Self {
            world,
            manner,
            open: HashMap::new(),
            closed: Vec::new(),
            accepted: Vec::new(),
            accept_failures: Vec::new(),
            woken_count: 0,
            pass_count: 0,
            longest_pass: 0,
            closing: HashMap::new(),
            free: Vec::new(),
            slot_count: 0,
            rearm: true,
        }
    }

    /// No more accepts after the armed one.
    pub(crate) fn stop_accepting(&mut self) {
        self.rearm = false;
        self.world.io().cancel_accept(ListenerIndex(0));
    }

    fn token(&mut self) -> Token {
        self.free.pop().unwrap_or_else(|| {
            self.slot_count += 1;
            Token::new(self.slot_count - 1, 0)
        })
    }

    /// One pass: wait, take all events, end.
    pub(crate) fn pass(&mut self, timeout: Duration) {
        self.world.io().wait(Some(timeout)).expect("the Io works");
        self.pass_count += 1;
        let mut event_count = 0;
        while let Some(event) = self.world.io().next_event() {
            event_count += 1;
            self.dispatch(event);
        }
        self.longest_pass = self.longest_pass.max(event_count);
        self.world.io().end_pass();
    }

    fn dispatch(&mut self, event: Event<<W::Io as Io>::Socket>) {
        match event {
            Event::Accepted { listener, socket, .. } => {
                assert_eq!(listener, ListenerIndex(0));
                let token = self.token();
                self.world.io().adopt(token, socket);
                self.world.io().start_recv(token);
                self.open.insert(token, Seen::default());
                self.accepted.push(token);
                if self.rearm {
                    self.world.io().arm_accept(listener);
                }
            }
            Event::AcceptFailed { listener, error } => {
                if self.rearm && error.raw_os_error() != Some(libc::ECANCELED) {
                    self.world.io().arm_accept(listener);
                }
                self.accept_failures.push(error);
            }
            Event::Data { token, chunk } => self.data(token, chunk),
            Event::Eof { token } => {
                let seen = self.seen(token);
                assert!(!seen.eof && seen.failed.is_none(), "reading ended twice");
                seen.eof = true;
            }
            Event::RecvFailed { token, error } => {
                let seen = self.seen(token);
                assert!(!seen.eof && seen.failed.is_none(), "reading ended twice");
                seen.failed = Some(error.kind());
            }
            Event::Sent { token, result } => {
                let seen = self.seen(token);
                assert!(std::mem::take(&mut seen.in_flight), "a completion of no send");
                seen.sent.push(result);
                self.pump(token);
            }
            Event::Writable { token } => self.seen(token).writable_count += 1,
            Event::Closed { token } => {
                let seen = self.closing.remove(&token).expect("only what was given up is closed");
                self.closed.push((token, seen));
                self.free.push(token.successor());
            }
            Event::Woken => self.woken_count += 1,
        }
    }

    pub(crate) fn seen(&mut self, token: Token) -> &mut Seen {
        let seen = self.open.get_mut(&token);
        seen.expect("no event of a connection that is not open")
    }

    fn data(&mut self, token: Token, chunk: hoopsnake_server::reactor::io::Chunk) {
        let bytes = self.world.io().chunk(chunk).to_vec();
        assert!(!bytes.is_empty(), "a chunk without bytes");
        let manner = self.manner;
        let seen = self.seen(token);
        assert!(!seen.eof && seen.failed.is_none(), "bytes after the end");
        seen.received_count += bytes.len();
        match manner {
            Manner::Collect => seen.received.extend(bytes),
            Manner::Count => {}
            Manner::Echo => {
                seen.queue.push_back(bytes.into());
                self.pump(token);
            }
        }
    }

    /// Sends what is queued, one send at a time.
    pub(crate) fn pump(&mut self, token: Token) {
        loop {
            let seen = self.open.get_mut(&token).expect("open");
            if seen.in_flight {
                return;
            }
            let Some(head) = seen.queue.pop_front() else { return };
            let body = seen.queue.pop_front().unwrap_or_default();
            let outgoing = Outgoing { head, body, more: false };
            match self.world.io().send(token, outgoing) {
                Ok(Sending::Complete) => {}
                Ok(Sending::InFlight { .. }) => self.seen(token).in_flight = true,
                Err(error) => return self.seen(token).sent.push(Err(error)),
            }
        }
    }

    pub(crate) fn send(&mut self, token: Token, bytes: Bytes) {
        self.seen(token).queue.push_back(bytes);
        self.pump(token);
    }

    pub(crate) fn close(&mut self, token: Token) {
        let seen = self.open.remove(&token).expect("open");
        self.closing.insert(token, seen);
        self.world.io().close(token);
    }

    pub(crate) fn abort(&mut self, token: Token) {
        let seen = self.open.remove(&token).expect("open");
        self.closing.insert(token, seen);
        self.world.io().reset(token);
    }

    pub(crate) fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Passes until `done`, or fails.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let begin = clock::now();
        while !done(self) {
            self.pass(Duration::from_millis(2));
            assert!(clock::now() - begin < PATIENCE, "in vain: {what}");
        }
    }

    /// Connects and waits until the server has it.
    pub(crate) fn connected(&mut self) -> (W::Client, Token) {
        let count = self.accepted.len();
        let client = self.world.connect();
        self.until("an accept", |server| server.accepted.len() > count);
        (client, self.accepted[count])
    }

    /// Writes all of it as the other side takes it.
    pub(crate) fn write(&mut self, client: &mut W::Client, mut bytes: &[u8]) {
        let begin = clock::now();
        while !bytes.is_empty() {
            let count = self.world.write(client, bytes);
            bytes = &bytes[count..];
            if count == 0 {
                self.pass(Duration::from_millis(1));
            }
            assert!(clock::now() - begin < PATIENCE, "the server does not read");
        }
    }

    /// Reads until there are `count` bytes.
    pub(crate) fn read(&mut self, client: &mut W::Client, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.until("bytes for the client", |server| {
            match server.world.read(client, count - bytes.len()) {
                Found::Bytes(more) => bytes.extend(more),
                Found::Nothing => {}
                end @ (Found::Eof | Found::Reset) => {
                    panic!("{end:?} after {} of {count} bytes", bytes.len())
                }
            }
            bytes.len() == count
        });
        bytes
    }

    /// Reads until the end and says which one, and what came before.
    pub(crate) fn read_to_end(&mut self, client: &mut W::Client) -> (Vec<u8>, Found) {
        let mut bytes = Vec::new();
        let mut end = Found::Nothing;
        self.until("an end for the client", |server| {
            match server.world.read(client, 64 * 1024) {
                Found::Bytes(more) => bytes.extend(more),
                Found::Nothing => {}
                found @ (Found::Eof | Found::Reset) => end = found,
            }
            end != Found::Nothing
        });
        (bytes, end)
    }
}

/// Bytes that differ at every position, so that a lost, doubled or swapped piece shows.
pub(crate) fn pattern(count: usize) -> Vec<u8> {
    let words = (0..count.div_ceil(8) as u64).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(count);
    bytes
}

/// Passes until `step` is true for an event.
pub(crate) fn drive<I: Io<Socket = OwnedFd>>(
    io: &mut I,
    what: &str,
    mut step: impl FnMut(&mut I, Event<I::Socket>) -> bool,
) {
    let begin = clock::now();
    loop {
        io.wait(Some(Duration::from_millis(100))).expect("the Io works");
        let mut done = false;
        while let Some(event) = io.next_event() {
            done |= step(io, event);
        }
        io.end_pass();
        if done {
            return;
        }
        assert!(clock::now() - begin < PATIENCE, "in vain: {what}");
    }
}

/// Runs one test of this binary again, as a child that finds `ROLE` set.
pub(crate) fn as_child(test: &str) {
    let binary = std::env::current_exe().expect("there is one");
    let child = Command::new(binary)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, "1")
        .output()
        .expect("it can be started");
    let text = String::from_utf8_lossy(&child.stdout);
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "the child ran nothing: {text}");
}

const ROLE: &str = "HOOPSNAKE_TEST_CHILD";

pub(crate) fn is_child() -> bool {
    std::env::var_os(ROLE).is_some()
}
