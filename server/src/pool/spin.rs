//! Looking at a word for a while before sleeping on it.

use std::time::Duration;

#[cfg(not(loom))]
use crate::clock;

/// From here on a spin gives the CPU to whoever wants it. **Source**: the notes behind POOL §3.
#[cfg(not(loom))]
const YIELD_AFTER: Duration = Duration::from_micros(2);

/// Looks until there is something or the time is over.
#[cfg(not(loom))]
pub(super) fn until<T>(length: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = clock::now();
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        let elapsed = clock::now().saturating_duration_since(start);
        if elapsed >= length {
            return None;
        }
        if elapsed >= YIELD_AFTER {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Under the model checker one look is a spin: what matters is what happens after the last.
#[cfg(loom)]
pub(super) fn until<T>(_length: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    look()
}
