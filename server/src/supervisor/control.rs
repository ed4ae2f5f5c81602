//! The control socket between the supervisor and one worker: whole messages, and an end of file that
//! says that the other side died.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::sys::held::Held;

/// Bytes of one message.
const MESSAGE_BYTES_MAX: usize = 4096;

/// What a worker says.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ToSupervisor {
    /// The first word of a worker that the template forked, whose id nobody else knows.
    Born {
        /// Its own.
        pid: i32,
    },
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

/// What the template is told; the worker's end of its control socket comes with it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ForkOrder {
    /// The worker's, from 1.
    pub number: usize,
    /// Its place on the board; `None`: all were taken.
    pub cell: Option<usize>,
}

/// What a look at the socket found.
#[derive(Debug, Eq, PartialEq)]
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

    /// Sends a message, and the worker's end of a socket with it.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_order(&self, order: ForkOrder, socket: &Self) -> io::Result<()> {
        let bytes = serde_json::to_vec(&order)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [socket.as_fd()];
        // There is room for exactly this one.
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let data = [IoSlice::new(&bytes)];
        rustix::net::sendmsg(&self.0, &data, &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Takes the next order and the socket that came with it.
    pub fn receive_order(&self) -> Received<(ForkOrder, Self)> {
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut data = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let length = match rustix::net::recvmsg(&self.0, &mut data, &mut ancillary, flags) {
                Ok(received) if received.bytes == 0 => return Received::Closed,
                Ok(received) => received.bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Received::Nothing,
                Err(_) => return Received::Closed,
            };
            let order = serde_json::from_slice(&bytes[..length]);
            match (order, first_descriptor(&mut ancillary)) {
                (Ok(order), Some(socket)) => {
                    return Received::Message((order, Self(Held::new(socket))));
                }
                (order, socket) => {
                    tracing::error!(?order, ?socket, "bug: a control message is not one");
                }
            }
        }
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

fn first_descriptor(ancillary: &mut RecvAncillaryBuffer<'_>) -> Option<OwnedFd> {
    ancillary.drain().find_map(|message| {
        let RecvAncillaryMessage::ScmRights(mut descriptors) = message else { return None };
        descriptors.next()
    })
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready_of(app: &str) -> ToSupervisor {
        ToSupervisor::Ready { app: app.to_owned() }
    }

    #[test]
    fn messages_are_whole_and_the_end_is_seen() {
        let (one, other) = ControlSocket::pair().unwrap();
        assert_eq!(other.receive::<ToSupervisor>(), Received::Nothing);
        let ready = ready_of("a:b");
        one.send(&ready).unwrap();
        one.send(&ready).unwrap();
        assert_eq!(other.receive(), Received::Message(ready.clone()));
        assert_eq!(other.receive(), Received::Message(ready));
        let drain = ToWorker::Drain { grace: Duration::from_millis(1500) };
        other.send(&drain).unwrap();
        assert_eq!(one.receive(), Received::Message(drain));
        let (mine, theirs) = ControlSocket::pair().unwrap();
        other.send_order(ForkOrder { number: 3, cell: Some(7) }, &theirs).unwrap();
        drop(theirs);
        let Received::Message((order, socket)) = one.receive_order() else { panic!("an order") };
        assert_eq!(order, ForkOrder { number: 3, cell: Some(7) });
        socket.send(&ready_of("c:d")).unwrap();
        drop(socket);
        assert_eq!(mine.receive(), Received::Message(ready_of("c:d")));
        assert_eq!(mine.receive::<ToSupervisor>(), Received::Closed, "no copy is left");
        drop(other);
        assert_eq!(one.receive::<ToWorker>(), Received::Closed);
        assert!(one.send(&drain).is_err());
        let long = ready_of(&"x".repeat(MESSAGE_BYTES_MAX));
        assert!(one.send(&long).is_err());
    }
}
