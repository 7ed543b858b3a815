//! Messages with descriptors over Unix sockets that keep the borders of messages (SOCK_SEQPACKET).

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recvmsg,
    sendmsg, socket_with, socketpair,
};

use crate::name::Name;

/// Most descriptors of a message.
pub const FDS_MAX: usize = 4;

/// Whether a connection failed because nobody listens there (unix(7)).
pub fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Connects to who listens at a path. Programs that are run do not get the socket.
pub fn connect(path: &Path, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = open(flags)?;
    let name = Name::of(path)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(name.as_path())?)?;
    Ok(socket)
}

/// Listens at a path that is free; so many may wait to be accepted.
pub fn listen(path: &Path, backlog: i32, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = open(flags)?;
    let name = Name::of(path)?;
    bind(&socket, &SocketAddrUnix::new(name.as_path())?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Both ends of a connection.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socketpair(family, kind, SocketFlags::CLOEXEC, None)?)
}

fn open(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socket_with(family, kind, flags, None)?)
}

/// Sends a message with at most [`FDS_MAX`] descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > FDS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let parts = [IoSlice::new(bytes)];
    loop {
        match sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other.map(drop)?),
        }
    }
}

/// Receives a message: how many bytes of the buffer it has, and its descriptors; `None` when the peer has closed.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(buffer)];
        match recvmsg(&socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    let mut all = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            all.extend(fds);
        }
    }
    Ok((received.bytes > 0).then_some((received.bytes, all)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::unix::fs::MetadataExt};

    #[test]
    fn messages_keep_their_borders_and_bring_descriptors() {
        let (one, other) = pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        send(&one, b"with", &[file.as_fd(), file.as_fd()]).unwrap();
        send(&one, b"without", &[]).unwrap();
        let mut buffer = [0; 16];
        let (len, fds) = receive(&other, &mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..len], fds.len()), (&b"with"[..], 2));
        for fd in fds {
            let came = File::from(fd).metadata().unwrap();
            assert_eq!(came.ino(), file.metadata().unwrap().ino());
        }
        let (len, fds) = receive(&other, &mut buffer).unwrap().unwrap();
        assert_eq!((&buffer[..len], fds.len()), (&b"without"[..], 0));
        drop(one);
        assert!(receive(&other, &mut buffer).unwrap().is_none());
    }

    #[test]
    fn too_many_descriptors_are_refused() {
        let (one, _other) = pair().unwrap();
        let error = send(&one, b"x", &[one.as_fd(); FDS_MAX + 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
