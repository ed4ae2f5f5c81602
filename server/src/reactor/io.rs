//! The seam between the reactor and the kernel: what an `Io` does and what it reports.
//!
//! Three implementations: the ring (`sys::ring`), epoll (`sys::epoll`) and a simulated one with
//! seeded faults (`reactor::sim`). The reactor is generic over this trait and cannot tell them apart.
//!
//! **Custody.** An `Io` owns every socket it adopted and every buffer it was given until the kernel
//! has given them back. `close` only asks; the socket is closed, and [`Event::Closed`] reported,
//! when nothing of it is in flight any more. After `close` no other event of that token is reported.
//!
//! **Levels.** `start_recv` stays armed until `stop_recv`, end of stream, an error or `close`,
//! whatever the kernel ended underneath (multishot ends, empty buffer groups): re-arming is the
//! implementation's business. `arm_accept` is for one connection: the reactor re-arms.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use bytes::Bytes;

use super::token::Token;
use super::wake::Waker;
use crate::sys::held::Held;

/// Names a listening socket by the order of [`Io::add_listener`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ListenerIndex(pub usize);

/// Who is at the other end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Peer {
    /// A TCP peer.
    Inet(SocketAddr),
    /// A peer on a Unix socket; it has no address worth telling.
    Unix,
}

/// Names received bytes until the next [`Io::end_pass`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Chunk {
    /// Which of the implementation's buffers.
    pub buffer: u32,
    /// First byte within it. **Unit**: bytes.
    pub offset: u32,
    /// **Unit**: bytes; never zero.
    pub length: u32,
}

/// What happened. `S` is the implementation's socket.
#[derive(Debug)]
pub enum Event<S> {
    /// A connection arrived; the listener is no longer armed.
    Accepted {
        /// Where it arrived.
        listener: ListenerIndex,
        /// Owned from here on: dropping it closes it.
        socket: S,
        /// Who connected.
        peer: Peer,
    },
    /// An accept ended without a connection; the listener is no longer armed. `ECANCELED` answers
    /// `cancel_accept`.
    AcceptFailed {
        /// Where.
        listener: ListenerIndex,
        /// The kernel's reason.
        error: io::Error,
    },
    /// Bytes arrived; they are valid until `end_pass`.
    Data {
        /// The connection.
        token: Token,
        /// Where they are: see [`Io::chunk`].
        chunk: Chunk,
    },
    /// The peer closed its sending side (FIN): reading is over, writing may go on.
    Eof {
        /// The connection.
        token: Token,
    },
    /// Reading failed (reset, timeout of the kernel): reading is over.
    RecvFailed {
        /// The connection.
        token: Token,
        /// The kernel's reason.
        error: io::Error,
    },
    /// A send that [`Io::send`] left in flight is complete, or failed with nothing more to come.
    Sent {
        /// The connection.
        token: Token,
        /// Bytes the kernel took since `send` returned, or its reason.
        result: io::Result<usize>,
    },
    /// The socket takes bytes again: answers `want_writable`, once.
    Writable {
        /// The connection.
        token: Token,
    },
    /// The socket of a closed connection is gone; its slot may be reused.
    Closed {
        /// The connection.
        token: Token,
    },
    /// Another thread used the [`Waker`].
    Woken,
}

/// Bytes to send, in order: `head`, then `body`. Either may be empty, not both.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Sent first.
    pub head: Bytes,
    /// Sent second, from where it is.
    pub body: Bytes,
    /// More follows at once (a file): the kernel may wait for it before it sends a short segment.
    pub more: bool,
}

impl Outgoing {
    /// **Unit**: bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Whether there is nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How far a send came before it returned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sending {
    /// The kernel has all of it.
    Complete,
    /// The kernel has `taken` bytes; the rest is in the `Io`'s custody until [`Event::Sent`].
    InFlight {
        /// **Unit**: bytes.
        taken: usize,
    },
}

