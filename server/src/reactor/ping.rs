//! Hazard 14: a wake that comes while the reactor goes to sleep, two hundred thousand times, on the
//! real interfaces of the kernel and with real threads.
//!
//! In production a lost wake is found again after `SLEEP_MAX`. Here that net is the judge: a wait
//! that only it could have ended is a failure.

use std::thread;
use std::time::Duration;

use super::io::{Event, Io};
use super::token::Token;
use super::wake::Waker;
use crate::clock;
use crate::exchange::Completions;
use crate::limits::SLEEP_MAX;
use crate::sync::{Arc, AtomicUsize, Ordering};
use crate::sys::{epoll::Epoll, ring::Ring};

/// For each of the two interfaces. **Unit**: wakes.
const PING_COUNT: usize = 100_000;
/// **Why**: a wait that took the net's second was ended by it.
const WAIT_MAX: Duration = Duration::from_millis(900);

fn spin(count: usize) {
    for _ in 0..count {
        std::hint::spin_loop();
    }
}

/// Pings, each after the answer to the one before, so that every one meets a reactor on its way to
/// sleep.
fn ping(completions: &Completions, answered: &AtomicUsize) {
    for number in 0..PING_COUNT {
        // A different moment each time: the reactor is found awake, announcing or asleep.
        spin(number * 7 % 1_009);
        completions.push(Token::new(0, 0));
        completions.wake_if_parked();
        while answered.load(Ordering::Acquire) <= number {
            thread::yield_now();
        }
    }
}

/// The reactor's own order: pop, announce and look again, wait, take the announcement back.
fn answer<I: Io>(mut io: I, completions: &Completions, answered: &AtomicUsize) {
    let (mut count, mut sleeps) = (0, 0_u32);
    while count < PING_COUNT {
        while completions.pop().is_some() {
            count += 1;
            answered.store(count, Ordering::Release);
        }
        if count == PING_COUNT {
            break;
        }
        // As the reactor has things to do between its last look and the announcement: the gap that
        // the second look after it is for.
        spin(count * 13 % 509);
        let parked = completions.park(false);
        let timeout = if parked { SLEEP_MAX } else { Duration::ZERO };
        let before = clock::now();
        io.wait(Some(timeout)).expect("the kernel's interface works");
        let waited = clock::now() - before;
        completions.unpark();
        assert!(waited <= WAIT_MAX, "{}: ping {count} was slept through: {waited:?}", io.name());
        sleeps += u32::from(parked);
        while let Some(event) = io.next_event() {
            assert!(matches!(event, Event::Woken), "{}: not a wake", io.name());
        }
        io.end_pass();
    }
    // Otherwise it was always found awake, and nothing was shown.
    assert!(sleeps > 1_000, "{}: it slept only {sleeps} times", io.name());
    io.shutdown();
}

fn soak<I: Io>(open: impl FnOnce(Waker) -> std::io::Result<I>) {
    let waker = Waker::new().expect("a descriptor");
    let completions = Arc::new(Completions::new(1, waker.clone()));
    let answered = Arc::new(AtomicUsize::new(0));
    let pinger = {
        let (completions, answered) = (Arc::clone(&completions), Arc::clone(&answered));
        let run = move || ping(&completions, &answered);
        thread::Builder::new().spawn(run).expect("a thread")
    };
    answer(open(waker).expect("the kernel's interface"), &completions, &answered);
    pinger.join().expect("no panic");
    assert!(completions.poke_count() > 0);
}

#[test]
fn hazard_14_no_wake_of_a_hundred_thousand_is_slept_through_on_the_ring() {
    soak(Ring::new);
}

#[test]
fn hazard_14_no_wake_of_a_hundred_thousand_is_slept_through_on_epoll() {
    soak(Epoll::new);
}
