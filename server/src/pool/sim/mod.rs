//! The turn and the keep rule as they ship, against a simulated interpreter lock: what a machine shows
//! now and then is here computed, and the same every time.

mod world;

use std::time::Duration;

use self::world::{Simulated, World};
use super::{Knobs, Lane, LaneFigures, Next, Policy, Runner, ThreadIndex, Turn};
use crate::exchange::Completions;
use crate::limits::TURN_SLICE;
use crate::reactor::wake::Waker;
use crate::sync::{Arc, Mutex, lock};

/// A pool that is never idle.
#[derive(Clone, Copy, Debug)]
struct Load {
    thread_count: usize,
    /// How long a job holds the interpreter lock.
    share: Duration,
    /// Until when jobs are pushed.
    end: Duration,
    knobs: Knobs,
}

impl Load {
    /// So many jobs to a slice, well within it.
    fn of(thread_count: usize, jobs_per_slice: u32) -> Self {
        let share = TURN_SLICE * 2 / (2 * jobs_per_slice - 1);
        let slices = 16 * thread_count as u32;
        let end = share * jobs_per_slice * slices;
        Self { thread_count, share, end, knobs: Knobs::default() }
    }

    fn without_keep(self) -> Self {
        Self { knobs: Knobs { turn_keep: false, ..self.knobs }, ..self }
    }

    fn without_turn(self) -> Self {
        Self { knobs: Knobs { turn: false, ..self.knobs }, ..self }
    }
}

/// One answer: which job, by whom, when.
#[derive(Clone, Copy, Debug)]
struct Answer {
    job: usize,
    thread: usize,
    at: Duration,
}

#[derive(Debug)]
struct Outcome {
    /// In the order in which they were given.
    answers: Vec<Answer>,
    figures: LaneFigures,
}

impl Outcome {
    /// Threads that answered nothing in the second half of the run. What is answered after it, while
    /// the others leave, does not count.
    fn starved(&self, load: &Load) -> usize {
        let late = |answer: &&Answer| (load.end / 2..load.end).contains(&answer.at);
        let mut served = vec![false; load.thread_count];
        for answer in self.answers.iter().filter(late) {
            served[answer.thread] = true;
        }
        served.iter().filter(|served| !**served).count()
    }

    /// The most jobs pushed after one and answered before it.
    fn most_passed_over(&self) -> usize {
        let passed_over = |(rank, answer): (usize, &Answer)| {
            self.answers[..rank].iter().filter(|earlier| earlier.job > answer.job).count()
        };
        self.answers.iter().enumerate().map(passed_over).max().unwrap_or_default()
    }

    fn kept(&self) -> u64 {
        self.figures.threads.iter().map(|thread| thread.kept).sum()
    }

    fn drops_in_slice(&self) -> u64 {
        self.figures.threads.iter().map(|thread| thread.drops_in_slice).sum()
    }
}

fn lane_of(load: &Load, contenders: usize) -> Lane<usize> {
    let completions = Completions::new(1, Waker::new().expect("an eventfd"));
    Lane::with_policy(
        load.thread_count,
        load.thread_count * 8,
        Arc::new(completions),
        Policy::new(&load.knobs, false, 2),
        Arc::new(Turn::new(true, contenders, &load.knobs)),
    )
}

/// Four clients a thread, each of which asks again when it is answered.
fn run(load: &Load) -> Outcome {
    let lane = lane_of(load, load.thread_count);
    let client_count = load.thread_count * 4;
    for job in 0..client_count {
        lane.submit(job).expect("room");
    }
    let pushed = Mutex::new(client_count);
    let world = World::new(load.thread_count);
    let answers = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..load.thread_count {
            let (lane, world, answers, pushed) = (&lane, &world, &answers, &pushed);
            scope.spawn(move || {
                serve(lane, world, thread, |job| {
                    world.spend(thread, load.share);
                    let at = world.now();
                    lock(answers).push(Answer { job, thread, at });
                    if at < load.end {
                        let mut pushed = lock(pushed);
                        lane.submit(*pushed).expect("room");
                        *pushed += 1;
                    } else {
                        lane.stop();
                    }
                });
            });
        }
    });
    let answers = std::mem::take(&mut *lock(&answers));
    assert_eq!(answers.len(), *lock(&pushed), "every job is answered once");
    Outcome { answers, figures: lane.figures() }
}

/// The life of a pool thread.
fn serve(lane: &Lane<usize>, world: &World, thread: usize, mut view: impl FnMut(usize)) {
    let index = ThreadIndex(thread);
    world.enter(thread);
    lane.turn().waiting();
    world.acquire(thread);
    lane.turn().drained();
    let mut runner = Runner::new(lane, index, Simulated { world, thread });
    while let Next::Job(job) = runner.next_job() {
        view(job);
        lane.completed(index);
    }
    world.release(thread);
    world.leave(thread);
}

