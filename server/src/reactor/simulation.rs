//! The whole reactor on the simulated network: many seeds, every kind of fault, exact bytes.
//!
//! The application is played by the test between two passes: it takes jobs, keeps them for as long as
//! the seed says, and answers in one piece, in many, or not at all. What a client has read must be a
//! prefix of the answers to what it sent, in order, and all of them unless its connection broke.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;

use super::command::{Command, Commands};
use super::io::ListenerIndex;
use super::run::{Parts, Reactor};
use super::sim::{ClientId, ClientRead, Faults, Network, Simulated};
use super::wake::Waker;
use super::{IoKind, Settings};
use crate::clock;
use crate::exchange::{Body, Completions, End, Exchange, Job, Output, SyncLane};
use crate::http::connection::HttpLimits;
use crate::limits;
use crate::spool::Spool;
use crate::sync::Arc;

const CLIENT_COUNT: usize = 12;
/// A run that has not come to its end by then hangs.
const PASS_COUNT_MAX: usize = 200_000;

/// SplitMix64: the test's own choices, apart from the network's.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// A client's side: what it will send, what it must read.
struct Client {
    id: ClientId,
    unsent: Vec<u8>,
    expected: Vec<u8>,
    read: Vec<u8>,
    state: ClientState,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum ClientState {
    Open,
    Finished,
    Broken,
    /// It reset the connection itself.
    Left,
}

fn settings() -> Settings {
    Settings {
        io: IoKind::Epoll,
        http: HttpLimits {
            request_line_bytes_max: limits::REQUEST_LINE_BYTES_MAX,
            head_bytes_max: limits::HEAD_BYTES_MAX,
            field_count_max: limits::FIELD_COUNT_MAX,
        },
        // Virtual time; long enough that no client is cut, short enough that wheel entries come due.
        keep_alive: Duration::from_secs(300),
        header_timeout: Duration::from_secs(150),
        body_timeout: Duration::from_secs(150),
        send_timeout: Duration::from_secs(150),
        body_bytes_max: 1 << 30,
        connections_max: CLIENT_COUNT / 2,
        queue_requests_max: CLIENT_COUNT,
        drain_idle: Duration::from_secs(1),
        spool_dir: std::env::temp_dir(),
        spool_bytes_max: 1 << 30,
        server_name: None,
        access_log: None,
    }
}

/// The answer to request `number` of a client: its own name, so that no other's can pass for it.
fn answer(path: &[u8], body_bytes: u64) -> Vec<u8> {
    let filler = "x".repeat(path.len() * 97 % 3_000);
    let content = format!("{} {body_bytes} {filler}", path.escape_ascii());
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{content}", content.len()).into_bytes()
}

fn client(network: &Network, index: usize, random: &mut Random) -> Client {
    let (mut unsent, mut expected) = (Vec::new(), Vec::new());
    let count = 1 + random.below(8);
    for number in 0..count {
        let path = format!("/{index}/{number}/{}", "p".repeat(random.below(30) as usize));
        let body = "b".repeat(random.below(3) as usize * random.below(20_000) as usize);
        let close = if number + 1 == count { "Connection: close\r\n" } else { "" };
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\n{close}");
        match random.below(3) {
            0 => unsent.extend_from_slice(format!("{head}\r\n").as_bytes()),
            1 => {
                let length = body.len();
                let text = format!("{head}Content-Length: {length}\r\n\r\n{body}");
                unsent.extend_from_slice(text.as_bytes());
            }
            _ if body.is_empty() => {
                let text = format!("{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
                unsent.extend_from_slice(text.as_bytes());
            }
            _ => {
                let length = body.len();
                let text = format!(
                    "{head}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"
                );
                unsent.extend_from_slice(text.as_bytes());
            }
        }
        let framed = unsent.ends_with(b"b") || unsent.ends_with(b"0\r\n\r\n");
        let body_bytes = if framed { body.len() as u64 } else { 0 };
        expected.extend_from_slice(&answer(path.as_bytes(), body_bytes));
    }
    let id = network.connect(ListenerIndex(0));
    Client { id, unsent, expected, read: Vec::new(), state: ClientState::Open }
}

impl Client {
    fn act(&mut self, network: &Network, random: &mut Random, may_leave: bool) {
        if self.state != ClientState::Open {
            return;
        }
        if may_leave && random.below(400) == 0 {
            network.reset(self.id);
            self.state = ClientState::Left;
            return;
        }
        if !self.unsent.is_empty() {
            let count = (1 + random.below(5_000) as usize).min(self.unsent.len());
            let written = network.write(self.id, &self.unsent[..count]);
            self.unsent.drain(..written);
        }
        match network.read(self.id, 1 + random.below(2_000) as usize) {
            ClientRead::Bytes(bytes) => self.read.extend_from_slice(&bytes),
            ClientRead::Nothing => {}
            ClientRead::Eof => self.state = ClientState::Finished,
            ClientRead::Reset => self.state = ClientState::Broken,
        }
        assert!(self.expected.starts_with(&self.read), "bytes that are not the answer");
    }
}

/// Plays the application for one pass.
fn play(lane: &SyncLane, held: &mut Vec<(Arc<Exchange>, u64)>, random: &mut Random) {
    while let Some(job) = lane.try_next_job() {
        if let Job::Request { exchange, body } = job {
            if let Body::Spooled { .. } = body {
                panic!("no body of the simulation is that large");
            }
            held.push((exchange, body.len()));
        }
    }
    while !held.is_empty() && random.below(3) > 0 {
        let (exchange, body_bytes) = held.swap_remove(random.below(held.len() as u64) as usize);
        let text = answer(exchange.head.path(), body_bytes);
        let end = End { status: 200, body_bytes: 0, keep_alive: exchange.keep_alive() };
        let piece_count = 1 + random.below(4) as usize;
        let mut pieces = text.chunks(text.len().div_ceil(piece_count)).peekable();
        while let Some(piece) = pieces.next() {
            let head = Bytes::copy_from_slice(piece);
            let end = pieces.peek().is_none().then_some(end);
            exchange.push(Output::Data { head, body: Bytes::new(), end });
        }
    }
}

fn run(seed: u64, faults: Faults, may_leave: bool) {
    let mut random = Random(seed);
    let (mut io, network) = Simulated::new(seed, faults).expect("a simulation");
    io.add_simulated_listener();
    let completions = Arc::new(Completions::new(CLIENT_COUNT * 2, io_waker(&io)));
    let lane = Arc::new(SyncLane::new(1, CLIENT_COUNT, Arc::clone(&completions)));
    let commands = Arc::new(Commands::new(Waker::new().expect("an eventfd")));
    let parts = Parts {
        settings: settings(),
        lane: Arc::clone(&lane),
        completions,
        spool: Spool::start(std::env::temp_dir(), 1 << 30).expect("a thread"),
        commands: Arc::clone(&commands),
        garbage: Arc::new(AtomicUsize::new(0)),
        listener_count: 1,
    };
    let start = clock::now();
    let mut reactor = Reactor::new(io, parts, start);
    let mut clients: Vec<_> =
        (0..CLIENT_COUNT).map(|index| client(&network, index, &mut random)).collect();
    let mut held = Vec::new();
    let mut passes = 0;
    let mut ended = false;
    while !ended {
        passes += 1;
        assert!(passes < PASS_COUNT_MAX, "seed {seed} hangs: {}", states(&clients));
        for client in &mut clients {
            client.act(&network, &mut random, may_leave);
        }
        play(&lane, &mut held, &mut random);
        if clients.iter().all(|client| client.state != ClientState::Open) && held.is_empty() {
            commands.want(Command::Drain);
        }
        ended = reactor.obey();
        if !ended {
            reactor.pass(|| start + network.now()).expect("a pass");
        }
    }
    for (index, client) in clients.iter().enumerate() {
        if client.state == ClientState::Finished {
            assert_eq!(client.read.len(), client.expected.len(), "seed {seed}, client {index}");
        } else {
            assert!(faults.broken > 0 || may_leave, "seed {seed}: client {index} was reset");
        }
    }
}

fn io_waker(io: &Simulated) -> Waker {
    use super::io::Io;
    io.waker()
}

fn states(clients: &[Client]) -> String {
    let of = |client: &Client| {
        let Client { state, unsent, expected, read, .. } = client;
        format!("{state:?} unsent {} read {}/{}; ", unsent.len(), read.len(), expected.len())
    };
    clients.iter().map(of).collect()
}

#[test]
fn every_client_reads_exactly_its_answers_on_a_rough_network() {
    for seed in 0..60 {
        run(seed, Faults::NONE, false);
        run(seed, Faults::ROUGH, false);
    }
}

#[test]
fn broken_connections_and_clients_that_leave_disturb_nobody_else() {
    for seed in 1_000..1_060 {
        run(seed, Faults::BROKEN, true);
    }
}
