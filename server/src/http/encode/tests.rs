//! Response heads, read back as text.

use super::*;

const CONTEXT: ResponseContext<'static> = ResponseContext {
    version: Version::Http11,
    is_head: false,
    keep_alive: true,
    server: Some(b"hoopsnake"),
    request_id: None,
};

type Fields<'test> = &'test [(&'test str, &'test str)];

fn encode(
    context: ResponseContext<'_>,
    status: u16,
    fields: Fields<'_>,
    body: BodyLength,
) -> Result<(Vec<String>, EncodedHead), BadResponse> {
    let mut out = Vec::new();
    let mut encoder = HeadEncoder::begin(&mut out, context, status, b"")?;
    for (name, value) in fields {
        encoder.field(name.as_bytes(), value.as_bytes())?;
    }
    let head = encoder.finish(body);
    Ok((lines(&out), head))
}

/// The lines of a head, its Date checked and taken out.
fn lines(out: &[u8]) -> Vec<String> {
    let text = String::from_utf8(out.to_vec()).unwrap();
    let (head, rest) = text.split_once("\r\n\r\n").expect("the head ends in an empty line");
    let mut lines: Vec<String> = head.split("\r\n").map(str::to_owned).collect();
    let date = lines.iter().position(|line| line.starts_with("Date: ")).expect("there is a date");
    assert_eq!(lines.remove(date).len(), 6 + crate::clock::HTTP_DATE_BYTES);
    if !rest.is_empty() {
        lines.push(rest.to_owned());
    }
    lines
}

const LENGTH_5: Fields<'_> = &[("Content-Length", "5")];

#[test]
fn framing_by_status_method_version_and_length() {
    use ResponseFraming::{Chunked, Length, None as NoBody, UntilClose};
    let (known, unknown) = (BodyLength::Known(7), BodyLength::Unknown);
    let chunked = "Transfer-Encoding: chunked";
    for (version, method, status, fields, body, framing, written) in [
        (11, "GET", 200, &[][..], known, Length(7), "Content-Length: 7"),
        (11, "GET", 200, LENGTH_5, known, Length(5), "Content-Length: 5"),
        (11, "GET", 200, LENGTH_5, unknown, Length(5), "Content-Length: 5"),
        (11, "GET", 200, &[], BodyLength::Known(0), Length(0), "Content-Length: 0"),
        (11, "GET", 200, &[], unknown, Chunked, chunked),
        (10, "GET", 200, &[], known, Length(7), "Content-Length: 7"),
        (10, "GET", 200, &[], unknown, UntilClose, ""),
        (11, "HEAD", 200, LENGTH_5, BodyLength::Known(0), NoBody, "Content-Length: 5"),
        (11, "HEAD", 200, &[], known, NoBody, "Content-Length: 7"),
        (11, "HEAD", 200, &[], BodyLength::Known(0), NoBody, ""),
        (11, "HEAD", 200, &[], unknown, NoBody, ""),
        (10, "HEAD", 200, &[], unknown, NoBody, ""),
        (11, "HEAD", 204, LENGTH_5, known, NoBody, ""),
        (11, "GET", 204, LENGTH_5, known, NoBody, ""),
        (11, "GET", 204, &[], unknown, NoBody, ""),
        (11, "GET", 205, LENGTH_5, known, NoBody, "Content-Length: 0"),
        (11, "GET", 205, &[], unknown, NoBody, "Content-Length: 0"),
        (11, "GET", 304, LENGTH_5, known, NoBody, "Content-Length: 5"),
        (11, "GET", 304, &[], known, NoBody, ""),
        (11, "GET", 304, &[], unknown, NoBody, ""),
        (11, "GET", 999, &[], known, Length(7), "Content-Length: 7"),
    ] {
        let version = if version == 11 { Version::Http11 } else { Version::Http10 };
        let context = ResponseContext { version, is_head: method == "HEAD", ..CONTEXT };
        let (lines, head) = encode(context, status, fields, body).unwrap();
        let case = format!("{version:?} {method} {status} {fields:?} {body:?}: {lines:?}");
        assert_eq!(head.framing, framing, "{case}");
        let framing_lines: Vec<_> = lines
            .iter()
            .filter(|line| line.starts_with("Content-Length") || line.starts_with("Transfer-Enc"))
            .map(String::as_str)
            .collect();
        assert_eq!(framing_lines.concat(), written, "{case}");
        assert_eq!(head.keep_alive, framing != UntilClose, "{case}");
    }
}

