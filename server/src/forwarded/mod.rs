//! Who asked, and what for, where trusted proxies tell it: `X-Forwarded-*`, or else `Forwarded`.
//!
//! Each proxy appends whom it saw, so the last element of a list is the nearest proxy's word and the
//! first may be the client's own invention. The walk goes from the peer towards the client for as long
//! as the address that it has reached is trusted.
//!
//! | field | what is believed of it |
//! |---|---|
//! | `X-Forwarded-For` | the address at which the walk ends |
//! | `X-Forwarded-Proto`, `-Host`, `-Port` | the last element: the nearest proxy's |
//! | `Forwarded` (RFC 7239) | the same walk; `proto` and `host` of the element at which it ends |
//!
//! `Forwarded` counts only where there is none of these four `X-Forwarded-*`: a proxy that speaks one
//! of the two languages passes a client's words in the other on unread. What is no legal value is not
//! believed, and the walk does not go past it.
#![forbid(unsafe_code)]
// Peer bytes cannot panic. Tests may: the plain library build is linted too.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod elements;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use bytes::Bytes;

use crate::http::RequestHead;
use crate::http::grammar::{is_host_and_port, parse_decimal, split_once, trim_optional_space};
use crate::limits::PROXY_HOPS_MAX;
use crate::reactor::io::Peer;
use crate::trust::{Trust, TrustedProxies};

/// Who asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Client {
    /// Somebody behind a unix socket; nobody trusted said who.
    Unix,
    /// Somebody with an address.
    Inet {
        /// Canonical: never an IPv4 address inside an IPv6 one.
        ip: IpAddr,
        /// `None`: the proxy that told the address did not tell it.
        port: Option<u16>,
    },
}

impl From<Peer> for Client {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Inet(address) => {
                Self::Inet { ip: address.ip().to_canonical(), port: Some(address.port()) }
            }
            Peer::Unix => Self::Unix,
        }
    }
}

/// How the client spoke to the outermost proxy that is trusted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scheme {
    /// In the clear.
    Http,
    /// With TLS.
    Https,
}

impl Scheme {
    /// `http` or `https`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// `http` or `https` in any case; `ws` and `wss`, as some proxies call an upgrade, mean the same.
    fn parse(text: &[u8]) -> Option<Self> {
        let is = |word: &str| text.eq_ignore_ascii_case(word.as_bytes());
        if is("https") || is("wss") {
            Some(Self::Https)
        } else if is("http") || is("ws") {
            Some(Self::Http)
        } else {
            None
        }
    }

    /// The port of a URL that names none. **Source**: RFC 9110 §4.2.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// What trusted proxies told about a request. What they did not tell is the connection's.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Origin {
    /// Who asked.
    pub client: Option<Client>,
    /// How.
    pub scheme: Option<Scheme>,
    /// The authority that was asked for: a host and perhaps a port, valid as a `Host` field.
    pub host: Option<Bytes>,
    /// The port that was asked for. Told, or the one in the authority where host or scheme were told,
    /// or the told scheme's.
    pub port: Option<u16>,
}

/// What a trusted `peer` told about the request; `None`: nothing.
#[must_use]
pub fn origin(head: &RequestHead, peer: Peer, trust: &Trust) -> Option<Box<Origin>> {
    let found = Found::in_head(head);
    let told = if found.has_x_forwarded() {
        found.told(head, peer, &trust.proxies)
    } else if found.has_forwarded {
        told_by_elements(head, peer, &trust.proxies)
    } else {
        return None;
    };
    let fields = trust.fields;
    let client = Some(told.client).filter(|client| fields.client && *client != peer.into());
    let scheme = told.scheme.filter(|_| fields.scheme);
    let host = told.host.filter(|_| fields.host).map(|host| head.share(&host));
    let port = told.port.filter(|_| fields.port);
    let port = port.or_else(|| implied_port(head, scheme, host.as_deref()));
    let origin = Origin { client, scheme, host, port };
    (origin != Origin::default()).then(|| Box::new(origin))
}

/// The port of the URL that the client used, as far as scheme and authority were told.
fn implied_port(head: &RequestHead, scheme: Option<Scheme>, host: Option<&[u8]>) -> Option<u16> {
    if scheme.is_none() && host.is_none() {
        return None;
    }
    let authority = host.or_else(|| head.authority()).or_else(|| head.field(b"host"));
    authority.and_then(port_of).or_else(|| scheme.map(Scheme::default_port))
}

/// What the proxies told, believed or not.
#[derive(Debug)]
struct Told<'head> {
    client: Client,
    scheme: Option<Scheme>,
    host: Option<Cow<'head, [u8]>>,
    port: Option<u16>,
}

const FOR: &[u8] = b"x-forwarded-for";
const FORWARDED: &[u8] = b"forwarded";

/// The fields by which proxies tell. Of several lines of a name the last holds the last element.
#[derive(Debug, Default)]
struct Found<'head> {
    has_for: bool,
    proto: Option<&'head [u8]>,
    host: Option<&'head [u8]>,
    port: Option<&'head [u8]>,
    has_forwarded: bool,
}

