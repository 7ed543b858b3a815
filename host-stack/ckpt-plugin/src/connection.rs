//! The connection to a supervisor.
//!
//! What must stay true: nothing is sent through a descriptor that the program has closed and that is another file's
//! by now.

use std::{
    io, mem,
    os::{
        fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
        unix::fs::MetadataExt,
    },
    path::Path,
};

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;

use crate::message::{Descriptor, MESSAGE_MAX, ToProcess, decode, encode};

/// Programs count on it that their next file has the lowest number: this one is out of their way.
const HIGH: RawFd = 500;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: Option<OwnedFd>,
    descriptor: Descriptor,
}

impl Connection {
    /// To the supervisor that listens there.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        // SAFETY: no memory is involved; checked.
        let high = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_DUPFD_CLOEXEC, HIGH) };
        let socket = match high {
            high if high < 0 => socket,
            // SAFETY: it is open and ours.
            high => unsafe { OwnedFd::from_raw_fd(high) },
        };
        let descriptor = describe(socket.as_raw_fd())?;
        Ok(Self {
            socket: Some(socket),
            descriptor,
        })
    }

    /// This end of it.
    pub fn descriptor(&self) -> Descriptor {
        self.descriptor
    }

    /// In a restarted process it is another socket under the same number.
    pub fn look_again(&mut self) -> io::Result<()> {
        self.descriptor = describe(self.descriptor.fd)?;
        Ok(())
    }

    /// Whether the program has left it alone.
    pub fn is_own(&self) -> bool {
        describe(self.descriptor.fd).is_ok_and(|now| now == self.descriptor)
    }

    /// Sends a message; what cannot be sent is of no interest any more: the supervisor has gone.
    pub fn send<T: Serialize>(&self, message: &T) {
        if let Some(socket) = self.socket.as_ref().filter(|_| self.is_own()) {
            let bytes = encode(message);
            while let Err(rustix::io::Errno::INTR) =
                rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL)
            {}
        }
    }

    /// Waits for a message; none: the supervisor has gone.
    pub fn receive(fd: RawFd) -> Option<ToProcess> {
        let mut bytes = vec![0; MESSAGE_MAX];
        loop {
            // SAFETY: it is as long as it says. The number is used, and not the descriptor, for others may replace
            // that meanwhile; whoever calls looks whether it is still the same file before the message counts.
            let count = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
            match usize::try_from(count) {
                Ok(0) => return None,
                Ok(count) => return decode(&bytes[..count]),
                Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take()
            && !self.is_own()
        {
            // The number is somebody else's.
            let _ = socket.into_raw_fd();
        }
    }
}

/// A descriptor, and what file it is of.
pub fn describe(fd: RawFd) -> io::Result<Descriptor> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: it is not closed here; whether it is open is found out.
    let file = mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fd) });
    let metadata = file.metadata()?;
    Ok(Descriptor {
        fd,
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}
