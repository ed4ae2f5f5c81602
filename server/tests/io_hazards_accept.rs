//! The hazards of accepting, each by its number in the list of the design, over both kernel `Io`.

mod io_world;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hoopsnake_server::clock;
use hoopsnake_server::reactor::io::{Event, Io, ListenerIndex};
use hoopsnake_server::sys::epoll::Epoll;
use hoopsnake_server::sys::held::Held;
use hoopsnake_server::sys::ring::Ring;
use io_world::{Kernel, PATIENCE, World, as_child, drive, epoll, is_child, listener, ring, waker};

fn shared_listener<I: Io<Socket = OwnedFd>>(make: fn() -> I) {
    const WORKERS: usize = 4;
    const CONNECTIONS: usize = 400;
    let (listener, address) = listener();
    let counts: Vec<_> = (0..WORKERS).map(|_| AtomicUsize::new(0)).collect();
    let armed = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for count in &counts {
            let listener = listener.try_clone().expect("a descriptor");
            let (armed, over) = (&armed, &over);
            scope.spawn(move || {
                let mut io = make();
                io.add_listener(Held::new(listener));
                io.arm_accept(ListenerIndex(0));
                io.wait(Some(Duration::ZERO)).expect("the Io works");
                armed.fetch_add(1, Ordering::SeqCst);
                while !over.load(Ordering::SeqCst) {
                    while let Some(event) = io.next_event() {
                        assert!(matches!(event, Event::Accepted { .. }), "{event:?}");
                        io.arm_accept(ListenerIndex(0));
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                    io.end_pass();
                    io.wait(Some(Duration::from_millis(20))).expect("the Io works");
                }
            });
        }
        let begin = clock::now();
        while armed.load(Ordering::SeqCst) < WORKERS {
            std::thread::yield_now();
            assert!(clock::now() - begin < PATIENCE);
        }
        let mut clients = Vec::new();
        for number in 1..=CONNECTIONS {
            clients.push(std::net::TcpStream::connect(address).expect("it listens"));
            while counts.iter().map(|count| count.load(Ordering::SeqCst)).sum::<usize>() < number {
                std::thread::yield_now();
                assert!(clock::now() - begin < PATIENCE, "{counts:?}");
            }
        }
        over.store(true, Ordering::SeqCst);
    });
    let counts: Vec<usize> = counts.into_iter().map(AtomicUsize::into_inner).collect();
    let (least, most) = (counts.iter().min().copied(), counts.iter().max().copied());
    let ratio = most.unwrap_or(0) as f64 / least.unwrap_or(0) as f64;
    assert!(ratio <= 1.3, "{counts:?}");
}

#[test]
fn hazard_21_workers_take_turns_at_a_shared_listener_ring() {
    shared_listener(|| Ring::new(waker()).expect("io_uring"));
}

#[test]
fn hazard_21_workers_take_turns_at_a_shared_listener_epoll() {
    shared_listener(|| Epoll::new(waker()).expect("epoll"));
}

fn out_of_descriptors<I: Io<Socket = OwnedFd>>(mut world: Kernel<I>) {
    world.io.wait(Some(Duration::ZERO)).expect("the Io works");
    let _client = std::net::TcpStream::connect(world.address).expect("it listens");
    let mut filling = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        filling.push(file);
    }
    for _ in 0..3 {
        world.io.arm_accept(ListenerIndex(0));
        drive(&mut world.io, "a refusal", |_, event| {
            let Event::AcceptFailed { error, .. } = event else { panic!("{event:?}") };
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
            true
        });
        // Not armed: the connection that still waits does not end a wait.
        let begin = clock::now();
        let mut wait_count = 0;
        while clock::now() - begin < Duration::from_millis(30) {
            world.io.wait(Some(Duration::from_millis(30))).expect("the Io works");
            assert!(world.io.next_event().is_none());
            wait_count += 1;
        }
        // More than one, because a ring's teardown interrupts a later wait of its thread (EINTR).
        assert!(wait_count <= 3, "a hot loop");
    }
    drop(filling);
    world.io.arm_accept(ListenerIndex(0));
    drive(&mut world.io, "the connection", |_, event| matches!(event, Event::Accepted { .. }));
}

#[test]
fn hazard_22_no_descriptors_is_said_once_per_try() {
    if !is_child() {
        return as_child("hazard_22_no_descriptors_is_said_once_per_try");
    }
    let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("lowering");
    out_of_descriptors(ring());
    out_of_descriptors(epoll());
}

fn late_accept<I: Io<Socket = OwnedFd>>(make: fn() -> Kernel<I>) {
    // A cancel may come before, with or after a connection: it is either reported or left waiting.
    let mut accepted_count = 0;
    for round in 0..30 {
        let mut world = make();
        world.io.arm_accept(ListenerIndex(0));
        if round % 2 == 0 {
            world.io.wait(Some(Duration::ZERO)).expect("the Io works");
        }
        let client = (round % 3 != 0).then(|| world.connect());
        world.io.cancel_accept(ListenerIndex(0));
        drive(&mut world.io, "an answer", |_, event| {
            if client.is_some() {
                accepted_count += 1;
                assert!(
                    matches!(event, Event::Accepted { .. }),
                    "{event:?} although one was there"
                );
            } else {
                let Event::AcceptFailed { error, .. } = event else { panic!("{event:?}") };
                assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
            }
            true
        });
    }
    assert_eq!(accepted_count, 20);
}

#[test]
fn hazard_23_a_connection_before_the_cancel_is_not_lost() {
    late_accept(ring);
    late_accept(epoll);
}
