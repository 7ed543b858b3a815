//! What the manager asks of the machine that it runs on.

use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;

use crate::wire::{Endpoint, Message};

/// The number of a connection between two managers, or of a place where one listens. The host gives it, and never
/// twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// A place where somebody may listen: a port of an address in a port space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// `enum rdma_ucm_port_space`.
    pub space: u16,
    /// The address and the port.
    pub address: SocketAddr,
}

impl Service {
    /// A service at an address; an IPv6 address that means an IPv4 one is that.
    pub fn new(space: u16, address: SocketAddr) -> Self {
        Self {
            space,
            address: SocketAddr::new(address.ip().to_canonical(), address.port()),
        }
    }
}

/// A port of an HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// The number of the HCA.
    pub hca: u32,
    /// The HCA's GUID.
    pub node_guid: u64,
    /// Where the port is in the fabric.
    pub endpoint: Endpoint,
}

/// Why nobody was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotConnected {
    /// Nobody listens; perhaps somebody will.
    Refused,
    /// It cannot be done.
    Failed,
}

/// The machine, and the fabric that it belongs to. No answer may wait for another process.
pub trait Host {
    /// Is it an address of this machine, or of a node of its fabric?
    fn is_local(&self, address: IpAddr) -> bool;

    /// The address that this machine has on the way to a target, if there is a way.
    fn source_for(&self, target: SocketAddr) -> Option<IpAddr>;

    /// The port of the HCA that has an address.
    fn port_at(&self, address: IpAddr) -> Result<Port, Errno>;

    /// Bytes of the largest packet that passes on all paths.
    fn mtu_bytes(&self) -> u32;

    /// Does somebody listen there?
    fn is_taken(&self, service: &Service) -> bool;

    /// Listens at a service. Who listens at all of IPv6 answers for IPv4, too, unless `ipv6_only`. EADDRINUSE: somebody
    /// listens there.
    fn listen(&mut self, service: &Service, ipv6_only: bool) -> Result<LinkId, Errno>;

    /// Connects to who listens at a service, and says the first message.
    fn connect(&mut self, service: &Service, first: &Message) -> Result<LinkId, NotConnected>;
}
