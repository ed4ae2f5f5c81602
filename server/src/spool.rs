//! Files behind the reactor's back: large request bodies on their way to disk, slices of files that
//! are not in the page cache, and descriptors whose closing may take long. One thread per worker
//! does all that, so that the reactor never waits for a file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use bytes::{Bytes, BytesMut};

use crate::exchange::{Exchange, Output};
use crate::limits::SPOOL_PIECE_BYTES;
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// Bytes that all bodies of a worker may have on disk.
#[derive(Debug)]
struct Quota {
    bytes_max: u64,
    bytes_used: AtomicU64,
}

/// A body's share of the quota, given back when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    quota: Arc<Quota>,
    bytes: u64,
}

impl Reservation {
    /// Takes `bytes` more; false: the quota is used up.
    fn grow(&mut self, bytes: u64) -> bool {
        let taken = self.quota.bytes_used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        self.bytes += bytes;
        taken <= self.quota.bytes_max
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.quota.bytes_used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// One body on its way to disk, shared by the reactor and the thread.
#[derive(Debug)]
struct Target {
    /// Made by the thread at the first piece.
    file: Mutex<Option<File>>,
    exchange: Arc<Exchange>,
}

/// What the thread does. In order, so that a body's pieces precede its end.
#[derive(Debug)]
enum Task {
    /// Answered with `Output::Spooled`.
    Write { target: Arc<Target>, offset: u64, bytes: Bytes },
    /// Answered with `Output::Warmed`.
    Warm { file: Arc<File>, offset: u64, count: usize, exchange: Arc<Exchange> },
    /// The body is not wanted any more: its blocks are given back here.
    Forget(Arc<Target>),
    /// The last descriptor of a large unlinked file frees its blocks when it is closed.
    Close(Arc<File>),
}

/// A body that is being spooled, as the reactor holds it.
#[derive(Debug)]
pub(crate) struct Upload {
    target: Arc<Target>,
    reservation: Option<Reservation>,
    tasks: Sender<Task>,
    /// Collected for the next piece: a client's chunks may be single bytes.
    pending: BytesMut,
    /// Bytes handed to the thread.
    length: u64,
    /// Bytes the thread has not answered for. **Unit**: bytes.
    unwritten: usize,
}

/// Why a piece was not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refused {
    /// `--spool-bytes` is used up.
    Quota,
    /// The thread is gone.
    Thread,
}

impl Upload {
    /// Bytes that the thread has not answered for.
    pub(crate) fn unwritten(&self) -> usize {
        self.unwritten
    }

    /// The thread answered for `bytes`.
    pub(crate) fn written(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.unwritten = self.unwritten.saturating_sub(bytes);
    }

