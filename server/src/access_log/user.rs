//! The user name of Basic credentials, which is what apache's `%u` is.

/// The part before the colon; `None` for other schemes and for what is not base64.
pub(super) fn user_of(authorization: &[u8]) -> Option<Vec<u8>> {
    let (scheme, credentials) = authorization.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let mut decoded = decode(credentials.trim_ascii())?;
    let end = decoded.iter().position(|byte| *byte == b':')?;
    decoded.truncate(end);
    Some(decoded)
}

/// RFC 4648 §4, padding optional.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let (mut bits, mut bit_count) = (0_u32, 0);
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    for &byte in &text[..end] {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_other_schemes_are_not_guessed() {
        assert_eq!(user_of(b"Bearer abc"), None);
        assert_eq!(user_of(b"Basic !!!"), None);
        assert_eq!(user_of(b"basic YTpi"), Some(b"a".to_vec()));
        assert_eq!(user_of(b""), None);
    }
}
