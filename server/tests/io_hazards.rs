//! The hazards of io_uring that one meets without looking for them, each by its number in the list
//! of the design. What concerns epoll too runs over both.

mod io_world;

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hoopsnake_server::clock;
use hoopsnake_server::reactor::io::{Event, Io, ListenerIndex, Outgoing, Peer, Sending};
use hoopsnake_server::reactor::token::Token;
use hoopsnake_server::sys::epoll::Epoll;
use hoopsnake_server::sys::held::Held;
use hoopsnake_server::sys::ring::Ring;
use hoopsnake_server::sys::socket;
use io_world::{
    Found, Kernel, Manner, PATIENCE, Server, World, as_child, drive, epoll, is_child, listener,
    pattern, ring, small_ring, waker,
};

/// Bytes that tell when they are freed.
struct Owned(Vec<u8>, Arc<AtomicBool>);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
    }
}

fn owned(bytes: Vec<u8>) -> (Bytes, Arc<AtomicBool>) {
    let freed = Arc::new(AtomicBool::new(false));
    (Bytes::from_owner(Owned(bytes, freed.clone())), freed)
}

const LARGE_BYTES: usize = 8 * 1024 * 1024;

#[test]
fn hazard_01_bytes_are_freed_by_the_completion_and_not_by_the_close() {
    let mut server = Server::new(ring(), Manner::Count);
    let (_client, token) = server.connected();
    let (bytes, freed) = owned(pattern(LARGE_BYTES));
    server.send(token, bytes);
    assert!(server.seen(token).in_flight);
    server.close(token);
    assert!(!freed.load(Ordering::SeqCst), "freed while the kernel reads it");
    server.until("closed", |server| server.closed.len() == 1);
    assert!(freed.load(Ordering::SeqCst), "kept after the kernel gave it back");
}

fn fin_and_slot(world: impl World) {
    let mut server = Server::new(world, Manner::Count);
    for round in 1..=50 {
        let (mut client, token) = server.connected();
        assert_eq!(token.generation(), round - 1, "the slot is used again, by a new generation");
        server.close(token);
        assert_eq!(server.read_to_end(&mut client), (Vec::new(), Found::Eof));
        server.until("closed", |server| server.closed.len() == round as usize);
    }
}

#[test]
fn hazard_02_close_with_a_receive_armed_sends_fin_ring() {
    fin_and_slot(ring());
}

#[test]
fn hazard_02_close_with_a_receive_armed_sends_fin_epoll() {
    fin_and_slot(epoll());
}

#[test]
fn hazard_03_a_descriptor_lives_until_its_operations_are_gone() {
    let mut world = ring();
    let mut previous = None;
    for round in 0..50 {
        world.io.arm_accept(ListenerIndex(0));
        let mut client = world.connect();
        let token = Token::new(0, round);
        let mut number = None;
        drive(&mut world.io, "an accept", |io, event| {
            let Event::Accepted { socket, .. } = event else { return false };
            number = Some(socket.as_raw_fd());
            io.adopt(token, socket);
            io.start_recv(token);
            true
        });
        // Whatever the number was before, bytes reach this connection and not the one before.
        let message = format!("round {round}");
        client.write_all(message.as_bytes()).expect("connected");
        drive(&mut world.io, "the bytes", |io, event| {
            let Event::Data { token: owner, chunk } = event else { panic!("{event:?}") };
            assert_eq!(owner, token);
            assert_eq!(io.chunk(chunk), message.as_bytes());
            true
        });
        world.io.close(token);
        let link = format!("/proc/self/fd/{}", number.expect("accepted"));
        let open = std::fs::read_link(&link).expect("still open: its receive is in flight");
        assert_ne!(Some(&open), previous.as_ref(), "the old socket is still there");
        drive(&mut world.io, "closed", |_, event| {
            assert!(matches!(event, Event::Closed { token: owner } if owner == token));
            true
        });
        previous = Some(open);
    }
    assert_eq!(world.io.counters().stray_count, 0);
}

#[test]
fn hazard_05_a_receive_that_the_kernel_ended_is_armed_again() {
    // Four completions fit, twelve arrive at once: the kernel ends receives that still go on.
    let mut server = Server::new(small_ring(4, 4, 16), Manner::Count);
    let mut clients: Vec<_> = (0..12).map(|_| server.connected()).collect();
    for round in 1..=10 {
        for (client, _) in &mut clients {
            assert_eq!(server.world.write(client, &[7; 16]), 16);
        }
        server.until("192 bytes", |server| {
            clients.iter().all(|(_, token)| server.open[token].received_count == 16 * round)
        });
    }
    let counters = server.world.io.counters();
    assert!(counters.rearm_count > 0, "nothing overflowed: {counters:?}");
    assert_eq!(counters.stray_count, 0);
}

