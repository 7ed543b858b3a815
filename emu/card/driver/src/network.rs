//! A network beyond the card's loopback device, as whoever runs the card plugs one in: an interface, and somebody who makes
//! sockets of the host's kernel for it. The card's TCP is that kernel's.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::OwnedFd,
};

use super::errno::Errno;

/// An interface of a card, beside `lo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The card's address.
    pub address: Ipv4Addr,
    /// Bits of the address that are the network's (0 to 32).
    pub prefix: u8,
    /// Where packets for other networks go.
    pub gateway: Ipv4Addr,
    /// Who else is known by name (hosts(5)), the card itself included.
    pub hosts: Vec<(Ipv4Addr, String)>,
}

/// Makes sockets of the host for a card: streams of IPv4, non-blocking, which have no address but the card's. It is asked by
/// one thread, and may wait for somebody else.
pub trait Network: Send {
    /// A socket that listens at this port.
    fn listen(&self, port: u16) -> Result<OwnedFd, Errno>;

    /// A socket that is on its way to `to`, and the port that it is from: `from`, or any if that is 0. Once it can be written
    /// to, SO_ERROR says what became of it (connect(2), EINPROGRESS).
    fn connect(&self, from: u16, to: SocketAddrV4) -> Result<(OwnedFd, u16), Errno>;
}
