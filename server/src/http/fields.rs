//! What the fields of a request mean for the connection, gathered in one pass over them.

use super::framing::{FramingFields, RequestFraming};
use super::grammar::{is_host_and_port, list};
use super::head::Version;
use super::request_line::{MethodKind, RequestLine};
use super::violation::Violation;

/// What the fields said so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gathered {
    framing: FramingFields,
    has_host: bool,
    /// Options of the Connection fields.
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    /// `websocket` among the protocols of the Upgrade fields.
    to_websocket: bool,
    expects_continue: bool,
    expects_else: bool,
}

/// What a head asks of the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Meaning {
    pub(super) framing: RequestFraming,
    pub(super) keep_alive: bool,
    pub(super) expects_continue: bool,
    pub(super) wants_websocket: bool,
}

impl Gathered {
    /// Takes one field; most are none of ours, which their length and first byte tell.
    #[inline]
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        let first = name.first().map_or(0, u8::to_ascii_lowercase);
        let is = |lower_name: &[u8]| name.eq_ignore_ascii_case(lower_name);
        match (name.len(), first) {
            (4, b'h') if is(b"host") => self.host(value),
            (6, b'e') if is(b"expect") => {
                self.expect(value);
                Ok(())
            }
            (7, b'u') if is(b"upgrade") => {
                self.to_websocket |= list(value).any(is_websocket);
                Ok(())
            }
            (10, b'c') if is(b"connection") => {
                self.connection(value);
                Ok(())
            }
            (14, b'c') if is(b"content-length") => self.framing.content_length(value),
            (17, b't') if is(b"transfer-encoding") => self.framing.transfer_encoding(value),
            _ => Ok(()),
        }
    }

    fn host(&mut self, value: &[u8]) -> Result<(), Violation> {
        if self.has_host {
            return Err(Violation::HostRepeated);
        }
        self.has_host = true;
        if is_host_and_port(value) { Ok(()) } else { Err(Violation::HostInvalid) }
    }

    fn connection(&mut self, value: &[u8]) {
        for option in list(value) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            self.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
        }
    }

    fn expect(&mut self, value: &[u8]) {
        for expectation in list(value).filter(|expectation| !expectation.is_empty()) {
            if expectation.eq_ignore_ascii_case(b"100-continue") {
                self.expects_continue = true;
            } else {
                self.expects_else = true;
            }
        }
    }

    /// All fields were seen.
    pub(super) fn decide(self, line: &RequestLine) -> Result<Meaning, Violation> {
        let is_http11 = line.version == Version::Http11;
        if is_http11 && !self.has_host {
            return Err(Violation::HostMissing);
        }
        let framing = self.framing.decide(line.version)?;
        // "A server that receives a 100-continue expectation in an HTTP/1.0 request MUST ignore
        // that expectation": RFC 9110 §10.1.1. So we do with every other.
        if is_http11 && self.expects_else {
            return Err(Violation::UnknownExpectation);
        }
        let has_body = match framing {
            RequestFraming::None | RequestFraming::Length(0) => false,
            RequestFraming::Length(_) | RequestFraming::Chunked => true,
        };
        Ok(Meaning {
            framing,
            keep_alive: !self.close && (is_http11 || self.keep_alive),
            expects_continue: is_http11 && self.expects_continue && has_body,
            wants_websocket: is_http11
                && line.kind == MethodKind::Get
                && self.upgrade
                && self.to_websocket,
        })
    }
}

/// One element of an Upgrade field, which may have a version: RFC 9110 §7.8.
fn is_websocket(protocol: &[u8]) -> bool {
    let name = protocol.split(|&byte| byte == b'/').next().unwrap_or_default();
    name.eq_ignore_ascii_case(b"websocket")
}

#[cfg(test)]
mod tests {
    use super::super::testing::head_of;
    use super::*;

