//! The access log: one line a response, in apache's combined format or as JSON.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use base64_user::user_of;

use crate::access::{AccessEntry, AccessSink};
use crate::clock;
use crate::config::{AccessFormat, AccessTarget, LogConfig};
use crate::forwarded::Client;
use crate::log::{QueuedWriter, timestamp};
use crate::request_id::RequestId;

/// Bytes of one value that a peer chose; what is beyond is cut. **Why**: the queue counts lines, and
/// a line must have a bound too.
const VALUE_BYTES_MAX: usize = 2048;

/// Writes entries to the target through a queue of its own.
#[derive(Debug)]
pub struct AccessLog {
    writer: QueuedWriter,
    format: AccessFormat,
}

impl AccessLog {
    /// Opens the target and starts its writer thread; `None` for `AccessTarget::Off`.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn open(config: &LogConfig) -> io::Result<Option<Self>> {
        let target = match &config.access {
            AccessTarget::Off => return Ok(None),
            AccessTarget::Stdout => File::from(io::stdout().as_fd().try_clone_to_owned()?),
            AccessTarget::File(path) => appending().create(true).open(path)?,
        };
        let writer = QueuedWriter::start("hoopsnake-access", target, config.overflow);
        Ok(Some(Self { writer, format: config.access_format }))
    }

    /// Whether `open` would succeed; leaves nothing behind.
    ///
    /// # Errors
    /// What `open` would say.
    pub fn check(config: &LogConfig) -> io::Result<()> {
        let AccessTarget::File(path) = &config.access else { return Ok(()) };
        match appending().create_new(true).open(path) {
            Ok(_) => std::fs::remove_file(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                appending().open(path).map(drop)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits, for a second at most, until the lines are written.
    pub fn flush(&self) {
        self.writer.flush();
    }
}

fn appending() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.append(true);
    options
}

impl AccessSink for AccessLog {
    fn tick(&self) {
        self.writer.say_drops_while_full();
    }

    fn record(&self, entry: AccessEntry<'_>) {
        let head = &entry.exchange.head;
        let fields = Fields {
            client: entry.exchange.client(),
            user: head.field(b"authorization").and_then(user_of),
            method: head.method(),
            target: head.target(),
            version: match head.version() {
                crate::http::head::Version::Http10 => "HTTP/1.0",
                crate::http::head::Version::Http11 => "HTTP/1.1",
            },
            referer: head.field(b"referer"),
            agent: head.field(b"user-agent"),
            status: entry.end.status,
            body_bytes: entry.end.body_bytes,
            aborted: entry.aborted,
            request_id: entry.exchange.request_id.as_ref(),
            queue: entry.queue,
            run: entry.run,
            total: entry.total,
        };
        let line = match self.format {
            AccessFormat::Combined => fields.combined(clock::unix_time()),
            AccessFormat::Json => fields.json(clock::unix_time()),
        };
        self.writer.write_line(line.as_bytes());
    }
}

/// What a line says.
#[derive(Debug)]
struct Fields<'entry> {
    client: Client,
    user: Option<String>,
    method: &'entry [u8],
    target: &'entry [u8],
    version: &'static str,
    referer: Option<&'entry [u8]>,
    agent: Option<&'entry [u8]>,
    status: u16,
    body_bytes: u64,
    aborted: bool,
    request_id: Option<&'entry RequestId>,
    queue: Option<Duration>,
    run: Option<Duration>,
    total: Duration,
}

impl Fields<'_> {
    fn remote(&self) -> String {
        match self.client {
            Client::Inet { ip, .. } => ip.to_string(),
            Client::Unix => "-".to_owned(),
        }
    }

    /// `remote - user [time] "request" status size "referer" "agent"`, then the milliseconds in the
    /// queue, in the application and in all, and `aborted` where the client did not get all of it.
    fn combined(&self, now: Duration) -> String {
        let mut line = self.remote();
        line.push_str(" - ");
        match &self.user {
            Some(user) => push_escaped(&mut line, user.as_bytes(), true),
            None => line.push('-'),
        }
        let _ = write!(line, " [{}] \"", apache_time(now));
        push_escaped(&mut line, self.method, false);
        line.push(' ');
        push_escaped(&mut line, self.target, false);
        let _ = write!(line, " {}\" {} {} \"", self.version, self.status, self.body_bytes);
        push_escaped(&mut line, self.referer.unwrap_or(b"-"), false);
        line.push_str("\" \"");
        push_escaped(&mut line, self.agent.unwrap_or(b"-"), false);
        line.push('"');
        for (name, duration) in
            [("queue", self.queue), ("app", self.run), ("total", Some(self.total))]
        {
            match duration {
                Some(duration) => {
                    let _ = write!(line, " {name}={:.3}", duration.as_secs_f64() * 1e3);
                }
                None => {
                    let _ = write!(line, " {name}=-");
                }
            }
        }
        if let Some(id) = self.request_id {
            let _ = write!(line, " id={}", id.as_str());
        }
        line.push_str(if self.aborted { " aborted\n" } else { "\n" });
        line
    }

    fn json(&self, now: Duration) -> String {
        let text = |bytes: &[u8]| {
            let mut escaped = String::new();
            // JSON escapes by itself; only what is not UTF-8 needs a form.
            for chunk in bytes[..bytes.len().min(VALUE_BYTES_MAX)].utf8_chunks() {
                escaped.push_str(chunk.valid());
                for byte in chunk.invalid() {
                    let _ = write!(escaped, "\\x{byte:02x}");
                }
            }
            escaped
        };
        let milliseconds = |duration: Duration| (duration.as_secs_f64() * 1e6).round() / 1e3;
        let mut line = serde_json::json!({
            "time": timestamp(now),
            "remote": self.remote(),
            "user": self.user,
            "method": text(self.method),
            "target": text(self.target),
            "version": self.version,
            "status": self.status,
            "bytes": self.body_bytes,
            "referer": self.referer.map(text),
            "agent": self.agent.map(text),
            "queue_ms": self.queue.map(milliseconds),
            "app_ms": self.run.map(milliseconds),
            "total_ms": milliseconds(self.total),
            "aborted": self.aborted,
            "request_id": self.request_id.map(RequestId::as_str),
        })
        .to_string();
        line.push('\n');
        line
    }
}

