//! Connections that leave the card. One thread carries their bytes between the queues that the card's sockets read and
//! write, and sockets of the host's kernel, whose TCP is the card's.
//!
//! ```text
//!  socket of the card --> queue --> [carrier's thread] --> socket of the host --> peer
//!                     <-- queue <--                    <--
//! ```
//!
//! So a connection that leaves the card is to every call what one over `lo` is; that its peer is not in any image makes it
//! [`State::Reset`](crate::files::socket::State::Reset) on another card.
//!
//! | file | what it is |
//! |---|---|
//! | this one | what calls ask of the carrier, under the kernel lock: they never wait for it there |
//! | `attempt` | a connect(2) that is on its way |
//! | [`carrier`] | the thread, which alone has sockets of the host |
//! | `entry` | what it carries |
//!
//! What must stay true: no lock is held while the kernel lock is taken (to wake threads); what is asked of the carrier is
//! bounded.

mod attempt;
pub mod carrier;
mod entry;

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddrV4},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::event::{EventfdFlags, eventfd};
use snaprig_card_driver::{errno::Errno, network::Interface};

pub use self::attempt::{Attempt, Outcome};
use crate::files::{address::Place, socket::Listener};

/// What the carrier calls one of its sockets.
pub type Id = u64;

/// Most sockets of the host that a card has at once, and most that it may have asked for meanwhile.
const SOCKETS_MAX: usize = 4096;

/// A card's way out: what its calls ask of the carrier.
pub struct Relay {
    interface: Interface,
    asked: Mutex<Asked>,
    /// Rung when something has been asked.
    bell: OwnedFd,
}

#[derive(Default)]
struct Asked {
    last: Id,
    /// Whose queues have changed.
    changed: BTreeSet<Id>,
    /// What is to be made.
    wanted: Vec<(Id, Wanted)>,
    /// There is no carrier any more, or is to be none.
    is_over: bool,
}

enum Wanted {
    Listening(Arc<Listener>, u16),
    Connection(Arc<Attempt>),
}

/// Tells the carrier that something of one of its sockets has changed.
#[derive(Clone)]
pub struct Doorbell {
    relay: Arc<Relay>,
    id: Id,
}

impl Doorbell {
    /// It has.
    pub fn ring(&self) {
        self.relay.ask(|asked| {
            asked.changed.insert(self.id);
        });
    }
}

impl Relay {
    fn new(interface: Interface) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            interface,
            asked: Mutex::default(),
            bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        }))
    }

    /// The interface that it stands for.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Whether an address is the card's own.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        ip == IpAddr::V4(self.interface.address)
    }

    /// The port at which a socket with this name is to be reached from outside.
    pub fn port_of(&self, place: Place) -> Option<u16> {
        (place.ip.is_unspecified() || self.is_own(place.ip)).then_some(place.port)
    }

    /// Has a socket listen outside, too; it is told what becomes of that.
    pub fn listen(&self, listener: &Arc<Listener>, port: u16) -> Result<(), Errno> {
        self.want(Wanted::Listening(listener.clone(), port))
            .map(drop)
    }

    /// Has a socket connected; it is told what becomes of that.
    pub fn connect(self: &Arc<Self>, attempt: Arc<Attempt>) -> Result<(), Errno> {
        let given_up = attempt.clone();
        let id = self.want(Wanted::Connection(attempt))?;
        given_up.is_known_as(Doorbell {
            relay: self.clone(),
            id,
        });
        Ok(())
    }

    /// Ends the carrier.
    pub fn close(&self) {
        self.ask(|asked| asked.is_over = true);
    }

    fn want(&self, wanted: Wanted) -> Result<Id, Errno> {
        let mut id = Err(Errno::ENETDOWN);
        self.ask(|asked| {
            if asked.wanted.len() >= SOCKETS_MAX {
                id = Err(Errno::ENOBUFS);
            } else if !asked.is_over {
                asked.last += 1;
                asked.wanted.push((asked.last, wanted));
                id = Ok(asked.last);
            }
        });
        id
    }

    fn ask(&self, what: impl FnOnce(&mut Asked)) {
        what(&mut self.lock());
        // It counts: nobody waits for room there, and one who looks sees all that was asked before.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An address as a socket of this family has it.
fn name_of(address: SocketAddrV4, domain: i32) -> Vec<u8> {
    let (ip, port) = ((*address.ip()).into(), address.port());
    Place { ip, port }.bytes(domain)
}
