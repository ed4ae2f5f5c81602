//! Signal handlers that count and wake, and nothing else: the loop that owns them looks later.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use libc::c_int;

/// Linux has 64 signals; index 0 is unused.
const SIGNAL_COUNT: usize = 65;

static WAKE: AtomicI32 = AtomicI32::new(-1);
static OWNER: AtomicI32 = AtomicI32::new(0);
static COUNTS: [AtomicU32; SIGNAL_COUNT] = [const { AtomicU32::new(0) }; SIGNAL_COUNT];

/// The signals that this process watches, and what they did before.
///
/// One process has one watch at a time. A child made by `fork` inherits the handlers: there a signal
/// takes its default effect, until the child restores what was before or installs a watch of its own.
#[derive(Debug)]
pub struct SignalWatch {
    /// Never closed: a handler may run at any time.
    wake: std::mem::ManuallyDrop<OwnedFd>,
    previous: Vec<(c_int, Disposition)>,
    /// The same, of signals that the application may take over.
    absorbed: Vec<(c_int, Disposition)>,
}

#[derive(Clone, Copy)]
struct Disposition(libc::sigaction);

impl std::fmt::Debug for Disposition {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Disposition({:#x})", self.0.sa_sigaction)
    }
}

impl SignalWatch {
    /// Installs a handler (`SA_RESTART`) for each signal.
    ///
    /// # Errors
    /// Out of descriptors, or a signal that cannot be handled.
    pub fn install(signals: &[c_int]) -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        let wake = std::mem::ManuallyDrop::new(rustix::event::eventfd(0, flags)?);
        for count in &COUNTS {
            count.store(0, Ordering::SeqCst);
        }
        WAKE.store(wake.as_raw_fd(), Ordering::SeqCst);
        OWNER.store(std::process::id().cast_signed(), Ordering::SeqCst);
        let mut watch = Self { wake, previous: Vec::new(), absorbed: Vec::new() };
        for &signal in signals {
            let previous = set_handler(signal, &counting_handler())?;
            watch.previous.push((signal, previous));
        }
        Ok(watch)
    }

    /// Counts these signals too, as far as nobody handles or ignores them, and until the application
    /// has a handler of its own. A handler of ours that was inherited counts as none.
    ///
    /// # Errors
    /// A signal that cannot be handled.
    pub fn absorb(&mut self, signals: &[c_int]) -> io::Result<()> {
        for &signal in signals {
            let handler = Handled::find(signal)?.handler;
            if handler == libc::SIG_DFL || handler == counting_handler().0.sa_sigaction {
                let previous = set_handler(signal, &counting_handler())?;
                self.absorbed.push((signal, previous));
            }
        }
        Ok(())
    }

    /// Installs the handlers once more: an application may have put its own in their place.
    ///
    /// # Errors
    /// None that `install` would not have had.
    pub fn assert_again(&self) -> io::Result<()> {
        for (signal, _) in &self.previous {
            set_handler(*signal, &counting_handler())?;
        }
        Ok(())
    }

    /// Puts back what was there before.
    pub fn restore(&self) {
        for (signal, previous) in self.previous.iter().chain(&self.absorbed) {
            // It was accepted once.
            let _ = set_handler(*signal, previous);
        }
    }

    /// How often the signal came since the last call.
    #[must_use]
    pub fn take(&self, signal: c_int) -> u32 {
        COUNTS[signal as usize].swap(0, Ordering::SeqCst)
    }

    /// Before the counts are taken: makes the descriptor unreadable until the next signal.
    pub fn clear(&self) {
        let mut count = [0; 8];
        // Empty is as good as emptied.
        let _ = rustix::io::read(&*self.wake, &mut count);
    }
}

