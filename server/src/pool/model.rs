//! The order of steps, checked over every interleaving: `make model`.
//!
//! Sleeping is modelled as "until the word changes", so a lost wake is a thread that yields for ever,
//! which the checker reports. No wait here has a timeout: what saves a lost wake in production (the
//! aged wake, the reactor's one-second net) is left out on purpose. The queue is a stand-in whose push
//! is only `Release` (`sync::modelled`), so a missing fence of RULES 8 fails here.

use std::sync::atomic::AtomicU64 as Untracked;
use std::time::{Duration, Instant};

use loom::thread;

use super::{Host, Interpreter, Knobs, Lane, Next, Policy, Runner, ThreadIndex, Turn};
use crate::clock;
use crate::exchange::Completions;
use crate::reactor::token::Token;
use crate::reactor::wake::Waker;
use crate::sync::Arc;

fn completions() -> Arc<Completions> {
    Arc::new(Completions::new(4, Waker::new().expect("an eventfd")))
}

fn lane_with(thread_count: usize, policy: Policy) -> Arc<Lane<u32>> {
    let turn = Arc::new(Turn::off());
    Arc::new(Lane::with_policy(thread_count, 4, completions(), policy, turn))
}

fn spinning() -> Policy {
    Policy { spin: Duration::from_micros(1), ..Policy::default() }
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

/// What the reactor does until it has seen so many completions.
fn see_completions(completions: &Completions, count: usize) {
    see_completions_and_sleep(completions, count, false);
}

fn see_completions_and_sleep(completions: &Completions, count: usize, until_woken: bool) {
    let mut seen = 0;
    while seen < count {
        if completions.pop().is_some() {
            seen += 1;
            continue;
        }
        if completions.park(until_woken) {
            sleep_until_woken(completions);
        }
        completions.unpark();
    }
}

/// An interpreter without a lock, on a clock that the model turns.
#[derive(Clone, Copy)]
struct Modelled<'clock> {
    epoch: Instant,
    reads: &'clock Untracked,
    /// Between two looks at the clock.
    step: Duration,
}

impl Interpreter for Modelled<'_> {
    type Host = Self;

    fn host(&self) -> Self {
        *self
    }

    fn detached<R: Send>(&self, wait: impl FnOnce() -> R + Send) -> R {
        wait()
    }
}

impl Host for Modelled<'_> {
    fn now(self) -> Instant {
        let reads = self.reads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.epoch + self.step * u32::try_from(reads).expect("a short model")
    }

    fn yield_cpu(self) {
        thread::yield_now();
    }
}

/// A thread with a turn takes `count` jobs and answers all but the last, which it never ends.
fn answer_all_but_the_last(
    lane: &Lane<u32>,
    completions: &Completions,
    count: usize,
    step_us: u64,
) {
    let (reads, epoch) = (Untracked::new(0), clock::now());
    let clock = Modelled { epoch, reads: &reads, step: Duration::from_micros(step_us) };
    let mut runner = Runner::new(lane, ThreadIndex(0), clock);
    for number in 1..=count {
        let next = runner.next_job();
        assert!(matches!(next, Next::Job(_)), "{next:?}");
        if let Next::Job(job) = next
            && number < count
        {
            completions.push(Token::new(job, 0));
            lane.completed(ThreadIndex(0));
        }
    }
}

fn lane_in_turn(completions: &Arc<Completions>) -> Arc<Lane<u32>> {
    let turn = Arc::new(Turn::new(true, 2, &Knobs::default()));
    Arc::new(Lane::with_policy(1, 4, Arc::clone(completions), Policy::default(), turn))
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
            if completions.park(false) {
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
        see_completions(&completions, 2);
        lane.stop();
        assert_eq!(worker.join().expect("no panic"), Next::Stop);
    });
}

#[test]
fn a_job_beside_a_spinner_that_goes_to_park_is_taken_without_another_wake() {
    check(3, || {
        let lane = lane_with(1, spinning());
        let taker = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || lane.next_job(ThreadIndex(0)))
        };
        lane.submit(7).expect("room");
        lane.wake_for_work();
        assert_eq!(taker.join().expect("no panic"), Next::Job(7));
    });
}

