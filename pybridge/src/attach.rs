//! The only places where a pool thread, attached to the interpreter, lets go of it.
//!
//! A pool thread is Python's own and keeps its thread state for life, so a crossing is one release
//! and one acquire of the interpreter lock and no more. *When* to let go (the turn, the keep rule) is
//! decided by the server's [`Runner`], which knows an interpreter only by its trait.
//!
//! [`Runner`]: hoopsnake_server::pool::Runner

use hoopsnake_server::exchange::Exchange;
use hoopsnake_server::pool::{Interpreter, System, Turn};
use pyo3::prelude::*;

/// The attached thread, as the scheduling sees it.
pub(crate) struct Attached<'py>(pub(crate) Python<'py>);

impl Interpreter for Attached<'_> {
    type Host = System;

    fn host(&self) -> System {
        System
    }

    fn detached<R: Send>(&self, wait: impl FnOnce() -> R + Send) -> R {
        self.0.detach(wait)
    }
}

/// Waits without the interpreter lock until a streamed response may grow. False: the client is gone.
/// Those who hold the lock meanwhile are told when it is wanted back.
pub(crate) fn wait_for_credit(py: Python<'_>, exchange: &Exchange, turn: &Turn) -> bool {
    let wait = || turn.detached(&Attached(py), || exchange.wait_for_credit());
    !exchange.is_gone() && (exchange.has_credit() || wait())
}
