//! `Io` on an `io_uring`. **Source**: URING.md sections 6 and 7.
//!
//! Received bytes come by multishot receives over a ring of provided buffers. A send tries the
//! system call first, because the kernel usually takes all of a response at once; what it does not
//! take goes to the ring. Accepted sockets are non-blocking, which `sendfile(2)` needs (it has no
//! flag for it). Receives and sends on the ring park on such sockets all the same: io_uring fails
//! them with `EAGAIN` only for `MSG_DONTWAIT`. The test of that is in `sys/ring_hazards.rs`.

mod completion;
mod kind;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::types::Fd;
use io_uring::{cqueue, opcode, squeue};

use crate::limits::EVENTS_PER_PASS_MAX;
use crate::reactor::custody::{Ending, Reading, Remainder, Table};
use crate::reactor::io::{Chunk, Event, Io, ListenerIndex, Outgoing, Sending};
use crate::reactor::token::Token;
use crate::reactor::wake::Waker;
use crate::sys::accept::PeerStorage;
use crate::sys::buf_ring::{BufferRing, GROUP};
use crate::sys::held::Held;
use crate::sys::socket;
use crate::sys::uring::Uring;
pub use crate::sys::uring::{LADDER, RingSize};
use kind::Kind;

/// The accept operation of one listener.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Accepting {
    Idle,
    Armed,
    /// Armed, and a cancel is on its way. It overtakes a connection that the kernel had noticed but
    /// not yet accepted (deferred work runs after submissions), hence one more try.
    Cancelling,
    /// An accept and its cancel went out together: it takes what waits now, or ends.
    LastTry,
}

#[derive(Debug)]
struct Listener {
    /// `None`: closed.
    socket: Option<Held>,
    /// Close it when nothing is in flight on it.
    closing: bool,
    accepting: Accepting,
    /// The kernel writes to it while an accept is in flight.
    peer: PeerStorage,
}

#[derive(Debug)]
struct Connection {
    socket: Held,
    reading: Reading,
    sending: Option<Remainder>,
    /// A poll for `want_writable` is in flight.
    polling: bool,
    /// Set: nothing is submitted any more and nothing but `Closed` is reported.
    ending: Option<Ending>,
}

impl Connection {
    fn has_operations(&self) -> bool {
        self.reading.is_in_flight() || self.sending.is_some() || self.polling
    }
}

/// What the ring counted. All since it was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RingCounters {
    /// Entries into the kernel.
    pub enter_count: u64,
    /// Receives submitted again after the kernel ended one that was still wanted.
    pub rearm_count: u64,
    /// Receives that found no buffer.
    pub starve_count: u64,
    /// Sends of the ring that came back short and were continued.
    pub short_send_count: u64,
    /// Completions that belong to nothing. Must stay zero.
    pub stray_count: u64,
}

/// A wait that brings so many completions was probably cut short: a `DEFER_TASKRUN` ring runs about
/// twenty items of deferred work a wait (URING §2.2).
const HARVEST_FULL: usize = 16;

/// Further looks after such a wait. **Why**: a pass of some 250 events wakes the pool once for all of
/// them, and others still get their turn.
const HARVESTS_MAX: usize = 12;

/// `Io` on an `io_uring`. It stays on the thread that made it: the kernel refuses any other.
///
/// ```compile_fail,E0277
/// fn must_be_send<T: Send>() {}
/// must_be_send::<hoopsnake_server::sys::ring::Ring>();
/// ```
pub struct Ring {
    uring: Uring,
    size: RingSize,
    buffers: BufferRing,
    connections: Table<Connection>,
    listeners: Vec<Listener>,
    waker: Waker,
    /// The poll on the waker's eventfd is in flight.
    listening_to_wakes: bool,
    /// One `Woken` a pass is enough.
    woken: bool,
    /// Operations whose final completion is outstanding, cancels not counted.
    in_flight_count: usize,
    events: VecDeque<Event<OwnedFd>>,
    completions: Vec<cqueue::Entry>,
    /// Receives to submit again when the buffers are back.
    starved: Vec<Token>,
    counters: RingCounters,
}

impl Ring {
    /// Makes a ring on this thread, as large as locked memory allows.
    ///
    /// # Errors
    /// The kernel's reason: see [`crate::sys::probe`] for what it means and how to allow it.
    pub fn new(waker: Waker) -> io::Result<Self> {
        Self::with_sizes(&LADDER, waker)
    }

