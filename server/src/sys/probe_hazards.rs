//! What forbids `io_uring` in the wild, done to threads and children of the test.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit};

use super::probe::{IoRequest, choose, self_test};
use super::ring::{LADDER, Ring};
use crate::reactor::IoKind;
use crate::reactor::wake::Waker;

/// Runs one test of this binary again, as a child that finds `ROLE` set.
fn as_child(test: &str) {
    let binary = std::env::current_exe().expect("there is one");
    let child = Command::new(binary)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, "1")
        .output()
        .expect("it can be started");
    let text = String::from_utf8_lossy(&child.stdout);
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "signal {:?}: {text}{errors}", child.status.signal());
    assert!(text.contains("1 passed"), "the child ran nothing: {text}");
}

const ROLE: &str = "HOOPSNAKE_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Makes `io_uring_setup` fail with `errno` in the calling thread, for good.
fn forbid_io_uring(errno: i32) {
    let load = |offset: u32| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: offset };
    let give = |value: u32| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: value };
    let mut program = [
        load(0),
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: libc::SYS_io_uring_setup as u32 },
        give(libc::SECCOMP_RET_ERRNO | errno as u32),
        give(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: I7: no pointer.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0);
    // SAFETY: I7: a live program of the length that it says.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn hazard_26_every_refusal_falls_back_and_says_why() {
    for (errno, name) in [
        (libc::EPERM, "EPERM"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EACCES, "EACCES"),
    ] {
        let thread = std::thread::Builder::new().spawn(move || {
            forbid_io_uring(errno);
            (choose(IoRequest::Auto, 2), choose(IoRequest::Uring, 2), self_test())
        });
        let (auto, uring, test) = thread.expect("a thread").join().expect("no panic");
        let (kind, line) = auto.expect("auto never fails");
        assert_eq!(kind, IoKind::Epoll);
        let line = line.expect("a fallback is explained");
        assert!(line.contains(name) && line.contains("seccomp"), "{line}");
        assert!(line.ends_with("; using epoll") && !line.contains('\n'), "{line}");
        let refused = uring.expect_err("forbidden");
        assert_eq!(format!("{refused}; using epoll"), line);
        assert_eq!(test, Err(refused));
    }
}

#[test]
fn hazard_25_little_locked_memory_is_found_out_for_all_workers() {
    const NOBODY: u32 = 65_534;
    if !is_child() {
        return as_child(
            "sys::probe_hazards::hazard_25_little_locked_memory_is_found_out_for_all_workers",
        );
    }
    let limit = Some(64 * 1024);
    rustix::process::setrlimit(Resource::Memlock, Rlimit { current: limit, maximum: limit })
        .expect("lowering is allowed");
    if rustix::process::geteuid().is_root() {
        // The system call, not libc's wrapper: only this thread, which then has no capability.
        // SAFETY: I7: no pointer.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
        assert_eq!(result, 0);
    }
    let ring = Ring::new(Waker::new().expect("a descriptor")).expect("a smaller ring fits");
    assert_eq!(ring.size(), LADDER[1]);
    let second = Ring::new(Waker::new().expect("a descriptor")).err().expect("no room for two");
    assert_eq!(second.raw_os_error(), Some(libc::ENOMEM));
    let refused = self_test().expect_err("no room for two").to_string();
    assert!(refused.contains("ENOMEM") && refused.contains("LimitMEMLOCK="), "{refused}");
    drop(ring);
    let (kind, line) = choose(IoRequest::Auto, 8).expect("auto never fails");
    assert_eq!(kind, IoKind::Epoll);
    let line = line.expect("a fallback is explained");
    assert!(line.contains("RLIMIT_MEMLOCK allows 64 KiB"), "{line}");
    assert!(choose(IoRequest::Uring, 8).is_err());
}

#[test]
fn the_self_test_passes_and_leaves_nothing_behind() {
    if !is_child() {
        return as_child("sys::probe_hazards::the_self_test_passes_and_leaves_nothing_behind");
    }
    let count = |what: &str| std::fs::read_dir(what).expect("procfs").count();
    let before = (count("/proc/self/fd"), count("/proc/self/task"));
    for _ in 0..20 {
        let report = self_test().expect("io_uring is allowed here");
        assert_eq!(report.size, LADDER[0]);
    }
    assert_eq!(choose(IoRequest::Auto, 2), Ok((IoKind::Uring, None)));
    assert_eq!((count("/proc/self/fd"), count("/proc/self/task")), before);
}
