//! The machine: its table, splits, pipelining, and bytes nobody should send.

use std::fmt::Write;

use super::super::testing::{Event, LIMITS, Random, drive};
use super::*;

fn connection_after(text: &str) -> (Connection, BytesMut) {
    let mut connection = Connection::new(LIMITS);
    let mut input = BytesMut::from(text);
    while let Ok(Some(_)) = connection.receive(&mut input) {}
    (connection, input)
}

const NO_BODY: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const LENGTH: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
const CHUNKED: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";

/// The states, as bytes that lead to them.
fn states() -> Vec<(&'static str, Connection, BytesMut)> {
    let mut states: Vec<_> = [
        ("Head", ""),
        ("Length", LENGTH),
        ("Chunked", CHUNKED),
        ("Complete", NO_BODY),
        ("Ended", NO_BODY),
        ("Failed", "\0"),
    ]
    .into_iter()
    .map(|(name, text)| {
        let (connection, input) = connection_after(text);
        (name, connection, input)
    })
    .collect();
    states[4].1.response_complete(false);
    states
}

fn name(reading: Reading) -> &'static str {
    match reading {
        Reading::Head(_) => "Head",
        Reading::Length { .. } => "Length",
        Reading::Chunked(_) => "Chunked",
        Reading::Complete => "Complete",
        Reading::Ended => "Ended",
        Reading::Failed(_) => "Failed",
    }
}

/// What bytes mean for a state; `None` where the state has no such input.
fn bytes_for(state: &str, event: &str) -> Option<&'static str> {
    match (event, state) {
        ("body" | "rest of body", "Head" | "Complete" | "Ended" | "Failed")
        | (
            "part of a head" | "head, no body" | "head, length" | "head, chunked",
            "Length" | "Chunked",
        )
        | ("broken", "Length") => None,
        ("part of a head", _) => Some("GET / HTTP/1.1\r\nHo"),
        ("head, no body", _) => Some(NO_BODY),
        ("head, length", _) => Some(LENGTH),
        ("head, chunked", _) => Some(CHUNKED),
        ("body", "Length") => Some("he"),
        ("rest of body", "Length") => Some("hello"),
        ("body", _) => Some("5\r\nhe"),
        ("rest of body", _) => Some("5\r\nhello\r\n0\r\n\r\n"),
        _ => Some("\0"),
    }
}

fn cell(state: &str, event: &str, mut connection: Connection, mut input: BytesMut) -> String {
    if let Some(keep_alive) = match event {
        "response complete" => Some(true),
        "response complete, close" => Some(false),
        _ => None,
    } {
        let goes_on = connection.response_complete(keep_alive);
        let suffix = if goes_on { "" } else { ", false" };
        return format!("{}{suffix}", name(connection.reading));
    }
    let Some(bytes) = bytes_for(state, event) else { return "-".to_owned() };
    input.extend_from_slice(bytes.as_bytes());
    let length = input.len();
    let before = connection.reading;
    while let Ok(Some(_)) = connection.receive(&mut input) {}
    let kept = input.len() == length && connection.reading == before;
    let refuses = matches!(connection.reading, Reading::Complete | Reading::Ended);
    if kept && refuses { "kept".to_owned() } else { name(connection.reading).to_owned() }
}

#[test]
fn the_table_in_the_module_documentation_is_what_the_machine_does() {
    let source = include_str!("../connection.rs");
    let documented: Vec<&str> =
        source.lines().filter_map(|line| line.strip_prefix("//! | ")).collect();
    let events: Vec<&str> = documented[0].trim_end_matches(" |").split(" | ").skip(1).collect();
    let mut rows = Vec::new();
    for (state, _, _) in states() {
        let mut row = state.to_owned();
        for event in &events {
            let (_, connection, input) =
                states().into_iter().find(|(name, ..)| *name == state).unwrap();
            write!(row, " | {}", cell(state, event, connection, input)).unwrap();
        }
        rows.push(row + " |");
    }
    assert_eq!(rows.join("\n"), documented[1..].join("\n"));
}

#[test]
fn one_request_at_a_time() {
    let mut connection = Connection::new(LIMITS);
    let mut input = BytesMut::from(format!("{NO_BODY}{LENGTH}helloGET").as_str());
    assert!(matches!(connection.receive(&mut input), Ok(Some(Input::Head(_)))));
    let left = input.clone();
    assert!(matches!(connection.receive(&mut input), Ok(None)));
    assert_eq!(input, left, "nothing of the second request is taken");
    assert!(!connection.awaits_head() && !connection.awaits_body());
    assert!(connection.response_complete(true) && connection.awaits_head());
    assert!(matches!(connection.receive(&mut input), Ok(Some(Input::Head(_)))));
    assert!(connection.awaits_body());
    assert!(matches!(connection.receive(&mut input), Ok(Some(Input::Body(_)))));
    assert!(matches!(connection.receive(&mut input), Ok(Some(Input::BodyEnd))));
    assert!(matches!(connection.receive(&mut input), Ok(None)));
    assert_eq!(input.as_ref(), b"GET");
}

