//! The server's own log on stderr: one line an event, never a wait for whoever reads it.
//!
//! Until [`start_writer`] the line is written at once, if the pipe takes it: the supervisor stays one
//! thread for life (RULES 1). A worker then starts a writer thread behind a bounded queue. A full
//! queue drops lines, counts them, and says so when there is room again (RULES 27). With
//! `--log-config` the lines of a worker are handed to Python instead ([`hand_to`]).

mod progress;
mod records;
mod writer;

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use records::{Record, RecordQueue, Topic, Waiting};
pub(crate) use writer::QueuedWriter;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::clock;
use crate::config::{LogConfig, LogFormat, LogOverflow};

/// Lines that wait for a writer. **Unit**: lines. **Why**: a tenth of a second at 80 000 a second,
/// and at the longest line still a bounded part of a worker's memory.
pub const QUEUE_LINES_MAX: usize = 8192;

/// What a pipe takes whole, whoever else writes to it. **Unit**: bytes. **Source**: PIPE_BUF, pipe(7).
const PIPE_BYTES_MAX: usize = 4096;

/// What stands for the end of a line that is too long for a pipe.
const CUT: &[u8] = b"...\n";

/// What stands for the middle of a value of JSON.
const LEFT_OUT: &str = " [...] ";

/// How long the end of a process waits for lines that nobody reads.
pub const FLUSH_WAIT_MAX: Duration = Duration::from_secs(1);

static WRITER: OnceLock<QueuedWriter> = OnceLock::new();
static RECORDS: OnceLock<Arc<RecordQueue>> = OnceLock::new();
static HANDED_ON: AtomicBool = AtomicBool::new(false);
/// The worker's number; 0 in the supervisor.
static ROLE: AtomicUsize = AtomicUsize::new(0);
static DIRECT_DROPS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Lines of this thread go to stderr, whoever takes the others: it is the one that takes them, or
    /// it says that they are not taken.
    static IS_NATIVE: Cell<bool> = const { Cell::new(false) };
}

/// Which process a line is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// The one that forks.
    Supervisor,
    /// The one that serves.
    Worker {
        /// From 1.
        number: usize,
    },
    /// The one that imports and forks (`--preload`).
    Template,
}

/// How [`ROLE`] says that this is the template; no worker has that number.
const TEMPLATE: usize = usize::MAX;

/// Installs the log of this process and of those it forks. A second call changes nothing.
pub fn install(config: &LogConfig) {
    let layer = LineLayer { format: config.format };
    let subscriber = tracing_subscriber::registry().with(config.level).with(layer);
    // An error means that there is one already: `hoopsnake.run` was called twice.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Says what the next lines are from.
pub fn set_role(role: Role) {
    let number = match role {
        Role::Supervisor => 0,
        Role::Worker { number } => number,
        Role::Template => TEMPLATE,
    };
    ROLE.store(number, Ordering::Relaxed);
}

/// From here on lines go through a queue to a thread of their own. Never in a process that forks.
///
/// # Errors
/// Out of descriptors.
pub fn start_writer(overflow: LogOverflow) -> io::Result<()> {
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let _ = WRITER.set(QueuedWriter::start("hoopsnake-log", stderr, overflow));
    Ok(())
}

/// From here on lines go to this queue and no more to stderr.
pub fn hand_to(records: Arc<RecordQueue>) {
    HANDED_ON.store(RECORDS.set(records).is_ok(), Ordering::SeqCst);
}

/// From here on lines go to stderr again: nobody takes the others any more.
pub fn take_back() {
    HANDED_ON.store(false, Ordering::SeqCst);
}

/// What is logged in here goes to stderr, whoever takes the other lines.
pub fn natively<T>(act: impl FnOnce() -> T) -> T {
    let before = IS_NATIVE.replace(true);
    let result = act();
    IS_NATIVE.set(before);
    result
}

fn records() -> Option<&'static Arc<RecordQueue>> {
    if IS_NATIVE.get() || !HANDED_ON.load(Ordering::Relaxed) {
        return None;
    }
    RECORDS.get()
}

/// Waits, this long at most, until the lines of this process are written.
pub fn flush(patience: Duration) {
    if let Some(writer) = WRITER.get() {
        writer.flush(patience);
    }
}

