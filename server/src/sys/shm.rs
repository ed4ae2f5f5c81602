//! Memory that a process shares with the children it forks afterwards.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};

/// Zeroed words, the same ones in every process that was forked since. Nothing but atomics, so that
/// no process has to trust what another one leaves half done. Pages that nobody touches cost nothing.
#[derive(Debug)]
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: I8: the mapping has no thread of its own, and atomics may be used from any.
unsafe impl Send for SharedWords {}
// SAFETY: I8: every access through `&SharedWords` is atomic.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps them. They begin at a page, so whole cache lines lie together.
    ///
    /// # Errors
    /// Out of memory, or no word was asked for.
    pub fn new(count: usize) -> io::Result<Self> {
        let bytes = count * size_of::<AtomicU64>();
        // SAFETY: I8: a new mapping at an address of the kernel's choice; nothing else is there.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )
        }?;
        let start = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, count })
    }

    /// All of them.
    #[inline]
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: I8: `count` words of the mapping, page-aligned, zeroed by the kernel (any bytes are
        // a valid atomic), mapped as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        let bytes = self.count * size_of::<AtomicU64>();
        // SAFETY: I8: exactly the mapping made in `new`; no borrow of it outlives `self`. Other
        // processes keep theirs.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes) };
    }
}

/// Runs `body` in a forked child, which then ends with its result, and waits for that.
#[cfg(test)]
pub(crate) fn in_forked_child(body: impl FnOnce() -> u8) -> Option<i32> {
    // SAFETY: I10: `body` is told to touch shared words and nothing that another thread may have had
    // in its hands: no allocation, no lock.
    match unsafe { libc::fork() } {
        0 => {
            let code = body();
            // SAFETY: I10: ends the child without running anything of the parent's.
            unsafe { libc::_exit(code.into()) }
        }
        pid => {
            let pid = rustix::process::Pid::from_raw(pid)?;
            let waited = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            waited.ok()??.1.exit_status()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_a_forked_child_writes_is_read_here_and_stays_when_it_unmaps() {
        let shared = SharedWords::new(1024).expect("memory");
        let words = shared.words();
        assert_eq!(words.len(), 1024);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        assert_eq!(words.as_ptr().addr() % 64, 0);
        words[0].store(41, Ordering::Relaxed);
        let code = in_forked_child(|| {
            words[0].fetch_add(1, Ordering::Relaxed);
            words[1023].store(7, Ordering::Relaxed);
            0
        });
        assert_eq!(code, Some(0));
        assert_eq!(words[0].load(Ordering::Relaxed), 42);
        assert_eq!(words[1023].load(Ordering::Relaxed), 7);
    }

    #[test]
    fn no_words_are_no_mapping() {
        assert!(SharedWords::new(0).is_err());
    }
}
