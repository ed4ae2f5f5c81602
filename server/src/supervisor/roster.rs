//! The processes as the supervisor knows them, and which is due, serves, or is on its way out. No
//! system calls.
//!
//! | a number is | event | next |
//! |---|---|---|
//! | `Due` | it was forked | `Starting` |
//! | `Starting` | ready | `Serving` |
//! | `Starting` | it ended | `Due`, later |
//! | `Serving` | a successor is wanted | `Renewing`, the successor `Due` |
//! | `Serving` | it ended | `Due`, later after a short life |
//! | `Renewing` | the successor was forked | `Renewing`, the successor `Starting` |
//! | `Renewing` | the successor is ready | `Serving`; the old process retires |
//! | `Renewing` | the successor ended | `Renewing`, the successor `Due`, later |
//! | `Renewing` | the old process ended | `Starting` or `Due`, as the successor was |
//! | `Renewing` | the successor is given up | `Serving` |

use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::control::ControlSocket;
use crate::board::CellLease;
use crate::limits;

/// A worker that was ready for less is a failure, and the next one waits.
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// The first wait after a failure; it doubles with each.
const DELAY_MIN: Duration = Duration::from_millis(100);
/// The longest wait.
const DELAY_MAX: Duration = Duration::from_secs(5);

/// The number of the process that workers are forked from with `--preload`. Workers count from 1.
pub const TEMPLATE: usize = 0;

/// A process that runs.
#[derive(Debug)]
pub(super) struct Process {
    /// Never used twice.
    pub(super) id: u64,
    /// `None` until a worker that the template forked has said it.
    pub(super) pid: Option<Pid>,
    /// Where it is spoken to; its end of file is heard once.
    pub(super) control: ControlSocket,
    /// The other side of `control` is closed.
    pub(super) is_deaf: bool,
    /// Its place on the board, free again when this value is dropped. `None`: it needs none, or all
    /// were taken.
    pub(super) _cell: Option<CellLease>,
    pub(super) started: Instant,
    /// It has been starting for long, and that was said.
    pub(super) is_late: bool,
    /// Which settings it was forked with.
    pub(super) generation: u32,
}

/// A process that is ready.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) process: Process,
    pub(super) since: Instant,
    /// It has asked for a successor.
    pub(super) is_recycled: bool,
}

/// Who is to take the place of a process that serves.
#[derive(Debug)]
pub(super) enum Successor {
    /// To be forked at this moment.
    Due(Instant),
    /// Forked, importing.
    Starting(Process),
}

/// Where one number stands.
#[derive(Debug)]
pub(super) enum Standing {
    /// To be forked at this moment.
    Due(Instant),
    /// Forked, importing.
    Starting(Process),
    /// Accepts connections.
    Serving(Running),
    /// Accepts connections until its successor does.
    Renewing(Running, Successor),
}

/// One of the workers the configuration asks for, or the template.
#[derive(Debug)]
pub(super) struct Worker {
    /// From 1, or [`TEMPLATE`].
    pub(super) number: usize,
    pub(super) standing: Standing,
    /// Lives in a row that were too short.
    pub(super) failure_count: u32,
    /// Which settings its next process gets.
    pub(super) generation: u32,
}

/// What became ready.
#[derive(Debug)]
pub(super) enum Readiness {
    /// Nobody served under this number before.
    First,
    /// This one did, and is to be drained.
    Succeeds(Process),
}

/// What comes after a process that ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Next {
    /// Another is forked after this time.
    After(Duration),
    /// Its successor is being started already.
    Successor,
    /// It was a successor itself: the old process serves on, and another is forked after this time.
    OldServes(Duration),
}

/// A process that ended, as far as its number goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Lost {
    pub(super) was_ready: bool,
    /// It ended within [`SETTLED_AFTER`] of its *ready*, or before it.
    pub(super) was_short: bool,
    pub(super) generation: u32,
    pub(super) next: Next,
}

impl Worker {
    pub(super) fn new(number: usize, generation: u32, now: Instant) -> Self {
        Self { number, standing: Standing::Due(now), failure_count: 0, generation }
    }

