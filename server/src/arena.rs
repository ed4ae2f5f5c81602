//! Small byte strings that live in shared blocks.
//!
//! A request's bytes are allocated by one thread and freed by another, which is the slow path of every
//! allocator, and refcounted bytes need a second allocation for their count. Cut from a block, both
//! happen once for dozens of them.

use bytes::{Bytes, BytesMut};

/// Bytes of a block. **Why**: what a long-lived piece can hold on to.
const BLOCK_BYTES: usize = 16 * 1024;

/// A piece above this gets an allocation of its own: it would waste the rest of a block.
const PIECE_BYTES_MAX: usize = BLOCK_BYTES / 8;

/// The block that pieces are cut from at the moment. A block is freed with the last piece of it.
#[derive(Debug, Default)]
pub struct Arena {
    block: BytesMut,
}

impl Arena {
    /// A copy of `bytes` that can grow like any other buffer (by moving out of the block).
    pub fn copy(&mut self, bytes: &[u8]) -> BytesMut {
        if bytes.len() > PIECE_BYTES_MAX {
            return BytesMut::from(bytes);
        }
        if self.block.capacity() < bytes.len() {
            self.block = BytesMut::with_capacity(BLOCK_BYTES);
        }
        self.block.extend_from_slice(bytes);
        self.block.split()
    }

    /// The bytes of a buffer that is wanted back: copied where they are few, else the buffer itself.
    pub fn bytes_of(&mut self, buffer: &mut Vec<u8>) -> Bytes {
        if buffer.len() > PIECE_BYTES_MAX {
            return Bytes::from(std::mem::take(buffer));
        }
        let bytes = self.copy(buffer).freeze();
        buffer.clear();
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_what_was_copied_whatever_happens_to_their_neighbours() {
        let mut arena = Arena::default();
        let piece = |index: usize| vec![index as u8; index * 7 % (PIECE_BYTES_MAX + 300)];
        let mut pieces: Vec<_> = (0..2_000).map(|index| arena.copy(&piece(index))).collect();
        for (index, bytes) in pieces.iter_mut().enumerate() {
            if index % 3 == 0 {
                bytes.extend_from_slice(b"grown");
                bytes.truncate(bytes.len() - 5);
            }
        }
        for (index, bytes) in pieces.iter().enumerate() {
            assert_eq!(bytes[..], piece(index)[..], "piece {index}");
        }
    }

    #[test]
    fn a_small_buffer_is_kept_and_a_large_one_is_given_away() {
        let mut arena = Arena::default();
        let mut buffer = Vec::with_capacity(PIECE_BYTES_MAX * 2);
        buffer.extend_from_slice(b"small");
        assert_eq!(arena.bytes_of(&mut buffer), "small");
        assert!(buffer.is_empty() && buffer.capacity() >= PIECE_BYTES_MAX * 2);
        buffer.resize(PIECE_BYTES_MAX + 1, b'x');
        assert_eq!(arena.bytes_of(&mut buffer).len(), PIECE_BYTES_MAX + 1);
        assert_eq!(buffer.capacity(), 0);
    }
}