    /// The same, of the first of `sizes` that the kernel has memory for.
    ///
    /// # Errors
    /// As [`Ring::new`].
    pub fn with_sizes(sizes: &[RingSize], waker: Waker) -> io::Result<Self> {
        let (uring, buffers, size) = Uring::new(sizes)?;
        let mut ring = Self {
            uring,
            size,
            buffers,
            connections: Table::new(),
            listeners: Vec::new(),
            waker,
            listening_to_wakes: false,
            woken: false,
            in_flight_count: 0,
            events: VecDeque::with_capacity(EVENTS_PER_PASS_MAX),
            completions: Vec::with_capacity(EVENTS_PER_PASS_MAX),
            starved: Vec::new(),
            counters: RingCounters::default(),
        };
        ring.listen_to_wakes();
        Ok(ring)
    }

    /// Which size it has.
    #[must_use]
    pub fn size(&self) -> RingSize {
        self.size
    }

    /// What it counted.
    #[must_use]
    pub fn counters(&self) -> RingCounters {
        RingCounters { enter_count: self.uring.enter_count(), ..self.counters }
    }

    /// Submits an operation that has one final completion.
    #[inline]
    fn submit(&mut self, entry: squeue::Entry) {
        self.in_flight_count += 1;
        // SAFETY: I1, I2: every entry is made in this file, from a socket and bytes that the tables
        // hold until the operation's final completion has been dispatched.
        unsafe { self.uring.push(entry) };
    }

    /// Cancels by `user_data`, never by descriptor: the number may already be another file's. Its
    /// own completion is wanted only if it failed.
    fn submit_cancel(&mut self, kind: Kind, token: Token) {
        let entry = opcode::AsyncCancel::new(kind.user_data(token))
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(kind.cancel().user_data(token));
        // SAFETY: I1: a cancel points at nothing.
        unsafe { self.uring.push(entry) };
    }

    fn submit_recv(&mut self, token: Token, socket: RawFd, poll_first: bool) {
        let flags = if poll_first { RECV_MULTISHOT | RECV_POLL_FIRST } else { RECV_MULTISHOT };
        let entry = opcode::Recv::new(Fd(socket), std::ptr::null_mut(), 0)
            .buf_group(GROUP)
            .ioprio(flags)
            .build()
            .flags(squeue::Flags::BUFFER_SELECT)
            .user_data(Kind::Recv.user_data(token));
        self.submit(entry);
    }

    /// Submits the next part of the remainder: one part at a time, so that no message header has to
    /// be kept until the submission.
    fn submit_send(&mut self, token: Token, poll_first: bool) {
        let Some(connection) = self.connections.find(token) else { return };
        let Some(remainder) = &connection.sending else { return };
        let (part, more) = remainder.next_part();
        let bytes = u32::try_from(part.len()).unwrap_or(SEND_BYTES_MAX).min(SEND_BYTES_MAX);
        let mut flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        if more {
            flags |= libc::MSG_MORE;
        }
        let entry = opcode::Send::new(Fd(connection.socket.as_raw_fd()), part.as_ptr(), bytes)
            .flags(flags)
            .ioprio(if poll_first { RECV_POLL_FIRST } else { 0 })
            .build()
            .user_data(Kind::Send.user_data(token));
        self.submit(entry);
    }

