//! Orders made by hand, and a server's queue played through.

use std::collections::VecDeque;

use super::*;

const CONNECTIONS: usize = 20;

/// How often each request was passed over, by send rank.
fn counts(answers: &[u32]) -> Vec<u32> {
    let counts = passed_over(&answers.iter().copied().map(SendRank).collect::<Vec<_>>());
    let mut by_rank: Vec<(u32, u32)> = answers.iter().copied().zip(counts).collect();
    by_rank.sort_unstable();
    by_rank.into_iter().map(|(_, count)| count).collect()
}

/// What the definition says, pair by pair.
fn counts_by_definition(answers: &[u32]) -> Vec<u32> {
    let place = |rank: u32| answers.iter().position(|other| *other == rank).expect("answered");
    let ranks = 0..u32::try_from(answers.len()).expect("few");
    let passes = |rank: u32, other: u32| other > rank && place(other) < place(rank);
    let count = |rank| ranks.clone().filter(|other| passes(rank, *other)).count();
    ranks.clone().map(|rank| u32::try_from(count(rank)).expect("few")).collect()
}

/// Twenty connections that send again when they are answered; `choose` says whom of the queue the
/// server answers next.
fn served(requests: usize, mut choose: impl FnMut(usize, &VecDeque<SendRank>) -> usize) -> Verdict {
    let order = Order::default();
    let mut queue: VecDeque<SendRank> = (0..CONNECTIONS).map(|_| order.send(1)).collect();
    for answered in 0..requests {
        let place = choose(answered, &queue);
        order.answer(queue.remove(place).expect("chosen from the queue"));
        queue.push_back(order.send(1));
    }
    queue.into_iter().for_each(|rank| order.answer(rank));
    order.judge()
}

#[test]
fn hand_made_orders_are_counted() {
    assert_eq!(counts(&[]), [0; 0]);
    assert_eq!(counts(&[0, 1, 2, 3]), [0, 0, 0, 0]);
    assert_eq!(counts(&[1, 2, 3, 0]), [3, 0, 0, 0]);
    assert_eq!(counts(&[3, 2, 1, 0]), [3, 2, 1, 0]);
    assert_eq!(counts(&[2, 0, 3, 1]), [1, 2, 0, 0]);
}

#[test]
fn the_tree_counts_what_the_definition_says() {
    // A walk through all residues of a prime by each of its multipliers: orders without a pattern.
    const REQUESTS: u32 = 31;
    for multiplier in 1..REQUESTS {
        let answers: Vec<u32> = (0..REQUESTS).map(|place| place * multiplier % REQUESTS).collect();
        assert_eq!(counts(&answers), counts_by_definition(&answers), "multiplier {multiplier}");
    }
}

#[test]
fn requests_that_were_not_answered_leave_no_gap() {
    assert_eq!(counts(&[9, 2, 5]), [1, 1, 0]);
}

#[test]
fn a_queue_served_in_order_is_in_order() {
    let verdict = served(10_000, |_, _| 0);
    assert_eq!(
        verdict,
        Verdict {
            requests: 10_020,
            unanswered: 0,
            long_waits: 0,
            most_passed_over: 0,
            in_order: true
        }
    );
}

#[test]
fn threads_that_finish_in_any_order_are_in_order() {
    // Five threads each hold a request; the one that is answered changes with every answer.
    let verdict = served(10_000, |answered, _| answered * 7 % 5);
    assert!(verdict.in_order && verdict.long_waits == 0, "{verdict:?}");
    assert!(verdict.most_passed_over > 0, "{verdict:?}");
}

#[test]
fn one_starved_request_is_out_of_order_by_its_length() {
    // The request that was first at answer 100 waits for 1500 others.
    let starved = |answered, _: &VecDeque<SendRank>| usize::from((100..1600).contains(&answered));
    let verdict = served(10_000, starved);
    assert_eq!((verdict.long_waits, verdict.most_passed_over), (1, 1500));
    assert!(!verdict.in_order);
}

