//! A connection to a peer, and whose it is.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

/// A connection, of whichever kind. Reading and writing wait, unless [`Self::set_nonblocking`] says otherwise.
#[derive(Debug)]
pub enum Stream {
    /// To a process of this machine.
    Unix(UnixStream),
    /// To a process of any.
    Tcp(TcpStream),
}

impl Stream {
    /// A TCP connection, on which small messages leave at once.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }

    /// Whether reading and writing return at once when they would have to wait.
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_nonblocking(is_nonblocking),
            Self::Tcp(stream) => stream.set_nonblocking(is_nonblocking),
        }
    }

    /// How long a single read or write may take, for data of which nobody knows how long all of it takes. What has an
    /// end is an [`crate::Exchange`].
    pub fn set_silence_max(&self, silence_max: Duration) -> io::Result<()> {
        let timeout = Some(silence_max);
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(timeout)?;
                stream.set_write_timeout(timeout)
            }
        }
    }

    /// Another handle of the same connection.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
        }
    }

    /// Ends the connection for all of its handles, and for the peer.
    pub fn shutdown(&self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        }
    }

    /// Whether the peer is on this machine.
    pub fn is_local(&self) -> io::Result<bool> {
        match self {
            Self::Unix(_) => Ok(true),
            Self::Tcp(stream) => Ok(stream.local_addr()?.ip() == stream.peer_addr()?.ip()),
        }
    }

    /// Refuses a peer of another user, where the kernel can say whose it is: on a Unix socket. Root is anybody.
    pub fn check_user(&self) -> io::Result<()> {
        let Self::Unix(stream) = self else {
            return Ok(());
        };
        let (peer, own) = (
            credentials(stream)?.uid,
            rustix::process::geteuid().as_raw(),
        );
        match peer == 0 || peer == own {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "the peer is a process of user {peer}, and neither of user {own} nor of root"
                ),
            )),
        }
    }
}

/// Who made the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process; none if it is outside of this PID namespace.
    pub pid: Option<libc::pid_t>,
    /// Its user.
    pub uid: u32,
}

/// Who made the other end of a Unix socket (SO_PEERCRED). It is asked for here because `rustix` has no value for the
/// number 0, which a process outside of this PID namespace has.
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most as many bytes as `length` says, which are those of `peer`, a variable of
    // this function.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    match asked {
        0 => Ok(Credentials {
            pid: (peer.pid != 0).then_some(peer.pid),
            uid: peer.uid,
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).read(into),
            Stream::Tcp(stream) => (&mut &*stream).read(into),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(stream) => (&mut &*stream).write(from),
            Stream::Tcp(stream) => (&mut &*stream).write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&*self).write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_of_the_same_user_is_taken() {
        let (one, other) = UnixStream::pair().unwrap();
        let found = credentials(&one).unwrap();
        assert_eq!(found.pid, Some(std::process::id() as i32));
        assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        Stream::Unix(other).check_user().unwrap();
    }
}
