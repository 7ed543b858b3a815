//! Sockets of the host, and what they are for.

use std::{net::SocketAddrV4, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::{
    io::Errno as HostErrno,
    net::{Shutdown, SocketFlags, acceptfrom_with, shutdown, sockopt},
};
use snaprig_card_driver::{errno::Errno, file::Identity, wait::Channel};

use super::{Attempt, Doorbell, name_of};
use crate::files::{
    queue::{Queue, Taken},
    socket::{self, Listener, Stream},
};

/// A socket of the host.
pub enum Entry {
    Listening(Listening),
    Connecting(OwnedFd, SocketAddrV4, Arc<Attempt>),
    Connected(Connection),
}

/// One that others connect to.
pub struct Listening {
    pub fd: OwnedFd,
    pub listener: Arc<Listener>,
    /// Somebody may be waiting to be accepted.
    pub is_ready: bool,
}

/// One that is connected.
pub struct Connection {
    fd: OwnedFd,
    to_card: Arc<Queue>,
    from_card: Arc<Queue>,
    /// The host's socket may have something, and may have room.
    is_readable: bool,
    is_writable: bool,
    /// The end of what either side sends has been passed on.
    has_ended: [bool; 2],
}

/// From the peer to the card, and from the card to the peer.
const IN: usize = 0;
const OUT: usize = 1;

impl Connection {
    /// One of these two, and the card's end of it.
    pub fn new(
        fd: OwnedFd,
        domain: i32,
        [own, peer]: [SocketAddrV4; 2],
        doorbell: &Doorbell,
    ) -> (Self, Arc<Stream>) {
        let names = [own, peer].map(|address| name_of(address, domain));
        let stream = socket::outside(names, Identity::NOBODY);
        let (to_card, from_card) = (stream.incoming.clone(), stream.outgoing.clone());
        to_card.is_carried(doorbell.clone());
        from_card.is_carried(doorbell.clone());
        let connection = Self {
            fd,
            to_card,
            from_card,
            is_readable: true,
            is_writable: true,
            has_ended: [false; 2],
        };
        (connection, stream)
    }

    /// The host says that something has happened to it.
    pub fn is_ready(&mut self) {
        (self.is_readable, self.is_writable) = (true, true);
    }

    /// Carries what there is, and wakes whom that concerns. False: it is over.
    pub fn carry(&mut self, buffer: &mut [u8], wake: &mut dyn FnMut(Channel)) -> bool {
        let carried = self.bring(buffer, wake).and_then(|()| self.take_away(wake));
        match carried {
            Ok(()) => !self.is_over(),
            Err(_) => {
                self.to_card.reset();
                false
            }
        }
    }

    /// From the peer to the card.
    fn bring(&mut self, buffer: &mut [u8], wake: &mut dyn FnMut(Channel)) -> Result<(), HostErrno> {
        while self.is_readable && !self.has_ended[IN] {
            let room = self.to_card.room().min(buffer.len());
            if room == 0 {
                break;
            }
            match rustix::io::read(&self.fd, &mut buffer[..room]) {
                Ok(0) => {
                    self.has_ended[IN] = true;
                    self.to_card.close_writer(wake);
                }
                Ok(count) => {
                    self.to_card.bring(&buffer[..count]);
                    wake(self.to_card.channel);
                }
                Err(HostErrno::INTR) => {}
                Err(HostErrno::AGAIN) => self.is_readable = false,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// From the card to the peer.
    fn take_away(&mut self, wake: &mut dyn FnMut(Channel)) -> Result<(), HostErrno> {
        while self.is_writable && !self.has_ended[OUT] {
            let taken = self.from_card.take_away(|bytes| {
                // Who has no reader any more hears so from the errno: Rust programs ignore SIGPIPE.
                rustix::io::write(&self.fd, bytes)
            });
            match taken {
                Ok(Taken::Some) => wake(self.from_card.channel),
                Ok(Taken::Nothing) => break,
                Ok(Taken::End) => {
                    self.has_ended[OUT] = true;
                    if self.from_card.is_reset() {
                        // Who goes without having read everything says so (tcp(7)).
                        sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO))?;
                    } else {
                        shutdown(&self.fd, Shutdown::Write)?;
                    }
                }
                Err(HostErrno::INTR) => {}
                Err(HostErrno::AGAIN) => self.is_writable = false,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Whether both have said all, or nobody on the card listens any more.
    fn is_over(&self) -> bool {
        self.has_ended[OUT] && (self.has_ended[IN] || self.to_card.has_no_reader())
    }

    /// The end of it, for the card.
    pub fn close(self, wake: &mut dyn FnMut(Channel)) {
        // Who reads that it is over, and writes then, finds nobody there.
        self.from_card.close_reader(wake);
        if !self.has_ended[IN] {
            self.to_card.close_writer(wake);
        }
    }
}

impl Listening {
    /// Whoever waits to be accepted, if there is room for them on the card. None: nobody waits.
    pub fn accept(&mut self) -> Option<(OwnedFd, SocketAddrV4)> {
        while self.is_ready && self.listener.has_room() {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match acceptfrom_with(&self.fd, flags) {
                Ok((fd, peer)) => {
                    if let Some(peer) = peer.and_then(|peer| SocketAddrV4::try_from(peer).ok()) {
                        return Some((fd, peer));
                    }
                }
                Err(HostErrno::AGAIN) => self.is_ready = false,
                // This process has no room for another: until one is closed.
                Err(HostErrno::MFILE | HostErrno::NFILE | HostErrno::NOBUFS | HostErrno::NOMEM) => {
                    return None;
                }
                // Of one that has gone before it was accepted (accept(2)).
                Err(_) => {}
            }
        }
        None
    }
}

/// As the card has it.
pub fn card_errno(errno: HostErrno) -> Errno {
    Errno(errno.raw_os_error())
}
