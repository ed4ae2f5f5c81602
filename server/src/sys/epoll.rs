//! `Io` on epoll, for kernels and containers without `io_uring`.
//!
//! Every connection is registered once, edge-triggered for both directions, and never modified: a
//! connection that is idle, or that we do not want to read, costs nothing. What an edge announced
//! is remembered here until it is used up. A short read uses it up (epoll(7)): whatever comes after
//! it is a new edge. Listeners are level-triggered and exclusive, registered while armed;
//! registering again puts a worker at the end of the listener's queue, so workers take turns.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::time::Timespec;

use crate::limits::{EVENTS_PER_PASS_MAX, RECV_BUFFER_BYTES, RECV_BUFFER_COUNT};
use crate::reactor::custody::{Ending, Remainder, Table};
use crate::reactor::io::{Chunk, Event, Io, ListenerIndex, Outgoing, Sending};
use crate::reactor::token::Token;
use crate::reactor::wake::Waker;
use crate::sys::held::Held;
use crate::sys::socket;

/// Top 8 bits of an event's data.
const CONNECTION: u64 = 0;
const LISTENER: u64 = 1;
const WAKER: u64 = 2;

/// Buffers that one connection may fill in one pass, so that one flooder does not hold up the rest.
const BUFFERS_PER_CONNECTION: usize = 8;

/// Sends of one remainder in one pass.
const SENDS_PER_CONNECTION: usize = 8;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reading {
    Idle,
    Wanted,
    Over,
}

#[derive(Debug)]
struct Connection {
    socket: Held,
    reading: Reading,
    /// An edge said that there is something to read, and it is not used up.
    readable: bool,
    /// The other side or an error ended the stream: after a short read there is still its end.
    hung_up: bool,
    /// In the list of those that may be read.
    queued: bool,
    sending: Option<Remainder>,
    wants_writable: bool,
}

#[derive(Debug)]
struct Listener {
    /// `None`: closed.
    socket: Option<Held>,
    armed: bool,
}

/// `Io` on epoll.
pub struct Epoll {
    epoll: Held,
    /// `epoll_pwait2` is there: timeouts are exact.
    has_nanoseconds: bool,
    connections: Table<Connection>,
    listeners: Vec<Listener>,
    waker: Waker,
    events: VecDeque<Event<OwnedFd>>,
    ready: Vec<epoll::Event>,
    /// Connections that have something to read, in turn.
    readable: VecDeque<Token>,
    /// Remainders that may go on, although no edge will come.
    sendable: VecDeque<Token>,
    /// [`RECV_BUFFER_COUNT`] buffers in a row.
    memory: Box<[u8]>,
    /// Buffers filled in this pass.
    filled_count: usize,
    wait_count: u64,
}