#[test]
fn hazard_06_nothing_is_lost_when_completions_overflow() {
    let mut server = Server::new(small_ring(64, 64, 256), Manner::Count);
    let mut clients: Vec<_> = (0..200).map(|_| server.connected()).collect();
    for round in 1..=50 {
        for (client, _) in &mut clients {
            assert_eq!(server.world.write(client, b"0123456789"), 10);
        }
        server.until("every message of the round", |server| {
            clients.iter().all(|(_, token)| server.open[token].received_count == 10 * round)
        });
    }
    assert_eq!(server.world.io.counters().stray_count, 0);
}

#[test]
fn hazard_07_an_empty_buffer_group_is_waited_out_and_not_spun_on() {
    let mut server = Server::new(small_ring(64, 256, 2), Manner::Count);
    let mut clients: Vec<_> = (0..64).map(|_| server.connected()).collect();
    for round in 1..=5 {
        for (client, _) in &mut clients {
            assert_eq!(server.world.write(client, &[1; 100]), 100);
        }
        server.until("all of them", |server| {
            clients.iter().all(|(_, token)| server.open[token].received_count == 100 * round)
        });
    }
    let starved = server.world.io.counters();
    assert!(starved.starve_count > 0, "the buffers never ran out: {starved:?}");
    // Idle now: every receive is armed, none of them fails again and again.
    for _ in 0..5 {
        server.pass(Duration::from_millis(10));
    }
    let before = server.world.io.counters();
    for _ in 0..10 {
        server.pass(Duration::from_millis(20));
    }
    let after = server.world.io.counters();
    assert_eq!(after.starve_count, before.starve_count);
    assert!(after.enter_count - before.enter_count <= 20, "{before:?} {after:?}");
}

fn small_clients_beside_a_flooder(world: impl World) {
    let mut server = Server::new(world, Manner::Count);
    let (mut flooder, _flood) = server.connected();
    let mut small: Vec<_> = (0..100).map(|_| server.connected()).collect();
    let bytes = pattern(1024 * 1024);
    for round in 1..=5 {
        for (client, _) in &mut small {
            assert_eq!(server.world.write(client, b"small"), 5);
        }
        let mut pass_count = 0;
        server.until("the small clients", |server| {
            pass_count += 1;
            while server.world.write(&mut flooder, &bytes) == bytes.len() {}
            small.iter().all(|(_, token)| server.open[token].received_count == 5 * round)
        });
        assert!(pass_count <= 100, "the small clients waited {pass_count} passes");
    }
    assert!(server.longest_pass <= hoopsnake_server::limits::EVENTS_PER_PASS_MAX + 1);
}

#[test]
fn hazard_08_a_flooder_does_not_starve_the_others_ring() {
    small_clients_beside_a_flooder(ring());
}

#[test]
fn hazard_08_a_flooder_does_not_starve_the_others_epoll() {
    small_clients_beside_a_flooder(epoll());
}

/// A listener whose connections have a send buffer of 64 KiB.
fn narrow<I: Io>(mut io: I) -> Kernel<I> {
    let (listener, address) = listener();
    rustix::net::sockopt::set_socket_send_buffer_size(&listener, 64 * 1024).expect("a socket");
    io.add_listener(Held::new(listener));
    Kernel { io, address }
}

fn slow_reader_through_a_narrow_buffer(world: impl World) {
    let mut server = Server::new(world, Manner::Count);
    let (mut client, token) = server.connected();
    let (head, body) = (pattern(300_000), pattern(LARGE_BYTES));
    let outgoing =
        Outgoing { head: Bytes::from(head.clone()), body: Bytes::from(body.clone()), more: false };
    let length = outgoing.len();
    let taken = match server.world.io().send(token, outgoing).expect("connected") {
        Sending::InFlight { taken } => taken,
        Sending::Complete => panic!("8 MiB went into 64 KiB"),
    };
    server.seen(token).in_flight = true;
    let before = server.world.io().acknowledged(token);
    let received = server.read(&mut client, length);
    assert!(received[..head.len()] == head && received[head.len()..] == body, "bytes differ");
    server.until("the completion", |server| !server.seen(token).in_flight);
    assert_eq!(server.seen(token).sent[0].as_ref().ok(), Some(&(length - taken)));
    assert!(server.world.io().acknowledged(token) > before);
}