    /// When a process is to be forked; `None`: none is.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.standing {
            Standing::Due(moment) | Standing::Renewing(_, Successor::Due(moment)) => Some(*moment),
            Standing::Starting(_)
            | Standing::Serving(_)
            | Standing::Renewing(_, Successor::Starting(_)) => None,
        }
    }

    /// Every process under this number.
    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        let (serving, starting) = match &self.standing {
            Standing::Due(_) => (None, None),
            Standing::Starting(process) => (None, Some(process)),
            Standing::Serving(running) | Standing::Renewing(running, Successor::Due(_)) => {
                (Some(&running.process), None)
            }
            Standing::Renewing(running, Successor::Starting(process)) => {
                (Some(&running.process), Some(process))
            }
        };
        serving.into_iter().chain(starting)
    }

    pub(super) fn processes_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        let (serving, starting) = match &mut self.standing {
            Standing::Due(_) => (None, None),
            Standing::Starting(process) => (None, Some(process)),
            Standing::Serving(running) | Standing::Renewing(running, Successor::Due(_)) => {
                (Some(&mut running.process), None)
            }
            Standing::Renewing(running, Successor::Starting(process)) => {
                (Some(&mut running.process), Some(process))
            }
        };
        serving.into_iter().chain(starting)
    }

    /// The process that serves.
    pub(super) fn running(&self) -> Option<&Running> {
        match &self.standing {
            Standing::Serving(running) | Standing::Renewing(running, _) => Some(running),
            Standing::Due(_) | Standing::Starting(_) => None,
        }
    }

    /// The process that is being started.
    pub(super) fn starting(&self) -> Option<&Process> {
        match &self.standing {
            Standing::Starting(process) | Standing::Renewing(_, Successor::Starting(process)) => {
                Some(process)
            }
            Standing::Due(_) | Standing::Serving(_) | Standing::Renewing(_, Successor::Due(_)) => {
                None
            }
        }
    }

    /// The process that is being started while another serves.
    pub(super) fn successor(&self) -> Option<&Process> {
        self.starting().filter(|_| self.running().is_some())
    }

    /// When the process that is being started will have taken long; `None`: there is none, or
    /// [`Self::is_late`] has said it.
    pub(super) fn late_at(&self) -> Option<Instant> {
        let process = self.starting().filter(|process| !process.is_late)?;
        Some(process.started + limits::START_WARNING)
    }

    /// Whether the process that is being started has taken long; of each process once.
    pub(super) fn is_late(&mut self, now: Instant) -> bool {
        if self.late_at().is_none_or(|moment| now < moment) {
            return false;
        }
        let starting = self.starting().map(|process| process.id);
        let mut processes = self.processes_mut();
        if let Some(process) = processes.find(|process| Some(process.id) == starting) {
            process.is_late = true;
        }
        true
    }

    /// Whether a process serves and has done so for long enough.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        self.running()
            .is_some_and(|running| now.saturating_duration_since(running.since) >= SETTLED_AFTER)
    }

    /// The process that was due runs.
    pub(super) fn forked(&mut self, process: Process) {
        self.turn(process.started, |standing| match standing {
            Standing::Renewing(running, _) => {
                Standing::Renewing(running, Successor::Starting(process))
            }
            Standing::Due(_) | Standing::Starting(_) | Standing::Serving(_) => {
                Standing::Starting(process)
            }
        });
    }

    /// A fork failed: another is due after the returned time.
    pub(super) fn not_forked(&mut self, now: Instant) -> Duration {
        let delay = self.failed();
        self.turn(now, |standing| match standing {
            Standing::Renewing(running, _) => {
                Standing::Renewing(running, Successor::Due(now + delay))
            }
            Standing::Due(_) | Standing::Starting(_) | Standing::Serving(_) => {
                Standing::Due(now + delay)
            }
        });
        delay
    }

    /// The process said that it is ready. `None`: it is not one that was waited for.
    pub(super) fn became_ready(&mut self, id: u64, now: Instant) -> Option<Readiness> {
        let mut readiness = None;
        let running = |process| Running { process, since: now, is_recycled: false };
        self.turn(now, |standing| match standing {
            Standing::Starting(process) if process.id == id => {
                readiness = Some(Readiness::First);
                Standing::Serving(running(process))
            }
            Standing::Renewing(old, Successor::Starting(process)) if process.id == id => {
                readiness = Some(Readiness::Succeeds(old.process));
                Standing::Serving(running(process))
            }
            other @ (Standing::Due(_)
            | Standing::Starting(_)
            | Standing::Serving(_)
            | Standing::Renewing(..)) => other,
        });
        readiness
    }

    /// A successor is due now. A number without a process that serves stays as it is.
    pub(super) fn renew(&mut self, now: Instant) {
        self.turn(now, |standing| match standing {
            Standing::Serving(running) => Standing::Renewing(running, Successor::Due(now)),
            other @ (Standing::Due(_) | Standing::Starting(_) | Standing::Renewing(..)) => other,
        });
    }

    /// Takes what is being started under this number, which is due again at once where nobody serves;
    /// who serves has no successor any more.
    pub(super) fn give_up_start(&mut self, now: Instant) -> Option<Process> {
        let mut given_up = None;
        self.turn(now, |standing| match standing {
            Standing::Starting(process) => {
                given_up = Some(process);
                Standing::Due(now)
            }
            Standing::Renewing(running, successor) => {
                if let Successor::Starting(process) = successor {
                    given_up = Some(process);
                }
                Standing::Serving(running)
            }
            other @ (Standing::Due(_) | Standing::Serving(_)) => other,
        });
        given_up
    }

    /// The process ended: the next one is due at once after a long life, and ever later after short
    /// ones. `None`: it is not one of this number.
    pub(super) fn lost(&mut self, id: u64, now: Instant) -> Option<Lost> {
        let process = self.processes().find(|process| process.id == id)?;
        let generation = process.generation;
        let was_ready = self.running().is_some_and(|running| running.process.id == id);
        let was_short = !(was_ready && self.is_settled(now));
        // A worker that was ready gets its first replacement at once, however short its life was:
        // an operator's kill is not a crash loop.
        let is_first = was_ready && self.failure_count == 0;
        let delay = if was_short {
            let delay = self.failed();
            if is_first { Duration::ZERO } else { delay }
        } else {
            self.failure_count = 0;
            Duration::ZERO
        };
        let mut next = Next::After(delay);
        self.turn(now, |standing| match standing {
            Standing::Due(_) | Standing::Starting(_) | Standing::Serving(_) => {
                Standing::Due(now + delay)
            }
            Standing::Renewing(running, _) if !was_ready => {
                next = Next::OldServes(delay);
                Standing::Renewing(running, Successor::Due(now + delay))
            }
            Standing::Renewing(_, Successor::Starting(process)) => {
                next = Next::Successor;
                Standing::Starting(process)
            }
            Standing::Renewing(_, Successor::Due(_)) => Standing::Due(now + delay),
        });
        Some(Lost { was_ready, was_short, generation, next })
    }

    /// Counts a failure; the wait that it costs.
    fn failed(&mut self) -> Duration {
        self.failure_count = self.failure_count.saturating_add(1);
        let doublings = (self.failure_count - 1).min(10);
        (DELAY_MIN * 2_u32.pow(doublings)).min(DELAY_MAX)
    }

    fn turn(&mut self, now: Instant, step: impl FnOnce(Standing) -> Standing) {
        // The place needs a value while the state is in the step's hands; no step looks at it.
        let placeholder = Standing::Due(now);
        self.standing = step(std::mem::replace(&mut self.standing, placeholder));
    }
}

