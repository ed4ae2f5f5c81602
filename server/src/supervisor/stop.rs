//! The end of processes: drained within the grace, or killed and named.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::control::ToWorker;
use super::roster::{Leaving, Process, Standing};
use super::words::name_of;
use super::{Phase, Supervisor, kill};
use crate::clock;

/// Of the grace, what the supervisor keeps for itself: a worker that overruns says what it left
/// before the supervisor kills it.
const GRACE_MARGIN_MAX: Duration = Duration::from_secs(1);

impl Supervisor<'_> {
    /// Starts to stop, unless it does already. Workers serve on for `delay` before they drain.
    pub(super) fn begin_stop(&mut self, reason: &str, delay: Duration) {
        if !self.phase.is_up() {
            return;
        }
        self.end_what_does_not_serve();
        let grace = self.generation.config.grace;
        let is_delayed = !delay.is_zero() && !self.roster.workers.is_empty();
        if self.has_served && is_delayed {
            tracing::info!(
                ?delay,
                ?grace,
                "stopping: {reason}; /ready says 503 until the drain begins"
            );
        } else if self.has_served {
            tracing::info!(?grace, "stopping: {reason}");
        }
        if is_delayed {
            self.phase = Phase::Delaying { until: clock::now() + delay };
            for process in self.roster.workers.iter().flat_map(super::Worker::processes) {
                // A worker that is gone already is reaped in a moment.
                let _ = process.control.send(&ToWorker::Leave);
            }
        } else {
            self.drain_all();
        }
    }

    /// Ends at once, whatever is in flight.
    pub(super) fn stop_now(&mut self, reason: &str) {
        if self.phase.is_up() {
            if self.has_served {
                tracing::info!("stopping at once: {reason}");
            }
            self.end_what_does_not_serve();
        }
        if self.phase != Phase::Stopping {
            self.drain_all();
        }
        self.kill_leaving(reason, None);
    }

    /// Templates, and what is being imported: it has accepted nothing, and an import cannot be asked
    /// to end. Whose successor that was serves on.
    fn end_what_does_not_serve(&mut self) {
        let now = clock::now();
        if let Some(rollout) = self.rollout.take() {
            self.dismiss_template(rollout.generation);
        }
        if let Some(template) = self.generation.template.take() {
            self.dismiss_all(template);
        }
        for mut worker in std::mem::take(&mut self.roster.workers) {
            if let Some(process) = worker.give_up_start(now) {
                self.dismiss(worker.number, process);
            }
            match worker.standing {
                Standing::Serving(_) | Standing::Renewing(..) => self.roster.workers.push(worker),
                Standing::Due(_) | Standing::Starting(_) => {}
            }
        }
    }

    fn drain_all(&mut self) {
        // A connection that comes now is refused and does not wait for nobody: workers close theirs.
        self.listeners.sockets.clear();
        self.phase = Phase::Stopping;
        for worker in std::mem::take(&mut self.roster.workers) {
            self.dismiss_all(worker);
        }
    }

    /// Lets a process that serves answer what it accepted.
    pub(super) fn retire(&mut self, number: usize, process: Process) {
        let grace = self.generation.config.grace;
        let worker_grace = grace - GRACE_MARGIN_MAX.min(grace / 10);
        if process.control.send(&ToWorker::Drain { grace: worker_grace }).is_err()
            && let Some(pid) = process.pid
        {
            // It has not read its orders for long, or is gone. A signal finds room, and means the same.
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
        if self.phase == Phase::Serving {
            let pid = process.pid.map(rustix::process::Pid::as_raw_pid);
            tracing::info!(pid, ?grace, "{}: the old process drains", name_of(number));
        }
        let deadline = Some(clock::now() + grace);
        self.roster.leaving.push(Leaving { number, process, was_ready: true, deadline });
    }

    /// Kills a process that has accepted nothing.
    pub(super) fn dismiss(&mut self, number: usize, process: Process) {
        // One that has not said its process id yet is killed when it does.
        if let Some(pid) = process.pid {
            kill(pid);
        }
        self.roster.leaving.push(Leaving { number, process, was_ready: false, deadline: None });
    }

    pub(super) fn handle_time(&mut self) {
        let now = clock::now();
        if let Phase::Delaying { until } = self.phase
            && until <= now
        {
            if self.has_served {
                tracing::info!("the delay is over: draining");
            }
            self.drain_all();
        }
        self.kill_leaving("the grace is over", Some(now));
        self.say_who_is_late(now);
    }

    /// Kills the processes that were to end by this moment; `None`: all of them. Each once.
    fn kill_leaving(&mut self, reason: &str, by: Option<Instant>) {
        for leaving in &mut self.roster.leaving {
            let Some(deadline) = leaving.deadline else { continue };
            if by.is_some_and(|by| by < deadline) {
                continue;
            }
            leaving.deadline = None;
            let pid = leaving.process.pid.map(rustix::process::Pid::as_raw_pid);
            let name = name_of(leaving.number);
            if self.phase == Phase::Stopping {
                tracing::error!(pid, "{name} is killed: {reason}");
                self.exit_code = self.exit_code.max(1);
            } else {
                tracing::error!(pid, "{name}: the old process is killed: {reason}");
            }
            if let Some(pid) = leaving.process.pid {
                kill(pid);
            }
        }
    }
}
