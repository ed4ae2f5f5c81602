//! Whatever an application says, the head that goes out has one meaning: one line a field, one way
//! to find the body's end, and the fields that belong to the server only from it.
#![no_main]

use hoopsnake_server::http::Version;
use hoopsnake_server::http::encode::{BodyLength, HeadEncoder, ResponseContext, ResponseFraming};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [flags, status_high, status_low, text @ ..] = data else { return };
    let status = u16::from_be_bytes([*status_high, *status_low]) % 1100;
    let is = |bit: u8| flags & (1 << bit) != 0;
    let context = ResponseContext {
        version: if is(0) { Version::Http10 } else { Version::Http11 },
        is_head: is(1),
        keep_alive: is(2),
        server: is(3).then_some(b"hoopsnake"),
        request_id: None,
    };
    let body = if is(4) { BodyLength::Known(u64::from(*flags)) } else { BodyLength::Unknown };
    let mut out = Vec::new();
    // Fields are separated by a byte that none can have.
    let mut parts = text.split(|&byte| byte == 0);
    let reason = parts.next().unwrap_or_default();
    let Ok(mut encoder) = HeadEncoder::begin(&mut out, context, status, reason) else { return };
    for field in parts {
        let colon = field.iter().position(|&byte| byte == b':').unwrap_or(field.len());
        let (name, value) = field.split_at(colon);
        if encoder.field(name, value.get(1..).unwrap_or_default()).is_err() {
            return;
        }
    }
    let head = encoder.finish(body);
    check(&out, context, status, head.framing, head.keep_alive);
});

fn check(
    out: &[u8],
    context: ResponseContext<'_>,
    status: u16,
    framing: ResponseFraming,
    keep_alive: bool,
) {
    let text = out.strip_suffix(b"\r\n\r\n").expect("a head ends in an empty line");
    let text = String::from_utf8_lossy(text);
    let lines: Vec<_> = text.split("\r\n").collect();
    assert!(lines.iter().all(|line| !line.contains(['\r', '\n', '\0'])));
    assert!(lines[0].starts_with(&format!("HTTP/1.1 {status} ")));
    let fields: Vec<_> = lines[1..]
        .iter()
        .map(|line| line.split_once(": ").expect("a field has a colon"))
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .collect();
    let all = |name: &str| -> Vec<&str> {
        fields.iter().filter(|field| field.0 == name).map(|field| field.1).collect()
    };
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    assert!(lengths.len() <= 1 && !all("date").is_empty());
    match framing {
        ResponseFraming::None => {
            assert!(codings.is_empty());
            assert!(context.is_head || matches!(status, 204 | 205 | 304));
            assert!(status != 204 || lengths.is_empty());
        }
        ResponseFraming::Length(length) => {
            assert!(codings.is_empty() && lengths == [length.to_string()]);
        }
        ResponseFraming::Chunked => assert!(codings == ["chunked"] && lengths.is_empty()),
        ResponseFraming::UntilClose => {
            assert!(codings.is_empty() && lengths.is_empty() && !keep_alive);
        }
    }
    let connection: &[&str] = match (keep_alive, context.version) {
        (false, _) => &["close"],
        (true, Version::Http10) => &["keep-alive"],
        (true, Version::Http11) => &[],
    };
    assert_eq!(all("connection"), connection);
    assert!(context.keep_alive || !keep_alive);
    for name in ["keep-alive", "proxy-connection", "upgrade", "te", "trailer"] {
        assert!(all(name).is_empty(), "{name} is the server's");
    }
}
