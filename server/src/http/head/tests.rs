//! Lines, fields and bounds of a head.

use super::super::testing::{Event, LIMITS, drive, head_of};
use super::*;

/// The violation of `text`, which must not depend on how it is cut.
fn violation(limits: HttpLimits, text: &[u8]) -> Option<Violation> {
    let last = |pieces: &[&[u8]]| match drive(limits, pieces).0.pop() {
        Some(Event::Violation(violation)) => Some(violation),
        _ => None,
    };
    let whole = last(&[text]);
    for split in 0..text.len() {
        let (before, after) = text.split_at(split);
        assert_eq!(last(&[before, after]), whole, "{} cut at {split}", text.escape_ascii());
    }
    let bytes: Vec<_> = text.chunks(1).collect();
    assert_eq!(last(&bytes), whole, "{} byte by byte", text.escape_ascii());
    whole
}

#[test]
fn fields_keep_their_order_their_case_and_their_bytes() {
    let text = b"GET /a?b HTTP/1.1\r\nHost: x\r\nX-Name:  caf\xe9 \t\r\nempty:\r\nspace: \t \r\n\
        x-name: again\r\nLong: a b\tc: d\r\n\r\n";
    let head = head_of(text).unwrap();
    let fields: Vec<_> = head.fields().map(|field| (field.name, field.value)).collect();
    let expected: [(&[u8], &[u8]); 6] = [
        (b"Host", b"x"),
        (b"X-Name", b"caf\xe9"),
        (b"empty", b""),
        (b"space", b""),
        (b"x-name", b"again"),
        (b"Long", b"a b\tc: d"),
    ];
    assert_eq!(fields, expected);
    assert_eq!(head.fields().len(), 6);
    assert_eq!(head.field(b"x-name"), Some(b"caf\xe9".as_slice()));
    assert_eq!(head.field(b"empty"), Some(b"".as_slice()));
    assert_eq!(head.field(b"absent"), None);
    assert!(!head.is_head());
    assert!(head_of("HEAD / HTTP/1.0\r\n\r\n").unwrap().is_head());
    assert_eq!(head_of("GET / HTTP/1.0\r\n\r\n").unwrap().fields().len(), 0);
}

#[test]
fn more_fields_than_usual() {
    for count in [USUAL_FIELD_COUNT - 1, USUAL_FIELD_COUNT, USUAL_FIELD_COUNT + 1, 128] {
        let fields: String = (0..count).map(|index| format!("F{index}: {index}\r\n")).collect();
        let head = head_of(format!("GET / HTTP/1.0\r\n{fields}\r\n")).unwrap();
        assert_eq!(head.fields().len(), count);
        let last = head.fields().last().unwrap();
        assert_eq!(last.value, (count - 1).to_string().as_bytes());
    }
}

/// PRODUCTION section 3, items 20 and 21.
#[test]
fn refused_field_lines() {
    for (line, expected) in [
        ("A: b\nC: d", Violation::BareLineFeed),
        ("A: b\n", Violation::BareLineFeed),
        ("A: b\rC: d", Violation::BareCarriageReturn),
        ("A: \rb", Violation::BareCarriageReturn),
        ("A\r: b", Violation::BareCarriageReturn),
        ("\rA: b", Violation::BareCarriageReturn),
        ("A: b\r", Violation::BareCarriageReturn),
        ("A: b\r\n c", Violation::ObsoleteFold),
        ("A: b\r\n\tc", Violation::ObsoleteFold),
        (" A: b", Violation::ObsoleteFold),
        ("A: b\r\n ", Violation::ObsoleteFold),
        ("A : b", Violation::SpaceBeforeColon),
        ("A\t: b", Violation::SpaceBeforeColon),
        ("Content-Length : 5", Violation::SpaceBeforeColon),
        (": b", Violation::InvalidFieldName),
        ("A", Violation::InvalidFieldName),
        ("A B: c", Violation::InvalidFieldName),
        ("A(: b", Violation::InvalidFieldName),
        ("A\0: b", Violation::InvalidFieldName),
        ("A\x0b: b", Violation::InvalidFieldName),
        ("\u{a0}: b", Violation::InvalidFieldName),
    ] {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n");
        assert_eq!(violation(LIMITS, text.as_bytes()), Some(expected), "{line:?}");
    }
    let text = b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\xa0: chunked\r\n\r\n";
    assert_eq!(violation(LIMITS, text), Some(Violation::InvalidFieldName));
}

