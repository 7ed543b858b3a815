//! Messages with a few descriptors over a Unix seqpacket socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of a message.
const FDS_MAX: usize = 3;

/// Sends one message.
pub fn send(socket: BorrowedFd, bytes: &[u8], fd: Option<BorrowedFd>) -> io::Result<()> {
    send_all(socket, bytes, fd.as_slice())
}

/// Sends one message with several descriptors.
pub fn send_all(socket: BorrowedFd, bytes: &[u8], fds: &[BorrowedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other.map(|_| ())?),
        }
    }
}

/// Receives one message; `None` when the peer has closed.
pub fn receive(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
    let received = receive_all(socket, buffer)?;
    Ok(received.map(|(bytes, mut fds)| (bytes, fds.pop())))
}

/// Receives one message with several descriptors; `None` when the peer has closed.
pub fn receive_all(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(buffer)];
        match recvmsg(
            socket.as_fd(),
            &mut parts,
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
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
