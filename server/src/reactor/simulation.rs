//! The whole reactor on the simulated network: many seeds, every kind of fault, exact bytes.
//!
//! The application is played by the test between two passes: it takes jobs, keeps them for as long as
//! the seed says, and answers in one piece, in many, from a file, or as a stream that waits for its
//! credit. What a client has read must be a prefix of the answers to what it sent, in order, and all
//! of them unless its connection broke; what the application gets must be the body that was sent.
//!
//! The files' thread is a real one. Before each pass it is waited for, in real time, so that what it
//! answers and when (in virtual time) follows from the seed as everything else does.

use std::io::{Read, Write};
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::command::{Command, Commands};
use super::io::{Io, ListenerIndex, Peer};
use super::run::{Parts, Reactor};
use super::sim::{ClientId, ClientRead, Faults, Network, Simulated};
use super::token::Token;
use super::wake::Waker;
use super::{Insight, IoKind, Settings};
use crate::clock;
use crate::exchange::{Body, Completions, End, Exchange, Job, Output, SyncLane};
use crate::http::connection::{Connection, HttpLimits, Input};
use crate::limits;
use crate::pool::{Next, ReactorCounts, ThreadIndex};
use crate::spool::{Spool, open_unnamed};
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

/// Says the seed of a run that panics, wherever it does.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulation failed with seed {}", self.0);
        }
    }
}

/// What runs have exercised, so that none of it can fall away unseen.
#[derive(Debug, Default)]
struct Seen {
    spooled_bodies: usize,
    answers_from_files: usize,
    waits_for_credit: usize,
    hung_requests: usize,
    expired_requests: usize,
}

/// What else than the network goes wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Mishaps {
    /// Clients reset their connection.
    clients_leave: bool,
    /// The application hangs for longer than `--request-timeout`, in single requests and in all.
    requests_hang: bool,
}

const LEAVING: Mishaps = Mishaps { clients_leave: true, requests_hang: false };
const HANGING: Mishaps = Mishaps { clients_leave: false, requests_hang: true };
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
const OVERDUE: &[u8] = b"HTTP/1.1 504 Gateway Timeout\r\n";

/// A client's side: what it will send, what it must read.
struct Client {
    id: ClientId,
    unsent: Vec<u8>,
    expected: Vec<u8>,
    /// Where an answer begins, which may be a 504 instead.
    begins: Vec<usize>,
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

pub(super) fn settings() -> Settings {
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
        request_timeout: None,
        stall_timeout: None,
        health_path: None,
        trust: crate::trust::Trust::default(),
        spool_dir: std::env::temp_dir(),
        spool_bytes_max: 1 << 30,
        server_name: None,
        request_ids: false,
        access_log: None,
    }
}

/// A reactor of its own, without other workers, with one public listener.
pub(super) fn parts(settings: Settings, io: &Simulated, client_count: usize) -> Parts {
    let waker = || Waker::new().expect("an eventfd");
    let completions = Arc::new(Completions::new(client_count * 2, io.waker()));
    Parts {
        settings,
        lane: Arc::new(SyncLane::new(1, client_count, Arc::clone(&completions))),
        completions,
        spool: Spool::start(std::env::temp_dir(), 1 << 30).expect("a thread"),
        commands: Arc::new(Commands::new(waker(), waker())),
        garbage: Arc::new(AtomicUsize::new(0)),
        wake_age: limits::WAKE_AGE,
        counts: Arc::new(ReactorCounts::default()),
        cell: None,
        insight: Insight::default(),
        public_listener_count: 1,
        admin_listener_count: 0,
    }
}

/// The answer to a request: its own name, so that no other's can pass for it.
fn answer(path: &[u8], body_bytes: u64) -> Vec<u8> {
    let filler_bytes = if path.ends_with(b"/large") { 100_000 } else { path.len() * 97 % 3_000 };
    let filler = "x".repeat(filler_bytes);
    let content = format!("{} {body_bytes} {filler}", path.escape_ascii());
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{content}", content.len()).into_bytes()
}

/// The body of a request: no two of a client are the same, and every position shows.
fn body_of(path: &[u8], length: usize) -> Vec<u8> {
    let start = path.iter().map(|byte| usize::from(*byte)).sum::<usize>();
    (start..start + length).map(|at| b'a' + (at % 23) as u8).collect()
}

