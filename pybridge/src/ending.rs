//! The end of a worker (RULES 4) after its drain: let the threads leave, run what Python runs at exit, and end
//! the process without finalising the interpreter, under one deadline and naming what was left.

use std::time::{Duration, Instant};

use hoopsnake_server::pool::ThreadIndex;
use hoopsnake_server::{clock, log};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::vigil::Ended;
use crate::worker::Serving;

/// Of the grace, what is kept for exit hooks and flushing after the threads were given up.
pub(crate) const HOOKS_WAIT_MIN: Duration = Duration::from_millis(500);

/// For a log's last lines when the grace is over: what a reader that reads needs to take them. **Why**: two
/// logs within the tenth of the grace that the supervisor waits longer.
const FLUSH_WAIT_MIN: Duration = Duration::from_millis(50);

/// What idle threads need to leave when the grace went by with a busy one.
const IDLE_THREADS_WAIT: Duration = Duration::from_millis(200);

/// Ends the process.
pub(crate) fn end<T>(py: Python<'_>, serving: Serving<'_>, ended: Ended) -> T {
    end_after(py, serving, ended, || {})
}

/// Ends the process; `last` runs when nothing is served any more.
pub(crate) fn end_after<T>(
    py: Python<'_>,
    serving: Serving<'_>,
    ended: Ended,
    last: impl FnOnce(),
) -> T {
    serving.running.lane.stop();
    let left = join(&serving, ended.drain.threads_deadline.max(clock::now() + IDLE_THREADS_WAIT));
    let unanswered = serving.running.reactor.unanswered();
    let is_clean = ended.complete && left.is_empty();
    if !is_clean {
        name_what_was_left(py, &serving, &left, &unanswered);
    }
    if serving.running.lane.policy().timed {
        print_pool_table(&serving);
    }
    last();
    run_exit_hooks(py, &serving, ended.drain.deadline.max(clock::now() + HOOKS_WAIT_MIN));
    if let Some(access_log) = &serving.access_log {
        py.detach(|| access_log.flush(flush_patience(ended.drain.deadline)));
    }
    exit(py, u8::from(!is_clean), flush_patience(ended.drain.deadline))
}

/// How long one log may be flushed by a worker that is to be gone at this moment.
pub(crate) fn flush_patience(deadline: Instant) -> Duration {
    let left = deadline.saturating_duration_since(clock::now());
    left.clamp(FLUSH_WAIT_MIN, log::FLUSH_WAIT_MAX)
}

/// Ends a worker that was never ready; the reason is printed.
pub(crate) fn exit_unready<T>(py: Python<'_>, code: u8) -> T {
    flush_python(py);
    exit(py, code, log::FLUSH_WAIT_MAX)
}

/// Ends a process that shares its buffers with the one it was forked from: nothing is flushed.
pub(crate) fn exit_at_once<T>(py: Python<'_>, code: u8) -> T {
    exit(py, code, log::FLUSH_WAIT_MAX)
}

/// Waits for the pool's threads; returns the indexes of those that did not leave in time.
fn join(serving: &Serving<'_>, deadline: Instant) -> Vec<ThreadIndex> {
    let mut left = Vec::new();
    for (index, thread) in serving.threads.iter().enumerate() {
        let seconds = deadline.saturating_duration_since(clock::now()).as_secs_f64();
        let joined = thread.call_method1("join", (seconds,));
        let is_alive = thread.call_method0("is_alive").and_then(|alive| alive.extract());
        if joined.is_err() || is_alive.unwrap_or(true) {
            left.push(ThreadIndex(index));
        }
    }
    left
}

/// One line per request that is inside the application, with the stack of its thread, and one per
/// request that never got there.
fn name_what_was_left(
    py: Python<'_>,
    serving: &Serving<'_>,
    left: &[ThreadIndex],
    unanswered: &[String],
) {
    let running = serving.application.running();
    for index in left {
        let request = running
            .iter()
            .find(|(other, _)| other == index)
            .map_or("no request", |(_, request)| request.as_str());
        let stack = stack_of(py, &serving.threads[index.0]).unwrap_or_default();
        tracing::error!("the grace is over and hoopsnake-pool-{} runs {request}\n{stack}", index.0);
    }
    for request in unanswered {
        tracing::error!("the grace is over and {request} has no complete answer");
    }
}

/// Asked for by a knob, so at any log level, and in one piece, since workers end side by side.
fn print_pool_table(serving: &Serving<'_>) {
    let pid = std::process::id();
    eprint!("hoopsnake: the pool of pid {pid}\n{}", serving.running.pool_table());
}

fn stack_of(py: Python<'_>, thread: &Bound<'_, PyAny>) -> PyResult<String> {
    let frames = py.import("sys")?.call_method0("_current_frames")?;
    let frame = frames.get_item(thread.getattr("ident")?)?;
    let lines = py.import("traceback")?.call_method1("format_stack", (frame,))?;
    let lines: Vec<String> = lines.extract()?;
    Ok(lines.concat())
}

/// `on_worker_exit`, and what `Py_FinalizeEx` would run, without its end of the world: non-daemon threads are waited for,
/// exit hooks run, logging and the standard streams are flushed. Python's own watchdog prints every
/// stack and ends the process if one of them does not return in time.
fn run_exit_hooks(py: Python<'_>, serving: &Serving<'_>, deadline: Instant) {
    if let Err(error) = start_watchdog(py, deadline) {
        tracing::warn!(%error, "exit hooks run without a watchdog");
    }
    serving.hooks.exit();
    if let Some(python_log) = &serving.python_log {
        python_log.end(py, deadline - HOOKS_WAIT_MIN / 2);
    }
    for (module, function) in [("threading", "_shutdown"), ("atexit", "_run_exitfuncs")] {
        // What a hook raises is printed by Python; it does not keep the next one from running.
        if let Err(error) = py.import(module).and_then(|module| module.call_method0(function)) {
            error.write_unraisable(py, None);
        }
    }
    flush_python(py);
    // It does not end a process whose hooks have returned and which writes its last lines. An error:
    // it was never started.
    let _ = py
        .import("faulthandler")
        .and_then(|faulthandler| faulthandler.call_method0("cancel_dump_traceback_later"));
}

fn start_watchdog(py: Python<'_>, deadline: Instant) -> PyResult<()> {
    let left = deadline.saturating_duration_since(clock::now()).max(Duration::from_millis(1));
    let arguments = PyDict::new(py);
    arguments.set_item("exit", true)?;
    // The number and not `sys.stderr`, which the application may have replaced or closed.
    arguments.set_item("file", 2)?;
    let faulthandler = py.import("faulthandler")?;
    let start = faulthandler.getattr("dump_traceback_later")?;
    start.call((left.as_secs_f64(),), Some(&arguments))?;
    Ok(())
}

fn flush_python(py: Python<'_>) {
    let flush = |module: &str, name: &str| -> PyResult<()> {
        let object = py.import(module)?.getattr(name)?;
        if !object.is_none() {
            object.call_method0("flush")?;
        }
        Ok(())
    };
    // `logging` registers its own flush with atexit, which has run; a stream that cannot be flushed
    // has nobody to tell.
    let _ = flush("sys", "stdout");
    let _ = flush("sys", "stderr");
}

/// Ends the process here and now. The log's lines are written first.
fn exit<T>(py: Python<'_>, code: u8, patience: Duration) -> T {
    py.detach(|| log::flush(patience));
    // Does not return; if `os` is broken there is no way to go on either.
    let _ = py.import("os").and_then(|os| os.call_method1("_exit", (code,)));
    std::process::abort()
}
