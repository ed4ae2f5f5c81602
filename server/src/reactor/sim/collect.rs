//! What the simulated kernel reports, and when.

use std::io;
use std::time::Duration;

use super::network::State;
use super::{Accepting, Listener, Reading, Simulated, SimulatedSocket, take_wakes};
use crate::limits::RECV_BUFFER_BYTES;
use crate::reactor::io::{Chunk, Event, ListenerIndex, Peer};
use crate::reactor::token::Token;

impl Simulated {
    /// Reports what there is at this moment.
    pub(super) fn collect(&mut self, state: &mut State) {
        state.act();
        for index in 0..self.listeners.len() {
            self.collect_accept(state, index);
        }
        let mut tokens = self.connections.tokens();
        while !tokens.is_empty() {
            let token = tokens.swap_remove(self.dice.below(tokens.len()));
            self.collect_connection(state, token);
        }
        if take_wakes(&self.waker) || self.dice.chance(self.faults.spurious_wake) {
            self.events.push_back(Event::Woken);
        }
    }

    /// Whether a report that could come now is put off.
    fn is_late(&mut self, now: Duration) -> Option<Duration> {
        let late = self.dice.chance(self.faults.late);
        late.then(|| now + Duration::from_millis(1 + self.dice.below(50) as u64))
    }

    fn collect_accept(&mut self, state: &mut State, index: usize) {
        let Listener { accepting, not_before, .. } = self.listeners[index];
        let waiting = !state.backlogs[index].is_empty();
        let has_something = match accepting {
            Accepting::Idle => false,
            Accepting::Armed => waiting,
            Accepting::Cancelling => true,
        };
        if !has_something || not_before > state.now {
            return;
        }
        if let Some(moment) = self.is_late(state.now) {
            self.listeners[index].not_before = moment;
            return;
        }
        let listener = ListenerIndex(index);
        self.listeners[index].accepting = Accepting::Idle;
        if self.listeners[index].closing {
            self.listeners[index].socket = None;
        }
        let exhausted = self.dice.chance(self.faults.exhausted);
        let failure = match state.backlogs[index].pop_front() {
            Some(link) if !exhausted => {
                let network = self.network.clone();
                let socket = SimulatedSocket { link, network, ended: false };
                let address = std::net::Ipv4Addr::LOCALHOST.into();
                let peer = Peer::Inet(std::net::SocketAddr::new(address, 10_000 + link as u16));
                self.events.push_back(Event::Accepted { listener, socket, peer });
                return;
            }
            Some(link) => {
                state.backlogs[index].push_front(link);
                libc::EMFILE
            }
            None => libc::ECANCELED,
        };
        let error = io::Error::from_raw_os_error(failure);
        self.events.push_back(Event::AcceptFailed { listener, error });
    }

    fn collect_connection(&mut self, state: &mut State, token: Token) {
        let Some(connection) = self.connections.find(token) else { return };
        let link = &state.links[connection.socket.link];
        if connection.not_before > state.now || !connection.has_something(link) {
            return;
        }
        if let Some(moment) = self.is_late(state.now) {
            if let Some(connection) = self.connections.find_mut(token) {
                connection.not_before = moment;
            }
            return;
        }
        let breaks = self.dice.chance(self.faults.broken);
        let Some(connection) = self.connections.find_mut(token) else { return };
        let link = &mut state.links[connection.socket.link];
        link.broken |= breaks;
        if let Some(ending) = connection.ending {
            // A cancelled send may have gone on until the cancel reached it.
            if let Some(remainder) = &connection.sending {
                let [head, body] = remainder.parts();
                let more = self.dice.below(link.room().min(head.len() + body.len()) + 1);
                link.carry([head, body], more);
            }
            link.end(ending);
            connection.socket.ended = true;
            drop(self.connections.remove(token));
            self.events.push_back(Event::Closed { token });
            return;
        }
        self.collect_reading(state, token);
        self.collect_sending(state, token);
    }

    fn collect_reading(&mut self, state: &mut State, token: Token) {
        let Some(connection) = self.connections.find_mut(token) else { return };
        if connection.reading != Reading::Wanted {
            return;
        }
        let link = &mut state.links[connection.socket.link];
        while !link.to_server.is_empty() {
            let starved = self.dice.chance(self.faults.starved);
            if self.filled_count == self.buffers.len() || starved {
                return;
            }
            let offset = self.dice.below(8);
            let mut count = link.to_server.len().min(RECV_BUFFER_BYTES - offset);
            let is_short = self.dice.chance(self.faults.short_read);
            if is_short {
                count = 1 + self.dice.below(count);
            }
            let buffer = &mut self.buffers[self.filled_count];
            let read = io::Read::read(&mut link.to_server, &mut buffer[offset..offset + count]);
            let count = read.unwrap_or(0);
            let chunk = Chunk {
                buffer: self.filled_count as u32,
                offset: offset as u32,
                length: count as u32,
            };
            self.filled_count += 1;
            self.events.push_back(Event::Data { token, chunk });
            if is_short {
                return;
            }
        }
        if link.broken {
            connection.reading = Reading::Over;
            let error = io::Error::from_raw_os_error(libc::ECONNRESET);
            self.events.push_back(Event::RecvFailed { token, error });
        } else if link.client_finished {
            connection.reading = Reading::Over;
            self.events.push_back(Event::Eof { token });
        }
    }

    fn collect_sending(&mut self, state: &mut State, token: Token) {
        let Some(connection) = self.connections.find_mut(token) else { return };
        let link = &mut state.links[connection.socket.link];
        if connection.wants_writable && link.is_writable() {
            connection.wants_writable = false;
            self.events.push_back(Event::Writable { token });
        }
        let Some(remainder) = &mut connection.sending else { return };
        let result = if link.broken {
            Err(io::Error::from_raw_os_error(libc::ECONNRESET))
        } else {
            let [head, body] = remainder.parts();
            let mut count = link.room().min(head.len() + body.len());
            if self.dice.chance(self.faults.partial_send) {
                count = self.dice.below(count + 1);
            }
            link.carry([head, body], count);
            remainder.advance(count);
            if !remainder.is_done() {
                return;
            }
            Ok(remainder.taken_since())
        };
        connection.sending = None;
        self.events.push_back(Event::Sent { token, result });
    }

    /// When the next thing can happen by itself, if anything can.
    pub(super) fn next_moment(&self, state: &State) -> Option<Duration> {
        let connections = self.connections.tokens().into_iter().filter_map(|token| {
            let connection = self.connections.find(token)?;
            let link = &state.links[connection.socket.link];
            connection.has_something(link).then_some(connection.not_before)
        });
        let listeners = self.listeners.iter().enumerate().filter_map(|(index, listener)| {
            match listener.accepting {
                Accepting::Idle => None,
                Accepting::Armed if state.backlogs[index].is_empty() => None,
                Accepting::Armed | Accepting::Cancelling => Some(listener.not_before),
            }
        });
        connections.chain(listeners).chain(state.next_act()).min()
    }
}
