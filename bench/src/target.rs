//! Where the requests go: the URL, the address behind it, and the bytes of one request.

use std::net::{SocketAddr, ToSocketAddrs};

/// One resolved target and its request, rendered once.
#[derive(Debug)]
pub(crate) struct Target {
    /// The first address the host resolved to.
    pub(crate) address: SocketAddr,
    /// A whole request head, ending in an empty line.
    pub(crate) request: Vec<u8>,
}

impl Target {
    /// Reads `http://HOST[:PORT][/PATH]`, resolves the host and renders a GET request.
    ///
    /// **Errors**: a sentence that names the value and what is wrong with it.
    pub(crate) fn resolve(url: &str, headers: &[Header]) -> Result<Self, String> {
        let parts = UrlParts::parse(url)?;
        let address = (parts.host, parts.port)
            .to_socket_addrs()
            .map_err(|error| format!("URL {url}: host {}: {error}", parts.host))?
            .next()
            .ok_or_else(|| format!("URL {url}: host {} has no address", parts.host))?;
        Ok(Self { address, request: render_request(&parts, headers) })
    }
}

/// One request header, checked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Header {
    name: String,
    value: String,
}

impl Header {
    /// Reads `NAME: VALUE`; used by clap.
    ///
    /// **Errors**: the text has no colon, the name is not a token, or the value holds control bytes.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, value) =
            text.split_once(':').ok_or("expected 'NAME: VALUE', found no colon".to_owned())?;
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(token) {
            return Err(format!("{name:?} is not a header name"));
        }
        let value = value.trim();
        if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
            return Err(format!("the value of {name} holds a control byte"));
        }
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

struct UrlParts<'url> {
    authority: &'url str,
    host: &'url str,
    port: u16,
    path: &'url str,
}

impl<'url> UrlParts<'url> {
    fn parse(url: &'url str) -> Result<Self, String> {
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| format!("URL {url}: only http:// is understood"))?;
        let (authority, path) = match rest.find(['/', '?', '#']) {
            Some(at) if rest[at..].starts_with('/') => rest.split_at(at),
            Some(_) => return Err(format!("URL {url}: a path must start with '/'")),
            None => (rest, "/"),
        };
        if path.bytes().any(|byte| !byte.is_ascii_graphic() || byte == b'#') {
            return Err(format!("URL {url}: percent-encode the path and leave out a fragment"));
        }
        let (host, port) = Self::split_authority(authority)
            .ok_or_else(|| format!("URL {url}: {authority:?} is not HOST[:PORT]"))?;
        Ok(Self { authority, host, port, path })
    }

    fn split_authority(authority: &str) -> Option<(&str, u16)> {
        const HTTP_PORT: u16 = 80;
        let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
            let (host, rest) = rest.split_once(']')?;
            (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
        } else {
            match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            }
        };
        let port = port.map_or(Ok(HTTP_PORT), str::parse).ok()?;
        (!host.is_empty()).then_some((host, port))
    }
}

fn render_request(parts: &UrlParts<'_>, headers: &[Header]) -> Vec<u8> {
    let mut text = format!("GET {} HTTP/1.1\r\n", parts.path);
    if !headers.iter().any(|header| header.name.eq_ignore_ascii_case("host")) {
        text.push_str(&format!("Host: {}\r\n", parts.authority));
    }
    for Header { name, value } in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_host_path_and_headers() {
        let headers = [Header::parse("X-One:  1 ").expect("a header")];
        let target = Target::resolve("http://127.0.0.1:8000/a?b=c", &headers).expect("a target");
        assert_eq!(target.address, SocketAddr::from(([127, 0, 0, 1], 8000)));
        assert_eq!(
            target.request,
            b"GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nX-One: 1\r\n\r\n"
        );
    }

    #[test]
    fn a_given_host_replaces_the_default() {
        let headers = [Header::parse("host: example.org").expect("a header")];
        let target = Target::resolve("http://[::1]", &headers).expect("a target");
        assert_eq!(target.address.port(), 80);
        assert_eq!(target.request, b"GET / HTTP/1.1\r\nhost: example.org\r\n\r\n");
    }

    #[test]
    fn wrong_urls_and_headers_are_named() {
        for url in
            ["https://a/", "http://", "http://a:b/", "http://a?x", "http://a/ b", "http://[::1"]
        {
            let error = Target::resolve(url, &[]).expect_err(url);
            assert!(error.contains(url), "{error}");
        }
        for header in ["no colon", "bad name: 1", ": 1", "A: b\rc"] {
            assert!(Header::parse(header).is_err(), "{header:?}");
        }
    }
}
