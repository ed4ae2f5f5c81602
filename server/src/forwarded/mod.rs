//! Who asked, and what for, where proxies in front tell it.
#![forbid(unsafe_code)]

use std::net::IpAddr;

use bytes::Bytes;

use crate::reactor::io::Peer;

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
    /// The port that was asked for.
    pub port: Option<u16>,
}
