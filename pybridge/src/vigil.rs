//! The wait of a worker: for signals, the supervisor, the reactor, and the moment when the grace is
//! over.
//!
//! A native thread waits and acts, so that whatever Python does delays neither the end of the
//! listeners nor the cut: a view that does not let go of the interpreter lock, or code on the main
//! thread that does not come back. The main thread runs `on_worker_ready` and Python's own signal
//! handlers, as everywhere in Python; ours only count.

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use hoopsnake_server::access_log::AccessLog;
use hoopsnake_server::config::Config;
use hoopsnake_server::reactor::wake::Waker;
use hoopsnake_server::supervisor::Interrupts;
use hoopsnake_server::supervisor::control::{ControlSocket, Received, ToSupervisor, ToWorker};
use hoopsnake_server::sys::process;
use hoopsnake_server::sys::signals::SignalWatch;
use hoopsnake_server::worker::ReactorHandle;
use hoopsnake_server::{clock, log};
use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ending::{self, HOOKS_WAIT_MIN};
use crate::{forked, import};

/// What is waited for, and how far it has come.
#[derive(Debug)]
pub(crate) struct Vigil<'wait> {
    signals: &'wait SignalWatch,
    /// `None` without a supervisor, and when it is gone.
    control: Option<&'wait ControlSocket>,
    reactor: &'wait ReactorHandle,
    access_log: Option<&'wait AccessLog>,
    /// Readable when a handler of the application's wants the end; `None` when that was seen.
    asked: Option<Waker>,
    /// Where nobody says another.
    grace: Duration,
    /// `--shutdown-delay`, for a signal that comes here and not through the supervisor.
    delay: Duration,
    /// The delay runs: when the drain begins, unless the supervisor says so before.
    drain_at: Option<Instant>,
    drain: Option<Drain>,
    interrupts: Interrupts,
}

/// The time of a drain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// When the worker is to be gone.
    pub(crate) deadline: Instant,
    /// When threads and requests are given up; the rest is for exit hooks.
    pub(crate) threads_deadline: Instant,
}

impl Drain {
    fn new(grace: Duration, now: Instant) -> Self {
        let deadline = now + grace;
        Self { deadline, threads_deadline: deadline - HOOKS_WAIT_MIN.min(grace / 10) }
    }
}

/// How the serving ended. The reactor has ended or was told to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// It was asked to drain and everything was answered.
    pub(crate) complete: bool,
    pub(crate) drain: Drain,
}

impl Ended {
    /// Nobody watched any more.
    fn failed() -> Self {
        Self { complete: false, drain: Drain::new(Duration::ZERO, clock::now()) }
    }
}

/// What the main thread has to do.
enum Call {
    /// Python has a handler to run.
    PythonSignals,
    /// The watch is over.
    Over,
}

