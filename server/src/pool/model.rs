//! The order of steps, checked over every interleaving: `make model`.
//!
//! Sleeping is modelled as "until the word changes", so a lost wake is a thread that yields for ever,
//! which the checker reports. No wait here has a timeout: what saves a lost wake in production (the
//! aged wake, the reactor's one-second net) is left out on purpose. The queue is a stand-in whose push
//! is only `Release` (`sync::modelled`), so a missing fence of RULES 8 fails here.

use loom::thread;

use super::{Lane, Next, ThreadIndex};
use crate::exchange::Completions;
use crate::reactor::token::Token;
use crate::reactor::wake::Waker;
use crate::sync::Arc;

fn completions() -> Arc<Completions> {
    Arc::new(Completions::new(4, Waker::new().expect("an eventfd")))
}

/// What a pool thread does: takes jobs until its pill, and says which.
fn pool_thread(lane: &Lane<u32>, index: usize) -> Vec<u32> {
    let mut taken = Vec::new();
    while let Next::Job(job) = lane.next_job(ThreadIndex(index)) {
        taken.push(job);
    }
    taken
}

/// Sleeps as the reactor does, until a producer takes the announcement back.
fn sleep_until_woken(completions: &Completions) {
    while completions.is_parked() {
        thread::yield_now();
    }
}

/// Explores every interleaving with up to so many preemptions.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn rules_8_a_job_submitted_while_the_thread_parks_is_taken_without_another_wake() {
    check(3, || {
        let lane = Arc::new(Lane::new(1, 4, completions()));
        let taker = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || lane.next_job(ThreadIndex(0)))
        };
        lane.submit(7).expect("room");
        lane.wake_for_work();
        // No stop: only the wake above may end the park.
        assert_eq!(taker.join().expect("no panic"), Next::Job(7));
    });
}

#[test]
fn jobs_and_pills_against_two_parking_threads_lose_nothing() {
    check(2, || {
        let lane = Arc::new(Lane::new(2, 4, completions()));
        let takers: Vec<_> = (0..2)
            .map(|index| {
                let lane = Arc::clone(&lane);
                thread::spawn(move || pool_thread(&lane, index))
            })
            .collect();
        lane.submit(1).expect("room");
        lane.wake_for_work();
        lane.submit(2).expect("room");
        lane.wake_for_work();
        lane.stop();
        let mut taken: Vec<u32> =
            takers.into_iter().flat_map(|taker| taker.join().expect("no panic")).collect();
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        assert_eq!(lane.parked_count(), 0);
    });
}

#[test]
fn a_wake_is_for_one_thread_and_none_is_left_over() {
    check(3, || {
        let lane = Arc::new(Lane::<u32>::new(1, 4, completions()));
        let taker = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || pool_thread(&lane, 0))
        };
        // A wake without a job: the thread looks, finds nothing and parks again.
        lane.wake_one();
        lane.stop();
        assert!(taker.join().expect("no panic").is_empty());
        assert_eq!(lane.parked_count(), 0);
    });
}

#[test]
fn rules_8_a_completion_against_a_reactor_going_to_sleep_is_never_slept_through() {
    check(3, || {
        let completions = completions();
        let producer = {
            let completions = Arc::clone(&completions);
            thread::spawn(move || {
                completions.push(Token::new(3, 1));
                completions.wake_if_parked();
            })
        };
        let token = loop {
            if let Some(token) = completions.pop() {
                break token;
            }
            if completions.park() {
                sleep_until_woken(&completions);
            }
            completions.unpark();
        };
        assert_eq!(token, Token::new(3, 1));
        producer.join().expect("no panic");
    });
}

#[test]
fn a_wake_held_back_is_made_before_the_thread_parks() {
    check(3, || {
        let completions = completions();
        let lane = Arc::new(Lane::new(1, 4, Arc::clone(&completions)));
        lane.submit(1).expect("room");
        lane.submit(2).expect("room");
        let worker = {
            let (lane, completions) = (Arc::clone(&lane), Arc::clone(&completions));
            thread::spawn(move || {
                for _ in 0..2 {
                    if let Next::Job(job) = lane.next_job(ThreadIndex(0)) {
                        completions.push(Token::new(job, 0));
                        lane.completed(ThreadIndex(0));
                    }
                }
                lane.next_job(ThreadIndex(0))
            })
        };
        let mut seen = 0;
        while seen < 2 {
            if completions.pop().is_some() {
                seen += 1;
                continue;
            }
            if completions.park() {
                sleep_until_woken(&completions);
            }
            completions.unpark();
        }
        lane.stop();
        assert_eq!(worker.join().expect("no panic"), Next::Stop);
    });
}
