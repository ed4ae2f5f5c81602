//! Pieces of a line: values that a peer chose, times and durations.

use std::fmt::Write as _;
use std::time::Duration;

use crate::clock;

/// Bytes of one value that a peer chose; what is beyond is cut. **Why**: the queue counts lines, and
/// a line must have a bound too.
pub(super) const VALUE_BYTES_MAX: usize = 2048;

/// The same where the line is too long with that. **Why**: with the last, combined and json are below
/// PIPE_BUF even where every byte is escaped.
pub(super) const SHORTER_VALUE_BYTES_MAX: [usize; 2] = [512, 96];

/// Whether a value stands between quotes in its line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Quoting {
    /// A space belongs to the value.
    Quoted,
    /// A space would end the field and is escaped.
    Bare,
}

/// Appends a peer's bytes so that they can end neither their field nor the line: quotes and
/// backslashes as `\x22` and `\x5c`, everything outside printable ASCII as `\xhh`.
pub(super) fn push_escaped(line: &mut String, bytes: &[u8], quoting: Quoting, bytes_max: usize) {
    for &byte in &bytes[..bytes.len().min(bytes_max)] {
        match byte {
            b' ' if quoting == Quoting::Bare => line.push_str("\\x20"),
            b'"' | b'\\' | 0..0x20 | 0x7f.. => {
                // Writing to a String cannot fail, here and below.
                let _ = write!(line, "\\x{byte:02x}");
            }
            0x20..0x7f => line.push(char::from(byte)),
        }
    }
    if bytes.len() > bytes_max {
        line.push_str("...");
    }
}

/// A peer's bytes as text, for JSON, which escapes by itself: only what is not UTF-8 needs a form.
pub(super) fn shown(bytes: &[u8], bytes_max: usize) -> String {
    let mut text = String::new();
    for chunk in bytes[..bytes.len().min(bytes_max)].utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// `30/Nov/2026:12:00:00 +0000`.
pub(super) fn push_apache_time(line: &mut String, now: Duration) {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let civil = clock::civil_from_unix(now.as_secs());
    let _ = write!(
        line,
        "{:02}/{}/{:04}:{:02}:{:02}:{:02} +0000",
        civil.day,
        MONTHS[civil.month as usize - 1],
        civil.year,
        civil.hour,
        civil.minute,
        civil.second
    );
}

/// Milliseconds with three decimals, or `-`.
pub(super) fn push_milliseconds(line: &mut String, duration: Option<Duration>) {
    match duration.map(|duration| duration.as_micros()) {
        Some(microseconds) => {
            let _ = write!(line, "{}.{:03}", microseconds / 1000, microseconds % 1000);
        }
        None => line.push('-'),
    }
}
