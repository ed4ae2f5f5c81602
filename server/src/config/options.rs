//! Every option once: its flag, its variable, its key, its default and its help. Nothing is judged
//! here; see the parent for what the values mean.

use clap::Args;

/// The options as typed. A field's name is the flag's and, in upper case behind `HOOPSNAKE_`, the
/// variable's; the key in a file is the flag's.
#[derive(Args, Clone, Debug)]
#[command(next_line_help = false)]
pub struct RawConfig {
    /// What to serve: MODULE, MODULE:ATTR, or MODULE:FACTORY(). A bare MODULE is looked up as
    /// MODULE.wsgi:application (a Django project), MODULE:application and MODULE:app
    #[arg(env = "HOOPSNAKE_APP", value_name = "APP", help_heading = "Application")]
    pub app: Option<String>,

    /// The application is WSGI. This version serves nothing else
    #[arg(long, env = "HOOPSNAKE_WSGI", value_name = "BOOL", default_value = "true",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          help_heading = "Application")]
    pub wsgi: String,

    /// Directory that is put first on sys.path
    #[arg(
        long,
        env = "HOOPSNAKE_APP_DIR",
        value_name = "DIR",
        default_value = ".",
        help_heading = "Application"
    )]
    pub app_dir: String,

    /// File of NAME=VALUE lines that are set in the application's environment; a variable that is
    /// set already wins
    #[arg(long, env = "HOOPSNAKE_ENV_FILE", value_name = "FILE", help_heading = "Application")]
    pub env_file: Option<String>,

    /// SCRIPT_NAME: the path under which a proxy mounts the application
    #[arg(
        long,
        env = "HOOPSNAKE_ROOT_PATH",
        value_name = "PATH",
        default_value = "",
        help_heading = "Application"
    )]
    pub root_path: String,

    /// Where to listen: HOST:PORT, [IPV6]:PORT, unix:PATH or fd://N; port 0 takes a free one. Repeatable
    #[arg(
        long,
        short,
        env = "HOOPSNAKE_BIND",
        value_name = "ADDRESS",
        value_delimiter = ',',
        default_value = "127.0.0.1:8000",
        help_heading = "Listening"
    )]
    pub bind: Vec<String>,

    /// Connections that the kernel keeps while no worker accepts them
    #[arg(
        long,
        env = "HOOPSNAKE_BACKLOG",
        value_name = "N",
        default_value = "2048",
        help_heading = "Listening"
    )]
    pub backlog: String,

    /// Permissions of unix sockets, octal
    #[arg(
        long,
        env = "HOOPSNAKE_UDS_MODE",
        value_name = "MODE",
        default_value = "660",
        help_heading = "Listening"
    )]
    pub uds_mode: String,

    /// Where /live and /ready are answered, beside the public addresses: HOST:PORT or unix:PATH. Both
    /// are answered without the application, also while it holds the interpreter lock
    #[arg(long, env = "HOOPSNAKE_ADMIN", value_name = "ADDRESS", help_heading = "Listening")]
    pub admin: Option<String>,

    /// Path on the public addresses that is answered like /ready, for balancers that probe there
    #[arg(long, env = "HOOPSNAKE_HEALTH_PATH", value_name = "PATH", help_heading = "Listening")]
    pub health_path: Option<String>,

    /// Proxies whose X-Forwarded-*, Forwarded and X-Request-ID are believed: addresses, networks such as
    /// 10.0.0.0/8, `unix` for whoever connects to a unix socket; `*` alone for everybody, `off` alone
    /// for nobody. Repeatable
    #[arg(
        long,
        env = "HOOPSNAKE_TRUSTED_PROXIES",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "127.0.0.1,::1,unix",
        help_heading = "Listening"
    )]
    pub trusted_proxies: Vec<String>,

    /// What is believed of them: for (the client's address), proto, host, port; `off` alone for nothing
    #[arg(
        long,
        env = "HOOPSNAKE_TRUSTED_FIELDS",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "for,proto,host,port",
        help_heading = "Listening"
    )]
    pub trusted_fields: Vec<String>,

    /// Processes: a number, or `auto` for one per CPU that affinity and cgroup quota leave us
    #[arg(
        long,
        short,
        env = "HOOPSNAKE_WORKERS",
        value_name = "N",
        default_value = "1",
        help_heading = "Workers"
    )]
    pub workers: String,

    /// Threads per worker that run the application: a number, or `auto` for 8
    #[arg(
        long,
        short,
        env = "HOOPSNAKE_THREADS",
        value_name = "N",
        default_value = "auto",
        help_heading = "Workers"
    )]
    pub threads: String,

    /// Import the application once, in a process of its own that the workers are forked from: they
    /// share its memory. It must not start threads while it is imported
    #[arg(
        long,
        env = "HOOPSNAKE_PRELOAD",
        value_name = "BOOL",
        default_value = "false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Workers"
    )]
    pub preload: String,

    /// Workers that may end within 10 s of their start, in a minute, before the server gives up, unless
    /// another serves soundly; 0: it never does
    #[arg(
        long,
        env = "HOOPSNAKE_RESPAWN_MAX",
        value_name = "N",
        default_value = "10",
        help_heading = "Workers"
    )]
    pub respawn_max: String,

    /// Called in each worker before the application is imported, with the worker: MODULE:FUNCTION
    #[arg(long, env = "HOOPSNAKE_ON_WORKER_START", value_name = "HOOK", help_heading = "Workers")]
    pub on_worker_start: Option<String>,

    /// The same, when the worker serves
    #[arg(long, env = "HOOPSNAKE_ON_WORKER_READY", value_name = "HOOK", help_heading = "Workers")]
    pub on_worker_ready: Option<String>,

    /// The same, after its last response
    #[arg(long, env = "HOOPSNAKE_ON_WORKER_EXIT", value_name = "HOOK", help_heading = "Workers")]
    pub on_worker_exit: Option<String>,

    /// Kernel interface: `uring`, `epoll`, or `auto` for io_uring where it works and epoll elsewhere
    #[arg(
        long,
        env = "HOOPSNAKE_IO",
        value_name = "KIND",
        default_value = "auto",
        help_heading = "Workers"
    )]
    pub io: String,

    /// No supervisor and no fork: one worker in this process, for a debugger
    #[arg(long, env = "HOOPSNAKE_SINGLE_PROCESS", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          help_heading = "Workers")]
    pub single_process: String,

    /// Requests per worker that wait for a thread; beyond it 503 with Retry-After
    #[arg(
        long,
        env = "HOOPSNAKE_QUEUE",
        value_name = "N",
        default_value = "1024",
        help_heading = "Load"
    )]
    pub queue: String,

    /// Connections per worker; at this many it stops accepting
    #[arg(
        long,
        env = "HOOPSNAKE_MAX_CONNECTIONS",
        value_name = "N",
        default_value = "16384",
        help_heading = "Load"
    )]
    pub max_connections: String,

    /// Seconds that a connection may be idle between requests; 0 closes after each response
    #[arg(
        long,
        env = "HOOPSNAKE_KEEP_ALIVE",
        value_name = "SECONDS",
        default_value = "75",
        help_heading = "Time"
    )]
    pub keep_alive: String,

    /// Seconds for a whole request head
    #[arg(
        long,
        env = "HOOPSNAKE_HEADER_TIMEOUT",
        value_name = "SECONDS",
        default_value = "15",
        help_heading = "Time"
    )]
    pub header_timeout: String,

    /// Seconds without progress of a request body
    #[arg(
        long,
        env = "HOOPSNAKE_BODY_TIMEOUT",
        value_name = "SECONDS",
        default_value = "30",
        help_heading = "Time"
    )]
    pub body_timeout: String,

    /// Seconds without progress of a response
    #[arg(
        long,
        env = "HOOPSNAKE_SEND_TIMEOUT",
        value_name = "SECONDS",
        default_value = "30",
        help_heading = "Time"
    )]
    pub send_timeout: String,

    /// Seconds from a complete request to the beginning of its response; beyond it 504, the stack of
    /// its thread in the log, and a new worker in the place of this one. 0: no limit
    #[arg(
        long,
        env = "HOOPSNAKE_REQUEST_TIMEOUT",
        value_name = "SECONDS",
        default_value = "0",
        help_heading = "Time"
    )]
    pub request_timeout: String,

    /// Seconds that the interpreter lock may be held without a pause before the stacks of all threads
    /// are logged; the worker lives on. 0: nobody looks
    #[arg(
        long,
        env = "HOOPSNAKE_STALL_TIMEOUT",
        value_name = "SECONDS",
        default_value = "5",
        help_heading = "Time"
    )]
    pub stall_timeout: String,

    /// Seconds between the signal to stop and the stop, in which /ready says 503 and everything is
    /// served: what a balancer needs to notice. Comes before --grace
    #[arg(
        long,
        env = "HOOPSNAKE_SHUTDOWN_DELAY",
        value_name = "SECONDS",
        default_value = "0",
        help_heading = "Time"
    )]
    pub shutdown_delay: String,

    /// Seconds that a stop may take before what is left is cut
    #[arg(
        long,
        env = "HOOPSNAKE_GRACE",
        value_name = "SECONDS",
        default_value = "25",
        help_heading = "Time"
    )]
    pub grace: String,

    /// Seconds that idle connections stay open in a stop, for requests that are on their way; at
    /// most half of --grace counts
    #[arg(
        long,
        env = "HOOPSNAKE_DRAIN_IDLE",
        value_name = "SECONDS",
        default_value = "5",
        help_heading = "Time"
    )]
    pub drain_idle: String,

    /// Largest request body; beyond it 413. Units KiB, MiB, GiB
    #[arg(
        long,
        env = "HOOPSNAKE_MAX_BODY",
        value_name = "BYTES",
        default_value = "1GiB",
        help_heading = "Size"
    )]
    pub max_body: String,

    /// Longest request line; beyond it 414
    #[arg(
        long,
        env = "HOOPSNAKE_MAX_REQUEST_LINE",
        value_name = "BYTES",
        default_value = "8KiB",
        help_heading = "Size"
    )]
    pub max_request_line: String,

    /// Longest request head; beyond it 431
    #[arg(
        long,
        env = "HOOPSNAKE_MAX_HEAD",
        value_name = "BYTES",
        default_value = "64KiB",
        help_heading = "Size"
    )]
    pub max_head: String,

    /// Most header fields of a request; beyond it 431
    #[arg(
        long,
        env = "HOOPSNAKE_MAX_FIELDS",
        value_name = "N",
        default_value = "128",
        help_heading = "Size"
    )]
    pub max_fields: String,

    /// Where request bodies over 64 KiB wait, unnamed [default: TMPDIR, or /tmp]
    #[arg(long, env = "HOOPSNAKE_SPOOL_DIR", value_name = "DIR", help_heading = "Size")]
    pub spool_dir: Option<String>,

    /// Bytes of all waiting bodies of a worker; beyond it 507
    #[arg(
        long,
        env = "HOOPSNAKE_SPOOL_BYTES",
        value_name = "BYTES",
        default_value = "8GiB",
        help_heading = "Size"
    )]
    pub spool_bytes: String,

    /// The Server field of responses; `off` sends none
    #[arg(
        long,
        env = "HOOPSNAKE_SERVER_HEADER",
        value_name = "NAME",
        default_value = "hoopsnake",
        help_heading = "Size"
    )]
    pub server_header: String,

    /// Give each request an id, or keep the X-Request-ID of a trusted proxy: HTTP_X_REQUEST_ID for the
    /// application (what anybody else sent is replaced), X-Request-ID in the response, and in both logs
    #[arg(long, env = "HOOPSNAKE_REQUEST_ID", value_name = "BOOL", default_value = "false",
          num_args = 0..=1, require_equals = true, default_missing_value = "true",
          help_heading = "Logs")]
    pub request_id: String,

    /// error, warn, info, debug or trace
    #[arg(
        long,
        env = "HOOPSNAKE_LOG_LEVEL",
        value_name = "LEVEL",
        default_value = "info",
        help_heading = "Logs"
    )]
    pub log_level: String,

    /// text or json
    #[arg(
        long,
        env = "HOOPSNAKE_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "text",
        help_heading = "Logs"
    )]
    pub log_format: String,

    /// One line per response: a file, which SIGUSR1 opens again, `-` for stdout, or `off`
    #[arg(
        long,
        env = "HOOPSNAKE_ACCESS_LOG",
        value_name = "FILE",
        default_value = "off",
        help_heading = "Logs"
    )]
    pub access_log: String,

    /// combined, json, or a format with gunicorn's atoms, such as '%(h)s %(r)s %(s)s'
    #[arg(
        long,
        env = "HOOPSNAKE_ACCESS_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "combined",
        help_heading = "Logs"
    )]
    pub access_log_format: String,

    /// File for Python's `logging`: JSON (or YAML, where PyYAML is installed) for dictConfig, anything
    /// else for fileConfig. The workers' own lines then go to the logger `hoopsnake`, and those of
    /// responses to `hoopsnake.access`, unless --access-log is given
    #[arg(long, env = "HOOPSNAKE_LOG_CONFIG", value_name = "FILE", help_heading = "Logs")]
    pub log_config: Option<String>,

    /// When nobody reads the logs: `drop` lines and count them, or `block` the server
    #[arg(
        long,
        env = "HOOPSNAKE_LOG_OVERFLOW",
        value_name = "WHAT",
        default_value = "drop",
        help_heading = "Logs"
    )]
    pub log_overflow: String,

    /// File that holds the supervisor's process id while it runs
    #[arg(long, env = "HOOPSNAKE_PID_FILE", value_name = "FILE", help_heading = "Process")]
    pub pid_file: Option<String>,

    /// Name of the processes in ps and top, up to 15 bytes
    #[arg(
        long,
        env = "HOOPSNAKE_PROC_NAME",
        value_name = "NAME",
        default_value = "hoopsnake",
        help_heading = "Process"
    )]
    pub proc_name: String,

    /// User that workers run as; the server must be started as root
    #[arg(long, env = "HOOPSNAKE_USER", value_name = "USER", help_heading = "Process")]
    pub user: Option<String>,

    /// Group that workers run as [default: the user's]
    #[arg(long, env = "HOOPSNAKE_GROUP", value_name = "GROUP", help_heading = "Process")]
    pub group: Option<String>,

    /// Directory to change to before anything is opened
    #[arg(long, env = "HOOPSNAKE_CHDIR", value_name = "DIR", help_heading = "Process")]
    pub chdir: Option<String>,

    /// Print every bound with its range and exit
    #[arg(long, help_heading = "Process")]
    pub limits: bool,
}

const ABOUT: &str = "Serves a Python application over HTTP/1.1 with io_uring.";

const USAGE: &str = "hoopsnake [serve] [OPTIONS] APP
       hoopsnake doctor [OPTIONS] [APP]";

const AFTER: &str = "\
`doctor` prints the resolved configuration with the origin of every value, what the kernel and the
interpreter offer, whether APP can be imported and what it did not check, and exits as the server
would.

Every option with a value is also a variable, HOOPSNAKE_<NAME>, and a key in ./hoopsnake.toml, or under
[tool.hoopsnake] in ./pyproject.toml. A flag wins over a variable, a variable over a file.

Exit codes: 0 stopped, 1 start-up failed or a stop had to cut something, 2 usage, 78 this machine
cannot run the configuration.";

/// The command as clap sees it.
#[must_use]
pub(super) fn command() -> clap::Command {
    RawConfig::augment_args(clap::Command::new("hoopsnake"))
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .override_usage(USAGE)
        .after_help(AFTER)
        .max_term_width(100)
        .args_override_self(true)
        .mut_args(|argument| argument.hide_env(true))
}
