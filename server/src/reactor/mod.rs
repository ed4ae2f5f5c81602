//! The reactor: one thread per worker that owns every socket and never touches Python.

mod balance;
#[cfg(all(test, not(loom)))]
mod balance_simulation;
pub(crate) mod command;
pub(crate) mod custody;
mod health;
pub mod io;
mod overdue;
#[cfg(all(test, not(loom)))]
mod ping;
mod receive;
pub(crate) mod run;
#[cfg(all(test, not(loom)))]
mod send_simulation;
mod session;
pub mod settings;
pub mod sim;
#[cfg(all(test, not(loom)))]
mod simulation;
mod stacks;
pub(crate) mod timers;
pub mod token;
mod transmit;
pub mod wake;

pub use settings::{IoKind, Settings};
pub use stacks::Insight;
