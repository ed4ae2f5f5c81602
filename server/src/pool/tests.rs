//! The lane's properties (POOL §8) with threads that really park. What depends on order is asserted by
//! counts; a deadline only ends a test that hangs.

use std::time::Duration;

use super::{Knobs, Lane, Next, Policy, ThreadIndex, Turn};
use crate::clock;
use crate::exchange::Completions;
use crate::reactor::wake::Waker;
use crate::sync::{Arc, Mutex, lock};

/// Long enough for any machine.
const HANGS_AFTER: Duration = Duration::from_secs(20);

fn lane_with(thread_count: usize, policy: Policy) -> Lane<u32> {
    lane_before(&sleeping_reactor(), thread_count, policy)
}

fn lane_before(completions: &Arc<Completions>, thread_count: usize, policy: Policy) -> Lane<u32> {
    let turn = Arc::new(Turn::off());
    Lane::with_policy(thread_count, 256, Arc::clone(completions), policy, turn)
}

/// The completions of a reactor that has announced its sleep.
fn sleeping_reactor() -> Arc<Completions> {
    let completions = Completions::new(1, Waker::new().expect("an eventfd"));
    assert!(completions.park(false));
    Arc::new(completions)
}

fn elastic(thread_count: usize) -> Lane<u32> {
    lane_with(thread_count, Policy::default())
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let end = clock::now() + HANGS_AFTER;
    while !condition() {
        assert!(clock::now() < end, "{what} did not come");
        std::thread::yield_now();
    }
}

fn pass(time: Duration) {
    let end = clock::now() + time;
    wait_until("the end", || clock::now() >= end);
}

fn wait_until_parked<J>(lane: &Lane<J>, count: usize) {
    wait_until("the parking", || lane.parked_count() == count);
}

/// A thread that spins so long has not parked before a test is over.
const ENDLESS_SPIN: Duration = Duration::from_secs(60);

/// A job that keeps its thread until it is let go, by its number.
#[derive(Debug, Default)]
struct Gate(Mutex<Vec<u32>>);

impl Gate {
    fn open(&self, job: u32) {
        lock(&self.0).push(job);
    }

    fn pass(&self, job: u32) {
        wait_until("the gate's opening", || lock(&self.0).contains(&job));
    }
}

/// Runs the lane's threads, each handing its jobs to `view`, while `body` plays the reactor; then
/// stops the lane.
fn with_threads<J: Send>(
    lane: &Lane<J>,
    view: impl Fn(ThreadIndex, J) + Sync,
    body: impl FnOnce(),
) {
    /// Also when `body` fails: the scope waits for the threads.
    struct Stop<'lane, J>(&'lane Lane<J>);
    impl<J> Drop for Stop<'_, J> {
        fn drop(&mut self) {
            self.0.stop();
        }
    }
    std::thread::scope(|scope| {
        for index in (0..lane.thread_count()).map(ThreadIndex) {
            let view = &view;
            scope.spawn(move || {
                while let Next::Job(job) = lane.next_job(index) {
                    view(index, job);
                    lane.completed(index);
                }
            });
        }
        let _stop = Stop(lane);
        body();
    });
    assert_eq!(lane.parked_count(), 0);
}

fn submit(lane: &Lane<u32>, job: u32) {
    lane.submit(job).expect("room");
    lane.wake_for_work();
}

fn jobs_of(lane: &Lane<u32>) -> Vec<u64> {
    lane.figures().threads.iter().map(|thread| thread.jobs).collect()
}

#[test]
fn two_hundred_jobs_to_a_thread_that_parked_before_each_and_to_one_that_did_not() {
    for (pause, spin) in [(true, 0), (false, 0), (true, 20), (false, 20)] {
        let policy = Policy { spin: Duration::from_micros(spin), ..Policy::default() };
        let lane = lane_with(1, policy);
        with_threads(
            &lane,
            |_, _| {},
            || {
                for job in 0..200 {
                    if pause {
                        wait_until_parked(&lane, 1);
                    }
                    submit(&lane, job);
                    wait_until("the job's end", || lane.pop_count() > u64::from(job));
                }
            },
        );
        assert_eq!(jobs_of(&lane), [200]);
        if pause {
            assert_eq!(lane.figures().idle_wakes, 200);
        }
    }
}

