//! The only place that reads a clock, and the `Date` field made from it.

use std::cell::RefCell;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The monotonic clock. The reactor reads it once a pass and hands the value on.
#[expect(clippy::disallowed_methods, reason = "the owner of the clock")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Seconds and nanoseconds since 1970-01-01 UTC; zero before it.
#[expect(clippy::disallowed_methods, reason = "the owner of the clock")]
#[must_use]
pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Bytes of an IMF-fixdate. **Source**: RFC 9110 §5.6.7.
pub const HTTP_DATE_BYTES: usize = 29;

thread_local! {
    static CACHED: RefCell<(u64, [u8; HTTP_DATE_BYTES])> =
        const { RefCell::new((u64::MAX, [b' '; HTTP_DATE_BYTES])) };
}

/// Appends the current time as IMF-fixdate, rendered at most once a second and thread.
pub fn push_http_date(out: &mut Vec<u8>) {
    let seconds = unix_time().as_secs();
    CACHED.with_borrow_mut(|(cached, text)| {
        if *cached != seconds {
            *text = http_date(seconds);
            *cached = seconds;
        }
        out.extend_from_slice(text);
    });
}

/// Renders seconds since 1970 as `Sun, 06 Nov 1994 08:49:37 GMT`.
#[must_use]
pub fn http_date(unix_seconds: u64) -> [u8; HTTP_DATE_BYTES] {
    const DAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
    const MONTHS: [&[u8; 3]; 12] = [
        b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
        b"Dec",
    ];
    let civil = civil_from_unix(unix_seconds);
    let mut text = *b"Thu, 01 Jan 1970 00:00:00 GMT";
    text[0..3].copy_from_slice(DAYS[(unix_seconds / 86_400 % 7) as usize]);
    two_digits(&mut text[5..7], civil.day);
    text[8..11].copy_from_slice(MONTHS[civil.month as usize - 1]);
    two_digits(&mut text[12..14], civil.year / 100);
    two_digits(&mut text[14..16], civil.year % 100);
    two_digits(&mut text[17..19], civil.hour);
    two_digits(&mut text[20..22], civil.minute);
    two_digits(&mut text[23..25], civil.second);
    text
}

/// A moment of the civil calendar in UTC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Civil {
    /// Four digits, 1970 to 9999.
    pub year: u32,
    /// 1 to 12.
    pub month: u32,
    /// 1 to 31.
    pub day: u32,
    /// 0 to 23.
    pub hour: u32,
    /// 0 to 59.
    pub minute: u32,
    /// 0 to 59; POSIX time has no leap second.
    pub second: u32,
}

/// Turns seconds since 1970 into a calendar date. **Source**: the shift of the year's start to
/// March, so that the leap day is the last of its year (Howard Hinnant, `civil_from_days`).
#[must_use]
pub fn civil_from_unix(unix_seconds: u64) -> Civil {
    // Clamped to 9999-12-31T23:59:59Z: the field has four digits.
    let unix_seconds = unix_seconds.min(253_402_300_799);
    let second_of_day = (unix_seconds % 86_400) as u32;
    let days = unix_seconds / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 } as u32;
    Civil {
        year: (year_of_era + era * 400) as u32 + u32::from(month <= 2),
        month,
        day: (day_of_year - (153 * shifted_month + 2) / 5 + 1) as u32,
        hour: second_of_day / 3_600,
        minute: second_of_day / 60 % 60,
        second: second_of_day % 60,
    }
}

fn two_digits(out: &mut [u8], value: u32) {
    out[0] = b'0' + (value / 10 % 10) as u8;
    out[1] = b'0' + (value % 10) as u8;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_the_specification_and_of_the_calendars_corners() {
        for (seconds, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(std::str::from_utf8(&http_date(seconds)), Ok(text));
        }
    }
}