    fn submit_accept(&mut self, index: usize) {
        let Some(listener) = self.listeners.get_mut(index) else { return };
        let Some(socket) = &listener.socket else { return };
        let (address, length) = listener.peer.prepare();
        let entry = opcode::Accept::new(Fd(socket.as_raw_fd()), address, length)
            .flags(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
            .build()
            .user_data(Kind::Accept.user_data(Token::new(index as u32, 0)));
        self.submit(entry);
    }

    fn listen_to_wakes(&mut self) {
        let descriptor = Fd(self.waker.as_fd().as_raw_fd());
        let entry = opcode::PollAdd::new(descriptor, libc::POLLIN as u32)
            .multi(true)
            .build()
            .user_data(Kind::Wake.user_data(Token::new(0, 0)));
        self.submit(entry);
        self.listening_to_wakes = true;
    }

    /// The connection, if it is known and not being closed.
    #[inline]
    fn open(&mut self, token: Token) -> Option<&mut Connection> {
        self.connections.find_mut(token).filter(|connection| connection.ending.is_none())
    }

    fn give_up(&mut self, token: Token, ending: Ending) {
        let Some(connection) = self.open(token) else { return };
        connection.ending = Some(ending);
        let cancel_recv = connection.reading.stop();
        let cancel_send = connection.sending.is_some();
        let cancel_poll = connection.polling;
        if cancel_recv {
            self.submit_cancel(Kind::Recv, token);
        }
        if cancel_send {
            self.submit_cancel(Kind::Send, token);
        }
        if cancel_poll {
            self.submit_cancel(Kind::Writable, token);
        }
        self.finish(token);
    }

    /// Closes the socket if the connection is given up and the kernel holds nothing of it.
    fn finish(&mut self, token: Token) {
        let Some(connection) = self.connections.find(token) else { return };
        let Some(ending) = connection.ending else { return };
        if connection.has_operations() {
            return;
        }
        if let Some(connection) = self.connections.remove(token) {
            socket::end(connection.socket, ending);
            self.events.push_back(Event::Closed { token });
        }
    }

    /// Enters, collects and dispatches: the events are complete when it returns.
    fn turn(&mut self, block: bool, timeout: Option<Duration>) -> io::Result<()> {
        self.uring.enter(block, timeout)?;
        if self.uring.dropped_count() != 0 {
            let text = "the kernel dropped completions although it promised not to (NODROP)";
            return Err(io::Error::other(text));
        }
        let mut completions = std::mem::take(&mut self.completions);
        let limit = EVENTS_PER_PASS_MAX.saturating_sub(self.events.len());
        let mut taken = self.uring.reap(&mut completions, limit);
        for _ in 0..HARVESTS_MAX {
            if taken < HARVEST_FULL {
                break;
            }
            self.uring.enter(false, None)?;
            let room = limit.saturating_sub(completions.len());
            taken = self.uring.reap(&mut completions, room);
        }
        for completion in &completions {
            self.dispatch(completion);
        }
        completions.clear();
        self.completions = completions;
        if !self.listening_to_wakes {
            self.listen_to_wakes();
        }
        Ok(())
    }

    /// Cancels everything and waits for every final completion. False: the kernel may still write.
    fn quiesce(&mut self) -> bool {
        for token in self.connections.tokens() {
            self.give_up(token, Ending::Close);
        }
        for index in 0..self.listeners.len() {
            self.cancel_accept(ListenerIndex(index));
            // No connection is wanted any more: it is left to the other workers.
            if self.listeners[index].accepting == Accepting::Cancelling {
                self.listeners[index].accepting = Accepting::LastTry;
            }
        }
        self.submit_cancel(Kind::Wake, Token::new(0, 0));
        for _ in 0..QUIESCE_TURNS_MAX {
            if self.in_flight_count == 0 {
                return true;
            }
            // Not `turn`, which would arm the poll for wakes again.
            if self.uring.enter(true, Some(QUIESCE_TURN)).is_err() {
                return false;
            }
            let mut completions = std::mem::take(&mut self.completions);
            self.uring.reap(&mut completions, EVENTS_PER_PASS_MAX);
            for completion in completions.drain(..) {
                self.dispatch(&completion);
            }
            self.completions = completions;
            // Sockets that an accept brought too late are closed here.
            self.events.clear();
            self.end_pass();
        }
        self.in_flight_count == 0
    }
}

/// `IORING_RECVSEND_POLL_FIRST`: do not try before the socket is ready.
const RECV_POLL_FIRST: u16 = 1;
/// `IORING_RECV_MULTISHOT`.
const RECV_MULTISHOT: u16 = 2;
/// Bytes of one send operation: its result is an `i32`.
const SEND_BYTES_MAX: u32 = 1 << 30;
/// How long one turn of the teardown waits, and how many there are: 10 s in all.
const QUIESCE_TURN: Duration = Duration::from_millis(10);
const QUIESCE_TURNS_MAX: usize = 1000;

impl Drop for Ring {
    fn drop(&mut self) {
        if self.quiesce() {
            self.uring.release();
            return;
        }
        tracing::error!(
            operations = self.in_flight_count,
            "io_uring: the kernel did not give back all buffers; they are leaked, not freed"
        );
        std::mem::forget(std::mem::replace(&mut self.connections, Table::new()));
        std::mem::forget(std::mem::take(&mut self.listeners));
        self.buffers.leak();
    }
}

impl Io for Ring {
    type Socket = OwnedFd;

    fn name(&self) -> &'static str {
        "uring"
    }

    fn add_listener(&mut self, socket: Held) -> ListenerIndex {
        // A non-blocking listener (an adopted one may be) would answer EAGAIN on old kernels.
        let _ = socket::set_blocking(socket.as_fd(), true);
        self.listeners.push(Listener {
            socket: Some(socket),
            closing: false,
            accepting: Accepting::Idle,
            peer: PeerStorage::new(),
        });
        ListenerIndex(self.listeners.len() - 1)
    }

    fn arm_accept(&mut self, listener: ListenerIndex) {
        let Some(armed) = self.listeners.get_mut(listener.0) else { return };
        if armed.accepting == Accepting::Idle && armed.socket.is_some() {
            armed.accepting = Accepting::Armed;
            self.submit_accept(listener.0);
        }
    }

    fn cancel_accept(&mut self, listener: ListenerIndex) {
        let Some(armed) = self.listeners.get_mut(listener.0) else { return };
        if armed.accepting == Accepting::Armed {
            armed.accepting = Accepting::Cancelling;
            self.submit_cancel(Kind::Accept, Token::new(listener.0 as u32, 0));
        }
    }

