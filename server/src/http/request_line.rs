//! The request line (RFC 9112 §3): method, target in one of its forms, version.
//!
//! | target | answer |
//! |---|---|
//! | `/a//b`, `//a`, `%2F`, `%00`, bytes from 0x80, valid UTF-8 or not | passed on as sent |
//! | `http://host/a`, `https://host` | path and query of it; `authority()` replaces Host |
//! | `http://user@host/` | 400 |
//! | `*` | with OPTIONS only, else 400 |
//! | `host:port` | 400; CONNECT is 501: this server is no proxy |
//! | `#fragment`, control bytes, white space | 400 |
//!
//! Any token is a method; which ones it serves is the application's to say. `HTTP/1.x` above 1.1 is
//! 1.1, other major versions are 505, a line without a version is 400.

use super::grammar::{is_host_and_port, is_token, split_once};
use super::head::{Span, Version};
use super::violation::Violation;
use crate::limits::METHOD_BYTES_MAX;

/// A request line, as spans over the head it begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct RequestLine {
    pub(super) method: Span,
    pub(super) target: Span,
    /// Empty for an absolute form without a path, which means `/`.
    pub(super) path: Span,
    pub(super) query: Span,
    /// Of an absolute form.
    pub(super) authority: Option<Span>,
    pub(super) version: Version,
    pub(super) kind: MethodKind,
}

/// The methods that change what the server does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MethodKind {
    Get,
    Head,
    Options,
    Other,
}

impl RequestLine {
    /// `line`: from the head's first byte, without CR LF.
    pub(super) fn parse(line: &[u8]) -> Result<Self, Violation> {
        let (method, rest) = split_once(line, b' ').ok_or(Violation::MalformedRequestLine)?;
        if !is_token(method) {
            return Err(Violation::MalformedRequestLine);
        }
        // "A server that receives a method longer than any that it implements SHOULD respond with a
        // 501 (Not Implemented) status code."
        if method.len() > METHOD_BYTES_MAX {
            return Err(Violation::MethodTooLong);
        }
        let Some((target, version)) = rest.split_last_chunk::<VERSION_BYTES>() else {
            return Err(Violation::MalformedRequestLine);
        };
        // Before the target, so that the preface of HTTP/2 (`PRI * HTTP/2.0`) hears 505.
        let version = parse_version(version)?;
        let kind = match method {
            b"GET" => MethodKind::Get,
            b"HEAD" => MethodKind::Head,
            b"OPTIONS" => MethodKind::Options,
            b"CONNECT" => return Err(Violation::ConnectMethod),
            _ => MethodKind::Other,
        };
        let target_span = Span::starting_at(method.len().saturating_add(1), target.len());
        let (authority, path_and_query) = parse_target(target, target_span, kind)?;
        let text = path_and_query.of(line);
        let (path, query) = match memchr::memchr(b'?', text) {
            Some(mark) => path_and_query.split_around(mark),
            None => (path_and_query, Span::default()),
        };
        let method = Span::starting_at(0, method.len());
        Ok(Self { method, target: target_span, path, query, authority, version, kind })
    }
}

/// ` HTTP/1.1`, with the space that ends the target.
const VERSION_BYTES: usize = 9;

fn parse_version(text: &[u8; VERSION_BYTES]) -> Result<Version, Violation> {
    match text {
        b" HTTP/1.1" => Ok(Version::Http11),
        b" HTTP/1.0" => Ok(Version::Http10),
        [b' ', b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            // "A recipient ... SHOULD process a message with a higher minor version as if it were
            // the highest minor version within that major version": RFC 9110 §6.2.
            if *major == b'1' { Ok(Version::Http11) } else { Err(Violation::UnsupportedVersion) }
        }
        _ => Err(Violation::MalformedRequestLine),
    }
}

/// Gives the authority of an absolute form, and path with query.
fn parse_target(
    target: &[u8],
    span: Span,
    kind: MethodKind,
) -> Result<(Option<Span>, Span), Violation> {
    // Bytes from 0x80 are no URI, but clients send them: the bridge decodes them as the
    // interfaces say. So are `"<>\^`{|}`, which every other server accepts.
    if target.iter().any(|&byte| byte <= b' ' || byte == 0x7f || byte == b'#') {
        let fragment = target.iter().all(|&byte| byte > b' ' && byte != 0x7f);
        return Err(if fragment { Violation::TargetFragment } else { Violation::InvalidTarget });
    }
    match target {
        [b'/', ..] => Ok((None, span)),
        [] => Err(Violation::MalformedRequestLine),
        b"*" if kind == MethodKind::Options => Ok((None, span)),
        _ => parse_absolute(target, span),
    }
}

fn parse_absolute(target: &[u8], span: Span) -> Result<(Option<Span>, Span), Violation> {
    let scheme_bytes = ["http://", "https://"]
        .iter()
        .find(|scheme| {
            let start = target.get(..scheme.len()).unwrap_or_default();
            start.eq_ignore_ascii_case(scheme.as_bytes())
        })
        .map(|scheme| scheme.len())
        .ok_or(Violation::TargetForm)?;
    let (_, rest) = span.split_at(scheme_bytes);
    let after_scheme = target.get(scheme_bytes..).unwrap_or_default();
    let authority_bytes = memchr::memchr2(b'/', b'?', after_scheme).unwrap_or(after_scheme.len());
    let authority = after_scheme.get(..authority_bytes).unwrap_or_default();
    if authority.contains(&b'@') {
        return Err(Violation::TargetUserinfo);
    }
    // An http URI with an empty host is invalid: RFC 9110 §4.2.1.
    if matches!(authority, [] | [b':', ..]) || !is_host_and_port(authority) {
        return Err(Violation::TargetAuthority);
    }
    let (authority, path_and_query) = rest.split_at(authority_bytes);
    Ok((Some(authority), path_and_query))
}

