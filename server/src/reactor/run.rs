//! The loop: settle completions, wake the lane, watch the clock, wait for the kernel, dispatch.

use std::io as std_io;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use super::balance::{Balance, Standing, Verdict};
use super::command::{Command, Commands};
use super::io::{Event, Io, ListenerIndex, Peer};
use super::session::{Session, Slots, State, Watch};
use super::stacks::Stacks;
use super::timers::Wheel;
use super::token::Token;
use super::{Insight, Settings};
use crate::arena::Arena;
use crate::board::WorkerCell;
use crate::clock;
use crate::exchange::{Completions, Job, SyncLane};
use crate::http;
use crate::limits;
use crate::pool::{AgeWatch, ReactorCounts};
use crate::request_id::RequestIds;
use crate::spool::Spool;
use crate::sync::{Arc, Ordering};

/// A listening socket as the loop sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Listening {
    /// One accept is armed.
    Armed,
    /// None is: the worker is full, or has more than its share.
    Idle,
    /// One is armed and was taken back; the `Io` answers.
    Withdrawing,
    /// None is until the moment: the kernel had no descriptor or memory.
    Paused(Instant),
    /// Given up in the drain.
    Closed,
}

/// Where the worker's life stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Running,
    /// The drain began: what the kernel has accepted is still taken.
    Emptying {
        idle_until: Instant,
    },
    /// No new connection; idle ones live until the moment.
    Draining {
        idle_until: Instant,
    },
}

/// One worker's data plane. Lives on one thread from `new` to the end of `run`.
#[derive(Debug)]
pub(crate) struct Reactor<I: Io> {
    pub(super) io: I,
    pub(super) settings: Settings,
    pub(super) lane: Arc<SyncLane>,
    pub(super) completions: Arc<Completions>,
    pub(super) slots: Slots,
    pub(super) wheel: Wheel,
    pub(super) spool: Spool,
    /// When the current pass began.
    pub(super) now: Instant,
    /// Jobs were put on the ring since the lane was last woken.
    pub(super) submitted: bool,
    /// With `--request-id`.
    pub(super) request_ids: Option<RequestIds>,
    /// Where the usual small request is copied to.
    pub(super) inbound: Arena,
    /// Connections whose buffered input may hold the next request.
    pub(super) ready: Vec<Token>,
    /// Uploads that wait for the spool as a whole.
    pub(super) spool_waiters: Vec<Token>,
    /// Requests answered 503 since it was last said.
    pub(super) shed_count: u64,
    /// Requests whose `--request-timeout` passed on the ring since it was last said.
    pub(super) expired_count: u64,
    pub(super) stacks: Stacks,
    /// Requests refused for a broken rule since it was last said.
    pub(super) refusals: Refusals,
    /// Ring entries and events of connections that were gone.
    pub(super) late_count: u64,
    pub(super) age: AgeWatch,
    counts: Arc<ReactorCounts>,
    balance: Balance,
    /// The public ones, then those of `--admin`.
    pub(super) listeners: Vec<Listening>,
    pub(super) public_listener_count: usize,
    phase: Phase,
    pub(super) commands: Arc<Commands>,
    /// Objects that only the application's threads may drop.
    garbage: Arc<AtomicUsize>,
    due: Vec<(Token, u64)>,
    next_survey: Instant,
    accepted: bool,
}

/// What a reactor is made of besides its `Io`.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) settings: Settings,
    pub(crate) lane: Arc<SyncLane>,
    pub(crate) completions: Arc<Completions>,
    pub(crate) spool: Spool,
    pub(crate) commands: Arc<Commands>,
    pub(crate) garbage: Arc<AtomicUsize>,
    pub(crate) wake_age: std::time::Duration,
    pub(crate) counts: Arc<ReactorCounts>,
    /// `None`: takes every connection it can get.
    pub(crate) cell: Option<WorkerCell>,
    pub(crate) insight: Insight,
    pub(crate) public_listener_count: usize,
    pub(crate) admin_listener_count: usize,
}

