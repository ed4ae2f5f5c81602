//! Where the kernel writes the address of an accepted connection's peer.

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use crate::reactor::io::Peer;
use crate::sys::socket::canonical;

/// Bytes of `struct sockaddr_storage`.
const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_storage>();

#[derive(Debug)]
#[repr(C, align(8))]
struct Storage {
    address: [u8; ADDRESS_BYTES],
    length: libc::socklen_t,
}

/// Boxed, so that its address stays while an accept is in flight; one per listener, because a
/// listener has at most one accept in flight.
#[derive(Debug)]
pub(crate) struct PeerStorage(Box<UnsafeCell<Storage>>);

impl PeerStorage {
    pub(crate) fn new() -> Self {
        Self(Box::new(UnsafeCell::new(Storage { address: [0; ADDRESS_BYTES], length: 0 })))
    }

    /// What the next accept writes to. No accept is in flight.
    pub(crate) fn prepare(&mut self) -> (*mut libc::sockaddr, *mut libc::socklen_t) {
        let storage = self.0.get_mut();
        *storage = Storage { address: [0; ADDRESS_BYTES], length: ADDRESS_BYTES as u32 };
        let start: *mut Storage = self.0.get();
        let length = start.wrapping_byte_add(offset_of!(Storage, length));
        (start.cast(), length.cast())
    }

    /// Who connected, after the accept's completion.
    pub(crate) fn peer(&mut self) -> Peer {
        let storage = self.0.get_mut();
        let length = usize::try_from(storage.length).unwrap_or(0).min(ADDRESS_BYTES);
        parse(&storage.address[..length])
    }
}

/// Reads a `sockaddr_in` or `sockaddr_in6`; anything else (a Unix peer has no address) is `Unix`.
fn parse(address: &[u8]) -> Peer {
    let Some((family, rest)) = address.split_first_chunk::<2>() else { return Peer::Unix };
    let Some((port, rest)) = rest.split_first_chunk::<2>() else { return Peer::Unix };
    let port = u16::from_be_bytes(*port);
    match libc::c_int::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => match rest.first_chunk::<4>() {
            Some(ip) => Peer::Inet(SocketAddr::new(Ipv4Addr::from(*ip).into(), port)),
            None => Peer::Unix,
        },
        libc::AF_INET6 => {
            let Some((flow, rest)) = rest.split_first_chunk::<4>() else { return Peer::Unix };
            let Some((ip, rest)) = rest.split_first_chunk::<16>() else { return Peer::Unix };
            let Some(scope) = rest.first_chunk::<4>() else { return Peer::Unix };
            let (flow, scope) = (u32::from_be_bytes(*flow), u32::from_ne_bytes(*scope));
            let address = SocketAddrV6::new(Ipv6Addr::from(*ip), port, flow, scope);
            Peer::Inet(canonical(address.into()))
        }
        _ => Peer::Unix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inet6(ip: Ipv6Addr) -> Vec<u8> {
        let mut bytes = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        bytes.extend(8080_u16.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(ip.octets());
        bytes.extend(7_u32.to_ne_bytes());
        bytes
    }

    #[test]
    fn addresses_of_both_families_are_read_and_short_ones_are_not() {
        let mut v4 = (libc::AF_INET as u16).to_ne_bytes().to_vec();
        v4.extend([0x1f, 0x90, 10, 1, 2, 3]);
        let expected = Peer::Inet("10.1.2.3:8080".parse().expect("an address"));
        assert_eq!(parse(&v4), expected);
        assert_eq!(parse(&inet6(Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped())), expected);
        let Peer::Inet(SocketAddr::V6(v6)) = parse(&inet6(Ipv6Addr::LOCALHOST)) else {
            panic!("IPv6")
        };
        assert_eq!((v6.port(), v6.scope_id()), (8080, 7));
        for length in 0..v4.len() {
            assert_eq!(parse(&v4[..length]), Peer::Unix);
        }
        for length in 0..28 {
            assert_eq!(parse(&inet6(Ipv6Addr::LOCALHOST)[..length]), Peer::Unix);
        }
        assert_eq!(parse(&(libc::AF_UNIX as u16).to_ne_bytes()), Peer::Unix);
    }

    /// Hazard 36: the address given to the kernel does not move with the listener.
    #[test]
    fn hazard_36_the_storage_stays_where_it_is() {
        let mut storages = vec![PeerStorage::new()];
        let (before, _) = storages[0].prepare();
        storages.extend((0..100).map(|_| PeerStorage::new()));
        let mut moved = storages.swap_remove(0);
        let (after, length) = moved.prepare();
        assert_eq!(before, after);
        assert_eq!(length.addr() - after.addr(), ADDRESS_BYTES);
    }
}