#[test]
fn a_burst_into_a_parked_lane_is_one_wake_and_a_push_beside_a_busy_thread_none() {
    let lane = elastic(4);
    let gate = Gate::default();
    with_threads(
        &lane,
        |_, job| gate.pass(job),
        || {
            wait_until_parked(&lane, 4);
            // The thread that is woken does not come back before the last of them is pushed.
            (0..16).for_each(|job| submit(&lane, job));
            assert_eq!(lane.figures().idle_wakes, 1);
            assert_eq!(lane.parked_count(), 3);
            (0..16).for_each(|job| gate.open(job));
            wait_until("the burst's end", || lane.pop_count() == 16);
        },
    );
    let mut jobs = jobs_of(&lane);
    jobs.sort_unstable();
    assert_eq!(jobs, [0, 0, 0, 16], "one thread takes the burst");
}

#[test]
fn a_push_beside_a_spinning_sibling_wakes_nobody() {
    // It finds the job by itself.
    let lane = lane_with(2, Policy { spin: ENDLESS_SPIN, ..Policy::default() });
    with_threads(
        &lane,
        |_, _| {},
        || {
            // One becomes the spinner, the other parks at once.
            wait_until_parked(&lane, 1);
            submit(&lane, 1);
            wait_until("the job's end", || lane.pop_count() == 1);
            assert_eq!(lane.figures().idle_wakes, 0);
        },
    );
}

#[test]
fn every_idle_thread_spins_and_every_push_wakes_where_the_pool_is_not_elastic() {
    let spinning = Policy { elastic: false, spin: ENDLESS_SPIN, ..Policy::default() };
    let lane = lane_with(2, spinning);
    with_threads(
        &lane,
        |_, _| {},
        || {
            submit(&lane, 1);
            wait_until("the job's end", || lane.pop_count() == 1);
            assert_eq!(lane.parked_count(), 0, "nobody parks before his spin is over");
        },
    );
    for policy in [
        Policy { elastic: false, ..Policy::default() },
        Policy { parallel: true, ..Policy::default() },
    ] {
        let lane = lane_with(4, policy);
        let gate = Gate::default();
        with_threads(
            &lane,
            |_, job| gate.pass(job),
            || {
                wait_until_parked(&lane, 4);
                (0..3).for_each(|job| submit(&lane, job));
                wait_until("a thread for each job", || lane.pop_count() == 3);
                assert_eq!(lane.figures().idle_wakes, 3, "{policy:?}");
                (0..3).for_each(|job| gate.open(job));
            },
        );
    }
}

#[test]
fn sixty_jobs_with_gaps_land_on_the_thread_that_parked_last() {
    let lane = elastic(2);
    with_threads(
        &lane,
        |_, _| {},
        || {
            for job in 0..60 {
                wait_until_parked(&lane, 2);
                submit(&lane, job);
                wait_until("the job's end", || lane.pop_count() > u64::from(job));
            }
        },
    );
    let mut jobs = jobs_of(&lane);
    jobs.sort_unstable();
    assert_eq!(jobs, [0, 60]);
}

#[test]
fn a_job_behind_a_slow_sibling_is_taken_after_the_reactors_wake() {
    let lane = elastic(2);
    let gate = Gate::default();
    with_threads(
        &lane,
        |_, job| gate.pass(job),
        || {
            wait_until_parked(&lane, 2);
            submit(&lane, 1);
            wait_until("the slow job's start", || lane.pop_count() == 1);
            submit(&lane, 2);
            assert_eq!(
                (lane.waiting_count(), lane.parked_count()),
                (1, 1),
                "nobody is woken for it"
            );
            lane.wake_aged();
            wait_until("the other's start", || lane.pop_count() == 2);
            let figures = lane.figures();
            assert_eq!((figures.idle_wakes, figures.aged_wakes), (1, 1));
            gate.open(2);
            gate.open(1);
        },
    );
    assert_eq!(jobs_of(&lane), [1, 1]);
}

#[test]
fn a_look_without_waiting_finds_jobs_in_order_then_nothing_then_the_pill() {
    let lane = elastic(1);
    let index = ThreadIndex(0);
    assert_eq!(lane.try_next_job(index), None);
    (1..=3).for_each(|job| submit(&lane, job));
    for job in 1..=3 {
        assert_eq!(lane.try_next_job(index), Some(Next::Job(job)));
    }
    assert_eq!(lane.try_next_job(index), None);
    submit(&lane, 4);
    lane.stop();
    assert_eq!(lane.try_next_job(index), Some(Next::Job(4)), "what was accepted is answered");
    assert_eq!(lane.try_next_job(index), Some(Next::Stop));
}

#[test]
fn a_lane_stops_immediately_after_its_start_and_with_every_thread_inside_a_view() {
    for _ in 0..50 {
        let lane = elastic(8);
        with_threads(&lane, |_, _| {}, || {});
        assert_eq!(jobs_of(&lane), [0; 8]);
    }
    let lane = elastic(4);
    let gate = Gate::default();
    with_threads(
        &lane,
        |_, job| gate.pass(job),
        || {
            for job in 0..4 {
                lane.submit(job).expect("room");
                lane.wake_one();
                wait_until("the view's begin", || lane.pop_count() > u64::from(job));
            }
            lane.stop();
            assert_eq!(lane.parked_count(), 0);
            (0..4).for_each(|job| gate.open(job));
        },
    );
    assert_eq!(jobs_of(&lane), [1; 4]);
}