impl<'head> Found<'head> {
    /// Most fields are none of these, which their length and first byte tell.
    fn in_head(head: &'head RequestHead) -> Self {
        let mut found = Self::default();
        for field in head.fields() {
            let is = |lower_name: &[u8]| field.name.eq_ignore_ascii_case(lower_name);
            match (field.name.len(), field.name.first()) {
                (9, Some(b'f' | b'F')) if is(FORWARDED) => found.has_forwarded = true,
                (15, Some(b'x' | b'X')) if is(FOR) => found.has_for = true,
                (16, Some(b'x' | b'X')) if is(b"x-forwarded-host") => {
                    found.host = Some(field.value);
                }
                (16, Some(b'x' | b'X')) if is(b"x-forwarded-port") => {
                    found.port = Some(field.value);
                }
                (17, Some(b'x' | b'X')) if is(b"x-forwarded-proto") => {
                    found.proto = Some(field.value);
                }
                _ => {}
            }
        }
        found
    }

    fn has_x_forwarded(&self) -> bool {
        self.has_for || self.proto.is_some() || self.host.is_some() || self.port.is_some()
    }

    fn told(&self, head: &'head RequestHead, peer: Peer, proxies: &TrustedProxies) -> Told<'head> {
        let nodes = lines(head, FOR).flat_map(|line| line.rsplit(|&byte| byte == b','));
        let mut client = Client::from(peer);
        for node in nodes.take(PROXY_HOPS_MAX) {
            let Some(next) = Client::parse(trim_optional_space(node)) else { break };
            client = next;
            if !proxies.contains(client) {
                break;
            }
        }
        Told {
            client,
            scheme: self.proto.map(last_of).and_then(Scheme::parse),
            host: self.host.map(last_of).filter(|host| is_authority(host)).map(Cow::Borrowed),
            port: self.port.map(last_of).and_then(parse_port),
        }
    }
}

/// The lines of a field, the last first.
fn lines<'head>(
    head: &'head RequestHead,
    lower_name: &'static [u8],
) -> impl Iterator<Item = &'head [u8]> {
    let fields = head.fields().rev();
    fields.filter(|field| field.name.eq_ignore_ascii_case(lower_name)).map(|field| field.value)
}

/// The same walk through `Forwarded`. A line that is malformed ends it: what is left of it cannot be
/// told apart from what the client wrote.
fn told_by_elements<'head>(
    head: &'head RequestHead,
    peer: Peer,
    proxies: &TrustedProxies,
) -> Told<'head> {
    let mut told = Told { client: peer.into(), scheme: None, host: None, port: None };
    let mut hops_left = PROXY_HOPS_MAX;
    for line in lines(head, FORWARDED) {
        let Some(elements) = elements::of(line) else { break };
        for element in elements.into_iter().rev().take(hops_left) {
            hops_left = hops_left.saturating_sub(1);
            // The element is a trusted proxy's own: the client reached that proxy so.
            told.scheme = element.proto.as_deref().and_then(Scheme::parse);
            told.host = element.host.filter(|host| is_authority(host));
            let Some(next) = element.client.as_deref().and_then(Client::parse) else {
                return told;
            };
            told.client = next;
            if !proxies.contains(next) {
                return told;
            }
        }
    }
    told
}

impl Client {
    /// `ADDRESS`, `IPV4:PORT`, `[IPV6]` or `[IPV6]:PORT`. `unknown` and what proxies hide behind `_` are
    /// no addresses. **Source**: RFC 7239 §6.
    fn parse(text: &[u8]) -> Option<Self> {
        let (ip, port) = match text {
            [b'[', rest @ ..] => {
                let (address, behind) = split_once(rest, b']')?;
                let port = match behind {
                    [] => None,
                    [b':', port @ ..] => Some(port),
                    _ => return None,
                };
                (IpAddr::V6(parse_ascii::<Ipv6Addr>(address)?), port)
            }
            _ => match split_once(text, b':') {
                Some((address, port)) if !port.contains(&b':') => {
                    (IpAddr::V4(parse_ascii::<Ipv4Addr>(address)?), Some(port))
                }
                Some(_) | None => (parse_ascii::<IpAddr>(text)?, None),
            },
        };
        let port = match port {
            // A port may be hidden too: RFC 7239 §6.2, `obfport`.
            None | Some([b'_', _, ..]) => None,
            Some(digits) => Some(u16::try_from(parse_decimal(digits)?).ok()?),
        };
        Some(Self::Inet { ip: ip.to_canonical(), port })
    }
}

fn parse_ascii<T: FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn last_of(list: &[u8]) -> &[u8] {
    trim_optional_space(list.rsplit(|&byte| byte == b',').next().unwrap_or_default())
}

fn parse_port(digits: &[u8]) -> Option<u16> {
    u16::try_from(parse_decimal(digits)?).ok().filter(|port| *port > 0)
}

/// A host and perhaps a port. An empty host is legal in a `Host` field and tells nothing here.
fn is_authority(text: &[u8]) -> bool {
    !matches!(text.first(), None | Some(b':')) && is_host_and_port(text)
}

/// The port of a valid authority.
fn port_of(authority: &[u8]) -> Option<u16> {
    let behind_address = match authority {
        [b'[', ..] => split_once(authority, b']')?.1,
        _ => authority,
    };
    parse_port(split_once(behind_address, b':')?.1)
}
