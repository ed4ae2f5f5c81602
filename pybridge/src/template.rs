//! The template (`--preload`): a child of the supervisor that has imported the application and forks
//! the workers from there.
//!
//! A worker is to be the supervisor's child, to be waited for and killed like any other. So the
//! template forks a child that forks the worker and ends, and the kernel gives the orphan to the
//! supervisor, which has asked for orphans. All forks are `os.fork()`, so that CPython's hooks and the
//! application's run.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use hoopsnake_server::clock;
use hoopsnake_server::log::{self, Role};
use hoopsnake_server::supervisor::control::{ControlSocket, ForkOrder, Received, ToSupervisor};
use hoopsnake_server::supervisor::{Fork, Host, WorkerSeed};
use hoopsnake_server::sys::signals::SignalMask;
use pyo3::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};

use crate::ending;
use crate::import::Loaded;
use crate::run::{self, PythonHost};
use crate::worker::{self, Forked, Site};

/// How long a thread that was joined while the application was imported may take to be gone.
const THREADS_WAIT_MAX: Duration = Duration::from_millis(500);

/// The pause between two looks at it.
const THREADS_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The body of the template. Ends the process; in the workers that it forks, theirs.
pub(crate) fn run(py: Python<'_>, site: &Site<'_>, seed: WorkerSeed) -> u8 {
    log::set_role(Role::Template);
    run::name_process(&site.config.process_name, ":pre");
    // For its whole life: it is of no use without its supervisor.
    if !worker::tie(seed.parent) {
        return ending::exit_unready(py, 1);
    }
    if !worker::keep_from_forks(py) {
        return ending::exit_unready(py, 1);
    }
    // What comes to the whole group is the supervisor's to act on. Ignored outright, programs that the
    // application starts would ignore it too.
    let signals = worker::watch_signals(
        py,
        &[libc::SIGTERM, libc::SIGINT],
        &worker::MEANT_FOR_THE_SUPERVISOR,
    );
    seed.mask.restore();
    let loaded = match load(py, site, &seed) {
        Ok(loaded) => loaded,
        Err(code) => ending::exit_unready(py, code),
    };
    // The application may have installed handlers of its own.
    if let Err(error) = signals.assert_again() {
        tracing::error!(%error, "SIGTERM cannot be handled");
    }
    // A supervisor that is gone is an end of file at the next look.
    let _ = seed.control.send(&ToSupervisor::Ready { app: loaded.name.clone() });
    keep(py, site, seed, loaded)
}

/// The application, in a process that can be forked. The error is an exit code whose reason is printed.
fn load<'py>(py: Python<'py>, site: &Site<'_>, seed: &WorkerSeed) -> Result<Loaded<'py>, u8> {
    let forked = Forked { parent: seed.parent, voice: seed.voice.clone(), cell: None };
    worker::enter_site(py, site, Some(&forked))?;
    let loaded = worker::load(py, site.config, Some(&forked))?;
    let failed = |error: &dyn std::fmt::Display| worker::fail(Some(&forked), "--preload", error);
    refuse_threads(py).map_err(|sentence| failed(&sentence))?;
    freeze(py).map_err(|error| failed(&error))?;
    Ok(loaded)
}

/// Threads do not live on in a forked process, and a lock that one of them holds stays locked there.
fn refuse_threads(py: Python<'_>) -> Result<(), String> {
    let deadline = clock::now() + THREADS_WAIT_MAX;
    // A thread that was joined leaves the kernel's list a moment later.
    while run::thread_count() > 1 && clock::now() < deadline {
        let _ = py.detach(|| poll(&mut [], Some(&THREADS_LOOK)));
    }
    let count = run::thread_count();
    if count <= 1 {
        return Ok(());
    }
    Err(format!(
        "the application has started threads while it was imported: there are {count}, of which Python \
         knows {}; workers that are forked from here would lack them. Start them in the first request \
         (native ones, such as OpenBLAS's, are switched off by a variable: OPENBLAS_NUM_THREADS=1), or \
         leave --preload out",
        run::thread_names(py)
    ))
}

