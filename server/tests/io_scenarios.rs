//! The same scenarios over every `Io`.

mod io_world;

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hoopsnake_server::reactor::io::{Io, ListenerIndex};
use hoopsnake_server::reactor::sim::Faults;
use io_world::{Found, Manner, Server, World, pattern};

fn echo(world: impl World) {
    let mut server = Server::new(world, Manner::Echo);
    let mut clients: Vec<_> = (0..3).map(|_| server.connected()).collect();
    for round in 0..50 {
        for (index, (client, _)) in clients.iter_mut().enumerate() {
            let message = format!("message {round} of client {index}");
            server.write(client, message.as_bytes());
            assert_eq!(server.read(client, message.len()), message.as_bytes());
        }
    }
}

fn large_echo(world: impl World) {
    let mut server = Server::new(world, Manner::Echo);
    let (mut client, _) = server.connected();
    let sent = pattern(300_000);
    let mut back = Vec::new();
    let mut at = 0;
    server.until("the echo", |server| {
        at += server.world.write(&mut client, &sent[at..]);
        if let Found::Bytes(more) = server.world.read(&mut client, 10_000) {
            back.extend(more);
        }
        back.len() == sent.len()
    });
    assert!(back == sent, "the echo differs");
}

fn half_close(world: impl World) {
    let mut server = Server::new(world, Manner::Collect);
    let (mut client, token) = server.connected();
    server.write(&mut client, b"the last request");
    server.world.finish(&mut client);
    server.until("the end of the stream", |server| server.seen(token).eof);
    assert_eq!(server.seen(token).received, b"the last request");
    server.send(token, Bytes::from_static(b"its answer"));
    assert_eq!(server.read(&mut client, 10), b"its answer");
    server.close(token);
    assert_eq!(server.read_to_end(&mut client), (Vec::new(), Found::Eof));
    server.until("closed", |server| server.closed.len() == 1);
}

fn reset_by_the_client(world: impl World) {
    let mut server = Server::new(world, Manner::Collect);
    let (client, token) = server.connected();
    server.world.reset(client);
    server.until("the reset", |server| server.seen(token).failed.is_some());
    assert_eq!(server.seen(token).failed, Some(ErrorKind::ConnectionReset));
    server.send(token, Bytes::from_static(b"nobody reads this"));
    assert!(matches!(server.seen(token).sent[..], [Err(_)]));
    server.close(token);
    server.until("closed", |server| server.closed.len() == 1);
}

fn reset_by_the_server(world: impl World) {
    let mut server = Server::new(world, Manner::Collect);
    let (mut client, token) = server.connected();
    server.abort(token);
    assert_eq!(server.read_to_end(&mut client), (Vec::new(), Found::Reset));
    server.until("closed", |server| server.closed.len() == 1);
}

fn slow_reader<W: World>(world: W) {
    let mut server = Server::new(world, Manner::Collect);
    let (mut client, token) = server.connected();
    let body = pattern(W::LARGE_BYTES);
    server.seen(token).queue.push_back(Bytes::from_static(b"head"));
    server.send(token, Bytes::from(body.clone()));
    assert!(server.seen(token).in_flight, "all of it went into a socket's buffer");
    let mut received = server.read(&mut client, 4 + body.len());
    assert_eq!(&received[..4], b"head");
    assert!(received.split_off(4) == body, "the body differs");
    server.until("the completion", |server| !server.seen(token).in_flight);
    assert!(matches!(server.seen(token).sent[..], [Ok(count)] if count < 4 + body.len()));
}

fn many_ready_sockets(world: impl World) {
    let mut server = Server::new(world, Manner::Echo);
    let mut clients: Vec<_> = (0..256).map(|_| server.connected().0).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(server.world.write(client, &[index as u8; 100]), 100);
    }
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(server.read(client, 100), [index as u8; 100]);
    }
}

fn close_with_an_armed_receive(world: impl World) {
    let mut server = Server::new(world, Manner::Collect);
    let (mut client, token) = server.connected();
    server.close(token);
    assert_eq!(server.read_to_end(&mut client), (Vec::new(), Found::Eof));
    server.until("closed", |server| server.closed.len() == 1);
    let (_client, next) = server.connected();
    assert_eq!(next, token.successor());
}

fn no_event_between_close_and_closed<W: World>(world: W) {
    let large = Bytes::from(pattern(W::LARGE_BYTES));
    let mut server = Server::new(world, Manner::Collect);
    let mut clients = Vec::new();
    for _ in 0..20 {
        let (mut client, token) = server.connected();
        server.write(&mut client, b"bytes that arrive as we close");
        server.send(token, large.clone());
        server.close(token);
        clients.push(client);
    }
    // `Server` fails on any event of a connection that is not open.
    server.until("closed", |server| server.closed.len() == 20);
}