/// Writes a line to stderr if it can be taken at once.
fn write_direct(line: &[u8]) {
    let stderr = io::stderr();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    let writable = poll(&mut ready, Some(&now)).is_ok_and(|count| count == 1)
        && ready[0].revents().contains(PollFlags::OUT);
    let (line, end) = cut_for_pipe(line);
    let line = [line, end].concat();
    if !writable || rustix::io::write(&stderr, &line).is_err() {
        DIRECT_DROPS.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let dropped = DIRECT_DROPS.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        tracing::warn!(count = dropped, "log lines were dropped because nobody read stderr");
    }
}

/// A line as long as a pipe takes it, and the mark that ends it where it was longer.
fn cut_for_pipe(line: &[u8]) -> (&[u8], &'static [u8]) {
    if line.len() <= PIPE_BYTES_MAX {
        return (line, b"");
    }
    let mut kept = PIPE_BYTES_MAX - CUT.len();
    // Not within a character of UTF-8.
    while kept > 0 && line[kept] & 0xc0 == 0x80 {
        kept -= 1;
    }
    (&line[..kept], CUT)
}

#[derive(Debug)]
struct LineLayer {
    format: LogFormat,
}

impl<S: Subscriber> Layer<S> for LineLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let level = *event.metadata().level();
        let now = clock::unix_time();
        if let Some(records) = records() {
            return records.push(Record::of(event, level, now));
        }
        let origin = Origin::of_this_process();
        let line = match self.format {
            LogFormat::Text => {
                let mut fields = TextFields::default();
                event.record(&mut fields);
                text_line(now, level, origin, &fields)
            }
            LogFormat::Json => {
                let mut fields = JsonFields::default();
                event.record(&mut fields);
                let bytes_max = WRITER.get().map_or(PIPE_BYTES_MAX, QueuedWriter::line_bytes_max);
                json_line(now, level, origin, fields, bytes_max)
            }
        };
        match WRITER.get() {
            Some(writer) => writer.write_line(line.as_bytes()),
            None => write_direct(line.as_bytes()),
        }
    }
}

/// Who writes a line.
#[derive(Clone, Copy, Debug)]
struct Origin {
    role: Role,
    pid: u32,
}

impl Origin {
    fn of_this_process() -> Self {
        let role = match ROLE.load(Ordering::Relaxed) {
            0 => Role::Supervisor,
            TEMPLATE => Role::Template,
            number => Role::Worker { number },
        };
        Self { role, pid: std::process::id() }
    }

    fn role(self) -> &'static str {
        match self.role {
            Role::Supervisor => "supervisor",
            Role::Worker { .. } => "worker",
            Role::Template => "template",
        }
    }
}

/// `2026-11-30T12:00:00.123Z`.
#[must_use]
pub fn timestamp(since_1970: Duration) -> String {
    let civil = clock::civil_from_unix(since_1970.as_secs());
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        civil.year,
        civil.month,
        civil.day,
        civil.hour,
        civil.minute,
        civil.second,
        since_1970.subsec_millis()
    )
}

fn text_line(now: Duration, level: Level, origin: Origin, fields: &TextFields) -> String {
    let (role, pid) = (origin.role(), origin.pid);
    let mut line = format!("{} {level:<5} {role}[{pid}] ", timestamp(now));
    fields.push_to(&mut line);
    line.push('\n');
    line
}

/// A value cannot begin a line of its own: what follows a line break is indented, and other control
/// characters are written as escapes.
fn push_escaped(line: &mut String, text: &str) {
    for letter in text.trim_end_matches('\n').chars() {
        match letter {
            '\n' => line.push_str("\n  "),
            '\t' => line.push('\t'),
            control if control.is_control() => {
                // Writing to a String cannot fail.
                let _ = write!(line, "\\x{:02x}", control as u32);
            }
            other => line.push(other),
        }
    }
}

#[derive(Debug, Default)]
struct TextFields {
    message: String,
    others: String,
}

impl TextFields {
    fn push_to(&self, line: &mut String) {
        push_escaped(line, &self.message);
        line.push_str(&self.others);
    }

    fn push(&mut self, field: &Field, text: &str) {
        if field.name() == "message" {
            self.message.push_str(text);
            return;
        }
        let _ = write!(self.others, " {}=", field.name());
        let plain = !text.is_empty()
            && text.chars().all(|letter| !letter.is_control() && !" \"=".contains(letter));
        if plain {
            self.others.push_str(text);
        } else {
            let _ = write!(self.others, "{text:?}");
        }
    }
}

