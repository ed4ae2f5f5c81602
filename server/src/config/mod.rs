//! The configuration: as typed ([`RawConfig`]) and as meant ([`Config`]), which is the only validation.

mod layers;
mod limits;
mod options;
mod reference;
mod value;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use layers::{Origin, Request, Setting, Typed, Verb, parse};
pub use limits::table as limits_table;
pub use options::RawConfig;
pub use reference::reference;
pub use value::{AppSpec, BOUNDS, Bind, Bound, HookSpec, in_units};

use crate::access::AccessSink;
use crate::access_log::Format;
use crate::error::Fault;
use crate::http::connection::HttpLimits;
use crate::reactor::{IoKind, Settings};
use crate::trust::{self, BadItem, Trust};

/// Which kernel interface was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IoChoice {
    /// The ring where it works, epoll elsewhere.
    Auto,
    /// The ring, or exit 78.
    Uring,
    /// epoll.
    Epoll,
}

/// How lines are written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// How the access log is written.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AccessFormat {
    /// Apache's combined format and durations behind it.
    Combined,
    /// One object a line.
    Json,
    /// The operator's own.
    Custom(Format),
}

/// Where the access log goes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum AccessTarget {
    /// Nowhere.
    Off,
    /// Standard output.
    Stdout,
    /// Appended to a file.
    File(PathBuf),
    /// Python's logger `hoopsnake.access`: `--log-config` and nothing said of `--access-log`.
    Logger,
}

impl std::fmt::Display for AccessTarget {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => formatter.write_str("access-log off"),
            Self::Stdout => formatter.write_str("access-log on stdout"),
            Self::File(path) => write!(formatter, "access-log {}", path.display()),
            Self::Logger => formatter.write_str("access-log to the logger hoopsnake.access"),
        }
    }
}

/// What happens to lines that nobody reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LogOverflow {
    /// They are dropped and counted.
    Drop,
    /// Who writes them waits.
    Block,
}

/// Everything about logs.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// What is left out.
    pub level: tracing::level_filters::LevelFilter,
    /// How lines look.
    pub format: LogFormat,
    /// Where responses are logged.
    pub access: AccessTarget,
    /// How.
    pub access_format: AccessFormat,
    /// What a full queue means.
    pub overflow: LogOverflow,
    /// For Python's `logging`, which then gets the workers' lines.
    pub python: Option<PathBuf>,
}

/// What the interpreter is, as far as defaults depend on it.
#[derive(Clone, Debug)]
pub struct Interpreter {
    /// `3.13.0`.
    pub version: String,
    /// Whether it runs without the GIL.
    pub free_threaded: bool,
}

/// What a worker calls in its life.
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    /// Before the application is imported.
    pub start: Option<HookSpec>,
    /// When it serves.
    pub ready: Option<HookSpec>,
    /// After its last response.
    pub exit: Option<HookSpec>,
}