#[test]
fn an_empty_body_of_known_length_has_an_end_of_its_own() {
    let text = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    let (events, _) = drive(LIMITS, &[text.as_bytes()]);
    assert!(matches!(events.as_slice(), [Event::Head { .. }, Event::BodyEnd]));
}

#[test]
fn an_answer_before_the_body_ends_the_connection() {
    for (start, rest) in [(LENGTH, "hello"), (CHUNKED, "0\r\n\r\n")] {
        let (mut connection, mut input) = connection_after(start);
        assert!(!connection.response_complete(true));
        input.extend_from_slice(rest.as_bytes());
        assert!(matches!(connection.receive(&mut input), Ok(None)));
        assert_eq!(input.as_ref(), rest.as_bytes());
    }
}

/// A stream of valid requests and what a connection must make of it.
fn requests(random: &mut Random, count: usize) -> (Vec<u8>, Vec<Event>) {
    let mut text = Vec::new();
    let mut events = Vec::new();
    for _ in 0..count {
        let method = random.pick(&["GET", "POST", "PATCH", "X-Y"]);
        let target = random.pick(&["/", "/a?b", "//%00", "http://h/p", "/\u{e9}"]);
        let body = vec![b"ab\r\n\0"[random.below(5)]; random.below(40)];
        let mut fields = vec![("Host", "h".to_owned())];
        if random.below(2) == 0 {
            fields.push(("X-Any", random.pick(&["", "v", "a, b", "\u{e9}\t:"]).to_owned()));
        }
        let chunked = random.below(2) == 0;
        if chunked {
            fields.push(("Transfer-Encoding", "chunked".to_owned()));
        } else if !body.is_empty() {
            fields.push(("Content-Length", body.len().to_string()));
        }
        text.extend_from_slice(random.pick(&["", "\r\n"]).as_bytes());
        text.extend_from_slice(format!("{method} {target} HTTP/1.1\r\n").as_bytes());
        for (name, value) in &fields {
            text.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        text.extend_from_slice(b"\r\n");
        events.push(Event::Head {
            method: method.into(),
            target: target.into(),
            fields: fields
                .iter()
                .map(|(name, value)| ((*name).into(), value.as_bytes().into()))
                .collect(),
        });
        if chunked {
            push_chunks(random, &mut text, &body);
        } else {
            text.extend_from_slice(&body);
        }
        if !body.is_empty() {
            events.push(Event::Body(body.clone()));
        }
        if chunked || !body.is_empty() {
            events.push(Event::BodyEnd);
        }
    }
    (text, events)
}

fn push_chunks(random: &mut Random, text: &mut Vec<u8>, body: &[u8]) {
    for chunk in body.chunks(1 + random.below(8)) {
        let extension = random.pick(&["", ";a", " ;b=\"c\""]);
        text.extend_from_slice(format!("{:x}{extension}\r\n", chunk.len()).as_bytes());
        text.extend_from_slice(chunk);
        text.extend_from_slice(b"\r\n");
    }
    text.extend_from_slice(random.pick(&["0\r\n\r\n", "00;x\r\nT: v\r\n\r\n"]).as_bytes());
}

#[test]
fn pipelined_requests_come_out_right_however_they_are_cut() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..60 {
        let (text, expected) = requests(&mut random, 3);
        let check = |pieces: &[&[u8]]| {
            let (events, left) = drive(LIMITS, pieces);
            assert_eq!(events, expected, "round {round}: {}", text.escape_ascii());
            assert_eq!(left, b"");
        };
        check(&[&text]);
        check(&text.chunks(1).collect::<Vec<_>>());
        for split in 0..=text.len() {
            let (before, after) = text.split_at(split);
            check(&[before, after]);
        }
        for size in 2..9 {
            check(&text.chunks(size).collect::<Vec<_>>());
        }
    }
}

#[test]
fn damaged_and_arbitrary_bytes_never_panic_and_never_depend_on_cuts() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for round in 0..20_000 {
        let text: Vec<u8> = if round % 4 == 0 {
            (0..random.below(200)).map(|_| random.below(256) as u8).collect()
        } else {
            let (mut text, _) = requests(&mut random, 2);
            for _ in 0..=random.below(3) {
                damage(&mut random, &mut text);
            }
            text
        };
        let (events, left) = drive(LIMITS, &[&text]);
        let size = 1 + random.below(text.len().max(1));
        let (cut_events, cut_left) = drive(LIMITS, &text.chunks(size).collect::<Vec<_>>());
        assert_eq!(cut_events, events, "cut every {size}: {}", text.escape_ascii());
        if !matches!(events.last(), Some(Event::Violation(_))) {
            assert_eq!(cut_left, left);
        }
    }
}

fn damage(random: &mut Random, text: &mut Vec<u8>) {
    const BYTES: &[u8] = b"\r\n\0\t :;,#/+-0159afx\x0b\x7f\x80";
    let place = random.below(text.len());
    let byte = BYTES[random.below(BYTES.len())];
    match random.below(3) {
        0 => text[place] = byte,
        1 => text.insert(place, byte),
        _ => drop(text.remove(place)),
    }
}
