//! In which order requests were answered: who was passed over, and how often.
//!
//! A request is *passed over* when a request sent after it is answered before it. A queue that is
//! served in order passes a request over only while the thread that has it waits for its turn. A
//! server that is stopped answers nobody, so a pause passes nobody over: that is why the verdict is
//! on order and not on latency. Every request of a run has a rank, also one sent in the warm-up: who
//! starves from there on is judged by all that passed it over. Sans-io: ranks in, counts out.

use std::cell::{Cell, RefCell};

use serde::Serialize;

/// Being passed over by more than this many later requests is a long wait.
const LONG_WAIT_PASSED_OVER: u32 = 100;
/// So many long waits are in order: a waiter may lose its place to its own timeout.
const LONG_WAITS_MAX: usize = 5;
/// One request passed over by more than this many is out of order by itself.
const PASSED_OVER_MAX: u32 = 1000;

/// The place of a request among all that were sent, from zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SendRank(u32);

impl SendRank {
    /// The rank of a request sent so many after this one.
    pub(crate) fn after(self, requests: u32) -> Self {
        Self(self.0 + requests)
    }
}

/// Records the order of sends and of answers of one run, four bytes a request.
#[derive(Debug, Default)]
pub(crate) struct Order {
    sent: Cell<u32>,
    /// The send ranks, in the order of the answers.
    answers: RefCell<Vec<SendRank>>,
    /// So many of the answers, the first ones, came in the warm-up.
    warm_up_answers: Cell<usize>,
}

/// What the order of a run says.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
pub(crate) struct Verdict {
    /// Requests that were judged: answered after the warm-up, or never.
    pub(crate) requests: usize,
    /// Of them, those that had no answer when the run ended.
    pub(crate) unanswered: usize,
    /// Requests that were passed over by more than a hundred later ones.
    pub(crate) long_waits: usize,
    /// The most that any request was passed over.
    pub(crate) most_passed_over: u32,
    /// At most five long waits, and nobody passed over by more than a thousand.
    pub(crate) in_order: bool,
}

impl Order {
    /// The next requests are sent, one after the other; returns the rank of the first.
    pub(crate) fn send(&self, requests: u32) -> SendRank {
        let first = self.sent.get();
        self.sent.set(first + requests);
        SendRank(first)
    }

    /// A request has its answer, or will not have one any more.
    pub(crate) fn answer(&self, rank: SendRank) {
        self.answers.borrow_mut().push(rank);
    }

    /// The same in the warm-up: this request is not judged, and passes over those that still wait.
    pub(crate) fn answer_in_warm_up(&self, rank: SendRank) {
        self.answer(rank);
        self.warm_up_answers.set(self.answers.borrow().len());
    }

    /// Judges what was recorded. A request that still waits was passed over by everything that was
    /// sent after it and answered.
    pub(crate) fn judge(&self) -> Verdict {
        let mut answers = self.answers.borrow().clone();
        let unanswered = self.unanswered(&answers);
        answers.extend_from_slice(&unanswered);
        Verdict::of(&passed_over(&answers)[self.warm_up_answers.get()..], unanswered.len())
    }

    /// In the order in which they were sent, so that none of them passes another over.
    fn unanswered(&self, answers: &[SendRank]) -> Vec<SendRank> {
        let mut is_answered = vec![false; self.sent.get() as usize];
        for rank in answers {
            is_answered[rank.0 as usize] = true;
        }
        (0..self.sent.get()).filter(|rank| !is_answered[*rank as usize]).map(SendRank).collect()
    }
}

impl Verdict {
    fn of(passed_over: &[u32], unanswered: usize) -> Self {
        let long_waits = passed_over.iter().filter(|count| **count > LONG_WAIT_PASSED_OVER).count();
        let most_passed_over = passed_over.iter().copied().max().unwrap_or(0);
        Self {
            requests: passed_over.len(),
            unanswered,
            long_waits,
            most_passed_over,
            in_order: long_waits <= LONG_WAITS_MAX && most_passed_over <= PASSED_OVER_MAX,
        }
    }
}

/// For each answer, in their order: how many requests that were sent after its own were answered
/// before it.
///
/// Walks from the last request sent to the first and asks a Fenwick tree over the answers' places
/// how many of those seen, all sent later, have an earlier place: n log n.
fn passed_over(answers: &[SendRank]) -> Vec<u32> {
    let mut by_rank: Vec<(u32, usize)> =
        answers.iter().enumerate().map(|(place, rank)| (rank.0, place)).collect();
    by_rank.sort_unstable();
    let mut seen = Fenwick::new(answers.len());
    let mut counts = vec![0; answers.len()];
    for (_, place) in by_rank.into_iter().rev() {
        counts[place] = seen.before(place);
        seen.add(place);
    }
    counts
}

/// Counts of marks by place, with sums over a prefix in logarithmic time.
struct Fenwick {
    /// `sums[i]` covers the lowest set bit of `i` places up to `i`; the first is not used.
    sums: Vec<u32>,
}

impl Fenwick {
    fn new(places: usize) -> Self {
        Self { sums: vec![0; places + 1] }
    }

    /// Marks a place.
    fn add(&mut self, place: usize) {
        let mut index = place + 1;
        while let Some(sum) = self.sums.get_mut(index) {
            *sum += 1;
            index += lowest_bit(index);
        }
    }

    /// The marks before a place.
    fn before(&self, place: usize) -> u32 {
        let mut index = place;
        let mut total = 0;
        while index > 0 {
            total += self.sums[index];
            index -= lowest_bit(index);
        }
        total
    }
}

fn lowest_bit(index: usize) -> usize {
    index & index.wrapping_neg()
}

#[cfg(test)]
#[path = "order_tests.rs"]
mod tests;
