//! What all sockets of a card share: names that are no paths, ports, and how many descriptors are on their way.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Weak},
};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::errno::Errno;

use crate::{
    files::{address::Place, socket::Listener},
    passed::InFlight,
    relay::Relay,
    tree::{Node, Vfs},
};

/// Ports for whoever wants any (ip_local_port_range).
const EPHEMERAL_PORTS: Range<u16> = 32_768..61_000;
/// The same where the card has a network: the host's kernel, which gives ports to connections that leave the card, has others
/// for that.
const EPHEMERAL_PORTS_OUTSIDE: Range<u16> = 61_000..65_535;

/// Names that autobind has: five hexadecimal digits.
const AUTOBIND_MAX: u32 = 0xf_ffff;

/// Ports of one protocol and one internet family: whether it is UDP, and whether it is IPv6.
pub type PortKind = (bool, bool);
type Port = (PortKind, u16);

/// What a socket is found under.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketName {
    /// A path.
    Path(String),
    /// An abstract name.
    Abstract(Vec<u8>),
    /// A port, of these kinds.
    Port(Vec<PortKind>, u16),
}

impl SocketName {
    /// Whether it is found there over IPv4.
    pub fn is_of_ipv4(&self) -> bool {
        matches!(self, Self::Port(kinds, _) if kinds.iter().any(|(_, is_ipv6)| !is_ipv6))
    }
}

/// Names of sockets, and what is on its way between them.
pub struct Sockets {
    /// Abstract names of sockets (unix(7)), each for as long as its socket is there.
    abstract_names: BTreeMap<Vec<u8>, Weak<Listener>>,
    /// Ports that are bound, each for as long as its socket is there.
    ports: BTreeMap<Port, Weak<Listener>>,
    /// The next of each that is tried for who does not say which.
    next_port: u16,
    next_name: u32,
    /// Descriptors on their way through sockets.
    pub in_flight: InFlight,
    /// The way out of the card, if it has a network.
    pub relay: Option<Arc<Relay>>,
}

impl Default for Sockets {
    fn default() -> Self {
        Self {
            abstract_names: BTreeMap::new(),
            ports: BTreeMap::new(),
            next_port: EPHEMERAL_PORTS.start,
            next_name: 0,
            in_flight: InFlight::default(),
            relay: None,
        }
    }
}

impl Sockets {
    /// Whether an address is of this card.
    pub fn is_here(&self, place: Place) -> bool {
        let is_own = |relay: &Arc<Relay>| relay.is_own(place.ip);
        place.is_here() || self.relay.as_ref().is_some_and(is_own)
    }

    /// Gives a socket an abstract name.
    pub fn add_abstract(&mut self, name: Vec<u8>, listener: &Arc<Listener>) -> Result<(), Errno> {
        self.abstract_names
            .retain(|_, listener| listener.strong_count() > 0);
        if self.abstract_names.contains_key(&name) {
            return Err(Errno::EADDRINUSE);
        }
        self.abstract_names.insert(name, Arc::downgrade(listener));
        Ok(())
    }

    /// Gives a socket an abstract name that nobody has (unix(7), autobind).
    pub fn add_unnamed(&mut self, listener: &Arc<Listener>) -> Result<Vec<u8>, Errno> {
        for _ in 0..=AUTOBIND_MAX {
            let name = format!("{:05x}", self.next_name).into_bytes();
            self.next_name = (self.next_name + 1) & AUTOBIND_MAX;
            if self.add_abstract(name.clone(), listener).is_ok() {
                return Ok(name);
            }
        }
        Err(Errno::ENOSPC)
    }

    /// The socket that has an abstract name.
    pub fn find_abstract(&self, name: &[u8]) -> Option<Arc<Listener>> {
        self.abstract_names.get(name)?.upgrade()
    }

