//! Names for requests, so that a response, the access log and the error log can be brought together.

use bytes::Bytes;

use crate::clock;
use crate::http::RequestHead;
use crate::limits::REQUEST_ID_BYTES_MAX;

/// Hexadecimal digits of an id that we make. **Why**: 128 bits, so that ids of many servers do not
/// meet.
const DIGITS: usize = 32;

/// The name of one request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestId(Text);

#[derive(Clone, Debug, Eq, PartialEq)]
enum Text {
    /// 32 lower-case hexadecimal digits.
    Made([u8; DIGITS]),
    /// A trusted proxy's, a share of the head that it came in.
    Kept(Bytes),
}

impl RequestId {
    /// The one in the head, if there is exactly one and it can stand unquoted in a field and in both
    /// logs: up to [`REQUEST_ID_BYTES_MAX`] visible ASCII characters, none of them a quote, a
    /// backslash or a comma.
    fn kept(head: &RequestHead) -> Option<Self> {
        let mut fields =
            head.fields().filter(|field| field.name.eq_ignore_ascii_case(b"x-request-id"));
        let (first, second) = (fields.next()?, fields.next());
        let is_plain = (1..=REQUEST_ID_BYTES_MAX).contains(&first.value.len())
            && first
                .value
                .iter()
                .all(|&byte| byte.is_ascii_graphic() && !b"\"'\\,".contains(&byte));
        (second.is_none() && is_plain).then(|| Self(Text::Kept(head.share(first.value))))
    }

    /// As it stands in `X-Request-ID`.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Text::Made(digits) => digits,
            Text::Kept(bytes) => bytes,
        }
    }

    /// The same as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Both are ASCII.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
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

    /// The name of a request: the one that a trusted proxy gave it, or a new one.
    pub(crate) fn of(&mut self, head: &RequestHead, is_trusted_proxy: bool) -> RequestId {
        let kept = if is_trusted_proxy { RequestId::kept(head) } else { None };
        kept.unwrap_or_else(|| self.make())
    }

    /// The next. **Source**: SplitMix64, which visits every 64-bit value once.
    fn make(&mut self) -> RequestId {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = u128::from(self.high) << 64 | u128::from(mixed(self.state));
        let mut digits = [0; DIGITS];
        for (index, digit) in digits.iter_mut().enumerate() {
            let nibble = (number >> (4 * (DIGITS - 1 - index)) & 0xf) as u8;
            *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        }
        RequestId(Text::Made(digits))
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
