//! Which requests are inside the application right now, for the report of what was left at a stop.

use std::sync::{Arc, PoisonError};

use hoopsnake_server::exchange::Exchange;
use hoopsnake_server::http::Version;
use hoopsnake_server::pool::ThreadIndex;

#[expect(
    clippy::disallowed_types,
    reason = "guards one word; nothing here is for a model to check"
)]
type Mutex<T> = std::sync::Mutex<T>;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one thread runs. Its lock is taken by others only for a report.
#[derive(Debug)]
pub(super) struct Place {
    index: ThreadIndex,
    exchange: Mutex<Option<Arc<Exchange>>>,
}

impl Place {
    /// The thread begins a request, or ended it.
    pub(super) fn set(&self, exchange: Option<Arc<Exchange>>) {
        let earlier = std::mem::replace(&mut *lock(&self.exchange), exchange);
        drop(earlier);
    }
}

/// One place per thread.
#[derive(Debug, Default)]
pub(super) struct Running(Mutex<Vec<Arc<Place>>>);

impl Running {
    pub(super) fn register(&self, index: ThreadIndex) -> Arc<Place> {
        let place = Arc::new(Place { index, exchange: Mutex::new(None) });
        let mut places = lock(&self.0);
        places.retain(|other| other.index != index);
        places.push(Arc::clone(&place));
        place
    }

    pub(super) fn list(&self) -> Vec<(ThreadIndex, String)> {
        let places = lock(&self.0);
        let running = places.iter().filter_map(|place| {
            let exchange = lock(&place.exchange).clone()?;
            let version = match exchange.head.version() {
                Version::Http10 => "HTTP/1.0",
                Version::Http11 => "HTTP/1.1",
            };
            Some((place.index, format!("{} {version}", exchange.request_line())))
        });
        running.collect()
    }
}
