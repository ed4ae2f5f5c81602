//! What the reactor was told: the options that concern it, checked.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::access::AccessSink;
use crate::http::connection::HttpLimits;
use crate::trust::Trust;

/// Which `Io` a worker uses. `auto` was resolved before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IoKind {
    /// `sys::ring`.
    Uring,
    /// `sys::epoll`.
    Epoll,
}

/// The options of the data plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which kernel interface.
    pub io: IoKind,
    /// Bounds of a request head.
    pub http: HttpLimits,
    /// How long a connection may be idle between requests; zero: no keep-alive.
    pub keep_alive: Duration,
    /// From the first byte of a head (or the accept, for the first) to its end.
    pub header_timeout: Duration,
    /// Longest time without progress while a body comes in.
    pub body_timeout: Duration,
    /// Longest time without progress while a response goes out.
    pub send_timeout: Duration,
    /// Largest request body; beyond it 413. **Unit**: bytes.
    pub body_bytes_max: u64,
    /// Connections of this worker; at this it stops accepting.
    pub connections_max: usize,
    /// Requests that wait for a thread; beyond it 503.
    pub queue_requests_max: usize,
    /// How long idle keep-alive connections live on in a drain.
    pub drain_idle: Duration,
    /// From a complete request to its response's head; `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// How long the interpreter lock may be held before that is logged; `None`: nobody looks.
    pub stall_timeout: Option<Duration>,
    /// Answered like `/ready` on the public listeners.
    pub health_path: Option<String>,
    /// Who may say whom a request is from, and what of it is believed.
    pub trust: Trust,
    /// Where large bodies wait.
    pub spool_dir: PathBuf,
    /// Bytes of all spooled bodies of this worker; beyond it 507.
    pub spool_bytes_max: u64,
    /// The `Server` field; `None` sends none.
    pub server_name: Option<Vec<u8>>,
    /// Give each request a name.
    pub request_ids: bool,
    /// Where finished responses are logged; `None`: nowhere.
    pub access_log: Option<Arc<dyn AccessSink>>,
}
