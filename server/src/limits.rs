//! Every bound of the server that is not an option, with its unit and its reason.

/// Bytes of one request line. **Unit**: bytes. **Why**: nginx's `large_client_header_buffers` default.
pub const REQUEST_LINE_BYTES_MAX: usize = 8 * 1024;

/// Bytes of a whole request head, request line included. **Unit**: bytes.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Header fields of one request. **Unit**: fields. **Why**: apache allows 100, gunicorn 100.
pub const FIELD_COUNT_MAX: usize = 128;

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

/// Bytes of a method name; beyond it 501. **Unit**: bytes. **Why**: the longest registered one,
/// `UPDATEREDIRECTREF`, has 17.
pub const METHOD_BYTES_MAX: usize = 32;

/// Empty lines skipped before a request line. **Unit**: lines. **Why**: RFC 9112 §2.2 asks for one,
/// which old clients send after a body.
pub const LEADING_EMPTY_LINES_MAX: usize = 4;