/// The options as meant.
#[derive(Clone, Debug)]
pub struct Config {
    /// What to serve; `None` only for `doctor` and `--limits`.
    pub app: Option<AppSpec>,
    /// First on `sys.path`.
    pub app_dir: PathBuf,
    /// For the application's environment, where not set already.
    pub env: Vec<(String, String)>,
    /// `SCRIPT_NAME`.
    pub root_path: String,
    /// Where to listen; never empty.
    pub binds: Vec<Bind>,
    /// Where `/live` and `/ready` are answered.
    pub admin: Option<Bind>,
    /// See [`Settings`].
    pub health_path: Option<String>,
    /// See [`Settings`].
    pub trust: Trust,
    /// For `listen(2)`.
    pub backlog: u32,
    /// Permissions of unix sockets.
    pub uds_mode: u32,
    /// Processes; 1 with `single_process`.
    pub worker_count: usize,
    /// Application threads of each worker.
    pub thread_count: usize,
    /// Import once, fork workers from there.
    pub preload: bool,
    /// Short lives in a minute after which the supervisor gives up; `None`: never.
    pub respawn_max: Option<usize>,
    /// What workers call.
    pub hooks: Hooks,
    /// Kernel interface asked for.
    pub io: IoChoice,
    /// No fork.
    pub single_process: bool,
    /// Each request has a name.
    pub request_ids: bool,
    /// See [`Settings::queue_requests_max`].
    pub queue_requests_max: usize,
    /// See [`Settings::connections_max`]; not yet cut to what NOFILE allows.
    pub connections_max: usize,
    /// Whether somebody asked for `connections_max`, so that cutting it is worth a warning.
    pub connections_max_is_asked_for: bool,
    /// See [`Settings`].
    pub keep_alive: Duration,
    /// See [`Settings`].
    pub header_timeout: Duration,
    /// See [`Settings`].
    pub body_timeout: Duration,
    /// See [`Settings`].
    pub send_timeout: Duration,
    /// From the signal to the end, whatever the application does.
    pub grace: Duration,
    /// From a complete request to its response's head; `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// How long the interpreter lock may be held before that is logged; `None`: nobody looks.
    pub stall_timeout: Option<Duration>,
    /// Between the signal and the stop.
    pub shutdown_delay: Duration,
    /// See [`Settings`]; at most half of `grace`.
    pub drain_idle: Duration,
    /// See [`Settings`].
    pub body_bytes_max: u64,
    /// See [`Settings`].
    pub http: HttpLimits,
    /// See [`Settings`].
    pub spool_dir: PathBuf,
    /// See [`Settings`].
    pub spool_bytes_max: u64,
    /// See [`Settings`].
    pub server_name: Option<Vec<u8>>,
    /// Logs.
    pub log: LogConfig,
    /// Holds the supervisor's pid while it runs.
    pub pid_file: Option<PathBuf>,
    /// `comm` of the processes.
    pub process_name: String,
    /// Whom workers run as.
    pub user: Option<String>,
    /// The same.
    pub group: Option<String>,
    /// Entered before anything is opened; absolute.
    pub chdir: Option<PathBuf>,
}

