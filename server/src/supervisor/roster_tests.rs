use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::clock;

const OLD: u32 = 1;
const NEW: u32 = 2;

fn process(generation: u32, now: Instant) -> Process {
    static COUNT: AtomicU64 = AtomicU64::new(1);
    let (control, _) = ControlSocket::pair().unwrap();
    let id = COUNT.fetch_add(1, Ordering::Relaxed);
    let pid = Pid::from_raw(1);
    Process {
        id,
        pid,
        control,
        is_deaf: false,
        _cell: None,
        started: now,
        is_late: false,
        generation,
    }
}

/// Forks what is due with the settings that it is to get; the process's id.
fn fork(worker: &mut Worker, now: Instant) -> u64 {
    assert!(worker.due().is_some_and(|moment| moment <= now), "{:?}", worker.standing);
    let process = process(worker.generation, now);
    let id = process.id;
    worker.forked(process);
    id
}

fn fork_ready(worker: &mut Worker, now: Instant) -> u64 {
    let id = fork(worker, now);
    assert!(worker.became_ready(id, now).is_some());
    id
}

fn serving(count: usize, now: Instant) -> Roster {
    let mut roster = Roster::new(count, OLD, now);
    for worker in &mut roster.workers {
        fork_ready(worker, now);
    }
    roster
}

/// One letter a state: Due, Starting, serVing, Renewing with a successor due or starting.
fn letters(roster: &Roster) -> String {
    let letter = |worker: &Worker| match worker.standing {
        Standing::Due(_) => 'D',
        Standing::Starting(_) => 'S',
        Standing::Serving(_) => 'V',
        Standing::Renewing(_, Successor::Due(_)) => 'r',
        Standing::Renewing(_, Successor::Starting(_)) => 'R',
    };
    roster.workers.iter().map(letter).collect()
}

#[test]
fn short_lives_cost_ever_longer_waits_and_a_long_one_forgives() {
    let start = clock::now();
    let mut worker = Worker::new(1, OLD, start);
    let mut now = start;
    let mut delays = Vec::new();
    for _ in 0..8 {
        let id = fork(&mut worker, now);
        let lost = worker.lost(id, now).unwrap();
        let Next::After(delay) = lost.next else { panic!("{lost:?}") };
        assert!(lost.was_short && !lost.was_ready);
        delays.push(delay.as_millis());
        now += delay;
    }
    assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    let id = fork(&mut worker, now);
    assert!(matches!(worker.became_ready(id, now), Some(Readiness::First)));
    assert!(worker.became_ready(id, now).is_none(), "it had said so before");
    now += SETTLED_AFTER;
    let lost = worker.lost(id, now).unwrap();
    assert_eq!((lost.was_short, lost.next), (false, Next::After(Duration::ZERO)));
    assert_eq!(worker.failure_count, 0);
}

#[test]
fn the_first_death_of_a_ready_worker_is_made_good_at_once() {
    let mut now = clock::now();
    let mut worker = Worker::new(1, OLD, now);
    for expected in [0, 200, 400] {
        let id = fork_ready(&mut worker, now);
        let Some(Lost { next: Next::After(delay), was_short: true, .. }) = worker.lost(id, now)
        else {
            panic!("{worker:?}");
        };
        assert_eq!(delay.as_millis(), expected);
        now += delay;
    }
}

/// The table of the module: each state, each event, the next state.
#[test]
fn every_state_and_every_event() {
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Forked,
        NotForked,
        Ready,
        OldEnded,
        NewEnded,
        Renew,
        GiveUp,
    }
    use Event::{Forked, GiveUp, NewEnded, NotForked, OldEnded, Ready, Renew};
    let now = clock::now();
    for (before, event, after) in [
        ("D", Forked, "S"),
        ("D", NotForked, "D"),
        ("D", Renew, "D"),
        ("D", GiveUp, "D"),
        ("S", Ready, "V"),
        ("S", NewEnded, "D"),
        ("S", Renew, "S"),
        ("S", GiveUp, "D"),
        ("V", Ready, "V"),
        ("V", OldEnded, "D"),
        ("V", Renew, "r"),
        ("V", GiveUp, "V"),
        ("r", Forked, "R"),
        ("r", NotForked, "r"),
        ("r", Ready, "r"),
        ("r", OldEnded, "D"),
        ("r", Renew, "r"),
        ("r", GiveUp, "V"),
        ("R", Ready, "V"),
        ("R", OldEnded, "S"),
        ("R", NewEnded, "r"),
        ("R", Renew, "R"),
        ("R", GiveUp, "V"),
    ] {
        let mut roster = Roster::new(1, OLD, now);
        let worker = &mut roster.workers[0];
        let (mut old, mut new) = (0, 0);
        if before != "D" {
            new = fork(worker, now);
        }
        if "VrR".contains(before) {
            worker.became_ready(new, now);
            old = new;
        }
        if "rR".contains(before) {
            worker.renew(now);
        }
        if before == "R" {
            new = fork(worker, now);
        }
        assert_eq!(letters(&roster), before);
        let worker = &mut roster.workers[0];
        match event {
            Forked => drop(fork(worker, now)),
            NotForked => assert!(worker.not_forked(now) > Duration::ZERO),
            Ready => drop(worker.became_ready(new, now)),
            OldEnded => assert!(worker.lost(old, now).unwrap().was_ready),
            NewEnded => assert!(!worker.lost(new, now).unwrap().was_ready),
            Renew => worker.renew(now),
            GiveUp => {
                let given_up = worker.give_up_start(now);
                assert_eq!(given_up.is_some(), "SR".contains(before));
            }
        }
        assert_eq!(letters(&roster), after, "{before} {event:?}");
        assert!(roster.workers[0].lost(u64::MAX, now).is_none());
    }
}

