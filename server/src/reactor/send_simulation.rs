//! A client that asks and does not read, on the simulated network: what hangs in its full buffer ends
//! at `--send-timeout`, whatever else the connection is watched for meanwhile (RULES 8).

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Settings;
use super::command::{Command, Commands};
use super::io::ListenerIndex;
use super::run::Reactor;
use super::sim::{ClientId, ClientRead, Faults, Network, Simulated, WINDOW_BYTES};
use super::simulation::{parts, settings};
use super::token::Token;
use crate::clock;
use crate::exchange::{Body, End, Exchange, Job, Output, SyncLane};
use crate::pool::{Next, ThreadIndex};
use crate::sync::Arc;

const SEND_TIMEOUT: Duration = Duration::from_secs(40);
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Wheel ticks and sleeps besides.
const SLACK: Duration = Duration::from_secs(3);
/// The only connection's.
const TOKEN: Token = Token::new(0, 0);
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

struct World {
    reactor: Reactor<Simulated>,
    network: Network,
    client: ClientId,
    lane: Arc<SyncLane>,
    commands: Arc<Commands>,
    start: Instant,
    /// In virtual time: when the interim answer began to hang.
    hangs_since: Duration,
}

impl World {
    /// The client has read nothing of an answer that fills its window, and the 100 to its next request
    /// is in flight behind.
    fn new(request_timeout: Option<Duration>) -> Self {
        let settings = Settings {
            send_timeout: SEND_TIMEOUT,
            body_timeout: BODY_TIMEOUT,
            request_timeout,
            ..settings()
        };
        let (mut io, network) = Simulated::new(1, Faults::NONE).expect("a simulation");
        io.add_simulated_listener();
        let parts = parts(settings, &io, 1);
        let (lane, commands) = (Arc::clone(&parts.lane), Arc::clone(&parts.commands));
        let start = clock::now();
        let reactor = Reactor::new(io, parts, start);
        let client = network.connect(ListenerIndex(0));
        let mut world =
            Self { reactor, network, client, lane, commands, start, hangs_since: Duration::ZERO };
        world.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let (first, _) = world.next_request();
        let end = Some(End { status: 200, body_bytes: 0, keep_alive: true });
        let (head, body) = (Bytes::from(vec![b'x'; WINDOW_BYTES]), Bytes::new());
        assert!(first.push(Output::Data { head, body, end }));
        world.pass_until("the window is full", |world| !first.is_gone() && world.is_between());
        world.write(
            b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        );
        world.pass_until("the interim answer hangs", |world| world.reactor.is_sending(TOKEN));
        world.hangs_since = world.network.now();
        world
    }

    fn is_between(&mut self) -> bool {
        self.reactor.slots.of(TOKEN).is_some_and(|session| session.is_done())
    }

    fn write(&self, bytes: &[u8]) {
        assert_eq!(self.network.write(self.client, bytes), bytes.len());
    }

    fn pass(&mut self) {
        assert!(!self.reactor.obey());
        let (start, network) = (self.start, &self.network);
        self.reactor.pass(|| start + network.now()).expect("a pass");
    }

    fn pass_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let limit = self.network.now() + 4 * SEND_TIMEOUT;
        while !is_so(self) {
            assert!(self.network.now() < limit, "never: {what}");
            self.pass();
        }
    }

    fn pass_for(&mut self, time: Duration) {
        let end = self.network.now() + time;
        while self.network.now() < end {
            self.pass();
        }
    }

    fn next_request(&mut self) -> (Arc<Exchange>, Body) {
        loop {
            if let Some(Next::Job(Job::Request { exchange, body })) =
                self.lane.try_next_job(ThreadIndex(0))
            {
                return (exchange, body);
            }
            assert!(self.network.now() < SEND_TIMEOUT, "no request");
            self.pass();
        }
    }

    /// The client sends the body that was asked for, and the application gets it.
    fn send_body(&mut self) -> Arc<Exchange> {
        self.write(b"abcd");
        let (exchange, body) = self.next_request();
        assert_eq!(body.len(), 4);
        assert!(self.reactor.is_sending(TOKEN), "it hangs on");
        exchange
    }

    fn is_closed(&mut self) -> bool {
        self.reactor.slots.len() == 0
    }

    fn assert_reset_at_the_send_timeout(&mut self) {
        self.pass_until("the connection is given up", Self::is_closed);
        let waited = self.network.now() - self.hangs_since;
        assert!(waited >= SEND_TIMEOUT && waited < SEND_TIMEOUT + SLACK, "{waited:?}");
        assert_eq!(self.network.read(self.client, 1), ClientRead::Reset);
    }
}

#[test]
fn rules_08_a_continue_that_hangs_when_the_body_comes_ends_at_the_send_timeout() {
    let mut world = World::new(None);
    let exchange = world.send_body();
    // A stream, until it would wait for its credit.
    while exchange.has_credit() {
        let (head, body) = (Bytes::from_static(&[b'y'; 10_000]), Bytes::new());
        assert!(exchange.push(Output::Data { head, body, end: None }));
    }
    world.assert_reset_at_the_send_timeout();
    assert!(exchange.is_gone(), "its thread waits for ever");
}

#[test]
fn rules_06_08_a_continue_that_hangs_does_not_put_the_request_timeout_off() {
    let mut world = World::new(Some(REQUEST_TIMEOUT));
    let exchange = world.send_body();
    assert!(exchange.begin());
    let begun = world.network.now();
    world.pass_until("the thread is told", |_| exchange.is_gone());
    let waited = world.network.now() - begun;
    assert!(waited >= REQUEST_TIMEOUT && waited < REQUEST_TIMEOUT + SLACK, "{waited:?}");
    assert!(world.commands.take_recycling().is_some(), "nobody replaces the worker");
    assert!(!world.is_closed(), "the client may still read its 504");
    world.assert_reset_at_the_send_timeout();
}

#[test]
fn rules_08_a_refusal_behind_a_continue_that_hangs_ends_at_the_send_timeout() {
    let mut world = World::new(None);
    world.write(b"ab");
    world.pass_for(BODY_TIMEOUT + SLACK);
    assert!(!world.is_closed(), "the client may still read its 408");
    world.assert_reset_at_the_send_timeout();
}

#[test]
fn what_was_read_in_time_is_not_watched_any_more_and_the_body_is() {
    let mut world = World::new(None);
    let read = |world: &mut World| match world.network.read(world.client, 2 * WINDOW_BYTES) {
        ClientRead::Bytes(bytes) => bytes,
        other @ (ClientRead::Nothing | ClientRead::Eof | ClientRead::Reset) => panic!("{other:?}"),
    };
    assert_eq!(read(&mut world).len(), WINDOW_BYTES);
    world.pass_until("the interim answer is sent", |world| !world.reactor.is_sending(TOKEN));
    assert_eq!(read(&mut world), INTERIM);
    world.pass_for(BODY_TIMEOUT + SLACK);
    assert!(read(&mut world).starts_with(b"HTTP/1.1 408 "));

    let mut world = World::new(None);
    let exchange = world.send_body();
    assert_eq!(read(&mut world).len(), WINDOW_BYTES);
    world.pass_for(2 * SEND_TIMEOUT);
    assert!(!exchange.is_gone(), "the application takes its time");
    assert_eq!(read(&mut world), INTERIM);
}

#[test]
fn a_stop_before_the_drain_is_complete_is_no_complete_drain() {
    let mut world = World::new(None);
    world.commands.want(Command::Drain);
    for _ in 0..10 {
        world.pass();
    }
    world.commands.want(Command::Stop);
    assert!(world.reactor.obey() && !world.commands.has_drained());
}
