//! Where a coordinator is: a Unix socket's path, or `host:port`.

use std::{
    fmt, fs, io,
    net::{TcpListener, TcpStream, ToSocketAddrs},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};

use super::connection::Stream;
use crate::job::JobDir;

/// How long connecting to a host may take.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// An address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

/// It is no address.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address: say HOST:PORT, or the path of a socket, with a / in it")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.contains('/') {
            return Ok(Self::Unix(text.into()));
        }
        let parts = text.rsplit_once(':');
        match parts.filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok()) {
            Some(_) => Ok(Self::Tcp(text.into())),
            None => Err(AddressError(text.into())),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(host) => host.fmt(f),
        }
    }
}

impl Address {
    /// Connects; never waits for long.
    pub(super) fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(path) => connect_unix(path),
            Self::Tcp(host) => {
                let mut last = io::ErrorKind::AddrNotAvailable.into();
                for address in host.to_socket_addrs()? {
                    match TcpStream::connect_timeout(&address, CONNECT_MAX) {
                        Ok(stream) => return Stream::tcp(stream),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

/// One that hangs has a full queue: std's connect would wait for it.
fn connect_unix(path: &Path) -> io::Result<Stream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Stream::unix(UnixStream::from(socket))
}

/// Where a member looks for the coordinator each time that it tries.
#[derive(Clone, Debug)]
pub enum Locator {
    /// Always there.
    At(Address),
    /// Where the job's directory says that it is: the next coordinator may be elsewhere.
    Job(JobDir),
}

impl Locator {
    pub(super) fn connect(&self) -> io::Result<Stream> {
        match self {
            Self::At(address) => address.connect(),
            Self::Job(job) => job.address().map_err(io::Error::other)?.connect(),
        }
    }
}

/// A socket at which a coordinator is reached.
#[derive(Debug)]
pub enum Listener {
    /// In the file system.
    Unix(UnixListener),
    /// Of a host.
    Tcp(TcpListener),
}

impl Listener {
    /// Listens there; a socket that a dead coordinator has left is replaced. The caller holds the
    /// job's lock ([`JobDir::claim`]), or is alone otherwise.
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => {
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                let listener = UnixListener::bind(path)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Unix(listener))
            }
            Address::Tcp(host) => {
                let listener = TcpListener::bind(host)?;
                listener.set_nonblocking(true)?;
                Ok(Self::Tcp(listener))
            }
        }
    }

    /// Where it is: with the port that the kernel chose, if that was left to it.
    pub fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname();
                let path = path.ok_or(io::ErrorKind::AddrNotAvailable)?;
                Address::Unix(path.to_owned())
            }
            Self::Tcp(listener) => Address::Tcp(listener.local_addr()?.to_string()),
        })
    }

    /// The next connection, if one waits.
    pub(super) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Unix(listener) => Stream::unix(listener.accept()?.0),
            Self::Tcp(listener) => Stream::tcp(listener.accept()?.0),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_paths_or_hosts_and_ports() {
        for text in ["/run/job/socket", "./socket", "localhost:0", "[::1]:7000"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "socket", ":1", "host:", "host:65536"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
