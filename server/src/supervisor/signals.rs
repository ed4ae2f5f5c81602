//! What signals mean to the supervisor.

use super::control::ToWorker;
use super::{Supervisor, Worker};
use crate::clock;

/// All that are handled: the default action of each would end or suspend the supervisor, and the site
/// with it.
pub(super) const WATCHED: [libc::c_int; 9] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGCHLD,
    libc::SIGHUP,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

impl Supervisor<'_> {
    pub(super) fn handle_signals(&mut self) {
        self.signals.clear();
        if self.signals.take(libc::SIGQUIT) > 0 {
            self.stop_now("SIGQUIT does not wait");
        }
        let interrupts = self.signals.take(libc::SIGINT);
        let name = if interrupts > 0 { "SIGINT" } else { "SIGTERM" };
        if interrupts > 0 || self.signals.take(libc::SIGTERM) > 0 {
            self.begin_stop(name, self.generation.config.shutdown_delay);
        }
        if interrupts > 0 && self.interrupts.is_second(clock::now()) {
            self.stop_now("a second SIGINT came");
        }
        if self.signals.take(libc::SIGHUP) > 0 {
            self.restart();
        }
        for _ in 0..self.signals.take(libc::SIGTTIN) {
            self.change_count("SIGTTIN", 1);
        }
        for _ in 0..self.signals.take(libc::SIGTTOU) {
            self.change_count("SIGTTOU", -1);
        }
        if self.signals.take(libc::SIGUSR1) > 0 {
            self.reopen_logs();
        }
        if self.signals.take(libc::SIGUSR2) > 0 {
            tracing::warn!(
                "SIGUSR2: this version has no upgrade in place yet; nothing was changed"
            );
        }
    }

    /// The supervisor itself has no file open.
    fn reopen_logs(&self) {
        let members = self.roster.workers.iter().flat_map(Worker::processes);
        let leaving = self.roster.leaving.iter().filter(|leaving| leaving.was_ready);
        let processes: Vec<_> = members.chain(leaving.map(|leaving| &leaving.process)).collect();
        for process in &processes {
            // A worker that is gone already is reaped in a moment.
            let _ = process.control.send(&ToWorker::ReopenLogs);
        }
        tracing::info!(
            workers = processes.len(),
            "SIGUSR1: the workers open their log files again"
        );
    }
}
