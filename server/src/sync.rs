//! One switch between the standard library's synchronisation and the model checker's.
//!
//! Everything that two threads share goes through these names, so `RUSTFLAGS="--cfg loom"` checks
//! the code that ships and not a copy of it.

#[cfg(loom)]
pub(crate) use loom::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "the one place that names it")]
pub(crate) type Mutex<T> = std::sync::Mutex<T>;

#[cfg(not(loom))]
#[expect(clippy::disallowed_types, reason = "the one place that names it")]
pub(crate) type Condvar = std::sync::Condvar;

/// Locks; a panic of another holder does not spread (what the lock guards is consistent between
/// statements everywhere it is used).
#[cfg(not(loom))]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(loom)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A word on a cache line of its own: neighbours that other threads write do not slow it down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// A bounded queue of many producers and consumers. A push is `Release`, a pop `Acquire`, no more:
/// who also needs "push, then read another word" ordered puts a `SeqCst` fence between.
#[cfg(not(loom))]
pub(crate) use crossbeam_queue::ArrayQueue as Queue;

#[cfg(loom)]
pub(crate) use modelled::Queue;

/// Stand-ins under the model checker.
#[cfg(loom)]
mod modelled {
    use super::{AtomicUsize, Mutex, Ordering};

    /// As weak as `ArrayQueue` promises to be: a push publishes with `Release`, a pop looks with
    /// `Acquire`, and nothing here is `SeqCst`, so a model fails where a fence is missing.
    #[derive(Debug)]
    pub(crate) struct Queue<T> {
        cells: Vec<(AtomicUsize, Mutex<Option<T>>)>,
        pushed: AtomicUsize,
    }

    const VACANT: usize = 0;
    const FILLED: usize = 1;
    const TAKEN: usize = 2;

    impl<T> Queue<T> {
        pub(crate) fn new(capacity: usize) -> Self {
            let cell = |_| (AtomicUsize::new(VACANT), Mutex::new(None));
            Self { cells: (0..capacity).map(cell).collect(), pushed: AtomicUsize::new(0) }
        }

        /// A model pushes less than the capacity over its life, so cells are not reused.
        pub(crate) fn push(&self, value: T) -> Result<(), T> {
            let index = self.pushed.fetch_add(1, Ordering::Relaxed);
            let (state, cell) = &self.cells[index];
            *cell.try_lock().expect("one producer a cell") = Some(value);
            state.store(FILLED, Ordering::Release);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            for (state, cell) in &self.cells {
                // A plain load first: it may be stale, as the real queue's is.
                match state.load(Ordering::Acquire) {
                    VACANT => return None,
                    TAKEN => continue,
                    _ => {}
                }
                let claim =
                    state.compare_exchange(FILLED, TAKEN, Ordering::Acquire, Ordering::Relaxed);
                if claim.is_ok() {
                    return cell.try_lock().expect("one consumer a cell").take();
                }
            }
            None
        }

        pub(crate) fn is_empty(&self) -> bool {
            let states = self.cells.iter().map(|(state, _)| state.load(Ordering::Acquire));
            states.into_iter().all(|state| state != FILLED)
        }

        pub(crate) fn len(&self) -> usize {
            let states = self.cells.iter().map(|(state, _)| state.load(Ordering::Acquire));
            states.into_iter().filter(|state| *state == FILLED).count()
        }
    }
}

/// A thread's own word to block on.
#[derive(Debug)]
pub(crate) struct Parker {
    word: AtomicU32,
    /// The kernel's queue of the futex: its check of the word and its wakes are one behind the other.
    #[cfg(loom)]
    kernel: (Mutex<()>, Condvar),
}

impl Parker {
    pub(crate) fn new(value: u32) -> Self {
        Self {
            word: AtomicU32::new(value),
            #[cfg(loom)]
            kernel: (Mutex::new(()), Condvar::new()),
        }
    }

    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// Blocks while the word is `value`.
    #[cfg(not(loom))]
    pub(crate) fn block_while(&self, value: u32) {
        while self.word.load(Ordering::SeqCst) == value {
            crate::sys::futex::wait(&self.word, value);
        }
    }

    /// Wakes the thread; the word has been changed before.
    #[cfg(not(loom))]
    pub(crate) fn unblock(&self) {
        crate::sys::futex::wake(&self.word);
    }

    #[cfg(loom)]
    pub(crate) fn block_while(&self, value: u32) {
        let mut kernel = lock(&self.kernel.0);
        while self.word.load(Ordering::SeqCst) == value {
            kernel = self.kernel.1.wait(kernel).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    #[cfg(loom)]
    pub(crate) fn unblock(&self) {
        drop(lock(&self.kernel.0));
        self.kernel.1.notify_one();
    }
}
