//! Large request bodies on disk: one writer thread per worker, so that the reactor never waits for a
//! file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use bytes::Bytes;

use crate::exchange::{Exchange, Output};
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// Bytes that all bodies of a worker may have on disk.
#[derive(Debug)]
pub(crate) struct Quota {
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

/// One body on its way to disk, shared by the reactor and the writer.
#[derive(Debug)]
struct Target {
    /// Made by the writer at its first piece.
    file: Mutex<Option<File>>,
    exchange: Arc<Exchange>,
}

#[derive(Debug)]
struct Piece {
    target: Arc<Target>,
    offset: u64,
    bytes: Bytes,
}

/// A body that is being spooled, as the reactor holds it.
#[derive(Debug)]
pub(crate) struct Upload {
    target: Arc<Target>,
    reservation: Reservation,
    /// Bytes handed to the writer.
    length: u64,
    /// Bytes the writer has not answered for. **Unit**: bytes.
    unwritten: usize,
}

/// Why a piece was not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refused {
    /// `--spool-bytes` is used up.
    Quota,
    /// The writer's thread is gone.
    Writer,
}

impl Upload {
    /// Bytes that the writer has not answered for.
    pub(crate) fn unwritten(&self) -> usize {
        self.unwritten
    }

    /// The writer answered for `bytes`.
    pub(crate) fn written(&mut self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.unwritten = self.unwritten.saturating_sub(bytes);
    }

    /// The whole body, once nothing is unwritten. `None`: nothing was ever written.
    pub(crate) fn into_file(self) -> Option<(File, u64, Reservation)> {
        let file = lock(&self.target.file).take()?;
        Some((file, self.length, self.reservation))
    }
}

/// The reactor's end of the spool.
#[derive(Debug)]
pub(crate) struct Spool {
    quota: Arc<Quota>,
    pieces: Option<Sender<Piece>>,
    writer: Option<JoinHandle<()>>,
    /// Over all uploads, given up ones included, until the writer is done with them. **Unit**: bytes.
    unwritten: Arc<AtomicUsize>,
}

impl Spool {
    /// Starts the writer.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(directory: PathBuf, bytes_max: u64) -> io::Result<Self> {
        let (pieces, queue) = channel();
        let unwritten = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&unwritten);
        let writer =
            std::thread::Builder::new().name("hoopsnake-spool".to_owned()).spawn(move || {
                crate::sys::process::block_all_signals();
                write_pieces(&directory, &queue, &counter);
            })?;
        let quota = Arc::new(Quota { bytes_max, bytes_used: AtomicU64::new(0) });
        Ok(Self { quota, pieces: Some(pieces), writer: Some(writer), unwritten })
    }

    /// Begins a body.
    pub(crate) fn begin(&self, exchange: Arc<Exchange>) -> Upload {
        Upload {
            target: Arc::new(Target { file: Mutex::new(None), exchange }),
            reservation: Reservation { quota: Arc::clone(&self.quota), bytes: 0 },
            length: 0,
            unwritten: 0,
        }
    }

    /// Hands a piece to the writer, who answers with `Output::Spooled`.
    pub(crate) fn write(&self, upload: &mut Upload, bytes: Bytes) -> Result<(), Refused> {
        let length = bytes.len();
        if !upload.reservation.grow(length as u64) {
            return Err(Refused::Quota);
        }
        let target = Arc::clone(&upload.target);
        let piece = Piece { target, offset: upload.length, bytes };
        self.unwritten.fetch_add(length, Ordering::Relaxed);
        let sent = self.pieces.as_ref().is_some_and(|pieces| pieces.send(piece).is_ok());
        if !sent {
            self.unwritten.fetch_sub(length, Ordering::Relaxed);
            return Err(Refused::Writer);
        }
        upload.length += length as u64;
        upload.unwritten += length;
        Ok(())
    }

    /// Bytes under way over all uploads.
    pub(crate) fn unwritten(&self) -> usize {
        self.unwritten.load(Ordering::Relaxed)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.pieces = None;
        if let Some(writer) = self.writer.take() {
            // It ends with the last piece; a panic there was printed where it happened.
            let _ = writer.join();
        }
    }
}

fn write_pieces(directory: &Path, queue: &Receiver<Piece>, unwritten: &AtomicUsize) {
    while let Ok(Piece { target, offset, bytes }) = queue.recv() {
        let result = write_piece(directory, &target, offset, &bytes);
        unwritten.fetch_sub(bytes.len(), Ordering::Relaxed);
        target.exchange.push(Output::Spooled(result.map(|()| bytes.len() as u64)));
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
