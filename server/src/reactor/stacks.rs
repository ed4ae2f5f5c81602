//! Why nothing moves: one dump of the stacks at a time, for the requests that are overdue and for an
//! interpreter lock that is not let go, and the lines that say so.
//!
//! The dump comes through a pipe without an end mark. It is taken as complete when it has not grown
//! for a while.

use std::time::{Duration, Instant};

use super::Settings;
use super::timers::TICK;
use crate::exchange::Exchange;
use crate::log;
use crate::pulse::Pulse;
use crate::stacks::{NoStacks, StackSource, Thread, describe, sections, signal_name};
use crate::sync::Arc;

/// A dump that has not grown for so long is complete. **Why**: its writer may be without a CPU for
/// some time slices in between.
const QUIET: Duration = Duration::from_millis(200);

/// A dump that is not complete by then is taken as it is.
const DUMP_WAIT_MAX: Duration = Duration::from_secs(2);

/// What the bridge gives, as far as an option asks for it.
#[derive(Debug, Default)]
pub struct Insight {
    /// Of `--request-timeout` and `--stall-timeout`.
    pub stacks: Option<StackSource>,
    /// Of `--stall-timeout`.
    pub pulse: Option<Arc<Pulse>>,
}

/// Looks at each tick.
#[derive(Debug)]
pub(super) struct Stacks {
    insight: Insight,
    dump: Option<Dump>,
    /// For the next dump.
    overdue: Vec<Arc<Exchange>>,
    /// The stall that lasts has its dump.
    stall_is_noted: bool,
}

/// One that was asked for.
#[derive(Debug)]
struct Dump {
    asked: Instant,
    /// When it was last found to be longer.
    grown: Instant,
    text: Vec<u8>,
    /// When it was asked for.
    threads: Result<Vec<Thread>, NoStacks>,
    overdue: Vec<Arc<Exchange>>,
    /// How long the lock had been held.
    stall: Option<Duration>,
}

impl Stacks {
    pub(super) fn new(insight: Insight) -> Self {
        Self { insight, dump: None, overdue: Vec::new(), stall_is_noted: false }
    }

    /// This request's thread is to be found.
    pub(super) fn want_for(&mut self, exchange: Arc<Exchange>) {
        self.overdue.push(exchange);
    }

    /// When to look next, if not at the next tick that there is anyway.
    pub(super) fn next_look(&self, now: Instant) -> Option<Instant> {
        (self.dump.is_some() || !self.overdue.is_empty()).then(|| now + TICK)
    }

    /// Once a tick.
    pub(super) fn look(&mut self, now: Instant, settings: &Settings) {
        if let Some(dump) = &mut self.dump {
            if !dump.is_complete(now, self.insight.stacks.as_mut()) {
                return;
            }
            self.report(settings);
        }
        let stall = self.look_at_lock(now);
        if stall.is_some() || !self.overdue.is_empty() {
            self.begin(now, stall);
        }
    }

    /// The reactor ends: says what is known.
    pub(super) fn finish(&mut self, now: Instant, settings: &Settings) {
        if self.dump.is_none() && !self.overdue.is_empty() {
            self.begin(now, None);
        }
        self.report(settings);
    }

    /// A stall that begins here: how long the lock has been held.
    fn look_at_lock(&mut self, now: Instant) -> Option<Duration> {
        let pulse = self.insight.pulse.as_ref()?;
        if let Some(ended) = pulse.take_ended() {
            // Over before anybody looked: there is nothing to be seen any more.
            let unseen = if std::mem::take(&mut self.stall_is_noted) {
                ""
            } else {
                ", too short over --stall-timeout for its stacks to be taken"
            };
            let seconds = ended.as_secs_f64();
            log::natively(|| {
                tracing::warn!(
                    "the interpreter lock moves again: it was held for {seconds:.1} s{unseen}"
                );
            });
        }
        let stall = pulse.stalled(now)?;
        (!std::mem::replace(&mut self.stall_is_noted, true)).then_some(stall)
    }

    fn begin(&mut self, now: Instant, stall: Option<Duration>) {
        let threads = match &mut self.insight.stacks {
            Some(source) => source.ask(),
            None => Err(NoStacks::NotRaised),
        };
        let overdue = std::mem::take(&mut self.overdue);
        self.dump =
            Some(Dump { asked: now, grown: now, text: Vec::new(), threads, overdue, stall });
    }

    fn report(&mut self, settings: &Settings) {
        let Some(mut dump) = self.dump.take() else { return };
        if let Some(source) = &mut self.insight.stacks {
            source.read(&mut dump.text);
        }
        // Not through Python's logging: what is told may be what keeps its handlers from running.
        log::natively(|| dump.report(settings));
    }
}

impl Dump {
    fn is_complete(&mut self, now: Instant, source: Option<&mut StackSource>) -> bool {
        let (Some(source), Ok(_)) = (source, &self.threads) else { return true };
        let before = self.text.len();
        source.read(&mut self.text);
        if self.text.len() > before {
            self.grown = now;
        }
        let is_quiet = now.saturating_duration_since(self.grown) >= QUIET;
        !self.text.is_empty() && is_quiet
            || now.saturating_duration_since(self.asked) >= DUMP_WAIT_MAX
    }

    fn report(&self, settings: &Settings) {
        let sections = sections(&self.text);
        let threads = self.threads.as_deref().unwrap_or_default();
        let all = match self.threads {
            Ok(_) if sections.is_empty() => {
                format!("no stacks came: does every thread block {}?", signal_name())
            }
            Ok(_) => describe(&sections, threads),
            Err(NoStacks::TakenOver) => {
                format!("no stacks: the application has taken over {}", signal_name())
            }
            Err(NoStacks::NotRaised) => "no stacks: they cannot be asked for".to_owned(),
        };
        if let Some(stall) = self.stall {
            tracing::warn!(
                "the interpreter lock has been held for {:.1} s without a pause (--stall-timeout {}); \
                 the worker lives on, and what needs the lock waits. The stacks, most recent call \
                 first:\n{all}",
                stall.as_secs_f64(),
                settings.stall_timeout.unwrap_or_default().as_secs_f64()
            );
        }
        for exchange in &self.overdue {
            let line = exchange.request_line();
            let limit = settings.request_timeout.unwrap_or_default().as_secs_f64();
            let said =
                format!("{line}: no response within --request-timeout {limit} s, answered 504");
            let runs = |thread: &&Thread| {
                thread.exchange.as_ref().is_some_and(|other| Arc::ptr_eq(other, exchange))
            };
            let found = threads.iter().find(runs);
            let stack = found
                .and_then(|thread| sections.iter().find(|section| section.ident == thread.ident));
            match (found, stack) {
                (Some(thread), Some(section)) => tracing::error!(
                    "{said}; {} runs it, most recent call first:\n{}",
                    thread.name,
                    section.frames.trim_end()
                ),
                (None, _) if self.threads.is_ok() => {
                    tracing::error!("{said}; it ended while its stack was asked for");
                }
                (Some(_) | None, _) => tracing::error!("{said}; all threads:\n{all}"),
            }
        }
    }
}
