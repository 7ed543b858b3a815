//! Messages with descriptors over Unix sockets that keep their borders.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, recvmsg,
    sendmsg, socket_with,
};
use serde::{Serialize, de::DeserializeOwned};

/// Longest message.
const BYTES_MAX: usize = 4096;
/// Most descriptors of one.
const FDS_MAX: usize = 4;

fn open(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socket_with(family, kind, flags, None)?)
}

/// Whether a connection failed because nobody listens there (unix(7)).
pub fn is_nobody(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
    )
}

/// Connects to who listens at a path.
pub fn connect(path: &Path, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = open(flags)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Listens at a path; so many may wait to be accepted, which itself does not wait.
pub fn listen(path: &Path, backlog: i32) -> io::Result<OwnedFd> {
    let socket = open(SocketFlags::NONBLOCK)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, backlog)?;
    Ok(socket)
}

/// Sends a message.
pub fn send<T: Serialize>(to: impl AsFd, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut buffer = [0; BYTES_MAX];
    let bytes = postcard::to_slice(message, &mut buffer).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::other("too many descriptors"));
    }
    loop {
        let sent = sendmsg(
            &to,
            &[IoSlice::new(bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        );
        match sent {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(drop).map_err(Into::into),
        }
    }
}

/// Receives a message; none at the end.
pub fn receive<T: DeserializeOwned>(from: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut buffer = [0; BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(
            &from,
            &mut [IoSliceMut::new(&mut buffer)],
            &mut ancillary,
            flags,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    if got.bytes == 0 {
        return Ok(None);
    }
    let message = postcard::from_bytes(&buffer[..got.bytes]).map_err(io::Error::other)?;
    Ok(Some((message, fds)))
}
