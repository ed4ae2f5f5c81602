//! Any bytes, cut anywhere, give the same events, and nothing is read out of thin air: bodies are
//! not longer than the input, errors stay.
#![no_main]

use bytes::BytesMut;
use hoopsnake_server::http::Violation;
use hoopsnake_server::http::connection::{Connection, HttpLimits, Input};
use libfuzzer_sys::fuzz_target;

/// Small, so that the bounds are crossed too.
const LIMITS: HttpLimits =
    HttpLimits { request_line_bytes_max: 200, head_bytes_max: 1000, field_count_max: 12 };

#[derive(Debug, PartialEq)]
enum Event {
    Head(Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>),
    Body(Vec<u8>),
    BodyEnd,
    Refused(Violation),
}

fuzz_target!(|data: &[u8]| {
    // The first byte says how the rest is cut.
    let Some((&cut, text)) = data.split_first() else { return };
    let whole = drive([text].into_iter());
    let pieces = drive(text.chunks(usize::from(cut % 64) + 1));
    assert_eq!(whole, pieces);
});

fn drive<'text>(pieces: impl Iterator<Item = &'text [u8]>) -> Vec<Event> {
    let mut connection = Connection::new(LIMITS);
    let mut input = BytesMut::new();
    let mut events = Vec::new();
    let (mut length, mut body_length) = (0, 0);
    for piece in pieces {
        length += piece.len();
        input.extend_from_slice(piece);
        loop {
            match connection.receive(&mut input) {
                Ok(Some(Input::Head(head))) => events.push(Event::Head(
                    [head.method(), b" ", head.path(), b"?", head.query()].concat(),
                    head.fields().map(|field| (field.name.into(), field.value.into())).collect(),
                )),
                Ok(Some(Input::Body(piece))) => {
                    assert!(!piece.is_empty());
                    body_length += piece.len();
                    match events.last_mut() {
                        Some(Event::Body(body)) => body.extend_from_slice(&piece),
                        _ => events.push(Event::Body(piece.to_vec())),
                    }
                }
                Ok(Some(Input::BodyEnd)) => events.push(Event::BodyEnd),
                Ok(None) if connection.awaits_head() || connection.awaits_body() => break,
                Ok(None) => assert!(connection.response_complete(true)),
                Err(violation) => {
                    assert_eq!(connection.receive(&mut input).err(), Some(violation));
                    assert!(!connection.response_complete(true));
                    events.push(Event::Refused(violation));
                    return events;
                }
            }
        }
        assert!(input.len() <= LIMITS.head_bytes_max.max(9 * 1024), "what waits is bounded");
        assert!(body_length + input.len() <= length);
    }
    events
}
