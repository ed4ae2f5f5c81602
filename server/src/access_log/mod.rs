//! The access log: one line a response, to a file or to whoever else takes lines.

mod format;
mod line;
mod text;
mod user;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use format::Format;
use line::{Line, Writer};
use text::{SHORTER_VALUE_BYTES_MAX, VALUE_BYTES_MAX};

use crate::access::{AccessEntry, AccessSink};
use crate::clock;
use crate::config::{AccessFormat, AccessTarget, LogConfig};
use crate::log::{QueuedWriter, Record, RecordQueue, Topic};

/// A line's usual length, so that it grows once at the most. **Unit**: bytes.
const USUAL_LINE_BYTES: usize = 256;

/// Writes entries to the target through a queue of its own.
#[derive(Debug)]
pub struct AccessLog {
    target: Target,
    format: AccessFormat,
    writer: Writer,
}

#[derive(Debug)]
enum Target {
    /// Standard output or, with its path, a file that can be opened again.
    File(QueuedWriter, Option<PathBuf>),
    Records(Arc<RecordQueue>),
}

impl AccessLog {
    /// Opens the target of worker `worker` and starts its writer thread; `None` for
    /// `AccessTarget::Off`. `records` takes the lines of `AccessTarget::Logger`.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn open(
        config: &LogConfig,
        worker: usize,
        records: Option<&Arc<RecordQueue>>,
    ) -> io::Result<Option<Self>> {
        let started = |file, path| {
            Target::File(QueuedWriter::start("hoopsnake-access", file, config.overflow), path)
        };
        let target = match (&config.access, records) {
            (AccessTarget::Off, _) | (AccessTarget::Logger, None) => return Ok(None),
            (AccessTarget::Logger, Some(records)) => Target::Records(Arc::clone(records)),
            (AccessTarget::Stdout, _) => {
                started(File::from(io::stdout().as_fd().try_clone_to_owned()?), None)
            }
            (AccessTarget::File(path), _) => started(open_file(path)?, Some(path.clone())),
        };
        let writer = Writer { worker, pid: std::process::id() };
        Ok(Some(Self { target, format: config.access_format.clone(), writer }))
    }

    /// Whether `open` would succeed; leaves nothing behind.
    ///
    /// # Errors
    /// What `open` would say.
    pub fn check(config: &LogConfig) -> io::Result<()> {
        let AccessTarget::File(path) = &config.access else { return Ok(()) };
        match appending().create_new(true).open(path) {
            Ok(_) => std::fs::remove_file(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                appending().open(path).map(drop)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the file again, which somebody has moved away (SIGUSR1). A line is in one of the two. If
    /// it cannot be opened, the old one is written on.
    pub fn reopen(&self) {
        let Target::File(writer, Some(path)) = &self.target else { return };
        match open_file(path) {
            Ok(file) => writer.replace(file),
            Err(error) => tracing::error!(
                %error,
                "access-log {} cannot be opened again; the old file is used on",
                path.display()
            ),
        }
    }

    /// Waits, this long at most, until the lines are written. Those for Python are flushed by the
    /// bridge.
    pub fn flush(&self, patience: Duration) {
        match &self.target {
            Target::File(writer, _) => writer.flush(patience),
            Target::Records(_) => {}
        }
    }

    /// With its end.
    fn line_bytes_max(&self) -> usize {
        match &self.target {
            Target::File(writer, _) => writer.line_bytes_max(),
            Target::Records(_) => usize::MAX,
        }
    }

    fn push_line(&self, line: &Line<'_>, text: &mut String) {
        match &self.format {
            AccessFormat::Combined => line.push_combined(text),
            AccessFormat::Json => text.push_str(&line.json()),
            AccessFormat::Custom(format) => line.push_formatted(text, format),
        }
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    appending().create(true).open(path)
}

fn appending() -> OpenOptions {
    let mut options = OpenOptions::new();
    // A named pipe without a reader is an error, and not a wait for one.
    options.append(true).custom_flags(libc::O_NONBLOCK);
    options
}

impl AccessSink for AccessLog {
    fn record(&self, entry: AccessEntry<'_>) {
        let mut line = Line {
            entry: &entry,
            writer: self.writer,
            now: clock::unix_time(),
            value_bytes_max: VALUE_BYTES_MAX,
        };
        let mut text = String::with_capacity(USUAL_LINE_BYTES);
        self.push_line(&line, &mut text);
        for bytes_max in SHORTER_VALUE_BYTES_MAX {
            if text.len() < self.line_bytes_max() {
                break;
            }
            line.value_bytes_max = bytes_max;
            text.clear();
            self.push_line(&line, &mut text);
        }
        match &self.target {
            Target::File(writer, _) => {
                text.push('\n');
                writer.write_line(text.as_bytes());
            }
            Target::Records(records) => records.push(Record {
                topic: Topic::Access,
                level: tracing::Level::INFO,
                time: line.now,
                message: text,
                fields: line.json(),
            }),
        }
    }

    fn tick(&self) {
        match &self.target {
            Target::File(writer, _) => writer.say_drops_while_full(),
            Target::Records(records) => records.say_drops_while_full(),
        }
    }

    fn wants_response(&self) -> bool {
        match &self.format {
            AccessFormat::Combined | AccessFormat::Json => false,
            AccessFormat::Custom(format) => format.wants_response(),
        }
    }
}
