//! Descriptors that are this process's alone: a child that the application forks closes them.
//!
//! `os.fork()` and `multiprocessing` copy every descriptor. A child that outlives its worker would
//! keep the port bound, the peers connected and the ring's operations armed. Which descriptors those
//! are is kept in a bit each, so that the child, in which only the forking thread lives on and any
//! other structure may have been caught half-written, can close them without looking at anything else.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Higher descriptors are not noted. **Why**: the kernel's default of `fs.nr_open`.
const DESCRIPTOR_COUNT_MAX: usize = 1 << 20;

/// Pages of it that no descriptor falls into are never touched and cost nothing.
static HELD: [AtomicU64; DESCRIPTOR_COUNT_MAX / 64] =
    [const { AtomicU64::new(0) }; DESCRIPTOR_COUNT_MAX / 64];

/// This process is a child that was forked by a worker's application.
static IS_FORKED_CHILD: AtomicBool = AtomicBool::new(false);

/// The note of a descriptor that somebody else owns. Dropped before the descriptor is closed.
#[derive(Debug)]
pub struct Note(RawFd);

impl Note {
    /// No forked child keeps it.
    #[must_use]
    pub fn of(descriptor: &impl AsRawFd) -> Self {
        let descriptor = descriptor.as_raw_fd();
        if let Some((word, bit)) = place(descriptor) {
            word.fetch_or(bit, Ordering::SeqCst);
        }
        Self(descriptor)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if let Some((word, bit)) = place(self.0) {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }
}

/// A descriptor that no forked child keeps.
#[derive(Debug)]
pub struct Held {
    /// First, since fields are dropped in order: the number may be anybody's once it is closed.
    _note: Note,
    descriptor: OwnedFd,
}

impl Held {
    /// Notes it.
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Self {
        Self { _note: Note::of(&descriptor), descriptor }
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Held {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

fn place(descriptor: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let index = usize::try_from(descriptor).ok()?;
    Some((HELD.get(index / 64)?, 1 << (index % 64)))
}

/// In a forked child, before it does anything: closes what is the worker's, and remembers what it is.
pub fn let_go_in_child() {
    IS_FORKED_CHILD.store(true, Ordering::SeqCst);
    for (index, word) in HELD.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::SeqCst);
        while bits != 0 {
            let descriptor = index * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: I9: the worker's owner of it does not run in this process.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) });
        }
    }
}

/// Whether this process is such a child.
#[must_use]
pub fn is_forked_child() -> bool {
    IS_FORKED_CHILD.load(Ordering::Relaxed)
}
