//! The reactor: one thread per worker that owns every socket and never touches Python.

pub(crate) mod custody;
pub mod io;
pub mod settings;
pub mod sim;
pub mod token;
pub mod wake;

pub use settings::{IoKind, Settings};
