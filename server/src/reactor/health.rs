//! Probes: the admin listener (`--admin`) and the health path of the public ones (`--health-path`).
//!
//! Both are answered here and now, so that they say how this worker is also while the application
//! holds the interpreter lock, all threads are busy or `--max-connections` is reached. Connections of
//! the admin listener have a bound of their own and never delay a drain.

use bytes::Bytes;

use super::command::Command;
use super::io::{Io, ListenerIndex};
use super::run::{Listening, Reactor};
use super::session::{Answer, Session, State, Watch};
use super::token::Token;
use crate::exchange::{End, Output};
use crate::http::encode::{ResponseContext, push_own_response};
use crate::http::{RequestFraming, RequestHead};
use crate::limits;

/// What can be asked of the server itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Page {
    /// This worker's reactor runs.
    Live,
    /// It wants requests.
    Ready,
}

/// The pages of the admin listener.
const PAGES: [(&[u8], Page); 2] = [(b"/live", Page::Live), (b"/ready", Page::Ready)];

/// An answer in the making.
struct Reply {
    status: u16,
    text: &'static str,
    /// Besides `Cache-Control`.
    field: Option<(&'static str, String)>,
}

impl Reply {
    fn plain(status: u16, text: &'static str) -> Self {
        Self { status, text, field: None }
    }
}

impl<I: Io> Reactor<I> {
    /// Whether the server answers a request without the application.
    pub(super) fn is_probe(&mut self, token: Token, head: &RequestHead) -> bool {
        if self.slots.of(token).is_some_and(|session| session.is_admin) {
            return true;
        }
        let Some(path) = &self.settings.health_path else { return false };
        head.path() == path.as_bytes() && is_read(head)
    }

    /// Answers it. Not in the access log: a balancer asks every few seconds for as long as it lives.
    pub(super) fn answer_probe(&mut self, token: Token, head: &RequestHead) {
        let reply = self.reply_to(token, head);
        // A body is not read.
        let keep_alive = head.keep_alive()
            && head.framing() == RequestFraming::None
            && !self.is_draining()
            && !self.settings.keep_alive.is_zero();
        let server = self.settings.server_name.as_deref();
        let context = ResponseContext::of(head, keep_alive, server);
        let mut fields = vec![("Cache-Control", "no-store")];
        fields.extend(reply.field.as_ref().map(|(name, value)| (*name, value.as_str())));
        let mut out = Vec::with_capacity(256);
        push_own_response(&mut out, context, reply.status, reply.text, &fields);
        let end = Some(End { status: reply.status, body_bytes: 0, keep_alive });
        let Some(session) = self.slots.of(token) else { return };
        session.state = State::Answering(Answer::Probe);
        session.outputs.push_back(Output::Data { head: Bytes::from(out), body: Bytes::new(), end });
        self.watch(token, Watch::Nothing);
        self.pump(token);
    }

    fn reply_to(&mut self, token: Token, head: &RequestHead) -> Reply {
        let is_admin = self.slots.of(token).is_some_and(|session| session.is_admin);
        let found = PAGES.iter().find(|(path, _)| *path == head.path());
        match (is_admin, found) {
            // The health path, whatever it is called.
            (false, _) => self.readiness(),
            (true, None) => Reply::plain(404, "there is /live and /ready"),
            (true, Some(_)) if !is_read(head) => Reply {
                field: Some(("Allow", "GET, HEAD".to_owned())),
                ..Reply::plain(405, "only GET and HEAD")
            },
            (true, Some((_, Page::Live))) => Reply::plain(200, "live"),
            (true, Some((_, Page::Ready))) => self.readiness(),
        }
    }

    fn readiness(&self) -> Reply {
        if self.commands.wanted() == Command::Serve {
            return Reply::plain(200, "ready");
        }
        let seconds = limits::RETRY_AFTER_SECONDS.to_string();
        Reply { field: Some(("Retry-After", seconds)), ..Reply::plain(503, "stopping") }
    }

    pub(super) fn is_admin_full(&self) -> bool {
        self.slots.admin_len() >= limits::ADMIN_CONNECTIONS_MAX
    }

    /// A drain begins: a probe that comes now finds another worker, or nobody, and what it has open is
    /// no reason to wait.
    pub(super) fn close_admin(&mut self) {
        for index in self.public_listener_count..self.listeners.len() {
            self.listeners[index] = Listening::Closed;
            self.io.close_listener(ListenerIndex(index));
        }
        for token in self.slots.tokens(|session| session.is_admin && Session::is_done(session)) {
            self.close(token);
        }
    }
}

fn is_read(head: &RequestHead) -> bool {
    matches!(head.method(), b"GET" | b"HEAD")
}