impl<I: Io> Reactor<I> {
    /// The listeners were added to `io` before.
    pub(crate) fn new(io: I, parts: Parts, now: Instant) -> Self {
        let age = AgeWatch::new(parts.wake_age, parts.lane.policy().parallel);
        Self {
            io,
            request_ids: parts.settings.request_ids.then(RequestIds::new),
            settings: parts.settings,
            lane: parts.lane,
            completions: parts.completions,
            slots: Slots::default(),
            wheel: Wheel::new(now),
            spool: parts.spool,
            now,
            submitted: false,
            inbound: Arena::default(),
            ready: Vec::new(),
            spool_waiters: Vec::new(),
            shed_count: 0,
            expired_count: 0,
            stacks: Stacks::new(parts.insight),
            refusals: Refusals::default(),
            late_count: 0,
            age,
            counts: parts.counts,
            balance: Balance::new(parts.cell),
            listeners: vec![
                Listening::Idle;
                parts.public_listener_count + parts.admin_listener_count
            ],
            public_listener_count: parts.public_listener_count,
            phase: Phase::Running,
            commands: parts.commands,
            garbage: parts.garbage,
            due: Vec::new(),
            next_survey: now,
            accepted: false,
        }
    }

    /// Serves until the drain is complete or the worker is told to stop.
    ///
    /// # Errors
    /// The `Io` cannot go on.
    pub(crate) fn run(mut self) -> std_io::Result<()> {
        let result = loop {
            if self.obey() {
                break Ok(());
            }
            if let Err(error) = self.pass(clock::now) {
                break Err(error);
            }
        };
        self.leave();
        result
    }

    /// One turn: what there is to do, the wait, what came of it. `read_clock` is asked once, after
    /// the wait (the simulation has a clock of its own), and before it too where passes are timed or
    /// jobs wait.
    pub(super) fn pass(&mut self, read_clock: impl Fn() -> Instant) -> std_io::Result<()> {
        let now = self.before_wait(&read_clock);
        let timeout = self.sleep_time(now);
        if self.counts.is_timed() {
            self.counts.pass_took(now.saturating_duration_since(self.now));
        }
        self.counts.waited();
        let waited = self.io.wait(timeout);
        self.completions.unpark();
        waited?;
        self.now = read_clock();
        self.take_events();
        Ok(())
    }

    /// Returns the moment of its end, as far as anybody needs to know.
    pub(super) fn before_wait(&mut self, read_clock: impl Fn() -> Instant) -> Instant {
        // After the command was obeyed, which may change an answer; a thread gets up while the rest of
        // the pass goes on.
        self.wake_lane();
        self.settle_completions();
        // The wheel's own ticks and no other clock: `sleep_time` ends at one of them. Before the wake,
        // since a tick may put a job on the ring.
        if self.wheel.is_behind(self.now) {
            self.tick();
        }
        self.take_ready();
        self.arm_listeners();
        self.wake_lane();
        let (waiting, pops) = self.lane.progress();
        // A job of a long pass is not as old as the pass.
        let now = if waiting > 0 || self.counts.is_timed() { read_clock() } else { self.now };
        self.age.judge(now, waiting, pops, || self.lane.wake_aged());
        now
    }

    /// How long the wait may take that begins `now`. `reactor_parked` is announced here unless there is work.
    fn sleep_time(&mut self, now: Instant) -> Option<std::time::Duration> {
        let zero = Some(std::time::Duration::ZERO);
        // What is put off ends a sleep: the pause by its moment, a withdrawal by its answer.
        let emptying = matches!(self.phase, Phase::Emptying { .. }) && !self.is_accepting_put_off();
        if !self.ready.is_empty() || emptying {
            return zero;
        }
        if !self.completions.park(self.age.is_left_to_threads()) {
            return zero;
        }
        let mut until = self.now + limits::SLEEP_MAX;
        let idle_end = match self.phase {
            Phase::Draining { idle_until } if idle_until > self.now => Some(idle_until),
            Phase::Draining { .. } | Phase::Running | Phase::Emptying { .. } => None,
        };
        let paused = self.listeners.iter().filter_map(|listening| match listening {
            Listening::Paused(moment) => Some(*moment),
            Listening::Armed | Listening::Idle | Listening::Withdrawing | Listening::Closed => None,
        });
        let (balance, stacks) = (self.balance.next_look(), self.stacks.next_look(self.now));
        let deadlines = [self.age.deadline(), self.wheel.next_look(), idle_end, balance, stacks];
        for moment in deadlines.into_iter().flatten().chain(paused) {
            until = until.min(moment);
        }
        Some(until.saturating_duration_since(now))
    }

