//! A connection's identity: slot and generation, in every `user_data` and every ring entry.

/// Bits of the slot index: the low 32.
const SLOT_BITS: u32 = 32;
/// Bits of the generation: the 24 above. The top 8 are an `Io`'s own (the kind of operation).
const GENERATION_MASK: u32 = 0x00ff_ffff;

/// Names one use of one slot. A slot that is reused gets a new generation, so nothing late can
/// touch it: every holder's token is compared before anything is done in its name.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Token(u64);

impl Token {
    /// Joins a slot's index and its generation; only the generation's low 24 bits count.
    #[must_use]
    pub const fn new(slot_index: u32, generation: u32) -> Self {
        Self(((generation & GENERATION_MASK) as u64) << SLOT_BITS | slot_index as u64)
    }

    /// The index of the slot.
    #[must_use]
    pub const fn slot_index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    /// The slot's generation, 24 bits.
    #[must_use]
    pub const fn generation(self) -> u32 {
        (self.0 >> SLOT_BITS) as u32 & GENERATION_MASK
    }

    /// The 56 bits as they stand in a `user_data`, the top 8 clear.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Reads back what [`Token::bits`] gave; the top 8 bits are dropped.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & 0x00ff_ffff_ffff_ffff)
    }

    /// The token of the slot's next use.
    #[must_use]
    pub const fn successor(self) -> Self {
        Self::new(self.slot_index() as u32, self.generation().wrapping_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_and_generation_survive_the_trip_and_the_generation_wraps() {
        let token = Token::new(u32::MAX, GENERATION_MASK);
        assert_eq!(token.slot_index(), u32::MAX as usize);
        assert_eq!(token.generation(), GENERATION_MASK);
        assert_eq!(Token::from_bits(token.bits() | 0xab << 56), token);
        assert_eq!(token.successor(), Token::new(u32::MAX, 0));
    }
}