#[test]
fn control_bytes_in_a_value_wherever_they_are() {
    // Long enough for every width of httparse's vectorised loops.
    for byte in (0..0x20).chain([0x7f]) {
        for place in 0..70 {
            let mut value = [b'v'; 70];
            value[place] = byte;
            let text = [b"GET / HTTP/1.0\r\nA: ".as_slice(), &value, b"\r\n\r\n"].concat();
            let refused = head_of(&text).map(|head| head.fields().len());
            match byte {
                b'\t' => assert_eq!(refused, Ok(1)),
                b'\n' => assert_eq!(refused, Err(Violation::BareLineFeed)),
                b'\r' => assert_eq!(refused, Err(Violation::BareCarriageReturn)),
                _ => assert_eq!(refused, Err(Violation::InvalidFieldValue), "{byte} at {place}"),
            }
        }
    }
}

#[test]
fn every_byte_in_a_name_and_in_a_target() {
    for byte in 0..=u8::MAX {
        for place in [0, 1, 20, 39] {
            let mut name = [b'n'; 40];
            name[place] = byte;
            let text = [b"GET / HTTP/1.0\r\n".as_slice(), &name, b": v\r\n\r\n"].concat();
            // A colon ends the name earlier.
            let good = is_token_byte(byte) || byte == b':' && place > 0;
            assert_eq!(head_of(&text).is_ok(), good, "{byte:#04x} at {place} of a name");
            let mut target = [b't'; 40];
            target[0] = b'/';
            target[place.max(1)] = byte;
            let text = [b"GET ".as_slice(), &target, b" HTTP/1.0\r\n\r\n"].concat();
            let good = byte > b' ' && byte != 0x7f && byte != b'#';
            assert_eq!(head_of(&text).is_ok(), good, "{byte:#04x} at {place} of a target");
        }
    }
}

#[test]
fn refused_request_lines() {
    for (text, expected) in [
        ("GET / HTTP/1.1\n\n", Violation::BareLineFeed),
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", Violation::BareLineFeed),
        ("GET / HTTP/1.1\r\nHost: a\r\n\n", Violation::BareLineFeed),
        ("GET / HTTP/1.1\r\r\n\r\n", Violation::MalformedRequestLine),
        ("GET /\r\n\r\n", Violation::MalformedRequestLine),
        ("\nGET / HTTP/1.1\r\n\r\n", Violation::BareLineFeed),
        ("\rGET / HTTP/1.1\r\n\r\n", Violation::BareCarriageReturn),
        ("\r\n\nGET / HTTP/1.1\r\n\r\n", Violation::BareLineFeed),
        (" GET / HTTP/1.1\r\n\r\n", Violation::MalformedRequestLine),
        ("\x16\x03\x01\x02", Violation::MalformedRequestLine),
        ("\0", Violation::MalformedRequestLine),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Violation::UnsupportedVersion),
        ("GET / HTTP/3.0\r\n\r\n", Violation::UnsupportedVersion),
        ("GET / HTTP/1.1\r\n\r\n", Violation::HostMissing),
        ("\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.0\r\n\r\n", Violation::TooManyEmptyLines),
    ] {
        assert_eq!(violation(LIMITS, text.as_bytes()), Some(expected), "{text:?}");
    }
    for text in ["\r\nGET / HTTP/1.0\r\n\r\n", "\r\n\r\n\r\n\r\nGET / HTTP/1.0\r\n\r\n"] {
        assert_eq!(violation(LIMITS, text.as_bytes()), None);
        assert_eq!(head_of(text).unwrap().method(), b"GET");
    }
}

