//! Whom to trust: which peers may say who asked, and what of it is believed.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::forwarded::Client;

/// `--trusted-proxies` and `--trusted-fields`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Trust {
    /// Who may tell.
    pub proxies: TrustedProxies,
    /// What.
    pub fields: TrustedFields,
}

/// The proxies in front. The default is nobody.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TrustedProxies {
    everybody: bool,
    unix: bool,
    networks: Box<[Network]>,
}

/// What a trusted proxy may tell. The default is nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "a set of four things, each asked for by name")]
pub struct TrustedFields {
    /// Who asked.
    pub client: bool,
    /// With which scheme.
    pub scheme: bool,
    /// Which host.
    pub host: bool,
    /// Which port.
    pub port: bool,
}

/// Addresses with the same first bits; canonical, so that an IPv4 network is never an IPv6 one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Network {
    V4 { bits: u32, mask: u32 },
    V6 { bits: u128, mask: u128 },
}

impl Network {
    fn contains(self, ip: IpAddr) -> bool {
        match (self, ip) {
            (Self::V4 { bits, mask }, IpAddr::V4(ip)) => ip.to_bits() & mask == bits,
            (Self::V6 { bits, mask }, IpAddr::V6(ip)) => ip.to_bits() & mask == bits,
            (Self::V4 { .. }, IpAddr::V6(_)) | (Self::V6 { .. }, IpAddr::V4(_)) => false,
        }
    }
}

impl TrustedProxies {
    /// Whether somebody with this canonical address, or behind a unix socket, is believed.
    #[must_use]
    pub fn contains(&self, who: Client) -> bool {
        self.everybody
            || match who {
                Client::Unix => self.unix,
                Client::Inet { ip, .. } => self.networks.iter().any(|network| network.contains(ip)),
            }
    }
}

/// Leaves nobody or nothing in a list.
const OFF: &str = "off";

/// Why a list cannot be meant: the item at fault and what was expected in its place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BadItem {
    /// As typed.
    pub item: String,
    /// A phrase.
    pub expected: String,
}

impl BadItem {
    fn new(item: &str, expected: impl Into<String>) -> Self {
        Self { item: item.to_owned(), expected: expected.into() }
    }
}

/// The items that are not words for the whole list; `None`: the list is `off`.
///
/// # Errors
/// A word for the whole list that is not alone.
fn items<'text>(list: &'text [String], words: &[&str]) -> Result<Vec<&'text str>, BadItem> {
    let items: Vec<&str> = list.iter().map(|item| item.trim()).collect();
    match items.as_slice() {
        [OFF] => return Ok(Vec::new()),
        [_] => return Ok(items),
        _ => {}
    }
    match items.iter().find(|item| words.contains(item)) {
        Some(word) => Err(BadItem::new(word, format!("{word} alone, without other items"))),
        None => Ok(items),
    }
}

/// Reads `--trusted-proxies`.
///
/// # Errors
/// The first item that is at fault.
pub fn proxies(list: &[String]) -> Result<TrustedProxies, BadItem> {
    let mut proxies = TrustedProxies::default();
    let mut networks = Vec::new();
    for item in items(list, &["*", OFF])? {
        match item {
            "*" => proxies.everybody = true,
            "unix" => proxies.unix = true,
            _ => networks.push(network(item).map_err(|expected| BadItem::new(item, expected))?),
        }
    }
    proxies.networks = networks.into();
    Ok(proxies)
}

/// Reads `--trusted-fields`.
///
/// # Errors
/// The first item that is at fault.
pub fn fields(list: &[String]) -> Result<TrustedFields, BadItem> {
    let mut fields = TrustedFields::default();
    for item in items(list, &[OFF])? {
        match item {
            "for" => fields.client = true,
            "proto" => fields.scheme = true,
            "host" => fields.host = true,
            "port" => fields.port = true,
            _ => return Err(BadItem::new(item, "for, proto, host or port, or off alone")),
        }
    }
    Ok(fields)
}

/// An address, or a network as `ADDRESS/BITS`.
fn network(item: &str) -> Result<Network, String> {
    const EXPECTED: &str = "an address such as 10.1.2.3 or fd00::1, a network such as 10.0.0.0/8 or \
                            fd00::/8, unix, or * or off alone; a host's name is none of them";
    let (address, length) = match item.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (item, None),
    };
    let ip = address.parse::<IpAddr>().map_err(|_| EXPECTED)?;
    let width = if ip.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => width,
        Some(digits) => {
            let number = digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(digits);
            number
                .and_then(|digits| digits.parse::<u32>().ok())
                .filter(|bits| *bits <= width)
                .ok_or_else(|| format!("{address}/BITS with 0 to {width} bits"))?
        }
    };
    let (ip, length) = match (ip, ip.to_canonical()) {
        // Peers are compared canonically. A shorter prefix than this is of no IPv4 network.
        (IpAddr::V6(_), canonical @ IpAddr::V4(_)) if length >= 96 => (canonical, length - 96),
        _ => (ip, length),
    };
    masked(ip, length)
}