/// Collects once and then sets aside what the import left: the workers' collector does not write into
/// the memory that they share.
fn freeze(py: Python<'_>) -> PyResult<()> {
    let gc = py.import("gc")?;
    gc.call_method0("collect")?;
    gc.call_method0("freeze")?;
    Ok(())
}

/// Forks workers as they are ordered, until the supervisor lets go of its end.
fn keep(py: Python<'_>, site: &Site<'_>, seed: WorkerSeed, loaded: Loaded<'_>) -> u8 {
    loop {
        match py.detach(|| wait_for_order(&seed.control)) {
            Received::Message((order, control)) => match fork_worker(py) {
                Ok(None) => {}
                Ok(Some((handover, mask))) => {
                    let cell = order.cell.and_then(|index| seed.board.worker_cell(index));
                    let worker = WorkerSeed { number: order.number, control, cell, mask, ..seed };
                    // The template's own, of which no copy is to live on.
                    drop(seed.control);
                    return run_orphan(py, site, worker, loaded, handover);
                }
                // The supervisor sees the end of file of the socket that is dropped here.
                Err(error) => tracing::error!(%error, "worker {} cannot be forked", order.number),
            },
            Received::Nothing => {}
            Received::Closed => return ending::exit_unready(py, 0),
        }
    }
}

fn wait_for_order(control: &ControlSocket) -> Received<(ForkOrder, ControlSocket)> {
    // EINTR: a signal that means nothing here.
    let _ = poll(&mut [PollFd::new(control, PollFlags::IN)], None);
    control.receive_order()
}

/// In the template: `None`, when the worker has become the supervisor's child. In the worker: what it
/// waits for until then, and what to unblock when it handles signals. Hooks that the application has for
/// forks run without signals: one that comes in between would end the worker.
fn fork_worker(py: Python<'_>) -> io::Result<Option<(OwnedFd, SignalMask)>> {
    let mask = SignalMask::block_all();
    let forked = fork_twice(py);
    if !matches!(forked, Ok(Some(_))) {
        mask.restore();
    }
    Ok(forked?.map(|handover| (handover, mask)))
}

fn fork_twice(py: Python<'_>) -> io::Result<Option<OwnedFd>> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match (PythonHost { py }).fork()? {
        Fork::Parent(number) => {
            // Once it was waited for, its child has been given away; then `writer` is dropped.
            if let Some(pid) = Pid::from_raw(number) {
                while rustix::process::waitpid(Some(pid), WaitOptions::empty())
                    .is_err_and(|error| error == Errno::INTR)
                {}
            }
            Ok(None)
        }
        Fork::Child => match (PythonHost { py }).fork() {
            Ok(Fork::Parent(_)) => ending::exit_at_once(py, 0),
            Ok(Fork::Child) => {
                drop(writer);
                Ok(Some(reader))
            }
            Err(error) => {
                tracing::error!(%error, "a worker cannot be forked");
                ending::exit_at_once(py, 1)
            }
        },
    }
}

/// The worker's part: it is nobody's until the kernel has given it to the supervisor.
fn run_orphan<'py>(
    py: Python<'py>,
    site: &Site<'_>,
    seed: WorkerSeed,
    loaded: Loaded<'py>,
    handover: OwnedFd,
) -> u8 {
    py.detach(|| wait_for_end(handover.as_fd()));
    drop(handover);
    let born = ToSupervisor::Born { pid: std::process::id().cast_signed() };
    // A supervisor that is gone is seen when this process ties itself to it.
    let _ = seed.control.send(&born);
    worker::run_preloaded(py, site, seed, loaded)
}

/// Until the last copy of the pipe's other end is closed.
fn wait_for_end(pipe: BorrowedFd<'_>) {
    while rustix::io::read(pipe, &mut [0_u8; 1]) == Err(Errno::INTR) {}
}
