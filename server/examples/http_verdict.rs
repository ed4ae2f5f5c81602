//! What the HTTP machine makes of the bytes on standard input: one JSON object a line. Every
//! request is taken as answered the moment it is complete. `tests/vectors` judges public vectors
//! with it.

use std::io::{self, Read, Write};

use bytes::BytesMut;
use hoopsnake_server::http::connection::{Connection, HttpLimits, Input};
use hoopsnake_server::http::{RequestHead, Version};
use hoopsnake_server::limits::{FIELD_COUNT_MAX, HEAD_BYTES_MAX, REQUEST_LINE_BYTES_MAX};
use serde_json::{Value, json};

fn main() -> io::Result<()> {
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes)?;
    let mut out = io::stdout().lock();
    for event in events(&bytes) {
        writeln!(out, "{event}")?;
    }
    Ok(())
}

fn events(bytes: &[u8]) -> Vec<Value> {
    let mut connection = Connection::new(HttpLimits {
        request_line_bytes_max: REQUEST_LINE_BYTES_MAX,
        head_bytes_max: HEAD_BYTES_MAX,
        field_count_max: FIELD_COUNT_MAX,
    });
    let mut input = BytesMut::from(bytes);
    let mut events = Vec::new();
    let mut keep_alive = true;
    loop {
        match connection.receive(&mut input) {
            Ok(Some(Input::Head(head))) => {
                keep_alive = head.keep_alive();
                events.push(describe(&head));
            }
            Ok(Some(Input::Body(piece))) => {
                events.push(json!({"event": "body", "bytes": piece.len()}));
            }
            Ok(Some(Input::BodyEnd)) => events.push(json!({"event": "body_end"})),
            Ok(None) => {
                let waits = connection.awaits_head() || connection.awaits_body();
                if !waits {
                    events.push(json!({"event": "complete"}));
                }
                // A part of a head stays in the buffer; a lone CR may begin an empty line.
                let begun = connection.awaits_head() && !matches!(input.as_ref(), [] | [b'\r']);
                let mid_request = begun || connection.awaits_body();
                if waits || !connection.response_complete(keep_alive) {
                    events.push(json!({
                        "event": "end",
                        "mid_request": mid_request,
                        "bytes_left": input.len(),
                    }));
                    return events;
                }
            }
            Err(violation) => {
                events.push(json!({
                    "event": "violation",
                    "name": violation.name(),
                    "status": violation.status(),
                    "section": violation.section(),
                    "detail": violation.detail(),
                }));
                return events;
            }
        }
    }
}

fn describe(head: &RequestHead) -> Value {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    json!({
        "event": "head",
        "method": text(head.method()),
        "target": text(head.target()),
        "version": match head.version() {
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
        },
        "framing": format!("{:?}", head.framing()),
        "keep_alive": head.keep_alive(),
        "fields": head
            .fields()
            .map(|field| [text(field.name), text(field.value)])
            .collect::<Vec<_>>(),
    })
}
