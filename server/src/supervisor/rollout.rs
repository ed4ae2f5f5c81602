//! The rolling restart: SIGHUP, SIGTTIN, SIGTTOU, and workers that ask for a successor.
//!
//! | a rolling restart | event | next |
//! |---|---|---|
//! | none | SIGHUP, and the configuration can be read | the template starts, if there is to be one |
//! | none | SIGHUP, and the configuration is broken | none, nothing was changed |
//! | waits for its template | it is ready | number 1 gets a successor |
//! | begins a number | as many processes drain as there are workers | the same, until one has ended |
//! | waits for a successor | it is ready | the old process drains, the next number gets a successor |
//! | waits for a successor | every number has the new settings | none; numbers too many drain |
//! | waits | what it waits for ended | none; the old settings stay in force |
//! | waits | SIGHUP | what starts is killed, and it begins anew |

use std::sync::Arc;
use std::time::Instant;

use super::ends::End;
use super::roster::{Progress, Standing, Successor, TEMPLATE, Worker};
use super::words::name_of;
use super::{Generation, Phase, Supervisor, adopt_orphans, kept};
use crate::config::{BOUNDS, Config};
use crate::error::Fault;
use crate::{clock, machine};

/// One that is under way.
#[derive(Debug)]
pub(super) struct Rollout {
    /// What it brings in.
    pub(super) generation: Generation,
    begun: Instant,
}

