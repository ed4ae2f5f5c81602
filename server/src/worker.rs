//! One worker's native half: lane, completion ring and the reactor's thread.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicUsize;

use crate::board::WorkerCell;
use crate::clock;
use crate::config::usable_cpu_count;
use crate::exchange::{Completions, SyncLane};
use crate::pool::{self, Knobs, Policy, ReactorCounts, Turn};
use crate::reactor::command::{Command, Commands};
use crate::reactor::io::Io;
use crate::reactor::run::{Parts, Reactor};
use crate::reactor::wake::Waker;
use crate::reactor::{Insight, IoKind, Settings};
use crate::spool::Spool;
use crate::supervisor::Sockets;
use crate::sync::Arc;
use crate::sys;

/// Ring entries a slot may have at once: one, and one of its last exchange that is about to be taken.
const COMPLETIONS_PER_SLOT: usize = 2;

/// Hands commands to a running reactor. Every method may be called from any thread and more than once.
#[derive(Clone, Debug)]
pub struct ReactorHandle {
    commands: Arc<Commands>,
    completions: Arc<Completions>,
}

impl ReactorHandle {
    /// Starts the drain (RULES 25): accept what is queued, close the listeners, answer with
    /// `Connection: close`, let idle connections live for `drain_idle`.
    pub fn drain(&self) {
        self.commands.want(Command::Drain);
        self.completions.wake();
    }

    /// Everything is served on, and `/ready` says 503.
    pub fn leave(&self) {
        self.commands.want(Command::Leave);
        self.completions.wake();
    }

    /// Why this worker should be replaced, once, after [`Self::notice_fd`] became readable.
    #[must_use]
    pub fn take_recycling(&self) -> Option<String> {
        self.commands.take_recycling()
    }

    /// Readable (level) until [`Self::take_recycling`] gave a reason; `None` from then on.
    #[must_use]
    pub fn notice_fd(&self) -> Option<BorrowedFd<'_>> {
        self.commands.notice_fd()
    }

    /// Ends now: what is in flight is closed unanswered.
    pub fn stop(&self) {
        self.commands.want(Command::Stop);
        self.completions.wake();
    }

    /// Whether the reactor has ended: everything drained, or stopped, or failed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.commands.is_finished()
    }

    /// Whether it ended because the drain was complete, and not by [`Self::stop`] or a failure.
    #[must_use]
    pub fn has_drained(&self) -> bool {
        self.commands.has_drained()
    }

    /// Readable (level) when the reactor has ended.
    #[must_use]
    pub fn finished_fd(&self) -> BorrowedFd<'_> {
        self.commands.finished_fd()
    }

    /// Request lines of what had no answer when the reactor ended.
    #[must_use]
    pub fn unanswered(&self) -> Vec<String> {
        self.commands.unanswered()
    }
}

/// What a worker serves with.
#[derive(Debug)]
pub struct Plan {
    /// Bound and listening.
    pub listeners: Sockets,
    /// The data plane's options.
    pub settings: Settings,
    /// Threads that the bridge will start.
    pub thread_count: usize,
    /// The interpreter has no lock: threads run in parallel.
    pub free_threaded: bool,
    /// How the pool is to behave, where that is not the default.
    pub knobs: Knobs,
    /// How many objects wait for a thread of the application to drop them; the reactor sees to it
    /// that an idle lane is woken for them.
    pub garbage: Arc<AtomicUsize>,
    /// This process's place beside the other workers; `None`: it accepts as if it were alone.
    pub cell: Option<WorkerCell>,
    /// What the reactor sees of the application's threads.
    pub insight: Insight,
}

/// A started worker.
#[derive(Debug)]
pub struct Running {
    /// Where the pool's threads take their jobs.
    pub lane: Arc<SyncLane>,
    /// Commands.
    pub reactor: ReactorHandle,
    counts: Arc<ReactorCounts>,
}

impl Running {
    /// What the pool and the reactor counted and timed, as a table.
    #[must_use]
    pub fn pool_table(&self) -> String {
        let lane = self.lane.figures();
        let reactor = self.counts.figures(self.reactor.completions.poke_count(), &lane);
        pool::table(&lane, &reactor)
    }
}

/// Makes the lane and starts the reactor's thread, which blocks all signals. It accepts at once;
/// requests wait on the ring until the pool's threads take them.
///
/// # Errors
/// The `Io` cannot be made, or a thread cannot be started.
pub fn start(plan: Plan) -> io::Result<Running> {
    let waker = Waker::new()?;
    let commands = Arc::new(Commands::new(Waker::new()?, Waker::new()?));
    let slot_count = plan.settings.connections_max.max(1);
    let completions = Arc::new(Completions::new(slot_count * COMPLETIONS_PER_SLOT, waker.clone()));
    let turn = Turn::new(!plan.free_threaded, plan.thread_count, &plan.knobs);
    let policy = Policy::new(&plan.knobs, plan.free_threaded, usable_cpu_count());
    let lane = Arc::new(SyncLane::with_policy(
        plan.thread_count,
        plan.settings.queue_requests_max,
        Arc::clone(&completions),
        policy,
        Arc::new(turn),
    ));
    let counts = Arc::new(ReactorCounts::new(policy.timed));
    let spool = Spool::start(plan.settings.spool_dir.clone(), plan.settings.spool_bytes_max)?;
    let parts = Parts {
        public_listener_count: plan.listeners.public.len(),
        admin_listener_count: plan.listeners.admin.len(),
        settings: plan.settings,
        lane: Arc::clone(&lane),
        completions: Arc::clone(&completions),
        spool,
        commands: Arc::clone(&commands),
        garbage: plan.garbage,
        cell: plan.cell,
        insight: plan.insight,
        wake_age: plan.knobs.wake_age,
        counts: Arc::clone(&counts),
    };
    let listeners = plan.listeners;
    let (report, started) = std::sync::mpsc::sync_channel(1);
    let finish = Finish(Arc::clone(&commands));
    std::thread::Builder::new().name("hoopsnake-reactor".to_owned()).spawn(move || {
        // Also when it panics: the main thread must not wait for a reactor that is no more.
        let _finish = finish;
        sys::process::block_all_signals();
        // The ring belongs to the thread that makes it.
        match parts.settings.io {
            IoKind::Uring => match sys::ring::Ring::new(waker) {
                Ok(io) => serve(io, listeners, parts, &report),
                Err(error) => drop(report.send(Err(error))),
            },
            IoKind::Epoll => match sys::epoll::Epoll::new(waker) {
                Ok(io) => serve(io, listeners, parts, &report),
                Err(error) => drop(report.send(Err(error))),
            },
        }
    })?;
    started.recv().map_err(|_| io::Error::other("the reactor's thread ended at its start"))??;
    Ok(Running { lane, reactor: ReactorHandle { commands, completions }, counts })
}

/// Says at the thread's end that it has ended.
#[derive(Debug)]
struct Finish(Arc<Commands>);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.set_finished();
    }
}

fn serve<I: Io>(
    mut io: I,
    listeners: Sockets,
    parts: Parts,
    report: &std::sync::mpsc::SyncSender<io::Result<()>>,
) {
    for listener in listeners.public.into_iter().chain(listeners.admin) {
        io.add_listener(listener);
    }
    let reactor = Reactor::new(io, parts, clock::now());
    // The receiver waits for exactly this.
    let _ = report.send(Ok(()));
    if let Err(error) = reactor.run() {
        tracing::error!(%error, "the reactor cannot go on; the worker ends");
    }
}
