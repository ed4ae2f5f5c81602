//! Hazards of the ring that take a signal, a fork or a look at a descriptor's flags.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::OFlags;

use super::ring::Ring;
use super::socket::{LocalAddress, TcpOptions, listen_tcp, local_address};
use crate::clock;
use crate::reactor::io::{Event, Io, ListenerIndex, Outgoing, Sending};
use crate::reactor::token::Token;
use crate::reactor::wake::Waker;
use crate::sys::held::Held;

const TOKEN: Token = Token::new(0, 0);
const PATIENCE: Duration = Duration::from_secs(30);

/// Passes until `step` is true for an event.
fn drive(ring: &mut Ring, mut step: impl FnMut(&mut Ring, Event<OwnedFd>) -> bool) {
    let begin = clock::now();
    loop {
        ring.wait(Some(Duration::from_millis(50))).expect("the ring works");
        let mut done = false;
        while let Some(event) = ring.next_event() {
            done |= step(ring, event);
        }
        ring.end_pass();
        if done {
            return;
        }
        assert!(clock::now() - begin < PATIENCE, "in vain");
    }
}

/// A connection that the ring accepted, and the flags of its socket.
fn connected() -> (Ring, TcpStream, OFlags) {
    let mut ring = Ring::new(Waker::new().expect("a descriptor")).expect("io_uring");
    let options = TcpOptions { backlog_count: 16, reuse_port: false };
    let any = "127.0.0.1:0".parse().expect("an address");
    let listener = listen_tcp(any, options).expect("a free port");
    let LocalAddress::Inet(address) = local_address(&listener).expect("bound") else {
        panic!("TCP");
    };
    ring.add_listener(Held::new(listener));
    ring.arm_accept(ListenerIndex(0));
    let client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let mut flags = OFlags::empty();
    drive(&mut ring, |ring, event| {
        let Event::Accepted { socket, .. } = event else { return false };
        flags = rustix::fs::fcntl_getfl(&socket).expect("open");
        ring.adopt(TOKEN, socket);
        ring.start_recv(TOKEN);
        true
    });
    (ring, client, flags)
}

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 31 % 251) as u8).collect()
}

fn send(ring: &mut Ring, bytes: Vec<u8>) -> Sending {
    ring.send(TOKEN, Outgoing { body: bytes.into(), ..Outgoing::default() }).expect("connected")
}

/// The ground for accepting with `SOCK_NONBLOCK`: a ring send on such a socket waits for room, it
/// neither fails with `EAGAIN` nor comes back short, and a multishot receive stays armed.
#[test]
fn a_ring_send_waits_on_a_non_blocking_socket() {
    let (mut ring, mut client, flags) = connected();
    assert!(flags.contains(OFlags::NONBLOCK));
    let bytes = pattern(8 * 1024 * 1024);
    assert!(matches!(send(&mut ring, bytes.clone()), Sending::InFlight { .. }));
    let before = ring.counters().enter_count;
    for _ in 0..5 {
        ring.wait(Some(Duration::from_millis(20))).expect("the ring works");
        assert!(ring.next_event().is_none(), "nobody reads, and nobody writes");
    }
    assert!(ring.counters().enter_count - before <= 5);
    client.write_all(b"still listening").expect("connected");
    drive(&mut ring, |ring, event| {
        let Event::Data { chunk, .. } = event else { panic!("{event:?}") };
        assert_eq!(ring.chunk(chunk), b"still listening");
        true
    });
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut received = vec![0; bytes.len()];
            client.read_exact(&mut received).expect("connected");
            received
        });
        drive(&mut ring, |_, event| matches!(event, Event::Sent { result: Ok(_), .. }));
        assert!(reader.join().expect("no panic") == bytes, "bytes differ");
    });
    let counters = ring.counters();
    assert_eq!((counters.short_send_count, counters.rearm_count, counters.stray_count), (0, 0, 0));
}

