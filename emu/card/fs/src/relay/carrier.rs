//! The thread that carries bytes between the card's queues and sockets of the host.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddrV4,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    event::epoll,
    io::Errno as HostErrno,
    net::{getsockname, sockopt},
};
use snaprig_card_driver::{
    device::Waker,
    errno::Errno,
    network::{Interface, Network},
    wait::Channel,
};

use super::{
    Attempt, Doorbell, Id, Relay, SOCKETS_MAX, Wanted,
    entry::{Connection, Entry, Listening, card_errno},
};
use crate::files::socket::Listener;

/// What the relay's own bell is called: no socket is.
const BELL: Id = 0;
/// Bytes that are carried at once.
const PART_BYTES: usize = 64 << 10;
/// What is told at once.
const EVENTS: usize = 64;

/// Carries bytes for a card: to be run by a thread of its own.
pub struct Carrier {
    relay: Arc<Relay>,
    network: Box<dyn Network>,
    waker: Waker,
    epoll: OwnedFd,
    entries: BTreeMap<Id, Entry>,
    buffer: Vec<u8>,
    /// Somebody waits to be accepted until a socket is closed.
    is_crowded: bool,
}

impl Carrier {
    /// One for a card with this interface, whose sockets `network` makes.
    pub fn new(interface: Interface, network: Box<dyn Network>, waker: Waker) -> io::Result<Self> {
        let relay = Relay::new(interface)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, &relay.bell, bell, epoll::EventFlags::IN)?;
        Ok(Self {
            relay,
            network,
            waker,
            epoll,
            entries: BTreeMap::new(),
            buffer: vec![0; PART_BYTES],
            is_crowded: false,
        })
    }

    /// What the card's calls ask.
    pub fn relay(&self) -> &Arc<Relay> {
        &self.relay
    }

    /// Carries until [`Relay::close`].
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                None,
            ) {
                Ok(_) | Err(HostErrno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in &events {
                let id = event.data.u64();
                match self.entries.get_mut(&id) {
                    Some(Entry::Connected(connection)) => connection.is_ready(),
                    Some(Entry::Listening(listening)) => listening.is_ready = true,
                    Some(Entry::Connecting(..)) => self.has_been_tried(id),
                    // The bell, or one that was closed a moment ago.
                    None => continue,
                }
                self.look_at(id);
            }
            if !self.do_what_is_asked() {
                self.carry_the_rest();
                return Ok(());
            }
        }
    }

    /// What programs have sent before they ended, and how they have closed, may be known to the queues alone.
    fn carry_the_rest(&mut self) {
        let all: Vec<Id> = self.entries.keys().copied().collect();
        for id in all {
            self.look_at(id);
        }
    }

    /// False: it is to end.
    fn do_what_is_asked(&mut self) -> bool {
        // Whatever is asked from here on rings again.
        let _ = rustix::io::read(&self.relay.bell, &mut [0; 8]);
        let (changed, wanted) = {
            let mut asked = self.relay.lock();
            if asked.is_over {
                return false;
            }
            let changed = std::mem::take(&mut asked.changed);
            (changed, std::mem::take(&mut asked.wanted))
        };
        // What is closed first: its port may be wanted.
        for id in changed {
            self.look_at(id);
        }
        for (id, wanted) in wanted {
            match wanted {
                Wanted::Listening(listener, port) => self.listen(id, listener, port),
                Wanted::Connection(attempt) => self.connect(id, attempt),
            }
        }
        true
    }

    fn doorbell(&self, id: Id) -> Doorbell {
        let relay = self.relay.clone();
        Doorbell { relay, id }
    }

    fn wake(&self, channel: Channel) {
        self.waker.wake(channel);
    }

    fn check_room(&self) -> Result<(), Errno> {
        match self.entries.len() < SOCKETS_MAX {
            true => Ok(()),
            false => Err(Errno::ENOBUFS),
        }
    }

    /// Has the host tell of each change of a socket, once.
    fn watch(&self, id: Id, fd: &OwnedFd) -> Result<(), Errno> {
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let added = epoll::add(
            &self.epoll,
            fd.as_fd(),
            epoll::EventData::new_u64(id),
            flags,
        );
        added.map_err(card_errno)
    }

    fn listen(&mut self, id: Id, listener: Arc<Listener>, port: u16) {
        let made = self.check_room().and_then(|()| {
            let fd = self.network.listen(port)?;
            self.watch(id, &fd)?;
            Ok(fd)
        });
        match made {
            Ok(fd) => {
                listener.is_outside(Ok(self.doorbell(id)));
                let listening = Listening {
                    fd,
                    listener: listener.clone(),
                    is_ready: true,
                };
                self.entries.insert(id, Entry::Listening(listening));
            }
            Err(errno) => {
                tracing::debug!(port, %errno, "a socket that does not listen outside");
                listener.is_outside(Err(errno));
            }
        }
        self.wake(listener.channel());
        self.look_at(id);
    }

    fn connect(&mut self, id: Id, attempt: Arc<Attempt>) {
        let made = self.check_room().and_then(|()| {
            let (fd, port) = self.network.connect(attempt.from, attempt.to)?;
            self.watch(id, &fd)?;
            Ok((fd, port))
        });
        match made {
            Ok((fd, port)) => {
                let own = SocketAddrV4::new(self.relay.interface.address, port);
                // The host tells of it, also if it is connected already.
                let entry = Entry::Connecting(fd, own, attempt);
                self.entries.insert(id, entry);
            }
            Err(errno) => {
                attempt.finish(Err(errno));
                self.wake(attempt.channel);
            }
        }
    }

    /// Does for one socket whatever can be done.
    fn look_at(&mut self, id: Id) {
        match self.entries.get_mut(&id) {
            None => {}
            Some(Entry::Connected(connection)) => {
                let waker = &self.waker;
                let mut wake = |channel| waker.wake(channel);
                if !connection.carry(&mut self.buffer, &mut wake) {
                    self.forget(id);
                }
            }
            Some(Entry::Listening(listening)) if !listening.listener.is_open() => self.forget(id),
            Some(Entry::Listening(_)) => self.accept_from(id),
            Some(Entry::Connecting(_, _, attempt)) if attempt.is_given_up() => self.forget(id),
            Some(Entry::Connecting(..)) => {}
        }
    }

    /// A connection is there, or will not be.
    fn has_been_tried(&mut self, id: Id) {
        let Some(Entry::Connecting(fd, own, attempt)) = self.entries.remove(&id) else {
            return;
        };
        let outcome = match sockopt::socket_error(&fd) {
            Ok(Ok(())) => {
                let (doorbell, names) = (self.doorbell(id), [own, attempt.to]);
                let (connection, stream) = Connection::new(fd, attempt.domain, names, &doorbell);
                self.entries.insert(id, Entry::Connected(connection));
                Ok(stream)
            }
            Ok(Err(errno)) | Err(errno) => Err(card_errno(errno)),
        };
        attempt.finish(outcome);
        self.wake(attempt.channel);
    }

    fn accept_from(&mut self, id: Id) {
        loop {
            let has_room = self.check_room().is_ok();
            let Some(Entry::Listening(listening)) = self.entries.get_mut(&id) else {
                return;
            };
            let accepted = has_room.then(|| listening.accept()).flatten();
            let Some((fd, peer)) = accepted else {
                self.is_crowded |= listening.is_ready && listening.listener.has_room();
                return;
            };
            let listener = listening.listener.clone();
            let own = getsockname(&fd).ok();
            let own = own.and_then(|own| SocketAddrV4::try_from(own).ok());
            let Some(own) = own else { continue };
            // Of an address of the host, that is, but a card knows only its own.
            let own = SocketAddrV4::new(self.relay.interface.address, own.port());
            let new = self.new_id();
            if self.watch(new, &fd).is_err() {
                continue;
            }
            let doorbell = self.doorbell(new);
            let (connection, stream) = Connection::new(fd, listener.domain, [own, peer], &doorbell);
            self.entries.insert(new, Entry::Connected(connection));
            listener.admit(stream);
            self.wake(listener.channel());
            self.look_at(new);
        }
    }

    fn new_id(&self) -> Id {
        let mut asked = self.relay.lock();
        asked.last += 1;
        asked.last
    }

    /// Closes a socket: there is room for another.
    fn forget(&mut self, id: Id) {
        if let Some(Entry::Connected(connection)) = self.entries.remove(&id) {
            connection.close(&mut |channel| self.waker.wake(channel));
        }
        if std::mem::take(&mut self.is_crowded) {
            let listening = self.entries.iter().filter_map(|(id, entry)| match entry {
                Entry::Listening(listening) if listening.is_ready => Some(*id),
                _ => None,
            });
            self.relay.ask(|asked| asked.changed.extend(listening));
        }
    }
}

impl Drop for Carrier {
    /// Nobody waits for what nobody carries.
    fn drop(&mut self) {
        let wanted = {
            let mut asked = self.relay.lock();
            asked.is_over = true;
            std::mem::take(&mut asked.wanted)
        };
        for (_, wanted) in wanted {
            match wanted {
                Wanted::Listening(listener, _) => {
                    listener.is_outside(Err(Errno::ENETDOWN));
                    self.wake(listener.channel());
                }
                Wanted::Connection(attempt) => {
                    attempt.finish(Err(Errno::ENETDOWN));
                    self.wake(attempt.channel);
                }
            }
        }
        for (_, entry) in std::mem::take(&mut self.entries) {
            match entry {
                Entry::Connected(connection) => {
                    connection.close(&mut |channel| self.waker.wake(channel));
                }
                Entry::Connecting(_, _, attempt) => {
                    attempt.finish(Err(Errno::ENETDOWN));
                    self.wake(attempt.channel);
                }
                Entry::Listening(_) => {}
            }
        }
    }
}
