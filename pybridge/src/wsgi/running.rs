//! Which requests are inside the application right now, for the reports of what was left at a stop
//! and of what does not move.

use std::sync::{Arc, PoisonError};

use hoopsnake_server::exchange::Exchange;
use hoopsnake_server::http::Version;
use hoopsnake_server::pool::ThreadIndex;
use hoopsnake_server::stacks::{Thread, Threads};

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
    /// As `threading.get_ident()` gives it.
    ident: u64,
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
#[derive(Debug)]
pub(super) struct Running {
    places: Mutex<Vec<Arc<Place>>>,
    main_ident: u64,
}

impl Running {
    /// `main_ident` is what the main thread's `ident` says.
    pub(super) fn new(main_ident: u64) -> Self {
        Self { places: Mutex::default(), main_ident }
    }

    pub(super) fn register(&self, index: ThreadIndex, ident: u64) -> Arc<Place> {
        let place = Arc::new(Place { index, ident, exchange: Mutex::new(None) });
        let mut places = lock(&self.places);
        places.retain(|other| other.index != index);
        places.push(Arc::clone(&place));
        place
    }

    pub(super) fn list(&self) -> Vec<(ThreadIndex, String)> {
        let places = lock(&self.places);
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

impl Threads for Running {
    /// The pool's and the main thread. A lock that is held at the moment is not waited for: its thread
    /// is about to begin or to end a request, so it runs none.
    fn list(&self) -> Vec<Thread> {
        let Ok(places) = self.places.try_lock() else { return Vec::new() };
        let thread = |place: &Arc<Place>| Thread {
            ident: place.ident,
            name: thread_name(place.index),
            exchange: place.exchange.try_lock().ok().and_then(|exchange| exchange.clone()),
        };
        let main = Thread { ident: self.main_ident, name: "MainThread".to_owned(), exchange: None };
        places.iter().map(thread).chain([main]).collect()
    }
}

/// As `threading` calls it.
pub(crate) fn thread_name(index: ThreadIndex) -> String {
    format!("hoopsnake-pool-{}", index.0)
}