/// A process that is on its way out.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) number: usize,
    pub(super) process: Process,
    /// It was ready once: how it ends is news.
    pub(super) was_ready: bool,
    /// When it is killed; `None`: it was.
    pub(super) deadline: Option<Instant>,
}

/// All processes.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// In the order of their numbers.
    pub(super) workers: Vec<Worker>,
    pub(super) leaving: Vec<Leaving>,
}

/// How far a rolling restart has come.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Progress {
    /// It waits for a process to become ready, or to end.
    Waits,
    /// It waits for one of those that drain to end: there are as many as workers.
    HeldBack,
    /// Every number runs the new settings.
    Complete,
}

impl Roster {
    pub(super) fn new(count: usize, generation: u32, now: Instant) -> Self {
        let workers = (1..=count).map(|number| Worker::new(number, generation, now)).collect();
        Self { workers, leaving: Vec::new() }
    }

    pub(super) fn worker(&mut self, number: usize) -> Option<&mut Worker> {
        self.workers.iter_mut().find(|worker| worker.number == number)
    }

    /// Whether nobody is left to be waited for. A worker that was given up before it said its process id
    /// cannot be killed; it ends by itself when it finds its supervisor gone.
    pub(super) fn is_over(&self) -> bool {
        let is_unborn =
            |leaving: &Leaving| leaving.process.pid.is_none() && leaving.deadline.is_none();
        self.leaving.iter().all(is_unborn)
            && self.workers.iter().all(|worker| worker.processes().next().is_none())
    }

    pub(super) fn is_serving_in_full(&self, count: usize) -> bool {
        self.workers.iter().filter(|worker| worker.running().is_some()).count() == count
    }

