//! The outbox against its reader, and credit against its producer, over every interleaving.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use loom::thread;

use super::{Completions, Exchange, Output};
use crate::clock;
use crate::http::connection::{Connection, HttpLimits, Input};
use crate::limits::STREAM_CREDIT_BYTES;
use crate::reactor::io::{ListenerIndex, Peer};
use crate::reactor::token::Token;
use crate::reactor::wake::Waker;
use crate::sync::Arc;

fn exchange() -> (Arc<Exchange>, Arc<Completions>) {
    let limits = HttpLimits { request_line_bytes_max: 99, head_bytes_max: 99, field_count_max: 9 };
    let mut input = BytesMut::from(&b"GET / HTTP/1.0\r\n\r\n"[..]);
    let head = match Connection::new(limits).receive(&mut input) {
        Ok(Some(Input::Head(head))) => head,
        other => panic!("not a head: {other:?}"),
    };
    let completions = Arc::new(Completions::new(8, Waker::new().expect("an eventfd")));
    let exchange = Exchange::new(
        Token::new(0, 0),
        head,
        ListenerIndex(0),
        Peer::Unix,
        clock::now(),
        Arc::clone(&completions),
    );
    (Arc::new(exchange), completions)
}

fn piece(length: usize) -> Output {
    static ZEROS: [u8; STREAM_CREDIT_BYTES] = [0; STREAM_CREDIT_BYTES];
    Output::Data { head: Bytes::from_static(&ZEROS[..length]), body: Bytes::new(), end: None }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn rules_7_every_piece_is_taken_in_order_and_the_ring_never_holds_two_entries_of_one_slot() {
    check(|| {
        let (exchange, completions) = exchange();
        let producer = {
            let exchange = Arc::clone(&exchange);
            thread::spawn(move || {
                exchange.push(piece(1));
                exchange.push(piece(2));
            })
        };
        let mut taken = VecDeque::new();
        while taken.len() < 2 {
            if completions.pop().is_some() {
                // Until the outputs are taken no producer may make another entry; each one here was
                // beside the first on the ring, or took its place unasked.
                assert_eq!(completions.pop(), None, "a second entry of the slot");
                exchange.take_outputs(&mut taken);
                continue;
            }
            if completions.park(false) {
                while completions.is_parked() {
                    thread::yield_now();
                }
            }
            completions.unpark();
        }
        let lengths: Vec<_> = taken.iter().map(Output::credit_bytes).collect();
        assert_eq!(lengths, [1, 2]);
        producer.join().expect("no panic");
    });
}

#[test]
fn rules_7_a_producer_that_waits_for_credit_is_let_go_by_a_refund_and_by_the_clients_end() {
    for gone in [false, true] {
        check(move || {
            let (exchange, _) = exchange();
            let producer = {
                let exchange = Arc::clone(&exchange);
                thread::spawn(move || {
                    exchange.push_quietly(piece(STREAM_CREDIT_BYTES));
                    exchange.wait_for_credit()
                })
            };
            if gone {
                exchange.set_gone();
            } else {
                let mut taken = VecDeque::new();
                while taken.is_empty() {
                    exchange.take_outputs(&mut taken);
                    thread::yield_now();
                }
                exchange.refund(STREAM_CREDIT_BYTES, 1);
            }
            assert_eq!(producer.join().expect("no panic"), !gone);
        });
    }
}