const SMALL: HttpLimits =
    HttpLimits { request_line_bytes_max: 20, head_bytes_max: 60, field_count_max: 3 };

#[test]
fn bounds_hold_exactly_and_name_themselves() {
    let line_too_long = Some(Violation::RequestLineTooLong { max: 20 });
    let too_large = Some(Violation::HeadTooLarge { max: 60 });
    let too_many = Some(Violation::TooManyFields { max: 3 });
    for (text, expected) in [
        ("GET /4567890 HTTP/1.0\r\n\r\n", line_too_long),
        ("GET /456789 HTTP/1.0\r\n\r\n", None),
        ("GET /456789 HTTP/1.0x", None),
        ("GET /456789 HTTP/1.0\r", None),
        ("GET /456789 HTTP/1.0\rx", line_too_long),
        ("GET /456789 HTTP/1.0x\n", line_too_long),
        ("GET / HTTP/1.0\r\nA:\r\nB:\r\nC:\r\n\r\n", None),
        ("GET / HTTP/1.0\r\nA:\r\nB:\r\nC:\r\nD:\r\n\r\n", too_many),
        ("GET / HTTP/1.0\r\nA:\r\nB:\r\nC:\r\nD:\r\n", too_many),
    ] {
        assert_eq!(violation(SMALL, text.as_bytes()), expected, "{text:?}");
    }
    let sized =
        |bytes: usize| format!("GET / HTTP/1.0\r\nA: {}\r\n\r\n", "v".repeat(bytes - 16 - 3 - 4));
    assert_eq!(violation(SMALL, sized(60).as_bytes()), None);
    assert_eq!(violation(SMALL, sized(61).as_bytes()), too_large);
    assert_eq!(violation(SMALL, &sized(60).as_bytes()[..58]), None);
    let unfinished = sized(80);
    assert_eq!(violation(SMALL, &unfinished.as_bytes()[..60]), None);
    assert_eq!(violation(SMALL, &unfinished.as_bytes()[..61]), too_large);
    // Limits that contradict each other still give one answer.
    let narrow = HttpLimits { request_line_bytes_max: 100, head_bytes_max: 30, field_count_max: 1 };
    let text = "GET /".to_owned() + &"a".repeat(60) + " HTTP/1.0\r\n\r\n";
    let expected = Some(Violation::RequestLineTooLong { max: 28 });
    assert_eq!(violation(narrow, text.as_bytes()), expected);
}

#[test]
fn a_head_is_not_copied_and_leaves_what_follows() {
    let mut input = BytesMut::from(&b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nab"[..]);
    let place = input.as_ptr();
    let Ok(HeadStep::Complete(head)) = HeadProgress::START.step(&mut input, &LIMITS) else {
        panic!("the head is complete");
    };
    assert_eq!(head.method().as_ptr(), place);
    assert_eq!(input.as_ref(), b"ab");
}

/// The search does not begin again with every byte: it remembers all it has seen.
#[test]
fn the_search_goes_on_where_it_stopped() {
    let text = b"GET / HTTP/1.0\r\nA: b\r\nC: d\r\n";
    let mut input = BytesMut::new();
    let mut progress = HeadProgress::START;
    for (index, byte) in text.iter().enumerate() {
        input.extend_from_slice(&[*byte]);
        let Ok(HeadStep::Incomplete(next)) = progress.step(&mut input, &LIMITS) else {
            panic!("the head is incomplete");
        };
        progress = next;
        let (HeadProgress::RequestLine { scanned, .. } | HeadProgress::Fields { scanned, .. }) =
            progress;
        assert_eq!(scanned, index + 1);
    }
}
