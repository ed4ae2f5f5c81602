//! What this machine allows: descriptors, the kernel interface, a place for large bodies.

use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::config::{Config, IoChoice};
use crate::error::Fault;
use crate::reactor::IoKind;
use crate::supervisor::Machine;
use crate::sys::probe::{self, IoRequest};
use crate::sys::process::{self, DescriptorLimit};

/// Descriptors that are not connections: listeners, logs, the interpreter's files, the
/// application's. **Unit**: descriptors.
const DESCRIPTORS_RESERVED: u64 = 256;

/// Finds out, and says what is less than was asked for.
///
/// # Errors
/// Machine: `--io uring` where the ring cannot be used.
pub fn find_out(config: &Config) -> Result<Machine, Fault> {
    let limit = process::raise_nofile()
        .map_err(|error| Fault::start(format!("the limit of open files is unknown: {error}")))?;
    let connections_max = connections_max(config, limit);
    let (io, refusal) = choose_io(config)?;
    if let Some(refusal) = refusal {
        tracing::warn!("{refusal}");
    }
    Ok(Machine { io, connections_max })
}

/// The same under other options: the kernel interface stays, which the supervisor chose at its start.
///
/// # Errors
/// Start: the limit of open files is unknown.
pub fn renew(machine: &Machine, config: &Config) -> Result<Machine, Fault> {
    let limit = process::raise_nofile()
        .map_err(|error| Fault::start(format!("the limit of open files is unknown: {error}")))?;
    Ok(Machine { io: machine.io, connections_max: connections_max(config, limit) })
}

/// The ring or epoll, decided once for all workers, and the line that says why it is not the ring.
///
/// # Errors
/// Machine: the ring was demanded and cannot be used.
pub fn choose_io(config: &Config) -> Result<(IoKind, Option<String>), Fault> {
    let request = match config.io {
        IoChoice::Auto => IoRequest::Auto,
        IoChoice::Uring => IoRequest::Uring,
        IoChoice::Epoll => IoRequest::Epoll,
    };
    probe::choose(request, config.worker_count)
        .map_err(|refused| Fault::machine(format!("--io uring is not possible: {refused}")))
}

/// As `uname -r` prints it.
#[must_use]
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Connections of one worker: what was asked for, as far as its descriptors go. **Source**: RULES 28.
fn connections_max(config: &Config, limit: DescriptorLimit) -> usize {
    // A small limit is shared: three quarters for connections.
    let reserved = DESCRIPTORS_RESERVED.min(limit.hard_count / 4);
    let possible = limit.hard_count.saturating_sub(reserved).max(1);
    let possible = usize::try_from(possible).unwrap_or(usize::MAX);
    if possible < config.connections_max {
        tracing::warn!(
            "max-connections is {} and the hard limit of open files is {}: a worker accepts {possible} \
             connections; raise the limit (LimitNOFILE=, ulimit -Hn) or lower --max-connections",
            config.connections_max,
            limit.hard_count
        );
    }
    config.connections_max.min(possible)
}

/// Why large bodies cannot wait in the directory; `None` if they can. To be asked as the user that
/// the worker runs as.
#[must_use]
pub fn spool_problem(directory: &Path) -> Option<io::Error> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).err().map(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_does_not_exist_holds_nothing() {
        assert_eq!(spool_problem(&std::env::temp_dir()).map(|error| error.to_string()), None);
        let error = spool_problem(Path::new("/nonexistent")).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
