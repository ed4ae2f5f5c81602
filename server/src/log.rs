//! The server's own log on stderr: one line an event, never a wait for whoever reads it.
//!
//! Until [`start_writer`] the line is written at once, if the pipe takes it: the supervisor stays one
//! thread for life (RULES 1). A worker then starts a writer thread behind a bounded queue. A full
//! queue drops lines, counts them, and says so when there is room again (RULES 27).

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use crate::clock;
use crate::config::{LogConfig, LogFormat, LogOverflow};

/// Lines that wait for a writer. **Unit**: lines. **Why**: a tenth of a second at 80 000 a second,
/// and at the longest line still a bounded part of a worker's memory.
pub const QUEUE_LINES_MAX: usize = 8192;

/// A line written without a thread. **Unit**: bytes. **Why**: PIPE_BUF, what a pipe that polls
/// writable takes whole.
const DIRECT_LINE_BYTES_MAX: usize = 4096;

/// Bytes that a writer thread collects before a `write`.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// How long the end of a process waits for lines that nobody reads.
const FLUSH_WAIT_MAX: Duration = Duration::from_secs(1);

static WRITER: OnceLock<QueuedWriter> = OnceLock::new();
static ROLE: AtomicU32 = AtomicU32::new(0);
static DIRECT_DROPS: AtomicU64 = AtomicU64::new(0);

/// Which process a line is from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    /// The one that forks.
    Supervisor,
    /// The one that serves.
    Worker,
}