    /// The whole body, once it was flushed and nothing is unwritten. `None`: nothing was ever written.
    pub(crate) fn into_file(mut self) -> Option<(File, u64, Reservation)> {
        let file = lock(&self.target.file).take()?;
        Some((file, self.length, self.reservation.take()?))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Refused only when the thread is gone, and its queue with it.
        let _ = self.tasks.send(Task::Forget(Arc::clone(&self.target)));
    }
}

/// The reactor's end.
#[derive(Debug)]
pub(crate) struct Spool {
    quota: Arc<Quota>,
    tasks: Option<Sender<Task>>,
    thread: Option<JoinHandle<()>>,
    /// Over all uploads, given up ones included, until the thread is done with them. **Unit**: bytes.
    unwritten: Arc<AtomicUsize>,
}

impl Spool {
    /// Starts the thread.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(directory: PathBuf, bytes_max: u64) -> io::Result<Self> {
        let (tasks, queue) = channel();
        let unwritten = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&unwritten);
        let builder = std::thread::Builder::new().name("hoopsnake-files".to_owned());
        let thread = builder.spawn(move || {
            crate::sys::process::block_all_signals();
            work(&directory, &queue, &counter);
        })?;
        let quota = Arc::new(Quota { bytes_max, bytes_used: AtomicU64::new(0) });
        Ok(Self { quota, tasks: Some(tasks), thread: Some(thread), unwritten })
    }

    /// Begins a body. `None`: the thread is gone.
    pub(crate) fn begin(&self, exchange: Arc<Exchange>) -> Option<Upload> {
        Some(Upload {
            target: Arc::new(Target { file: Mutex::new(None), exchange }),
            reservation: Some(Reservation { quota: Arc::clone(&self.quota), bytes: 0 }),
            tasks: self.tasks.clone()?,
            pending: BytesMut::new(),
            length: 0,
            unwritten: 0,
        })
    }

    /// Takes a piece of a body.
    pub(crate) fn write(&self, upload: &mut Upload, bytes: &[u8]) -> Result<(), Refused> {
        let reservation = upload.reservation.as_mut().ok_or(Refused::Thread)?;
        if !reservation.grow(bytes.len() as u64) {
            return Err(Refused::Quota);
        }
        if upload.pending.capacity() == 0 {
            upload.pending.reserve(SPOOL_PIECE_BYTES);
        }
        upload.pending.extend_from_slice(bytes);
        if upload.pending.len() >= SPOOL_PIECE_BYTES { self.flush(upload) } else { Ok(()) }
    }

    /// Hands what was collected to the thread.
    pub(crate) fn flush(&self, upload: &mut Upload) -> Result<(), Refused> {
        let bytes = std::mem::take(&mut upload.pending).freeze();
        let length = bytes.len();
        if length == 0 {
            return Ok(());
        }
        self.unwritten.fetch_add(length, Ordering::Relaxed);
        let target = Arc::clone(&upload.target);
        if !self.send(Task::Write { target, offset: upload.length, bytes }) {
            self.unwritten.fetch_sub(length, Ordering::Relaxed);
            return Err(Refused::Thread);
        }
        upload.length += length as u64;
        upload.unwritten += length;
        Ok(())
    }

    /// Reads a slice of a file, so that it is in the page cache; answered with `Output::Warmed`.
    pub(crate) fn warm(&self, file: Arc<File>, offset: u64, count: usize, exchange: Arc<Exchange>) {
        let _ = self.send(Task::Warm { file, offset, count, exchange });
    }

    /// Closes a file on the thread.
    pub(crate) fn release(&self, file: impl Into<Arc<File>>) {
        let _ = self.send(Task::Close(file.into()));
    }

    fn send(&self, task: Task) -> bool {
        self.tasks.as_ref().is_some_and(|tasks| tasks.send(task).is_ok())
    }

    /// Bytes under way over all uploads.
    pub(crate) fn unwritten(&self) -> usize {
        self.unwritten.load(Ordering::Relaxed)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // It ends with the last task; a panic there was printed where it happened.
            let _ = thread.join();
        }
    }
}

fn work(directory: &Path, queue: &Receiver<Task>, unwritten: &AtomicUsize) {
    while let Ok(task) = queue.recv() {
        match task {
            Task::Write { target, offset, bytes } => {
                let result = write_piece(directory, &target, offset, &bytes);
                unwritten.fetch_sub(bytes.len(), Ordering::Relaxed);
                target.exchange.push(Output::Spooled(result.map(|()| bytes.len() as u64)));
            }
            Task::Warm { file, offset, count, exchange } => {
                read_through(&file, offset, count);
                exchange.push(Output::Warmed);
            }
            Task::Forget(target) => drop(lock(&target.file).take()),
            Task::Close(file) => drop(file),
        }
    }
}

fn write_piece(directory: &Path, target: &Target, offset: u64, bytes: &[u8]) -> io::Result<()> {
    if target.exchange.is_gone() {
        return Ok(());
    }
    let mut file = lock(&target.file);
    if file.is_none() {
        *file = Some(open_unnamed(directory)?);
    }
    match file.as_ref() {
        // Positioned writes leave the file at its start for whoever reads it.
        Some(file) => file.write_all_at(bytes, offset),
        None => Ok(()),
    }
}

/// What cannot be read is found again by whoever sends it.
fn read_through(file: &File, offset: u64, count: usize) {
    let mut scratch = vec![0; SPOOL_PIECE_BYTES];
    let mut done = 0;
    while done < count {
        let wanted = scratch.len().min(count - done);
        match file.read_at(&mut scratch[..wanted], offset + done as u64) {
            Ok(0) | Err(_) => return,
            Ok(taken) => done += taken,
        }
    }
}

/// Opens a file that has no name in `directory`: it is gone with its last descriptor, whatever ends
/// the process.
///
/// # Errors
/// The directory is missing, not writable, or its file system has no `O_TMPFILE`.
pub fn open_unnamed(directory: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC)
        .open(directory)
}
