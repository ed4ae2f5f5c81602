//! `--request-timeout`: a request whose response has not begun in time is answered 504 and taken from
//! its thread, which cannot be stopped.

use std::collections::VecDeque;

use super::io::Io;
use super::run::Reactor;
use super::session::{Answer, State};
use super::token::Token;
use crate::exchange::{Exchange, Expired, Output};
use crate::sync::Arc;

impl<I: Io> Reactor<I> {
    pub(super) fn on_request_deadline(&mut self, token: Token) {
        let Some(session) = self.slots.of(token) else { return };
        let State::Answering(Answer::Of(exchange)) = &session.state else { return };
        let exchange = Arc::clone(exchange);
        exchange.take_outputs(&mut session.outputs);
        if session.outputs.iter().any(Output::is_of_response) {
            // It came while the deadline was looked at.
            return self.pump(token);
        }
        // From here on the exchange has no connection: what its thread makes of it goes nowhere.
        session.state = State::Answering(Answer::InsteadOf(Arc::clone(&exchange)));
        self.give_up_exchange(&exchange);
        match exchange.expire() {
            Expired::Waiting => self.expired_count += 1,
            Expired::Running => self.note_overdue(exchange),
        }
        self.answer_own(token, 504, "the application did not answer in time", false);
    }

    fn give_up_exchange(&mut self, exchange: &Exchange) {
        exchange.set_gone();
        let mut late = VecDeque::new();
        exchange.take_outputs(&mut late);
        for output in late {
            if let Output::File { file, .. } = output {
                self.spool.release(Arc::new(file));
            }
        }
    }

    fn note_overdue(&mut self, exchange: Arc<Exchange>) {
        let seconds = self.settings.request_timeout.unwrap_or_default().as_secs_f64();
        self.stacks.want_for(exchange);
        self.commands
            .want_recycling(format!("a request ran for more than --request-timeout {seconds} s"));
    }

    /// Once a tick: those that never ran.
    pub(super) fn say_expired(&mut self) {
        if self.expired_count > 0 {
            tracing::warn!(
                requests = self.expired_count,
                threads = self.lane.thread_count(),
                "requests answered 504: they waited for a thread for all of --request-timeout and do \
                 not run any more. Raise --threads or --workers, or look for a view that hangs"
            );
            self.expired_count = 0;
        }
    }
}
