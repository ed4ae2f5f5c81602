//! What trusted proxies tell is legal, and nothing that a client can put in front of it changes it.
#![no_main]

use bytes::BytesMut;
use hoopsnake_server::forwarded::{Client, Origin, origin};
use hoopsnake_server::http::RequestHead;
use hoopsnake_server::http::connection::{Connection, HttpLimits, Input};
use hoopsnake_server::limits::{FIELD_COUNT_MAX, HEAD_BYTES_MAX, REQUEST_LINE_BYTES_MAX};
use hoopsnake_server::reactor::io::Peer;
use hoopsnake_server::trust::{self, Trust};
use libfuzzer_sys::fuzz_target;

const LIMITS: HttpLimits = HttpLimits {
    request_line_bytes_max: REQUEST_LINE_BYTES_MAX,
    head_bytes_max: HEAD_BYTES_MAX,
    field_count_max: FIELD_COUNT_MAX,
};

// The input is field lines.
fuzz_target!(|data: &[u8]| {
    let trust = trust();
    let Some(head) = head(b"", data) else { return };
    let told = told(&head, &trust);
    if let Some(origin) = &told {
        check(origin);
    }
    for spelling in ["X_Forwarded_For: 6.6.6.6\r\n", "X-Forwarded_Proto: https\r\n"] {
        let Some(with) = self::head(spelling.as_bytes(), data) else { return };
        assert_eq!(self::told(&with, &trust), told, "an underscore counts");
    }
    let names = |name: &[u8]| head.fields().any(|field| field.name.eq_ignore_ascii_case(name));
    let client = told.as_ref().and_then(|origin| origin.client);
    let ended_at_a_client = client.is_some_and(|client| !trust.proxies.contains(client));
    for (name, line) in [
        ("x-forwarded-for", "X-Forwarded-For: 6.6.6.6\r\n"),
        ("x-forwarded-proto", "X-Forwarded-Proto: https\r\n"),
        ("x-forwarded-host", "X-Forwarded-Host: evil\r\n"),
        ("x-forwarded-port", "X-Forwarded-Port: 6\r\n"),
        ("forwarded", "Forwarded: for=6.6.6.6;proto=https;host=evil\r\n"),
    ] {
        // A client's own line comes first; a proxy that sets the field appends to it.
        let is_walked = matches!(name, "x-forwarded-for" | "forwarded");
        if names(name.as_bytes()) && (ended_at_a_client || !is_walked) {
            let Some(forged) = self::head(line.as_bytes(), data) else { return };
            assert_eq!(self::told(&forged, &trust), told, "{name} was forged");
        }
    }
});

fn trust() -> Trust {
    let list = |items: &[&str]| items.iter().map(ToString::to_string).collect::<Vec<_>>();
    Trust {
        proxies: trust::proxies(&list(&["127.0.0.1", "10.0.0.0/8", "fd00::/8"])).expect("legal"),
        fields: trust::fields(&list(&["for", "proto", "host", "port"])).expect("legal"),
    }
}

fn told(head: &RequestHead, trust: &Trust) -> Option<Box<Origin>> {
    origin(head, Peer::Inet("127.0.0.1:9".parse().expect("legal")), trust)
}

fn head(first: &[u8], fields: &[u8]) -> Option<RequestHead> {
    let text = [b"GET / HTTP/1.1\r\nHost: site\r\n", first, fields, b"\r\n\r\n"].concat();
    match Connection::new(LIMITS).receive(&mut BytesMut::from(text.as_slice())) {
        Ok(Some(Input::Head(head))) => Some(head),
        Ok(_) | Err(_) => None,
    }
}

fn check(origin: &Origin) {
    if let Some(Client::Inet { ip, .. }) = origin.client {
        assert_eq!(ip, ip.to_canonical());
    }
    if let Some(host) = &origin.host {
        let text = std::str::from_utf8(host).expect("ASCII");
        assert!(!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(!text.contains(['/', '@', '"', '\\', '#', '?', '<', '>', '{', '}', '|', '^', '`']));
    }
    assert_ne!(origin.port, Some(0));
}
