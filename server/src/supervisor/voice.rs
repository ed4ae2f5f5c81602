//! Who of several workers says what they all would say: why the application cannot be loaded.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// One word for all workers; whoever takes it speaks.
#[derive(Clone, Debug)]
pub struct Voice(Arc<OwnedFd>);

impl Voice {
    /// The word is there.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
        Ok(Self(Arc::new(eventfd(1, flags)?)))
    }

    /// True for the first caller of all processes. Where an application has closed what is not its
    /// own, nobody knows who was first, and everybody speaks.
    #[must_use]
    pub fn take(&self) -> bool {
        rustix::io::read(&*self.0, &mut [0_u8; 8]) != Err(rustix::io::Errno::AGAIN)
    }

    /// The word is there again.
    pub(super) fn give_back(&self) {
        let _ = self.take();
        // It was empty: this cannot overflow.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_speaks_until_the_word_is_given_back() {
        let voice = Voice::new().unwrap();
        let other = voice.clone();
        assert_eq!((other.take(), voice.take()), (true, false));
        voice.give_back();
        voice.give_back();
        assert_eq!((voice.take(), other.take()), (true, false));
    }
}