/// # Errors
/// The network that was probably meant, where bits behind the prefix are set.
fn masked(ip: IpAddr, length: u32) -> Result<Network, String> {
    let meant = |network: IpAddr| {
        format!("{network}/{length}, which is the network of {ip}, or {ip} alone")
    };
    match ip {
        IpAddr::V4(address) => {
            // A shift by the whole width would overflow: no bits are then kept.
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
            let bits = address.to_bits() & mask;
            if bits != address.to_bits() {
                return Err(meant(Ipv4Addr::from_bits(bits).into()));
            }
            Ok(Network::V4 { bits, mask })
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
            let bits = address.to_bits() & mask;
            if bits != address.to_bits() {
                return Err(meant(Ipv6Addr::from_bits(bits).into()));
            }
            Ok(Network::V6 { bits, mask })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    fn trusts(text: &str, ip: &str) -> bool {
        let ip = ip.parse::<IpAddr>().unwrap().to_canonical();
        proxies(&list(text)).unwrap().contains(Client::Inet { ip, port: None })
    }

    #[test]
    fn lists_contain_their_addresses_and_networks_and_no_others() {
        for (text, ip, expected) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", false),
            ("127.0.0.1,::1,unix", "::1", true),
            ("127.0.0.1", "::ffff:127.0.0.1", true),
            ("::ffff:127.0.0.1", "127.0.0.1", true),
            ("::ffff:10.0.0.0/104", "10.255.255.255", true),
            ("::ffff:10.0.0.0/104", "11.0.0.0", false),
            ("10.0.0.0/8", "10.255.255.255", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/8", "9.255.255.255", false),
            ("172.16.0.0/12", "172.31.255.255", true),
            ("172.16.0.0/12", "172.32.0.0", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "1.2.3.4", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fc00::1", false),
            ("2001:db8::1/128", "2001:db8::1", true),
            ("unix", "127.0.0.1", false),
            ("*", "1.2.3.4", true),
            ("off", "127.0.0.1", false),
            ("10.0.0.0/8, 192.168.0.0/16", "192.168.1.1", true),
        ] {
            assert_eq!(trusts(text, ip), expected, "{ip} in {text}");
        }
        for (text, expected) in
            [("unix", true), ("*", true), ("off", false), ("0.0.0.0/0,::/0", false)]
        {
            assert_eq!(proxies(&list(text)).unwrap().contains(Client::Unix), expected, "{text}");
        }
        assert_eq!(proxies(&[]), Ok(TrustedProxies::default()));
    }

    #[test]
    fn what_cannot_be_meant_is_named_with_what_was_expected() {
        let bad = |text: &str| proxies(&list(text)).unwrap_err();
        for (text, item, expected) in [
            ("::1,10.0.0.1/8", "10.0.0.1/8", "10.0.0.0/8, which is the network of 10.0.0.1"),
            ("fd00::1/64", "fd00::1/64", "fd00::/64, which is the network of fd00::1"),
            ("::ffff:10.0.0.1/104", "::ffff:10.0.0.1/104", "10.0.0.0/8, which"),
            ("10.0.0.0/33", "10.0.0.0/33", "10.0.0.0/BITS with 0 to 32 bits"),
            ("::/129", "::/129", "::/BITS with 0 to 128 bits"),
            ("10.0.0.0/+8", "10.0.0.0/+8", "10.0.0.0/BITS with"),
            ("10.0.0.0/", "10.0.0.0/", "10.0.0.0/BITS with"),
            ("10.0.0.0/255.0.0.0", "10.0.0.0/255.0.0.0", "10.0.0.0/BITS with"),
            ("nginx", "nginx", "a host's name is none of them"),
            ("127.0.0.1,", "", "an address such as"),
            ("127.0.0.1:80", "127.0.0.1:80", "an address such as"),
            ("010.0.0.1", "010.0.0.1", "an address such as"),
            ("fe80::1%eth0", "fe80::1%eth0", "an address such as"),
            ("[::1]", "[::1]", "an address such as"),
            ("UNIX", "UNIX", "an address such as"),
            ("10.0.0.0/8,*", "*", "* alone"),
            ("*,*", "*", "* alone"),
            ("off,unix", "off", "off alone"),
        ] {
            let BadItem { item: found, expected: phrase } = bad(text);
            assert_eq!(found, item, "{text}");
            assert!(phrase.starts_with(expected) || phrase.ends_with(expected), "{text}: {phrase}");
        }
    }

    #[test]
    fn fields_are_named() {
        let all = TrustedFields { client: true, scheme: true, host: true, port: true };
        assert_eq!(fields(&list("for,proto,host,port")), Ok(all));
        assert_eq!(fields(&list("off")), Ok(TrustedFields::default()));
        let two = TrustedFields { client: true, scheme: true, ..TrustedFields::default() };
        assert_eq!(fields(&list("proto,for")), Ok(two));
        for (text, item) in [("for,by", "by"), ("", ""), ("*", "*"), ("off,for", "off")] {
            assert_eq!(fields(&list(text)).unwrap_err().item, item, "{text}");
        }
    }
}
