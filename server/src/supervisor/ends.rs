//! Processes that ended: what is said, what comes next, and when it is enough.

use std::time::Duration;

use rustix::process::{Pid, WaitOptions, WaitStatus};

use super::budget::Exhausted;
use super::roster::{Leaving, Lost, Next, SETTLED_AFTER};
use super::words::{describe, name_of};
use super::{EXIT_NOT_LOADED, EXIT_NOT_LOADED_SILENT, Phase, Supervisor};
use crate::clock;
use crate::sys::process::ended_child;

/// How a process ended.
#[derive(Debug)]
pub(super) struct End {
    pid: Option<i32>,
    /// `None`: a signal killed it, or nobody knows.
    code: Option<u8>,
    /// Completes a sentence.
    pub(super) how: String,
}

impl End {
    fn of(pid: Pid, status: WaitStatus) -> Self {
        let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
        Self { pid: Some(pid.as_raw_pid()), code, how: describe(status) }
    }

    fn is_failure(&self) -> bool {
        self.code.is_some_and(|code| code != 0)
    }
}

impl Supervisor<'_> {
    /// Collects children that ended, ours and, as process 1, anybody's. What a process said before its
    /// end is heard first: who it is, and that it was ready.
    pub(super) fn reap(&mut self) {
        while let Some(pid) = ended_child() {
            self.handle_messages();
            match rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let found = self.processes().find(|process| process.pid == Some(pid));
                    if let Some(id) = found.map(|process| process.id) {
                        self.ended(id, &End::of(pid, status));
                    }
                }
                // It is looked at again.
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// A worker that the template was to fork has not come to life, or not for long enough to say its
    /// process id.
    pub(super) fn ended_unborn(&mut self, id: u64) {
        let how = "ended before it could say anything".to_owned();
        self.ended(id, &End { pid: None, code: None, how });
    }

    fn ended(&mut self, id: u64, end: &End) {
        if let Some(index) = self.roster.leaving.iter().position(|it| it.process.id == id) {
            let leaving = self.roster.leaving.swap_remove(index);
            self.has_left(&leaving, end);
            return;
        }
        let was_ready = self.was_ready(id);
        match self.phase {
            Phase::Starting if !was_ready => self.could_not_start(id, end),
            Phase::Starting | Phase::Serving => self.is_lost(id, end),
            Phase::Delaying { .. } | Phase::Stopping => self.ended_in_delay(id, end),
        }
    }

    fn was_ready(&mut self, id: u64) -> bool {
        let mut running = self.members_mut().filter_map(|member| member.running());
        running.any(|running| running.process.id == id)
    }

    /// It was on its way out.
    fn has_left(&mut self, leaving: &Leaving, end: &End) {
        let was_killed = leaving.deadline.is_none();
        if was_killed || !leaving.was_ready {
            return;
        }
        let (pid, how, name) = (end.pid, &end.how, name_of(leaving.number));
        if self.phase == Phase::Stopping {
            if end.is_failure() {
                tracing::warn!(pid, "{name} {how}");
                self.exit_code = self.exit_code.max(1);
            }
        } else if end.code == Some(0) {
            tracing::info!(pid, "{name}: the old process has drained and {how}");
        } else {
            tracing::warn!(pid, "{name}: the old process {how}");
        }
    }

    /// It served while `--shutdown-delay` ran, and nobody takes its place any more.
    fn ended_in_delay(&mut self, id: u64, end: &End) {
        let is_it = |process: &super::Process| process.id == id;
        let workers = &mut self.roster.workers;
        let Some(index) = workers.iter().position(|worker| worker.processes().any(is_it)) else {
            return;
        };
        let worker = workers.remove(index);
        if end.code != Some(0) {
            tracing::warn!(pid = end.pid, "{} {}", name_of(worker.number), end.how);
            self.exit_code = self.exit_code.max(1);
        }
    }

    /// Before everything was up once, a process that cannot start ends the server.
    fn could_not_start(&mut self, id: u64, end: &End) {
        let Some(number) = self.forget(id) else { return };
        match end.code {
            // Another worker is about to say why, and must not be killed before.
            Some(EXIT_NOT_LOADED_SILENT) if self.processes().next().is_some() => return,
            // The word was taken: it was said why. Else the application ended the process itself.
            Some(EXIT_NOT_LOADED | EXIT_NOT_LOADED_SILENT) if !self.voice.take() => {}
            Some(code @ (EXIT_NOT_LOADED | EXIT_NOT_LOADED_SILENT)) => {
                let name = name_of(number);
                tracing::error!(
                    pid = end.pid,
                    "{name} ended with code {code} before it was ready; where no reason stands above, \
                     the application ends its process, or closes descriptors, while it is imported"
                );
            }
            Some(_) | None => {
                let (name, how) = (name_of(number), &end.how);
                tracing::error!(pid = end.pid, "{name} {how} before it was ready");
            }
        }
        self.exit_code = 1;
        self.begin_stop("a worker could not start", Duration::ZERO);
    }

    /// Takes a worker or the template out that has no process but this one.
    fn forget(&mut self, id: u64) -> Option<usize> {
        let is_it = |process: &super::Process| process.id == id;
        let number = self.members_mut().find(|it| it.processes().any(is_it))?.number;
        if number == super::TEMPLATE {
            self.generation.template = None;
        } else {
            self.roster.workers.retain(|worker| worker.number != number);
        }
        Some(number)
    }

    fn is_lost(&mut self, id: u64, end: &End) {
        let now = clock::now();
        let lost = |member: &mut super::Worker| Some((member.number, member.lost(id, now)?));
        let Some((number, lost)) = self.members_mut().find_map(lost) else { return };
        if !lost.was_ready && self.is_brought_in(lost.generation) {
            self.stop_rollout(number, end);
            return;
        }
        say_what_is_next(number, end, lost);
        if !lost.was_short {
            return;
        }
        let exhausted = self.budget.spend(self.generation.config.respawn_max, now);
        if let Some(exhausted) = exhausted
            && !self.roster.has_sound_worker(now)
        {
            self.give_up(exhausted, number, end);
        }
    }

    fn give_up(&mut self, exhausted: Exhausted, number: usize, end: &End) {
        let Exhausted { count, time } = exhausted;
        tracing::error!(
            pid = end.pid,
            "giving up: {count} processes ended within {SETTLED_AFTER:?} of their start in the last \
             {} s, and no other worker serves soundly; the last one, {}, {}. Look at what the application \
             printed above; --respawn-max says how many are too many",
            time.as_secs_f64().ceil(),
            name_of(number),
            end.how
        );
        self.exit_code = 1;
        self.begin_stop("workers end as soon as they start", Duration::ZERO);
    }
}

fn say_what_is_next(number: usize, end: &End, lost: Lost) {
    let (pid, how, name) = (end.pid, &end.how, name_of(number));
    match lost.next {
        Next::After(delay) => tracing::error!(pid, "{name} {how}; another starts in {delay:?}"),
        Next::Successor => tracing::error!(pid, "{name} {how}; its successor is starting already"),
        Next::OldServes(delay) => tracing::error!(
            pid,
            "{name}: the successor {how} before it was ready; the old process serves on, and another \
             successor starts in {delay:?}"
        ),
    }
}
