//! The sync lane: a job ring between the reactor and the threads that run the application.

mod age;
mod lane;
#[cfg(all(test, loom))]
mod model;

pub use age::AgeWatch;
pub use lane::{Lane, Next, ThreadIndex};
