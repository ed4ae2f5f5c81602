//! Credit against its producer, in bytes and in pieces.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::{Completions, Exchange, Output};
use crate::clock;
use crate::http::connection::{Connection, HttpLimits, Input};
use crate::limits::{STREAM_CREDIT_BYTES, STREAM_CREDIT_PIECES};
use crate::reactor::io::{ListenerIndex, Peer};
use crate::reactor::token::Token;
use crate::reactor::wake::Waker;
use crate::sync::Arc;

const PATIENCE: Duration = Duration::from_secs(30);

fn exchange() -> Arc<Exchange> {
    let limits = HttpLimits { request_line_bytes_max: 99, head_bytes_max: 99, field_count_max: 9 };
    let mut input = BytesMut::from(&b"GET / HTTP/1.0\r\n\r\n"[..]);
    let Ok(Some(Input::Head(head))) = Connection::new(limits).receive(&mut input) else {
        panic!("not a head");
    };
    let completions = Arc::new(Completions::new(1, Waker::new().expect("an eventfd")));
    let listener = ListenerIndex(0);
    let now = clock::now();
    Arc::new(Exchange::new(Token::new(0, 0), head, listener, Peer::Unix, now, completions))
}

fn piece(length: usize) -> Output {
    Output::Data { head: Bytes::from(vec![b'x'; length]), body: Bytes::new(), end: None }
}

/// A thread that waits for credit and says what came of it.
fn waiting_producer(exchange: &Arc<Exchange>) -> Receiver<bool> {
    let (sender, receiver) = channel();
    let exchange = Arc::clone(exchange);
    let wait = move || sender.send(exchange.wait_for_credit());
    std::thread::Builder::new().spawn(wait).expect("a thread");
    receiver
}

fn assert_waits(producer: &Receiver<bool>) {
    assert_eq!(producer.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
}

#[test]
fn rules_7_credit_ends_with_the_256th_piece_however_small_they_are() {
    assert_eq!(STREAM_CREDIT_PIECES, 256);
    let exchange = exchange();
    for _ in 0..STREAM_CREDIT_PIECES {
        assert!(exchange.has_credit());
        assert!(exchange.push(piece(1)));
    }
    assert!(!exchange.has_credit());
    let producer = waiting_producer(&exchange);
    assert_waits(&producer);
    // Taken is not sent: the pieces are in our memory until the kernel has them.
    let mut taken = VecDeque::new();
    exchange.take_outputs(&mut taken);
    assert_eq!(taken.len(), STREAM_CREDIT_PIECES);
    assert_waits(&producer);
    exchange.refund(1, 1);
    assert_eq!(producer.recv_timeout(PATIENCE), Ok(true));
    assert!(exchange.has_credit());
    exchange.push(piece(0));
    assert!(!exchange.has_credit(), "an empty piece is one too");
}

#[test]
fn rules_7_credit_ends_with_64_kib_however_few_pieces_they_are() {
    assert_eq!(STREAM_CREDIT_BYTES, 64 * 1024);
    let exchange = exchange();
    exchange.push(piece(STREAM_CREDIT_BYTES - 1));
    assert!(exchange.has_credit());
    exchange.push(piece(1));
    assert!(!exchange.has_credit());
    let producer = waiting_producer(&exchange);
    assert_waits(&producer);
    exchange.refund(1, 1);
    assert_eq!(producer.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn rules_7_all_pieces_of_one_slot_are_one_entry_of_the_ring() {
    let exchange = exchange();
    // The ring has room for one; a second entry would be refused and logged as a bug.
    for length in 0..STREAM_CREDIT_PIECES {
        exchange.push(piece(length));
    }
    assert_eq!(exchange.completions.pop(), Some(exchange.token));
    assert_eq!(exchange.completions.pop(), None);
    exchange.push(piece(7));
    assert_eq!(exchange.completions.pop(), None, "nothing was taken since the last entry");
    let mut taken = VecDeque::new();
    exchange.take_outputs(&mut taken);
    let lengths: Vec<_> = taken.iter().map(Output::credit_bytes).collect();
    let expected: Vec<_> = (0..STREAM_CREDIT_PIECES).chain([7]).collect();
    assert_eq!(lengths, expected);
    exchange.push(piece(1));
    assert_eq!(exchange.completions.pop(), Some(exchange.token));
}
