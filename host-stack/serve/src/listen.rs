//! Where requests come in: a Unix socket of this user, or a port that only this machine reaches.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    os::{fd::AsFd, unix::net::UnixListener},
    path::PathBuf,
};

use rustix::{fs::Mode, process::umask};
use snaprig_peers::{Address, Listener, listener::bind_tcp};

/// Where to listen.
#[derive(Clone, Debug)]
pub enum At {
    /// A Unix socket, which only its owner may open.
    Unix(PathBuf),
    /// A port of the loopback interface; 0: any that is free.
    Loopback(SocketAddr),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Loopback(address) => write!(f, "http://{address}"),
        }
    }
}

/// A socket that listens. What it leaves in the file system goes with it.
#[derive(Debug)]
pub enum Bound {
    /// A Unix socket.
    Unix(Listener),
    /// A port.
    Loopback(TcpListener),
}

impl Bound {
    /// Listens. A socket that a dead server has left is replaced. The process must not have threads yet that make
    /// files.
    pub fn bind(at: &At) -> io::Result<Self> {
        match at {
            At::Unix(path) => {
                // So the socket is nobody else's from the moment it is there (unix(7)).
                let before = umask(Mode::from_raw_mode(0o177));
                let bound = Listener::bind(&Address::Unix(path.clone()));
                umask(before);
                bound.map(Self::Unix)
            }
            At::Loopback(address) if !address.ip().is_loopback() => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "others could reach it; listen on 127.0.0.1 or [::1], and let a proxy or ssh(1) -L carry it further",
            )),
            At::Loopback(address) => bind_tcp(address).map(Self::Loopback),
        }
    }

    /// Where: with the port that the kernel chose, if that was left to it.
    pub fn address(&self) -> io::Result<At> {
        match self {
            Self::Unix(listener) => match listener.address()? {
                Address::Unix(path) => Ok(At::Unix(path)),
                Address::Tcp(_) => Err(io::ErrorKind::InvalidData.into()),
            },
            Self::Loopback(listener) => Ok(At::Loopback(listener.local_addr()?)),
        }
    }

    /// The same socket, for the runtime to wait at.
    pub(crate) fn unix(listener: &Listener) -> io::Result<tokio::net::UnixListener> {
        let socket = UnixListener::from(listener.as_fd().try_clone_to_owned()?);
        socket.set_nonblocking(true)?;
        tokio::net::UnixListener::from_std(socket)
    }

    /// The same of a port.
    pub(crate) fn loopback(listener: &TcpListener) -> io::Result<tokio::net::TcpListener> {
        let socket = listener.try_clone()?;
        socket.set_nonblocking(true)?;
        tokio::net::TcpListener::from_std(socket)
    }
}