fn client(network: &Network, index: usize, random: &mut Random) -> Client {
    let (mut unsent, mut expected, mut begins) = (Vec::new(), Vec::new(), Vec::new());
    let count = 1 + random.below(8);
    // A few, so that most of a run is quick.
    let is_large = index.is_multiple_of(4);
    for number in 0..count {
        let large = is_large && random.below(3) == 0;
        let end = if large { "/large" } else { "" };
        let path = format!("/{index}/{number}/{}{end}", "p".repeat(random.below(30) as usize));
        let mut length = random.below(3) as usize * random.below(20_000) as usize;
        if large && random.below(3) > 0 {
            length += limits::BODY_MEMORY_BYTES_MAX;
        }
        let body = body_of(path.as_bytes(), length);
        let close = if number + 1 == count { "Connection: close\r\n" } else { "" };
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\n{close}");
        let framing = random.below(3);
        push_request(&mut unsent, &head, &body, framing);
        let body_bytes = if framing == 0 { 0 } else { length as u64 };
        begins.push(expected.len());
        expected.extend_from_slice(&answer(path.as_bytes(), body_bytes));
    }
    let id = network.connect(ListenerIndex(0));
    Client { id, unsent, expected, begins, read: Vec::new(), state: ClientState::Open }
}

/// `framing`: 0 no body, 1 by length, 2 in chunks.
fn push_request(out: &mut Vec<u8>, head: &str, body: &[u8], framing: u64) {
    let length = body.len();
    match framing {
        0 => out.extend_from_slice(format!("{head}\r\n").as_bytes()),
        1 => {
            out.extend_from_slice(format!("{head}Content-Length: {length}\r\n\r\n").as_bytes());
            out.extend_from_slice(body);
        }
        _ => {
            out.extend_from_slice(format!("{head}Transfer-Encoding: chunked\r\n\r\n").as_bytes());
            for piece in body.chunks(30_000) {
                out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }
}

impl Client {
    fn act(&mut self, network: &Network, random: &mut Random, mishaps: Mishaps) {
        if self.state != ClientState::Open {
            return;
        }
        if mishaps.clients_leave && random.below(400) == 0 {
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
        let is_answer = self.expected.starts_with(&self.read);
        let is_overdue = mishaps.requests_hang && self.overdue().is_some();
        assert!(is_answer || is_overdue, "bytes that are not the answer");
    }

    /// What it has read of a 504 that stands in the place of an answer, after those before it.
    fn overdue(&self) -> Option<&[u8]> {
        self.begins.iter().find_map(|&begin| {
            let before = self.read.get(..begin)?;
            let rest = &self.read[begin..];
            let is_504 = if rest.len() < OVERDUE.len() {
                OVERDUE.starts_with(rest)
            } else {
                rest.starts_with(OVERDUE)
            };
            (is_504 && self.expected.starts_with(before)).then_some(rest)
        })
    }

    /// Whether everything it asked for has come, or a whole 504, which ends the connection.
    fn is_answered(&self) -> bool {
        self.read.len() == self.expected.len()
            || self.overdue().is_some_and(|rest| {
                rest.starts_with(OVERDUE)
                    && rest.ends_with(b"the application did not answer in time\n")
            })
    }
}

/// A request that the application has and has not answered, or not in full.
struct Held {
    exchange: Arc<Exchange>,
    text: Vec<u8>,
    sent: usize,
    way: Way,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// So many pieces, at once.
    Pieces(usize),
    /// So many bytes from memory, the rest from a file.
    File(usize),
    /// Pieces of up to so many bytes, each made when there is credit for it.
    Stream(usize),
}

impl Held {
    fn new(exchange: Arc<Exchange>, body: Body, random: &mut Random, seen: &mut Seen) -> Self {
        let path = exchange.head.path();
        let body_bytes = body.len();
        let expected = body_of(path, body_bytes as usize);
        match body {
            Body::Empty => {}
            Body::Memory(bytes) => assert!(bytes == expected, "not the body that was sent"),
            Body::Spooled { mut file, length, reservation } => {
                assert!(length > limits::BODY_MEMORY_BYTES_MAX as u64, "it fits in memory");
                let mut found = Vec::new();
                file.read_to_end(&mut found).expect("a file");
                assert!(found == expected, "not the body that was spooled");
                drop(reservation);
                seen.spooled_bodies += 1;
            }
        }
        let text = answer(path, body_bytes);
        let way = match random.below(6) {
            0 => Way::File(random.below(text.len() as u64) as usize),
            1 => Way::Stream(3),
            2 => Way::Stream(20_000),
            _ => Way::Pieces(1 + random.below(4) as usize),
        };
        Self { exchange, text, sent: 0, way }
    }

    fn end(&self) -> End {
        End { status: 200, body_bytes: 0, keep_alive: self.exchange.keep_alive() }
    }

    fn push(&mut self, length: usize) {
        let piece = &self.text[self.sent..(self.sent + length).min(self.text.len())];
        self.sent += piece.len();
        let end = (self.sent == self.text.len()).then(|| self.end());
        let head = Bytes::copy_from_slice(piece);
        self.exchange.push(Output::Data { head, body: Bytes::new(), end });
    }

    /// Pushes the rest from a file that has other bytes before and after it.
    fn push_file(&mut self, head: Bytes) {
        const PADDING: &[u8] = b"not of the answer";
        let rest = &self.text[self.sent..];
        let mut file = open_unnamed(&std::env::temp_dir()).expect("a file without a name");
        file.write_all(&[PADDING, rest, PADDING].concat()).expect("room for it");
        let (offset, length) = (PADDING.len() as u64, rest.len() as u64);
        self.exchange.push(Output::File { head, file, offset, length, end: Some(self.end()) });
        self.sent = self.text.len();
    }

    /// Answers, or goes on doing so. True: nothing is left to do.
    fn go_on(&mut self, random: &mut Random, seen: &mut Seen) -> bool {
        match self.way {
            Way::Pieces(count) => {
                let length = self.text.len().div_ceil(count);
                while self.sent < self.text.len() {
                    self.push(length);
                }
            }
            Way::File(before) => {
                seen.answers_from_files += 1;
                if random.below(2) == 0 && before > 0 {
                    self.push(before);
                    self.push_file(Bytes::new());
                } else {
                    let head = Bytes::copy_from_slice(&self.text[..before]);
                    self.sent = before;
                    self.push_file(head);
                }
            }
            Way::Stream(length) => {
                while self.sent < self.text.len() && !self.exchange.is_gone() {
                    if !self.exchange.has_credit() {
                        seen.waits_for_credit += 1;
                        return false;
                    }
                    self.push(1 + random.below(length as u64) as usize);
                }
            }
        }
        true
    }
}

/// The requests that the application has.
#[derive(Default)]
struct Taken {
    held: Vec<Held>,
    /// Never answered in time.
    hung: Vec<Held>,
    /// No job is taken before: every thread hangs.
    idle_until: Duration,
}

/// Plays the application for one pass.
fn play(
    lane: &SyncLane,
    taken: &mut Taken,
    random: &mut Random,
    seen: &mut Seen,
    hangs: Option<Duration>,
) {
    let Taken { held, hung, idle_until } = taken;
    if let Some(now) = hangs
        && random.below(40) == 0
    {
        *idle_until = now + REQUEST_TIMEOUT + REQUEST_TIMEOUT / 4;
    }
    while hangs.is_none_or(|now| now >= *idle_until)
        && let Some(Next::Job(job)) = lane.try_next_job(ThreadIndex(0))
    {
        let Job::Request { exchange, body } = job else { continue };
        if hangs.is_some() && !exchange.begin() {
            assert!(exchange.is_gone(), "expired and not answered");
            seen.expired_requests += 1;
            continue;
        }
        let hangs = hangs.is_some() && random.below(12) == 0;
        let request = Held::new(exchange, body, random, seen);
        if hangs { hung.push(request) } else { held.push(request) }
    }
    // What it does when its time is over goes nowhere.
    hung.retain_mut(|request| {
        if !request.exchange.is_gone() {
            return true;
        }
        seen.hung_requests += 1;
        while !request.go_on(random, seen) {}
        false
    });
    while !held.is_empty() && random.below(3) > 0 {
        let index = random.below(held.len() as u64) as usize;
        if held[index].go_on(random, seen) {
            held.swap_remove(index);
        }
    }
}

/// An exchange that no connection has: its answer says that the files' thread has come to it, and
/// so has done all that it was asked before.
struct Barrier {
    exchange: Arc<Exchange>,
    completions: Arc<Completions>,
}

impl Barrier {
    fn new() -> Self {
        let mut input = BytesMut::from(&b"GET / HTTP/1.0\r\n\r\n"[..]);
        let Ok(Some(Input::Head(head))) = Connection::new(settings().http).receive(&mut input)
        else {
            panic!("not a head");
        };
        let waker = Waker::new().expect("an eventfd");
        let completions = Arc::new(Completions::new(1, waker));
        let (token, listener, now) = (Token::new(0, 0), ListenerIndex(0), clock::now());
        let exchange =
            Exchange::new(token, head, listener, Peer::Unix, now, Arc::clone(&completions));
        Self { exchange: Arc::new(exchange), completions }
    }

    /// Returns when the thread has answered everything.
    fn pass(&self, spool: &Spool, nothing: &Arc<std::fs::File>) {
        let begin = clock::now();
        spool.warm(Arc::clone(nothing), 0, 0, Arc::clone(&self.exchange));
        while self.completions.pop().is_none() {
            assert!(clock::now() - begin < Duration::from_secs(30), "the files' thread is stuck");
            std::thread::yield_now();
        }
        self.exchange.take_outputs(&mut std::collections::VecDeque::new());
    }
}

/// Returns how many passes it took and where virtual time stood at its end.
fn run(seed: u64, faults: Faults, mishaps: Mishaps, seen: &mut Seen) -> (usize, Duration) {
    let _seed = Seed(seed);
    let mut random = Random(seed);
    let (mut io, network) = Simulated::new(seed, faults).expect("a simulation");
    io.add_simulated_listener();
    let request_timeout = mishaps.requests_hang.then_some(REQUEST_TIMEOUT);
    let parts = parts(Settings { request_timeout, ..settings() }, &io, CLIENT_COUNT);
    let (lane, commands) = (Arc::clone(&parts.lane), Arc::clone(&parts.commands));
    let start = clock::now();
    let mut reactor = Reactor::new(io, parts, start);
    let mut clients: Vec<_> =
        (0..CLIENT_COUNT).map(|index| client(&network, index, &mut random)).collect();
    let barrier = Barrier::new();
    let nothing = Arc::new(open_unnamed(&std::env::temp_dir()).expect("a file without a name"));
    let mut taken = Taken::default();
    let mut passes = 0;
    let mut ended = false;
    while !ended {
        passes += 1;
        assert!(passes < PASS_COUNT_MAX, "seed {seed} hangs: {}", states(&clients));
        for client in &mut clients {
            client.act(&network, &mut random, mishaps);
        }
        let hangs = mishaps.requests_hang.then(|| network.now());
        play(&lane, &mut taken, &mut random, seen, hangs);
        let is_idle = taken.held.is_empty() && taken.hung.is_empty();
        if clients.iter().all(|client| client.state != ClientState::Open) && is_idle {
            commands.want(Command::Drain);
        }
        ended = reactor.obey();
        if !ended {
            barrier.pass(&reactor.spool, &nothing);
            reactor.pass(|| start + network.now()).expect("a pass");
        }
    }
    assert!(commands.has_drained());
    // What the application never came to, it must not run.
    while let Some(Next::Job(Job::Request { exchange, .. })) = lane.try_next_job(ThreadIndex(0)) {
        assert!(exchange.is_gone(), "seed {seed}: not answered");
        seen.expired_requests += usize::from(!exchange.begin());
    }
    for (index, client) in clients.iter().enumerate() {
        if client.state == ClientState::Finished {
            assert!(client.is_answered(), "seed {seed}, client {index} has not read all");
        } else {
            assert!(
                faults.broken > 0 || mishaps.clients_leave,
                "seed {seed}: client {index} was reset"
            );
        }
    }
    (passes, network.now())
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
    let mut seen = Seen::default();
    for seed in 0..40 {
        run(seed, Faults::NONE, Mishaps::default(), &mut seen);
        run(seed, Faults::ROUGH, Mishaps::default(), &mut seen);
    }
    assert!(seen.spooled_bodies > 50, "{seen:?}");
    assert!(seen.answers_from_files > 50, "{seen:?}");
    assert!(seen.waits_for_credit > 50, "{seen:?}");
}

#[test]
fn broken_connections_and_clients_that_leave_disturb_nobody_else() {
    let mut seen = Seen::default();
    for seed in 1_000..1_040 {
        run(seed, Faults::BROKEN, LEAVING, &mut seen);
    }
    assert!(seen.answers_from_files > 10 && seen.waits_for_credit > 10, "{seen:?}");
}

/// RULES 6: whichever side of its deadline an answer comes to, the client reads one, whole.
#[test]
fn overdue_requests_are_504_and_their_late_answers_reach_nobody() {
    let mut seen = Seen::default();
    for seed in 3_000..3_008 {
        run(seed, Faults::NONE, HANGING, &mut seen);
        run(seed, Faults::ROUGH, HANGING, &mut seen);
        let both = Mishaps { clients_leave: true, ..HANGING };
        run(seed, Faults::BROKEN, both, &mut seen);
    }
    assert!(seen.hung_requests > 10 && seen.expired_requests > 10, "{seen:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 2_000..2_005 {
        let once = run(seed, Faults::BROKEN, LEAVING, &mut Seen::default());
        assert_eq!(run(seed, Faults::BROKEN, LEAVING, &mut Seen::default()), once, "seed {seed}");
    }
}

#[test]
fn the_age_of_a_job_counts_from_the_end_of_the_pass_that_put_it_on_the_ring() {
    let (mut io, _network) = Simulated::new(0, Faults::NONE).expect("a simulation");
    io.add_simulated_listener();
    let parts = parts(settings(), &io, 2);
    let lane = Arc::clone(&parts.lane);
    let begin = clock::now();
    let mut reactor = Reactor::new(io, parts, begin);
    lane.submit(Job::Reclaim).expect("room");
    // Longer than the limit, which has nothing to do with the job.
    let end = begin + limits::WAKE_AGE * 5;
    assert_eq!(reactor.before_wait(|| end), end);
    assert_eq!(reactor.age.deadline(), Some(end + limits::WAKE_AGE));
}
