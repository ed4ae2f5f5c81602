//! Sockets: listeners for the supervisor, and the calls that both `Io` share.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};

use crate::reactor::custody::Ending;
use crate::reactor::io::Peer;
use crate::sys::held::Held;

/// Where a listening socket is, for display.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LocalAddress {
    /// TCP.
    Inet(SocketAddr),
    /// A path in the file system.
    Path(PathBuf),
    /// A Unix socket without a path (abstract or unnamed).
    Unnamed,
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => write!(formatter, "http://{address}"),
            Self::Path(path) => write!(formatter, "unix:{}", path.display()),
            Self::Unnamed => formatter.write_str("unix:(unnamed)"),
        }
    }
}

/// How a TCP listener is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TcpOptions {
    /// Connections that wait for an accept; the kernel caps it at `net.core.somaxconn`.
    pub backlog_count: u32,
    /// One socket per worker instead of one for all (see RULES 24 for why not).
    pub reuse_port: bool,
}

/// Binds and listens. NODELAY and KEEPALIVE are set here and inherited by every connection.
///
/// # Errors
/// `AddrInUse`, `AddrNotAvailable`, `PermissionDenied` and so on, the kernel's own.
pub fn listen_tcp(address: SocketAddr, options: TcpOptions) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if options.reuse_port {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    if address.is_ipv6() {
        // `[::]:8000` means all of IPv6; who wants IPv4 too binds it too, and sees both in the log.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, i32::try_from(options.backlog_count).unwrap_or(i32::MAX))?;
    Ok(socket)
}

/// Turns `host:port` into addresses: `localhost` has two.
///
/// # Errors
/// The name does not resolve, or the text has no port.
pub fn resolve(host_and_port: &str) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = host_and_port.to_socket_addrs()?.collect();
    if addresses.is_empty() {
        return Err(io::ErrorKind::AddrNotAvailable.into());
    }
    Ok(addresses)
}

/// Binds a Unix listener with `mode` as its permissions. A socket that nobody listens on any more
/// is replaced; anything else at `path` stays.
///
/// # Errors
/// `AddrInUse` if a server listens there, `AlreadyExists` if it is not a socket, or the kernel's.
pub fn listen_unix(path: &Path, mode: u32, backlog_count: u32) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let new = || {
        let flags = SocketFlags::CLOEXEC;
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
    };
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(_) => match rustix::net::connect(new()?, &address) {
            Err(Errno::CONNREFUSED) => std::fs::remove_file(path)?,
            Ok(()) | Err(Errno::AGAIN) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(error) => return Err(error.into()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let socket = new()?;
    rustix::net::bind(&socket, &address)?;
    // Nobody can connect before `listen`, so nobody slips in under the umask's mode.
    let opened =
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).and_then(|()| {
            Ok(rustix::net::listen(&socket, i32::try_from(backlog_count).unwrap_or(i32::MAX))?)
        });
    if let Err(error) = opened {
        // It was made above; that it cannot be removed is not what has to be said.
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(socket)
}

/// Takes over a descriptor that the process was started with (`fd://3`, socket activation): a
/// listening stream socket of TCP or Unix. It is made close-on-exec.
///
/// # Errors
/// `InvalidInput`, with a sentence that says what the descriptor is instead.
pub fn adopt_listener(descriptor: RawFd) -> io::Result<OwnedFd> {
    let refuse = |what: &str| {
        let text = format!("fd://{descriptor} is {what}; give a listening stream socket");
        io::Error::new(io::ErrorKind::InvalidInput, text)
    };
    if descriptor < 3 {
        return Err(refuse("one of the standard streams"));
    }
    // SAFETY: I2: borrowed for the checks below; an unused number makes them fail with EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    if rustix::io::fcntl_getfd(borrowed).is_err() {
        return Err(refuse("not open"));
    }
    let kind = sockopt::socket_type(borrowed).map_err(|_| refuse("not a socket"))?;
    if kind != SocketType::STREAM {
        return Err(refuse("not a stream socket"));
    }
    let family = sockopt::socket_domain(borrowed)?;
    if ![AddressFamily::INET, AddressFamily::INET6, AddressFamily::UNIX].contains(&family) {
        return Err(refuse("neither TCP nor Unix"));
    }
    if !sockopt::socket_acceptconn(borrowed)? {
        return Err(refuse("not listening"));
    }
    if family != AddressFamily::UNIX {
        sockopt::set_tcp_nodelay(borrowed, true)?;
        sockopt::set_socket_keepalive(borrowed, true)?;
    }
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: I9: the process was started with it, and the command line names it once.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Where a listener is bound.
///
/// # Errors
/// Not a socket, or of a family that is neither TCP nor Unix.
pub fn local_address(socket: impl AsFd) -> io::Result<LocalAddress> {
    let address = rustix::net::getsockname(socket)?;
    if address.address_family() == AddressFamily::UNIX {
        let unix = SocketAddrUnix::try_from(address)?;
        return Ok(match unix.path_bytes() {
            Some(bytes) if !bytes.is_empty() => {
                LocalAddress::Path(PathBuf::from(OsStr::from_bytes(bytes)))
            }
            Some(_) | None => LocalAddress::Unnamed,
        });
    }
    Ok(LocalAddress::Inet(SocketAddr::try_from(address)?))
}

/// Accepts one connection if one waits, non-blocking and close-on-exec.
pub(crate) fn accept_now(listener: BorrowedFd<'_>) -> io::Result<(OwnedFd, Peer)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        match rustix::net::acceptfrom_with(listener, flags) {
            Ok((socket, address)) => return Ok((socket, peer(address))),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn peer(address: Option<SocketAddrAny>) -> Peer {
    match address.and_then(|address| SocketAddr::try_from(address).ok()) {
        Some(address) => Peer::Inet(canonical(address)),
        None => Peer::Unix,
    }
}

/// An IPv4 peer on an IPv6 socket is an IPv4 peer.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(_) => address,
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(v4.into(), v6.port()),
            None => address,
        },
    }
}