/// Installs the log of this process and of those it forks. A second call changes nothing.
pub fn install(config: &LogConfig) {
    let layer = LineLayer { format: config.format };
    let subscriber = tracing_subscriber::registry().with(config.level).with(layer);
    // An error means that there is one already: `hoopsnake.run` was called twice.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Says what the next lines are from.
pub fn set_role(role: Role) {
    ROLE.store(role as u32, Ordering::Relaxed);
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

/// Waits, for a second at most, until the lines of this process are written.
pub fn flush() {
    if let Some(writer) = WRITER.get() {
        writer.flush();
    }
}

/// Lines to a file, written by a thread that may wait for it.
#[derive(Debug)]
pub(crate) struct QueuedWriter {
    name: &'static str,
    lines: NonBlocking,
    progress: Arc<Progress>,
    /// Never dropped: its drop prints to stdout, which may be the very pipe nobody reads.
    _guard: std::mem::ManuallyDrop<WorkerGuard>,
}

#[derive(Debug, Default)]
struct Progress {
    handed: AtomicU64,
    /// Dropped lines that were spoken of.
    drops_said: AtomicUsize,
    /// They were spoken of while the writer could not, once.
    said_while_full: AtomicBool,
    written: Mutex<u64>,
    moved: Condvar,
}

impl QueuedWriter {
    pub(crate) fn start(name: &'static str, target: File, overflow: LogOverflow) -> Self {
        let progress = Arc::new(Progress::default());
        let drops = Arc::new(OnceLock::new());
        let batch = Batch {
            name,
            target,
            pending: Vec::new(),
            pending_lines: 0,
            progress: progress.clone(),
            drops: drops.clone(),
            is_broken: false,
        };
        let (lines, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(QUEUE_LINES_MAX)
            .lossy(overflow == LogOverflow::Drop)
            .thread_name(name)
            .finish(batch);
        let _ = drops.set(lines.error_counter());
        Self { name, lines, progress, _guard: std::mem::ManuallyDrop::new(guard) }
    }

    /// Hands on one line, its end included.
    pub(crate) fn write_line(&self, line: &[u8]) {
        self.progress.handed.fetch_add(1, Ordering::SeqCst);
        // Fails only when the thread is gone, and it lives as long as the process.
        let _ = self.lines.clone().write_all(line);
    }

    /// For a log whose reader has stopped, so that its writer cannot say it: once until the writer
    /// goes on.
    pub(crate) fn say_drops_while_full(&self) {
        let drops = self.lines.error_counter();
        if drops.dropped_lines() > self.progress.drops_said.load(Ordering::Relaxed)
            && !self.progress.said_while_full.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                limit = QUEUE_LINES_MAX,
                "{} is full and nobody reads it: lines are lost until somebody does",
                self.name
            );
        }
    }

    pub(crate) fn flush(&self) {
        let deadline = clock::now() + FLUSH_WAIT_MAX;
        let handed = self.progress.handed.load(Ordering::SeqCst);
        let dropped = self.lines.error_counter();
        let mut written = lock(&self.progress.written);
        while *written + (dropped.dropped_lines() as u64) < handed {
            let left = deadline.saturating_duration_since(clock::now());
            if left.is_zero() {
                return;
            }
            let waited = self.progress.moved.wait_timeout(written, left);
            written = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[expect(clippy::disallowed_types, reason = "the log is no part of what the model checks")]
type Mutex<T> = std::sync::Mutex<T>;

#[expect(clippy::disallowed_types, reason = "the log is no part of what the model checks")]
type Condvar = std::sync::Condvar;

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    fn say_drops(&self, name: &str, drops: &ErrorCounter) {
        let dropped = drops.dropped_lines();
        let count = dropped.saturating_sub(self.drops_said.swap(dropped, Ordering::Relaxed));
        if count > 0 {
            tracing::warn!(
                count,
                limit = QUEUE_LINES_MAX,
                "{name} dropped lines because nobody read them in time; --log-overflow block waits \
                 instead"
            );
        }
    }
}

/// The writer thread's end: collects what the queue holds and writes it at once.
struct Batch {
    name: &'static str,
    target: File,
    pending: Vec<u8>,
    pending_lines: u64,
    progress: Arc<Progress>,
    drops: Arc<OnceLock<ErrorCounter>>,
    /// The last write failed, and that was said.
    is_broken: bool,
}

impl Write for Batch {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(line);
        self.pending_lines += 1;
        if self.pending.len() >= BATCH_BYTES_MAX {
            self.write_pending();
        }
        Ok(line.len())
    }

    /// Called when the queue is empty.
    fn flush(&mut self) -> io::Result<()> {
        self.write_pending();
        if let Some(drops) = self.drops.get() {
            self.progress.say_drops(self.name, drops);
        }
        self.progress.said_while_full.store(false, Ordering::Relaxed);
        Ok(())
    }
}

impl Batch {
    /// All of it, also into a pipe that somebody else made non-blocking.
    fn write_all_pending(&mut self) -> io::Result<()> {
        let mut left = &self.pending[..];
        while !left.is_empty() {
            match self.target.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => left = &left[taken..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut writable = [PollFd::new(&self.target, PollFlags::OUT)];
                    poll(&mut writable, None)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write_pending(&mut self) {
        if let Err(error) = self.write_all_pending() {
            // The server's log may be another file than this one; if it is the same, nobody is left
            // to tell. Once, until something can be written again.
            if !std::mem::replace(&mut self.is_broken, true) {
                tracing::error!(
                    %error,
                    lines = self.pending_lines,
                    "{} cannot be written; its lines are lost until it can be",
                    self.name
                );
            }
        } else {
            self.is_broken = false;
        }
        self.pending.clear();
        *lock(&self.progress.written) += std::mem::take(&mut self.pending_lines);
        self.progress.moved.notify_all();
    }
}

/// Writes a line to stderr if it can be taken at once.
fn write_direct(line: &[u8]) {
    let stderr = io::stderr();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut ready = [PollFd::new(&stderr, PollFlags::OUT)];
    let writable = poll(&mut ready, Some(&now)).is_ok_and(|count| count == 1)
        && ready[0].revents().contains(PollFlags::OUT);
    let cut = line.len().min(DIRECT_LINE_BYTES_MAX);
    if !writable || rustix::io::write(&stderr, &line[..cut]).is_err() {
        DIRECT_DROPS.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let dropped = DIRECT_DROPS.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        tracing::warn!(count = dropped, "log lines were dropped because nobody read stderr");
    }
}

#[derive(Debug)]
struct LineLayer {
    format: LogFormat,
}

impl<S: Subscriber> Layer<S> for LineLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let role = match ROLE.load(Ordering::Relaxed) {
            0 => "supervisor",
            _ => "worker",
        };
        let origin = (role, std::process::id());
        let level = *event.metadata().level();
        let line = match self.format {
            LogFormat::Text => {
                let mut fields = TextFields::default();
                event.record(&mut fields);
                text_line(clock::unix_time(), level, origin, &fields)
            }
            LogFormat::Json => {
                let mut fields = JsonFields::default();
                event.record(&mut fields);
                json_line(clock::unix_time(), level, origin, fields)
            }
        };
        match WRITER.get() {
            Some(writer) => writer.write_line(line.as_bytes()),
            None => write_direct(line.as_bytes()),
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

fn text_line(now: Duration, level: Level, origin: (&str, u32), fields: &TextFields) -> String {
    let mut line = format!("{} {level:<5} {}[{}] ", timestamp(now), origin.0, origin.1);
    push_escaped(&mut line, &fields.message);
    line.push_str(&fields.others);
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

fn json_line(now: Duration, level: Level, origin: (&str, u32), fields: JsonFields) -> String {
    let mut object = serde_json::Map::new();
    object.insert("time".to_owned(), timestamp(now).into());
    object.insert("level".to_owned(), level.as_str().to_ascii_lowercase().into());
    object.insert("process".to_owned(), origin.0.into());
    object.insert("pid".to_owned(), origin.1.into());
    object.extend(fields.0);
    let mut line = serde_json::Value::Object(object).to_string();
    line.push('\n');
    line
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
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_line_cannot_be_forged() {
        let fields = TextFields {
            message: "a\n2026 fake\x1b[31m\r\n".to_owned(),
            others: " key=1".to_owned(),
        };
        let line = text_line(Duration::from_millis(1_123), Level::WARN, ("worker", 7), &fields);
        assert_eq!(
            line,
            "1970-01-01T00:00:01.123Z WARN  worker[7] a\n  2026 fake\\x1b[31m\\x0d key=1\n"
        );
        assert_eq!(line.lines().filter(|part| !part.starts_with("  ")).count(), 1);
    }

    #[test]
    fn json_is_one_object_a_line() {
        let line = json_line(Duration::ZERO, Level::INFO, ("worker", 7), JsonFields::default());
        let value: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        assert_eq!((&value["level"], &value["pid"]), (&"info".into(), &7.into()));
    }

    #[test]
    fn a_pipe_that_nobody_reads_costs_lines_and_no_time() {
        let (reader, writer) = io::pipe().unwrap();
        let queued = QueuedWriter::start(
            "hoopsnake-test",
            File::from(std::os::fd::OwnedFd::from(writer)),
            LogOverflow::Drop,
        );
        let line = [b'x'; 1023].into_iter().chain([b'\n']).collect::<Vec<u8>>();
        let count = QUEUE_LINES_MAX + 2000;
        for _ in 0..count {
            queued.write_line(&line);
        }
        let dropped = queued.lines.error_counter().dropped_lines();
        assert!(dropped > 0, "the queue is bounded");
        let mut reader = reader;
        let mut received = vec![0; (count - dropped) * line.len()];
        reader.read_exact(&mut received).unwrap();
        queued.flush();
        assert_eq!(*lock(&queued.progress.written), (count - dropped) as u64);
    }
}
