//! The supervisor: one thread for its whole life. It binds, forks workers before anything of the
//! application is imported, waits for their *ready*, replaces those that die, and ends them.
//!
//! | state | event | next |
//! |---|---|---|
//! | Starting | every worker is ready | Serving, the banner |
//! | Starting | a worker ends before its *ready* | Stopping, with its exit code |
//! | Serving | a worker ends | Serving: another is due, later after short lives |
//! | Starting, Serving | SIGTERM, SIGINT | Stopping: workers drain until the grace is over |
//! | Stopping | no worker is left | the end |
//! | Stopping | the grace is over, or a second SIGINT | workers are killed and named |

pub mod control;
mod listen;
mod pid_file;
mod roster;
mod voice;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

pub use listen::{Listeners, Sockets};
pub use pid_file::PidFile;
pub use voice::Voice;

use crate::board::{Board, CellLease, WorkerCell};
use crate::clock;
use crate::config::{Config, Interpreter};
use crate::error::Fault;
use crate::limits;
use crate::reactor::IoKind;
use crate::sys::process::Parent;
use crate::sys::signals::{SignalMask, SignalWatch};
use control::{ControlSocket, Received, ToSupervisor, ToWorker};
use roster::{Process, Standing, Worker};

/// A worker's exit code for "the application could not be loaded; the reason is printed".
pub const EXIT_NOT_LOADED: u8 = 3;

/// The same, and another worker prints the reason.
pub const EXIT_NOT_LOADED_SILENT: u8 = 4;

/// Of the grace, what the supervisor keeps for itself: a worker that overruns says what it left
/// before the supervisor kills it.
const GRACE_MARGIN_MAX: Duration = Duration::from_secs(1);

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

/// What a new worker starts with.
#[derive(Debug)]
pub struct WorkerSeed {
    /// From 1.
    pub number: usize,
    /// To the supervisor.
    pub control: ControlSocket,
    /// The supervisor: its end ends a worker that cannot look at `control` yet.
    pub parent: Parent,
    /// Whoever takes it says why the application cannot be loaded.
    pub voice: Voice,
    /// Where to accept.
    pub listeners: Sockets,
    /// Its place beside the other workers; `None`: all were taken.
    pub cell: Option<WorkerCell>,
    /// What was found out.
    pub machine: Machine,
}

/// How it ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Starting,
    Serving,
    Stopping { deadline: Instant },
}

struct Supervisor<'run> {
    config: &'run Config,
    interpreter: &'run Interpreter,
    machine: Machine,
    listeners: Listeners,
    signals: SignalWatch,
    voice: Voice,
    board: Arc<Board>,
    /// A process found no place on the board, and that was said.
    board_was_full: bool,
    workers: Vec<Worker>,
    phase: Phase,
    /// The application as the first ready worker found it.
    app: String,
    exit_code: u8,
    interrupts: Interrupts,
    /// It was up once: its end is news.
    has_served: bool,
}

/// Serves until told to stop, and returns the exit code. `body` runs in each worker's process and is
/// to end it; if it returns, so does this, with the worker's exit code.
///
/// # Errors
/// Start: the first fork failed, or signals cannot be handled.
pub fn run(
    config: &Config,
    interpreter: &Interpreter,
    machine: Machine,
    listeners: Listeners,
    host: &mut dyn Host,
    body: &mut dyn FnMut(WorkerSeed) -> u8,
) -> Result<u8, Fault> {
    let mut watched = vec![libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGCHLD];
    watched.extend(UNUSED_SIGNALS.map(|(signal, _)| signal));
    let signals = SignalWatch::install(&watched)
        .map_err(|error| Fault::start(format!("signals cannot be handled: {error}")))?;
    let now = clock::now();
    let mut supervisor = Supervisor {
        config,
        interpreter,
        machine,
        listeners,
        signals,
        voice: Voice::new().map_err(|error| Fault::start(error.to_string()))?,
        board: Board::new(limits::BOARD_CELL_COUNT)
            .map_err(|error| Fault::start(format!("no memory to share with workers: {error}")))?,
        board_was_full: false,
        workers: (1..=config.worker_count).map(|number| Worker::new(number, now)).collect(),
        phase: Phase::Starting,
        app: String::new(),
        exit_code: 0,
        interrupts: Interrupts::default(),
        has_served: false,
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
        supervisor.handle_messages();
        supervisor.handle_time();
    }
    supervisor.listeners.remove_paths();
    supervisor.signals.restore();
    if supervisor.has_served {
        tracing::info!(code = supervisor.exit_code, "stopped");
    }
    Ok(supervisor.exit_code)
}