    #[test]
    fn hosts() {
        let host = |fields: &str| head_of(format!("GET / HTTP/1.1\r\n{fields}\r\n")).map(|_| ());
        for good in ["Host: a\r\n", "HOST:\r\n", "host: a:8\r\n", "Host: [::1]\r\n"] {
            assert_eq!(host(good), Ok(()), "{good:?}");
        }
        assert_eq!(host("X-Host: a\r\n"), Err(Violation::HostMissing));
        assert_eq!(host("Host: a\r\nHost: a\r\n"), Err(Violation::HostRepeated));
        for bad in ["a b", "u@a", "a/b", "a:b", "a,b:1:2", "a\\", "<a>"] {
            assert_eq!(host(&format!("Host: {bad}\r\n")), Err(Violation::HostInvalid), "{bad:?}");
        }
        assert!(head_of("GET / HTTP/1.0\r\n\r\n").is_ok(), "1.0 has no Host");
        let absolute = "GET http://a/ HTTP/1.1\r\n\r\n";
        assert_eq!(head_of(absolute).map(|_| ()), Err(Violation::HostMissing));
        let head = head_of("GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n").unwrap();
        assert_eq!(head.authority(), Some(b"a".as_slice()));
    }

    #[test]
    fn persistence() {
        for (version, fields, keep_alive) in [
            ("1.1", "", true),
            ("1.1", "Connection: close\r\n", false),
            ("1.1", "Connection: Keep-Alive\r\n", true),
            ("1.1", "Connection: keep-alive, CLOSE\r\n", false),
            ("1.1", "Connection: foo\r\nConnection: ,close,\r\n", false),
            ("1.1", "Connection: closed\r\n", true),
            ("1.1", "Proxy-Connection: close\r\n", true),
            ("1.0", "", false),
            ("1.0", "Connection: keep-alive\r\n", true),
            ("1.0", "Connection: foo ,\tKeep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive\r\nConnection: close\r\n", false),
        ] {
            let head = head_of(format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n")).unwrap();
            assert_eq!(head.keep_alive(), keep_alive, "{version} {fields:?}");
        }
    }

    #[test]
    fn expectations() {
        for (version, fields, expected) in [
            ("1.1", "Expect: 100-continue\r\nContent-Length: 5\r\n", Ok(true)),
            ("1.1", "Expect: 100-Continue\r\nTransfer-Encoding: chunked\r\n", Ok(true)),
            ("1.1", "Expect: 100-continue\r\n", Ok(false)),
            ("1.1", "Expect: 100-continue\r\nContent-Length: 0\r\n", Ok(false)),
            ("1.1", "Expect:\r\nContent-Length: 5\r\n", Ok(false)),
            ("1.0", "Expect: 100-continue\r\nContent-Length: 5\r\n", Ok(false)),
            ("1.0", "Expect: else\r\n", Ok(false)),
            ("1.1", "Expect: else\r\n", Err(Violation::UnknownExpectation)),
            ("1.1", "Expect: 100-continue, else\r\n", Err(Violation::UnknownExpectation)),
            ("1.1", "Expect: 100-continue\r\nExpect: x=y\r\n", Err(Violation::UnknownExpectation)),
        ] {
            let head = head_of(format!("POST / HTTP/{version}\r\nHost: a\r\n{fields}\r\n"));
            assert_eq!(head.map(|head| head.expects_continue()), expected, "{version} {fields:?}");
        }
    }

    #[test]
    fn upgrades() {
        let both = "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n";
        for (start, fields, wants) in [
            ("GET / HTTP/1.1", both, true),
            ("GET / HTTP/1.0", both, false),
            ("POST / HTTP/1.1", both, false),
            ("GET / HTTP/1.1", "Upgrade: websocket\r\n", false),
            ("GET / HTTP/1.1", "Connection: upgrade\r\n", false),
            ("GET / HTTP/1.1", "Connection: upgrade\r\nUpgrade: h2c\r\n", false),
            ("GET / HTTP/1.1", "Connection: upgrade\r\nUpgrade: h2c, websocket/13\r\n", true),
        ] {
            let head = head_of(format!("{start}\r\nHost: a\r\n{fields}\r\n")).unwrap();
            assert_eq!(head.wants_websocket(), wants, "{start} {fields:?}");
        }
    }
}
