//! Whether `io_uring` works here, and if not, who refuses it and how to allow it.
//!
//! Asked by the supervisor once, before it forks: it leaves no thread and no descriptor behind.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::Resource;
use rustix::thread::CapabilitySet;

use crate::clock;
use crate::reactor::IoKind;
use crate::reactor::io::{Event, Io};
use crate::reactor::token::Token;
use crate::reactor::wake::Waker;
use crate::sys::ring::{LADDER, Ring, RingSize};

/// What the operator asked for (`--io`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IoRequest {
    /// The ring where it is known to be good, else epoll.
    Auto,
    /// The ring or nothing.
    Uring,
    /// Epoll.
    Epoll,
}

/// A kernel's version, as far as it matters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct KernelVersion {
    /// The 6 of 6.12.
    pub major: u32,
    /// The 12 of 6.12.
    pub minor: u32,
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// From here on `auto` takes the ring. **Source**: RULES 23.
pub const AUTO_SINCE: KernelVersion = KernelVersion { major: 6, minor: 12 };
/// From here on the ring may be asked for: multishot receives are fair. **Source**: RULES 23.
pub const URING_SINCE: KernelVersion = KernelVersion { major: 6, minor: 8 };

/// What the self-test found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProbeReport {
    /// The running kernel.
    pub kernel: KernelVersion,
    /// The size that locked memory allowed for one ring.
    pub size: RingSize,
}

/// Why there is no ring: one sentence for the operator, with the cause and the remedy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Settles what `request` means here, for `workers` processes. With a fallback comes the line that
/// explains it.
///
/// # Errors
/// [`IoRequest::Uring`] and there is no ring to be had.
pub fn choose(request: IoRequest, workers: usize) -> Result<(IoKind, Option<String>), Refused> {
    decide(request, kernel_version(), || {
        let report = self_test()?;
        if let Some(limit) = locked_bytes_limit() {
            enough_for(workers, limit)?;
        }
        Ok(report)
    })
}

fn decide(
    request: IoRequest,
    kernel: Option<KernelVersion>,
    test: impl FnOnce() -> Result<ProbeReport, Refused>,
) -> Result<(IoKind, Option<String>), Refused> {
    let since = match request {
        IoRequest::Epoll => return Ok((IoKind::Epoll, None)),
        IoRequest::Auto => AUTO_SINCE,
        IoRequest::Uring => URING_SINCE,
    };
    let refusal = match kernel {
        Some(kernel) if kernel >= since => match test() {
            Ok(_) => return Ok((IoKind::Uring, None)),
            Err(refused) => refused,
        },
        found => too_old(found, since),
    };
    match request {
        IoRequest::Auto => Ok((IoKind::Epoll, Some(format!("{refusal}; using epoll")))),
        IoRequest::Uring | IoRequest::Epoll => Err(refusal),
    }
}

fn too_old(found: Option<KernelVersion>, since: KernelVersion) -> Refused {
    let Some(found) = found else {
        return Refused("io_uring: the kernel does not tell its version".to_owned());
    };
    let more = if found >= URING_SINCE {
        format!(", and --io uring takes it from {URING_SINCE} on")
    } else {
        String::new()
    };
    Refused(format!("io_uring is used from kernel {since} on{more}; this one is {found}"))
}