#[test]
fn hazard_09_a_short_send_is_continued_ring() {
    slow_reader_through_a_narrow_buffer(narrow(Ring::new(waker()).expect("io_uring")));
}

#[test]
fn hazard_09_a_short_send_is_continued_epoll() {
    slow_reader_through_a_narrow_buffer(narrow(Epoll::new(waker()).expect("epoll")));
}

fn second_send(world: impl World) {
    let mut server = Server::new(world, Manner::Count);
    let (_client, token) = server.connected();
    server.send(token, Bytes::from(pattern(LARGE_BYTES)));
    assert!(server.seen(token).in_flight);
    let outgoing = Outgoing { head: Bytes::from_static(b"second"), ..Outgoing::default() };
    _ = server.world.io().send(token, outgoing);
}

#[test]
#[should_panic(expected = "bug: a second send of")]
fn hazard_10_two_sends_in_flight_are_refused_ring() {
    second_send(ring());
}

#[test]
#[should_panic(expected = "bug: a second send of")]
fn hazard_10_two_sends_in_flight_are_refused_epoll() {
    second_send(epoll());
}

/// Hazard 11 too: nothing is linked, so a failed send cannot take a close with it.
#[test]
fn hazard_12_a_cancelled_send_ends_whatever_it_reports() {
    let mut server = Server::new(ring(), Manner::Count);
    let large = pattern(LARGE_BYTES);
    for round in 1..=20_usize {
        let (mut client, token) = server.connected();
        let (bytes, freed) = owned(large.clone());
        server.send(token, bytes);
        assert!(server.seen(token).in_flight);
        // Some of it is read, so that the send has been going on when the cancel reaches it.
        server.read(&mut client, 100_000 * (1 + round % 5));
        if round % 3 == 0 {
            server.world.reset(client);
            server.close(token);
        } else {
            server.abort(token);
            let (_, end) = server.read_to_end(&mut client);
            assert_eq!(end, Found::Reset);
        }
        server.until("closed", |server| server.closed.len() == round);
        assert!(freed.load(Ordering::SeqCst));
    }
    assert_eq!(server.world.io.counters().stray_count, 0);
}

/// A client thread that sends and waits for the echo, `count` times.
fn ping_pong<I: Io>(world: Kernel<I>, count: usize) -> Kernel<I> {
    let address = world.address;
    let client = std::thread::Builder::new().spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let mut back = [0; 100];
        for _ in 0..count {
            stream.write_all(&[5; 100]).expect("connected");
            stream.read_exact(&mut back).expect("connected");
        }
    });
    let client = client.expect("a thread");
    let mut server = Server::new(world, Manner::Echo);
    let begin = clock::now();
    while !(server.open.len() == 1 && server.open.values().all(|seen| seen.eof)) {
        server.pass(Duration::from_secs(1));
        assert!(clock::now() - begin < PATIENCE, "the client does not end");
    }
    client.join().expect("the echo was right");
    server.world
}

#[test]
fn hazard_16_a_request_costs_two_enters_at_the_most() {
    const REQUESTS: usize = 5000;
    let world = ping_pong(ring(), REQUESTS);
    let enters = world.io.counters().enter_count as f64 / REQUESTS as f64;
    assert!(enters <= 2.1, "{enters} enters per request");
    let world = ping_pong(epoll(), REQUESTS);
    let waits = world.io.wait_count() as f64 / REQUESTS as f64;
    assert!(waits <= 2.1, "{waits} waits per request");
}

#[test]
fn hazard_17_bytes_end_a_wait_although_nothing_is_submitted() {
    let mut server = Server::new(ring(), Manner::Count);
    let (mut client, token) = server.connected();
    server.pass(Duration::from_millis(20));
    let begin = clock::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // After the server has gone to sleep, as far as that can be known.
            let until = clock::now() + Duration::from_millis(50);
            while clock::now() < until {
                std::thread::yield_now();
            }
            client.write_all(b"wake up").expect("connected");
        });
        while server.seen(token).received_count < 7 {
            server.pass(Duration::from_secs(60));
        }
    });
    assert!(clock::now() - begin < PATIENCE, "the bytes waited for the timeout");
}