#[test]
fn a_job_is_taken_by_a_spinner_or_by_the_sibling_that_found_it_spinning() {
    check(1, || {
        let lane = lane_with(2, spinning());
        let takers: Vec<_> = (0..2)
            .map(|index| {
                let lane = Arc::clone(&lane);
                thread::spawn(move || pool_thread(&lane, index))
            })
            .collect();
        lane.submit(7).expect("room");
        lane.wake_for_work();
        // Without a stop, which would wake everybody: somebody takes it.
        while lane.pop_count() == 0 {
            thread::yield_now();
        }
        lane.stop();
        let taken: Vec<u32> =
            takers.into_iter().flat_map(|taker| taker.join().expect("no panic")).collect();
        assert_eq!(taken, [7]);
        assert_eq!(lane.parked_count(), 0);
    });
}

#[test]
fn a_burst_into_a_parked_lane_wakes_one_thread() {
    check(2, || {
        let lane = lane_with(2, Policy::default());
        // Each takes one job and does not come back.
        let takers: Vec<_> = (0..2)
            .map(|index| {
                let lane = Arc::clone(&lane);
                thread::spawn(move || lane.next_job(ThreadIndex(index)))
            })
            .collect();
        while lane.parked_count() < 2 {
            thread::yield_now();
        }
        for job in [1, 2] {
            lane.submit(job).expect("room");
            lane.wake_for_work();
        }
        // None if a thread was still on its way to sleep, and found the job by its second look.
        assert!(lane.figures().idle_wakes <= 1, "a thread is awake, and a second one was woken");
        lane.wake_aged();
        takers.into_iter().for_each(|taker| {
            assert!(matches!(taker.join().expect("no panic"), Next::Job(_)));
        });
        assert_eq!(lane.parked_count(), 0);
    });
}

#[test]
fn a_job_beside_a_thread_that_goes_to_park_wakes_no_thread_that_parked_before_it() {
    check(3, || {
        let lane = lane_with(2, Policy::default());
        let take = |index| {
            let lane = Arc::clone(&lane);
            thread::spawn(move || pool_thread(&lane, index))
        };
        let cold = take(0);
        while lane.parked_count() < 1 {
            thread::yield_now();
        }
        let warm = take(1);
        lane.submit(7).expect("room");
        lane.wake_for_work();
        // Unless it found the job by itself and has parked once more, after the other.
        let is_cold_woken = lane.is_woken(ThreadIndex(0)) && lane.pop_count() == 0;
        assert!(!is_cold_woken, "the other is awake or parked after it");
        // One wake at the most, and somebody takes it.
        assert!(lane.figures().idle_wakes <= 1);
        while lane.pop_count() == 0 {
            thread::yield_now();
        }
        lane.stop();
        let taken = [cold, warm].map(|taker| taker.join().expect("no panic")).concat();
        assert_eq!(taken, [7]);
        assert_eq!(lane.parked_count(), 0);
    });
}

#[test]
fn every_job_of_a_parallel_pool_finds_a_thread_of_its_own() {
    check(2, || {
        let lane = lane_with(2, Policy { parallel: true, ..Policy::default() });
        // Each takes one job and does not come back.
        let takers: Vec<_> = (0..2)
            .map(|index| {
                let lane = Arc::clone(&lane);
                thread::spawn(move || lane.next_job(ThreadIndex(index)))
            })
            .collect();
        lane.submit(1).expect("room");
        lane.submit(2).expect("room");
        takers.into_iter().for_each(|taker| {
            assert!(matches!(taker.join().expect("no panic"), Next::Job(_)));
        });
    });
}

#[test]
fn a_pill_ends_a_thread_that_spins_or_goes_from_spinning_to_parking() {
    check(3, || {
        let lane = lane_with(1, spinning());
        let taker = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || pool_thread(&lane, 0))
        };
        lane.stop();
        assert!(taker.join().expect("no panic").is_empty());
        assert_eq!(lane.parked_count(), 0);
    });
}

