//! Takes the interpreter lock once a second, so that the reactor can see whether it moves.

use std::sync::Arc;
use std::time::Duration;

use hoopsnake_server::pulse::{PULSE_INTERVAL, Pulse};
use pyo3::prelude::*;

/// Starts the thread, which lives as long as the process. A stall is a wait of `stall`.
///
/// # Errors
/// Out of threads.
pub(crate) fn start(stall: Duration) -> std::io::Result<Arc<Pulse>> {
    let pulse = Arc::new(Pulse::new(stall));
    let stamped = Arc::clone(&pulse);
    std::thread::Builder::new().name("hoopsnake-pulse".to_owned()).spawn(move || {
        loop {
            std::thread::park_timeout(PULSE_INTERVAL);
            stamped.ask();
            Python::attach(|_| stamped.get());
        }
    })?;
    Ok(pulse)
}