impl Supervisor<'_> {
    /// Forks the workers that are due. In a child: what it starts with.
    fn fork_due(&mut self, host: &mut dyn Host) -> Result<Option<WorkerSeed>, Fault> {
        if matches!(self.phase, Phase::Stopping { .. }) {
            return Ok(None);
        }
        for index in 0..self.workers.len() {
            let now = clock::now();
            match self.workers[index].standing {
                Standing::Due(moment) if moment <= now => {}
                Standing::Due(_) | Standing::Starting(_) | Standing::Ready(..) | Standing::Gone => {
                    continue;
                }
            }
            match self.fork_one(index, host, now) {
                Ok(None) => {}
                Ok(Some(seed)) => return Ok(Some(seed)),
                Err(error) if self.phase == Phase::Starting => {
                    self.listeners.remove_paths();
                    return Err(Fault::start(format!("a worker cannot be forked: {error}")));
                }
                Err(error) => {
                    let delay = self.workers[index].ended(now);
                    tracing::error!(%error, ?delay, "a worker cannot be forked; trying again");
                }
            }
        }
        Ok(None)
    }

    fn fork_one(
        &mut self,
        index: usize,
        host: &mut dyn Host,
        now: Instant,
    ) -> io::Result<Option<WorkerSeed>> {
        let (ours, theirs) = ControlSocket::pair()?;
        if self.phase == Phase::Serving {
            self.voice.give_back();
        }
        let cell = self.lease_cell();
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
                let process = Process { pid, control: ours, _cell: cell, started: now };
                self.workers[index].standing = Standing::Starting(process);
                Ok(None)
            }
            Fork::Child => {
                let number = self.workers[index].number;
                // The other workers' sockets must not live on here: their end of file is the sign
                // that the supervisor died.
                self.workers.clear();
                drop(ours);
                self.signals.restore();
                mask.restore();
                Ok(Some(WorkerSeed {
                    number,
                    control: theirs,
                    parent,
                    voice: self.voice.clone(),
                    listeners: std::mem::take(&mut self.listeners.sockets),
                    cell: cell.as_ref().map(CellLease::worker_cell),
                    machine: self.machine.clone(),
                }))
            }
        }
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

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. })
            && self.workers.iter().all(|worker| worker.process().is_none())
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
        for process in self.workers.iter().filter_map(Worker::process) {
            ready.push(PollFd::new(&process.control, PollFlags::IN));
        }
        // EINTR is a signal, which is looked at next in any case.
        let _ = poll(&mut ready, timeout.as_ref());
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Stopping { deadline } => Some(deadline),
            Phase::Starting | Phase::Serving => self
                .workers
                .iter()
                .filter_map(|worker| match worker.standing {
                    Standing::Due(moment) => Some(moment),
                    Standing::Starting(_) | Standing::Ready(..) | Standing::Gone => None,
                })
                .min(),
        }
    }

    fn handle_signals(&mut self) {
        self.signals.clear();
        for (signal, text) in UNUSED_SIGNALS {
            if self.signals.take(signal) > 0 {
                tracing::warn!("{text}; nothing was changed");
            }
        }
        if self.signals.take(libc::SIGQUIT) > 0 {
            self.begin_stop("SIGQUIT");
            self.kill_all("SIGQUIT does not wait");
        }
        let interrupts = self.signals.take(libc::SIGINT);
        let name = if interrupts > 0 { "SIGINT" } else { "SIGTERM" };
        if interrupts > 0 || self.signals.take(libc::SIGTERM) > 0 {
            self.begin_stop(name);
        }
        if interrupts > 0 && self.interrupts.is_second(clock::now()) {
            self.kill_all("a second SIGINT came");
        }
        // Asked for on each pass and not only after SIGCHLD: it costs one call and misses nothing.
        self.reap();
    }

    fn begin_stop(&mut self, reason: &str) {
        if matches!(self.phase, Phase::Stopping { .. }) {
            return;
        }
        let grace = self.config.grace;
        self.phase = Phase::Stopping { deadline: clock::now() + grace };
        if self.has_served {
            tracing::info!(grace = ?grace, "stopping: {reason}");
        }
        // A connection that comes now is refused and does not wait for nobody: workers close theirs.
        self.listeners.sockets.clear();
        let worker_grace = grace - GRACE_MARGIN_MAX.min(grace / 10);
        for worker in &mut self.workers {
            match &worker.standing {
                Standing::Ready(process, _) => {
                    // A worker that is gone already is reaped in a moment.
                    let _ = process.control.send(&ToWorker::Drain { grace: worker_grace });
                }
                // It has accepted nothing, and an import cannot be asked to end.
                Standing::Starting(process) => kill(process.pid),
                Standing::Due(_) => worker.standing = Standing::Gone,
                Standing::Gone => {}
            }
        }
    }

    fn handle_time(&mut self) {
        if let Phase::Stopping { deadline } = self.phase
            && clock::now() >= deadline
        {
            self.kill_all("the grace is over");
        }
    }

    fn kill_all(&mut self, reason: &str) {
        for worker in &self.workers {
            if let Some(process) = worker.process() {
                let pid = process.pid.as_raw_pid();
                tracing::error!(pid, "worker {} is killed: {reason}", worker.number);
                kill(process.pid);
                self.exit_code = self.exit_code.max(1);
            }
        }
        // What is left now ends at once; not to be killed once a pass.
        if let Phase::Stopping { deadline } = &mut self.phase {
            *deadline += Duration::from_secs(1);
        }
    }

    fn handle_messages(&mut self) {
        for index in 0..self.workers.len() {
            let Some(process) = self.workers[index].process() else { continue };
            match process.control.receive() {
                Received::Message(ToSupervisor::Ready { app }) => self.became_ready(index, app),
                Received::Message(ToSupervisor::Recycle { reason }) => {
                    tracing::warn!("worker {} is replaced: {reason}", self.workers[index].number);
                }
                // Its end is seen by `reap`.
                Received::Nothing | Received::Closed => {}
            }
        }
    }

    fn became_ready(&mut self, index: usize, app: String) {
        let now = clock::now();
        let worker = &mut self.workers[index];
        if !worker.became_ready(now) {
            return;
        }
        if let Some(process) = worker.process() {
            let seconds = now.saturating_duration_since(process.started).as_secs_f64();
            let seconds = (seconds * 1e3).round() / 1e3;
            let pid = process.pid.as_raw_pid();
            tracing::info!(pid, seconds, "worker {} is ready", worker.number);
        }
        self.app = app;
        if self.phase == Phase::Starting && self.workers.iter().all(Worker::is_ready) {
            self.phase = Phase::Serving;
            self.has_served = true;
            banner(self.config, self.interpreter, &self.machine, &self.app, &self.listeners);
        }
    }

    /// Collects children that ended, ours and, as process 1, anybody's.
    fn reap(&mut self) {
        loop {
            match rustix::process::waitpid(None, WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.ended(pid, status),
                Err(rustix::io::Errno::INTR) => {}
                // ECHILD: nobody is left.
                Ok(None) | Err(_) => return,
            }
        }
    }

    fn ended(&mut self, pid: Pid, status: WaitStatus) {
        let found = |worker: &Worker| worker.process().is_some_and(|process| process.pid == pid);
        let Some(index) = self.workers.iter().position(found) else { return };
        let was_ready = self.workers[index].is_ready();
        let number = self.workers[index].number;
        let pid = pid.as_raw_pid();
        let how = describe(status);
        match self.phase {
            Phase::Stopping { .. } => {
                self.workers[index].standing = Standing::Gone;
                let code = status.exit_status().unwrap_or(0);
                if was_ready && code != 0 {
                    tracing::warn!(pid, "worker {number} {how}");
                    self.exit_code = self.exit_code.max(1);
                }
            }
            Phase::Starting if !was_ready => {
                self.workers[index].standing = Standing::Gone;
                let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
                match code {
                    // Another worker is about to say why, and must not be killed before.
                    Some(EXIT_NOT_LOADED_SILENT) => return,
                    Some(EXIT_NOT_LOADED) => {}
                    Some(_) | None => {
                        tracing::error!(pid, "worker {number} {how} before it was ready");
                    }
                }
                self.begin_stop("a worker could not start");
                self.exit_code = 1;
            }
            Phase::Starting | Phase::Serving => {
                let delay = self.workers[index].ended(clock::now());
                tracing::error!(pid, "worker {number} {how}; another starts in {delay:?}");
            }
        }
    }
}

