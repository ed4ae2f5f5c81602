//! What this machine allows: descriptors, the kernel interface, a place for large bodies.

use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::config::{Config, IoChoice};
use crate::error::Fault;
use crate::reactor::IoKind;
use crate::reactor::wake::Waker;
use crate::supervisor::Machine;
use crate::sys::process::{self, DescriptorLimit};
use crate::sys::ring::Ring;

/// Descriptors that are not connections: listeners, logs, the interpreter's files, the
/// application's. **Unit**: descriptors.
const DESCRIPTORS_RESERVED: u64 = 256;

/// The first kernel on which `--io auto` takes the ring. **Source**: RULES 23.
const AUTO_KERNEL: (u32, u32) = (6, 12);
/// The first kernel on which `--io uring` is allowed. **Source**: RULES 23.
const URING_KERNEL: (u32, u32) = (6, 8);

/// Finds out, and says what is less than was asked for.
///
/// # Errors
/// Machine: `--io uring` where the ring cannot be used.
pub fn find_out(config: &Config) -> Result<Machine, Fault> {
    let limit = process::raise_nofile()
        .map_err(|error| Fault::start(format!("the limit of open files is unknown: {error}")))?;
    let connections_max = connections_max(config, limit);
    let choice = choose_io(config.io)?;
    if let Some(refusal) = &choice.refusal {
        tracing::warn!("io is epoll: {refusal}");
    }
    Ok(Machine { io: choice.io, connections_max })
}

/// The ring or epoll, and why not the ring.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Choice {
    /// What the workers use.
    pub io: IoKind,
    /// Why `auto` did not take the ring, and how to allow it.
    pub refusal: Option<String>,
}

/// Decides once for all workers.
///
/// # Errors
/// Machine: the ring was demanded and cannot be used.
pub fn choose_io(asked: IoChoice) -> Result<Choice, Fault> {
    let (needed, what) = match asked {
        IoChoice::Epoll => return Ok(Choice { io: IoKind::Epoll, refusal: None }),
        IoChoice::Auto => (AUTO_KERNEL, "auto"),
        IoChoice::Uring => (URING_KERNEL, "uring"),
    };
    match (refusal_of_ring(needed, what), asked) {
        (None, _) => Ok(Choice { io: IoKind::Uring, refusal: None }),
        (Some(refusal), IoChoice::Uring) => {
            Err(Fault::machine(format!("--io uring is not possible: {refusal}")))
        }
        (Some(refusal), IoChoice::Auto | IoChoice::Epoll) => {
            Ok(Choice { io: IoKind::Epoll, refusal: Some(refusal) })
        }
    }
}

/// Why the ring cannot be used here, and what to do; `None` if it can.
#[must_use]
pub fn refusal_of_ring(needed: (u32, u32), what: &str) -> Option<String> {
    let release = kernel_release();
    if kernel_version(&release).is_none_or(|version| version < needed) {
        return Some(format!(
            "kernel {release} is older than {}.{}, which --io {what} needs",
            needed.0, needed.1
        ));
    }
    let error = Waker::new().and_then(Ring::new).err()?;
    let next = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if sysctl_forbids() => {
            "sysctl kernel.io_uring_disabled forbids it; set it to 0, or put the server's group into \
             kernel.io_uring_group"
        }
        Some(libc::EPERM | libc::EACCES) => {
            "a seccomp profile forbids it, as container runtimes do by default; allow the system \
             calls io_uring_setup, io_uring_enter and io_uring_register"
        }
        Some(libc::ENOSYS) => "the kernel was built without it, or a seccomp profile hides it",
        Some(libc::ENOMEM) => "the limit of locked memory is too low; raise `ulimit -l`",
        Some(_) | None => "--io epoll serves the same without it",
    };
    Some(format!("io_uring is refused ({error}): {next}"))
}

fn sysctl_forbids() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled")
        .is_ok_and(|text| text.trim() != "0")
}

/// As `uname -r` prints it.
#[must_use]
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Connections of one worker: what was asked for, as far as its descriptors go. **Source**: RULES 28.
fn connections_max(config: &Config, limit: DescriptorLimit) -> usize {
    let possible = limit.hard_count.saturating_sub(DESCRIPTORS_RESERVED).max(1);
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
    fn kernels_are_compared_by_their_numbers() {
        assert_eq!(kernel_version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(kernel_version("5.10.0-28-amd64"), Some((5, 10)));
        assert_eq!(kernel_version("6.8+"), Some((6, 8)));
        assert_eq!(kernel_version("weird"), None);
        let refusal = refusal_of_ring((1000, 0), "auto").unwrap();
        assert!(refusal.contains("is older than 1000.0, which --io auto needs"), "{refusal}");
        let choice = choose_io(IoChoice::Epoll).unwrap();
        assert_eq!(choice, Choice { io: IoKind::Epoll, refusal: None });
    }

    #[test]
    fn a_directory_that_does_not_exist_holds_nothing() {
        assert_eq!(spool_problem(&std::env::temp_dir()).map(|error| error.to_string()), None);
        let error = spool_problem(Path::new("/nonexistent")).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