fn flooder_and_small_clients(world: impl World) {
    let mut server = Server::new(world, Manner::Count);
    let (mut flooder, flood) = server.connected();
    let mut small: Vec<_> = (0..20).map(|_| server.connected()).collect();
    let bytes = pattern(256 * 1024);
    for round in 0..20 {
        let before = server.seen(flood).received_count;
        let mut at = 0;
        for (client, _) in &mut small {
            assert_eq!(server.world.write(client, b"small"), 5);
        }
        server.until("the small clients", |server| {
            at += server.world.write(&mut flooder, &bytes[at % bytes.len()..]);
            small.iter().all(|(_, token)| server.open[token].received_count == 5 * (round + 1))
        });
        let flooded = server.seen(flood).received_count - before;
        assert!(flooded <= 24 * 1024 * 1024, "{flooded} bytes before the small clients' turn");
    }
    let total = server.seen(flood).received_count;
    assert!(total > 0, "the flooder starved");
}

fn backpressure(world: impl World) {
    let mut server = Server::new(world, Manner::Count);
    let (mut client, token) = server.connected();
    server.write(&mut client, b"first");
    server.until("the first bytes", |server| server.seen(token).received_count == 5);
    server.world.io().stop_recv(token);
    for _ in 0..5 {
        server.pass(Duration::from_millis(1));
    }
    let before = server.seen(token).received_count;
    let bytes = pattern(64 * 1024);
    let (mut written, mut full_count) = (0, 0);
    while full_count < 20 {
        let count = server.world.write(&mut client, &bytes);
        written += count;
        full_count += usize::from(count == 0);
        server.pass(Duration::from_millis(1));
        assert!(written < 256 * 1024 * 1024, "the server reads although it was told to stop");
    }
    assert_eq!(server.seen(token).received_count, before, "read after stop_recv");
    // Twice around, the second time without a pass in between.
    server.world.io().start_recv(token);
    server.world.io().stop_recv(token);
    server.world.io().start_recv(token);
    server.until("the rest", |server| server.seen(token).received_count == 5 + written);
}

fn many_wakes_are_one_event(world: impl World) {
    let mut server = Server::new(world, Manner::Count);
    server.pass(Duration::ZERO);
    let waker = server.world.io().waker();
    for round in 0..10 {
        let before = server.woken_count;
        for _ in 0..1000 {
            waker.wake();
        }
        server.until("the wake", |server| server.woken_count > before);
        server.pass(Duration::ZERO);
        server.pass(Duration::ZERO);
        assert!(server.woken_count <= before + 2, "round {round}: a wake is reported twice");
    }
}

fn cancelled_accept(world: impl World) {
    let mut server = Server::new(world, Manner::Count);
    server.pass(Duration::ZERO);
    server.stop_accepting();
    server.until("the cancelled accept", |server| server.accept_failures.len() == 1);
    assert_eq!(server.accept_failures[0].raw_os_error(), Some(libc::ECANCELED));
    // Not armed any more: no event, whatever is cancelled.
    server.stop_accepting();
    for _ in 0..3 {
        server.pass(Duration::from_millis(1));
    }
    assert_eq!((server.accepted.len(), server.accept_failures.len()), (0, 1));
}

fn a_connection_before_the_cancel_is_served(world: impl World) {
    let mut server = Server::new(world, Manner::Echo);
    server.pass(Duration::ZERO);
    let mut client = server.world.connect();
    server.stop_accepting();
    server.world.io().close_listener(ListenerIndex(0));
    server.until("an answer", |server| server.accepted.len() + server.accept_failures.len() == 1);
    assert_eq!(server.accepted.len(), 1, "a connection that came first is still reported");
    server.write(&mut client, b"late");
    assert_eq!(server.read(&mut client, 4), b"late");
}

fn writable_is_said_once(world: impl World) {
    let mut server = Server::new(world, Manner::Count);
    let (_client, token) = server.connected();
    for round in 1..4 {
        server.world.io().want_writable(token);
        server.world.io().want_writable(token);
        server.until("writable", |server| server.seen(token).writable_count == round);
        for _ in 0..3 {
            server.pass(Duration::from_millis(1));
        }
        assert_eq!(server.seen(token).writable_count, round);
    }
}

