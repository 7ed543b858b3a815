//! A descriptor that is as ready as an endpoint is, for poll(2), select(2) and epoll(7): one end of a
//! pair of stream sockets, of which the node has the other, and this one too, unless the program wants no copy of it.
//!
//! | the endpoint | its descriptor |
//! |---|---|
//! | can be read | a byte lies in it |
//! | cannot be written | its send buffer is full |
//! | is disconnected | the other end is shut down |
//!
//! Of endpoints with a direct connection (`direct`) the programs see to the first two themselves, and so they do where the node
//! has given its end away.
//!
//! What must stay true: nothing here waits, whatever a program does with its descriptor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair, sockopt::set_socket_send_buffer_size,
};

use snaprig_wire::scif::Bell;

use snaprig_scif_lanes::lanes::FILLING;

pub(super) struct Ready {
    ours: OwnedFd,
    theirs: Option<OwnedFd>,
    mask: i16,
}

impl Ready {
    /// Of an endpoint that is not ready for anything.
    pub(super) fn new() -> rustix::io::Result<Self> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        set_socket_send_buffer_size(&theirs, 0)?;
        let mut ready = Self {
            ours,
            theirs: Some(theirs),
            mask: libc::POLLOUT,
        };
        ready.set(0);
        Ok(ready)
    }

    /// The program's.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.theirs.as_ref().map(AsFd::as_fd)
    }

    /// The same, once.
    pub(super) fn give(&mut self) -> Option<OwnedFd> {
        self.theirs.take()
    }

    /// The other end: who has it can make the program's ready.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }

    /// It shows that there are bytes, or that there is room.
    pub(super) fn show(&self, bell: Bell) {
        // Nobody can do anything about a failure; a program that polls in vain asks the node, too.
        match bell {
            Bell::Readable => {
                let _ = send(&self.ours, &[0], flags());
            }
            Bell::Writable => {
                let mut buffer = [0; 2 * FILLING.len()];
                let _ = recv(&self.ours, &mut buffer[..], RecvFlags::DONTWAIT);
            }
        }
    }

    /// The endpoint is ready for this now.
    pub(super) fn set(&mut self, mask: i16) {
        let changed = |bit| (self.mask ^ mask) & bit != 0;
        // Nobody can do anything about a failure; a program that polls in vain asks the node, too.
        if let Some(theirs) = &self.theirs {
            if changed(libc::POLLIN) {
                let mut byte = [0];
                match mask & libc::POLLIN {
                    0 => {
                        let _ = recv(theirs, &mut byte[..], RecvFlags::DONTWAIT);
                    }
                    _ => self.show(Bell::Readable),
                }
            }
            if changed(libc::POLLOUT) {
                match mask & libc::POLLOUT {
                    0 => {
                        let _ = send(theirs, &FILLING, flags());
                    }
                    _ => self.show(Bell::Writable),
                }
            }
        }
        if changed(libc::POLLHUP) && mask & libc::POLLHUP != 0 {
            let _ = shutdown(&self.ours, Shutdown::Both);
        }
        self.mask = mask;
    }
}

fn flags() -> SendFlags {
    SendFlags::DONTWAIT | SendFlags::NOSIGNAL
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};

    fn polled(ready: &Ready) -> PollFlags {
        let all = PollFlags::IN | PollFlags::OUT;
        let theirs = ready.theirs.as_ref().unwrap();
        let mut fds = [PollFd::new(theirs, all)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)).unwrap();
        fds[0].revents()
    }

    #[test]
    fn a_descriptor_is_as_ready_as_it_is_told_to_be() {
        let mut ready = Ready::new().unwrap();
        assert_eq!(polled(&ready), PollFlags::empty());
        for (mask, expected) in [
            (libc::POLLOUT, PollFlags::OUT),
            (libc::POLLOUT | libc::POLLIN, PollFlags::OUT | PollFlags::IN),
            (libc::POLLIN, PollFlags::IN),
            (0, PollFlags::empty()),
            (libc::POLLOUT, PollFlags::OUT),
        ] {
            ready.set(mask);
            assert_eq!(polled(&ready), expected);
        }
        ready.set(libc::POLLHUP);
        assert!(polled(&ready).contains(PollFlags::HUP));
    }
}
