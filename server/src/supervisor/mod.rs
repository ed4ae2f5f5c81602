//! The supervisor: one thread for its whole life. It binds, forks workers before anything of the
//! application is imported, waits for their *ready*, replaces those that die, renews them on SIGHUP,
//! and ends them.
//!
//! | state | event | next |
//! |---|---|---|
//! | Starting | every worker is ready | Serving, the banner |
//! | Starting | a process ends before its *ready* | Stopping, exit code 1 |
//! | Starting, Serving | a worker ends | the same: another is due, later after short lives |
//! | Starting, Serving | more short lives than `--respawn-max`, and no worker settled | Stopping, exit code 1 |
//! | Serving | SIGHUP | Serving: a rolling restart, see `rollout` |
//! | Starting, Serving | SIGTERM, SIGINT, and workers serve | Delaying for `--shutdown-delay`: they serve on and say 503 to /ready |
//! | Starting, Serving | SIGTERM, SIGINT, and no worker serves, or there is no delay | Stopping |
//! | Delaying | the delay is over | Stopping: workers drain until the grace is over |
//! | any | SIGQUIT, or a second SIGINT | Stopping, and everything is killed |
//! | Delaying, Stopping | no process is left | the end |
//!
//! With `--preload` the workers are forked by a *template*, a child that has imported the application.
//! It hands each worker over by leaving it an orphan, which the kernel gives to the supervisor.

mod budget;
pub mod control;
mod ends;
mod fork;
mod kept;
mod late;
mod listen;
mod pid_file;
mod rollout;
mod roster;
mod signals;
mod stop;
mod voice;
mod words;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, waitid};

pub use listen::{Listeners, Sockets};
pub use pid_file::PidFile;
pub use roster::TEMPLATE;
pub use voice::Voice;
pub use words::banner;

use crate::board::{Board, WorkerCell};
use crate::clock;
use crate::config::{Config, Interpreter};
use crate::error::Fault;
use crate::limits;
use crate::reactor::IoKind;
use crate::sys::process::Parent;
use crate::sys::signals::{SignalMask, SignalWatch};
use budget::Budget;
use control::{ControlSocket, Received, ToSupervisor};
use roster::{Process, Readiness, Roster, Worker};
use words::name_of;

/// A worker's exit code for "the application could not be loaded; the reason is printed".
pub const EXIT_NOT_LOADED: u8 = 3;

/// The same, and another worker prints the reason.
pub const EXIT_NOT_LOADED_SILENT: u8 = 4;

/// Messages that are taken from one process at a look; the rest waits for the next. It says three in
/// its whole life and asks for a successor now and then.
const MESSAGES_PER_LOOK: usize = 64;

/// A SIGINT this soon after the first is the same key stroke: a terminal signals the whole group, and
/// a wrapper (`timeout`, a shell script) passes its own on.
const INTERRUPT_ECHO_MAX: Duration = Duration::from_millis(300);

/// Tells a second Ctrl-C, which means "at once", from an echo of the first.
#[derive(Debug, Default)]
pub struct Interrupts {
    first: Option<Instant>,
}

impl Interrupts {
    /// SIGINT came, at this moment. True: it is a second one.
    pub fn is_second(&mut self, now: Instant) -> bool {
        let first = *self.first.get_or_insert(now);
        now.saturating_duration_since(first) >= INTERRUPT_ECHO_MAX
    }
}

/// Which side of a fork this is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fork {
    /// The old process; the child's id.
    Parent(i32),
    /// The new process.
    Child,
}

/// Forks the way the interpreter wants it, so that its hooks run.
pub trait Host {
    /// Forks this process, which has one thread.
    ///
    /// # Errors
    /// Out of processes or memory.
    fn fork(&mut self) -> io::Result<Fork>;
}

/// What was found out before the first fork.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Which kernel interface the workers use.
    pub io: IoKind,
    /// Connections per worker, as far as NOFILE allows.
    pub connections_max: usize,
}

impl Machine {
    /// For the banner and `doctor`.
    #[must_use]
    pub fn io_name(&self) -> &'static str {
        match self.io {
            IoKind::Uring => "uring",
            IoKind::Epoll => "epoll",
        }
    }
}

