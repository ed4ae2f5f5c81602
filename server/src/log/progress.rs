//! What a writer and those who wait for it share.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock;

#[expect(clippy::disallowed_types, reason = "the log is no part of what the model checks")]
pub(super) type Mutex<T> = std::sync::Mutex<T>;

#[expect(clippy::disallowed_types, reason = "the log is no part of what the model checks")]
type Condvar = std::sync::Condvar;

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number that grows and can be waited for.
#[derive(Debug, Default)]
pub(super) struct Count {
    value: Mutex<u64>,
    moved: Condvar,
}

impl Count {
    pub(super) fn add(&self, more: u64) {
        *lock(&self.value) += more;
        self.moved.notify_all();
    }

    pub(super) fn get(&self) -> u64 {
        *lock(&self.value)
    }

    /// Waits until the number is enough, this long at most. True: it is.
    pub(super) fn wait(&self, patience: Duration, is_enough: impl Fn(u64) -> bool) -> bool {
        let deadline = clock::now() + patience;
        let mut value = lock(&self.value);
        while !is_enough(*value) {
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.moved.wait_timeout(value, left);
            value = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

/// A place for one thing, cheap to find empty.
#[derive(Debug)]
pub(super) struct Slot<T> {
    is_full: AtomicBool,
    content: Mutex<Option<T>>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { is_full: AtomicBool::new(false), content: Mutex::new(None) }
    }
}

impl<T> Slot<T> {
    /// Puts a thing in the place of what nobody took.
    pub(super) fn put(&self, thing: T) {
        *lock(&self.content) = Some(thing);
        self.is_full.store(true, Ordering::Release);
    }

    pub(super) fn take(&self) -> Option<T> {
        if !self.is_full.swap(false, Ordering::Acquire) {
            return None;
        }
        lock(&self.content).take()
    }
}