/// POOL §6: threads that starve without the keep rule, for 3 to 8 threads and 1 to 7 jobs a slice.
const STARVED: [(usize, [usize; 7]); 6] = [
    (3, [0, 1, 0, 1, 0, 1, 0]),
    (4, [0, 0, 2, 0, 0, 2, 0]),
    (5, [0, 2, 0, 3, 0, 2, 0]),
    (6, [0, 0, 0, 0, 4, 0, 0]),
    (7, [0, 3, 4, 3, 0, 5, 0]),
    (8, [0, 0, 0, 0, 0, 0, 6]),
];

/// The same by arithmetic: a slice turns the queue by one for each needless drop, the front one gets
/// the lock, the old holder queues at the end.
fn starved_by_arithmetic(thread_count: usize, jobs_per_slice: usize) -> usize {
    let mut waiters: std::collections::VecDeque<usize> = (1..thread_count).collect();
    let (mut holder, mut served) = (0, vec![false; thread_count]);
    for _ in 0..thread_count * thread_count {
        served[holder] = true;
        waiters.rotate_left((jobs_per_slice - 1) % waiters.len());
        waiters.push_back(holder);
        holder = waiters.pop_front().unwrap_or(holder);
    }
    served.iter().filter(|served| !**served).count()
}

#[test]
fn the_simulated_lock_starves_as_the_arithmetic_says_without_the_keep_rule_and_nobody_with_it() {
    for (thread_count, row) in STARVED {
        for (jobs, wanted) in (1..).zip(row) {
            let load = Load::of(thread_count, jobs);
            let cell = format!("{thread_count} threads, {jobs} jobs a slice");
            assert_eq!(starved_by_arithmetic(thread_count, jobs as usize), wanted, "{cell}");
            let without = load.without_keep();
            assert_eq!(run(&without).starved(&without), wanted, "{cell}, keep off");
            assert_eq!(run(&load).starved(&load), 0, "{cell}, keep on");
        }
    }
}

#[test]
fn a_run_is_in_order_with_the_keep_rule_and_out_of_order_without() {
    let load = Load::of(5, 2);
    let (with, without) = (run(&load).most_passed_over(), run(&load.without_keep()));
    assert!(with <= 2 * load.thread_count, "{with} passed over");
    assert!(without.most_passed_over() > 100, "{} passed over", without.most_passed_over());
}

#[test]
fn jobs_are_kept_with_the_rule_and_the_lock_is_let_go_between_them_without() {
    let load = Load::of(4, 4);
    let (with, without) = (run(&load), run(&load.without_keep()));
    assert!(with.kept() > 0);
    assert_eq!(with.drops_in_slice(), 0);
    assert_eq!(without.kept(), 0);
    assert!(without.drops_in_slice() > 0);
}

#[test]
fn without_the_turn_one_thread_has_the_lock_for_itself() {
    let load = Load::of(4, 3).without_turn();
    let outcome = run(&load);
    assert_eq!(outcome.starved(&load), 3);
    assert_eq!(outcome.kept() + outcome.drops_in_slice(), 0, "nobody counts without a turn");
}

/// One pool thread that is never idle, and an async lane that is poked every three milliseconds.
/// Returns how long it waited for the lock each time.
fn run_beside_async_lane(announced: bool) -> Vec<Duration> {
    const WAKES: u32 = 20;
    let load = Load { end: Duration::from_millis(100), ..Load::of(1, 5) };
    let lane = lane_of(&load, 2);
    (0..4).for_each(|job| lane.submit(job).expect("room"));
    let world = World::new(2);
    let waits = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let (lane, world, waits) = (&lane, &world, &waits);
        scope.spawn(move || {
            serve(lane, world, 0, |job| {
                world.spend(0, load.share);
                if world.now() < load.end {
                    lane.submit(job).expect("room");
                } else {
                    lane.stop();
                }
            });
        });
        scope.spawn(move || {
            world.enter(1);
            for _ in 0..WAKES {
                world.spend(1, Duration::from_millis(3));
                let poked = world.now();
                if announced {
                    lane.turn().waiting();
                }
                world.acquire(1);
                if announced {
                    lane.turn().drained();
                }
                lock(waits).push(world.now() - poked);
                world.spend(1, Duration::from_micros(50));
                world.release(1);
            }
            world.leave(1);
        });
    });
    assert_eq!(lane.turn().waiting_count(), 0);
    std::mem::take(&mut *lock(&waits))
}

#[test]
fn rule_10_the_async_lane_waits_a_slice_at_the_most_because_it_says_that_it_waits() {
    let longest = |waits: Vec<Duration>| waits.into_iter().max().expect("it was poked");
    assert!(longest(run_beside_async_lane(true)) < TURN_SLICE * 2);
    // Nobody stands back for it: it gets the lock when the pool thread leaves.
    assert!(longest(run_beside_async_lane(false)) > Duration::from_millis(50));
}
