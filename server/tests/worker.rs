//! A whole worker without Python: reactor, lane and a thread that answers, driven over real sockets.
#![expect(
    clippy::disallowed_methods,
    reason = "a test from outside has a clock and a patience of its own"
)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use bytes::Bytes;
use hoopsnake_server::access::{AccessEntry, AccessSink};
use hoopsnake_server::exchange::{Body, End, Exchange, Job, Output, SyncLane};
use hoopsnake_server::http::connection::HttpLimits;
use hoopsnake_server::http::encode::HeadEncoder;
use hoopsnake_server::http::{BodyLength, ResponseContext};
use hoopsnake_server::limits;
use hoopsnake_server::pool::{Knobs, Next, ThreadIndex};
use hoopsnake_server::reactor::{Insight, IoKind, Settings};
use hoopsnake_server::supervisor::Sockets;
use hoopsnake_server::sys::held::Held;
use hoopsnake_server::trust::Trust;
use hoopsnake_server::worker::{Plan, Running, start};

/// What the test's application does with a request.
type Handler = fn(&Exchange, Body);

struct Worker {
    address: SocketAddr,
    running: Running,
}

impl Worker {
    fn start(io: IoKind, handler: Handler, adjust: impl FnOnce(&mut Settings)) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let mut settings = Settings {
            io,
            http: HttpLimits {
                request_line_bytes_max: limits::REQUEST_LINE_BYTES_MAX,
                head_bytes_max: limits::HEAD_BYTES_MAX,
                field_count_max: limits::FIELD_COUNT_MAX,
            },
            keep_alive: Duration::from_secs(75),
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(30),
            send_timeout: Duration::from_secs(30),
            body_bytes_max: 1 << 30,
            connections_max: 1024,
            queue_requests_max: 1024,
            drain_idle: Duration::from_millis(300),
            request_timeout: None,
            stall_timeout: None,
            health_path: None,
            trust: Trust::default(),
            spool_dir: std::env::temp_dir(),
            spool_bytes_max: 1 << 30,
            server_name: None,
            request_ids: false,
            access_log: None,
        };
        adjust(&mut settings);
        let running = start(Plan {
            listeners: Sockets { public: vec![Held::new(listener.into())], admin: Vec::new() },
            settings,
            thread_count: 1,
            free_threaded: false,
            knobs: Knobs::default(),
            garbage: Arc::new(AtomicUsize::new(0)),
            cell: None,
            insight: Insight::default(),
        })
        .expect("a worker");
        let lane = Arc::clone(&running.lane);
        std::thread::Builder::new().spawn(move || answer(&lane, handler)).expect("a thread");
        Self { address, running }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("accepted");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("settable");
        stream
    }

    /// Sends bytes, closes the sending side, reads to the end.
    fn ask(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(request).expect("sent");
        stream.shutdown(Shutdown::Write).expect("half closed");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an end");
        String::from_utf8_lossy(&answer).into_owned()
    }
}

fn answer(lane: &SyncLane, handler: Handler) {
    while let Next::Job(job) = lane.next_job(ThreadIndex(0)) {
        if let Job::Request { exchange, body } = job {
            handler(&exchange, body);
            lane.completed(ThreadIndex(0));
        }
    }
}

fn respond(exchange: &Exchange, status: u16, content: &[u8]) {
    let mut out = Vec::new();
    let context = ResponseContext::of(&exchange.head, exchange.keep_alive(), None);
    let encoder = HeadEncoder::begin(&mut out, context, status, b"").expect("a status");
    let head = encoder.finish(BodyLength::Known(content.len() as u64));
    out.extend_from_slice(content);
    exchange.push_quietly(Output::Data {
        head: Bytes::from(out),
        body: Bytes::new(),
        end: Some(End { status, body_bytes: content.len() as u64, keep_alive: head.keep_alive }),
    });
}

fn hello(exchange: &Exchange, _: Body) {
    respond(exchange, 200, exchange.head.path());
}