/// What a new worker starts with, or the template, which hands it on to the workers it forks.
#[derive(Debug)]
pub struct WorkerSeed {
    /// From 1, or [`TEMPLATE`].
    pub number: usize,
    /// To the supervisor.
    pub control: ControlSocket,
    /// The supervisor: its end ends a worker that cannot look at `control` yet.
    pub parent: Parent,
    /// What was not blocked before the fork; to be restored when the child has handlers of its own.
    pub mask: SignalMask,
    /// Whoever takes it says why the application cannot be loaded.
    pub voice: Voice,
    /// Where to accept.
    pub listeners: Sockets,
    /// Its place beside the other workers; `None`: all were taken, or it is the template.
    pub cell: Option<WorkerCell>,
    /// Where the template finds the places of the workers it forks.
    pub board: Arc<Board>,
    /// What was found out.
    pub machine: Machine,
    /// The options as they were when it was forked.
    pub config: Arc<Config>,
}

/// Settings, and what workers with these settings are forked from.
#[derive(Debug)]
struct Generation {
    /// Never used twice.
    id: u32,
    config: Arc<Config>,
    /// SIGTTIN and SIGTTOU change it.
    worker_count: usize,
    machine: Machine,
    /// With `--preload`: its number is [`TEMPLATE`].
    template: Option<Worker>,
}

impl Generation {
    fn new(id: u32, config: Arc<Config>, machine: Machine, now: Instant) -> Self {
        let template = config.preload.then(|| Worker::new(TEMPLATE, id, now));
        Self { id, worker_count: config.worker_count, config, machine, template }
    }

    /// Whether workers can be forked: the template, if there is one, has imported the application.
    fn is_forkable(&self) -> bool {
        self.template.as_ref().is_none_or(|template| template.running().is_some())
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Starting,
    Serving,
    /// `--shutdown-delay` runs.
    Delaying {
        until: Instant,
    },
    /// Every process is on its way out.
    Stopping,
}

impl Phase {
    /// Processes that end are replaced.
    fn is_up(self) -> bool {
        match self {
            Self::Starting | Self::Serving => true,
            Self::Delaying { .. } | Self::Stopping => false,
        }
    }
}

struct Supervisor<'run> {
    interpreter: &'run Interpreter,
    /// The configuration as it would be at a start now.
    reload: &'run mut dyn FnMut() -> Result<Config, Fault>,
    listeners: Listeners,
    signals: SignalWatch,
    voice: Voice,
    board: Arc<Board>,
    /// A process found no place on the board, and that was said.
    board_was_full: bool,
    /// What is in force.
    generation: Generation,
    /// What a rolling restart brings in.
    rollout: Option<rollout::Rollout>,
    /// Too many old processes drain for another replacement, and that was said.
    is_held_back: bool,
    /// SIGHUP came while the workers were starting.
    is_restart_wanted: bool,
    roster: Roster,
    budget: Budget,
    phase: Phase,
    /// The application as the last process that became ready found it.
    app: String,
    exit_code: u8,
    interrupts: Interrupts,
    /// It was up once: its end is news.
    has_served: bool,
    process_count: u64,
    generation_count: u32,
}

