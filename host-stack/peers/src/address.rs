//! Where a peer is: the path of a Unix socket, or `HOST:PORT`.

use std::{
    fmt, io,
    net::{TcpStream, ToSocketAddrs},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, Instant},
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use serde::{Deserialize, Serialize, Serializer, ser::Error as _};

use crate::{name::Name, stream::Stream};

/// Where a peer is. As text, and in serialised form, a path has a `/` in it, and nothing else has.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// `HOST:PORT`.
    Tcp(String),
}

/// The text is no address.
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

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Unix(path) if path.to_str().is_none() => {
                Err(S::Error::custom("the path of a socket is not UTF-8"))
            }
            _ => to.collect_str(self),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) if path.parent() == Some(Path::new("")) => {
                write!(f, "./{}", path.display())
            }
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp(host) => host.fmt(f),
        }
    }
}

impl Address {
    /// Connects, which takes no longer than `timeout`, but for the time that it takes to look up the name of a host.
    pub fn connect(&self, timeout: Duration) -> io::Result<Stream> {
        match self {
            Self::Unix(path) => connect_unix(path, timeout),
            Self::Tcp(host) => connect_tcp(host, timeout),
        }
    }
}

/// Connects to a Unix socket. If whoever listens does not accept, its queue gets full, and then this waits for a place.
pub(crate) fn connect_unix(path: &Path, timeout: Duration) -> io::Result<Stream> {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
    let socket: OwnedFd = socket_with(family, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    let name = Name::of(path)?;
    connect(&socket, &SocketAddrUnix::new(name.as_path())?)?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(Stream::Unix(UnixStream::from(socket)))
}

/// Connects to whichever of a host's addresses is the first that answers.
fn connect_tcp(host: &str, timeout: Duration) -> io::Result<Stream> {
    let addresses = host.to_socket_addrs()?;
    let until = Instant::now() + timeout;
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Stream::tcp(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn addresses_are_paths_or_hosts_and_ports() {
        for text in ["/run/job/socket", "./socket", "localhost:0", "[::1]:7000"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "socket", ":1", "host:", "host:65536"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert_eq!(Address::Unix("socket".into()).to_string(), "./socket");
    }

    #[test]
    fn connecting_to_one_that_hangs_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        // One may wait to be accepted, and another one does not fit.
        rustix::net::listen(&listener, 0).unwrap();
        let address = Address::Unix(path);
        let connect = || address.connect(Duration::from_millis(10));
        let waiting: Vec<_> = (0..2).map(|_| connect()).collect();
        assert!(waiting[0].is_ok());
        let error = waiting[1].as_ref().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
