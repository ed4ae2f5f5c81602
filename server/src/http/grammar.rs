//! Byte classes, lines and small grammars of RFC 9110 and 9112 that several files share.

use super::violation::Violation;

/// **Source**: RFC 9110 §5.6.2, `tchar`.
pub(crate) const fn is_token_byte(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9'
        | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+'
        | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

/// **Source**: RFC 9110 §5.6.2, `token`: at least one byte.
pub(super) fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().copied().all(is_token_byte)
}

/// HTAB, SP, visible ASCII or obs-text: what a field value, a reason phrase and a chunk extension
/// consist of. **Source**: RFC 9110 §5.5.
pub(crate) fn is_field_text(text: &[u8]) -> bool {
    // No early end: the loop without one is vectorised, and nearly every text passes.
    !text.iter().fold(false, |bad, &byte| bad | ((byte < b' ') & (byte != b'\t')) | (byte == 0x7f))
}

/// One line of a field section, without its CR LF. **Source**: RFC 9112 §5.
pub(super) fn is_field_line(line: &[u8]) -> bool {
    split_once(line, b':').is_some_and(|(name, value)| is_token(name) && is_field_text(value))
}

/// Finds the line at the front of `input`, whose first `scanned` bytes hold no LF: the line without
/// CR LF, and where the next one begins. `None`: it is unfinished.
///
/// # Errors
/// `too_long` beyond `bytes_max` (CR LF not counted), as soon as no other answer is possible.
pub(super) fn find_line(
    input: &[u8],
    scanned: usize,
    bytes_max: usize,
    too_long: fn(u64) -> Violation,
) -> Result<Option<(&[u8], usize)>, Violation> {
    let Some(line_feed) = find_line_feed(input, scanned) else {
        // One byte more than the limit may be the CR.
        let fits = input.len() <= bytes_max.saturating_add(1);
        return if fits { Ok(None) } else { Err(Violation::limit(too_long, bytes_max)) };
    };
    let up_to_line_feed = input.get(..line_feed).unwrap_or_default();
    let line = up_to_line_feed.strip_suffix(b"\r");
    if line.unwrap_or(up_to_line_feed).len() > bytes_max {
        return Err(Violation::limit(too_long, bytes_max));
    }
    Ok(Some((line.ok_or(Violation::BareLineFeed)?, line_feed.saturating_add(1))))
}

/// The first LF at or after `scanned`.
pub(super) fn find_line_feed(input: &[u8], scanned: usize) -> Option<usize> {
    let offset = memchr::memchr(b'\n', input.get(scanned..)?)?;
    Some(scanned.saturating_add(offset))
}

/// What is before and after the first `separator`.
pub(crate) fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let (before, rest) = text.split_at_checked(memchr::memchr(separator, text)?)?;
    Some((before, rest.get(1..).unwrap_or_default()))
}

/// Removes optional white space at both ends. **Source**: RFC 9110 §5.6.3.
pub(crate) fn trim_optional_space(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = text {
        text = rest;
    }
    text
}

/// The elements of a comma-separated list, empty ones included. **Source**: RFC 9110 §5.6.1.
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim_optional_space)
}

/// `1*DIGIT` that fits 64 bits. No sign, no space, no other base.
pub(crate) fn parse_decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| byte.wrapping_sub(b'0'))?;
        number.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// `uri-host [ ":" port ]`, possibly empty. No userinfo.
/// **Source**: RFC 9110 §7.2, RFC 3986 §3.2.2.
pub(crate) fn is_host_and_port(text: &[u8]) -> bool {
    let port = if let [b'[', literal @ ..] = text {
        let Some((address, rest)) = split_once(literal, b']') else { return false };
        let is_address = !address.is_empty()
            && address.iter().all(|&byte| is_registered_name_byte(byte) || byte == b':');
        match rest {
            [] if is_address => return true,
            [b':', port @ ..] if is_address => port,
            _ => return false,
        }
    } else {
        let (name, port) = split_once(text, b':').unwrap_or((text, b""));
        if !name.iter().copied().all(is_registered_name_byte) {
            return false;
        }
        port
    };
    port.iter().all(u8::is_ascii_digit)
}

/// `unreserved / pct-encoded / sub-delims` of RFC 3986 §2.
const fn is_registered_name_byte(byte: u8) -> bool {
    matches!(byte, b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'%'
        | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        for good in
            ["", "a", "a.example", "a_b", "1.2.3.4:80", "a:", "[::1]", "[::1]:8000", "[v1.a]"]
        {
            assert!(is_host_and_port(good.as_bytes()), "{good:?} is a host");
        }
        for bad in [
            "a b", "a/b", "u@h", "a:b", "a:80:90", "::1", "[::1", "[]", "[::1]x", "a?b", "a#",
            "\"", "é",
        ] {
            assert!(!is_host_and_port(bad.as_bytes()), "{bad:?} is no host");
        }
    }

    #[test]
    fn decimals_have_no_sign_no_space_and_no_overflow() {
        assert_eq!(parse_decimal(b"0"), Some(0));
        assert_eq!(parse_decimal(b"005"), Some(5));
        assert_eq!(parse_decimal(b"18446744073709551615"), Some(u64::MAX));
        for bad in ["", "+5", "-5", " 5", "5 ", "0x5", "5,5", "18446744073709551616", "1_0", "٥"] {
            assert_eq!(parse_decimal(bad.as_bytes()), None, "{bad:?}");
        }
    }

    #[test]
    fn field_text_refuses_exactly_the_control_bytes() {
        for byte in 0..=u8::MAX {
            let allowed = byte == b'\t' || (b' '..=b'~').contains(&byte) || byte >= 0x80;
            assert_eq!(is_field_text(&[b'a', byte, b'b']), allowed, "{byte:#04x}");
            assert_eq!(is_field_text(&[[b'a'; 40].as_slice(), &[byte]].concat()), allowed);
        }
    }

    #[test]
    fn field_lines() {
        for good in ["a: b", "a:", "a:b:c", "X-Y_Z: \t"] {
            assert!(is_field_line(good.as_bytes()), "{good:?}");
        }
        for bad in ["", ":", "a", "a : b", " a: b", "a\t:b", "a: \x0b", "é: b"] {
            assert!(!is_field_line(bad.as_bytes()), "{bad:?}");
        }
    }
}
