//! One entry as a line: combined, JSON, or a format of the operator's.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use serde::Serialize;

use super::format::{Atom, Format, Piece};
use super::text::{Quoting, push_apache_time, push_escaped, push_milliseconds, shown};
use super::user::user_of;
use crate::access::AccessEntry;
use crate::forwarded::Client;
use crate::http::head::Version;
use crate::log::timestamp;
use crate::request_id::RequestId;

/// Which process writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer {
    /// From 1.
    pub(super) worker: usize,
    pub(super) pid: u32,
}

/// What a line is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'entry> {
    pub(super) entry: &'entry AccessEntry<'entry>,
    pub(super) writer: Writer,
    /// When the response was complete, since 1970.
    pub(super) now: Duration,
    /// Of each value that a peer chose.
    pub(super) value_bytes_max: usize,
}

impl Line<'_> {
    /// `remote - user [time] "request" status size "referer" "agent"`, then the milliseconds in the
    /// queue, in the application, of writing and in all, the request's id if it has one, and
    /// `aborted` where the client did not get all of it.
    pub(super) fn push_combined(&self, line: &mut String) {
        let entry = self.entry;
        self.push_remote(line);
        line.push_str(" - ");
        self.push_user(line, Quoting::Bare);
        line.push_str(" [");
        push_apache_time(line, self.now);
        line.push_str("] \"");
        self.push_request_line(line, Quoting::Quoted);
        let _ = write!(line, "\" {} {} \"", entry.end.status, entry.end.body_bytes);
        self.push_field(line, b"referer", Quoting::Quoted);
        line.push_str("\" \"");
        self.push_field(line, b"user-agent", Quoting::Quoted);
        line.push('"');
        for (name, duration) in [
            (" queue=", entry.queue),
            (" app=", entry.run),
            (" write=", entry.write),
            (" total=", Some(entry.total)),
        ] {
            line.push_str(name);
            push_milliseconds(line, duration);
        }
        if let Some(id) = &entry.exchange.request_id {
            line.push_str(" id=");
            line.push_str(id.as_str());
        }
        if entry.aborted {
            line.push_str(" aborted");
        }
    }

    /// One object. Its keys are a promise (docs/logging.md).
    pub(super) fn json(&self) -> String {
        let entry = self.entry;
        let head = &entry.exchange.head;
        let milliseconds = |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
        let mut remote = String::new();
        self.push_remote(&mut remote);
        let value = |bytes: &[u8]| shown(bytes, self.value_bytes_max);
        let object = Object {
            time: timestamp(self.now),
            remote,
            user: self.user().as_deref().map(value),
            method: value(head.method()),
            target: value(head.target()),
            version: self.version(),
            status: entry.end.status,
            bytes: entry.end.body_bytes,
            referer: head.field(b"referer").map(value),
            agent: head.field(b"user-agent").map(value),
            queue_ms: entry.queue.map(milliseconds),
            app_ms: entry.run.map(milliseconds),
            write_ms: entry.write.map(milliseconds),
            total_ms: milliseconds(entry.total),
            aborted: entry.aborted,
            request_id: entry.exchange.request_id.as_ref().map(RequestId::as_str),
            worker: self.writer.worker,
            pid: self.writer.pid,
        };
        // Text and numbers only: what could fail is a map with keys that are no text.
        serde_json::to_string(&object).unwrap_or_default()
    }

    pub(super) fn push_formatted(&self, line: &mut String, format: &Format) {
        for piece in &format.pieces {
            match piece {
                Piece::Text(text) => line.push_str(text),
                Piece::Atom(atom, quoting) => self.push_atom(line, atom, *quoting),
            }
        }
    }

    fn push_atom(&self, line: &mut String, atom: &Atom, quoting: Quoting) {
        let entry = self.entry;
        let head = &entry.exchange.head;
        let total = entry.total;
        match atom {
            Atom::Remote => self.push_remote(line),
            Atom::RemotePort => match entry.exchange.client() {
                Client::Inet { port: Some(port), .. } => push_shown(line, port),
                Client::Inet { port: None, .. } | Client::Unix => line.push('-'),
            },
            Atom::Ident => line.push('-'),
            Atom::User => self.push_user(line, quoting),
            Atom::Time => {
                line.push('[');
                push_apache_time(line, self.now);
                line.push(']');
            }
            Atom::RequestLine => self.push_request_line(line, quoting),
            Atom::Method => self.push_value(line, head.method(), quoting),
            Atom::Target => self.push_value(line, head.target(), quoting),
            Atom::Path => self.push_value(line, head.path(), quoting),
            Atom::Query => self.push_value(line, head.query(), quoting),
            Atom::Protocol => line.push_str(self.version()),
            Atom::Status => push_shown(line, entry.end.status),
            Atom::BytesOrDash if entry.end.body_bytes == 0 => line.push('-'),
            Atom::Bytes | Atom::BytesOrDash => push_shown(line, entry.end.body_bytes),
            Atom::Seconds => push_shown(line, total.as_secs()),
            Atom::Milliseconds => push_shown(line, total.as_millis()),
            Atom::Microseconds => push_shown(line, total.as_micros()),
            Atom::DecimalSeconds => {
                push_shown(line, format_args!("{}.{:06}", total.as_secs(), total.subsec_micros()));
            }
            Atom::ProcessInAngles => push_shown(line, format_args!("<{}>", self.writer.pid)),
            Atom::Queue => push_milliseconds(line, entry.queue),
            Atom::Run => push_milliseconds(line, entry.run),
            Atom::Write => push_milliseconds(line, entry.write),
            Atom::Total => push_milliseconds(line, Some(total)),
            Atom::Aborted => line.push_str(if entry.aborted { "aborted" } else { "-" }),
            Atom::RequestId => {
                line.push_str(entry.exchange.request_id.as_ref().map_or("-", RequestId::as_str));
            }
            Atom::Worker => push_shown(line, self.writer.worker),
            Atom::Process => push_shown(line, self.writer.pid),
            Atom::RequestField(name) => self.push_field(line, name, quoting),
            Atom::ResponseField(name) => {
                self.push_value(line, field_of(entry.response, name).unwrap_or(b"-"), quoting);
            }
        }
    }

    fn push_value(&self, line: &mut String, bytes: &[u8], quoting: Quoting) {
        push_escaped(line, bytes, quoting, self.value_bytes_max);
    }

    fn push_remote(&self, line: &mut String) {
        match self.entry.exchange.client() {
            Client::Inet { ip, .. } => push_shown(line, ip),
            Client::Unix => line.push('-'),
        }
    }

    fn push_user(&self, line: &mut String, quoting: Quoting) {
        match self.user().as_deref() {
            None | Some([]) => line.push('-'),
            Some(user) => self.push_value(line, user, quoting),
        }
    }

    fn push_request_line(&self, line: &mut String, quoting: Quoting) {
        let head = &self.entry.exchange.head;
        self.push_value(line, head.method(), quoting);
        line.push(' ');
        self.push_value(line, head.target(), quoting);
        line.push(' ');
        line.push_str(self.version());
    }

    fn push_field(&self, line: &mut String, lower_name: &[u8], quoting: Quoting) {
        let value = self.entry.exchange.head.field(lower_name);
        self.push_value(line, value.unwrap_or(b"-"), quoting);
    }

    fn user(&self) -> Option<Vec<u8>> {
        self.entry.exchange.head.field(b"authorization").and_then(user_of)
    }

    fn version(&self) -> &'static str {
        match self.entry.exchange.head.version() {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
        }
    }
}

