//! Private futexes: a pool thread blocks on its own state word.

use std::sync::atomic::AtomicU32;

use rustix::thread::futex;

/// Blocks while `word` holds `value`, or returns early for no reason: the caller looks again.
pub(crate) fn wait(word: &AtomicU32, value: u32) {
    // EAGAIN (the word had changed) and EINTR are both "look again".
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
}

/// Wakes one thread that blocks on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}