impl Supervisor<'_> {
    /// SIGHUP.
    pub(super) fn restart(&mut self) {
        match self.phase {
            Phase::Starting => {
                self.is_restart_wanted = true;
                tracing::info!(
                    "SIGHUP: the workers are still starting; the rolling restart begins when all of \
                     them are ready"
                );
            }
            Phase::Serving => self.begin_rollout(),
            Phase::Delaying { .. } | Phase::Stopping => {
                tracing::warn!("SIGHUP: the server is stopping; nothing was changed");
            }
        }
    }

    fn begin_rollout(&mut self) {
        let generation = match (self.reload)().and_then(|config| self.next_generation(config)) {
            Ok(generation) => generation,
            Err(fault) => {
                tracing::error!("SIGHUP: nothing was changed: {fault}");
                return;
            }
        };
        let workers = generation.worker_count;
        if self.rollout.is_some() {
            self.retreat();
            tracing::info!(workers, "SIGHUP: the rolling restart begins anew");
        } else {
            tracing::info!(workers, "SIGHUP: a rolling restart begins");
        }
        self.rollout = Some(Rollout { generation, begun: clock::now() });
    }

    fn next_generation(&mut self, config: Config) -> Result<Generation, Fault> {
        let (config, kept) = kept::keep(&self.generation.config, config);
        if !kept.is_empty() {
            tracing::warn!(
                "SIGHUP: {} changed, which takes a new start of the server; the old value stays",
                kept.join(", ")
            );
        }
        let machine = machine::renew(&self.generation.machine, &config)?;
        if config.preload {
            adopt_orphans().map_err(|error| Fault::start(format!("--preload: {error}")))?;
        }
        self.generation_count += 1;
        Ok(Generation::new(self.generation_count, Arc::new(config), machine, clock::now()))
    }

    /// Whether a rolling restart brings in these settings.
    pub(super) fn is_brought_in(&self, generation: u32) -> bool {
        self.rollout.as_ref().is_some_and(|rollout| rollout.generation.id == generation)
    }

    /// After every event: takes a rolling restart on, or the replacement of workers that asked for it.
    pub(super) fn renew(&mut self) {
        if self.phase != Phase::Serving {
            return;
        }
        if std::mem::take(&mut self.is_restart_wanted) {
            self.begin_rollout();
        }
        let progress = self.renew_next(clock::now());
        self.say_if_held_back(progress == Progress::HeldBack);
        if progress == Progress::Complete {
            self.finish_rollout();
        }
    }

    fn renew_next(&mut self, now: Instant) -> Progress {
        let Some(Rollout { generation, .. }) = &self.rollout else {
            return self.roster.recycle_next(now);
        };
        if !generation.is_forkable() {
            return Progress::Waits;
        }
        let (progress, outdated) = self.roster.advance(generation.id, generation.worker_count, now);
        if let Some((number, process)) = outdated {
            self.dismiss(number, process);
        }
        progress
    }

    fn say_if_held_back(&mut self, is_held_back: bool) {
        if is_held_back && !self.is_held_back {
            tracing::warn!(
                draining = self.roster.draining_count(),
                grace = ?self.generation.config.grace,
                "no fewer old processes drain than there are workers: the next worker is replaced when \
                 one of them has ended, which --grace bounds"
            );
        }
        self.is_held_back = is_held_back;
    }

    fn finish_rollout(&mut self) {
        let Some(Rollout { generation, begun }) = self.rollout.take() else { return };
        let workers = generation.worker_count;
        let old = std::mem::replace(&mut self.generation, generation);
        self.dismiss_template(old);
        self.shrink(workers);
        let seconds = clock::now().saturating_duration_since(begun).as_secs_f64();
        let seconds = (seconds * 1e3).round() / 1e3;
        tracing::info!(workers, seconds, "the rolling restart is complete");
    }

    /// What was to be brought in cannot start.
    pub(super) fn stop_rollout(&mut self, number: usize, end: &End) {
        let Some(Rollout { generation, .. }) = &self.rollout else { return };
        let renewed = self.roster.serving_count(generation.id);
        let what = if number == TEMPLATE {
            "the new template".to_owned()
        } else {
            format!("{}: the successor", name_of(number))
        };
        self.retreat();
        tracing::error!(
            "the rolling restart stopped: {what} {} before it was ready; the old configuration stays in \
             force and the old processes serve on ({renewed} of {} workers were renewed before). Send \
             SIGHUP again when the reason is gone",
            end.how,
            self.generation.worker_count
        );
    }

    /// Ends a rolling restart where it stands.
    fn retreat(&mut self) {
        let Some(Rollout { generation, .. }) = self.rollout.take() else { return };
        for (number, process) in self.roster.retreat(self.generation.id, clock::now()) {
            self.dismiss(number, process);
        }
        self.dismiss_template(generation);
        self.shrink(self.generation.worker_count);
    }

    pub(super) fn dismiss_template(&mut self, generation: Generation) {
        if let Some(template) = generation.template {
            self.dismiss_all(template);
        }
    }

    /// Drains the numbers above.
    fn shrink(&mut self, count: usize) {
        for worker in self.roster.shrink(count) {
            self.dismiss_all(worker);
        }
    }

    /// Drains what serves under this number and kills what starts.
    pub(super) fn dismiss_all(&mut self, worker: Worker) {
        let number = worker.number;
        let (serving, starting) = match worker.standing {
            Standing::Due(_) => (None, None),
            Standing::Starting(process) => (None, Some(process)),
            Standing::Serving(running) => (Some(running), None),
            Standing::Renewing(running, Successor::Due(_)) => (Some(running), None),
            Standing::Renewing(running, Successor::Starting(process)) => {
                (Some(running), Some(process))
            }
        };
        if let Some(process) = starting {
            self.dismiss(number, process);
        }
        match serving {
            // It only waits for orders.
            Some(running) if number == TEMPLATE => self.dismiss(number, running.process),
            Some(running) => self.retire(number, running.process),
            None => {}
        }
    }

    /// A worker asks for a successor.
    pub(super) fn recycle(&mut self, id: u64, reason: &str) {
        if !self.phase.is_up() {
            // It drains soon, and nobody takes its place.
            return;
        }
        for worker in &mut self.roster.workers {
            if let Standing::Serving(running) | Standing::Renewing(running, _) =
                &mut worker.standing
                && running.process.id == id
                && !running.is_recycled
            {
                running.is_recycled = true;
                tracing::warn!("worker {} is replaced: {reason}", worker.number);
            }
        }
    }

    /// SIGTTIN, `by` 1, and SIGTTOU, `by` -1.
    pub(super) fn change_count(&mut self, signal: &str, by: isize) {
        let count = self.generation.worker_count.saturating_add_signed(by);
        if self.phase != Phase::Serving || self.rollout.is_some() {
            let when = "when every worker is ready and no rolling restart is under way";
            tracing::warn!(
                "{signal}: the number of workers can be changed {when}; nothing was changed"
            );
            return;
        }
        if !is_allowed(count) {
            let now = self.generation.worker_count;
            tracing::warn!(
                "{signal}: the number of workers is {now}, its bound; nothing was changed"
            );
            return;
        }
        self.generation.worker_count = count;
        if by > 0 {
            self.roster.workers.push(Worker::new(count, self.generation.id, clock::now()));
        } else {
            self.shrink(count);
        }
        tracing::info!(
            workers = count,
            "{signal}: the number of workers changed until the next SIGHUP"
        );
    }
}

fn is_allowed(worker_count: usize) -> bool {
    let bound = BOUNDS.iter().find(|bound| bound.name == "workers");
    bound.is_some_and(|bound| (bound.low..=bound.high).contains(&(worker_count as u64)))
}