/// The kernel as the reactor sees it. All calls come from the reactor's thread.
pub trait Io {
    /// An accepted connection before it is adopted.
    type Socket;

    /// `"uring"`, `"epoll"` or `"simulated"`: for the log, metrics and `doctor`.
    fn name(&self) -> &'static str;

    /// Takes custody of a listening socket, not armed.
    fn add_listener(&mut self, socket: Held) -> ListenerIndex;

    /// Asks for one connection; answered by `Accepted` or `AcceptFailed`. Armed already: no effect.
    fn arm_accept(&mut self, listener: ListenerIndex);

    /// Takes `arm_accept` back; answered by `AcceptFailed` with `ECANCELED`, or by `Accepted` if a
    /// connection came first. Not armed: no effect and no event.
    fn cancel_accept(&mut self, listener: ListenerIndex);

    /// Like `cancel_accept`, and closes our descriptor of the listening socket when nothing is armed
    /// on it any more. A connection that came first is still reported.
    fn close_listener(&mut self, listener: ListenerIndex);

    /// Takes custody of an accepted socket under a token that no other connection has.
    fn adopt(&mut self, token: Token, socket: Self::Socket);

    /// Reads until told otherwise. Reading already, or reading over: no effect.
    fn start_recv(&mut self, token: Token);

    /// Stops reading. Bytes that the kernel had already delivered may still be reported.
    fn stop_recv(&mut self, token: Token);

    /// Sends at once what the kernel takes, and the rest as it takes it. At most one send may be in
    /// flight per token.
    ///
    /// # Errors
    /// The connection is broken (`EPIPE`, `ECONNRESET`, …); nothing is in flight.
    fn send(&mut self, token: Token, outgoing: Outgoing) -> io::Result<Sending>;

    /// Sends up to `count` bytes of `file` from `offset` without their passing through our memory.
    /// Returns the bytes taken; zero at the file's end.
    ///
    /// # Errors
    /// `WouldBlock`: ask `want_writable` and come again. Anything else: broken.
    fn send_file(
        &mut self,
        token: Token,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> io::Result<usize>;

    /// Reports `Writable` once when the socket takes bytes again.
    fn want_writable(&mut self, token: Token);

    /// Bytes of this connection that the peer has acknowledged, or any number that changes when it
    /// takes more: tells a slow reader from one that reads nothing.
    fn acknowledged(&self, token: Token) -> u64;

    /// Asks the kernel whether the connection is reset or closed on both sides. For connections that
    /// have been silent: multishot receives can miss a reset that follows a flood on some kernels.
    fn is_broken(&self, token: Token) -> bool;

    /// Sends FIN; reading goes on. Errors are ignored: a broken connection is found by reading.
    fn shutdown_write(&mut self, token: Token);

    /// Gives the connection up: cancels what is in flight, waits for it, closes the socket, reports
    /// `Closed`.
    fn close(&mut self, token: Token);

    /// Like `close`, but the peer gets RST instead of FIN (an aborted response must be seen).
    fn reset(&mut self, token: Token);

    /// Submits what is queued and waits until something happened or `timeout` passed; `None` waits
    /// for ever, zero does not wait.
    ///
    /// # Errors
    /// The implementation cannot go on. `EINTR`, `ETIME` and `EBUSY` are not errors.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// The next event of the last `wait`, at most `EVENTS_PER_PASS_MAX` per pass.
    fn next_event(&mut self) -> Option<Event<Self::Socket>>;

    /// The bytes of a `Data` event of this pass.
    fn chunk(&self, chunk: Chunk) -> &[u8];

    /// Takes the received buffers back: no [`Chunk`] is valid after it.
    fn end_pass(&mut self);

    /// What other threads wake the reactor with.
    fn waker(&self) -> Waker;

    /// Closes everything and waits until the kernel has given back every buffer.
    fn shutdown(self)
    where
        Self: Sized;
}
