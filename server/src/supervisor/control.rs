//! The control socket between the supervisor and one worker: whole messages, and an end of file that
//! says that the other side died.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::sys::held::Held;

/// Bytes of one message.
const MESSAGE_BYTES_MAX: usize = 4096;

/// What a worker says.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ToSupervisor {
    /// The application is imported, the threads run, connections are accepted.
    Ready {
        /// What was found, `MODULE:ATTR`.
        app: String,
    },
    /// Serve with another in my place, and drain me when it is ready.
    Recycle {
        /// For the log: completes "worker 1 is replaced: ".
        reason: String,
    },
}

/// What a worker is told.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ToWorker {
    /// Answer what was accepted and end within this time.
    Drain {
        /// From now to the worker's own end.
        grace: Duration,
    },
    /// `--shutdown-delay` runs: `/ready` is 503, everything else is served.
    Leave,
    /// Open the log files again (SIGUSR1).
    ReopenLogs,
}

/// What a look at the socket found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received<T> {
    /// A message.
    Message(T),
    /// Nothing at the moment.
    Nothing,
    /// The other side is gone.
    Closed,
}

/// One side of a control socket.
#[derive(Debug)]
pub struct ControlSocket(Held);

impl ControlSocket {
    /// Both sides.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::SEQPACKET;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Self(Held::new(one)), Self(Held::new(other))))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other side is gone, or has not read for hundreds of messages.
    pub fn send<T: Serialize>(&self, message: &T) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        rustix::net::send(&self.0, &bytes, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Takes the next message. A broken one is logged and skipped.
    pub fn receive<T: DeserializeOwned>(&self) -> Received<T> {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        loop {
            match rustix::net::recv(&self.0, &mut buffer, RecvFlags::empty()) {
                Ok((0, _)) => return Received::Closed,
                Ok((length, _)) => match serde_json::from_slice(&buffer[..length]) {
                    Ok(message) => return Received::Message(message),
                    Err(error) => tracing::error!(%error, "bug: a control message is not one"),
                },
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Received::Nothing,
                Err(_) => return Received::Closed,
            }
        }
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_whole_and_the_end_is_seen() {
        let (one, other) = ControlSocket::pair().unwrap();
        assert_eq!(other.receive::<ToSupervisor>(), Received::Nothing);
        let ready = ToSupervisor::Ready { app: "a:b".to_owned() };
        one.send(&ready).unwrap();
        one.send(&ready).unwrap();
        assert_eq!(other.receive(), Received::Message(ready.clone()));
        assert_eq!(other.receive(), Received::Message(ready));
        let drain = ToWorker::Drain { grace: Duration::from_millis(1500) };
        other.send(&drain).unwrap();
        assert_eq!(one.receive(), Received::Message(drain));
        drop(other);
        assert_eq!(one.receive::<ToWorker>(), Received::Closed);
        assert!(one.send(&drain).is_err());
        let long = ToSupervisor::Ready { app: "x".repeat(MESSAGE_BYTES_MAX) };
        assert!(one.send(&long).is_err());
    }
}
