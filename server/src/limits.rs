//! Every bound of the server that is not an option, with its unit and its reason.

/// Bytes of one request line. **Unit**: bytes. **Why**: nginx's `large_client_header_buffers` default.
pub const REQUEST_LINE_BYTES_MAX: usize = 8 * 1024;

/// Bytes of a whole request head, request line included. **Unit**: bytes.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Header fields of one request. **Unit**: fields. **Why**: apache allows 100, gunicorn 100.
pub const FIELD_COUNT_MAX: usize = 128;

/// Proxies between a client and us that are followed; the client is then the address the last of them
/// told. **Unit**: proxies. **Why**: a real chain has four, and a walk must end.
pub const PROXY_HOPS_MAX: usize = 32;

/// Bytes of an `X-Request-ID` that a proxy gave; a longer one is replaced. **Unit**: bytes. **Why**: a
/// UUID has 36, a trace with its span 55, and every line of both logs carries it.
pub const REQUEST_ID_BYTES_MAX: usize = 128;

/// Bytes of one chunk-size line, extensions included. **Unit**: bytes.
pub const CHUNK_LINE_BYTES_MAX: usize = 1024;

/// Bytes of a trailer section. **Unit**: bytes.
pub const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// A request body up to this stays in memory; beyond it goes to the spool. **Unit**: bytes.
pub const BODY_MEMORY_BYTES_MAX: usize = 64 * 1024;

/// Credit of one streamed response: what may sit in our memory before its producer waits.
/// **Unit**: bytes. **Source**: RULES 7.
pub const STREAM_CREDIT_BYTES: usize = 64 * 1024;

/// The same credit counted in pieces, so that empty or tiny pieces are bounded too. **Unit**: pieces.
pub const STREAM_CREDIT_PIECES: usize = 256;

/// Unparsed bytes kept for one connection while its request is being answered; at this the
/// connection is not read until the answer is out. **Unit**: bytes.
pub const PIPELINED_BYTES_MAX: usize = 64 * 1024;

/// A response body up to this is copied behind its head, so that both leave in one buffer.
/// Larger bodies are sent from where they are. **Unit**: bytes.
pub const COALESCE_BYTES_MAX: usize = 16 * 1024;

/// Bytes of one receive buffer. **Unit**: bytes. **Why**: a page; a request's head fits as a rule.
pub const RECV_BUFFER_BYTES: usize = 4 * 1024;

/// Receive buffers of one reactor: what one pass can take in. **Unit**: buffers, a power of two.
pub const RECV_BUFFER_COUNT: u16 = 1024;

/// The same where locked memory is short. **Unit**: buffers, a power of two.
pub const RECV_BUFFER_COUNT_SMALL: u16 = 256;

/// Events one pass of the reactor takes from the kernel before timers and completions get a turn.
pub const EVENTS_PER_PASS_MAX: usize = 1024;

/// A client that is to read our last answer may go on sending for so long before we close, and be
/// silent for so long. **Source**: nginx's `lingering_time` and `lingering_timeout`.
pub const LINGER_TOTAL: std::time::Duration = std::time::Duration::from_secs(30);
/// See [`LINGER_TOTAL`].
pub const LINGER_IDLE: std::time::Duration = std::time::Duration::from_secs(5);

/// Bytes of one upload on their way to the spool's writer; at this its connection is not read.
/// **Unit**: bytes.
pub const SPOOL_UNWRITTEN_BYTES_MAX: usize = 256 * 1024;

/// The same over all uploads of a worker. **Unit**: bytes.
pub const SPOOL_UNWRITTEN_TOTAL_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes that one `sendfile` call may take before other connections get their turn.
/// **Unit**: bytes.
pub const SEND_FILE_BYTES_MAX: usize = 256 * 1024;

/// Connections of the admin listener that a worker has at once, besides `--max-connections`.
/// **Unit**: connections. **Why**: a handful of probes and one scraper, several times over.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;

/// For a whole request head there, and between two: who holds all of those connections without asking
/// anything must not keep a probe from being answered before it gives up. **Why**: Kubernetes' probes
/// wait for one second and fail for good at the third failure, ten seconds apart.
pub const ADMIN_IDLE: std::time::Duration = std::time::Duration::from_secs(2);

/// What is read of one dump of the application's stacks. **Unit**: bytes. **Why**: 100 threads with 25
/// frames each; `faulthandler` stops at 100 of both.
pub const STACKS_BYTES_MAX: usize = 256 * 1024;

