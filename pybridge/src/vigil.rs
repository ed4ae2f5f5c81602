//! The wait on a worker's main thread: for signals, the supervisor, the reactor, and the moment when
//! the grace is over.
//!
//! It waits and acts without the interpreter lock, so that a view that does not let go of it delays
//! neither the end of the listeners nor the cut. Only Python's own signal handlers need the lock:
//! they run on this thread, as everywhere in Python; ours only count.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use hoopsnake_server::access_log::AccessLog;
use hoopsnake_server::clock;
use hoopsnake_server::config::Config;
use hoopsnake_server::supervisor::Interrupts;
use hoopsnake_server::supervisor::control::{ControlSocket, Received, ToSupervisor, ToWorker};
use hoopsnake_server::sys::signals::SignalWatch;
use hoopsnake_server::worker::ReactorHandle;
use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ending::HOOKS_WAIT_MIN;
use crate::import;

/// What is waited for, and how far it has come.
#[derive(Debug)]
pub(crate) struct Vigil<'wait> {
    signals: &'wait SignalWatch,
    /// `None` without a supervisor, and when it is gone.
    control: Option<&'wait ControlSocket>,
    reactor: &'wait ReactorHandle,
    access_log: Option<&'wait AccessLog>,
    /// Readable when a signal with a Python-level handler came.
    python_signals: Option<OwnedFd>,
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

enum Event {
    Ended(Ended),
    PythonSignals,
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
            python_signals: None,
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

    /// Waits until the worker was told to stop and the reactor has ended, or cannot be waited for any
    /// longer, or has ended by itself.
    pub(crate) fn keep(mut self, py: Python<'_>) -> Ended {
        match wakeup_fd(py) {
            Ok(fd) => self.python_signals = Some(fd),
            Err(error) => {
                tracing::error!(%error, "Python's signals cannot be waited for");
                self.begin(self.grace);
            }
        }
        loop {
            match py.detach(|| self.watch()) {
                Event::Ended(ended) => return ended,
                Event::PythonSignals => {
                    if self.run_python_signals(py) {
                        self.leave();
                    }
                }
            }
        }
    }

    fn watch(&mut self) -> Event {
        loop {
            let python_signals = self.block();
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
                return Event::Ended(Ended { complete, drain });
            }
            if let Some(drain) = self.drain
                && (is_cut || drain.threads_deadline <= now)
            {
                self.reactor.stop();
                let drain = if is_cut { Drain::new(Duration::ZERO, now) } else { drain };
                return Event::Ended(Ended { complete: false, drain });
            }
            if python_signals {
                return Event::PythonSignals;
            }
        }
    }

    /// Blocks until something happened or the time is over. True: Python has a handler to run.
    fn block(&self) -> bool {
        let finished = self.reactor.finished_fd();
        let mut ready =
            vec![PollFd::new(self.signals, PollFlags::IN), PollFd::new(&finished, PollFlags::IN)];
        let notice = self.reactor.notice_fd();
        ready.extend(notice.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        let python_signals = self.python_signals.as_ref().map(|fd| {
            ready.push(PollFd::new(fd, PollFlags::IN));
            ready.len() - 1
        });
        if let Some(control) = self.control {
            ready.push(PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN));
        }
        let deadline = self.drain.map(|drain| drain.threads_deadline).or(self.drain_at);
        let timeout = deadline.and_then(|deadline| {
            Timespec::try_from(deadline.saturating_duration_since(clock::now())).ok()
        });
        // EINTR: a signal, which is looked at next.
        let _ = poll(&mut ready, timeout.as_ref());
        python_signals.is_some_and(|index| !ready[index].revents().is_empty())
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

    /// Runs Python's handlers on this thread, which is the main one. True: one of them wants the end
    /// (`sys.exit`, `KeyboardInterrupt`); any other exception is its author's to read.
    fn run_python_signals(&self, py: Python<'_>) -> bool {
        let mut numbers = [0; 64];
        if let Some(fd) = &self.python_signals {
            while rustix::io::read(fd, &mut numbers).is_ok_and(|count| count > 0) {}
        }
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
