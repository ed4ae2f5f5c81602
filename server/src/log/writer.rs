//! Lines to a file, written by a thread that may wait for it.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

use super::progress::{Count, Slot};
use super::{PIPE_BYTES_MAX, QUEUE_LINES_MAX, cut_for_pipe};
use crate::config::LogOverflow;

/// Bytes that a writer thread collects before a `write`.
const BATCH_BYTES_MAX: usize = 64 * 1024;

/// Lines to a file, written by a thread that may wait for it.
#[derive(Debug)]
pub(crate) struct QueuedWriter {
    name: &'static str,
    lines: NonBlocking,
    progress: Arc<Progress>,
    line_bytes_max: usize,
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
    written: Count,
    /// What the writer goes on with instead of its file.
    replacement: Slot<File>,
}

impl QueuedWriter {
    pub(crate) fn start(name: &'static str, target: File, overflow: LogOverflow) -> Self {
        let progress = Arc::new(Progress::default());
        let drops = Arc::new(OnceLock::new());
        let line_bytes_max = whole_bytes_max(&target);
        let batch = Batch {
            name,
            target,
            whole_bytes_max: line_bytes_max,
            pending: Vec::new(),
            pending_lines: 0,
            progress: progress.clone(),
            drops: drops.clone(),
            is_broken: false,
            is_torn: false,
        };
        let (lines, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(QUEUE_LINES_MAX)
            .lossy(overflow == LogOverflow::Drop)
            .thread_name(name)
            .finish(batch);
        let _ = drops.set(lines.error_counter());
        Self { name, lines, progress, line_bytes_max, _guard: std::mem::ManuallyDrop::new(guard) }
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

    /// From here on lines go to this file; those that are on their way, to one of the two. The old one
    /// is closed when the next line comes.
    pub(crate) fn replace(&self, file: File) {
        self.progress.replacement.put(file);
    }

    /// What is longer, with its end, is cut.
    pub(crate) fn line_bytes_max(&self) -> usize {
        self.line_bytes_max
    }

    /// Waits, this long at most, until the lines are written.
    pub(crate) fn flush(&self, patience: Duration) {
        let handed = self.progress.handed.load(Ordering::SeqCst);
        let dropped = self.lines.error_counter();
        self.progress
            .written
            .wait(patience, |written| written + (dropped.dropped_lines() as u64) >= handed);
    }
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
    whole_bytes_max: usize,
    pending: Vec<u8>,
    pending_lines: u64,
    progress: Arc<Progress>,
    drops: Arc<OnceLock<ErrorCounter>>,
    /// The last write failed, and that was said.
    is_broken: bool,
    /// The target ends inside a line: the disk was full there.
    is_torn: bool,
}

impl Write for Batch {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if line.len() > self.whole_bytes_max {
            // A line of the server's log may have several in it, such as a traceback.
            for part in line.split_inclusive(|&byte| byte == b'\n') {
                let (part, end) = cut_for_pipe(part);
                self.pending.extend_from_slice(part);
                self.pending.extend_from_slice(end);
            }
        } else {
            self.pending.extend_from_slice(line);
        }
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
    /// All of it, in pieces that are taken whole.
    fn write_all_pending(&mut self) -> io::Result<()> {
        if self.is_torn {
            write_all(&mut self.target, b"\n").1?;
            self.is_torn = false;
        }
        let mut left = &self.pending[..];
        while !left.is_empty() {
            let (piece, rest) = left.split_at(piece_bytes(left, self.whole_bytes_max));
            let (taken, result) = write_all(&mut self.target, piece);
            if let Err(error) = result {
                self.is_torn = piece[..taken].last().is_some_and(|&byte| byte != b'\n');
                return Err(error);
            }
            left = rest;
        }
        Ok(())
    }

    fn write_pending(&mut self) {
        if let Some(file) = self.progress.replacement.take() {
            self.whole_bytes_max = whole_bytes_max(&file);
            self.target = file;
            self.is_torn = false;
        }
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
        self.progress.written.add(std::mem::take(&mut self.pending_lines));
    }
}

/// Bytes that one `write` puts into the target whole, whoever else writes there. A file is opened for
/// appending; a pipe that is full takes a longer piece in parts, and other workers' lines between them.
fn whole_bytes_max(target: &File) -> usize {
    let is_pipe = target.metadata().is_ok_and(|metadata| {
        let kind = metadata.file_type();
        kind.is_fifo() || kind.is_socket()
    });
    if is_pipe { PIPE_BYTES_MAX } else { usize::MAX }
}

/// As many whole lines as the target takes at once. No line is longer than that.
fn piece_bytes(lines: &[u8], whole_bytes_max: usize) -> usize {
    if lines.len() <= whole_bytes_max {
        return lines.len();
    }
    let last_end = lines[..whole_bytes_max].iter().rposition(|&byte| byte == b'\n');
    last_end.map_or(whole_bytes_max, |index| index + 1)
}

/// Also into a pipe that somebody else made non-blocking. How many bytes the target took, and what
/// kept it from taking the rest.
fn write_all(target: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut taken = 0;
    while taken < bytes.len() {
        let result = match target.write(&bytes[taken..]) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                taken += count;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut writable = [PollFd::new(target, PollFlags::OUT)];
                poll(&mut writable, None).map(drop).map_err(io::Error::from)
            }
            Err(error) => Err(error),
        };
        if result.is_err() {
            return (taken, result);
        }
    }
    (taken, Ok(()))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::log::FLUSH_WAIT_MAX;

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
        queued.flush(FLUSH_WAIT_MAX);
        assert_eq!(queued.progress.written.get(), (count - dropped) as u64);
    }

    #[test]
    fn a_replaced_file_gets_every_line_that_the_old_one_did_not() {
        let directory = std::env::temp_dir().join(format!("hoopsnake-log-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = |index: usize| directory.join(index.to_string());
        let create = |index| File::create(path(index)).unwrap();
        let queued = QueuedWriter::start("hoopsnake-test", create(0), LogOverflow::Block);
        for index in 0..10_000 {
            queued.write_line(format!("{index}\n").as_bytes());
            if index % 1000 == 999 {
                queued.replace(create(1 + index / 1000));
            }
        }
        queued.write_line(b"10000\n");
        queued.flush(FLUSH_WAIT_MAX);
        let read = |index| std::fs::read_to_string(path(index)).unwrap();
        let texts: String = (0..=10).map(read).collect();
        let expected: String = (0..=10_000).map(|index| format!("{index}\n")).collect();
        assert!(texts == expected, "lines are lost, doubled or out of order");
        assert!(read(10).ends_with("10000\n"));
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// Two writers, as of two workers, into one pipe that is full most of the time.
    #[test]
    fn lines_of_two_writers_are_whole_in_a_full_pipe() {
        let (mut reader, writer) = io::pipe().unwrap();
        let writer = std::os::fd::OwnedFd::from(writer);
        let start = |fd| QueuedWriter::start("hoopsnake-test", File::from(fd), LogOverflow::Block);
        let queued = [start(writer.try_clone().unwrap()), start(writer)];
        let line = |letter: u8, bytes: usize| [vec![letter; bytes], vec![b'\n']].concat();
        for round in 0..4000 {
            queued[0].write_line(&line(b'a', round % 300));
            queued[1].write_line(&line(b'b', if round % 1000 == 0 { 9000 } else { 300 }));
        }
        let mut received = Vec::new();
        let mut chunk = vec![0; 8192];
        let line_count = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == b'\n').count();
        while line_count(&received) < 8000 {
            let count = reader.read(&mut chunk).unwrap();
            received.extend_from_slice(&chunk[..count]);
        }
        let mut cut_count = 0;
        for line in received.split(|&byte| byte == b'\n') {
            let text = line.strip_suffix(b"...").unwrap_or(line);
            cut_count += usize::from(text.len() < line.len());
            assert!(line.len() < PIPE_BYTES_MAX);
            assert!(text.windows(2).all(|pair| pair[0] == pair[1]), "torn");
        }
        assert_eq!(cut_count, 4, "what is too long is cut and marked");
    }
}