/// How long accepting pauses after the process or the system ran out of descriptors or memory.
pub const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// How long a ring may hold a job without moving before a sibling is woken for it.
/// **Source**: POOL §3, measured on the system it comes from.
pub const WAKE_AGE: std::time::Duration = std::time::Duration::from_micros(200);

/// How long an idle pool thread looks at the ring before it parks. **Why**: 10 µs cost a quarter more
/// CPU at 16 connections and two and a half times as much at one, for no request more.
pub const POOL_SPIN: std::time::Duration = std::time::Duration::ZERO;

/// The same where every idle thread spins (`HOOPSNAKE_POOL_ELASTIC=0`). **Source**: POOL §5.
pub const POOL_SPIN_ALL: std::time::Duration = std::time::Duration::from_micros(10);

/// How long the jobs may take, in all, whose answers share one wake of the reactor. **Why**: a wake costs
/// 3 µs, half of a bare request and nothing beside a view of 50 µs, whose answer would wait for the next.
pub const HOLD_BACK: std::time::Duration = std::time::Duration::from_micros(50);

/// How long a pool thread may go on taking jobs while others wait for the interpreter lock.
/// **Source**: POOL §4.
pub const TURN_SLICE: std::time::Duration = std::time::Duration::from_millis(1);

/// A wait for the interpreter lock from which on a thread's run begins anew. **Source**: POOL §4.
pub const TURN_WAITED: std::time::Duration = std::time::Duration::from_micros(50);

/// How long a pool thread stands back at the most for one that waits. **Source**: POOL §4.
pub const TURN_YIELD_MAX: std::time::Duration = std::time::Duration::from_millis(1);

/// The longest sleep of the reactor: the net under every wake. **Source**: URING §6.8.
pub const SLEEP_MAX: std::time::Duration = std::time::Duration::from_secs(1);

/// Seconds that a shed client is asked to wait (`Retry-After`).
pub const RETRY_AFTER_SECONDS: u32 = 1;
/// Bytes of a method name; beyond it 501. **Unit**: bytes. **Why**: the longest registered one,
/// `UPDATEREDIRECTREF`, has 17.
pub const METHOD_BYTES_MAX: usize = 32;

/// Empty lines skipped before a request line. **Unit**: lines. **Why**: RFC 9112 §2.2 asks for one,
/// which old clients send after a body.
pub const LEADING_EMPTY_LINES_MAX: usize = 4;

/// Bytes that are collected of a body before they are written. **Unit**: bytes. **Why**: a system call
/// and a wake for each of a client's own chunks would cost more than the bytes.
pub const SPOOL_PIECE_BYTES: usize = 64 * 1024;

/// How often uploads are asked whether their client is still there. **Source**: PRODUCTION 8, a reset
/// is known within a second.
pub const UPLOAD_SURVEY: std::time::Duration = std::time::Duration::from_millis(500);

/// Processes that may have a place on the board at once. **Unit**: cells of 64 bytes. **Why**: the
/// highest `--workers`, twice, since a worker and its successor live beside each other for a while.
pub const BOARD_CELL_COUNT: usize = 2 * 1024;

/// A worker with more connections than the mean takes new ones as long as it is no more than so many
/// above. **Unit**: connections. **Why**: an eighth of a small mean is less than one connection, and
/// giving an accept up and back for one or two costs more than the unevenness.
pub const BALANCE_SLACK: usize = 4;

/// How often a worker that has more than its share looks again. **Source**: RULES 24.
pub const BALANCE_LOOK: std::time::Duration = std::time::Duration::from_millis(10);

/// How often a worker says that it is alive, if there are others. **Why**: half of
/// [`HEARTBEAT_AGE_MAX`], so that one late wake is forgiven.
pub const HEARTBEAT: std::time::Duration = std::time::Duration::from_millis(50);

/// A worker that was silent for longer is not counted on: stopped, stuck or dead. **Source**: RULES 24.
pub const HEARTBEAT_AGE_MAX: std::time::Duration = std::time::Duration::from_millis(100);

/// A worker or a template that is not ready so long after its start is named in a warning. **Why**: long
/// imports take a few seconds, and what waits for one that never ends says nothing else.
pub const START_WARNING: std::time::Duration = std::time::Duration::from_secs(30);