fn push_shown(line: &mut String, value: impl Display) {
    // Writing to a String cannot fail.
    let _ = write!(line, "{value}");
}

/// The keys of a JSON line.
#[derive(Debug, Serialize)]
struct Object<'entry> {
    time: String,
    remote: String,
    user: Option<String>,
    method: String,
    target: String,
    version: &'static str,
    status: u16,
    bytes: u64,
    referer: Option<String>,
    agent: Option<String>,
    queue_ms: Option<f64>,
    app_ms: Option<f64>,
    write_ms: Option<f64>,
    total_ms: f64,
    aborted: bool,
    request_id: Option<&'entry str>,
    worker: usize,
    pid: u32,
}

/// The first field of that name in a response head as we wrote it.
fn field_of<'head>(response: &'head [u8], lower_name: &[u8]) -> Option<&'head [u8]> {
    // The first line is the status; an empty one ends the head.
    let lines = response.split(|&byte| byte == b'\n').skip(1);
    lines
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .take_while(|line| !line.is_empty())
        .find_map(|line| {
            let colon = line.iter().position(|&byte| byte == b':')?;
            let is_it = line[..colon].eq_ignore_ascii_case(lower_name);
            is_it.then(|| line[colon + 1..].trim_ascii())
        })
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;
    use crate::access_log::text::VALUE_BYTES_MAX;
    use crate::clock;
    use crate::exchange::{Completions, End, Exchange};
    use crate::http::connection::{Connection, HttpLimits, Input};
    use crate::limits;
    use crate::reactor::io::{ListenerIndex, Peer};
    use crate::reactor::token::Token;
    use crate::reactor::wake::Waker;
    use crate::sync::Arc;

    const RESPONSE: &[u8] =
        b"HTTP/1.1 200 OK\r\nX-View: a \"b\"\r\nDate: now\r\n\r\nX-Body: in the body\r\n";

    fn exchange(fields: &str) -> Exchange {
        let limits = HttpLimits {
            request_line_bytes_max: limits::REQUEST_LINE_BYTES_MAX,
            head_bytes_max: limits::HEAD_BYTES_MAX,
            field_count_max: limits::FIELD_COUNT_MAX,
        };
        let mut input = BytesMut::from("GET /a\"b?c=d HTTP/1.1\r\nHost: a\r\n");
        input.extend_from_slice(fields.as_bytes());
        input.extend_from_slice(b"\r\n\r\n");
        let Ok(Some(Input::Head(head))) = Connection::new(limits).receive(&mut input) else {
            panic!("not a head: {fields}");
        };
        let completions = Arc::new(Completions::new(1, Waker::new().unwrap()));
        let peer = Peer::Inet("[::ffff:10.0.0.1]:9".parse().unwrap());
        Exchange::new(Token::new(0, 0), head, ListenerIndex(0), peer, clock::now(), completions)
    }

    fn with_line<T>(exchange: &Exchange, test: impl FnOnce(Line<'_>) -> T) -> T {
        let entry = AccessEntry {
            exchange,
            end: End { status: 200, body_bytes: 0, keep_alive: true },
            total: Duration::from_micros(2_000_400),
            queue: None,
            run: Some(Duration::from_micros(1_500)),
            write: Some(Duration::from_micros(7)),
            response: RESPONSE,
            aborted: true,
        };
        let writer = Writer { worker: 2, pid: 77 };
        let now = Duration::from_secs(784_111_777);
        test(Line { entry: &entry, writer, now, value_bytes_max: VALUE_BYTES_MAX })
    }

    fn formatted(exchange: &Exchange, format: &str) -> String {
        let mut line = String::new();
        let format = Format::parse(format).unwrap();
        with_line(exchange, |entry| entry.push_formatted(&mut line, &format));
        line
    }

    const FIELDS: &str =
        "Authorization: Basic QWxhIGRkaW46b3BlbiBzZXNhbWU=\r\nUser-Agent: x\\\" - forged\té";

    #[test]
    fn combined_has_its_fields_and_no_value_leaves_its_quotes() {
        let mut line = String::new();
        with_line(&exchange(FIELDS), |entry| entry.push_combined(&mut line));
        assert_eq!(
            line,
            "10.0.0.1 - Ala\\x20ddin [06/Nov/1994:08:49:37 +0000] \"GET /a\\x22b?c=d HTTP/1.1\" \
             200 0 \"-\" \"x\\x5c\\x22 - forged\\x09\\xc3\\xa9\" queue=- app=1.500 write=0.007 \
             total=2000.400 aborted"
        );
    }

    #[test]
    fn json_reads_back_and_long_values_are_cut() {
        let long = "a".repeat(VALUE_BYTES_MAX + 1);
        let exchange = exchange(&format!("User-Agent: {long}\r\nReferer: \"é\\"));
        let line = with_line(&exchange, |entry| entry.json());
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["target"], &value["app_ms"]), (&"/a\"b?c=d".into(), &1.5.into()));
        assert_eq!((&value["worker"], &value["write_ms"]), (&2.into(), &0.007.into()));
        assert_eq!((&value["referer"], &value["user"]), (&"\"é\\".into(), &().into()));
        assert_eq!(value["agent"].as_str().map(str::len), Some(VALUE_BYTES_MAX));
        assert!(formatted(&exchange, "\"%a\"").ends_with("a...\""));
    }

    #[test]
    fn every_atom_has_its_value() {
        for (format, expected) in [
            ("%h %l %u %t", "10.0.0.1 - Ala\\x20ddin [06/Nov/1994:08:49:37 +0000]"),
            ("%r|%m|%U|%q|%H", "GET /a\\x22b?c=d HTTP/1.1|GET|/a\\x22b|c=d|HTTP/1.1"),
            ("%s %B %b %f", "200 0 - -"),
            ("%T %M %D %L %p", "2 2000 2000400 2.000400 <77>"),
            ("%(queue)s %(app)s %(write)s %(total)s", "- 1.500 0.007 2000.400"),
            ("%(aborted)s %(id)s %(worker)s %(pid)s", "aborted - 2 77"),
            ("%{Host}i %{None}i %({REMOTE_PORT}e)s", "a - 9"),
            ("%{x-view}o \"%{x-view}o\"", "a\\x20\\x22b\\x22 \"a \\x22b\\x22\""),
            ("%{Date}o %{x-body}o %{http/1.1}o", "now - -"),
            (
                "%a|\"%a\"",
                "x\\x5c\\x22\\x20-\\x20forged\\x09\\xc3\\xa9|\"x\\x5c\\x22 - forged\\x09\\xc3\\xa9\"",
            ),
        ] {
            assert_eq!(formatted(&exchange(FIELDS), format), expected, "{format}");
        }
    }
}