#[test]
fn hazard_18_many_ready_sockets_are_all_found() {
    let mut server = Server::new(ring(), Manner::Count);
    let mut clients: Vec<_> = (0..256).map(|_| server.connected()).collect();
    for (client, _) in &mut clients {
        assert_eq!(server.world.write(client, b"ready"), 5);
    }
    let before = server.pass_count;
    server.until("all of them", |server| {
        clients.iter().all(|(_, token)| server.open[token].received_count == 5)
    });
    let turns = server.pass_count - before;
    assert!(turns <= 64, "{turns} turns for 256 sockets");
}

#[test]
fn hazard_24_no_kernel_worker_thread_is_started() {
    let mut server = Server::new(ring(), Manner::Echo);
    for _ in 0..10 {
        let (mut client, token) = server.connected();
        server.send(token, Bytes::from(pattern(2_000_000)));
        server.read(&mut client, 2_000_000);
        server.world.io().shutdown_write(token);
        server.close(token);
    }
    server.until("closed", |server| server.closed.len() == 10);
    for task in std::fs::read_dir("/proc/self/task").expect("procfs").flatten() {
        // The other tests' threads come and go.
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        assert!(!name.starts_with("iou-wrk"), "an operation went to a kernel thread");
    }
}

#[test]
fn hazard_28_a_full_submission_queue_is_emptied_and_used_again() {
    let mut server = Server::new(small_ring(8, 1024, 256), Manner::Echo);
    let mut clients: Vec<_> = (0..300).map(|_| server.connected()).collect();
    for round in 0..3 {
        for (_, token) in &clients {
            server.world.io().stop_recv(*token);
            server.world.io().start_recv(*token);
        }
        for (index, (client, _)) in clients.iter_mut().enumerate() {
            assert_eq!(server.world.write(client, &[(round + index) as u8; 10]), 10);
        }
        for (index, (client, _)) in clients.iter_mut().enumerate() {
            assert_eq!(server.read(client, 10), [(round + index) as u8; 10]);
        }
    }
    for (_, token) in &clients {
        server.close(*token);
    }
    server.until("all closed", |server| server.closed.len() == clients.len());
    assert_eq!(server.world.io.counters().stray_count, 0);
}

fn idle_after_a_wake(world: impl World) {
    let mut server = Server::new(world, Manner::Count);
    let (_client, _token) = server.connected();
    server.world.io().waker().wake();
    server.until("the wake", |server| server.woken_count == 1);
    server.pass(Duration::ZERO);
    let begin = clock::now();
    for _ in 0..5 {
        server.pass(Duration::from_millis(20));
    }
    assert_eq!(server.woken_count, 1, "the eventfd that nobody reads is reported again");
    assert!(clock::now() - begin >= Duration::from_millis(100), "idle waits return early");
}

#[test]
fn hazard_29_an_unread_eventfd_does_not_spin_ring() {
    idle_after_a_wake(ring());
}

#[test]
fn hazard_29_an_unread_eventfd_does_not_spin_epoll() {
    idle_after_a_wake(epoll());
}

fn unix_end_of_stream<I: Io<Socket = OwnedFd>>(mut io: I) {
    let name = format!("hoopsnake-{}-{}.sock", io.name(), std::process::id());
    let path = std::env::temp_dir().join(name);
    let listener = socket::listen_unix(&path, 0o600, 16).expect("a free path");
    let listener = io.add_listener(Held::new(listener));
    for round in 0..100 {
        io.arm_accept(listener);
        let mut client = UnixStream::connect(&path).expect("it listens");
        let token = Token::new(0, round);
        drive(&mut io, "an accept", |io, event| {
            let Event::Accepted { socket, peer, .. } = event else { panic!("{event:?}") };
            assert_eq!(peer, Peer::Unix);
            io.adopt(token, socket);
            io.start_recv(token);
            true
        });
        if round % 2 == 0 {
            io.wait(Some(Duration::ZERO)).expect("the Io works");
        }
        client.write_all(b"last words").expect("connected");
        client.shutdown(std::net::Shutdown::Write).expect("connected");
        let mut received = Vec::new();
        drive(&mut io, "the end", |io, event| {
            if let Event::Data { chunk, .. } = event {
                received.extend_from_slice(io.chunk(chunk));
                return false;
            }
            assert!(matches!(event, Event::Eof { .. }), "{event:?}");
            true
        });
        assert_eq!(received, b"last words");
        let before = io.acknowledged(token);
        let outgoing = Outgoing { head: Bytes::from_static(b"answer"), ..Outgoing::default() };
        assert_eq!(io.send(token, outgoing).expect("half-closed"), Sending::Complete);
        assert_ne!(io.acknowledged(token), before, "unread bytes do not show");
        let mut answer = [0; 6];
        client.read_exact(&mut answer).expect("connected");
        assert_eq!(&answer, b"answer");
        assert_eq!(io.acknowledged(token), before);
        io.close(token);
        drive(&mut io, "closed", |_, event| matches!(event, Event::Closed { .. }));
    }
    std::fs::remove_file(&path).expect("ours");
}