fn kill(pid: Pid) {
    // ESRCH cannot be: it was not waited for. EPERM: it changed its user to one above ours.
    let _ = rustix::process::kill_process(pid, Signal::KILL);
}

fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("ended with code {code}"),
        (None, Some(signal)) => {
            format!("was killed by signal {signal} ({})", signal_name(signal))
        }
        (None, None) => "ended".to_owned(),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGINT => "SIGINT",
        libc::SIGKILL => "SIGKILL, maybe the kernel for want of memory",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGTERM => "SIGTERM",
        _ => "see signal(7)",
    }
}

/// What other servers do at a signal and this one does not yet. Their default actions would end or
/// suspend the supervisor, and the site with it.
const UNUSED_SIGNALS: [(libc::c_int, &str); 5] = [
    (libc::SIGHUP, "SIGHUP: this version has no rolling restart yet"),
    (libc::SIGUSR1, "SIGUSR1: this version does not reopen its log files yet"),
    (libc::SIGUSR2, "SIGUSR2: this version has no upgrade in place yet"),
    (libc::SIGTTIN, "SIGTTIN: the number of workers is fixed at start, see --workers"),
    (libc::SIGTTOU, "SIGTTOU: the number of workers is fixed at start, see --workers"),
];

/// The line that says that everything is up.
pub fn banner(
    config: &Config,
    interpreter: &Interpreter,
    machine: &Machine,
    app: &str,
    listeners: &Listeners,
) {
    tracing::info!(
        workers = config.worker_count,
        threads = config.thread_count,
        io = machine.io_name(),
        python = interpreter.version,
        admin = listeners.display_admin(),
        "hoopsnake {} serves {app} at {}",
        env!("CARGO_PKG_VERSION"),
        listeners.display()
    );
}
