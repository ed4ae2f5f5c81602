//! Deadlines of exchanges.
//!
//! A read in tokio-uring must not be dropped: the operation stays armed and swallows the next bytes.
//! So no read has a timeout; a watch shuts the socket down, and the read ends by itself.

use std::cell::{Cell, RefCell};
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;

use tokio_uring::net::TcpStream;

use crate::clock::Stopwatch;

/// What one connection waits for.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    state: RefCell<Waiting>,
    since_nanos: Cell<u64>,
}

#[derive(Default)]
enum Waiting {
    /// For the pace, or for nothing.
    #[default]
    Idle,
    /// For the kernel to connect.
    Connect,
    /// For answers.
    Answer(Rc<TcpStream>),
    /// For the read to end after the shutdown.
    ShutDown,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Idle => "Idle",
            Self::Connect => "Connect",
            Self::Answer(_) => "Answer",
            Self::ShutDown => "ShutDown",
        })
    }
}

/// A connect that the kernel still tries after the timeout; it cannot be ended from here.
#[derive(Debug)]
pub(crate) struct StuckConnect;

impl Watch {
    /// A connect begins.
    pub(crate) fn connecting(&self, now_nanos: u64) {
        self.since_nanos.set(now_nanos);
        *self.state.borrow_mut() = Waiting::Connect;
    }

    /// An exchange begins.
    pub(crate) fn answering(&self, now_nanos: u64, stream: &Rc<TcpStream>) {
        self.since_nanos.set(now_nanos);
        *self.state.borrow_mut() = Waiting::Answer(Rc::clone(stream));
    }

    /// What was waited for came; says whether the deadline had passed before.
    pub(crate) fn over(&self) -> bool {
        matches!(self.state.replace(Waiting::Idle), Waiting::ShutDown)
    }

    fn check(&self, now_nanos: u64, timeout: Duration) -> Result<(), StuckConnect> {
        let waited = Duration::from_nanos(now_nanos.saturating_sub(self.since_nanos.get()));
        if waited < timeout {
            return Ok(());
        }
        let mut state = self.state.borrow_mut();
        match &*state {
            Waiting::Idle | Waiting::ShutDown => Ok(()),
            Waiting::Connect => Err(StuckConnect),
            Waiting::Answer(stream) => {
                // An error means that the socket is not connected any more: its read ends too.
                let _ = stream.shutdown(Shutdown::Both);
                *state = Waiting::ShutDown;
                Ok(())
            }
        }
    }
}

/// Ends exchanges that are over `timeout`, for ever; returns only for a connect it cannot end.
pub(crate) async fn keep(
    watches: &[Rc<Watch>],
    stopwatch: Stopwatch,
    timeout: Duration,
) -> StuckConnect {
    const CHECK_EVERY: Duration = Duration::from_millis(100);
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        let now = stopwatch.nanos();
        for watch in watches {
            if let Err(stuck) = watch.check(now, timeout) {
                return stuck;
            }
        }
    }
}
