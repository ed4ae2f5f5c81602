//! What the supervisor says about processes.

use rustix::process::WaitStatus;

use super::{EXIT_NOT_LOADED, EXIT_NOT_LOADED_SILENT, Listeners, Machine, TEMPLATE};
use crate::config::{Config, Interpreter};

/// Begins a sentence.
pub(super) fn name_of(number: usize) -> String {
    if number == TEMPLATE { "the template".to_owned() } else { format!("worker {number}") }
}

/// Completes a sentence that begins with a process.
pub(super) fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _)
            if code == i32::from(EXIT_NOT_LOADED) || code == i32::from(EXIT_NOT_LOADED_SILENT) =>
        {
            "could not load the application (the reason is above)".to_owned()
        }
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