impl AsFd for SignalWatch {
    /// Readable when a signal came.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

fn counting_handler() -> Disposition {
    disposition(count_and_wake as extern "C" fn(c_int) as libc::sighandler_t)
}

fn disposition(handler: libc::sighandler_t) -> Disposition {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: I7: all-zero is a valid sigaction: SIG_DFL, no flags, an empty mask.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART;
    Disposition(*action)
}

fn set_handler(signal: c_int, new: &Disposition) -> io::Result<Disposition> {
    let mut old = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: I6, I7.
    if unsafe { libc::sigaction(signal, &raw const new.0, old.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: I7: the call succeeded and filled it.
    Ok(Disposition(unsafe { old.assume_init() }))
}

/// A handler that somebody else installed, to be sure of it before its signal is raised.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Handled {
    signal: c_int,
    handler: libc::sighandler_t,
}

impl Handled {
    /// The handler that the signal has now.
    ///
    /// # Errors
    /// There is no such signal.
    pub fn find(signal: c_int) -> io::Result<Self> {
        let mut found = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: I7.
        if unsafe { libc::sigaction(signal, std::ptr::null(), found.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: I7: the call succeeded and filled it.
        let handler = unsafe { found.assume_init() }.sa_sigaction;
        Ok(Self { signal, handler })
    }

    /// Sends the signal to this process, for any thread that does not block it. False: it has
    /// another handler by now, and nothing was sent.
    ///
    /// # Errors
    /// The kernel's.
    pub fn raise(self) -> io::Result<bool> {
        if Self::find(self.signal)? != self {
            return Ok(false);
        }
        // SAFETY: I6: getpid cannot fail.
        let process = unsafe { libc::getpid() };
        // SAFETY: I6.
        if unsafe { libc::kill(process, self.signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(true)
    }

    /// What [`Self::find`] would say of a handler that is not there.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn of_another(self) -> Self {
        Self { handler: self.handler.wrapping_add(1), ..self }
    }
}

/// The handler. Everything it calls is async-signal-safe, and it leaves `errno` as it was.
extern "C" fn count_and_wake(signal: c_int) {
    // SAFETY: I6: getpid cannot fail.
    if unsafe { libc::getpid() } != OWNER.load(Ordering::Relaxed) {
        // A process that the application forked has inherited this handler, and the descriptor is
        // its parent's. The signal is blocked here and takes its default effect on return.
        let default = disposition(libc::SIG_DFL);
        // SAFETY: I6, I7.
        unsafe { libc::sigaction(signal, &raw const default.0, std::ptr::null_mut()) };
        // SAFETY: I6.
        unsafe { libc::raise(signal) };
        return;
    }
    COUNTS[signal as usize].fetch_add(1, Ordering::SeqCst);
    // SAFETY: I6: the address is this thread's and never null.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: I6.
    let saved = unsafe { *errno };
    let one = 1_u64.to_ne_bytes();
    // SAFETY: I6, I7. EAGAIN (the counter is full) leaves it readable, which is all that matters.
    unsafe { libc::write(WAKE.load(Ordering::Relaxed), one.as_ptr().cast(), one.len()) };
    // SAFETY: I6.
    unsafe { *errno = saved };
}

/// The signals that the calling thread blocked before [`SignalMask::block_all`].
#[derive(Clone, Copy)]
pub struct SignalMask(libc::sigset_t);

impl std::fmt::Debug for SignalMask {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SignalMask")
    }
}

impl SignalMask {
    /// Blocks every signal but a thread's own faults in the calling thread, and in the process that it
    /// forks: none arrives between the fork and the child's own handlers.
    #[must_use]
    pub fn block_all() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: I7: the call fills it and cannot fail.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        for signal in super::process::FAULTS {
            // SAFETY: I7: filled above.
            unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
        }
        let mut old = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: I7: with a valid `how` the call cannot fail and fills `old`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) };
        // SAFETY: I7: filled above.
        Self(unsafe { old.assume_init() })
    }

    /// Blocks again what was blocked before, in this thread.
    pub fn restore(self) {
        // SAFETY: I7.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_counted_while_blocked_ones_wait() {
        // One test, because the watch is the process's.
        let watch = SignalWatch::install(&[libc::SIGUSR2]).expect("a handler");
        // SAFETY: I6.
        unsafe { libc::raise(libc::SIGUSR2) };
        assert_eq!((watch.take(libc::SIGUSR2), watch.take(libc::SIGUSR2)), (1, 0));
        watch.clear();
        let mask = SignalMask::block_all();
        // SAFETY: I6: to this thread.
        unsafe { libc::raise(libc::SIGUSR2) };
        assert_eq!(watch.take(libc::SIGUSR2), 0);
        mask.restore();
        assert_eq!(watch.take(libc::SIGUSR2), 1);
        watch.assert_again().expect("again");
        watch.restore();
    }

    #[test]
    fn a_signal_that_somebody_handles_is_not_absorbed() {
        extern "C" fn theirs(_: c_int) {}
        let theirs = disposition(theirs as extern "C" fn(c_int) as libc::sighandler_t);
        let (taken, inherited, free) = (libc::SIGTTIN, libc::SIGTTOU, libc::SIGWINCH);
        set_handler(taken, &theirs).expect("a handler");
        set_handler(inherited, &counting_handler()).expect("a handler");
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC);
        let wake = std::mem::ManuallyDrop::new(wake.expect("a descriptor"));
        let mut watch = SignalWatch { wake, previous: Vec::new(), absorbed: Vec::new() };
        watch.absorb(&[taken, inherited, free]).expect("handlers");
        let absorbed: Vec<_> = watch.absorbed.iter().map(|(signal, _)| *signal).collect();
        assert_eq!(absorbed, [inherited, free]);
        assert_eq!(Handled::find(taken).expect("it").handler, theirs.0.sa_sigaction);
    }
}
