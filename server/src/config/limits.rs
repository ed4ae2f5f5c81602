//! `--limits`: every bound with its value or its range.

use std::fmt::Write as _;

use super::value::{BOUNDS, in_units};
use crate::limits;

/// The bounds that are not options. **Unit**: as named.
const FIXED: &[(&str, usize, &str)] = &[
    ("chunk-size line of a request", limits::CHUNK_LINE_BYTES_MAX, "bytes"),
    ("trailer section of a request", limits::TRAILER_BYTES_MAX, "bytes"),
    ("proxies followed to a client", limits::PROXY_HOPS_MAX, "proxies"),
    ("X-Request-ID of a proxy", limits::REQUEST_ID_BYTES_MAX, "bytes"),
    ("request body in memory", limits::BODY_MEMORY_BYTES_MAX, "bytes"),
    ("stream credit", limits::STREAM_CREDIT_BYTES, "bytes"),
    ("stream credit", limits::STREAM_CREDIT_PIECES, "pieces"),
    ("pipelined bytes", limits::PIPELINED_BYTES_MAX, "bytes"),
    ("response coalesced with its head", limits::COALESCE_BYTES_MAX, "bytes"),
    ("connections of --admin", limits::ADMIN_CONNECTIONS_MAX, "connections"),
    ("kernel events of one pass", limits::EVENTS_PER_PASS_MAX, "events"),
    ("log lines waiting to be written", crate::log::QUEUE_LINES_MAX, "lines"),
];

/// The table as printed.
#[must_use]
pub fn table() -> String {
    let mut text = String::from("Options:\n");
    for bound in BOUNDS {
        let (low, high) = if bound.unit == "bytes" {
            (in_units(bound.low), in_units(bound.high))
        } else {
            (bound.low.to_string(), bound.high.to_string())
        };
        let unit = if bound.unit == "bytes" { "" } else { bound.unit };
        // Writing to a String cannot fail.
        let line = format!("  --{:<18} {low} to {high} {unit}", bound.name);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text.push_str("Fixed, per connection or worker:\n");
    for (name, value, unit) in FIXED {
        let _ = writeln!(text, "  {name:<34} {value} {unit}");
    }
    text
}