#[test]
fn a_job_submitted_while_the_lane_stops_is_taken_or_stays_on_the_ring() {
    check(2, || {
        let lane = lane_with(1, Policy::default());
        let taker = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || pool_thread(&lane, 0))
        };
        let stopper = {
            let lane = Arc::clone(&lane);
            thread::spawn(move || lane.stop())
        };
        lane.submit(7).expect("room");
        lane.wake_for_work();
        stopper.join().expect("no panic");
        let mut found = taker.join().expect("no panic");
        if let Some(Next::Job(job)) = lane.try_next_job(ThreadIndex(0)) {
            found.push(job);
        }
        assert_eq!(found, [7]);
    });
}

#[test]
fn a_wake_held_back_is_made_before_the_last_job_is_run_also_if_that_was_kept() {
    check(3, || {
        let completions = completions();
        let lane = lane_in_turn(&completions);
        lane.submit(1).expect("room");
        lane.submit(2).expect("room");
        let worker = {
            let (lane, completions) = (Arc::clone(&lane), Arc::clone(&completions));
            // The slice lasts: both are kept.
            thread::spawn(move || answer_all_but_the_last(&lane, &completions, 2, 1))
        };
        see_completions(&completions, 1);
        worker.join().expect("no panic");
        assert_eq!(lane.figures().threads[0].kept, 2);
    });
}

#[test]
fn a_wake_held_back_is_made_before_a_thread_stands_back_for_another() {
    check(3, || {
        let completions = completions();
        let lane = lane_in_turn(&completions);
        for job in 1..=3 {
            lane.submit(job).expect("room");
        }
        lane.turn().waiting();
        let worker = {
            let (lane, completions) = (Arc::clone(&lane), Arc::clone(&completions));
            // The second job would be kept, but the slice is spent; the third still waits.
            thread::spawn(move || answer_all_but_the_last(&lane, &completions, 2, 2_000))
        };
        see_completions(&completions, 1);
        worker.join().expect("no panic");
        assert_eq!(lane.figures().threads[0].kept, 0);
    });
}

#[test]
fn a_wake_held_back_is_made_by_a_thread_whose_next_job_a_sibling_took() {
    check(2, || {
        let completions = completions();
        let turn = Arc::new(Turn::off());
        let lane = Lane::with_policy(2, 4, Arc::clone(&completions), Policy::default(), turn);
        let lane = Arc::new(lane);
        lane.submit(1).expect("room");
        lane.submit(2).expect("room");
        let workers: Vec<_> = (0..2)
            .map(|index| {
                let (lane, completions) = (Arc::clone(&lane), Arc::clone(&completions));
                thread::spawn(move || {
                    // The second job never ends.
                    while let Next::Job(job) = lane.next_job(ThreadIndex(index)) {
                        if job == 2 {
                            break;
                        }
                        completions.push(Token::new(job, 0));
                        lane.completed(ThreadIndex(index));
                    }
                })
            })
            .collect();
        see_completions(&completions, 1);
        lane.stop();
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    });
}

#[test]
fn no_wake_is_held_back_from_a_reactor_that_goes_to_sleep_until_it_is_woken() {
    check(3, || {
        let completions = completions();
        let lane = Arc::new(Lane::new(1, 4, Arc::clone(&completions)));
        (1..=3).for_each(|job| lane.submit(job).expect("room"));
        let worker = {
            let (lane, completions) = (Arc::clone(&lane), Arc::clone(&completions));
            // The second job never ends, and the third waits behind it.
            thread::spawn(move || {
                assert_eq!(lane.next_job(ThreadIndex(0)), Next::Job(1));
                completions.push(Token::new(1, 0));
                lane.completed(ThreadIndex(0));
                assert_eq!(lane.next_job(ThreadIndex(0)), Next::Job(2));
            })
        };
        see_completions_and_sleep(&completions, 1, true);
        worker.join().expect("no panic");
    });
}