#[test]
fn hazard_31_a_unix_socket_tells_its_end_ring() {
    unix_end_of_stream(Ring::new(waker()).expect("io_uring"));
}

#[test]
fn hazard_31_a_unix_socket_tells_its_end_epoll() {
    unix_end_of_stream(Epoll::new(waker()).expect("epoll"));
}

fn ends_of_a_stream(world: impl World) {
    let mut server = Server::new(world, Manner::Collect);
    // Bytes and FIN before anything was read.
    let mut client = server.world.connect();
    assert_eq!(server.world.write(&mut client, b"data"), 4);
    server.world.finish(&mut client);
    server.until("the end", |server| server.accepted.first().is_some_and(|t| server.open[t].eof));
    let first = server.accepted[0];
    assert_eq!(server.seen(first).received, b"data");
    // A reset is an error and not an end.
    let (mut client, second) = server.connected();
    assert_eq!(server.world.write(&mut client, b"data"), 4);
    server.until("the bytes", |server| server.open[&second].received == b"data");
    server.world.reset(client);
    server.until("the reset", |server| server.open[&second].failed.is_some());
    assert!(!server.seen(second).eof);
    assert_eq!(server.seen(second).failed, Some(std::io::ErrorKind::ConnectionReset));
    // And sending fails after it, with nothing left in flight.
    server.send(second, Bytes::from_static(b"too late"));
    assert!(matches!(&server.seen(second).sent[..], [Err(error)]
        if error.kind() == std::io::ErrorKind::BrokenPipe));
}

#[test]
fn hazard_32_data_with_fin_and_rst_are_told_apart_ring() {
    ends_of_a_stream(ring());
}

#[test]
fn hazard_32_data_with_fin_and_rst_are_told_apart_epoll() {
    ends_of_a_stream(epoll());
}

fn answer_after_half_close(world: impl World) {
    let mut server = Server::new(world, Manner::Collect);
    let (mut client, token) = server.connected();
    server.write(&mut client, b"request");
    server.world.finish(&mut client);
    server.until("the end", |server| server.seen(token).eof);
    server.send(token, Bytes::from(pattern(LARGE_BYTES)));
    assert!(server.read(&mut client, LARGE_BYTES) == pattern(LARGE_BYTES));
}

#[test]
fn hazard_33_a_half_closed_client_gets_its_answer_ring() {
    answer_after_half_close(ring());
}

#[test]
fn hazard_33_a_half_closed_client_gets_its_answer_epoll() {
    answer_after_half_close(epoll());
}

#[test]
fn hazard_35_a_thousand_rings_dropped_in_the_middle_leave_nothing() {
    if !is_child() {
        return as_child("hazard_35_a_thousand_rings_dropped_in_the_middle_leave_nothing");
    }
    let count = |what: &str| std::fs::read_dir(what).expect("procfs").count();
    let before = (count("/proc/self/fd"), count("/proc/self/task"));
    let large = pattern(LARGE_BYTES);
    for round in 0..1000 {
        let mut ring = Ring::new(waker()).expect("io_uring");
        let (one, other) = UnixStream::pair().expect("a pair");
        let token = Token::new(0, 0);
        one.set_nonblocking(true).expect("a socket");
        ring.adopt(token, OwnedFd::from(one));
        ring.start_recv(token);
        let (body, freed) = owned(large[..1_000_000].to_vec());
        let outgoing = Outgoing { body, ..Outgoing::default() };
        let sending = ring.send(token, outgoing).expect("connected");
        assert!(matches!(sending, Sending::InFlight { .. }));
        if round % 2 == 0 {
            ring.wait(Some(Duration::ZERO)).expect("the ring works");
            ring.end_pass();
        }
        if round % 3 == 0 {
            (&other).write_all(b"as it is dropped").expect("connected");
        }
        ring.shutdown();
        assert!(freed.load(Ordering::SeqCst), "leaked: round {round}");
        // A Unix socket that was closed with unread bytes is reset.
        let mut rest = Vec::new();
        if let Err(error) = (&other).read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
    assert_eq!((count("/proc/self/fd"), count("/proc/self/task")), before);
}