    fn take_events(&mut self) {
        self.accepted = false;
        while let Some(event) = self.io.next_event() {
            self.dispatch_event(event);
        }
        self.io.end_pass();
        if let Phase::Emptying { idle_until } = self.phase
            && !self.accepted
            && (self.now >= idle_until || !self.is_accepting_put_off())
        {
            self.phase = Phase::Draining { idle_until };
            self.close_listeners();
        }
    }

    fn dispatch_event(&mut self, event: Event<I::Socket>) {
        match event {
            Event::Data { token, chunk } => self.on_data(token, chunk),
            Event::Accepted { listener, socket, peer } => self.on_accepted(listener, socket, peer),
            Event::AcceptFailed { listener, error } => self.on_accept_failed(listener, &error),
            Event::Eof { token } => self.on_eof(token),
            Event::RecvFailed { token, error } => {
                tracing::debug!(%error, slot = token.slot_index(), "reading failed");
                self.broken(token);
            }
            Event::Sent { token, result } => self.on_sent(token, result),
            Event::Writable { token } => self.on_writable(token),
            Event::Closed { token } => {
                self.slots.remove(token);
            }
            Event::Woken => {}
        }
    }

    /// Once for all jobs put on the ring since the last time.
    fn wake_lane(&mut self) {
        if std::mem::take(&mut self.submitted) {
            self.lane.wake_for_work();
        }
    }

    fn settle_completions(&mut self) {
        debug_assert!(!self.submitted, "the lane waits for what has nothing to do with it");
        // Bounded, so that a lane that answers as fast as we settle does not hold the kernel up.
        for _ in 0..limits::EVENTS_PER_PASS_MAX {
            let Some(token) = self.completions.pop() else { break };
            self.on_output(token);
        }
    }

    fn take_ready(&mut self) {
        for token in std::mem::take(&mut self.ready) {
            self.advance(token);
        }
    }

    // Listeners.

    fn arm_listeners(&mut self) {
        // What the kernel has accepted when a drain begins is answered, also by a full worker.
        let emptying = matches!(self.phase, Phase::Emptying { .. });
        let full = self.slots.len() >= self.settings.connections_max && !emptying;
        let verdict = self.judge_balance(full);
        let for_admin = (self.is_admin_full(), verdict.without_holding());
        for index in 0..self.listeners.len() {
            let is_admin = index >= self.public_listener_count;
            let (full, verdict) = if is_admin { for_admin } else { (full, verdict) };
            let now = self.now;
            let listening = &mut self.listeners[index];
            if matches!(listening, Listening::Paused(moment) if now >= *moment) {
                *listening = Listening::Idle;
            }
            match (*listening, verdict) {
                (Listening::Idle, Verdict::Take | Verdict::TakeAnew) if !full => {
                    *listening = Listening::Armed;
                    self.io.arm_accept(ListenerIndex(index));
                }
                (Listening::Armed, Verdict::Hold | Verdict::TakeAnew) => {
                    *listening = Listening::Withdrawing;
                    self.io.cancel_accept(ListenerIndex(index));
                }
                (Listening::Idle | Listening::Armed, _)
                | (Listening::Withdrawing | Listening::Paused(_) | Listening::Closed, _) => {}
            }
        }
    }

    /// Tells the other workers how this one stands, and finds out whether it is its turn to accept.
    fn judge_balance(&mut self, full: bool) -> Verdict {
        let is_usable = |listening: &Listening| match listening {
            Listening::Armed | Listening::Idle | Listening::Withdrawing => true,
            Listening::Paused(moment) => self.now >= *moment,
            Listening::Closed => false,
        };
        let is_accepting =
            self.phase == Phase::Running && !full && self.public_listeners().iter().any(is_usable);
        let standing = Standing { connections: self.slots.len(), is_accepting };
        self.balance.look(self.now, standing)
    }