/// Makes the listener block or not. The flag belongs to the socket, so all workers share it.
pub(crate) fn set_blocking(socket: BorrowedFd<'_>, blocking: bool) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(socket)?;
    let mut wanted = flags;
    wanted.set(OFlags::NONBLOCK, !blocking);
    if wanted != flags {
        rustix::fs::fcntl_setfl(socket, wanted)?;
    }
    Ok(())
}

/// Sends what the kernel takes now; zero if it takes nothing.
///
/// # Errors
/// The connection is broken.
#[inline]
pub(crate) fn send_now(socket: BorrowedFd<'_>, parts: [&[u8]; 2], more: bool) -> io::Result<usize> {
    let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    flags.set(SendFlags::MORE, more);
    loop {
        let result = match parts {
            [one, []] | [[], one] => rustix::net::send(socket, one, flags),
            [head, body] => {
                let slices = [IoSlice::new(head), IoSlice::new(body)];
                let mut control = SendAncillaryBuffer::default();
                rustix::net::sendmsg(socket, &slices, &mut control, flags)
            }
        };
        match result {
            Ok(bytes) => return Ok(bytes),
            Err(Errno::AGAIN) => return Ok(0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends from a file what the socket takes now.
///
/// # Errors
/// `WouldBlock` if it takes nothing, or the connection or the file is broken.
pub(crate) fn send_file_now(
    socket: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: u64,
    count: usize,
) -> io::Result<usize> {
    loop {
        let mut position = offset;
        match rustix::fs::sendfile(socket, file, Some(&mut position), count) {
            Ok(bytes) => return Ok(bytes),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// A number that changes when the peer takes more of what was sent: the bytes it acknowledged on
/// TCP, what left the queue on a Unix socket. **Source**: tcp(7) `TCP_INFO`, unix(7) `SIOCOUTQ`.
pub(crate) fn acknowledged(socket: BorrowedFd<'_>) -> u64 {
    let mut info = [0_u8; TCP_INFO_BYTES];
    let mut length = TCP_INFO_BYTES as libc::socklen_t;
    // SAFETY: I7: both are live locals, the length is the buffer's.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result == 0
        && let Some(bytes) = info[TCP_INFO_BYTES_ACKED..].first_chunk()
    {
        return u64::from_ne_bytes(*bytes);
    }
    let mut queued: libc::c_int = 0;
    // SAFETY: I7: SIOCOUTQ (TIOCOUTQ) writes one int.
    unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) };
    u64::MAX - u64::from(queued.unsigned_abs())
}

/// Offset of `tcpi_bytes_acked` in `struct tcp_info` (since 4.1), and the end of what we read.
const TCP_INFO_BYTES_ACKED: usize = 120;
const TCP_INFO_BYTES: usize = TCP_INFO_BYTES_ACKED + 8;

/// Whether the kernel has given the connection up.
pub(crate) fn is_broken(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::HUP | PollFlags::ERR;
    poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().intersects(gone)
}

/// Sends FIN.
pub(crate) fn shut_down_write(socket: BorrowedFd<'_>) {
    // Not connected any more: reading tells.
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
}

/// Sends RST at once, whoever else holds a copy of the descriptor (tcp_disconnect). What is no TCP
/// socket refuses, and is reset by its last close.
fn disconnect(socket: BorrowedFd<'_>) {
    let nowhere =
        libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
    let length = size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: I7: an address of the length that the call is told, which it only reads.
    unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, length) };
}

/// Closes a connection of which the kernel holds nothing any more.
pub(crate) fn end(socket: Held, ending: Ending) {
    match ending {
        // A child that the application forked may hold a copy; the peer must see the FIN anyway.
        Ending::Close => shut_down_write(socket.as_fd()),
        Ending::Reset => {
            // Refused only for what is not a socket.
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
            disconnect(socket.as_fd());
        }
    }
    drop(socket);
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    const OPTIONS: TcpOptions = TcpOptions { backlog_count: 16, reuse_port: false };

    #[test]
    fn a_reset_connection_is_broken_and_a_half_closed_one_is_not() {
        let address = "127.0.0.1:0".parse().expect("an address");
        let listener = listen_tcp(address, OPTIONS).expect("a free port");
        let LocalAddress::Inet(bound) = local_address(&listener).expect("bound") else {
            panic!("TCP");
        };
        let client = std::net::TcpStream::connect(bound).expect("listening");
        let (socket, _) = accept_now(listener.as_fd()).expect("connected");
        assert!(!is_broken(socket.as_fd()));
        client.shutdown(std::net::Shutdown::Write).expect("connected");
        assert!(!is_broken(socket.as_fd()), "a half-closed client still reads");
        sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("a socket");
        drop(client);
        assert!(is_broken(socket.as_fd()));
    }

    #[test]
    fn a_listener_says_where_it_is_and_its_connections_inherit() {
        for text in ["127.0.0.1:0", "[::1]:0"] {
            let address = text.parse().expect("an address");
            let listener = listen_tcp(address, OPTIONS).expect("a free port");
            let LocalAddress::Inet(bound) = local_address(&listener).expect("bound") else {
                panic!("TCP");
            };
            let client = std::net::TcpStream::connect(bound).expect("listening");
            let (socket, peer) = accept_now(listener.as_fd()).expect("connected");
            assert_eq!(peer, Peer::Inet(client.local_addr().expect("bound")));
            assert_eq!(sockopt::tcp_nodelay(&socket), Ok(true));
            assert_eq!(sockopt::socket_keepalive(&socket), Ok(true));
            let twice = listen_tcp(bound, OPTIONS).expect_err("in use");
            assert_eq!(twice.kind(), io::ErrorKind::AddrInUse);
        }
    }

    #[test]
    fn a_mapped_peer_is_an_ipv4_peer() {
        let mapped = "[::ffff:10.1.2.3]:9".parse().expect("an address");
        assert_eq!(canonical(mapped), "10.1.2.3:9".parse().expect("an address"));
        let native = "[2001:db8::1]:9".parse().expect("an address");
        assert_eq!(canonical(native), native);
    }

    #[test]
    fn a_unix_listener_replaces_only_what_is_dead() {
        let name = format!("hoopsnake-listener-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let listener = listen_unix(&path, 0o660, 16).expect("a free path");
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        assert_eq!(local_address(&listener).expect("bound"), LocalAddress::Path(path.clone()));
        let alive = listen_unix(&path, 0o660, 16).expect_err("somebody listens");
        assert_eq!(alive.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        drop(listen_unix(&path, 0o600, 16).expect("nobody listens"));
        std::fs::remove_file(&path).expect("ours");
        std::fs::write(&path, b"precious").expect("writable");
        let file = listen_unix(&path, 0o660, 16).expect_err("not a socket");
        assert_eq!(file.kind(), io::ErrorKind::AlreadyExists);
        std::fs::remove_file(&path).expect("ours");
    }

    #[test]
    fn only_a_listening_stream_socket_is_adopted() {
        let refusal = |descriptor| adopt_listener(descriptor).expect_err("refused").to_string();
        assert!(refusal(1).contains("one of the standard streams"));
        assert!(refusal(1_000_000).contains("not open"));
        let file = std::fs::File::open("/dev/null").expect("there");
        assert!(refusal(file.as_raw_fd()).contains("not a socket"));
        let datagram = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
        assert!(refusal(datagram.as_raw_fd()).contains("not a stream socket"));
        let (one, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
        assert!(refusal(one.as_raw_fd()).contains("not listening"));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let bound = listener.local_addr().expect("bound");
        let adopted = adopt_listener(listener.into_raw_fd()).expect("a listener");
        assert_eq!(local_address(&adopted).expect("bound"), LocalAddress::Inet(bound));
    }
}