#[test]
fn persistence_is_told_to_the_client() {
    let close = &[("Connection", "Upgrade, Close")][..];
    let length = BodyLength::Known(1);
    for (version, keep_alive, fields, body, line, persists) in [
        (Version::Http11, true, &[][..], length, None, true),
        (Version::Http11, false, &[], length, Some("Connection: close"), false),
        (Version::Http11, true, close, length, Some("Connection: close"), false),
        (Version::Http11, true, &[("Connection", "keep-alive")], length, None, true),
        (Version::Http10, true, &[], length, Some("Connection: keep-alive"), true),
        (Version::Http10, false, &[], length, Some("Connection: close"), false),
        (Version::Http10, true, close, length, Some("Connection: close"), false),
        (Version::Http10, true, &[], BodyLength::Unknown, Some("Connection: close"), false),
    ] {
        let context = ResponseContext { version, keep_alive, ..CONTEXT };
        let (lines, head) = encode(context, 200, fields, body).unwrap();
        let connection: Vec<_> =
            lines.iter().filter(|line| line.starts_with("Connection")).collect();
        assert_eq!(connection, line.iter().collect::<Vec<_>>(), "{version:?} {keep_alive}");
        assert_eq!(head.keep_alive, persists);
    }
}

#[test]
fn what_belongs_to_the_server_is_taken_from_the_application() {
    let fields = [
        ("Transfer-Encoding", "chunked"),
        ("KEEP-ALIVE", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("Upgrade", "websocket"),
        ("te", "trailers"),
        ("Trailer", "X"),
        ("Connection", "x-hop"),
        ("X-Kept", "caf\u{e9}\t"),
        ("Set-Cookie", "a"),
        ("Set-Cookie", "b"),
    ];
    let (lines, _) = encode(CONTEXT, 200, &fields, BodyLength::Known(1)).unwrap();
    let expected = [
        "HTTP/1.1 200 OK",
        "X-Kept: caf\u{e9}\t",
        "Set-Cookie: a",
        "Set-Cookie: b",
        "Content-Length: 1",
        "Server: hoopsnake",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn the_application_may_set_date_and_server() {
    let mut out = Vec::new();
    let mut encoder = HeadEncoder::begin(&mut out, CONTEXT, 200, b"Fine").unwrap();
    encoder.field(b"date", b"today").unwrap();
    encoder.field(b"SERVER", b"mine").unwrap();
    encoder.finish(BodyLength::Known(0));
    let expected = "HTTP/1.1 200 Fine\r\ndate: today\r\nSERVER: mine\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
    let anonymous = ResponseContext { server: None, ..CONTEXT };
    let (lines, _) = encode(anonymous, 200, &[], BodyLength::Known(0)).unwrap();
    assert_eq!(lines, ["HTTP/1.1 200 OK", "Content-Length: 0"]);
}

/// PRODUCTION section 3, item 26.
#[test]
fn bad_responses_name_what_is_bad() {
    for (status, name, value, named) in [
        (1000, "a", "b", "the status 1000"),
        (0, "a", "b", "the status 0"),
        (101, "a", "b", "the status 101"),
        (199, "a", "b", "the status 199"),
        (200, "", "b", "\"\" is no token"),
        (200, "a b", "b", "\"a b\" is no token"),
        (200, "a:", "b", "\"a:\" is no token"),
        (200, "a\r\n", "b", "\"a\\r\\n\" is no token"),
        (200, "X-A", "b\r\nSet-Cookie: c", "\"b\\r\\nSet-Cookie: c\" of the field \"X-A\""),
        (200, "X-A", "b\n", "of the field \"X-A\""),
        (200, "X-A", "\0", "\"\\x00\" of the field \"X-A\""),
        (200, "X-A", "\x7f", "of the field \"X-A\""),
        (200, "Connection", "close\r\n", "of the field \"Connection\""),
        (200, "content-length", "5, 5", "the Content-Length \"5, 5\" is no number"),
        (200, "Content-Length", "+5", "the Content-Length \"+5\" is no number"),
        (200, "Content-Length", "", "the Content-Length \"\" is no number"),
    ] {
        let error = encode(CONTEXT, status, &[(name, value)], BodyLength::Unknown).unwrap_err();
        assert!(error.0.contains(named), "{error:?} names {named:?}");
    }
    let twice = [("Content-Length", "5"), ("Content-Length", "6")];
    let error = encode(CONTEXT, 200, &twice, BodyLength::Unknown).unwrap_err();
    assert!(error.0.contains("5 and 6"), "{error:?}");
    let equal = [("Content-Length", "5"), ("content-length", " 5 ")];
    let (lines, head) = encode(CONTEXT, 200, &equal, BodyLength::Unknown).unwrap();
    assert_eq!(head.framing, ResponseFraming::Length(5));
    assert_eq!(lines.iter().filter(|line| line.starts_with("Content-Length")).count(), 1);
    let reason = HeadEncoder::begin(&mut Vec::new(), CONTEXT, 200, b"O\r\nK").unwrap_err();
    assert!(reason.0.contains("\"O\\r\\nK\""), "{reason:?}");
    let long = "x".repeat(100) + "\n";
    let error = encode(CONTEXT, 200, &[("A", &long)], BodyLength::Unknown).unwrap_err();
    assert!(error.0.len() < 160 && error.0.contains('…'), "{error:?}");
}

#[test]
fn every_control_byte_is_refused_in_a_value() {
    for byte in 0..=u8::MAX {
        let mut out = Vec::new();
        let mut encoder = HeadEncoder::begin(&mut out, CONTEXT, 200, b"").unwrap();
        let good = byte == b'\t' || byte >= b' ' && byte != 0x7f;
        assert_eq!(encoder.field(b"A", &[b'a', byte]).is_ok(), good, "{byte:#04x}");
    }
}

#[test]
fn phrases() {
    for (status, line) in [
        (200, "HTTP/1.1 200 OK"),
        (431, "HTTP/1.1 431 Request Header Fields Too Large"),
        (299, "HTTP/1.1 299 "),
    ] {
        let (lines, _) = encode(CONTEXT, status, &[], BodyLength::Known(0)).unwrap();
        assert_eq!(lines[0], line);
    }
    assert_eq!(reason_phrase(299), "Unknown");
}

#[test]
fn chunk_lines() {
    for length in [1, 9, 15, 16, 255, 256, 4096, 65_536, 0xdead_beef, usize::MAX] {
        let mut out = Vec::new();
        push_chunk_line(&mut out, length);
        assert_eq!(String::from_utf8(out).unwrap(), format!("{length:x}\r\n"));
    }
}

#[test]
#[should_panic(expected = "an empty chunk would end the body")]
fn an_empty_chunk_is_a_bug() {
    push_chunk_line(&mut Vec::new(), 0);
}

#[test]
fn decimals() {
    for number in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX] {
        let mut out = Vec::new();
        push_decimal(&mut out, number);
        assert_eq!(String::from_utf8(out).unwrap(), number.to_string());
    }
}

#[test]
fn responses_of_our_own() {
    let mut out = Vec::new();
    push_own_response(&mut out, CONTEXT, 503, "all threads are busy", &[("Retry-After", "1")]);
    let expected = [
        "HTTP/1.1 503 Service Unavailable",
        "Content-Type: text/plain; charset=utf-8",
        "Retry-After: 1",
        "Content-Length: 21",
        "Server: hoopsnake",
        "all threads are busy\n",
    ];
    assert_eq!(lines(&out), expected);

    out.clear();
    let context = ResponseContext { is_head: true, keep_alive: false, ..CONTEXT };
    push_own_response(&mut out, context, 400, "no", &[("bad name", "x"), ("A", "\n")]);
    let expected = [
        "HTTP/1.1 400 Bad Request",
        "Content-Type: text/plain; charset=utf-8",
        "Content-Length: 3",
        "Server: hoopsnake",
        "Connection: close",
    ];
    assert_eq!(lines(&out), expected);
}

#[test]
fn the_request_id_is_written_unless_the_application_has_its_own() {
    let context = CONTEXT.named(Some(b"0123"));
    for (fields, count) in [(&[][..], 1), (&[(&b"X-Request-Id"[..], &b"mine"[..])][..], 0)] {
        let mut out = Vec::new();
        let mut encoder = HeadEncoder::begin(&mut out, context, 200, b"").expect("a status");
        for (name, value) in fields {
            encoder.field(name, value).expect("a field");
        }
        encoder.finish(BodyLength::Known(0));
        let text = String::from_utf8(out).expect("ASCII");
        assert_eq!(text.matches("X-Request-ID: 0123\r\n").count(), count, "{text}");
        assert_eq!(text.to_ascii_lowercase().matches("x-request-id").count(), 1, "{text}");
    }
}