/// Serves until told to stop, and returns the exit code. `body` runs in each child and is to end it; if
/// it returns, so does this, with the child's exit code. `reload` reads the configuration anew.
///
/// # Errors
/// Start: the first fork failed, or signals cannot be handled.
pub fn run(
    config: &Arc<Config>,
    interpreter: &Interpreter,
    machine: Machine,
    listeners: Listeners,
    host: &mut dyn Host,
    reload: &mut dyn FnMut() -> Result<Config, Fault>,
    body: &mut dyn FnMut(WorkerSeed) -> u8,
) -> Result<u8, Fault> {
    let signals = SignalWatch::install(&signals::WATCHED)
        .map_err(|error| Fault::start(format!("signals cannot be handled: {error}")))?;
    let voice = Voice::new().map_err(|error| Fault::start(error.to_string()))?;
    let board = Board::new(limits::BOARD_CELL_COUNT)
        .map_err(|error| Fault::start(format!("no memory to share with workers: {error}")))?;
    if config.preload {
        adopt_orphans().map_err(|error| Fault::start(format!("--preload: {error}")))?;
    }
    let now = clock::now();
    let mut supervisor = Supervisor {
        interpreter,
        reload,
        listeners,
        signals,
        voice,
        board,
        board_was_full: false,
        generation: Generation::new(1, Arc::clone(config), machine, now),
        rollout: None,
        is_held_back: false,
        is_restart_wanted: false,
        roster: Roster::new(config.worker_count, 1, now),
        budget: Budget::default(),
        phase: Phase::Starting,
        app: String::new(),
        exit_code: 0,
        interrupts: Interrupts::default(),
        has_served: false,
        process_count: 0,
        generation_count: 1,
    };
    loop {
        if let Some(seed) = supervisor.fork_due(host)? {
            // The child: nothing of the supervisor's is left but what the seed holds.
            return Ok(body(seed));
        }
        if supervisor.is_over() {
            break;
        }
        supervisor.wait();
        supervisor.handle_signals();
        // Asked for on each pass and not only after SIGCHLD: it costs one call and misses nothing.
        supervisor.reap();
        supervisor.handle_messages();
        supervisor.handle_time();
        supervisor.renew();
    }
    supervisor.listeners.remove_paths();
    supervisor.signals.restore();
    if supervisor.has_served {
        tracing::info!(code = supervisor.exit_code, "stopped");
    }
    Ok(supervisor.exit_code)
}

/// From now on a descendant whose parent has ended becomes a child of this process, to be waited for.
fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