#[cfg(test)]
mod tests {
    use super::super::testing::head_of;
    use super::*;

    fn line(line: &str) -> Result<RequestLine, Violation> {
        RequestLine::parse(line.as_bytes())
    }

    #[test]
    fn targets() {
        for (method, target, path, query, authority) in [
            ("GET", "/", "/", "", None),
            ("GET", "//a//b", "//a//b", "", None),
            ("GET", "/%2F%00", "/%2F%00", "", None),
            ("GET", "/a?b?c=d", "/a", "b?c=d", None),
            ("GET", "/?", "/", "", None),
            ("GET", "/a|b{}\"<>^`\\", "/a|b{}\"<>^`\\", "", None),
            ("GET", "/é", "/é", "", None),
            ("GET", "/http://x@y/", "/http://x@y/", "", None),
            ("OPTIONS", "*", "*", "", None),
            ("GET", "http://a", "/", "", Some("a")),
            ("GET", "HTTPS://a:8/b?c", "/b", "c", Some("a:8")),
            ("GET", "http://[::1]:8?c", "/", "c", Some("[::1]:8")),
            ("GET", "http://a/@", "/@", "", Some("a")),
            ("M-SEARCH", "/", "/", "", None),
        ] {
            let head = head_of(format!("{method} {target} HTTP/1.1\r\nHost:\r\n\r\n"))
                .unwrap_or_else(|violation| panic!("{target}: {violation}"));
            assert_eq!(head.method(), method.as_bytes());
            assert_eq!(head.target(), target.as_bytes());
            assert_eq!(head.path(), path.as_bytes(), "{target}");
            assert_eq!(head.query(), query.as_bytes(), "{target}");
            assert_eq!(head.authority(), authority.map(str::as_bytes), "{target}");
        }
        let invalid_utf8 = RequestLine::parse(b"GET /\xff\x80 HTTP/1.1").unwrap();
        assert_eq!(invalid_utf8.path.of(b"GET /\xff\x80 HTTP/1.1"), b"/\xff\x80");
    }

    #[test]
    fn refused_targets() {
        for (target, violation) in [
            ("/a#b", Violation::TargetFragment),
            ("/a b", Violation::InvalidTarget),
            (" /", Violation::InvalidTarget),
            ("/ ", Violation::InvalidTarget),
            ("/\t", Violation::InvalidTarget),
            ("/\0", Violation::InvalidTarget),
            ("/\x7f", Violation::InvalidTarget),
            ("/\r", Violation::InvalidTarget),
            ("*", Violation::TargetForm),
            ("a", Violation::TargetForm),
            ("a:80", Violation::TargetForm),
            ("ftp://a/", Violation::TargetForm),
            ("http:/a", Violation::TargetForm),
            ("?a", Violation::TargetForm),
            ("http://u@a/", Violation::TargetUserinfo),
            ("http://u:p@a/", Violation::TargetUserinfo),
            ("http:///a", Violation::TargetAuthority),
            ("http://", Violation::TargetAuthority),
            ("http://:80/", Violation::TargetAuthority),
            ("http://a\\b/", Violation::TargetAuthority),
            ("", Violation::MalformedRequestLine),
        ] {
            assert_eq!(line(&format!("GET {target} HTTP/1.1")), Err(violation), "{target:?}");
        }
        assert_eq!(line("OPTIONS ** HTTP/1.1"), Err(Violation::TargetForm));
        assert_eq!(line("CONNECT a:80 HTTP/1.1"), Err(Violation::ConnectMethod));
    }

    #[test]
    fn versions() {
        for (version, expected) in [
            ("HTTP/1.1", Ok(Version::Http11)),
            ("HTTP/1.0", Ok(Version::Http10)),
            ("HTTP/1.2", Ok(Version::Http11)),
            ("HTTP/1.9", Ok(Version::Http11)),
            ("HTTP/2.0", Err(Violation::UnsupportedVersion)),
            ("HTTP/0.9", Err(Violation::UnsupportedVersion)),
            ("HTTP/9.9", Err(Violation::UnsupportedVersion)),
            ("http/1.1", Err(Violation::MalformedRequestLine)),
            ("HTTP/1", Err(Violation::MalformedRequestLine)),
            ("HTTP/11.1", Err(Violation::MalformedRequestLine)),
            ("HTTP/1.10", Err(Violation::MalformedRequestLine)),
            ("HTTP/1,1", Err(Violation::MalformedRequestLine)),
            ("HTTP/1.1 ", Err(Violation::MalformedRequestLine)),
            ("HTCPCP/1.0", Err(Violation::MalformedRequestLine)),
        ] {
            let parsed = line(&format!("GET / {version}")).map(|line| line.version);
            assert_eq!(parsed, expected, "{version:?}");
        }
        assert_eq!(line("PRI * HTTP/2.0"), Err(Violation::UnsupportedVersion));
    }

    #[test]
    fn methods() {
        for bad in
            ["", "GET", "GET /", " GET / HTTP/1.1", "G(T / HTTP/1.1", "GÉT / HTTP/1.1", "G\tT /"]
        {
            assert_eq!(line(bad), Err(Violation::MalformedRequestLine), "{bad:?}");
        }
        let longest = "M".repeat(METHOD_BYTES_MAX);
        assert!(line(&format!("{longest} / HTTP/1.1")).is_ok());
        assert_eq!(line(&format!("{longest}M / HTTP/1.1")), Err(Violation::MethodTooLong));
        assert_eq!(line("get / HTTP/1.1").map(|line| line.kind), Ok(MethodKind::Other));
    }
}
