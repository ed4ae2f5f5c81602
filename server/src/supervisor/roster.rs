//! The workers as the supervisor knows them, and when a dead one is replaced. No system calls.

use std::time::{Duration, Instant};

use super::control::ControlSocket;
use crate::board::CellLease;

/// A worker that was ready for less is a failure, and the next one waits.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// The first wait after a failure; it doubles with each.
const DELAY_MIN: Duration = Duration::from_millis(100);
/// The longest wait.
const DELAY_MAX: Duration = Duration::from_secs(5);

/// A process that runs.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: rustix::process::Pid,
    pub(super) control: ControlSocket,
    /// Its place on the board, free again when this value is dropped. `None`: all were taken.
    pub(super) _cell: Option<CellLease>,
    pub(super) started: Instant,
}

/// Where one worker stands.
#[derive(Debug)]
pub(super) enum Standing {
    /// To be forked at this moment.
    Due(Instant),
    /// Forked, importing.
    Starting(Process),
    /// Accepts connections since this moment.
    Ready(Process, Instant),
    /// Ended, and not to be replaced.
    Gone,
}

/// One of the workers the configuration asks for.
#[derive(Debug)]
pub(super) struct Worker {
    /// From 1.
    pub(super) number: usize,
    pub(super) standing: Standing,
    /// Lives in a row that were too short.
    pub(super) failure_count: u32,
}

impl Worker {
    pub(super) fn new(number: usize, now: Instant) -> Self {
        Self { number, standing: Standing::Due(now), failure_count: 0 }
    }

    pub(super) fn process(&self) -> Option<&Process> {
        match &self.standing {
            Standing::Starting(process) | Standing::Ready(process, _) => Some(process),
            Standing::Due(_) | Standing::Gone => None,
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.standing, Standing::Ready(..))
    }

    /// The process said that it is ready. False: it had said so before.
    pub(super) fn became_ready(&mut self, now: Instant) -> bool {
        match std::mem::replace(&mut self.standing, Standing::Gone) {
            Standing::Starting(process) => {
                self.standing = Standing::Ready(process, now);
                true
            }
            other @ (Standing::Ready(..) | Standing::Due(_) | Standing::Gone) => {
                self.standing = other;
                false
            }
        }
    }

    /// The process ended: the next one is due at once after a long life, and ever later after short
    /// ones. Returns the wait.
    pub(super) fn ended(&mut self, now: Instant) -> Duration {
        let settled = match &self.standing {
            Standing::Ready(_, since) => now.saturating_duration_since(*since) >= SETTLED_AFTER,
            Standing::Starting(_) | Standing::Due(_) | Standing::Gone => false,
        };
        // A worker that was ready gets its first replacement at once, however short its life was:
        // an operator's kill is not a crash loop.
        let first = self.is_ready() && self.failure_count == 0;
        self.failure_count = if settled { 0 } else { self.failure_count.saturating_add(1) };
        let delay = if settled || first {
            Duration::ZERO
        } else {
            let doublings = self.failure_count.saturating_sub(1).min(10);
            (DELAY_MIN * 2_u32.pow(doublings)).min(DELAY_MAX)
        };
        self.standing = Standing::Due(now + delay);
        delay
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::*;
    use crate::clock;

    fn start(worker: &mut Worker, now: Instant) {
        let (control, _) = ControlSocket::pair().unwrap();
        let pid = Pid::from_raw(1).unwrap();
        worker.standing = Standing::Starting(Process { pid, control, _cell: None, started: now });
    }

    #[test]
    fn short_lives_cost_ever_longer_waits_and_a_long_one_forgives() {
        let mut now = clock::now();
        let mut worker = Worker::new(1, now);
        let mut delays = Vec::new();
        for _ in 0..8 {
            start(&mut worker, now);
            delays.push(worker.ended(now).as_millis());
        }
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        start(&mut worker, now);
        assert!(worker.became_ready(now) && !worker.became_ready(now));
        now += SETTLED_AFTER;
        assert_eq!(worker.ended(now), Duration::ZERO);
        assert_eq!(worker.failure_count, 0);
    }

    #[test]
    fn the_first_death_of_a_ready_worker_is_made_good_at_once() {
        let now = clock::now();
        let mut worker = Worker::new(1, now);
        for expected in [0, 200, 400] {
            start(&mut worker, now);
            worker.became_ready(now);
            assert_eq!(worker.ended(now).as_millis(), expected);
        }
    }
}