impl Epoll {
    /// Makes the epoll instance.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new(waker: Waker) -> io::Result<Self> {
        let epoll = Held::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        // Edge-triggered, because nobody ever reads it.
        let data = EventData::new_u64(WAKER << 56);
        epoll::add(&epoll, &waker, data, EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            epoll,
            has_nanoseconds: true,
            connections: Table::new(),
            listeners: Vec::new(),
            waker,
            events: VecDeque::with_capacity(EVENTS_PER_PASS_MAX),
            ready: Vec::with_capacity(EVENTS_PER_PASS_MAX),
            readable: VecDeque::new(),
            sendable: VecDeque::new(),
            memory: vec![0; usize::from(RECV_BUFFER_COUNT) * RECV_BUFFER_BYTES].into_boxed_slice(),
            filled_count: 0,
            wait_count: 0,
        })
    }

    /// How often the kernel was asked for events.
    #[must_use]
    pub fn wait_count(&self) -> u64 {
        self.wait_count
    }

    fn wait_for_events(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.wait_count += 1;
        self.ready.clear();
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        if self.has_nanoseconds {
            match wait_exactly(self.epoll.as_fd(), &mut self.ready, timeout.as_ref()) {
                Ok(()) | Err(Errno::INTR) => return Ok(()),
                // EPERM: a seccomp profile that is older than the call.
                Err(Errno::NOSYS | Errno::PERM) => self.has_nanoseconds = false,
                Err(error) => return Err(error.into()),
            }
        }
        // Milliseconds, rounded up.
        let buffer = rustix::buffer::spare_capacity(&mut self.ready);
        match epoll::wait(&self.epoll, buffer, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn dispatch(&mut self, event: &epoll::Event) {
        let data = event.data.u64();
        match data >> 56 {
            WAKER => self.events.push_back(Event::Woken),
            LISTENER => self.try_accept(Token::from_bits(data).slot_index()),
            // Nothing else was ever registered.
            _ => self.edge(Token::from_bits(data), event.flags),
        }
    }

    fn edge(&mut self, token: Token, flags: EventFlags) {
        // A closed connection is out of the interest list; an event of it may be in this batch.
        let Some(connection) = self.connections.find_mut(token) else { return };
        let broken = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        if broken || flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
            connection.readable = true;
            connection.hung_up |= broken || flags.contains(EventFlags::RDHUP);
            self.queue_reading(token);
        }
        if broken || flags.contains(EventFlags::OUT) {
            self.go_on_sending(token);
        }
    }

    /// Puts the connection in the line of those that are read, if it is to be.
    fn queue_reading(&mut self, token: Token) {
        let Some(connection) = self.connections.find_mut(token) else { return };
        if connection.readable && connection.reading == Reading::Wanted && !connection.queued {
            connection.queued = true;
            self.readable.push_back(token);
        }
    }

    /// Reads from every connection in line once; what has more goes to the end of the line.
    fn read_those_in_line(&mut self) {
        for _ in 0..self.readable.len() {
            let free = usize::from(RECV_BUFFER_COUNT) - self.filled_count;
            if free == 0 || self.events.len() >= EVENTS_PER_PASS_MAX {
                return;
            }
            let Some(token) = self.readable.pop_front() else { return };
            let Some(connection) = self.connections.find_mut(token) else { continue };
            connection.queued = false;
            if connection.reading == Reading::Wanted {
                self.read(token, free.min(BUFFERS_PER_CONNECTION));
                self.queue_reading(token);
            }
        }
    }

    /// One read into at most `buffer_count` buffers, which lie in a row.
    fn read(&mut self, token: Token, buffer_count: usize) {
        let Some(connection) = self.connections.find_mut(token) else { return };
        let start = self.filled_count * RECV_BUFFER_BYTES;
        let room = &mut self.memory[start..start + buffer_count * RECV_BUFFER_BYTES];
        let result = rustix::net::recv(&connection.socket, &mut *room, RecvFlags::DONTWAIT);
        match result {
            Ok((0, _)) => {
                connection.reading = Reading::Over;
                self.events.push_back(Event::Eof { token });
            }
            Ok((bytes, _)) => {
                // Less than asked: all there was. After a hang-up its end is still to be read.
                connection.readable = bytes == room.len() || connection.hung_up;
                let chunk =
                    Chunk { buffer: self.filled_count as u32, offset: 0, length: bytes as u32 };
                self.filled_count += bytes.div_ceil(RECV_BUFFER_BYTES);
                self.events.push_back(Event::Data { token, chunk });
            }
            Err(Errno::AGAIN) => connection.readable = false,
            // Stays readable: the next turn tries again.
            Err(Errno::INTR) => {}
            Err(error) => {
                connection.reading = Reading::Over;
                self.events.push_back(Event::RecvFailed { token, error: error.into() });
            }
        }
    }

    fn go_on_sending(&mut self, token: Token) {
        let Some(connection) = self.connections.find_mut(token) else { return };
        if std::mem::take(&mut connection.wants_writable) {
            self.events.push_back(Event::Writable { token });
        }
        let Some(remainder) = &mut connection.sending else { return };
        let mut result = Ok(0);
        for _ in 0..SENDS_PER_CONNECTION {
            let socket = connection.socket.as_fd();
            match socket::send_now(socket, remainder.parts(), remainder.more()) {
                // An edge will come.
                Ok(0) => return,
                Ok(bytes) => remainder.advance(bytes),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
            if remainder.is_done() {
                result = Ok(remainder.taken_since());
                break;
            }
        }
        if result.is_ok() && !remainder.is_done() {
            // No edge will come, because the kernel has not refused any bytes.
            self.sendable.push_back(token);
            return;
        }
        connection.sending = None;
        self.events.push_back(Event::Sent { token, result });
    }

    fn try_accept(&mut self, index: usize) {
        let Some(Listener { socket: Some(socket), armed: true }) = self.listeners.get(index) else {
            return;
        };
        let listener = ListenerIndex(index);
        match socket::accept_now(socket.as_fd()) {
            Ok((socket, peer)) => {
                self.disarm(index);
                self.events.push_back(Event::Accepted { listener, socket, peer });
            }
            // Another worker was faster.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                self.disarm(index);
                self.events.push_back(Event::AcceptFailed { listener, error });
            }
        }
    }

    fn disarm(&mut self, index: usize) {
        let Some(listener) = self.listeners.get_mut(index) else { return };
        if let (Some(socket), true) = (&listener.socket, listener.armed) {
            // Refused only if it is not there.
            let _ = epoll::delete(&self.epoll, socket);
        }
        listener.armed = false;
    }

    fn give_up(&mut self, token: Token, ending: Ending) {
        let Some(connection) = self.connections.remove(token) else { return };
        // Closing alone would not do: a child that the application forked may hold a copy.
        let _ = epoll::delete(&self.epoll, &connection.socket);
        socket::end(connection.socket, ending);
        self.events.push_back(Event::Closed { token });
    }
}

