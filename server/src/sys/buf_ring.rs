//! The ring of buffers that the kernel picks from when bytes arrive.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::limits::RECV_BUFFER_BYTES;
use crate::reactor::io::Chunk;

/// A private anonymous mapping, not inherited by a forked child: a write of the parent after a fork
/// would move its page away from the one that the kernel has pinned.
#[derive(Debug)]
struct Mapping {
    address: NonNull<u8>,
    /// Zero: leaked.
    length: usize,
}

impl Mapping {
    fn new(length: usize) -> io::Result<Self> {
        // SAFETY: I8: a new mapping at an address of the kernel's choice; nothing else is there.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { address, length };
        // SAFETY: I8: exactly the mapping made above.
        unsafe { rustix::mm::madvise(address.as_ptr().cast(), length, Advice::LinuxDontFork) }?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.length == 0 {
            return;
        }
        // SAFETY: I3, I8: exactly the mapping made in `new`, and the kernel has let go of it.
        let _ = unsafe { rustix::mm::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

/// Buffers of [`RECV_BUFFER_BYTES`] in a provided-buffer ring. Between a completion and
/// [`BufferRing::recycle`] a buffer is ours, otherwise the kernel's.
#[derive(Debug)]
pub(crate) struct BufferRing {
    entries: Mapping,
    memory: Mapping,
    /// A power of two.
    count: u16,
    /// Buffers ever given to the kernel, modulo 2^16: the ring's tail.
    tail: u16,
    /// Which buffers are ours at the moment.
    ours: Box<[bool]>,
    /// The same as a list, in the order in which they came.
    taken: Vec<u16>,
}

/// The only buffer group.
pub(crate) const GROUP: u16 = 0;

impl BufferRing {
    /// Maps the memory; nothing is registered yet, all buffers are on the ring.
    ///
    /// # Errors
    /// Out of memory.
    pub(crate) fn new(count: u16) -> io::Result<Self> {
        assert!(count.is_power_of_two(), "the kernel masks the index: {count} buffers");
        let slots = usize::from(count);
        let mut ring = Self {
            entries: Mapping::new(slots * size_of::<BufRingEntry>())?,
            memory: Mapping::new(slots * RECV_BUFFER_BYTES)?,
            count,
            tail: 0,
            ours: vec![false; slots].into_boxed_slice(),
            taken: Vec::with_capacity(slots),
        };
        for buffer in 0..count {
            ring.give(buffer);
        }
        ring.publish();
        Ok(ring)
    }

    /// Where the ring's entries are, for its registration. **Unit**: address.
    pub(crate) fn address(&self) -> u64 {
        self.entries.address.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// A completion says that `buffer` holds bytes. False: it was not the kernel's to give.
    #[inline]
    pub(crate) fn take(&mut self, buffer: u16) -> bool {
        match self.ours.get_mut(usize::from(buffer)) {
            Some(ours) if !*ours => {
                *ours = true;
                self.taken.push(buffer);
                true
            }
            Some(_) | None => false,
        }
    }

    /// The bytes of a taken buffer.
    ///
    /// **Panics** if the chunk is not of a buffer that is ours: it was kept beyond its pass.
    #[inline]
    pub(crate) fn bytes(&self, chunk: Chunk) -> &[u8] {
        let index = chunk.buffer as usize;
        let end = chunk.offset as usize + chunk.length as usize;
        assert!(
            self.ours.get(index).is_some_and(|ours| *ours) && end <= RECV_BUFFER_BYTES,
            "bug: {chunk:?} is not of this pass"
        );
        let start = index * RECV_BUFFER_BYTES + chunk.offset as usize;
        // SAFETY: I4: index and end were checked, so this stays inside the mapping.
        let first = unsafe { self.memory.address.add(start) };
        // SAFETY: I4, I8: inside the mapping, initialised (anonymous pages are zero), and the
        // kernel does not write to a buffer that is ours.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), chunk.length as usize) }
    }

    /// Gives all taken buffers back with one store of the tail.
    #[inline]
    pub(crate) fn recycle(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let mut taken = std::mem::take(&mut self.taken);
        for buffer in taken.drain(..) {
            self.ours[usize::from(buffer)] = false;
            self.give(buffer);
        }
        self.taken = taken;
        self.publish();
    }

    /// The kernel may still write: neither mapping is ever unmapped.
    pub(crate) fn leak(&mut self) {
        self.entries.length = 0;
        self.memory.length = 0;
    }

    /// Writes the next entry; the kernel sees it at the next `publish`.
    fn give(&mut self, buffer: u16) {
        let slot = usize::from(self.tail & (self.count - 1));
        let offset = usize::from(buffer) * RECV_BUFFER_BYTES;
        // SAFETY: I3: a buffer index is below the count, so this stays inside the mapping.
        let memory = unsafe { self.memory.address.add(offset) };
        // SAFETY: I3: the slot is masked by the count, so this stays inside the mapping.
        let entry = unsafe { self.entries.address.cast::<BufRingEntry>().add(slot) };
        // SAFETY: I3: mapped, aligned by the page, not read by the kernel before its tail moves.
        let entry = unsafe { &mut *entry.as_ptr() };
        entry.set_addr(memory.as_ptr().expose_provenance() as u64);
        entry.set_len(RECV_BUFFER_BYTES as u32);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        // SAFETY: I3: the tail lies in the first entry, which is mapped.
        let tail = unsafe { BufRingEntry::tail(self.entries.address.as_ptr().cast()) };
        // SAFETY: I3: mapped and aligned; the kernel reads it, only this thread writes it.
        let tail = unsafe { &*tail.cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(buffer: u32, offset: u32, length: u32) -> Chunk {
        Chunk { buffer, offset, length }
    }

    #[test]
    fn a_buffer_is_taken_once_and_only_if_there_is_one() {
        let mut ring = BufferRing::new(4).expect("memory");
        assert!(ring.take(3));
        assert!(!ring.take(3), "the kernel gave a buffer twice");
        assert!(!ring.take(4), "there are four");
        assert_eq!(ring.bytes(chunk(3, 0, 5)), [0; 5]);
        ring.recycle();
        assert_eq!(ring.tail, 5);
        assert!(ring.take(3));
    }

    #[test]
    #[should_panic(expected = "is not of this pass")]
    fn a_chunk_of_an_earlier_pass_is_refused() {
        let mut ring = BufferRing::new(2).expect("memory");
        assert!(ring.take(0));
        ring.recycle();
        ring.bytes(chunk(0, 0, 1));
    }

    #[test]
    #[should_panic(expected = "is not of this pass")]
    fn a_chunk_beyond_its_buffer_is_refused() {
        let mut ring = BufferRing::new(2).expect("memory");
        assert!(ring.take(0));
        ring.bytes(chunk(0, 1, RECV_BUFFER_BYTES as u32));
    }
}
