//! Tests of the response reader: the same bytes at every split give the same responses.

use super::*;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn hello() -> Expectation {
    Expectation::Bytes(b"hello".to_vec())
}

/// Feeds the pieces as a connection would, then the end of the stream.
fn read(pieces: &[&[u8]], expectation: &Expectation) -> Result<Vec<Response>, Violation> {
    let mut reader = ResponseReader::new();
    let mut responses = Vec::new();
    for piece in pieces {
        let mut rest = *piece;
        while let Step::Complete { taken, response } = reader.feed(rest, expectation)? {
            responses.push(response);
            rest = &rest[taken..];
        }
    }
    responses.extend(reader.end(expectation));
    if !reader.is_between_responses() {
        return Err(Violation("truncated"));
    }
    Ok(responses)
}

/// Feeds the bytes whole, cut in two at every point, and one by one; all must agree.
fn read_at_every_split(bytes: &str, expectation: &Expectation) -> Result<Vec<Response>, Violation> {
    let bytes = bytes.as_bytes();
    let whole = read(&[bytes], expectation);
    for at in 0..=bytes.len() {
        let (front, back) = bytes.split_at(at);
        assert_eq!(read(&[front, back], expectation), whole, "cut at {at}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(read(&single, expectation), whole, "one byte at a time");
    whole
}

fn ok(keep_alive: bool) -> Response {
    Response { status: 200, body_matches: true, keep_alive }
}

#[test]
fn two_pipelined_responses() {
    let bytes = HELLO.repeat(2);
    assert_eq!(read_at_every_split(&bytes, &hello()), Ok(vec![ok(true), ok(true)]));
}

#[test]
fn chunks_extensions_and_trailers() {
    let bytes = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                 2;name=value\r\nhe\r\n03\r\nllo\r\n0\r\nX-Sum: 1\r\nX-End: 2\r\n\r\n";
    assert_eq!(read_at_every_split(bytes, &hello()), Ok(vec![ok(true)]));
}

#[test]
fn a_body_until_close_ends_the_connection() {
    assert_eq!(read_at_every_split("HTTP/1.1 200 OK\r\n\r\nhello", &hello()), Ok(vec![ok(false)]));
}

#[test]
fn interim_and_bodiless_responses() {
    let bytes = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
                 HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n\
                 HTTP/1.1 204 No Content\r\n\r\n\
                 HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let responses = read_at_every_split(bytes, &Expectation::Length(0)).expect("valid");
    let statuses: Vec<u16> = responses.iter().map(|response| response.status).collect();
    assert_eq!(statuses, [304, 204, 200]);
    assert!(responses.iter().all(|response| response.body_matches && response.keep_alive));
}

#[test]
fn connection_options_and_versions() {
    for (head, keep_alive) in [
        ("HTTP/1.1 200 OK\r\nConnection: close\r\n", false),
        ("HTTP/1.1 200 OK\r\nConnection: x, CLOSE\r\n", false),
        ("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n", true),
        ("HTTP/1.0 200 OK\r\n", false),
        ("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", true),
    ] {
        let bytes = format!("{head}Content-Length: 5\r\n\r\nhello");
        assert_eq!(read_at_every_split(&bytes, &hello()), Ok(vec![ok(keep_alive)]), "{head}");
    }
}

#[test]
fn every_wrong_body_is_seen() {
    for body in ["hellO", "Hello", "hell", "helloo", "", "hello hello"] {
        let length = body.len();
        let sized = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        let responses = read_at_every_split(&sized, &hello()).expect("well framed");
        assert!(!responses[0].body_matches, "{body:?}");
        let same_length = read(&[sized.as_bytes()], &Expectation::Length(5)).expect("well framed");
        assert_eq!(same_length[0].body_matches, length == 5, "{body:?}");
        let anything = read(&[sized.as_bytes()], &Expectation::Anything).expect("well framed");
        assert!(anything[0].body_matches);
    }
}

#[test]
fn a_second_response_is_compared_from_its_own_start() {
    let bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong{HELLO}");
    let responses = read_at_every_split(&bytes, &hello()).expect("well framed");
    assert_eq!(responses.iter().map(|r| r.body_matches).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn breaches_are_named_at_every_split() {
    for (bytes, words) in [
        ("ICY 200 OK\r\n\r\n", "not HTTP/1.x"),
        ("HTTP/1.1 2x0 OK\r\n\r\n", "status line"),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\n", "asked for"),
        ("HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", "field name"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "second"),
        ("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", "not a number"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", "not a number"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "just chunked"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", "both"),
        ("HTTP/1.1 204 No\r\nTransfer-Encoding: chunked\r\n\r\n", "no body"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", "hexadecimal"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab", "CRLF"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n", "64 bits"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;a\nb", "bare LF"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", "truncated"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", "truncated"),
        ("HTTP/1.1 200 OK\r\nConte", "truncated"),
    ] {
        let violation = read_at_every_split(bytes, &Expectation::Anything).expect_err(bytes);
        assert!(violation.0.contains(words), "{bytes:?} gave {violation:?}");
    }
}

#[test]
fn a_head_and_chunk_noise_are_bounded() {
    let mut head = b"HTTP/1.1 200 OK\r\nX: ".to_vec();
    head.resize(HEAD_BYTES_MAX + 1, b'a');
    assert!(read(&[&head], &Expectation::Anything).expect_err("too long").0.contains("64 KiB"));
    let fields = "A: b\r\n".repeat(HEAD_FIELDS_MAX + 1);
    let many = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
    let error = read(&[many.as_bytes()], &Expectation::Anything).expect_err("too many");
    assert!(error.0.contains("64 fields"));
    let extension = "x".repeat(5000);
    let noise = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;{extension}");
    let error = read(&[noise.as_bytes()], &Expectation::Anything).expect_err("too long");
    assert!(error.0.contains("4096"));
}

/// A small generator, so that the cases are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

#[test]
fn damaged_bytes_never_panic() {
    let seeds =
        [HELLO, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"];
    let mut random = Random(35);
    for _ in 0..20_000 {
        let mut bytes = seeds[random.next(seeds.len())].as_bytes().to_vec();
        for _ in 0..=random.next(4) {
            let at = random.next(bytes.len());
            bytes[at] = u8::try_from(random.next(256)).expect("below 256");
        }
        let cut = random.next(bytes.len());
        let (front, back) = bytes.split_at(cut);
        assert_eq!(read(&[front, back], &hello()), read(&[&bytes], &hello()));
    }
}