#[test]
fn rule_1_one_number_after_another_is_renewed_and_new_numbers_come_last() {
    let now = clock::now();
    let mut roster = serving(2, now);
    let mut seen = Vec::new();
    loop {
        let (progress, outdated) = roster.advance(NEW, 3, now);
        assert!(outdated.is_none());
        seen.push(letters(&roster));
        if progress == Progress::Complete {
            break;
        }
        let due = roster.workers.iter_mut().find(|worker| worker.due().is_some()).unwrap();
        fork(due, now);
        assert_eq!(roster.advance(NEW, 3, now).0, Progress::Waits, "an import may take long");
        seen.push(letters(&roster));
        let starting = roster.workers.iter_mut().find_map(|worker| {
            let id = worker.processes().last()?.id;
            worker.became_ready(id, now)
        });
        assert!(starting.is_some());
    }
    assert_eq!(seen, ["rV", "RV", "Vr", "VR", "VVD", "VVS", "VVV"]);
    assert_eq!(roster.serving_count(NEW), 3);
}

#[test]
fn a_rolling_restart_does_not_wait_for_what_started_with_older_settings() {
    let now = clock::now();
    let mut roster = Roster::new(2, OLD, now);
    let id = fork(&mut roster.workers[0], now);
    // The other one failed, and its next start is far away.
    fork(&mut roster.workers[1], now);
    let failed = roster.workers[1].processes().next().unwrap().id;
    roster.workers[1].lost(failed, now);
    let (_, outdated) = roster.advance(NEW, 2, now);
    assert!(outdated.is_some_and(|(number, process)| number == 1 && process.id == id));
    assert_eq!((letters(&roster).as_str(), roster.workers[0].generation), ("DD", NEW));
    fork_ready(&mut roster.workers[0], now);
    roster.advance(NEW, 2, now);
    assert_eq!(roster.workers[1].due(), Some(now), "the new settings may cure it");
}

#[test]
fn a_retreat_leaves_who_serves_and_gives_up_what_starts() {
    let now = clock::now();
    let mut roster = serving(3, now);
    roster.advance(NEW, 3, now);
    fork_ready(&mut roster.workers[0], now);
    roster.advance(NEW, 3, now);
    let successor = fork(&mut roster.workers[1], now);
    assert_eq!(letters(&roster), "VRV");
    let given_up = roster.retreat(OLD, now);
    assert_eq!(given_up.len(), 1);
    assert_eq!((given_up[0].0, given_up[0].1.id), (2, successor));
    assert_eq!((letters(&roster).as_str(), roster.serving_count(NEW)), ("VVV", 1));
    assert!(roster.workers.iter().all(|worker| worker.generation == OLD));
}

#[test]
fn workers_that_ask_for_a_successor_get_one_one_at_a_time() {
    let now = clock::now();
    let mut roster = serving(3, now);
    for index in [1, 2] {
        let Standing::Serving(running) = &mut roster.workers[index].standing else { panic!() };
        running.is_recycled = true;
    }
    roster.recycle_next(now);
    roster.recycle_next(now);
    assert_eq!(letters(&roster), "VrV");
    let failed = fork(&mut roster.workers[1], now);
    let lost = roster.workers[1].lost(failed, now).unwrap();
    assert_eq!(lost.next, Next::OldServes(DELAY_MIN));
    roster.recycle_next(now);
    assert_eq!(letters(&roster), "VrV", "its turn is not over");
    let id = fork(&mut roster.workers[1], now + DELAY_MIN);
    assert!(matches!(roster.workers[1].became_ready(id, now), Some(Readiness::Succeeds(_))));
    roster.recycle_next(now);
    assert_eq!(letters(&roster), "VVr");
}

