//! Names for requests, so that a response, the access log and the error log can be brought together.

use crate::clock;

/// Hexadecimal digits of an id. **Why**: 128 bits, so that ids of many servers do not meet.
const DIGITS: usize = 32;

/// The name of one request: 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RequestId([u8; DIGITS]);

impl RequestId {
    /// As it stands in `X-Request-ID`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Digits are ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Makes ids that differ from each other and from those of other workers. They are names and no
/// secrets: whoever has seen one may guess others.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// Differs between workers and starts.
    high: u64,
    state: u64,
}

impl RequestIds {
    /// Seeded by what no two workers share: the process and the moment.
    pub(crate) fn new() -> Self {
        let moment = clock::unix_time();
        let process = u64::from(std::process::id());
        let high = mixed(moment.as_secs() ^ process << 32);
        Self { high, state: mixed(u64::from(moment.subsec_nanos()) << 32 ^ process ^ high) }
    }

    /// The next. **Source**: SplitMix64, which visits every 64-bit value once.
    pub(crate) fn make(&mut self) -> RequestId {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = u128::from(self.high) << 64 | u128::from(mixed(self.state));
        let mut digits = [0; DIGITS];
        for (index, digit) in digits.iter_mut().enumerate() {
            let nibble = (number >> (4 * (DIGITS - 1 - index)) & 0xf) as u8;
            *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        }
        RequestId(digits)
    }
}

fn mixed(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_32_hexadecimal_digits_and_none_comes_twice() {
        let mut ids = RequestIds::new();
        let made: HashSet<String> = (0..10_000).map(|_| ids.make().as_str().to_owned()).collect();
        assert_eq!(made.len(), 10_000);
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        assert!(made.iter().all(|id| id.len() == DIGITS && id.bytes().all(is_digit)));
    }
}