/// `epoll_pwait2`: rustix asks for milliseconds unless the timeout is too large for them.
fn wait_exactly(
    epoll: BorrowedFd<'_>,
    ready: &mut Vec<epoll::Event>,
    timeout: Option<&Timespec>,
) -> Result<(), Errno> {
    let room: &mut [MaybeUninit<epoll::Event>] = ready.spare_capacity_mut();
    let timeout = timeout.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: I7: room and timeout are live; rustix's event and timespec have the kernel's layout.
    let result = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            epoll.as_raw_fd(),
            room.as_mut_ptr(),
            room.len() as libc::c_int,
            timeout,
            std::ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    };
    let Ok(count) = usize::try_from(result) else {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    };
    let count = count.min(room.len());
    // SAFETY: I4, I7: the kernel wrote that many events, at most what there was room for.
    unsafe { ready.set_len(count) };
    Ok(())
}

impl Io for Epoll {
    type Socket = OwnedFd;

    fn name(&self) -> &'static str {
        "epoll"
    }

    fn add_listener(&mut self, socket: Held) -> ListenerIndex {
        // Several workers try at once, and all but one must come back empty.
        let _ = socket::set_blocking(socket.as_fd(), false);
        self.listeners.push(Listener { socket: Some(socket), armed: false });
        ListenerIndex(self.listeners.len() - 1)
    }

    fn arm_accept(&mut self, listener: ListenerIndex) {
        let Some(armed) = self.listeners.get_mut(listener.0) else { return };
        let Some(socket) = &armed.socket else { return };
        if armed.armed {
            return;
        }
        let data = EventData::new_u64(LISTENER << 56 | listener.0 as u64);
        let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
        match epoll::add(&self.epoll, socket, data, flags) {
            Ok(()) => armed.armed = true,
            Err(error) => {
                let error = error.into();
                self.events.push_back(Event::AcceptFailed { listener, error });
            }
        }
    }

    fn cancel_accept(&mut self, listener: ListenerIndex) {
        if !self.listeners.get(listener.0).is_some_and(|listener| listener.armed) {
            return;
        }
        // One that waits is taken, so that a drain finds the queue empty by this.
        self.try_accept(listener.0);
        if self.listeners[listener.0].armed {
            self.disarm(listener.0);
            let error = io::Error::from_raw_os_error(libc::ECANCELED);
            self.events.push_back(Event::AcceptFailed { listener, error });
        }
    }

    fn close_listener(&mut self, listener: ListenerIndex) {
        self.cancel_accept(listener);
        if let Some(closed) = self.listeners.get_mut(listener.0) {
            closed.socket = None;
        }
    }

    fn adopt(&mut self, token: Token, socket: OwnedFd) {
        let data = EventData::new_u64(CONNECTION << 56 | token.bits());
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let added = epoll::add(&self.epoll, &socket, data, flags);
        let reading = if added.is_ok() { Reading::Idle } else { Reading::Over };
        let connection = Connection {
            socket: Held::new(socket),
            reading,
            readable: false,
            hung_up: false,
            queued: false,
            sending: None,
            wants_writable: false,
        };
        self.connections.insert(token, connection);
        if let Err(error) = added {
            // ENOMEM or ENOSPC (fs.epoll.max_user_watches): unusable, and this says why.
            self.events.push_back(Event::RecvFailed { token, error: error.into() });
        }
    }

    fn start_recv(&mut self, token: Token) {
        let Some(connection) = self.connections.find_mut(token) else { return };
        if connection.reading == Reading::Idle {
            connection.reading = Reading::Wanted;
            self.queue_reading(token);
        }
    }

    fn stop_recv(&mut self, token: Token) {
        let Some(connection) = self.connections.find_mut(token) else { return };
        if connection.reading == Reading::Wanted {
            connection.reading = Reading::Idle;
        }
    }

    fn send(&mut self, token: Token, outgoing: Outgoing) -> io::Result<Sending> {
        let connection = self.connections.find_mut(token).ok_or(io::ErrorKind::NotConnected)?;
        assert!(connection.sending.is_none(), "bug: a second send of {token:?} in flight");
        let parts = [&outgoing.head[..], &outgoing.body[..]];
        let mut taken = socket::send_now(connection.socket.as_fd(), parts, outgoing.more)?;
        if taken == outgoing.len() {
            return Ok(Sending::Complete);
        }
        let mut remainder = Remainder::new(outgoing, taken);
        if taken > 0 {
            // Until the kernel has refused bytes once, it owes us no edge.
            let socket = connection.socket.as_fd();
            let again = socket::send_now(socket, remainder.parts(), remainder.more())?;
            remainder.advance(again);
            taken += again;
            if remainder.is_done() {
                return Ok(Sending::Complete);
            }
            if again > 0 {
                self.sendable.push_back(token);
            }
        }
        remainder.forget_taken();
        connection.sending = Some(remainder);
        Ok(Sending::InFlight { taken })
    }

    fn send_file(
        &mut self,
        token: Token,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> io::Result<usize> {
        let connection = self.connections.find(token).ok_or(io::ErrorKind::NotConnected)?;
        assert!(connection.sending.is_none(), "bug: a file beside a send of {token:?} in flight");
        socket::send_file_now(connection.socket.as_fd(), file, offset, count)
    }

    fn want_writable(&mut self, token: Token) {
        let Some(connection) = self.connections.find_mut(token) else { return };
        if std::mem::replace(&mut connection.wants_writable, true) {
            return;
        }
        // The socket may take bytes already, and then no edge comes: registering anew makes one.
        let data = EventData::new_u64(CONNECTION << 56 | token.bits());
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let _ = epoll::modify(&self.epoll, &connection.socket, data, flags);
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
        if let Some(connection) = self.connections.find(token) {
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
        let idle = self.events.is_empty() && self.readable.is_empty() && self.sendable.is_empty();
        self.wait_for_events(if idle { timeout } else { Some(Duration::ZERO) })?;
        let mut ready = std::mem::take(&mut self.ready);
        for event in ready.drain(..) {
            self.dispatch(&event);
        }
        self.ready = ready;
        for _ in 0..self.sendable.len() {
            let Some(token) = self.sendable.pop_front() else { break };
            self.go_on_sending(token);
        }
        self.read_those_in_line();
        Ok(())
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
            if self.connections.find(token).is_some() {
                return Some(event);
            }
        }
    }

    fn chunk(&self, chunk: Chunk) -> &[u8] {
        let first = chunk.buffer as usize;
        let end = chunk.offset as usize + chunk.length as usize;
        assert!(
            first + end.div_ceil(RECV_BUFFER_BYTES) <= self.filled_count,
            "bug: {chunk:?} is not of this pass"
        );
        let start = first * RECV_BUFFER_BYTES;
        &self.memory[start + chunk.offset as usize..start + end]
    }

    fn end_pass(&mut self) {
        self.filled_count = 0;
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn shutdown(self) {
        // The kernel holds no buffer of ours, so dropping closes everything.
    }
}