fn drain(roster: &mut Roster, now: Instant) {
    let process = process(OLD, now);
    roster.leaving.push(Leaving { number: 1, process, was_ready: true, deadline: Some(now) });
}

#[test]
fn no_more_processes_drain_than_there_are_workers() {
    let now = clock::now();
    let mut roster = serving(2, now);
    let Standing::Serving(running) = &mut roster.workers[0].standing else { panic!() };
    running.is_recycled = true;
    for _ in 0..2 {
        drain(&mut roster, now);
        // Killed before it was ready: it is gone in a moment.
        let process = process(OLD, now);
        roster.leaving.push(Leaving { number: 1, process, was_ready: false, deadline: None });
    }
    assert_eq!(roster.recycle_next(now), Progress::HeldBack);
    assert_eq!(roster.advance(NEW, 3, now).0, Progress::HeldBack);
    assert_eq!((letters(&roster).as_str(), roster.draining_count()), ("VV", 2));
    roster.leaving.remove(0);
    assert_eq!(roster.advance(NEW, 3, now).0, Progress::Waits);
    assert_eq!(letters(&roster), "rV");
    roster.retreat(OLD, now);
    assert_eq!(roster.recycle_next(now), Progress::Waits);
    assert_eq!(letters(&roster), "rV");
    drain(&mut roster, now);
    assert_eq!(roster.recycle_next(now), Progress::Waits, "what has begun goes on");
}

#[test]
fn what_drains_holds_back_neither_a_first_process_nor_a_new_number() {
    let now = clock::now();
    let mut roster = serving(1, now);
    drain(&mut roster, now);
    let id = roster.workers[0].processes().next().unwrap().id;
    roster.workers[0].lost(id, now);
    assert_eq!(roster.advance(NEW, 2, now).0, Progress::Waits);
    fork_ready(&mut roster.workers[0], now);
    assert_eq!(roster.advance(NEW, 2, now).0, Progress::Waits);
    assert_eq!(letters(&roster), "VD");
}

#[test]
fn a_rolling_restart_cures_a_successor_that_fails_under_the_old_settings() {
    let now = clock::now();
    for is_starting in [false, true] {
        let mut roster = serving(1, now);
        let Standing::Serving(running) = &mut roster.workers[0].standing else { panic!() };
        running.is_recycled = true;
        roster.recycle_next(now);
        let mut id = fork(&mut roster.workers[0], now);
        roster.workers[0].lost(id, now);
        assert_eq!(roster.workers[0].due(), Some(now + DELAY_MIN), "the premise");
        if is_starting {
            id = fork(&mut roster.workers[0], now + DELAY_MIN);
        }
        let (progress, outdated) = roster.advance(NEW, 1, now);
        assert_eq!(progress, Progress::Waits);
        let expected = is_starting.then_some((1, id));
        assert_eq!(outdated.map(|(number, process)| (number, process.id)), expected);
        assert_eq!((letters(&roster).as_str(), roster.workers[0].due()), ("r", Some(now)));
        fork_ready(&mut roster.workers[0], now);
        assert_eq!(roster.advance(NEW, 1, now).0, Progress::Complete);
        assert_eq!(roster.serving_count(NEW), 1);
    }
}

#[test]
fn a_start_that_takes_long_is_late_once() {
    let now = clock::now();
    let later = now + limits::START_WARNING;
    let mut roster = serving(1, now);
    let worker = &mut roster.workers[0];
    assert!(worker.late_at().is_none() && !worker.is_late(later), "it serves");
    worker.renew(now);
    assert!(!worker.is_late(later), "it is not forked yet");
    for start in [now, later] {
        let late = start + limits::START_WARNING;
        let id = fork(worker, start);
        assert_eq!(worker.late_at(), Some(late));
        assert!(!worker.is_late(late - DELAY_MIN) && worker.is_late(late) && !worker.is_late(late));
        assert_eq!(worker.late_at(), None);
        worker.lost(id, start);
    }
}

#[test]
fn the_highest_numbers_go_first() {
    let now = clock::now();
    let mut roster = serving(4, now);
    let removed: Vec<usize> = roster.shrink(2).iter().map(|worker| worker.number).collect();
    assert_eq!((removed, letters(&roster).as_str()), (vec![4, 3], "VV"));
    assert!(roster.is_serving_in_full(2) && !roster.is_serving_in_full(3));
    assert!(roster.has_sound_worker(now), "none has failed");
    for worker in &mut roster.workers {
        worker.failure_count = 1;
    }
    assert!(!roster.has_sound_worker(now) && roster.has_sound_worker(now + SETTLED_AFTER));
}