impl Visit for TextFields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, &format!("{value:?}"));
    }
}

/// The longest values lose their middles where the line would be longer than that.
fn json_line(
    now: Duration,
    level: Level,
    origin: Origin,
    fields: JsonFields,
    bytes_max: usize,
) -> String {
    let mut object = serde_json::Map::new();
    object.insert("time".to_owned(), timestamp(now).into());
    object.insert("level".to_owned(), level.as_str().to_ascii_lowercase().into());
    object.insert("process".to_owned(), origin.role().into());
    if let Role::Worker { number } = origin.role {
        object.insert("worker".to_owned(), number.into());
    }
    object.insert("pid".to_owned(), origin.pid.into());
    for (name, value) in fields.0 {
        // `pid` is who writes, in every line; some lines of the supervisor are about a worker.
        let name = if name == "pid" { "worker_pid".to_owned() } else { name };
        object.insert(name, value);
    }
    let mut object = serde_json::Value::Object(object);
    let mut line = object.to_string();
    let key_count = object.as_object().map_or(0, serde_json::Map::len);
    for _ in 0..key_count {
        let Some(over) = (line.len() + 1).checked_sub(bytes_max).filter(|&over| over > 0) else {
            break;
        };
        leave_out_of_longest(&mut object, over);
        line = object.to_string();
    }
    line.push('\n');
    line
}

/// At least so many bytes of the longest text in it.
fn leave_out_of_longest(object: &mut serde_json::Value, bytes: usize) {
    let values = object.as_object_mut().into_iter().flat_map(serde_json::Map::values_mut);
    let texts = values.filter_map(|value| match value {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::Array(_)
        | serde_json::Value::Object(_) => None,
    });
    let Some(longest) = texts.max_by_key(|text| text.len()) else { return };
    let kept = longest.len().saturating_sub(bytes + LEFT_OUT.len());
    // The end of a traceback says most.
    let mut begin = kept / 3;
    let mut end = longest.len() - (kept - begin);
    while !longest.is_char_boundary(begin) {
        begin -= 1;
    }
    while !longest.is_char_boundary(end) {
        end += 1;
    }
    longest.replace_range(begin..end, LEFT_OUT);
}

#[derive(Debug, Default)]
struct JsonFields(serde_json::Map<String, serde_json::Value>);

impl Visit for JsonFields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: Origin = Origin { role: Role::Worker { number: 2 }, pid: 7 };

    #[test]
    fn a_line_cannot_be_forged() {
        let fields = TextFields {
            message: "a\n2026 fake\x1b[31m\r\n".to_owned(),
            others: " key=1".to_owned(),
        };
        let line = text_line(Duration::from_millis(1_123), Level::WARN, WORKER, &fields);
        assert_eq!(
            line,
            "1970-01-01T00:00:01.123Z WARN  worker[7] a\n  2026 fake\\x1b[31m\\x0d key=1\n"
        );
        assert_eq!(line.lines().filter(|part| !part.starts_with("  ")).count(), 1);
    }

    #[test]
    fn json_is_one_object_a_line() {
        let line =
            json_line(Duration::ZERO, Level::INFO, WORKER, JsonFields::default(), PIPE_BYTES_MAX);
        let value: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        assert_eq!((&value["level"], &value["pid"]), (&"info".into(), &7.into()));
        assert_eq!((&value["process"], &value["worker"]), (&"worker".into(), &2.into()));
    }

    #[test]
    fn json_that_is_too_long_for_a_pipe_is_still_an_object_with_both_ends_of_its_message() {
        let message = format!("begin{}end", "\n\"\u{e9}".repeat(3000));
        let mut fields = JsonFields::default();
        fields.0.insert("message".to_owned(), message.into());
        fields.0.insert("other".to_owned(), "x".repeat(3000).into());
        let line = json_line(Duration::ZERO, Level::INFO, WORKER, fields, PIPE_BYTES_MAX);
        assert!(line.len() <= PIPE_BYTES_MAX && line.ends_with('\n'), "{} bytes", line.len());
        let value: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        let message = value["message"].as_str().unwrap();
        assert!(message.contains(LEFT_OUT) && value["pid"] == 7, "{line}");
    }
}