    fn public_listeners(&self) -> &[Listening] {
        &self.listeners[..self.public_listener_count]
    }

    /// Whether a public listener may still have a connection for us, although no accept brought one.
    fn is_accepting_put_off(&self) -> bool {
        let is_put_off = |listening: &Listening| {
            matches!(listening, Listening::Paused(_) | Listening::Withdrawing)
        };
        self.public_listeners().iter().any(is_put_off)
    }

    fn on_accepted(&mut self, listener: ListenerIndex, socket: I::Socket, peer: Peer) {
        let is_admin = listener.0 >= self.public_listener_count;
        self.accepted |= !is_admin;
        if self.listeners[listener.0] != Listening::Closed {
            self.listeners[listener.0] = Listening::Idle;
        }
        let mut session = Session::new(listener, peer, http::Connection::new(self.settings.http));
        session.is_admin = is_admin;
        // Asked once: a connection's peer does not change.
        session.is_trusted_proxy = self.settings.trust.proxies.contains(peer.into());
        let token = self.slots.insert(session);
        self.io.adopt(token, socket);
        self.io.start_recv(token);
        self.watch(token, Watch::Head);
    }

    fn on_accept_failed(&mut self, listener: ListenerIndex, error: &std_io::Error) {
        let listening = &mut self.listeners[listener.0];
        if *listening == Listening::Closed {
            return;
        }
        // That one client has gone, or the accept was taken back; anything else may stay for long.
        let passing =
            [libc::ECONNABORTED, libc::EPROTO, libc::ECANCELED, libc::EINTR, libc::EAGAIN];
        if passing.map(Some).contains(&error.raw_os_error()) {
            *listening = Listening::Idle;
        } else {
            tracing::warn!(
                %error,
                connections = self.slots.len(),
                "accept failed; accepting pauses for 100 ms. If descriptors ran out, raise the \
                 open-files limit (ulimit -n, LimitNOFILE=) or lower --max-connections"
            );
            *listening = Listening::Paused(self.now + limits::ACCEPT_PAUSE);
        }
    }

    fn close_listeners(&mut self) {
        for index in 0..self.listeners.len() {
            self.listeners[index] = Listening::Closed;
            self.io.close_listener(ListenerIndex(index));
        }
    }

    // Commands and the end.

    /// True: leave the loop.
    pub(super) fn obey(&mut self) -> bool {
        match self.commands.wanted() {
            Command::Serve | Command::Leave => return false,
            Command::Stop => return true,
            Command::Drain => {}
        }
        match self.phase {
            Phase::Running => {
                let idle_until = self.now + self.settings.drain_idle;
                self.phase = Phase::Emptying { idle_until };
                self.close_admin();
                for session in self.slots.iter() {
                    if let Some(exchange) = session.exchange() {
                        exchange.set_closing();
                    }
                }
                false
            }
            Phase::Emptying { .. } => false,
            Phase::Draining { idle_until } => {
                if self.now >= idle_until {
                    let now = self.now;
                    for token in self.slots.tokens(|session| session.is_closable(now)) {
                        self.close(token);
                    }
                }
                let is_over = self.slots.len() == 0;
                if is_over {
                    self.commands.set_drained();
                }
                is_over
            }
        }
    }

    /// Whether answers should end their connections.
    pub(super) fn is_draining(&self) -> bool {
        self.phase != Phase::Running
    }

    /// Whether an idle connection has no future.
    pub(super) fn idle_is_over(&self) -> bool {
        matches!(self.phase, Phase::Draining { idle_until } if self.now >= idle_until)
    }

