//! What is accepted as a head obeys the grammar, judged here in another way than in the parser.
#![no_main]

use bytes::BytesMut;
use hoopsnake_server::http::connection::{Connection, HttpLimits, Input};
use hoopsnake_server::http::{RequestFraming, RequestHead, Version};
use hoopsnake_server::limits::{FIELD_COUNT_MAX, HEAD_BYTES_MAX, REQUEST_LINE_BYTES_MAX};
use libfuzzer_sys::fuzz_target;

const LIMITS: HttpLimits = HttpLimits {
    request_line_bytes_max: REQUEST_LINE_BYTES_MAX,
    head_bytes_max: HEAD_BYTES_MAX,
    field_count_max: FIELD_COUNT_MAX,
};

fuzz_target!(|data: &[u8]| {
    let mut input = BytesMut::from(data);
    if let Ok(Some(Input::Head(head))) = Connection::new(LIMITS).receive(&mut input) {
        let taken = &data[..data.len() - input.len()];
        check(&head, taken);
    }
});

fn check(head: &RequestHead, taken: &[u8]) {
    let text = taken.strip_suffix(b"\r\n\r\n").expect("a head ends in an empty line");
    let controls = |bytes: &[u8]| bytes.iter().any(|&byte| byte < 0x20 && byte != 9 || byte == 127);
    let token = |bytes: &[u8]| {
        !bytes.is_empty()
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
    };
    // The last line of `text` has lost its LF to the suffix; every other must have had its CR.
    let mut lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    let last = lines.len() - 1;
    for line in &mut lines[..last] {
        *line = line.strip_suffix(b"\r").expect("a line ends in CR LF");
    }
    assert!(lines.iter().all(|line| !line.contains(&b'\r')));
    let fields: Vec<_> = head.fields().collect();
    let empty_lines = lines.iter().take_while(|line| line.is_empty()).count();
    assert_eq!(fields.len() + 1 + empty_lines, lines.len());
    assert!(token(head.method()));
    assert!(!head.target().is_empty() && !controls(head.target()));
    assert!(!head.target().contains(&b' ') && !head.target().contains(&b'#'));
    assert!(fields.iter().all(|field| token(field.name) && !controls(field.value)));
    let all = |name: &str| -> Vec<&[u8]> {
        let same = |field: &&hoopsnake_server::http::head::Field<'_>| {
            field.name.eq_ignore_ascii_case(name.as_bytes())
        };
        fields.iter().filter(same).map(|field| field.value).collect()
    };
    let (lengths, codings) = (all("content-length"), all("transfer-encoding"));
    match head.framing() {
        RequestFraming::None => assert!(lengths.is_empty() && codings.is_empty()),
        RequestFraming::Length(length) => {
            assert!(codings.is_empty() && lengths.len() == 1);
            let digits = std::str::from_utf8(lengths[0]).expect("digits");
            assert!(digits.bytes().all(|byte| byte.is_ascii_digit()));
            assert_eq!(digits.parse(), Ok(length));
        }
        RequestFraming::Chunked => {
            assert!(lengths.is_empty() && codings.len() == 1);
            assert!(codings[0].eq_ignore_ascii_case(b"chunked"));
            assert_eq!(head.version(), Version::Http11);
        }
    }
    let hosts = all("host").len();
    assert!(hosts == 1 || hosts == 0 && head.version() == Version::Http10);
}
