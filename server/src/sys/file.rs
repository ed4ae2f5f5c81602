//! Asks about a file without waiting for its disk.

use std::fs::File;
use std::io::IoSliceMut;

use rustix::io::{ReadWriteFlags, preadv2};

/// Whether the first and the last byte of a slice can be read without waiting, so that a `sendfile` of
/// it most likely can. False also where the file system cannot tell (NFS, FUSE).
pub(crate) fn is_cached(file: &File, offset: u64, count: usize) -> bool {
    let can_read = |at: u64| {
        let mut byte = [0];
        let read = preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
        // At the end of the file there is nothing to wait for.
        read.is_ok()
    };
    can_read(offset) && can_read(offset + count.saturating_sub(1) as u64)
}