#[test]
fn a_full_ring_gives_the_job_back() {
    let lane = elastic(1);
    (0..256).for_each(|job| submit(&lane, job));
    assert_eq!(lane.submit(256), Err(256));
}

#[test]
fn times_are_taken_where_they_are_asked_for_and_nowhere_else() {
    for timed in [false, true] {
        let lane = lane_with(1, Policy { timed, ..Policy::default() });
        with_threads(
            &lane,
            |_, _| {},
            || {
                submit(&lane, 1);
                wait_until("the job's end", || lane.pop_count() == 1);
            },
        );
        let times = lane.figures().threads[0].times;
        assert_eq!(times.map(|times| times.ring_wait.count), timed.then_some(1));
    }
}

/// Takes and answers so many jobs, of which more wait; returns after which the reactor was woken. It
/// goes back to sleep each time.
fn wakes_after(policy: Policy, count: usize, view: impl Fn()) -> Vec<usize> {
    wakes_of_a_reactor(false, policy, count, view)
}

fn wakes_of_a_reactor(
    until_woken: bool,
    policy: Policy,
    count: usize,
    view: impl Fn(),
) -> Vec<usize> {
    let completions = sleeping_reactor();
    assert!(completions.park(until_woken));
    let lane = lane_before(&completions, 1, policy);
    (0..255).for_each(|job| lane.submit(job).expect("room"));
    let is_woken = |_: &usize| {
        let pokes = completions.poke_count();
        assert!(matches!(lane.try_next_job(ThreadIndex(0)), Some(Next::Job(_))));
        view();
        lane.completed(ThreadIndex(0));
        assert!(completions.park(until_woken));
        completions.poke_count() > pokes
    };
    (1..=count).filter(is_woken).collect()
}

#[test]
fn the_answers_of_short_jobs_share_a_wake() {
    let policy = Policy { hold_back: HANGS_AFTER, ..Policy::default() };
    assert_eq!(wakes_after(policy, 200, || ()), [64, 128, 192]);
}

#[test]
fn the_answer_of_a_job_that_was_not_short_waits_for_no_other() {
    let view = || pass(Duration::from_micros(300));
    assert_eq!(wakes_after(Policy::default(), 5, view), [1, 2, 3, 4, 5]);
}

#[test]
fn a_batch_of_short_jobs_ends_with_the_one_that_makes_it_long() {
    let policy = Policy { hold_back: Duration::from_secs(1), ..Policy::default() };
    let taken = std::cell::Cell::new(0);
    let view = || {
        taken.set(taken.get() + 1);
        if taken.get() == 3 {
            pass(Duration::from_secs(1));
        }
    };
    assert_eq!(wakes_after(policy, 5, view), [3]);
}

#[test]
fn nothing_is_held_back_from_a_reactor_that_does_not_look_by_itself() {
    let policy = Policy { hold_back: HANGS_AFTER, ..Policy::default() };
    assert_eq!(wakes_of_a_reactor(true, policy, 5, || ()), [1, 2, 3, 4, 5]);
}

#[test]
fn idle_threads_spin_where_the_pool_is_not_elastic_unless_a_knob_or_a_single_cpu_says_otherwise() {
    let spin_us = |elastic, spin: Option<u64>, cpu_count| {
        let spin = spin.map(Duration::from_micros);
        Policy::new(&Knobs { elastic, spin, ..Knobs::default() }, false, cpu_count).spin.as_micros()
    };
    assert_eq!((spin_us(true, None, 2), spin_us(false, None, 2)), (0, 10));
    assert_eq!((spin_us(true, Some(7), 2), spin_us(false, Some(0), 2)), (7, 0));
    assert_eq!((spin_us(true, Some(7), 1), spin_us(false, None, 1)), (0, 0));
}

#[test]
fn what_is_no_request_is_taken_and_not_counted() {
    let lane = lane_with(1, Policy { timed: true, ..Policy::default() });
    lane.submit_errand(1).expect("room");
    assert_eq!(lane.try_next_job(ThreadIndex(0)), Some(Next::Job(1)));
    submit(&lane, 2);
    assert_eq!(lane.try_next_job(ThreadIndex(0)), Some(Next::Job(2)));
    assert_eq!((lane.pop_count(), jobs_of(&lane)), (2, vec![1]));
}