    fn leave(mut self) {
        self.stacks.finish(self.now, &self.settings);
        if self.late_count > 0 {
            tracing::debug!(count = self.late_count, "entries came for connections that were gone");
        }
        let mut unanswered = Vec::new();
        for session in self.slots.iter() {
            if let Some(exchange) = session.exchange() {
                unanswered.push(exchange.request_line());
                exchange.set_gone();
            }
        }
        self.commands.set_unanswered(unanswered);
        // Buffers that Python owns go to the graveyard from here, not from a half-destroyed loop.
        for token in self.slots.tokens(|_| true) {
            if let Some(session) = self.slots.of(token) {
                session.outputs.clear();
            }
        }
        self.io.shutdown();
    }

    // The clock.

    /// Once a tick: deadlines, what waits for the spool, what waits to be dropped, what is to be said.
    fn tick(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        self.wheel.advance(self.now, &mut due);
        for (token, tick) in due.drain(..) {
            let Some(session) = self.slots.of(token) else { continue };
            // First, so that a request that is overdue besides is known as such.
            if self.wheel.is_due(token, &mut session.timer, tick, self.now) {
                self.on_deadline(token);
            }
            let Some(session) = self.slots.of(token) else { continue };
            if self.wheel.is_due(token, &mut session.send_timer, tick, self.now) {
                self.on_send_deadline(token);
            }
        }
        self.due = due;
        self.resume_spool_waiters();
        if self.now >= self.next_survey {
            self.next_survey = self.now + limits::UPLOAD_SURVEY;
            self.survey_uploads();
        }
        if self.garbage.load(Ordering::Relaxed) > 0
            && self.lane.parked_count() == self.lane.thread_count()
            && self.lane.submit_errand(Job::Reclaim).is_ok()
        {
            self.submitted = true;
        }
        self.stacks.look(self.now, &self.settings);
        self.say_expired();
        self.refusals.say();
        if let Some(sink) = &self.settings.access_log {
            sink.tick();
        }
        if self.shed_count > 0 {
            tracing::warn!(
                requests = self.shed_count,
                queue = self.settings.queue_requests_max,
                threads = self.lane.thread_count(),
                "requests answered 503: all threads are busy and the queue is full. Raise --threads, \
                 --workers or --queue, or look for a view that hangs"
            );
            self.shed_count = 0;
        }
    }

    /// Finds uploads whose client reset the connection unnoticed: their file and quota are wanted.
    fn survey_uploads(&mut self) {
        let is_upload = |session: &Session| {
            matches!(session.state, State::Body(_)) && !session.has_complete_request()
        };
        for token in self.slots.tokens(is_upload) {
            if self.io.is_broken(token) {
                self.broken(token);
            }
        }
    }

    /// Sets what the connection is watched for, and until when.
    pub(super) fn watch(&mut self, token: Token, watch: Watch) {
        let draining = self.is_draining();
        let Some(session) = self.slots.of(token) else { return };
        let time = match watch {
            Watch::Nothing => None,
            Watch::Idle | Watch::Head if session.is_admin => Some(limits::ADMIN_IDLE),
            Watch::Idle if draining => Some(self.settings.drain_idle),
            Watch::Idle => Some(self.settings.keep_alive),
            Watch::Head => Some(self.settings.header_timeout),
            Watch::Body => Some(self.settings.body_timeout),
            Watch::Answer => self.settings.request_timeout,
            Watch::Linger => Some(limits::LINGER_IDLE),
        };
        let Some(time) = time else {
            session.watch = Watch::Nothing;
            return Wheel::clear(&mut session.timer);
        };
        session.watch = watch;
        let mut deadline = self.now + time;
        if let State::Lingering(end) = session.state {
            deadline = deadline.min(end);
        }
        self.wheel.set(token, &mut session.timer, deadline);
    }
}

/// Peers that broke a rule, said at most once a tick however many they are.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    count: u64,
    last: Option<http::Violation>,
}

impl Refusals {
    pub(super) fn note(&mut self, violation: http::Violation) {
        self.count += 1;
        self.last = Some(violation);
    }

    fn say(&mut self) {
        if let Some(last) = self.last.take() {
            tracing::info!(requests = self.count, %last, "requests refused");
            self.count = 0;
        }
    }
}
