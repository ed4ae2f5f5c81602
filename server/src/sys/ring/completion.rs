//! What each completion means.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use io_uring::cqueue;

use super::kind::Kind;
use super::{Accepting, Ring};
use crate::reactor::custody::{RecvEnd, RecvNext};
use crate::reactor::io::{Chunk, Event, ListenerIndex};
use crate::reactor::token::Token;

impl Ring {
    /// Tells the completion to whom it belongs.
    pub(super) fn dispatch(&mut self, completion: &cqueue::Entry) {
        let user_data = completion.user_data();
        let token = Token::from_bits(user_data);
        let is_final = !cqueue::more(completion.flags());
        let Some(kind) = Kind::of(user_data) else {
            self.counters.stray_count += 1;
            return;
        };
        match kind {
            Kind::Accept | Kind::Recv | Kind::Send | Kind::Writable | Kind::Wake => {
                self.in_flight_count = self.in_flight_count.saturating_sub(usize::from(is_final));
            }
            Kind::CancelAccept
            | Kind::CancelRecv
            | Kind::CancelSend
            | Kind::CancelWritable
            | Kind::CancelWake => {}
        }
        match kind {
            Kind::Recv => self.received(token, completion, is_final),
            Kind::Send => self.sent(token, completion.result()),
            Kind::Accept => self.accepted(token, completion.result()),
            Kind::Wake => self.waked(is_final),
            Kind::Writable => self.writable(token),
            Kind::CancelRecv | Kind::CancelSend | Kind::CancelWritable => {
                self.cancel_failed(kind, token, completion.result());
            }
            // The operation's own completion tells; see `cancel_failed` for the others.
            Kind::CancelAccept | Kind::CancelWake => {}
        }
    }

    fn received(&mut self, token: Token, completion: &cqueue::Entry, is_final: bool) {
        let result = completion.result();
        let buffer = cqueue::buffer_select(completion.flags());
        // Taken whoever it is for, so that it goes back to the kernel at the end of the pass.
        let taken = buffer.filter(|buffer| self.buffers.take(*buffer));
        let Some(connection) = self.connections.find_mut(token) else {
            self.counters.stray_count += 1;
            return;
        };
        let is_open = connection.ending.is_none();
        if result > 0 {
            match taken {
                Some(buffer) if is_open => {
                    let chunk =
                        Chunk { buffer: u32::from(buffer), offset: 0, length: result as u32 };
                    self.events.push_back(Event::Data { token, chunk });
                }
                Some(_) => {}
                None => self.counters.stray_count += 1,
            }
        }
        if !is_final {
            return;
        }
        let (end, error) = match result {
            1.. => (RecvEnd::CutShort, 0),
            0 => (RecvEnd::Over, 0),
            _ => match -result {
                libc::ENOBUFS => (RecvEnd::NoBuffers, 0),
                libc::ECANCELED => (RecvEnd::Cancelled, 0),
                libc::EINTR | libc::EAGAIN => (RecvEnd::CutShort, 0),
                error => (RecvEnd::Over, error),
            },
        };
        let socket = connection.socket.as_raw_fd();
        let next = connection.reading.ended(end);
        match next {
            RecvNext::Rest => {}
            RecvNext::Rearm => {
                self.counters.rearm_count += 1;
                self.submit_recv(token, socket, result < 0);
            }
            RecvNext::Starve => {
                self.counters.starve_count += 1;
                self.starved.push(token);
            }
        }
        if !is_open {
            self.finish(token);
        } else if end == RecvEnd::Over && error == 0 {
            self.events.push_back(Event::Eof { token });
        } else if end == RecvEnd::Over {
            let error = io::Error::from_raw_os_error(error);
            self.events.push_back(Event::RecvFailed { token, error });
        }
    }

    fn sent(&mut self, token: Token, result: i32) {
        let Some(connection) = self.connections.find_mut(token) else {
            self.counters.stray_count += 1;
            return;
        };
        let Some(remainder) = &mut connection.sending else {
            self.counters.stray_count += 1;
            return;
        };
        if connection.ending.is_some() {
            // A cancelled send may report bytes instead of ECANCELED; either way it is over.
            connection.sending = None;
            self.finish(token);
            return;
        }
        let retry = result > 0 || result == -libc::EINTR || result == -libc::EAGAIN;
        remainder.advance(usize::try_from(result).unwrap_or(0));
        if retry && !remainder.is_done() {
            self.counters.short_send_count += 1;
            self.submit_send(token, result < 0);
            return;
        }
        let result = if remainder.is_done() {
            Ok(remainder.taken_since())
        } else if result == 0 {
            Err(io::ErrorKind::WriteZero.into())
        } else {
            Err(io::Error::from_raw_os_error(-result))
        };
        connection.sending = None;
        self.events.push_back(Event::Sent { token, result });
    }

    fn accepted(&mut self, token: Token, result: i32) {
        let index = token.slot_index();
        // A result that is a descriptor is owned at once: nothing below can leak it.
        // SAFETY: I9: a successful accept made it for us.
        let socket = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        let Some(listener) = self.listeners.get_mut(index) else {
            self.counters.stray_count += 1;
            return;
        };
        if listener.accepting == Accepting::Cancelling && result == -libc::ECANCELED {
            listener.accepting = Accepting::LastTry;
            self.submit_accept(index);
            self.submit_cancel(Kind::Accept, token);
            return;
        }
        listener.accepting = Accepting::Idle;
        if listener.closing {
            listener.socket = None;
        }
        let listener_index = ListenerIndex(index);
        self.events.push_back(match socket {
            Some(socket) => {
                Event::Accepted { listener: listener_index, socket, peer: listener.peer.peer() }
            }
            None => Event::AcceptFailed {
                listener: listener_index,
                error: io::Error::from_raw_os_error(-result),
            },
        });
    }

    fn waked(&mut self, is_final: bool) {
        if !self.woken {
            self.woken = true;
            self.events.push_back(Event::Woken);
        }
        if is_final {
            self.listening_to_wakes = false;
        }
    }

    fn writable(&mut self, token: Token) {
        let Some(connection) = self.connections.find_mut(token) else {
            self.counters.stray_count += 1;
            return;
        };
        connection.polling = false;
        if connection.ending.is_some() {
            self.finish(token);
        } else {
            // Also for an error of the poll: the next send finds what is wrong.
            self.events.push_back(Event::Writable { token });
        }
    }

    /// What a cancel says differs by kernel and by race, so it decides nothing; the operation's own
    /// completion does. But "found nothing" while the operation still counts as in flight would
    /// mean waiting for ever, so it is asked again. It comes after the operation's completion if
    /// that was posted first, hence not in a loop.
    fn cancel_failed(&mut self, kind: Kind, token: Token, result: i32) {
        if result != -libc::ENOENT {
            return;
        }
        let Some(connection) = self.connections.find(token) else { return };
        if connection.ending.is_none() {
            return;
        }
        match kind {
            Kind::CancelRecv if connection.reading.is_in_flight() => {
                self.submit_cancel(Kind::Recv, token);
            }
            Kind::CancelSend if connection.sending.is_some() => {
                self.submit_cancel(Kind::Send, token);
            }
            Kind::CancelWritable if connection.polling => {
                self.submit_cancel(Kind::Writable, token);
            }
            Kind::Accept
            | Kind::Recv
            | Kind::Send
            | Kind::Writable
            | Kind::Wake
            | Kind::CancelAccept
            | Kind::CancelRecv
            | Kind::CancelSend
            | Kind::CancelWritable
            | Kind::CancelWake => {}
        }
    }
}