    fn close_listener(&mut self, listener: ListenerIndex) {
        self.cancel_accept(listener);
        let Some(closed) = self.listeners.get_mut(listener.0) else { return };
        closed.closing = true;
        if closed.accepting == Accepting::Idle {
            closed.socket = None;
        }
    }

    fn adopt(&mut self, token: Token, socket: OwnedFd) {
        let connection = Connection {
            socket: Held::new(socket),
            reading: Reading::Idle,
            sending: None,
            polling: false,
            ending: None,
        };
        self.connections.insert(token, connection);
    }

    fn start_recv(&mut self, token: Token) {
        let Some(connection) = self.open(token) else { return };
        let socket = connection.socket.as_raw_fd();
        if connection.reading.start() {
            self.submit_recv(token, socket, false);
        }
    }

    fn stop_recv(&mut self, token: Token) {
        if self.open(token).is_some_and(|connection| connection.reading.stop()) {
            self.submit_cancel(Kind::Recv, token);
        }
    }

    fn send(&mut self, token: Token, outgoing: Outgoing) -> io::Result<Sending> {
        let connection = self.open(token).ok_or(io::ErrorKind::NotConnected)?;
        assert!(connection.sending.is_none(), "bug: a second send of {token:?} in flight");
        let parts = [&outgoing.head[..], &outgoing.body[..]];
        let taken = socket::send_now(connection.socket.as_fd(), parts, outgoing.more)?;
        if taken == outgoing.len() {
            return Ok(Sending::Complete);
        }
        connection.sending = Some(Remainder::new(outgoing, taken));
        self.submit_send(token, taken == 0);
        Ok(Sending::InFlight { taken })
    }

    fn send_file(
        &mut self,
        token: Token,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> io::Result<usize> {
        let connection = self.open(token).ok_or(io::ErrorKind::NotConnected)?;
        assert!(connection.sending.is_none(), "bug: a file beside a send of {token:?} in flight");
        socket::send_file_now(connection.socket.as_fd(), file, offset, count)
    }

    fn want_writable(&mut self, token: Token) {
        let Some(connection) = self.open(token) else { return };
        if std::mem::replace(&mut connection.polling, true) {
            return;
        }
        let descriptor = Fd(connection.socket.as_raw_fd());
        let entry = opcode::PollAdd::new(descriptor, libc::POLLOUT as u32)
            .build()
            .user_data(Kind::Writable.user_data(token));
        self.submit(entry);
    }

    fn acknowledged(&self, token: Token) -> u64 {
        let connection = self.connections.find(token);
        connection.map_or(0, |connection| socket::acknowledged(connection.socket.as_fd()))
    }

    fn is_broken(&self, token: Token) -> bool {
        let connection = self.connections.find(token);
        connection.is_some_and(|connection| socket::is_broken(connection.socket.as_fd()))
    }

    fn shutdown_write(&mut self, token: Token) {
        if let Some(connection) = self.open(token) {
            // The system call: the ring's operation would go to a kernel thread.
            socket::shut_down_write(connection.socket.as_fd());
        }
    }

    fn close(&mut self, token: Token) {
        self.give_up(token, Ending::Close);
    }

    fn reset(&mut self, token: Token) {
        self.give_up(token, Ending::Reset);
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.woken = false;
        let block = self.events.is_empty() && timeout != Some(Duration::ZERO);
        self.turn(block, timeout)
    }

    fn next_event(&mut self) -> Option<Event<OwnedFd>> {
        loop {
            let event = self.events.pop_front()?;
            let token = match &event {
                Event::Data { token, .. }
                | Event::Eof { token }
                | Event::RecvFailed { token, .. }
                | Event::Sent { token, .. }
                | Event::Writable { token } => *token,
                Event::Accepted { .. }
                | Event::AcceptFailed { .. }
                | Event::Closed { .. }
                | Event::Woken => return Some(event),
            };
            // Collected before the connection was given up in this very pass: not reported.
            if self.open(token).is_some() {
                return Some(event);
            }
        }
    }

    fn chunk(&self, chunk: Chunk) -> &[u8] {
        self.buffers.bytes(chunk)
    }

    fn end_pass(&mut self) {
        self.buffers.recycle();
        if self.starved.is_empty() {
            return;
        }
        let mut starved = std::mem::take(&mut self.starved);
        for token in starved.drain(..) {
            let Some(connection) = self.open(token) else { continue };
            let socket = connection.socket.as_raw_fd();
            if connection.reading.feed() {
                self.counters.rearm_count += 1;
                // Not tried at once: on a group that is empty again even an idle socket would fail.
                self.submit_recv(token, socket, true);
            }
        }
        self.starved = starved;
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn shutdown(self) {
        // Dropping does all of it.
    }
}
