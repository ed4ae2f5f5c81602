//! Must fail: it shows that a wrong machine would be found. It claims that no request can have a
//! chunked body, which one of the seeds refutes.
#![no_main]

use bytes::BytesMut;
use hoopsnake_server::http::RequestFraming;
use hoopsnake_server::http::connection::{Connection, HttpLimits, Input};
use libfuzzer_sys::fuzz_target;

const LIMITS: HttpLimits =
    HttpLimits { request_line_bytes_max: 200, head_bytes_max: 1000, field_count_max: 12 };

fuzz_target!(|data: &[u8]| {
    let mut input = BytesMut::from(data);
    if let Ok(Some(Input::Head(head))) = Connection::new(LIMITS).receive(&mut input) {
        assert_ne!(head.framing(), RequestFraming::Chunked, "the canary sings");
    }
});