static SIGNAL_COUNT: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_signal(_signal: libc::c_int) {
    SIGNAL_COUNT.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn hazard_27_signals_neither_end_a_wait_badly_nor_lose_bytes() {
    let handler: extern "C" fn(libc::c_int) = count_signal;
    let action = libc::sigaction {
        sa_sigaction: handler as usize,
        // SAFETY: I7: all zeroes is the empty set.
        sa_mask: unsafe { std::mem::zeroed() },
        // No SA_RESTART: every system call of the thread is interrupted.
        sa_flags: 0,
        sa_restorer: None,
    };
    // SAFETY: I6, I7: a live action whose handler only counts.
    let result = unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0);
    let (mut ring, mut client, _) = connected();
    // SAFETY: I7: no pointer.
    let this_thread = unsafe { libc::pthread_self() };
    let bytes = pattern(8 * 1024 * 1024);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                // SAFETY: I7: the scope keeps the thread alive until this loop has ended.
                unsafe { libc::pthread_kill(this_thread, libc::SIGUSR1) };
                let until = clock::now() + Duration::from_micros(300);
                while clock::now() < until {
                    std::thread::yield_now();
                }
            }
        });
        let reader = scope.spawn(|| {
            let mut received = vec![0; 3 * bytes.len()];
            client.read_exact(&mut received).expect("connected");
            received
        });
        for _ in 0..3 {
            if matches!(send(&mut ring, bytes.clone()), Sending::InFlight { .. }) {
                drive(&mut ring, |_, event| {
                    assert!(matches!(event, Event::Sent { result: Ok(_), .. }), "{event:?}");
                    true
                });
            }
        }
        let received = reader.join().expect("no panic");
        // An idle wait is interrupted too, and that is no error.
        for _ in 0..20 {
            ring.wait(Some(Duration::from_millis(5))).expect("an interrupted wait is no error");
            assert!(ring.next_event().is_none());
        }
        over.store(true, Ordering::SeqCst);
        assert!(received.chunks(bytes.len()).all(|part| part == bytes), "bytes differ");
    });
    assert!(SIGNAL_COUNT.load(Ordering::Relaxed) > 10, "no signal came");
}

#[test]
fn hazard_19_a_forked_child_disturbs_neither_the_ring_nor_a_close() {
    let (mut ring, mut client, _) = connected();
    let flags = rustix::pipe::PipeFlags::CLOEXEC;
    let (ours, theirs) = rustix::pipe::pipe_with(flags).expect("descriptors");
    // SAFETY: I10: the child makes three system calls and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // The test ends by closing its end of the pipe: until then the child holds every socket.
        // SAFETY: I10: the child's copy of that end.
        unsafe { libc::close(ours.as_raw_fd()) };
        let mut descriptor = libc::pollfd { fd: theirs.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: I7, I10: one live descriptor; a closed other end is an error that poll reports.
        unsafe { libc::poll(&raw mut descriptor, 1, 60_000) };
        // SAFETY: I10: ends the child without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    for round in 0..100_u32 {
        client.write_all(&round.to_le_bytes()).expect("connected");
        drive(&mut ring, |ring, event| {
            let Event::Data { chunk, .. } = event else { panic!("{event:?}") };
            let bytes = Bytes::copy_from_slice(ring.chunk(chunk));
            let outgoing = Outgoing { head: bytes, ..Outgoing::default() };
            assert_eq!(ring.send(TOKEN, outgoing).expect("connected"), Sending::Complete);
            true
        });
        let mut back = [0; 4];
        client.read_exact(&mut back).expect("connected");
        assert_eq!(back, round.to_le_bytes());
    }
    ring.close(TOKEN);
    drive(&mut ring, |_, event| matches!(event, Event::Closed { .. }));
    // The child has a copy of the socket, and the client sees FIN all the same.
    assert_eq!(client.read(&mut [0; 1]).expect("FIN"), 0);
    drop(ring);
    // `poll` without events reports only that the other end of the pipe is gone.
    drop(ours);
    let mut status = 0;
    // SAFETY: I7: a live status; the child is ours and was not waited for.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    drop(theirs);
}
