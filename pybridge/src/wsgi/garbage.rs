//! Python `bytes` lent to the reactor, and their way back.
//!
//! The reactor never attaches, so it cannot drop a Python object. What it is done with goes to a queue
//! that the pool threads empty while they are attached. The queue holds no more than was lent, and
//! what is lent is bounded by the credit of the responses in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use crossbeam_queue::SegQueue;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

/// What came back and waits for an attached thread.
#[derive(Debug, Default)]
pub(super) struct Garbage {
    queue: SegQueue<PyBackedBytes>,
    /// How many are in `queue`.
    waiting: Arc<AtomicUsize>,
}

impl Garbage {
    pub(super) fn counter(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.waiting)
    }

    /// The same bytes for the reactor, without a copy.
    pub(super) fn lend(self: &Arc<Self>, bytes: &Bound<'_, PyBytes>) -> Bytes {
        let bytes = Some(PyBackedBytes::from(bytes.clone()));
        Bytes::from_owner(Lent { bytes, garbage: Arc::clone(self) })
    }

    /// Drops what came back.
    pub(super) fn reclaim(&self, _attached: Python<'_>) {
        while self.waiting.load(Ordering::Relaxed) > 0
            && let Some(bytes) = self.queue.pop()
        {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            drop(bytes);
        }
    }
}

#[derive(Debug)]
struct Lent {
    /// `None` only while it is dropped.
    bytes: Option<PyBackedBytes>,
    garbage: Arc<Garbage>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            // Counted first: the count is never below what can be popped.
            self.garbage.waiting.fetch_add(1, Ordering::Relaxed);
            self.garbage.queue.push(bytes);
        }
    }
}