impl Config {
    /// Gives the typed options their meaning.
    ///
    /// # Errors
    /// Usage: the first value that cannot be meant, with its range and where it came from.
    pub fn from_typed(typed: &Typed, interpreter: &Interpreter) -> Result<Self, Fault> {
        let raw = &typed.raw;
        let reader = Reader { typed };
        let app = reader.optional("app", raw.app.as_deref(), value::app)?;
        if app.is_none() && typed.verb == Verb::Serve {
            return Err(Fault::usage(
                "APP is missing: name what to serve, such as `hoopsnake mysite.wsgi:application`",
            ));
        }
        if !reader.read("wsgi", &raw.wsgi, value::boolean)? {
            return Err(Fault::usage(format!(
                "wsgi is \"{}\" (from {}): this version serves WSGI and nothing else",
                raw.wsgi,
                typed.origin("wsgi")
            )));
        }
        let single_process = reader.read("single-process", &raw.single_process, value::boolean)?;
        let preload = reader.read("preload", &raw.preload, value::boolean)?;
        if preload && single_process {
            return Err(Fault::usage(format!(
                "preload is true (from {}) and single-process is true (from {}): there is nobody to \
                 fork; leave one of them out",
                typed.origin("preload"),
                typed.origin("single-process")
            )));
        }
        let worker_count = reader.workers(&raw.workers)?;
        let grace = reader.named("grace", &raw.grace, value::seconds)?;
        Ok(Self {
            app,
            app_dir: PathBuf::from(&raw.app_dir),
            env: raw.env_file.as_deref().map(read_env_file).transpose()?.unwrap_or_default(),
            root_path: reader.read("root-path", &raw.root_path, value::root_path)?,
            binds: reader.binds(&raw.bind)?,
            admin: reader.optional("admin", raw.admin.as_deref(), value::admin)?,
            health_path: reader.optional(
                "health-path",
                raw.health_path.as_deref(),
                value::request_path,
            )?,
            trust: reader.trust()?,
            backlog: reader.number("backlog", &raw.backlog)?,
            uds_mode: reader.read("uds-mode", &raw.uds_mode, value::mode)?,
            worker_count: if single_process { 1 } else { worker_count },
            thread_count: reader.threads(&raw.threads, interpreter)?,
            preload,
            respawn_max: reader.bound_or_none("respawn-max", &raw.respawn_max)?,
            hooks: reader.hooks()?,
            io: reader.read("io", &raw.io, |text| value::choice(&IO_WORDS, text))?,
            single_process,
            queue_requests_max: reader.number("queue", &raw.queue)?,
            connections_max: reader.number("max-connections", &raw.max_connections)?,
            connections_max_is_asked_for: typed.origin("max-connections") != Origin::Default,
            keep_alive: reader.named("keep-alive", &raw.keep_alive, value::seconds)?,
            header_timeout: reader.named("header-timeout", &raw.header_timeout, value::seconds)?,
            body_timeout: reader.named("body-timeout", &raw.body_timeout, value::seconds)?,
            send_timeout: reader.named("send-timeout", &raw.send_timeout, value::seconds)?,
            request_timeout: reader.seconds_or_none("request-timeout", &raw.request_timeout)?,
            stall_timeout: reader.seconds_or_none("stall-timeout", &raw.stall_timeout)?,
            shutdown_delay: reader.named("shutdown-delay", &raw.shutdown_delay, value::seconds)?,
            grace,
            drain_idle: reader.named("drain-idle", &raw.drain_idle, value::seconds)?.min(grace / 2),
            body_bytes_max: reader.named("max-body", &raw.max_body, value::bytes)?,
            http: reader.http_limits()?,
            spool_dir: raw.spool_dir.as_ref().map_or_else(std::env::temp_dir, PathBuf::from),
            spool_bytes_max: reader.named("spool-bytes", &raw.spool_bytes, value::bytes)?,
            server_name: reader.read("server-header", &raw.server_header, value::server_header)?,
            request_ids: reader.read("request-id", &raw.request_id, value::boolean)?,
            log: reader.log()?,
            pid_file: raw.pid_file.as_ref().map(PathBuf::from),
            process_name: reader.read("proc-name", &raw.proc_name, value::process_name)?,
            user: raw.user.clone(),
            group: raw.group.clone(),
            chdir: raw.chdir.as_ref().map(absolute).transpose()?,
        })
    }

    /// The options that concern the data plane, with what was found out at start.
    #[must_use]
    pub fn settings(
        &self,
        io: IoKind,
        connections_max: usize,
        access_log: Option<Arc<dyn AccessSink>>,
    ) -> Settings {
        Settings {
            io,
            http: self.http,
            keep_alive: self.keep_alive,
            header_timeout: self.header_timeout,
            body_timeout: self.body_timeout,
            send_timeout: self.send_timeout,
            body_bytes_max: self.body_bytes_max,
            connections_max,
            queue_requests_max: self.queue_requests_max,
            drain_idle: self.drain_idle,
            request_timeout: self.request_timeout,
            stall_timeout: self.stall_timeout,
            health_path: self.health_path.clone(),
            trust: self.trust.clone(),
            spool_dir: self.spool_dir.clone(),
            spool_bytes_max: self.spool_bytes_max,
            server_name: self.server_name.clone(),
            request_ids: self.request_ids,
            access_log,
        }
    }
}

/// Relative paths are meant from where the command was started.
fn absolute(directory: &String) -> Result<PathBuf, Fault> {
    std::path::absolute(directory)
        .map_err(|error| Fault::usage(format!("chdir {directory} cannot be meant: {error}")))
}

const IO_WORDS: [(&str, IoChoice); 3] =
    [("auto", IoChoice::Auto), ("uring", IoChoice::Uring), ("epoll", IoChoice::Epoll)];