/// Rings when it is dropped, also by a panic: the main thread must not wait for a watch that is no
/// more.
struct Bell(Waker);

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl<'wait> Vigil<'wait> {
    pub(crate) fn new(
        signals: &'wait SignalWatch,
        control: Option<&'wait ControlSocket>,
        reactor: &'wait ReactorHandle,
        config: &Config,
    ) -> Self {
        Self {
            signals,
            control,
            reactor,
            access_log: None,
            asked: None,
            grace: config.grace,
            delay: config.shutdown_delay,
            drain_at: None,
            drain: None,
            interrupts: Interrupts::default(),
        }
    }

    /// The same with a log whose file is opened again when somebody asks for it.
    pub(crate) fn reopening(self, access_log: Option<&'wait AccessLog>) -> Self {
        Self { access_log, ..self }
    }

    /// Calls `ready`, and waits until the worker was told to stop and the reactor has ended, or cannot
    /// be waited for any longer, or has ended by itself. On the main thread.
    pub(crate) fn keep(self, py: Python<'_>, ready: impl FnOnce()) -> Ended {
        self.keep_both(py, ready).unwrap_or_else(|error| {
            tracing::error!(%error, "this worker cannot be watched over");
            ending::exit_unready(py, 1)
        })
    }

    fn keep_both(mut self, py: Python<'_>, ready: impl FnOnce()) -> PyResult<Ended> {
        let python_signals = wakeup_fd(py)?;
        let asked = Waker::new()?;
        self.asked = Some(asked.clone());
        let over = Waker::new()?;
        let bell = Bell(over.clone());
        // Its end is the word.
        let (is_away, away) = sync_channel(0);
        std::thread::scope(|scope| {
            let watch = move || {
                process::block_all_signals();
                let ended = self.watch();
                drop(bell);
                end_without(&away, ended.drain);
                ended
            };
            let name = "hoopsnake-vigil".to_owned();
            let watch = std::thread::Builder::new().name(name).spawn_scoped(scope, watch)?;
            ready();
            forked::end_if_child(py, None);
            while let Call::PythonSignals = py.detach(|| wait_for_call(&python_signals, &over)) {
                if run_python_signals(py, &python_signals) {
                    asked.wake();
                }
                forked::end_if_child(py, None);
            }
            drop(is_away);
            Ok(watch.join().unwrap_or_else(|_| Ended::failed()))
        })
    }

    fn watch(&mut self) -> Ended {
        loop {
            self.block();
            self.signals.clear();
            let is_cut = self.look_at_signals();
            self.look_at_control();
            self.pass_recycling_on();
            let now = clock::now();
            if is_cut || self.drain_at.is_some_and(|moment| moment <= now) {
                self.begin(self.grace);
            }
            if self.reactor.is_finished() {
                let complete = self.reactor.has_drained();
                let drain = self.drain.unwrap_or_else(|| Drain::new(Duration::ZERO, now));
                return Ended { complete, drain };
            }
            if let Some(drain) = self.drain
                && (is_cut || drain.threads_deadline <= now)
            {
                self.reactor.stop();
                let drain = if is_cut { Drain::new(Duration::ZERO, now) } else { drain };
                return Ended { complete: false, drain };
            }
        }
    }

    /// Blocks until something happened or the time is over.
    fn block(&mut self) {
        let finished = self.reactor.finished_fd();
        let mut ready =
            vec![PollFd::new(self.signals, PollFlags::IN), PollFd::new(&finished, PollFlags::IN)];
        let notice = self.reactor.notice_fd();
        ready.extend(notice.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        if let Some(control) = self.control {
            ready.push(PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN));
        }
        // The last, which is looked at below.
        ready.extend(self.asked.as_ref().map(|asked| PollFd::new(asked, PollFlags::IN)));
        let deadline = self.drain.map(|drain| drain.threads_deadline).or(self.drain_at);
        let timeout = deadline.and_then(|deadline| {
            Timespec::try_from(deadline.saturating_duration_since(clock::now())).ok()
        });
        // EINTR: a signal, which is looked at next.
        let _ = poll(&mut ready, timeout.as_ref());
        let is_asked = ready.last().is_some_and(|last| !last.revents().is_empty());
        if self.asked.is_some() && is_asked {
            self.asked = None;
            self.leave();
        }
    }

    /// True: a second Ctrl-C, which means at once.
    fn look_at_signals(&mut self) -> bool {
        let interrupts = self.signals.take(libc::SIGINT);
        if interrupts + self.signals.take(libc::SIGTERM) > 0 {
            self.leave();
        }
        if self.signals.take(libc::SIGUSR1) > 0 {
            self.reopen_logs();
        }
        interrupts > 0 && self.interrupts.is_second(clock::now())
    }

    fn look_at_control(&mut self) {
        let Some(control) = self.control else { return };
        match control.receive() {
            Received::Message(ToWorker::Drain { grace }) => self.begin(grace),
            Received::Message(ToWorker::Leave) => self.reactor.leave(),
            Received::Message(ToWorker::ReopenLogs) => self.reopen_logs(),
            Received::Closed => {
                self.control = None;
                tracing::error!("the supervisor is gone; this worker drains and ends");
                self.begin(self.grace);
            }
            Received::Nothing => {}
        }
    }

    fn reopen_logs(&self) {
        if let Some(access_log) = self.access_log {
            access_log.reopen();
        }
    }

    /// The reactor has a reason to end this worker when another can take its place.
    fn pass_recycling_on(&self) {
        let Some(reason) = self.reactor.take_recycling() else { return };
        match self.control {
            // A supervisor that is gone is seen at the next look.
            Some(control) => drop(control.send(&ToSupervisor::Recycle { reason })),
            None => tracing::warn!("nobody replaces this worker: {reason}"),
        }
    }

    /// A signal asks for the end: it waits for `--shutdown-delay`, in which everything is served.
    fn leave(&mut self) {
        if self.delay.is_zero() {
            self.begin(self.grace);
        } else if self.drain.is_none() && self.drain_at.is_none() {
            self.drain_at = Some(clock::now() + self.delay);
            self.reactor.leave();
        }
    }

    /// Starts the drain. One that runs is not made longer: a signal to the whole group comes before
    /// the supervisor's word, which leaves a part of the grace to itself.
    fn begin(&mut self, grace: Duration) {
        let new = Drain::new(grace, clock::now());
        self.drain_at = None;
        match &mut self.drain {
            Some(drain) if drain.deadline <= new.deadline => {}
            Some(drain) => *drain = new,
            None => {
                self.drain = Some(new);
                self.reactor.drain();
            }
        }
    }
}

