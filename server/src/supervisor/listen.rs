//! Opens what the server listens on, and takes it out of the file system at the end.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::{Bind, Config};
use crate::error::Fault;
use crate::sys::held::Held;
use crate::sys::socket::{self, LocalAddress, TcpOptions};

/// Listening sockets, by who comes there. No child that the application forks keeps them.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Of `--bind`, in the order of the configuration; a host name may give several.
    pub public: Vec<Held>,
    /// Of `--admin`.
    pub admin: Vec<Held>,
}

impl Sockets {
    /// Closes all of them in this process.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The listening sockets, bound once and shared by all workers.
#[derive(Debug)]
pub struct Listeners {
    /// All of them.
    pub sockets: Sockets,
    /// Where each of the public ones is.
    pub addresses: Vec<LocalAddress>,
    /// Where each of the admin ones is.
    admin_addresses: Vec<LocalAddress>,
    /// Sockets in the file system that are ours to remove.
    paths: Vec<BoundPath>,
}

/// A socket in the file system, and what tells it from one that a successor has bound there.
#[derive(Debug)]
struct BoundPath {
    path: PathBuf,
    inode: Inode,
}

impl BoundPath {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), inode: Inode::at(path)? })
    }

    /// Unless it is another's by now, or gone; there is nothing to do about either.
    fn remove(&self) {
        if Inode::at(&self.path).is_ok_and(|found| found == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What is at a path. The number of one that was removed may be given out again at once; then it is
/// the birth that differs, where the file system has one.
#[derive(Debug, Eq, PartialEq)]
struct Inode {
    device: u64,
    number: u64,
    born: Option<SystemTime>,
}

impl Inode {
    fn at(path: &Path) -> io::Result<Self> {
        let found = std::fs::symlink_metadata(path)?;
        Ok(Self { device: found.dev(), number: found.ino(), born: found.created().ok() })
    }
}

impl Listeners {
    /// Binds everything.
    ///
    /// # Errors
    /// Start: the first address that cannot be bound, why, and what to do.
    pub fn open(config: &Config) -> Result<Self, Fault> {
        let mut listeners = Self {
            sockets: Sockets::default(),
            addresses: Vec::new(),
            admin_addresses: Vec::new(),
            paths: Vec::new(),
        };
        if let Err(fault) = listeners.bind_all(config) {
            // Of those that were bound before it, too.
            listeners.remove_paths();
            return Err(fault);
        }
        Ok(listeners)
    }

    fn bind_all(&mut self, config: &Config) -> Result<(), Fault> {
        for bind in &config.binds {
            for (socket, address) in self.bind(bind, "--bind", config)? {
                self.sockets.public.push(Held::new(socket));
                self.addresses.push(address);
            }
        }
        if let Some(bind) = &config.admin {
            for (socket, address) in self.bind(bind, "--admin", config)? {
                self.sockets.admin.push(Held::new(socket));
                self.admin_addresses.push(address);
            }
        }
        Ok(())
    }

    /// `option` is what the operator may change when it is not possible.
    fn bind(
        &mut self,
        bind: &Bind,
        option: &str,
        config: &Config,
    ) -> Result<Vec<(OwnedFd, LocalAddress)>, Fault> {
        let opened = match bind {
            Bind::Inet { host, port } => open_inet(host, *port, option, config)?,
            Bind::Unix(path) => {
                let opened = socket::listen_unix(path, config.uds_mode, config.backlog).map_err(
                    |error| refusal(&format!("unix:{}", path.display()), option, &error),
                )?;
                let bound = BoundPath::of(path).map_err(|error| {
                    refusal(&format!("unix:{}", path.display()), option, &error)
                })?;
                self.paths.push(bound);
                vec![opened]
            }
            Bind::Descriptor(number) => {
                let opened = socket::adopt_listener(*number)
                    .map_err(|error| Fault::start(error.to_string()))?;
                vec![opened]
            }
        };
        let with_address = |socket| {
            let address = socket::local_address(&socket)
                .map_err(|error| Fault::start(format!("a listener has no address: {error}")))?;
            Ok((socket, address))
        };
        opened.into_iter().map(with_address).collect()
    }

    /// For the banner.
    #[must_use]
    pub fn display(&self) -> String {
        joined(&self.addresses)
    }

    /// The same of `--admin`; `None` without it.
    #[must_use]
    pub fn display_admin(&self) -> Option<String> {
        (!self.admin_addresses.is_empty()).then(|| joined(&self.admin_addresses))
    }

    /// Gives the sockets in the file system to the user that the workers become.
    ///
    /// # Errors
    /// Start: not permitted.
    pub fn give_to(&self, user_id: Option<u32>, group_id: Option<u32>) -> Result<(), Fault> {
        for BoundPath { path, .. } in &self.paths {
            std::os::unix::fs::chown(path, user_id, group_id).map_err(|error| {
                Fault::start(format!("unix:{} cannot change owner: {error}", path.display()))
            })?;
        }
        Ok(())
    }

    /// Takes the sockets out of the file system; not those of a successor on the same path.
    pub fn remove_paths(&mut self) {
        for bound in self.paths.drain(..) {
            bound.remove();
        }
    }
}

fn joined(addresses: &[LocalAddress]) -> String {
    let names: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    names.join(" and ")
}

/// A host name may have several addresses, such as localhost: each is bound, and it is an error only
/// if none can be. With port 0 the first one's port is used for all.
fn open_inet(host: &str, port: u16, option: &str, config: &Config) -> Result<Vec<OwnedFd>, Fault> {
    let name = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    let name = format!("{name}:{port}");
    let addresses = socket::resolve(&name).map_err(|error| {
        Fault::start(format!("cannot bind {name}: the host name does not resolve ({error})"))
    })?;
    let options = TcpOptions { backlog_count: config.backlog, reuse_port: false };
    let mut opened: Vec<OwnedFd> = Vec::new();
    let mut first_error = None;
    let mut port = port;
    for mut address in addresses {
        address.set_port(port);
        match socket::listen_tcp(address, options) {
            Ok(socket) => {
                if let Ok(LocalAddress::Inet(bound)) = socket::local_address(&socket) {
                    port = bound.port();
                }
                opened.push(socket);
            }
            // localhost is also ::1 in many a hosts file of a machine without IPv6.
            Err(error) if is_absent(&address, &error) => {
                first_error.get_or_insert(error);
            }
            Err(error) => return Err(refusal(&address.to_string(), option, &error)),
        }
    }
    match first_error {
        Some(error) if opened.is_empty() => Err(refusal(&name, option, &error)),
        Some(_) | None => Ok(opened),
    }
}

fn is_absent(address: &SocketAddr, error: &io::Error) -> bool {
    let unsupported = error.raw_os_error() == Some(libc::EAFNOSUPPORT);
    address.is_ipv6() && (unsupported || error.kind() == io::ErrorKind::AddrNotAvailable)
}

fn refusal(name: &str, option: &str, error: &io::Error) -> Fault {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the kinds with a better advice")]
    let next = match error.kind() {
        io::ErrorKind::AddrInUse => {
            &format!("another process listens there; stop it or choose another {option}")
        }
        io::ErrorKind::PermissionDenied => &format!(
            "ports below 1024 and some paths need privileges; choose another {option}, or give \
             CAP_NET_BIND_SERVICE"
        ),
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has that address",
        io::ErrorKind::AlreadyExists => "the path exists and is not a socket",
        io::ErrorKind::NotFound => "its directory does not exist",
        _ => &format!("choose another {option}"),
    };
    Fault::start(format!("cannot bind {name}: {next} ({error})"))
}
