use std::net::SocketAddr;

use bytes::BytesMut;

use super::*;
use crate::http::connection::{Connection, HttpLimits, Input};
use crate::limits::{FIELD_COUNT_MAX, HEAD_BYTES_MAX, REQUEST_LINE_BYTES_MAX};
use crate::trust;

const LIMITS: HttpLimits = HttpLimits {
    request_line_bytes_max: REQUEST_LINE_BYTES_MAX,
    head_bytes_max: HEAD_BYTES_MAX,
    field_count_max: FIELD_COUNT_MAX,
};

fn head(fields: &[u8]) -> Option<RequestHead> {
    let mut input = BytesMut::from(&b"GET / HTTP/1.1\r\n"[..]);
    input.extend_from_slice(fields);
    input.extend_from_slice(b"\r\n");
    match Connection::new(LIMITS).receive(&mut input) {
        Ok(Some(Input::Head(head))) => Some(head),
        Ok(_) | Err(_) => None,
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

fn trust(proxies: &str, fields: &str) -> Trust {
    Trust {
        proxies: trust::proxies(&list(proxies)).unwrap(),
        fields: trust::fields(&list(fields)).unwrap(),
    }
}

fn peer() -> Peer {
    Peer::Inet(SocketAddr::from(([127, 0, 0, 1], 5000)))
}

/// `client scheme host port`, `-` for what was not told. Lines of `fields` are separated by ` / `.
fn told_to(fields: &str, peer: Peer, trust: &Trust) -> String {
    let mut lines = fields.split(" / ").filter(|line| !line.is_empty()).collect::<Vec<_>>();
    if !lines.iter().any(|line| line.starts_with("Host:")) {
        lines.push("Host: site");
    }
    let lines = lines.iter().flat_map(|line| [line, "\r\n"]).collect::<String>();
    let origin = origin(&head(lines.as_bytes()).unwrap(), peer, trust);
    let Some(origin) = origin else { return "nothing".to_owned() };
    let client = match origin.client {
        Some(Client::Inet { ip, port: Some(port) }) => SocketAddr::new(ip, port).to_string(),
        Some(Client::Inet { ip, port: None }) => ip.to_string(),
        Some(Client::Unix) => panic!("nobody tells that"),
        None => "-".to_owned(),
    };
    let scheme = origin.scheme.map_or("-", Scheme::as_str);
    let host = origin.host.map_or_else(|| "-".into(), |host| host.escape_ascii().to_string());
    let port = origin.port.map_or_else(|| "-".to_owned(), |port| port.to_string());
    format!("{client} {scheme} {host} {port}")
}

const ALL: &str = "for,proto,host,port";

fn check(cases: &[(&str, &str)]) {
    let trust = trust("127.0.0.1,::1,unix,10.0.0.0/8", ALL);
    for (fields, expected) in cases {
        assert_eq!(told_to(fields, peer(), &trust), *expected, "{fields}");
    }
}

#[test]
fn the_walk_goes_from_the_right_for_as_long_as_it_stands_on_a_trusted_address() {
    check(&[
        ("", "nothing"),
        ("Accept: a", "nothing"),
        ("X-Forwarded-For: 1.2.3.4", "1.2.3.4 - - -"),
        ("x-forwarded-for:1.2.3.4", "1.2.3.4 - - -"),
        ("X-FORWARDED-FOR: 1.2.3.4", "1.2.3.4 - - -"),
        ("X-Forwarded-For: 6.6.6.6, 1.2.3.4", "1.2.3.4 - - -"),
        ("X-Forwarded-For: 6.6.6.6,1.2.3.4, 10.0.0.1", "1.2.3.4 - - -"),
        ("X-Forwarded-For: 6.6.6.6 / X-Forwarded-For: 1.2.3.4", "1.2.3.4 - - -"),
        ("X-Forwarded-For: 6.6.6.6, 1.2.3.4 / X-Forwarded-For: 10.0.0.1", "1.2.3.4 - - -"),
        ("X-Forwarded-For: 1.2.3.4 / Accept: a / x-forwarded-for: 10.0.0.1,::1", "1.2.3.4 - - -"),
        // Everybody is trusted: the leftmost.
        ("X-Forwarded-For: 10.0.0.3, 10.0.0.2, 10.0.0.1", "10.0.0.3 - - -"),
        ("X-Forwarded-For: 127.0.0.1", "127.0.0.1 - - -"),
        // Ports and IPv6.
        ("X-Forwarded-For: 1.2.3.4:567", "1.2.3.4:567 - - -"),
        ("X-Forwarded-For: 1.2.3.4:0", "1.2.3.4:0 - - -"),
        ("X-Forwarded-For: ::1, 10.0.0.1:99", "::1 - - -"),
        ("X-Forwarded-For: 2001:DB8::7", "2001:db8::7 - - -"),
        ("X-Forwarded-For: [2001:db8::7]", "2001:db8::7 - - -"),
        ("X-Forwarded-For: [2001:db8::7]:567, [::1]:1", "[2001:db8::7]:567 - - -"),
        ("X-Forwarded-For: 1.2.3.4, ::ffff:10.0.0.1", "1.2.3.4 - - -"),
        ("X-Forwarded-For: ::ffff:1.2.3.4", "1.2.3.4 - - -"),
        ("X-Forwarded-For: [::ffff:1.2.3.4]:5", "1.2.3.4:5 - - -"),
        ("X-Forwarded-For: 1.2.3.4:_hidden", "1.2.3.4 - - -"),
    ]);
}

#[test]
fn what_is_no_address_stops_the_walk_and_the_last_known_address_stands() {
    for element in [
        "",
        "unknown",
        "_hidden",
        "garbage",
        "1.2.3",
        "1.2.3.4.5",
        "256.1.1.1",
        "01.2.3.4",
        "1.2.3.4:",
        "1.2.3.4:65536",
        "1.2.3.4:+5",
        "1.2.3.4:5:6",
        "[::1",
        "[::1]5",
        "[::1]:x",
        "[]",
        "[1.2.3.4]",
        "::1]",
        "fe80::1%eth0",
        "[fe80::1%eth0]",
        "1.2.3.4 ::1",
        "\"1.2.3.4\"",
        "1.2.3.4;",
        "localhost",
        "1.2.3.4/8",
        "0x7f000001",
        "1",
        "1.2.3.4:_",
        "\u{661}.2.3.4",
    ] {
        check(&[
            (&format!("X-Forwarded-For: 6.6.6.6, {element}"), "nothing"),
            (&format!("X-Forwarded-For: 6.6.6.6, {element}, 10.0.0.1"), "10.0.0.1 - - -"),
            (&format!("X-Forwarded-For: {element}, 1.2.3.4, 10.0.0.1"), "1.2.3.4 - - -"),
        ]);
    }
}

#[test]
fn a_walk_ends_after_so_many_proxies() {
    let hops = |count: usize| vec!["10.0.0.1"; count].join(",");
    let trust = trust("127.0.0.1,10.0.0.0/8", ALL);
    let told = |list: &str| told_to(list, peer(), &trust);
    let last = hops(PROXY_HOPS_MAX - 1);
    assert_eq!(told(&format!("X-Forwarded-For: 1.2.3.4,{last}")), "1.2.3.4 - - -");
    let more = hops(PROXY_HOPS_MAX);
    assert_eq!(told(&format!("X-Forwarded-For: 1.2.3.4,{more}")), "10.0.0.1 - - -");
    let elements = |count| hops(count).replace("10.", "for=10.");
    let (last, more) = (elements(PROXY_HOPS_MAX - 1), elements(PROXY_HOPS_MAX));
    assert_eq!(told(&format!("Forwarded: for=1.2.3.4,{last}")), "1.2.3.4 - - -");
    assert_eq!(told(&format!("Forwarded: for=1.2.3.4,{more}")), "10.0.0.1 - - -");
    assert_eq!(told(&format!("Forwarded: for=1.2.3.4 / Forwarded: {more}")), "10.0.0.1 - - -");
}

#[test]
fn scheme_host_and_port_are_the_nearest_proxys() {
    check(&[
        ("X-Forwarded-Proto: https", "- https - 443"),
        ("X-Forwarded-Proto: HTTPS", "- https - 443"),
        ("X-Forwarded-Proto: http", "- http - 80"),
        ("X-Forwarded-Proto: wss", "- https - 443"),
        ("X-Forwarded-Proto: ws", "- http - 80"),
        ("X-Forwarded-Proto: http, https", "- https - 443"),
        ("X-Forwarded-Proto: https, http", "- http - 80"),
        ("X-Forwarded-Proto: http / X-Forwarded-Proto: https", "- https - 443"),
        ("X-Forwarded-Proto: https, ftp", "nothing"),
        ("X-Forwarded-Proto: https,", "nothing"),
        ("X-Forwarded-Proto:", "nothing"),
        ("X-Forwarded-Proto: httpsx", "nothing"),
        // Independent of the addresses.
        ("X-Forwarded-For: garbage / X-Forwarded-Proto: https", "- https - 443"),
        ("X-Forwarded-For: 1.2.3.4 / X-Forwarded-Proto: ftp", "1.2.3.4 - - -"),
        ("X-Forwarded-For: 1.2.3.4 / X-Forwarded-Proto: https", "1.2.3.4 https - 443"),
        ("X-Forwarded-Host: a.example", "- - a.example -"),
        ("X-Forwarded-Host: evil, a.example:8443", "- - a.example:8443 8443"),
        ("X-Forwarded-Host: [::1]:8443", "- - [::1]:8443 8443"),
        ("X-Forwarded-Host: [::1]", "- - [::1] -"),
        ("X-Forwarded-Host: a.example / X-Forwarded-Proto: https", "- https a.example 443"),
        ("X-Forwarded-Host: a/b", "nothing"),
        ("X-Forwarded-Host: a b", "nothing"),
        ("X-Forwarded-Host: u@a", "nothing"),
        ("X-Forwarded-Host: a:b", "nothing"),
        ("X-Forwarded-Host: a:1:2", "nothing"),
        ("X-Forwarded-Host: \"a\"", "nothing"),
        ("X-Forwarded-Host: a\u{e4}", "nothing"),
        ("X-Forwarded-Host:", "nothing"),
        ("X-Forwarded-Host: :80", "nothing"),
        ("X-Forwarded-Host: a.example,", "nothing"),
        ("X-Forwarded-Host: a/b / X-Forwarded-Proto: https", "- https - 443"),
        ("X-Forwarded-Port: 8443", "- - - 8443"),
        ("X-Forwarded-Port: 80, 8443", "- - - 8443"),
        ("X-Forwarded-Port: 0", "nothing"),
        ("X-Forwarded-Port: 65535", "- - - 65535"),
        ("X-Forwarded-Port: 65536", "nothing"),
        ("X-Forwarded-Port: +1", "nothing"),
        ("X-Forwarded-Port: 1 2", "nothing"),
        ("X-Forwarded-Port: 8443 / X-Forwarded-Proto: https", "- https - 8443"),
        ("X-Forwarded-Port: 1 / X-Forwarded-Host: a:2", "- - a:2 1"),
    ]);
}

#[test]
fn a_port_that_nobody_told_is_the_authoritys_or_the_schemes() {
    check(&[
        ("Host: site:8080 / X-Forwarded-Proto: https", "- https - 8080"),
        ("Host: site: / X-Forwarded-Proto: https", "- https - 443"),
        ("Host: site:99999 / X-Forwarded-Proto: https", "- https - 443"),
        ("Host: [::1]:8080 / X-Forwarded-Proto: http", "- http - 8080"),
        ("Host: [::1] / X-Forwarded-Proto: http", "- http - 80"),
        ("Host: site:8080 / X-Forwarded-Host: a / X-Forwarded-Proto: https", "- https a 443"),
        ("Host: site:8080 / X-Forwarded-For: 1.2.3.4", "1.2.3.4 - - -"),
        ("Host: site:8080 / X-Forwarded-Port: 7 / X-Forwarded-Proto: https", "- https - 7"),
    ]);
}

#[test]
fn forwarded_is_walked_and_the_element_where_the_walk_ends_tells_scheme_and_host() {
    check(&[
        ("Forwarded: for=1.2.3.4", "1.2.3.4 - - -"),
        ("forwarded: FOR=1.2.3.4;Proto=HTTPS;HOST=a", "1.2.3.4 https a 443"),
        ("Forwarded: for=\"1.2.3.4:567\"", "1.2.3.4:567 - - -"),
        ("Forwarded: for=\"[2001:db8::7]:567\"", "[2001:db8::7]:567 - - -"),
        ("Forwarded: for=\"[2001:db8::7]\"", "2001:db8::7 - - -"),
        ("Forwarded: for=\"1.2.3.4:_port\"", "1.2.3.4 - - -"),
        ("Forwarded: for=6.6.6.6;proto=http, for=1.2.3.4;proto=https", "1.2.3.4 https - 443"),
        (
            "Forwarded: for=6.6.6.6;host=evil, for=1.2.3.4;host=a;proto=https, for=10.0.0.1;proto=http",
            "1.2.3.4 https a 443",
        ),
        (
            "Forwarded: for=6.6.6.6 / Forwarded: for=1.2.3.4 / Forwarded: for=10.1.1.1",
            "1.2.3.4 - - -",
        ),
        ("Forwarded: for=10.0.0.2;proto=https, for=10.0.0.1;proto=http", "10.0.0.2 https - 443"),
        ("Forwarded: by=_proxy;for=1.2.3.4;secret=x", "1.2.3.4 - - -"),
        ("Forwarded: proto=https", "- https - 443"),
        ("Forwarded: host=\"a.example:8443\";proto=https", "- https a.example:8443 8443"),
        ("Forwarded: host=\"a\\.exa\\mple\"", "- - a.example -"),
        // Hidden or unknown: the walk ends, the element is still the trusted proxy's.
        ("Forwarded: for=6.6.6.6, for=unknown;proto=https", "- https - 443"),
        ("Forwarded: for=6.6.6.6, for=_hidden;proto=https, for=10.0.0.1", "10.0.0.1 https - 443"),
        ("Forwarded: for=6.6.6.6;proto=https, proto=http", "- http - 80"),
        ("Forwarded: for=6.6.6.6,", "nothing"),
        ("Forwarded:", "nothing"),
        // White space and empty pairs.
        ("Forwarded: for=1.2.3.4 ; proto=https ;", "1.2.3.4 https - 443"),
        ("Forwarded: ;;for=1.2.3.4", "1.2.3.4 - - -"),
        ("Forwarded: for=6.6.6.6\t,\tfor=1.2.3.4", "1.2.3.4 - - -"),
        // Separators inside quotes are none.
        ("Forwarded: for=6.6.6.6, for=1.2.3.4;by=\"a,for=7.7.7.7;\\\",\"", "1.2.3.4 - - -"),
        ("Forwarded: for=1.2.3.4;host=\"a, b\"", "1.2.3.4 - - -"),
        ("Forwarded: for=1.2.3.4;proto=ftp;host=\"u@a\"", "1.2.3.4 - - -"),
    ]);
}

#[test]
fn a_malformed_line_of_forwarded_is_ignored_as_a_whole_and_ends_the_walk() {
    for line in [
        "for",
        "for=",
        "=1.2.3.4",
        "for=1.2.3.4=5",
        "for=1.2.3.4:567",
        "for=[::1]",
        "for=1.2.3.4 proto=https",
        "for =1.2.3.4",
        "for= 1.2.3.4",
        "for=\"1.2.3.4",
        "for=\"1.2.3.4\\",
        "for=\"1.2.3.4\"x",
        "for=1.2.3.4;for=1.2.3.4",
        "proto=http;PROTO=https",
        "for=1.2.3.4;host=a:80",
        "for=1.2.3.4;b@d=1",
        "for=1.2.3.4, \"",
        "\", for=1.2.3.4",
    ] {
        check(&[
            (&format!("Forwarded: {line}"), "nothing"),
            (
                &format!("Forwarded: {line} / Forwarded: for=10.0.0.1;proto=https"),
                "10.0.0.1 https - 443",
            ),
            (&format!("Forwarded: for=6.6.6.6 / Forwarded: {line}"), "nothing"),
        ]);
    }
}

#[test]
fn forwarded_is_not_read_beside_any_field_of_the_other_language() {
    for field in [
        "X-Forwarded-For: garbage",
        "X-Forwarded-For:",
        "X-Forwarded-Proto: ftp",
        "X-Forwarded-Host: a b",
        "X-Forwarded-Port: x",
    ] {
        check(&[(&format!("Forwarded: for=6.6.6.6;proto=https;host=evil / {field}"), "nothing")]);
    }
    let told = "Forwarded: for=6.6.6.6;proto=https / X-Forwarded-For: 1.2.3.4";
    check(&[(told, "1.2.3.4 - - -")]);
    // Also where the other one may not be believed.
    let trust = trust("127.0.0.1", "for");
    let fields = "Forwarded: for=6.6.6.6 / X-Forwarded-Proto: https";
    assert_eq!(told_to(fields, peer(), &trust), "nothing");
}

/// PRODUCTION 4: an underscore is no dash.
#[test]
fn behaviour_4_names_with_underscores_and_other_names_never_count() {
    check(&[
        ("X_Forwarded_For: 1.2.3.4", "nothing"),
        ("X-Forwarded_For: 1.2.3.4", "nothing"),
        ("X_Forwarded-Proto: https", "nothing"),
        ("X_Forwarded_Host: evil / X_Forwarded_Port: 1", "nothing"),
        ("X-Forwarded-Fo: 1.2.3.4 / X-Forwarded-Forx: 1.2.3.4", "nothing"),
        ("X-Real-IP: 1.2.3.4 / X-Forwarded-Ssl: on / X-Scheme: https", "nothing"),
        // Nor do they keep `Forwarded` from being read.
        ("X_Forwarded_For: 6.6.6.6 / Forwarded: for=1.2.3.4", "1.2.3.4 - - -"),
    ]);
}

#[test]
fn only_what_is_listed_is_believed() {
    let fields = "X-Forwarded-For: 1.2.3.4 / X-Forwarded-Proto: https / X-Forwarded-Host: a:1 / \
                  X-Forwarded-Port: 7";
    for (trusted, expected) in [
        ("for", "1.2.3.4 - - -"),
        ("proto", "- https - 443"),
        ("host", "- - a:1 1"),
        ("port", "- - - 7"),
        ("for,proto", "1.2.3.4 https - 443"),
        ("for,proto,port", "1.2.3.4 https - 7"),
        ("host,proto", "- https a:1 1"),
        ("off", "nothing"),
        (ALL, "1.2.3.4 https a:1 7"),
    ] {
        assert_eq!(told_to(fields, peer(), &trust("127.0.0.1", trusted)), expected, "{trusted}");
    }
    // The walk through `Forwarded` is the same whether its addresses are believed or not.
    let trust = trust("127.0.0.1,10.0.0.0/8", "proto");
    let fields = "Forwarded: for=1.2.3.4;proto=https, for=10.0.0.1;proto=http";
    assert_eq!(told_to(fields, peer(), &trust), "- https - 443");
}

#[test]
fn a_unix_peer_stays_one_until_somebody_is_named() {
    let trust = trust("unix,10.0.0.0/8", ALL);
    let told = |fields: &str| told_to(fields, Peer::Unix, &trust);
    assert_eq!(told("X-Forwarded-For: 1.2.3.4, 10.0.0.1"), "1.2.3.4 - - -");
    assert_eq!(told("X-Forwarded-For: unix:"), "nothing");
    assert_eq!(told("X-Forwarded-Proto: https"), "- https - 443");
}

#[test]
fn with_everybody_trusted_the_first_of_the_list_stands() {
    let trust = trust("*", ALL);
    assert_eq!(told_to("X-Forwarded-For: 6.6.6.6, 1.2.3.4", peer(), &trust), "6.6.6.6 - - -");
    assert_eq!(told_to("Forwarded: for=6.6.6.6, for=1.2.3.4", peer(), &trust), "6.6.6.6 - - -");
    assert_eq!(told_to("X-Forwarded-For: x, 1.2.3.4", peer(), &trust), "1.2.3.4 - - -");
}

#[test]
fn an_authority_in_the_target_gives_way_to_a_told_host_and_has_its_port() {
    let of = |fields: &str| {
        let mut input =
            BytesMut::from(format!("GET http://a:81/ HTTP/1.1\r\n{fields}\r\n").as_str());
        let Ok(Some(Input::Head(head))) = Connection::new(LIMITS).receive(&mut input) else {
            panic!("no head")
        };
        let origin = origin(&head, peer(), &trust("127.0.0.1", ALL)).unwrap();
        (origin.host, origin.port)
    };
    assert_eq!(of("Host: b:82\r\nX-Forwarded-Proto: https\r\n"), (None, Some(81)));
    let told = (Some(Bytes::from_static(b"c")), Some(443));
    assert_eq!(of("Host: b:82\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: c\r\n"), told);
}

/// Any bytes: no panic, and what comes out is legal.
#[test]
fn arbitrary_bytes_tell_nothing_illegal() {
    const PIECES: &[&[u8]] = &[
        b"for=",
        b"proto=",
        b"host=",
        b"\"",
        b"\\",
        b",",
        b";",
        b"=",
        b" ",
        b"\t",
        b":",
        b"[",
        b"]",
        b"1.2.3.4",
        b"10.0.0.1",
        b"::1",
        b"https",
        b"a.example",
        b"_x",
        b"unknown",
        b"0",
        b"65535",
        b"\xff",
        b"%",
        b"@",
        b"/",
        b"ws",
        b"::ffff:1.2.3.4",
        b"18446744073709551616",
    ];
    const NAMES: &[&[u8]] = &[
        b"X-Forwarded-For",
        b"X-Forwarded-Proto",
        b"X-Forwarded-Host",
        b"X-Forwarded-Port",
        b"Forwarded",
        b"X_Forwarded_For",
        b"Accept",
    ];
    let trust = trust("127.0.0.1,10.0.0.0/8,::1", ALL);
    // A linear congruence is random enough, and a failure can be had again.
    let mut state = 1_u64;
    let mut random = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % bound
    };
    let mut told_count = 0;
    for _ in 0..50_000 {
        let mut fields = b"Host: site\r\n".to_vec();
        for _ in 0..=random(2) {
            fields.extend_from_slice(NAMES[random(NAMES.len())]);
            fields.extend_from_slice(b": ");
            for _ in 0..random(10) {
                if random(8) == 0 {
                    fields.push(random(256) as u8);
                } else {
                    fields.extend_from_slice(PIECES[random(PIECES.len())]);
                }
            }
            fields.extend_from_slice(b"\r\n");
        }
        let Some(head) = head(&fields) else { continue };
        let Some(origin) = origin(&head, peer(), &trust) else { continue };
        told_count += 1;
        if let Some(Client::Inet { ip, .. }) = origin.client {
            assert_eq!(ip, ip.to_canonical());
        }
        if let Some(host) = origin.host {
            assert!(is_host_and_port(&host) && !host.is_empty());
        }
        assert_ne!(origin.port, Some(0));
    }
    assert!(told_count > 1_000, "{told_count}");
}