    /// Whether a worker serves that gives no reason to stop: it has lived long enough, or none of its
    /// number has failed.
    pub(super) fn has_sound_worker(&self, now: Instant) -> bool {
        let is_sound = |worker: &Worker| {
            worker.is_settled(now) || worker.running().is_some() && worker.failure_count == 0
        };
        self.workers.iter().any(is_sound)
    }

    /// How many serve with these settings.
    pub(super) fn serving_count(&self, generation: u32) -> usize {
        let running = self.workers.iter().filter_map(Worker::running);
        running.filter(|running| running.process.generation == generation).count()
    }

    /// How many processes drain.
    pub(super) fn draining_count(&self) -> usize {
        self.leaving.iter().filter(|leaving| leaving.was_ready).count()
    }

    /// Whether no more processes are to be replaced now: a process that does not end before its grace
    /// is over (a thread hangs) would stay beside ever more of its kind.
    fn is_crowded(&self) -> bool {
        self.draining_count() >= self.workers.len().max(1)
    }

    /// Takes a rolling restart one step on: one number after another gets a successor, numbers that
    /// are new come last. Returns what is being started with older settings, which is to be killed.
    pub(super) fn advance(
        &mut self,
        generation: u32,
        count: usize,
        now: Instant,
    ) -> (Progress, Option<(usize, Process)>) {
        let is_crowded = self.is_crowded();
        for number in 1..=count {
            let Some(worker) = self.worker(number) else {
                self.workers.push(Worker::new(number, generation, now));
                return (Progress::Waits, None);
            };
            match &worker.standing {
                Standing::Serving(running) if running.process.generation == generation => continue,
                Standing::Starting(process) if process.generation != generation => {
                    worker.generation = generation;
                    let outdated = worker.give_up_start(now);
                    return (Progress::Waits, outdated.map(|process| (number, process)));
                }
                // It waits after a failure of the settings before: the new ones may cure it.
                Standing::Due(_) if worker.generation != generation => {
                    worker.generation = generation;
                    worker.standing = Standing::Due(now);
                }
                // So does the successor of one that asked for it.
                Standing::Renewing(..) if worker.generation != generation => {
                    worker.generation = generation;
                    let outdated = worker.give_up_start(now);
                    worker.renew(now);
                    return (Progress::Waits, outdated.map(|process| (number, process)));
                }
                Standing::Serving(_) if is_crowded => return (Progress::HeldBack, None),
                Standing::Serving(_) => {
                    worker.generation = generation;
                    worker.renew(now);
                }
                Standing::Due(_) | Standing::Starting(_) | Standing::Renewing(..) => {}
            }
            return (Progress::Waits, None);
        }
        (Progress::Complete, None)
    }

    /// Stops a rolling restart: whatever serves goes on, and the next processes get these settings.
    /// Returns what was being started as a successor or with the settings given up.
    pub(super) fn retreat(&mut self, generation: u32, now: Instant) -> Vec<(usize, Process)> {
        let mut given_up = Vec::new();
        for worker in &mut self.workers {
            worker.generation = generation;
            let is_outdated = match &worker.standing {
                Standing::Starting(process) => process.generation != generation,
                Standing::Renewing(..) => true,
                Standing::Due(_) | Standing::Serving(_) => false,
            };
            if is_outdated && let Some(process) = worker.give_up_start(now) {
                given_up.push((worker.number, process));
            }
        }
        given_up
    }

    /// The first worker that asked for a successor gets one due, if no other is being renewed and not
    /// too many drain.
    pub(super) fn recycle_next(&mut self, now: Instant) -> Progress {
        let is_crowded = self.is_crowded();
        let is_busy =
            self.workers.iter().any(|worker| matches!(worker.standing, Standing::Renewing(..)));
        let asks =
            |worker: &&mut Worker| worker.running().is_some_and(|running| running.is_recycled);
        if is_busy {
            return Progress::Waits;
        }
        match self.workers.iter_mut().find(asks) {
            Some(_) if is_crowded => return Progress::HeldBack,
            Some(worker) => worker.renew(now),
            None => {}
        }
        Progress::Waits
    }

    /// Takes the numbers above `count` out, in descending order.
    pub(super) fn shrink(&mut self, count: usize) -> Vec<Worker> {
        let kept = self.workers.iter().take_while(|worker| worker.number <= count).count();
        let mut removed = self.workers.split_off(kept);
        removed.reverse();
        removed
    }
}

#[cfg(test)]
#[path = "roster_tests.rs"]
mod tests;
