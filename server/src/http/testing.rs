//! What the tests of this module share.

use bytes::{Bytes, BytesMut};

use super::connection::{Connection, HttpLimits, Input};
use super::head::RequestHead;
use super::violation::Violation;
use crate::limits::{FIELD_COUNT_MAX, HEAD_BYTES_MAX, REQUEST_LINE_BYTES_MAX};

/// The limits as they are shipped.
pub(super) const LIMITS: HttpLimits = HttpLimits {
    request_line_bytes_max: REQUEST_LINE_BYTES_MAX,
    head_bytes_max: HEAD_BYTES_MAX,
    field_count_max: FIELD_COUNT_MAX,
};

/// The one head in `text`, which must be complete.
pub(super) fn head_of(text: impl AsRef<[u8]>) -> Result<RequestHead, Violation> {
    let mut input = BytesMut::from(text.as_ref());
    match Connection::new(LIMITS).receive(&mut input)? {
        Some(Input::Head(head)) => Ok(head),
        other => panic!("no head but {other:?}"),
    }
}

/// What a connection gave, with the pieces of a body joined, so that splits do not matter.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Event {
    Head { method: Vec<u8>, target: Vec<u8>, fields: Vec<(Vec<u8>, Vec<u8>)> },
    Body(Vec<u8>),
    BodyEnd,
    Violation(Violation),
}

impl Event {
    fn of_head(head: &RequestHead) -> Self {
        Self::Head {
            method: head.method().to_vec(),
            target: head.target().to_vec(),
            fields: head
                .fields()
                .map(|field| (field.name.to_vec(), field.value.to_vec()))
                .collect(),
        }
    }
}

/// Feeds `pieces` to a connection that answers every request at once. Gives the events and what is
/// left of the input.
pub(super) fn drive(limits: HttpLimits, pieces: &[&[u8]]) -> (Vec<Event>, Vec<u8>) {
    let mut connection = Connection::new(limits);
    let mut input = BytesMut::new();
    let mut events = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        while step(&mut connection, &mut input, &mut events) {}
        if let Some(Event::Violation(_)) = events.last() {
            break;
        }
    }
    (events, input.to_vec())
}

/// One step; false when there is no more to do.
fn step(connection: &mut Connection, input: &mut BytesMut, events: &mut Vec<Event>) -> bool {
    match connection.receive(input) {
        Ok(Some(Input::Head(head))) => events.push(Event::of_head(&head)),
        Ok(Some(Input::Body(piece))) => push_body(events, &piece),
        Ok(Some(Input::BodyEnd)) => events.push(Event::BodyEnd),
        Ok(None) if connection.awaits_head() || connection.awaits_body() => return false,
        Ok(None) => assert!(connection.response_complete(true)),
        Err(violation) => {
            assert_eq!(connection.receive(input).map(|_| ()), Err(violation), "errors stay");
            events.push(Event::Violation(violation));
            return false;
        }
    }
    true
}

fn push_body(events: &mut Vec<Event>, piece: &Bytes) {
    assert!(!piece.is_empty());
    match events.last_mut() {
        Some(Event::Body(body)) => body.extend_from_slice(piece),
        _ => events.push(Event::Body(piece.to_vec())),
    }
}

/// Marsaglia's xorshift64.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    pub(super) fn pick<'item, T: ?Sized>(&mut self, items: &[&'item T]) -> &'item T {
        items[self.below(items.len())]
    }
}