fn body_length(exchange: &Exchange, body: Body) {
    let kind = match body {
        Body::Empty => "empty",
        Body::Memory(_) => "memory",
        Body::Spooled { .. } => "spooled",
    };
    respond(exchange, 200, format!("{kind} {}", body.len()).as_bytes());
}

fn on_both(test: impl Fn(IoKind)) {
    for io in [IoKind::Epoll, IoKind::Uring] {
        test(io);
    }
}

#[test]
fn pipelined_requests_are_answered_in_order_and_a_half_closed_client_gets_them_all() {
    on_both(|io| {
        let worker = Worker::start(io, hello, |_| {});
        let mut requests = Vec::new();
        for index in 0..500 {
            requests
                .extend_from_slice(format!("GET /{index} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        }
        let answer = worker.ask(&requests);
        let paths: Vec<_> = answer.lines().filter(|line| line.starts_with('/')).collect();
        // The body of one response and the status line of the next share a line.
        let order: Vec<_> = paths
            .iter()
            .map(|line| line.trim_start_matches('/').split("HTTP").next().unwrap_or_default())
            .collect();
        let expected: Vec<_> = (0..500).map(|index| index.to_string()).collect();
        assert_eq!(order, expected, "{io:?}");
    });
}

#[test]
fn bodies_stay_in_memory_up_to_the_bound_and_go_to_the_spool_beyond_it() {
    on_both(|io| {
        let worker = Worker::start(io, body_length, |_| {});
        for (length, kind) in [
            (0, "empty"),
            (1, "memory"),
            (65_536, "memory"),
            (65_537, "spooled"),
            (3_000_000, "spooled"),
        ] {
            let mut request =
                format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n")
                    .into_bytes();
            request.extend(std::iter::repeat_n(b'x', length));
            let answer = worker.ask(&request);
            assert!(answer.ends_with(&format!("{kind} {length}")), "{io:?} {length}: {answer}");
        }
    });
}

#[test]
fn a_full_queue_sheds_with_503_and_the_connection_lives() {
    fn slow(exchange: &Exchange, body: Body) {
        if exchange.head.path() == b"/slow" {
            // Until the test has seen the others answered: its client goes away.
            while !exchange.is_gone() {
                std::thread::yield_now();
            }
            return;
        }
        hello(exchange, body);
    }
    on_both(|io| {
        let worker = Worker::start(io, slow, |settings| settings.queue_requests_max = 1);
        let mut busy = worker.connect();
        busy.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        while worker.running.lane.pop_count() == 0 {
            std::thread::yield_now();
        }
        let mut queued = worker.connect();
        queued.write_all(b"GET /queued HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        while worker.running.lane.waiting_count() == 0 {
            std::thread::yield_now();
        }
        let answer =
            worker.ask(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(answer.matches("HTTP/1.1 503 ").count(), 2, "{io:?}: {answer}");
        assert_eq!(answer.matches("Retry-After: 1\r\n").count(), 2);
        // A reset is seen even while the view hangs.
        drop_with_reset(busy);
        let mut first = [0; 12];
        queued.read_exact(&mut first).expect("the queued request is answered");
        assert_eq!(&first, b"HTTP/1.1 200");
    });
}

fn drop_with_reset(stream: TcpStream) {
    let stream = rustix::fd::OwnedFd::from(stream);
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("settable");
}

#[test]
fn a_drain_answers_what_is_there_closes_idle_connections_in_their_window_and_ends() {
    on_both(|io| {
        let worker = Worker::start(io, hello, |_| {});
        let mut idle = worker.connect();
        idle.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        let mut kept = worker.connect();
        let mut answer = [0; 12];
        idle.read_exact(&mut answer).expect("answered");
        // Once this is answered the listener has accepted `kept` too: same queue, in order.
        assert!(worker.ask(b"GET /b HTTP/1.0\r\n\r\n").contains("/b"));
        worker.running.reactor.drain();
        kept.write_all(b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        let mut late = String::new();
        kept.read_to_string(&mut late).expect("an end");
        assert!(late.contains("Connection: close") && late.ends_with("/late"), "{io:?}: {late}");
        let mut rest = Vec::new();
        idle.read_to_end(&mut rest).expect("closed in its window, not reset");
        while !worker.running.reactor.is_finished() {
            std::thread::yield_now();
        }
        assert!(TcpStream::connect(worker.address).is_err(), "{io:?}: the listener is closed");
    });
}

#[test]
fn deadlines_are_separate_and_each_answers_in_its_way() {
    on_both(|io| {
        let worker = Worker::start(io, hello, |settings| {
            settings.header_timeout = Duration::from_millis(300);
            settings.body_timeout = Duration::from_millis(300);
            settings.keep_alive = Duration::from_millis(300);
        });
        let read_to_end = |request: &[u8]| {
            let mut stream = worker.connect();
            stream.write_all(request).expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an end");
            answer
        };
        assert_eq!(read_to_end(b""), "", "a client that sends nothing is told nothing");
        assert!(read_to_end(b"GET / HT").starts_with("HTTP/1.1 408 "), "{io:?}");
        let half = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc";
        assert!(read_to_end(half).starts_with("HTTP/1.1 408 "), "{io:?}");
        let idle = read_to_end(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(idle.starts_with("HTTP/1.1 200 ") && idle.ends_with("/"), "{io:?}: {idle}");
    });
}

/// An empty line between requests is skipped (RFC 9112 §2.2) and is no reason to wait for ever.
#[test]
fn an_empty_line_after_a_request_does_not_take_the_keep_alive_deadline_away() {
    on_both(|io| {
        let worker = Worker::start(io, hello, |settings| {
            settings.keep_alive = Duration::from_millis(300);
            settings.header_timeout = Duration::from_millis(300);
        });
        let mut stream = worker.connect();
        stream.write_all(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("closed by the server");
        assert!(answer.ends_with("/a"), "{io:?}: {answer}");
    });
}

/// RULES 25: what the kernel has accepted is answered, also by a worker that is full.
#[test]
fn a_drain_of_a_full_worker_answers_what_is_in_the_listen_queue() {
    on_both(|io| {
        let worker = Worker::start(io, hello, |settings| settings.connections_max = 1);
        let mut first = worker.connect();
        first.write_all(b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        let mut start = [0; 12];
        first.read_exact(&mut start).expect("answered");
        let mut queued = worker.connect();
        queued.write_all(b"GET /queued HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        worker.running.reactor.drain();
        let mut answer = String::new();
        queued.read_to_string(&mut answer).expect("not reset");
        assert!(answer.ends_with("/queued"), "{io:?}: {answer}");
    });
}

/// The reactor sleeps to the moment of its next deadline and handles it then: no spin in between.
#[test]
fn deadlines_cost_no_spinning() {
    on_both(|io| {
        let worker = Worker::start(io, hello, |settings| {
            settings.header_timeout = Duration::from_millis(1_500);
        });
        let begun = std::time::Instant::now();
        let mut streams = Vec::new();
        let before = reactor_ticks();
        while begun.elapsed() < Duration::from_millis(2_500) {
            if streams.len() < 40 {
                streams.push(worker.connect());
            }
            std::thread::sleep(Duration::from_millis(37));
        }
        let ticks = reactor_ticks() - before;
        // 250 clock ticks of 10 ms went by; a reactor that spins to its deadlines takes half of them.
        assert!(ticks < 50, "{io:?}: {ticks} of 250 ticks on the processor");
    });
}

/// CPU time of this process's reactor threads. **Unit**: clock ticks.
fn reactor_ticks() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let of_reactors = stats.filter(|stat| stat.contains("(hoopsnake-react)"));
    let ticks = |stat: String| -> u64 {
        let fields: Vec<_> =
            stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        [11, 12].iter().filter_map(|index| fields.get(*index)?.parse::<u64>().ok()).sum()
    };
    of_reactors.map(ticks).sum()
}

/// RULES 25: between the signal and the drain everything is served, and balancers are told.
#[test]
fn a_worker_that_is_to_leave_serves_on_and_is_not_ready() {
    on_both(|io| {
        let worker = Worker::start(io, hello, |settings| {
            settings.health_path = Some("/healthz".to_owned());
        });
        let probe = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(worker.ask(probe).ends_with("\r\n\r\nready\n"), "{io:?}");
        worker.running.reactor.leave();
        let answer = worker.ask(probe);
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.ends_with("stopping\n"), "{answer}");
        assert!(answer.contains("\r\nRetry-After: 1\r\n"));
        assert!(!answer.contains("Connection: close"), "{io:?}: the connection is as good as any");
        assert!(worker.ask(b"GET /a HTTP/1.0\r\n\r\n").ends_with("/a"));
        assert!(TcpStream::connect(worker.address).is_ok(), "{io:?}: still accepted");
    });
}

/// RULES 6: an overdue request is answered in its thread's place; one that still waits never runs.
#[test]
fn an_overdue_request_is_504_and_its_exchange_is_of_no_use_to_its_thread() {
    fn handler(exchange: &Exchange, _: Body) {
        assert!(exchange.begin() != (exchange.head.path() == b"/queued"), "it began in vain");
        match exchange.head.path() {
            b"/overdue" => {
                // Beyond the deadline of `/queued` too, which has to wait for it.
                while !exchange.is_gone() {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(900));
                respond(exchange, 200, b"too late");
            }
            b"/queued" => assert!(exchange.is_gone()),
            _ => hello(exchange, Body::Empty),
        }
    }
    on_both(|io| {
        let worker = Worker::start(io, handler, |settings| {
            settings.request_timeout = Some(Duration::from_millis(600));
        });
        let mut overdue = worker.connect();
        overdue.write_all(b"GET /overdue HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        while worker.running.lane.pop_count() == 0 {
            std::thread::yield_now();
        }
        let mut queued = worker.connect();
        queued.write_all(b"GET /queued HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        for stream in [&mut overdue, &mut queued] {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an end");
            assert!(answer.starts_with("HTTP/1.1 504 "), "{io:?}: {answer}");
            assert!(answer.contains("Connection: close") && !answer.contains("too late"));
        }
        let reason = worker.running.reactor.take_recycling().expect("a reason");
        assert_eq!(reason, "a request ran for more than --request-timeout 0.6 s");
        // The thread comes back and passes `/queued` by.
        while worker.running.lane.pop_count() < 2 {
            std::thread::yield_now();
        }
        assert!(worker.ask(b"GET /a HTTP/1.0\r\n\r\n").ends_with("/a"), "{io:?}");
        assert_eq!(worker.running.lane.pop_count(), 3);
    });
}

/// Dies with the first response, as a bug in the reactor would.
#[derive(Debug)]
struct Fatal;

impl AccessSink for Fatal {
    fn record(&self, _: AccessEntry<'_>) {
        panic!("the end of a reactor, wanted by a test");
    }

    fn tick(&self) {}
}

/// The ring ends with the thread that made it, so the worker has to learn of that thread's end.
#[test]
fn hazard_20_a_reactor_that_dies_is_noticed_by_its_worker() {
    on_both(|io| {
        let worker =
            Worker::start(io, hello, |settings| settings.access_log = Some(Arc::new(Fatal)));
        let mut stream = worker.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
        let begun = std::time::Instant::now();
        while !worker.running.reactor.is_finished() {
            assert!(begun.elapsed() < Duration::from_secs(10), "{io:?}: nobody noticed");
            std::thread::yield_now();
        }
        // The main thread's poll sees it too.
        let finished = worker.running.reactor.finished_fd();
        let mut asked = [rustix::event::PollFd::new(&finished, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut asked, None), Ok(1));
    });
}