/// A file with a name that nobody else has, and no name once it is open.
fn file_of(bytes: &[u8]) -> std::fs::File {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("hoopsnake-file-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, bytes).expect("writable");
    let file = std::fs::File::open(&path).expect("written");
    std::fs::remove_file(&path).expect("ours");
    file
}

fn a_file_from_its_middle<W: World>(world: W) {
    let mut server = Server::new(world, Manner::Count);
    let (mut client, token) = server.connected();
    let bytes = pattern(W::LARGE_BYTES);
    let file = file_of(&bytes);
    let (mut offset, mut received) = (1000, Vec::new());
    let mut asked_count = 0;
    server.until("the whole file", |server| {
        while server.seen(token).writable_count == asked_count && offset < bytes.len() {
            match server.world.io().send_file(token, file.as_fd(), offset as u64, 256 * 1024) {
                Ok(count) => offset += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    server.world.io().want_writable(token);
                    asked_count += 1;
                }
            }
        }
        if let Found::Bytes(more) = server.world.read(&mut client, 64 * 1024) {
            received.extend(more);
        }
        received.len() == bytes.len() - 1000
    });
    assert!(received == bytes[1000..], "the file differs");
    assert!(asked_count > 0, "all of it went into a socket's buffer");
    let after_the_end = bytes.len() as u64;
    let end = server.world.io().send_file(token, file.as_fd(), after_the_end, 10);
    assert!(matches!(end, Ok(0)) || end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
}

fn acknowledged_bytes_tell_a_slow_reader_from_none<W: World>(world: W) {
    let mut server = Server::new(world, Manner::Count);
    let (mut client, token) = server.connected();
    server.send(token, Bytes::from(pattern(W::LARGE_BYTES)));
    // Until the client's window is full, too.
    let mut before = 0;
    let mut still_count = 0;
    server.until("a standstill", |server| {
        let now = server.world.io().acknowledged(token);
        still_count = if now == before { still_count + 1 } else { 0 };
        before = now;
        still_count == 20
    });
    server.read(&mut client, W::LARGE_BYTES / 2);
    server.until("progress", |server| server.world.io().acknowledged(token) > before);
}

fn shutdown_with_everything_in_flight<W: World>(world: W) {
    let large = Bytes::from(pattern(W::LARGE_BYTES));
    let mut server = Server::new(world, Manner::Count);
    let mut clients = Vec::new();
    for _ in 0..10 {
        let (client, token) = server.connected();
        server.send(token, large.clone());
        server.world.io().want_writable(token);
        clients.push(client);
    }
    drop(server);
}

/// The seeds of the simulation: fixed ones, and one of today that a failure prints.
fn seeds() -> impl Iterator<Item = u64> {
    let today = hoopsnake_server::clock::unix_time().as_secs() / 86_400;
    (0..8).chain([today])
}

fn simulated<S: Fn(io_world::Simulation)>(faults: Faults, scenario: S) {
    for seed in seeds() {
        println!("seed {seed}, {faults:?}");
        scenario(io_world::simulation(seed, faults));
    }
}

#[test]
fn a_network_that_breaks_connections_leaves_none_behind() {
    let mut broken_count = 0;
    for seed in seeds() {
        println!("seed {seed}");
        let world = io_world::simulation(seed, Faults::BROKEN);
        let mut server = Server::new(world, Manner::Echo);
        let mut clients: Vec<_> = (0..20).map(|_| server.connected()).collect();
        for _ in 0..100 {
            for (client, _) in &mut clients {
                // What a broken connection takes or gives is not asked: it must only end well.
                _ = server.world.write(client, &[3; 1000]);
                _ = server.world.read(client, 800);
            }
            server.pass(Duration::from_millis(5));
        }
        let failed = |seen: &io_world::Seen| {
            seen.failed.is_some() || seen.sent.iter().any(|result| result.is_err())
        };
        broken_count += server.open.values().filter(|seen| failed(seen)).count();
        for (_, token) in &clients {
            server.close(*token);
        }
        server.until("all closed", |server| server.closed.len() == clients.len());
    }
    assert!(broken_count > 0, "no connection broke");
}

macro_rules! over_every_io {
    ($($scenario:ident)*) => {
        mod ring { $(#[test] fn $scenario() { super::$scenario(super::io_world::ring()); })* }
        mod epoll { $(#[test] fn $scenario() { super::$scenario(super::io_world::epoll()); })* }
        mod simulated {
            $(#[test] fn $scenario() {
                super::simulated(super::Faults::NONE, super::$scenario);
            })*
        }
    };
}

macro_rules! over_a_rough_network {
    ($($scenario:ident)*) => {
        mod rough {
            $(#[test] fn $scenario() {
                super::simulated(super::Faults::ROUGH, super::$scenario);
            })*
        }
    };
}

over_every_io! {
    echo
    large_echo
    half_close
    reset_by_the_client
    reset_by_the_server
    slow_reader
    many_ready_sockets
    close_with_an_armed_receive
    no_event_between_close_and_closed
    flooder_and_small_clients
    backpressure
    many_wakes_are_one_event
    cancelled_accept
    a_connection_before_the_cancel_is_served
    writable_is_said_once
    a_file_from_its_middle
    acknowledged_bytes_tell_a_slow_reader_from_none
    shutdown_with_everything_in_flight
}

// Without those that count wakes or accepts, which a rough network adds to.
over_a_rough_network! {
    echo
    large_echo
    half_close
    reset_by_the_client
    reset_by_the_server
    slow_reader
    many_ready_sockets
    close_with_an_armed_receive
    no_event_between_close_and_closed
    flooder_and_small_clients
    backpressure
    cancelled_accept
    writable_is_said_once
    a_file_from_its_middle
    acknowledged_bytes_tell_a_slow_reader_from_none
    shutdown_with_everything_in_flight
}
