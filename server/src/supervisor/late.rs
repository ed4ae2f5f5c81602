//! Processes that take long to start: nothing else would say what is waited for.

use std::time::Instant;

use rustix::process::Pid;

use super::roster::Worker;
use super::words::name_of;
use super::{Supervisor, TEMPLATE};
use crate::limits;

impl Supervisor<'_> {
    /// When one that is being started will have taken long.
    pub(super) fn late_starts(&self) -> impl Iterator<Item = Instant> {
        self.members().filter_map(Worker::late_at)
    }

    /// Names who is waited for, once.
    pub(super) fn say_who_is_late(&mut self, now: Instant) {
        let is_rolling = self.rollout.is_some();
        for member in self.members_mut() {
            if member.is_late(now) {
                say_late(member, is_rolling);
            }
        }
    }
}

fn say_late(member: &Worker, is_rolling: bool) {
    let pid = member.starting().and_then(|process| process.pid).map(Pid::as_raw_pid);
    let successor = if member.successor().is_some() { ": the successor" } else { "" };
    let name = name_of(member.number);
    let time = limits::START_WARNING;
    let who_waits = if is_rolling {
        "the rolling restart waits, and what serves serves on; send SIGHUP to begin anew"
    } else {
        "it is waited for"
    };
    if pid.is_none() {
        tracing::warn!(
            "{name}{successor} was ordered from the template {time:?} ago and has not said its process \
             id: does an at-fork hook of the application hang? {who_waits}"
        );
    } else if member.number == TEMPLATE {
        tracing::warn!(
            pid,
            "{name} is not ready {time:?} after its start: does the import of the application hang? \
             {who_waits}"
        );
    } else {
        tracing::warn!(
            pid,
            "{name}{successor} is not ready {time:?} after its start: does the import of the \
             application, or a hook, hang? {who_waits}"
        );
    }
}