/// Appends a peer's bytes so that they can end neither their field nor the line: quotes and
/// backslashes as `\x22` and `\x5c`, everything outside printable ASCII as `\xhh`.
fn push_escaped(line: &mut String, bytes: &[u8], spaces_too: bool) {
    for &byte in &bytes[..bytes.len().min(VALUE_BYTES_MAX)] {
        match byte {
            b'"' | b'\\' => {
                let _ = write!(line, "\\x{byte:02x}");
            }
            b' ' if spaces_too => line.push_str("\\x20"),
            0x20..0x7f => line.push(char::from(byte)),
            0..0x20 | 0x7f.. => {
                let _ = write!(line, "\\x{byte:02x}");
            }
        }
    }
    if bytes.len() > VALUE_BYTES_MAX {
        line.push_str("...");
    }
}

/// `30/Nov/2026:12:00:00 +0000`.
fn apache_time(now: Duration) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let civil = clock::civil_from_unix(now.as_secs());
    format!(
        "{:02}/{}/{:04}:{:02}:{:02}:{:02} +0000",
        civil.day,
        MONTHS[civil.month as usize - 1],
        civil.year,
        civil.hour,
        civil.minute,
        civil.second
    )
}

/// The user name of Basic credentials, which is what apache's `%u` is.
mod base64_user {
    /// The part before the colon; `None` for other schemes and for what is not base64.
    pub(super) fn user_of(authorization: &[u8]) -> Option<String> {
        let (scheme, credentials) = authorization.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let decoded = decode(credentials.trim_ascii())?;
        let end = decoded.iter().position(|byte| *byte == b':')?;
        Some(String::from_utf8_lossy(&decoded[..end]).into_owned())
    }

    /// RFC 4648 §4, padding optional.
    fn decode(text: &[u8]) -> Option<Vec<u8>> {
        let (mut bits, mut bit_count) = (0_u32, 0);
        let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
        let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
        for &byte in &text[..end] {
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
            bit_count += 6;
            if bit_count >= 8 {
                bit_count -= 8;
                bytes.push((bits >> bit_count) as u8);
            }
        }
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields<'static> {
        Fields {
            client: Client::Inet { ip: "::1".parse().unwrap(), port: None },
            user: user_of(b"Basic QWxhIGRkaW46b3BlbiBzZXNhbWU="),
            method: b"GET",
            target: b"/a\"b\n\xe9",
            version: "HTTP/1.1",
            referer: None,
            agent: Some(b"x\\\" - forged"),
            status: 200,
            body_bytes: 14,
            aborted: true,
            request_id: None,
            queue: None,
            run: Some(Duration::from_micros(1_500)),
            total: Duration::from_micros(2_000),
        }
    }

    #[test]
    fn combined_has_its_fields_and_no_value_leaves_its_quotes() {
        assert_eq!(
            fields().combined(Duration::from_secs(784_111_777)),
            "::1 - Ala\\x20ddin [06/Nov/1994:08:49:37 +0000] \"GET /a\\x22b\\x0a\\xe9 HTTP/1.1\" 200 \
             14 \"-\" \"x\\x5c\\x22 - forged\" queue=- app=1.500 total=2.000 aborted\n"
        );
    }

    #[test]
    fn json_reads_back_and_long_values_are_cut() {
        let long = vec![b'a'; VALUE_BYTES_MAX + 1];
        let line = Fields { agent: Some(&long), ..fields() }.json(Duration::ZERO);
        let value: serde_json::Value = serde_json::from_str(line.trim_end()).unwrap();
        assert_eq!((&value["target"], &value["app_ms"]), (&"/a\"b\n\\xe9".into(), &1.5.into()));
        assert_eq!(value["agent"].as_str().map(str::len), Some(VALUE_BYTES_MAX));
        let line = Fields { agent: Some(&long), ..fields() }.combined(Duration::ZERO);
        assert!(line.contains("a...\""));
    }

    #[test]
    fn users_of_other_schemes_are_not_guessed() {
        assert_eq!(user_of(b"Bearer abc"), None);
        assert_eq!(user_of(b"Basic !!!"), None);
        assert_eq!(user_of(b"basic YTpi"), Some("a".to_owned()));
        assert_eq!(user_of(b""), None);
    }
}