impl Supervisor<'_> {
    fn is_over(&self) -> bool {
        !self.phase.is_up() && self.roster.is_over()
    }

    /// Sleeps until a signal, a message or the next deadline.
    fn wait(&self) {
        let now = clock::now();
        let timeout = self.next_deadline().map(|deadline| {
            let left = deadline.saturating_duration_since(now);
            // A day is a wait like any other; seconds fit.
            Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        let mut ready = vec![PollFd::new(&self.signals, PollFlags::IN)];
        for process in self.processes().filter(|process| !process.is_deaf) {
            ready.push(PollFd::new(&process.control, PollFlags::IN));
        }
        // EINTR is a signal, which is looked at next in any case.
        let _ = poll(&mut ready, timeout.as_ref());
    }

    fn next_deadline(&self) -> Option<Instant> {
        let leaving = self.roster.leaving.iter().filter_map(|leaving| leaving.deadline);
        let phase = match self.phase {
            Phase::Delaying { until } => Some(until),
            Phase::Starting | Phase::Serving | Phase::Stopping => None,
        };
        let forks = self.forks().map(|fork| fork.moment).filter(|_| self.phase.is_up());
        leaving.chain(phase).chain(forks).chain(self.late_starts()).min()
    }

    /// The settings in force, and those that are being brought in.
    fn generations(&self) -> impl Iterator<Item = &Generation> {
        let next = self.rollout.as_ref().map(|rollout| &rollout.generation);
        std::iter::once(&self.generation).chain(next)
    }

    fn generations_mut(&mut self) -> impl Iterator<Item = &mut Generation> {
        let next = self.rollout.as_mut().map(|rollout| &mut rollout.generation);
        std::iter::once(&mut self.generation).chain(next)
    }

    /// The same to look at.
    fn members(&self) -> impl Iterator<Item = &Worker> {
        let templates = self.generations().filter_map(|generation| generation.template.as_ref());
        self.roster.workers.iter().chain(templates)
    }

    /// Every worker that is to be, and the templates.
    fn members_mut(&mut self) -> impl Iterator<Item = &mut Worker> {
        let next = self.rollout.as_mut().map(|rollout| &mut rollout.generation);
        let templates = std::iter::once(&mut self.generation)
            .chain(next)
            .filter_map(|generation| generation.template.as_mut());
        self.roster.workers.iter_mut().chain(templates)
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        let leaving = self.roster.leaving.iter().map(|leaving| &leaving.process);
        self.members().flat_map(Worker::processes).chain(leaving)
    }

    fn process_mut(&mut self, id: u64) -> Option<&mut Process> {
        if let Some(index) = self.roster.leaving.iter().position(|it| it.process.id == id) {
            return Some(&mut self.roster.leaving[index].process);
        }
        self.members_mut().flat_map(Worker::processes_mut).find(|process| process.id == id)
    }

    fn handle_messages(&mut self) {
        let talking = self.processes().filter(|process| !process.is_deaf);
        let ids: Vec<u64> = talking.map(|process| process.id).collect();
        for id in ids {
            let mut looks = 0..MESSAGES_PER_LOOK;
            while looks.next().is_some() && self.handle_message(id) {}
        }
    }

    /// False: it says no more for now.
    fn handle_message(&mut self, id: u64) -> bool {
        let Some(process) = self.process_mut(id) else { return false };
        match process.control.receive() {
            Received::Message(ToSupervisor::Born { pid }) => self.was_born(id, pid),
            Received::Message(ToSupervisor::Ready { app }) => self.became_ready(id, app),
            Received::Message(ToSupervisor::Recycle { reason }) => self.recycle(id, &reason),
            Received::Closed if process.pid.is_none() => {
                self.ended_unborn(id);
                return false;
            }
            Received::Closed => {
                // Its end is seen by `reap`.
                process.is_deaf = true;
                return false;
            }
            Received::Nothing => return false,
        }
        true
    }

    /// A worker that the template forked says who it is. What is not a child of ours is not believed:
    /// it would be killed in a worker's place.
    fn was_born(&mut self, id: u64, pid: i32) {
        let Some(pid) = Pid::from_raw(pid).filter(|pid| is_child(*pid)) else {
            tracing::error!(
                pid,
                "bug: a worker says that it is a process that is no child of ours"
            );
            return;
        };
        let was_given_up =
            self.roster.leaving.iter().any(|it| it.process.id == id && it.deadline.is_none());
        if let Some(process) = self.process_mut(id)
            && process.pid.is_none()
        {
            process.pid = Some(pid);
            if was_given_up {
                kill(pid);
            }
        }
    }

    fn successor_pid(&self, id: u64) -> Option<Pid> {
        let mut successors = self.members().filter_map(Worker::successor);
        successors.find(|successor| successor.id == id)?.pid
    }

    fn became_ready(&mut self, id: u64, app: String) {
        if self.successor_pid(id).is_some_and(has_ended) {
            // The old process does not make room for a dead one. `reap` says how it ended.
            return;
        }
        let now = clock::now();
        let found = self.members_mut().find_map(|member| {
            let readiness = member.became_ready(id, now)?;
            let process = &member.running()?.process;
            Some((member.number, readiness, process.pid, process.started))
        });
        let Some((number, readiness, pid, started)) = found else { return };
        let seconds = now.saturating_duration_since(started).as_secs_f64();
        let seconds = (seconds * 1e3).round() / 1e3;
        let pid = pid.map(Pid::as_raw_pid);
        tracing::info!(pid, seconds, "{} is ready", name_of(number));
        self.app = app;
        match readiness {
            Readiness::First => {}
            Readiness::Succeeds(old) => self.retire(number, old),
        }
        let count = self.generation.worker_count;
        if self.phase == Phase::Starting && self.roster.is_serving_in_full(count) {
            self.phase = Phase::Serving;
            self.has_served = true;
            let Generation { config, machine, .. } = &self.generation;
            banner(config, self.interpreter, machine, &self.app, &self.listeners);
        }
    }
}

fn is_child(pid: Pid) -> bool {
    // ECHILD is what is asked for.
    look_at(pid).is_ok()
}

/// Whether this child has ended; it is still to be waited for.
fn has_ended(pid: Pid) -> bool {
    look_at(pid).is_ok_and(|status| status.is_some())
}

/// Takes nothing.
fn look_at(pid: Pid) -> rustix::io::Result<Option<WaitIdStatus>> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), look)
}

fn kill(pid: Pid) {
    // ESRCH cannot be: it was not waited for. EPERM: it changed its user to one above ours.
    let _ = rustix::process::kill_process(pid, Signal::KILL);
}