/// On the main thread: blocks until there is something for it to do. The end comes first.
fn wait_for_call(python_signals: &OwnedFd, over: &Waker) -> Call {
    loop {
        let mut ready =
            [PollFd::new(over, PollFlags::IN), PollFd::new(python_signals, PollFlags::IN)];
        // EINTR: a signal, which says so by its descriptor.
        let _ = poll(&mut ready, None);
        if !ready[0].revents().is_empty() {
            return Call::Over;
        }
        if !ready[1].revents().is_empty() {
            return Call::PythonSignals;
        }
    }
}

/// Waits until the main thread has come back to end the worker. One that does not is not waited for
/// beyond the grace: the process ends here.
fn end_without(away: &Receiver<Infallible>, drain: Drain) {
    let now = clock::now();
    let deadline = drain.threads_deadline.max(now + HOOKS_WAIT_MIN);
    let Err(RecvTimeoutError::Timeout) = away.recv_timeout(deadline - now) else { return };
    // A handler of Python's `logging` may be what the main thread waits for.
    log::natively(|| {
        tracing::error!(
            "the grace is over and the main thread has not come back from on-worker-ready or a \
             signal handler of the application: this worker ends without its exit hooks"
        );
    });
    log::flush(ending::flush_patience(drain.deadline));
    process::end(1)
}

/// Runs Python's handlers on this thread, which is the main one. True: one of them wants the end
/// (`sys.exit`, `KeyboardInterrupt`); any other exception is its author's to read.
fn run_python_signals(py: Python<'_>, python_signals: &OwnedFd) -> bool {
    let mut numbers = [0; 64];
    while rustix::io::read(python_signals, &mut numbers).is_ok_and(|count| count > 0) {}
    match py.check_signals() {
        Ok(()) => false,
        Err(error) => {
            let ends = error.is_instance_of::<PyKeyboardInterrupt>(py)
                || error.is_instance_of::<PySystemExit>(py);
            if !ends {
                import::print_traceback(py, &error);
                tracing::error!("a signal handler of the application raised: {error}");
            }
            ends
        }
    }
}

/// What Python's own handler writes to when a signal with a Python-level handler arrives.
fn wakeup_fd(py: Python<'_>) -> PyResult<OwnedFd> {
    let flags = rustix::pipe::PipeFlags::NONBLOCK | rustix::pipe::PipeFlags::CLOEXEC;
    let (reader, writer) = rustix::pipe::pipe_with(flags).map_err(std::io::Error::from)?;
    let arguments = pyo3::types::PyDict::new(py);
    arguments.set_item("warn_on_full_buffer", false)?;
    let number = std::os::fd::IntoRawFd::into_raw_fd(writer);
    py.import("signal")?.getattr("set_wakeup_fd")?.call((number,), Some(&arguments))?;
    Ok(reader)
}