/// Application threads of a worker when nobody says how many. **Source**: RULES 11.
const THREADS_WITH_GIL: usize = 8;
const THREADS_WITHOUT_GIL_MIN: usize = 4;

/// CPUs that affinity and the cgroup's quota leave us; 1 when nobody knows.
#[must_use]
pub fn usable_cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Reads values and, where one cannot be meant, says which, why and where it came from.
struct Reader<'typed> {
    typed: &'typed Typed,
}

impl Reader<'_> {
    fn read<T>(
        &self,
        name: &str,
        text: &str,
        meaning: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, Fault> {
        meaning(text).map_err(|expected| {
            let origin = self.typed.origin(name);
            Fault::usage(format!("{name} is {text:?} (from {origin}): expected {expected}"))
        })
    }

    fn named<T>(
        &self,
        name: &str,
        text: &str,
        meaning: impl Fn(&str, &str) -> Result<T, String>,
    ) -> Result<T, Fault> {
        self.read(name, text, |text| meaning(name, text))
    }

    fn optional<T>(
        &self,
        name: &str,
        text: Option<&str>,
        meaning: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Fault> {
        text.map(|text| self.read(name, text, meaning)).transpose()
    }

    /// A count that fits `T`: every bound of the table does.
    fn number<T: TryFrom<u64>>(&self, name: &str, text: &str) -> Result<T, Fault> {
        self.read(name, text, |text| {
            let number = value::count(name, text)?;
            T::try_from(number).map_err(|_| "a smaller number".to_owned())
        })
    }

    /// A number whose 0 means that there is no bound.
    fn bound_or_none(&self, name: &str, text: &str) -> Result<Option<usize>, Fault> {
        Ok(Some(self.number(name, text)?).filter(|number| *number > 0))
    }

    /// Seconds whose 0 means that nothing is timed.
    fn seconds_or_none(&self, name: &str, text: &str) -> Result<Option<Duration>, Fault> {
        Ok(Some(self.named(name, text, value::seconds)?).filter(|time| !time.is_zero()))
    }

    fn hooks(&self) -> Result<Hooks, Fault> {
        let raw = &self.typed.raw;
        let hook = |name, text: &Option<String>| self.optional(name, text.as_deref(), value::hook);
        Ok(Hooks {
            start: hook("on-worker-start", &raw.on_worker_start)?,
            ready: hook("on-worker-ready", &raw.on_worker_ready)?,
            exit: hook("on-worker-exit", &raw.on_worker_exit)?,
        })
    }

    fn workers(&self, text: &str) -> Result<usize, Fault> {
        let count = self.named("workers", text, value::count_or_auto)?;
        Ok(count.map_or_else(usable_cpu_count, |count| count as usize))
    }

    fn threads(&self, text: &str, interpreter: &Interpreter) -> Result<usize, Fault> {
        let count = self.named("threads", text, value::count_or_auto)?;
        Ok(match count {
            Some(count) => count as usize,
            None if interpreter.free_threaded => usable_cpu_count().max(THREADS_WITHOUT_GIL_MIN),
            None => THREADS_WITH_GIL,
        })
    }

    fn binds(&self, texts: &[String]) -> Result<Vec<Bind>, Fault> {
        texts.iter().map(|text| self.read("bind", text, value::bind)).collect()
    }

    fn trust(&self) -> Result<Trust, Fault> {
        let raw = &self.typed.raw;
        let fault = |name, BadItem { item, expected }| {
            let origin = self.typed.origin(name);
            Fault::usage(format!("{name} has {item:?} (from {origin}): expected {expected}"))
        };
        Ok(Trust {
            proxies: trust::proxies(&raw.trusted_proxies)
                .map_err(|bad| fault("trusted-proxies", bad))?,
            fields: trust::fields(&raw.trusted_fields)
                .map_err(|bad| fault("trusted-fields", bad))?,
        })
    }

    fn http_limits(&self) -> Result<HttpLimits, Fault> {
        let raw = &self.typed.raw;
        let line = self.named("max-request-line", &raw.max_request_line, value::bytes)?;
        let head = self.named("max-head", &raw.max_head, value::bytes)?;
        if line > head {
            return Err(Fault::usage(format!(
                "max-head is {} (from {}) and max-request-line is {} (from {}): the line is a part \
                 of the head, so max-head must be at least as large",
                in_units(head),
                self.typed.origin("max-head"),
                in_units(line),
                self.typed.origin("max-request-line"),
            )));
        }
        Ok(HttpLimits {
            request_line_bytes_max: line as usize,
            head_bytes_max: head as usize,
            field_count_max: self.number("max-fields", &raw.max_fields)?,
        })
    }

    fn log(&self) -> Result<LogConfig, Fault> {
        use tracing::level_filters::LevelFilter;
        const LEVELS: [(&str, LevelFilter); 5] = [
            ("error", LevelFilter::ERROR),
            ("warn", LevelFilter::WARN),
            ("info", LevelFilter::INFO),
            ("debug", LevelFilter::DEBUG),
            ("trace", LevelFilter::TRACE),
        ];
        const FORMATS: [(&str, LogFormat); 2] =
            [("text", LogFormat::Text), ("json", LogFormat::Json)];
        const OVERFLOWS: [(&str, LogOverflow); 2] =
            [("drop", LogOverflow::Drop), ("block", LogOverflow::Block)];
        let raw = &self.typed.raw;
        let python = raw.log_config.as_ref().map(PathBuf::from);
        Ok(LogConfig {
            level: self.read("log-level", &raw.log_level, |text| value::choice(&LEVELS, text))?,
            format: self
                .read("log-format", &raw.log_format, |text| value::choice(&FORMATS, text))?,
            access: match raw.access_log.as_str() {
                "off" if python.is_some() && self.typed.origin("access-log") == Origin::Default => {
                    AccessTarget::Logger
                }
                "off" => AccessTarget::Off,
                "-" => AccessTarget::Stdout,
                path => AccessTarget::File(PathBuf::from(path)),
            },
            access_format: self.read("access-log-format", &raw.access_log_format, access_format)?,
            overflow: self
                .read("log-overflow", &raw.log_overflow, |text| value::choice(&OVERFLOWS, text))?,
            python,
        })
    }
}

fn access_format(text: &str) -> Result<AccessFormat, String> {
    match text {
        "combined" => Ok(AccessFormat::Combined),
        "json" => Ok(AccessFormat::Json),
        format => Format::parse(format).map(AccessFormat::Custom),
    }
}

/// A file's text. A pipe or a device is refused: the supervisor reads its files again at each SIGHUP,
/// and would wait there for somebody to write.
fn read_text(path: &Path) -> std::io::Result<String> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    std::fs::read_to_string(path)
}

/// `NAME=VALUE` lines; empty lines and lines that start with `#` do not count, `export ` and one
/// pair of quotes around the value are taken off.
fn read_env_file(path: &str) -> Result<Vec<(String, String)>, Fault> {
    let text = read_text(Path::new(path))
        .map_err(|error| Fault::usage(format!("env-file {path} cannot be read: {error}")))?;
    parse_env_file(&text)
        .map_err(|line| Fault::usage(format!("env-file {path}, line {line}: expected NAME=VALUE")))
}

fn parse_env_file(text: &str) -> Result<Vec<(String, String)>, usize> {
    let mut variables = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let (name, value) = line.split_once('=').ok_or(index + 1)?;
        let (name, value) = (name.trim_end(), value.trim_start());
        if name.is_empty() || name.contains(char::is_whitespace) || line.contains('\0') {
            return Err(index + 1);
        }
        let unquoted = ['"', '\'']
            .into_iter()
            .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
            .unwrap_or(value);
        variables.push((name.to_owned(), unquoted.to_owned()));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests;
