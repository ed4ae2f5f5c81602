//! Forks what is due: here, or by an order to the template.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::Pid;

use super::control::{ControlSocket, ForkOrder};
use super::roster::{Process, Roster, TEMPLATE, Worker};
use super::words::name_of;
use super::{Fork, Generation, Host, Phase, Supervisor, WorkerSeed};
use crate::board::CellLease;
use crate::clock;
use crate::error::Fault;
use crate::limits;
use crate::sys::process::Parent;
use crate::sys::signals::SignalMask;

/// A process that is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) moment: Instant,
    number: usize,
    /// Which settings it gets.
    generation: u32,
}

impl Supervisor<'_> {
    /// What can be forked, now or later.
    pub(super) fn forks(&self) -> impl Iterator<Item = Due> {
        let templates = self.generations().filter_map(|generation| generation.template.as_ref());
        let is_forkable = |worker: &&Worker| {
            let mut generations = self.generations();
            generations.any(|it| it.id == worker.generation && it.is_forkable())
        };
        let workers = self.roster.workers.iter().filter(is_forkable);
        templates.chain(workers).filter_map(|member| {
            let moment = member.due()?;
            Some(Due { moment, number: member.number, generation: member.generation })
        })
    }

    /// Forks the workers that are due. In a child: what it starts with.
    pub(super) fn fork_due(&mut self, host: &mut dyn Host) -> Result<Option<WorkerSeed>, Fault> {
        if !self.phase.is_up() {
            return Ok(None);
        }
        let now = clock::now();
        let due: Vec<Due> = self.forks().filter(|due| due.moment <= now).collect();
        for due in due {
            if self.phase == Phase::Serving {
                self.voice.give_back();
            }
            let is_ordered = due.number != TEMPLATE
                && self.generations().any(|it| it.id == due.generation && it.template.is_some());
            let forked =
                if is_ordered { self.order(due).map(|()| None) } else { self.fork_here(due, host) };
            match forked {
                Ok(None) => {}
                Ok(Some(seed)) => return Ok(Some(seed)),
                Err(error) if self.phase == Phase::Starting && !is_ordered => {
                    self.listeners.remove_paths();
                    return Err(Fault::start(format!("a worker cannot be forked: {error}")));
                }
                Err(error) => {
                    let Some(member) = self.member(due) else { continue };
                    let delay = member.not_forked(clock::now());
                    let name = name_of(due.number);
                    tracing::error!(%error, ?delay, "{name} cannot be forked; trying again");
                }
            }
        }
        Ok(None)
    }

    fn member(&mut self, due: Due) -> Option<&mut Worker> {
        self.members_mut().find(|it| it.number == due.number && it.generation == due.generation)
    }

    fn fork_here(&mut self, due: Due, host: &mut dyn Host) -> io::Result<Option<WorkerSeed>> {
        let (ours, theirs) = ControlSocket::pair()?;
        let cell = if due.number == TEMPLATE { None } else { self.lease_cell() };
        let parent = Parent::of_children();
        let mask = SignalMask::block_all();
        let forked = host.fork();
        if !matches!(forked, Ok(Fork::Child)) {
            mask.restore();
        }
        match forked? {
            Fork::Parent(number) => {
                let pid = Pid::from_raw(number)
                    .ok_or_else(|| io::Error::other(format!("fork returned {number}")))?;
                self.forked(due, Some(pid), ours, cell);
                Ok(None)
            }
            Fork::Child => {
                let settings = self.generations().find(|it| it.id == due.generation);
                let Generation { config, machine, .. } = settings.unwrap_or(&self.generation);
                let (config, machine) = (Arc::clone(config), machine.clone());
                // The other processes' sockets must not live on here: their end of file is the sign
                // that the supervisor died.
                self.roster = Roster::default();
                self.generations_mut().for_each(|generation| generation.template = None);
                drop(ours);
                self.signals.restore();
                Ok(Some(WorkerSeed {
                    number: due.number,
                    control: theirs,
                    parent,
                    mask,
                    voice: self.voice.clone(),
                    listeners: std::mem::take(&mut self.listeners.sockets),
                    cell: cell.as_ref().map(CellLease::worker_cell),
                    board: Arc::clone(&self.board),
                    machine,
                    config,
                }))
            }
        }
    }

    /// Lets the template fork it. A template that dies over it lets go of the socket, and that end of
    /// file is the worker's end.
    fn order(&mut self, due: Due) -> io::Result<()> {
        let (ours, theirs) = ControlSocket::pair()?;
        let cell = self.lease_cell();
        let template = self
            .generations()
            .find(|generation| generation.id == due.generation)
            .and_then(|generation| generation.template.as_ref()?.running())
            .ok_or_else(|| io::Error::other("the template is gone"))?;
        let order = ForkOrder { number: due.number, cell: cell.as_ref().map(CellLease::index) };
        template.process.control.send_order(order, &theirs)?;
        self.forked(due, None, ours, cell);
        Ok(())
    }

    /// A place on the board for the next process.
    fn lease_cell(&mut self) -> Option<CellLease> {
        let lease = self.board.lease();
        if lease.is_none() && !std::mem::replace(&mut self.board_was_full, true) {
            tracing::warn!(
                "more than {} worker processes at once: those that come now accept connections \
                 without regard to the others until some have ended",
                limits::BOARD_CELL_COUNT
            );
        }
        lease
    }

    fn forked(
        &mut self,
        due: Due,
        pid: Option<Pid>,
        control: ControlSocket,
        cell: Option<CellLease>,
    ) {
        self.process_count += 1;
        let process = Process {
            id: self.process_count,
            pid,
            control,
            is_deaf: false,
            _cell: cell,
            is_late: false,
            started: clock::now(),
            generation: due.generation,
        };
        if let Some(member) = self.member(due) {
            member.forked(process);
        }
    }
}