#[test]
fn a_request_that_starves_from_the_warm_up_on_is_judged_by_all_that_passed_it_over() {
    let order = Order::default();
    let starved: Vec<SendRank> = (0..3).map(|_| order.send(1)).collect();
    for _ in 0..400 {
        order.answer_in_warm_up(order.send(1));
    }
    for _ in 0..800 {
        order.answer(order.send(1));
    }
    starved.into_iter().for_each(|rank| order.answer(rank));
    let verdict = order.judge();
    assert_eq!((verdict.requests, verdict.unanswered), (803, 0));
    assert_eq!((verdict.long_waits, verdict.most_passed_over), (3, 1200));
    assert!(!verdict.in_order);
}

#[test]
fn what_starved_and_was_answered_in_the_warm_up_is_not_judged() {
    let order = Order::default();
    let starved = order.send(1);
    for _ in 0..2000 {
        order.answer_in_warm_up(order.send(1));
    }
    order.answer_in_warm_up(starved);
    order.answer(order.send(1));
    let verdict = order.judge();
    assert_eq!((verdict.requests, verdict.most_passed_over, verdict.in_order), (1, 0, true));
}

#[test]
fn a_request_without_an_answer_at_the_end_was_passed_over_by_all_that_were_answered_since() {
    let order = Order::default();
    let answered_late = order.send(1);
    // Two, so that they would pass each other over if their order were not that of their sending.
    order.send(2);
    for _ in 0..600 {
        order.answer_in_warm_up(order.send(1));
    }
    for _ in 0..600 {
        order.answer(order.send(1));
    }
    order.answer(answered_late);
    let verdict = order.judge();
    assert_eq!((verdict.requests, verdict.unanswered), (603, 2));
    assert_eq!((verdict.long_waits, verdict.most_passed_over), (3, 1200));
    assert!(!verdict.in_order);
}

#[test]
fn a_few_long_waits_are_allowed_and_one_more_is_not() {
    // Each time the first waits for 200 others, from answer 0, 1000, 2000…
    let waits = |times| {
        move |answered: usize, _: &VecDeque<SendRank>| {
            usize::from(answered % 1000 < 200 && answered / 1000 < times)
        }
    };
    let few = served(10_000, waits(LONG_WAITS_MAX));
    assert_eq!((few.long_waits, few.most_passed_over, few.in_order), (5, 200, true));
    let many = served(10_000, waits(LONG_WAITS_MAX + 1));
    assert_eq!((many.long_waits, many.in_order), (6, false));
}

#[test]
fn the_bounds_themselves_are_in_order() {
    let bound = |passed_over| {
        move |answered: usize, _: &VecDeque<SendRank>| usize::from(answered < passed_over as usize)
    };
    let hundred = served(5_000, bound(LONG_WAIT_PASSED_OVER));
    assert_eq!((hundred.long_waits, hundred.most_passed_over), (0, 100));
    let thousand = served(5_000, bound(PASSED_OVER_MAX));
    assert!(thousand.in_order, "{thousand:?}");
    let more = served(5_000, bound(PASSED_OVER_MAX + 1));
    assert!(!more.in_order, "{more:?}");
}

#[test]
fn a_pause_of_the_whole_server_passes_nobody_over() {
    // The client sees the answers of before the pause, nothing for its length, then the rest: ranks
    // hold no time, so all that a pause could change is that a full queue is answered at once.
    let order = Order::default();
    let mut queue: VecDeque<SendRank> = VecDeque::new();
    for round in 0..500 {
        queue.extend((0..CONNECTIONS).map(|_| order.send(1)));
        if round % 100 != 50 {
            queue.drain(..).for_each(|rank| order.answer(rank));
        }
    }
    queue.drain(..).for_each(|rank| order.answer(rank));
    let verdict = order.judge();
    assert_eq!((verdict.requests, verdict.most_passed_over), (10_000, 0));
    assert!(verdict.in_order);
}

#[test]
fn last_in_first_out_starves_the_first() {
    let verdict = served(10_000, |_, queue| queue.len() - 1);
    assert_eq!(verdict.long_waits, CONNECTIONS - 1);
    assert_eq!(verdict.most_passed_over, 10_000);
    assert!(!verdict.in_order);
}

#[test]
fn two_threads_that_alternate_starve_the_others_requests() {
    // The convoy: three requests are held by threads that never win the lock, 400 answers long.
    let verdict = served(10_000, |answered, _| if answered % 500 < 400 { 3 } else { 0 });
    assert!(verdict.long_waits > LONG_WAITS_MAX, "{verdict:?}");
    assert!(!verdict.in_order);
}