/// The running kernel's version.
#[must_use]
pub fn kernel_version() -> Option<KernelVersion> {
    parse_version(&std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

fn parse_version(release: &str) -> Option<KernelVersion> {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.parse().ok()?;
    Some(KernelVersion { major, minor })
}

/// Does once what the reactor does all the time, on a ring of its own: a multishot receive over the
/// buffer ring, a wake, a cancel, a close, a teardown. About a millisecond.
///
/// # Errors
/// What was refused and how to allow it, or the step that went wrong.
pub fn self_test() -> Result<ProbeReport, Refused> {
    let kernel = kernel_version().ok_or_else(|| too_old(None, URING_SINCE))?;
    let waker = Waker::new().map_err(|error| step_failed("eventfd", &error))?;
    let mut ring =
        Ring::new(waker).map_err(|error| setup_refused(&error, &Surroundings::look()))?;
    exercise(&mut ring)?;
    Ok(ProbeReport { kernel, size: ring.size() })
}

fn exercise(ring: &mut Ring) -> Result<(), Refused> {
    let io_step = |what: &'static str| move |error: io::Error| step_failed(what, &error);
    let (mut peer, socket) = UnixStream::pair().map_err(io_step("a socket pair"))?;
    socket.set_nonblocking(true).map_err(io_step("a socket pair"))?;
    let token = Token::new(0, 0);
    ring.adopt(token, OwnedFd::from(socket));
    ring.start_recv(token);
    for message in [&b"one"[..], b"two"] {
        peer.write_all(message).map_err(io_step("a socket pair"))?;
        expect(ring, "a multishot receive", |ring, event| match event {
            Event::Data { chunk, .. } => ring.chunk(*chunk) == message,
            Event::Accepted { .. }
            | Event::AcceptFailed { .. }
            | Event::Eof { .. }
            | Event::RecvFailed { .. }
            | Event::Sent { .. }
            | Event::Writable { .. }
            | Event::Closed { .. }
            | Event::Woken => false,
        })?;
    }
    if ring.counters().rearm_count != 0 {
        return Err(Refused("io_uring: a multishot receive ends after each message".to_owned()));
    }
    ring.waker().wake();
    expect(ring, "a wake by eventfd", |_, event| matches!(event, Event::Woken))?;
    ring.close(token);
    expect(ring, "a cancel", |_, event| matches!(event, Event::Closed { .. }))
}

/// Waits until `wanted` has happened.
fn expect(
    ring: &mut Ring,
    what: &'static str,
    wanted: impl Fn(&Ring, &Event<OwnedFd>) -> bool,
) -> Result<(), Refused> {
    let begin = clock::now();
    while clock::now() - begin < STEP_TIMEOUT {
        ring.wait(Some(STEP_TIMEOUT / 10)).map_err(|error| step_failed(what, &error))?;
        let mut found = false;
        while let Some(event) = ring.next_event() {
            found |= wanted(ring, &event);
        }
        ring.end_pass();
        if found {
            return Ok(());
        }
    }
    let seconds = STEP_TIMEOUT.as_secs();
    Err(Refused(format!("io_uring: the self-test saw no answer to {what} within {seconds} s")))
}

/// How long a step of the self-test may take. **Why**: a loaded machine, not the kernel, is slow.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);

fn step_failed(what: &str, error: &io::Error) -> Refused {
    Refused(format!("io_uring: the self-test failed at {what}: {error}"))
}

/// What may stand behind a refusal.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Surroundings {
    /// `kernel.io_uring_disabled`, since 6.6.
    disabled: Option<u32>,
    has_seccomp_filter: bool,
    /// `None`: no limit for us. **Unit**: bytes.
    locked_bytes_limit: Option<u64>,
}

impl Surroundings {
    fn look() -> Self {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        Self {
            disabled: disabled.and_then(|text| text.trim().parse().ok()),
            has_seccomp_filter: status
                .lines()
                .filter_map(|line| line.strip_prefix("Seccomp:"))
                .any(|mode| mode.trim() == "2"),
            locked_bytes_limit: locked_bytes_limit(),
        }
    }
}

/// The limit of locked memory, if there is one for us. **Unit**: bytes.
fn locked_bytes_limit() -> Option<u64> {
    let privileged = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if privileged { None } else { rustix::process::getrlimit(Resource::Memlock).current }
}

fn setup_refused(error: &io::Error, surroundings: &Surroundings) -> Refused {
    let code = error.raw_os_error().unwrap_or(0);
    let name = errno_name(code);
    let cause = match code {
        libc::ENOMEM => memory_remedy(1, surroundings.locked_bytes_limit),
        libc::EMFILE | libc::ENFILE => {
            "the open-files limit is reached; raise it (ulimit -n, LimitNOFILE=)".to_owned()
        }
        libc::EPERM if surroundings.disabled.is_some_and(|level| level > 0) => format!(
            "the sysctl kernel.io_uring_disabled is {}; allow it with \
             sysctl kernel.io_uring_disabled=0",
            surroundings.disabled.unwrap_or_default(),
        ),
        libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EOPNOTSUPP
            if surroundings.has_seccomp_filter =>
        {
            "a seccomp filter forbids it, as the default profiles of Docker, containerd and \
             Kubernetes do; allow io_uring_setup, io_uring_enter and io_uring_register in the \
             profile (docker run --security-opt seccomp=FILE)"
                .to_owned()
        }
        libc::EPERM | libc::EACCES => {
            "a security module forbids it; allow io_uring for this service".to_owned()
        }
        libc::ENOSYS => {
            "this kernel or sandbox (gVisor, an old container host) does not have it; run on a \
             kernel with CONFIG_IO_URING"
                .to_owned()
        }
        libc::EINVAL | libc::EOPNOTSUPP => {
            "this kernel lacks a feature that is needed; use kernel 6.12 or later".to_owned()
        }
        _ => format!("an unexpected answer ({error}); see dmesg"),
    };
    Refused(format!("io_uring_setup was refused with {name}: {cause}"))
}

/// Whether every one of `workers` gets a ring, when each takes the largest that is left room for.
/// The limit counts per user, over all processes.
fn enough_for(workers: usize, limit: u64) -> Result<(), Refused> {
    let mut left = limit;
    for _ in 0..workers {
        let size = LADDER.iter().map(|size| size.locked_bytes()).find(|bytes| *bytes <= left);
        match size {
            Some(bytes) => left -= bytes,
            None => {
                return Err(Refused(format!("io_uring: {}", memory_remedy(workers, Some(limit)))));
            }
        }
    }
    Ok(())
}

fn memory_remedy(workers: usize, limit: Option<u64>) -> String {
    let needed = (workers as u64 * LADDER[0].locked_bytes()).div_ceil(1024);
    let rings = if workers == 1 { "one ring needs" } else { "the workers' rings need" };
    match limit {
        Some(bytes) => format!(
            "{rings} {needed} KiB of locked memory and RLIMIT_MEMLOCK allows {} KiB for all of \
             this user's processes; raise it (LimitMEMLOCK=, ulimit -l)",
            bytes / 1024
        ),
        None => format!("{rings} {needed} KiB and the kernel has no memory for them; free some"),
    }
}

fn errno_name(code: i32) -> String {
    let name = match code {
        libc::EPERM => "EPERM",
        libc::EACCES => "EACCES",
        libc::ENOSYS => "ENOSYS",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EINVAL => "EINVAL",
        libc::ENOMEM => "ENOMEM",
        libc::EMFILE => "EMFILE",
        libc::ENFILE => "ENFILE",
        libc::EAGAIN => "EAGAIN",
        libc::EFAULT => "EFAULT",
        _ => return format!("error {code}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: ProbeReport = ProbeReport { kernel: AUTO_SINCE, size: LADDER[0] };

    fn version(major: u32, minor: u32) -> Option<KernelVersion> {
        Some(KernelVersion { major, minor })
    }

    #[test]
    fn versions_are_read_as_distributions_write_them() {
        for (text, expected) in [
            ("6.18.44-fc-v657\n", version(6, 18)),
            ("6.8.0-45-generic", version(6, 8)),
            ("5.14.0-427.el9.x86_64", version(5, 14)),
            ("6.12-rc3", version(6, 12)),
            ("4.4.0", version(4, 4)),
            ("", None),
            ("linux", None),
        ] {
            assert_eq!(parse_version(text), expected, "{text}");
        }
        assert!(kernel_version().is_some());
    }

    #[test]
    fn the_tiers_of_rule_23() {
        let good = || Ok(REPORT);
        let bad = || Err(Refused("io_uring: refused".to_owned()));
        for (request, kernel, expected) in [
            (IoRequest::Auto, version(6, 12), IoKind::Uring),
            (IoRequest::Auto, version(7, 0), IoKind::Uring),
            (IoRequest::Auto, version(6, 11), IoKind::Epoll),
            (IoRequest::Auto, version(5, 14), IoKind::Epoll),
            (IoRequest::Auto, None, IoKind::Epoll),
            (IoRequest::Uring, version(6, 8), IoKind::Uring),
            (IoRequest::Epoll, version(6, 18), IoKind::Epoll),
        ] {
            let (kind, line) = decide(request, kernel, good).expect("allowed");
            assert_eq!(kind, expected, "{request:?} on {kernel:?}");
            assert_eq!(line.is_some(), request == IoRequest::Auto && kind == IoKind::Epoll);
        }
        let old = decide(IoRequest::Uring, version(6, 7), good).expect_err("6.7 is too old");
        assert_eq!(old.to_string(), "io_uring is used from kernel 6.8 on; this one is 6.7");
        let refused = decide(IoRequest::Uring, version(6, 12), bad).expect_err("refused");
        assert_eq!(refused.to_string(), "io_uring: refused");
        let (kind, line) = decide(IoRequest::Auto, version(6, 12), bad).expect("falls back");
        assert_eq!(kind, IoKind::Epoll);
        assert_eq!(line.as_deref(), Some("io_uring: refused; using epoll"));
    }

    #[test]
    fn a_refusal_names_the_cause_and_the_remedy() {
        let plain =
            Surroundings { disabled: Some(0), has_seccomp_filter: false, locked_bytes_limit: None };
        let filtered = Surroundings { has_seccomp_filter: true, ..plain };
        let disabled = Surroundings { disabled: Some(2), has_seccomp_filter: true, ..plain };
        let limited = Surroundings { locked_bytes_limit: Some(8192), ..plain };
        for (code, surroundings, needles) in [
            (libc::EPERM, disabled, ["EPERM", "sysctl kernel.io_uring_disabled=0"]),
            (libc::EPERM, filtered, ["EPERM", "--security-opt seccomp="]),
            (libc::EPERM, plain, ["EPERM", "security module"]),
            (libc::ENOSYS, plain, ["ENOSYS", "CONFIG_IO_URING"]),
            (libc::EINVAL, plain, ["EINVAL", "kernel 6.12"]),
            (libc::ENOMEM, limited, ["ENOMEM", "RLIMIT_MEMLOCK allows 8 KiB"]),
            (libc::ENOMEM, plain, ["ENOMEM", "no memory"]),
            (libc::EMFILE, plain, ["EMFILE", "LimitNOFILE="]),
            (libc::EIO, plain, ["error 5", "dmesg"]),
        ] {
            let error = io::Error::from_raw_os_error(code);
            let text = setup_refused(&error, &surroundings).to_string();
            for needle in needles {
                assert!(text.contains(needle), "{text}");
            }
        }
    }

    #[test]
    fn memory_is_counted_over_all_workers() {
        let kib = |count: u64| count * 1024;
        assert_eq!(enough_for(1, kib(64)), Ok(()));
        let two = enough_for(2, kib(64)).expect_err("the first leaves 8 KiB").to_string();
        assert!(two.contains("need 232 KiB") && two.contains("allows 64 KiB"), "{two}");
        assert_eq!(enough_for(16, kib(8192)), Ok(()));
        assert!(enough_for(100, kib(8192)).is_err());
    }
}
