//! One end of a vfio-user connection: whole messages with descriptors, over a Unix stream socket.
//!
//! What must stay true: no call waits past its deadline, past the peer's hang-up or past a stop
//! request; at most [`MESSAGE_MAX`] bytes are allocated for a message; descriptors that came with
//! a message are owned from the moment they arrive, so none leaks.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Instant,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

use crate::vfio_user::{HEADER_BYTES, Header};

/// Descriptors that one message may carry.
pub(crate) const FDS_MAX: usize = 16;

/// What ends a wait before the peer does.
#[derive(Clone, Copy, Default)]
pub(crate) struct Until<'a> {
    /// Readable when the waiter should give up.
    pub(crate) stop: Option<BorrowedFd<'a>>,
    /// When to give up.
    pub(crate) deadline: Option<Instant>,
}

/// A message.
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// A connection. The stream is non-blocking; waiting is by poll(2).
pub(crate) struct Socket(UnixStream);

impl Socket {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    /// The descriptor, to watch for a hang-up.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Ends the connection; whoever waits on either end is woken.
    pub(crate) fn shutdown(&self) {
        // Fails only if it has ended already.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    /// Sends one whole message; the descriptors go with its first byte.
    pub(crate) fn send(
        &self,
        mut bytes: &[u8],
        mut fds: &[BorrowedFd<'_>],
        until: Until<'_>,
    ) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let part = [IoSlice::new(bytes)];
            let flags = SendFlags::NOSIGNAL;
            match sendmsg(&self.0, &part, &mut ancillary, flags) {
                Ok(n) => (bytes, fds) = (&bytes[n..], &[]),
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Receives one whole message. A peer that hung up is `UnexpectedEof`, a size that no message
    /// has `InvalidData`.
    pub(crate) fn receive(&self, until: Until<'_>) -> io::Result<Message> {
        let mut fds = Vec::new();
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header, &mut fds, until)?;
        let header = Header::decode(&header);
        let len = header.body_len().ok_or(io::ErrorKind::InvalidData)?;
        let mut body = vec![0; len];
        self.fill(&mut body, &mut fds, until)?;
        Ok(Message { header, body, fds })
    }

    fn fill(&self, mut to: &mut [u8], fds: &mut Vec<OwnedFd>, until: Until<'_>) -> io::Result<()> {
        while !to.is_empty() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let mut part = [IoSliceMut::new(to)];
            let received = match recvmsg(&self.0, &mut part, &mut ancillary, flags) {
                Ok(received) => received,
                Err(Errno::AGAIN) => {
                    self.wait(PollFlags::IN, until)?;
                    continue;
                }
                Err(Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
            if received.bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if fds.len() > FDS_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            to = &mut to[received.bytes..];
        }
        Ok(())
    }

    /// Waits until the socket is ready. A stop request is `Interrupted`, the deadline `TimedOut`.
    fn wait(&self, flags: PollFlags, until: Until<'_>) -> io::Result<()> {
        loop {
            let timeout = match until.deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    None => return Err(io::ErrorKind::TimedOut.into()),
                    Some(left) => Timespec::try_from(left).ok(),
                },
            };
            let stop = until.stop.unwrap_or(self.0.as_fd());
            let stop_flags = match until.stop {
                Some(_) => PollFlags::IN,
                None => PollFlags::empty(),
            };
            let mut ready = [
                PollFd::new(&self.0, flags),
                PollFd::from_borrowed_fd(stop, stop_flags),
            ];
            match poll(&mut ready, timeout.as_ref()) {
                Ok(_) if until.stop.is_some() && !ready[1].revents().is_empty() => {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                Ok(_) if !ready[0].revents().is_empty() => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}
