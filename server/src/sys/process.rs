//! What a process or a thread asks of the kernel about itself.

use std::io;

use rustix::process::{Pid, Resource, Rlimit, Signal};

/// Signals that a fault of the thread itself raises. Blocked, the kernel would kill the process
/// without running a handler, and `faulthandler` could not print its trace.
pub(super) const FAULTS: [libc::c_int; 4] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// Blocks every signal but the faults in the calling thread. Only threads that start none do so: a
/// mask is inherited by every child process of the thread that has it. **Source**: RULES 2.
pub fn block_all_signals() {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: I7: the set is a live local; sigfillset initialises all of it.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    for signal in FAULTS {
        // SAFETY: I7: the set was initialised above.
        unsafe { libc::sigdelset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: I7: the set is initialised; the old mask is not asked for.
    let result =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut()) };
    debug_assert_eq!(result, 0, "SIG_SETMASK with a filled set cannot be refused");
}

/// Ends the process here and now, from any thread: nothing registered for its exit runs.
pub fn end(code: u8) -> ! {
    // SAFETY: I6: no memory is passed, and it does not return.
    unsafe { libc::_exit(code.into()) }
}

/// The process's limit of open descriptors. `u64::MAX`: none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DescriptorLimit {
    /// What is enforced. **Unit**: descriptors.
    pub soft_count: u64,
    /// What it may be raised to. **Unit**: descriptors.
    pub hard_count: u64,
}

/// Raises the soft limit of open descriptors to the hard one. **Source**: RULES 28.
///
/// # Errors
/// The kernel's, naming nothing more: the old limit stays in force.
pub fn raise_nofile() -> io::Result<DescriptorLimit> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(
        Resource::Nofile,
        Rlimit { current: limit.maximum, maximum: limit.maximum },
    )?;
    let hard_count = limit.maximum.unwrap_or(u64::MAX);
    Ok(DescriptorLimit { soft_count: hard_count, hard_count })
}

/// The process that forked this one, to be ended with.
#[derive(Clone, Copy, Debug)]
pub struct Parent(Pid);

impl Parent {
    /// The calling process, as its children will know it. Before the fork.
    #[must_use]
    pub fn of_children() -> Self {
        Self(rustix::process::getpid())
    }

    /// In the child: from now on SIGKILL comes when the parent ends. False: it has ended already. The
    /// kernel forgets it when the process changes its user or group.
    ///
    /// # Errors
    /// None that a valid signal can have.
    pub fn tie(self) -> io::Result<bool> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If it ended before the call, no signal comes.
        Ok(rustix::process::getppid() == Some(self.0))
    }

    /// In the child: the end of the parent is no signal any more.
    pub fn untie(self) {
        // No signal is always a valid one.
        let _ = rustix::process::set_parent_process_death_signal(None);
    }
}

/// A child that has ended and is still to be waited for; `None`: there is none.
#[must_use]
pub fn ended_child() -> Option<Pid> {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: I7.
    while unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), look) } != 0 {
        // ECHILD: there are no children.
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
    // SAFETY: I7: all-zero is a valid siginfo, which the call fills, or leaves as it is where no child
    // has ended.
    let info = unsafe { info.assume_init() };
    // SAFETY: I7: waitid fills this field of the union; where no child has ended it is 0.
    Pid::from_raw(unsafe { info.si_pid() })
}

/// Names the calling thread for `top -H` and debuggers; the kernel keeps 15 bytes of it.
pub fn name_thread(name: &std::ffi::CStr) {
    // Only a bad address could be refused.
    let _ = rustix::thread::set_name(name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_limit_is_the_hard_one() {
        let limit = raise_nofile().expect("raising to the hard limit is always allowed");
        assert_eq!(limit.soft_count, limit.hard_count);
        let now = rustix::process::getrlimit(Resource::Nofile);
        assert_eq!(now.current.unwrap_or(u64::MAX), limit.hard_count);
    }

    #[test]
    fn all_but_the_faults_are_blocked_in_this_thread_only() {
        fn blocked() -> u64 {
            let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
            let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
            u64::from_str_radix(line.expect("SigBlk").trim(), 16).expect("hex")
        }
        let before = blocked();
        let inside = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    block_all_signals();
                    blocked()
                })
                .join()
                .expect("no panic")
        });
        assert_eq!(blocked(), before);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGPIPE, libc::SIGCHLD, libc::SIGUSR1] {
            assert_ne!(inside & 1 << (signal - 1), 0, "signal {signal} is not blocked");
        }
        for signal in FAULTS {
            assert_eq!(inside & 1 << (signal - 1), 0, "signal {signal} is blocked");
        }
    }
}
