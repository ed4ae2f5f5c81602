//! The sync lane: a job ring between the reactor and the threads that run the application, and the
//! turn in which those threads hold the interpreter lock. `docs/POOL.md` explains the rules.
//!
//! | file | |
//! |---|---|
//! | `lane` | the ring, its threads, who is woken for what |
//! | `age` | a ring that does not move |
//! | `held` | answers that share a wake of the reactor |
//! | `turn` | who holds the interpreter lock and when it is let go |
//! | `knobs` | what tests and measurements can switch off |
//! | `figures` | what is counted and timed |
//! | `model`, `sim` | every interleaving of the first; the third against a simulated lock |

mod age;
mod figures;
mod held;
mod knobs;
mod lane;
#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod sim;
mod spin;
#[cfg(all(test, not(loom)))]
mod tests;
mod turn;

pub use age::AgeWatch;
pub use figures::{
    LONG_PASS_MS, LaneFigures, ReactorCounts, ReactorFigures, Summary, ThreadFigures, TimeFigures,
    table,
};
pub use knobs::{KnobSet, Knobs};
pub use lane::{Lane, Next, Policy, ThreadIndex};
pub use turn::{Host, Interpreter, Runner, System, Turn};