    /// Binds a socket to a port of these families, 0 being any that is free.
    pub fn add_port(
        &mut self,
        kinds: &[PortKind],
        number: u16,
        listener: &Arc<Listener>,
    ) -> Result<u16, Errno> {
        self.ports.retain(|_, listener| listener.strong_count() > 0);
        let number = match number {
            0 => self.free_port(kinds)?,
            number if self.has_port(kinds, number) => return Err(Errno::EADDRINUSE),
            number => number,
        };
        for kind in kinds {
            self.ports.insert((*kind, number), Arc::downgrade(listener));
        }
        Ok(number)
    }

    fn has_port(&self, kinds: &[PortKind], number: u16) -> bool {
        kinds
            .iter()
            .any(|kind| self.ports.contains_key(&(*kind, number)))
    }

    /// A port that nobody is bound to.
    pub fn free_port(&mut self, kinds: &[PortKind]) -> Result<u16, Errno> {
        let range = match self.relay {
            None => EPHEMERAL_PORTS,
            Some(_) => EPHEMERAL_PORTS_OUTSIDE,
        };
        for _ in range.clone() {
            let number = self.next_port;
            self.next_port = match range.contains(&(number + 1)) {
                true => number + 1,
                false => range.start,
            };
            if range.contains(&number) && !self.has_port(kinds, number) {
                return Ok(number);
            }
        }
        Err(Errno::EADDRINUSE)
    }

    /// The socket that is bound to a port.
    pub fn find_port(&self, kind: PortKind, number: u16) -> Option<Arc<Listener>> {
        self.ports.get(&(kind, number))?.upgrade()
    }

    /// What a socket is found under; nothing any more, if its node is gone.
    pub fn name_of(&self, vfs: &Vfs, listener: &Arc<Listener>) -> Option<SocketName> {
        let is_it = |other: &Weak<Listener>| std::ptr::eq(other.as_ptr(), Arc::as_ptr(listener));
        if listener.domain == libc::AF_UNIX {
            let mut named = self.abstract_names.iter();
            if let Some((name, _)) = named.find(|(_, other)| is_it(other)) {
                return Some(SocketName::Abstract(name.clone()));
            }
            let is_node = |node: &Node| matches!(node, Node::Socket(Some(other)) if Arc::ptr_eq(other, listener));
            return vfs.path_of_node(is_node).map(SocketName::Path);
        }
        let ports = self.ports.iter().filter(|(_, other)| is_it(other));
        let (kinds, numbers): (Vec<_>, Vec<_>) = ports.map(|(port, _)| *port).unzip();
        Some(SocketName::Port(kinds, *numbers.first()?))
    }

    /// Whether no socket that is open has this name, nor anything else.
    pub fn is_free(&self, vfs: &Vfs, name: &SocketName) -> bool {
        match name {
            SocketName::Port(kinds, number) => kinds
                .iter()
                .all(|kind| self.find_port(*kind, *number).is_none()),
            SocketName::Abstract(name) => self.find_abstract(name).is_none(),
            SocketName::Path(path) => match vfs.find(vfs.root(), path, true) {
                Ok(found) => found.node.is_none_or(|node| match vfs.node(node) {
                    Some(Node::Socket(listener)) => {
                        listener.as_ref().is_none_or(|it| !it.is_open())
                    }
                    _ => false,
                }),
                Err(errno) => errno == Errno::ENOENT,
            },
        }
    }

    /// A restored socket listens on the card's network, too, as it did.
    pub fn listen_outside(&self, listener: &Arc<Listener>) {
        if let (Some(relay), (_, 1..)) = (&self.relay, listener.backlog()) {
            // Nobody waits for that; if the port is another's, the socket is reached on the card alone.
            let _ = listener.listen_outside(relay);
        }
    }

    /// Gives a socket a name that is free.
    pub fn give(
        &mut self,
        vfs: &mut Vfs,
        name: SocketName,
        listener: Arc<Listener>,
    ) -> Result<(), Errno> {
        match name {
            SocketName::Port(kinds, number) => self.add_port(&kinds, number, &listener).map(|_| ()),
            SocketName::Abstract(name) => self.add_abstract(name, &listener),
            SocketName::Path(path) => vfs.put(&path, Node::Socket(Some(listener))),
        }
    }
}
