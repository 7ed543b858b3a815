//! Sockets between connection managers: names in the fabric's directory, and the thread that waits.
//!
//! ```text
//!   cm-SPACE-ADDRESS-PORT         who listens there (SEQPACKET); whoever is dead has left a file that
//!   cm-NODE-SPACE-ADDRESS-PORT    refuses, and that the next one replaces, holding the lock
//!   cm-lock
//! ```
//! Nodes of a fabric have names of their own: programs on two nodes may listen at the same port.

use std::{
    fs::{self, File},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock},
    io::Errno,
    net::{SocketFlags, accept_with},
};

use super::wire::Message;
use crate::{client::Fabric, place::Place, socket};
use snaprig_fabric::Node;
use snaprig_peers::packets;

/// Most connections that wait to be taken; the thread takes them at once.
const WAITING: i32 = 4096;

/// The name of a listener's socket. Who listens at all of IPv6 answers for IPv4, too, unless it is
/// told not to.
pub(super) fn name(space: u16, address: IpAddr, port: u16, afonly: bool) -> String {
    name_on(Node::from_env(), space, address, port, afonly)
}

fn name_on(node: Option<Node>, space: u16, address: IpAddr, port: u16, afonly: bool) -> String {
    let space: String = match space {
        super::id::PS_UDP => "udp".into(),
        super::id::PS_IPOIB => "ipoib".into(),
        0x0106 => "tcp".into(),
        0x013f => "ib".into(),
        other => format!("{other:x}"),
    };
    let space = match node {
        Some(node) => format!("{}-{space}", node.name()),
        None => space,
    };
    if afonly && address == Ipv6Addr::UNSPECIFIED {
        return format!("cm-{space}-only6-{port}");
    }
    format!("cm-{space}-{address}-{port}")
}

/// Names of those who may answer at an address, the first one first.
pub(super) fn names(space: u16, at: SocketAddr) -> Vec<String> {
    let port = at.port();
    let node = node_at(at.ip());
    let name = |space, address, port, afonly| name_on(node, space, address, port, afonly);
    let any4 = name(space, Ipv4Addr::UNSPECIFIED.into(), port, false);
    let any6 = name(space, Ipv6Addr::UNSPECIFIED.into(), port, false);
    let only6 = name(space, Ipv6Addr::UNSPECIFIED.into(), port, true);
    let own = name(space, at.ip(), port, false);
    match at {
        SocketAddr::V4(_) => vec![own, any4, any6],
        SocketAddr::V6(_) => vec![own, only6, any6],
    }
}

/// The address of a name: by the directory's descriptor, for that is short whatever the directory.
fn address(name: &str) -> io::Result<(OwnedFd, PathBuf)> {
    use std::os::fd::AsRawFd;
    let directory = Place::from_env()?.directory;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(&directory, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    Ok((directory, path.into()))
}

/// Connects to the first of these names where somebody listens.
pub(super) fn connect_to(names: &[String]) -> io::Result<OwnedFd> {
    for name in names {
        let (_directory, path) = address(name)?;
        match packets::connect(&path, SocketFlags::NONBLOCK) {
            Err(error) if packets::is_nobody(&error) => {}
            other => return other,
        }
    }
    Err(Errno::CONNREFUSED.into())
}

/// Does somebody listen there?
pub(super) fn is_taken(names: &[String]) -> bool {
    connect_to(names).is_ok()
}

/// Listens under a name; EADDRINUSE if somebody does.
pub(super) fn listen_at(name: &str) -> io::Result<OwnedFd> {
    let lock = File::create(Place::from_env()?.directory.join("cm-lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let (_directory, path) = address(name)?;
    // While the lock is held: a socket that is bound and does not listen looks dead.
    match packets::listen(&path, WAITING, SocketFlags::NONBLOCK) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && !is_taken(&[name.into()]) => {
            remove(name);
            packets::listen(&path, WAITING, SocketFlags::NONBLOCK)
        }
        other => other,
    }
}

/// A listener is gone.
pub(super) fn remove(name: &str) {
    if let Ok(place) = Place::from_env() {
        let _ = fs::remove_file(place.directory.join(name));
    }
}

pub(super) fn accept(socket: impl AsFd) -> io::Result<OwnedFd> {
    Ok(accept_with(
        socket,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
    )?)
}

pub(super) fn send(to: impl AsFd, message: &Message) -> io::Result<()> {
    socket::send(to, message, &[])
}

/// What has come: a message, nothing yet, or the end.
pub(super) fn receive(from: impl AsFd) -> Option<Option<Message>> {
    match socket::receive::<Message>(&from) {
        Ok(Some((message, _))) => Some(Some(message)),
        // An end by reset is told before what came before it.
        Ok(None) => match socket::receive::<Message>(&from) {
            Ok(Some((message, _))) => Some(Some(message)),
            _ => None,
        },
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Some(None),
        // Not a message of ours: whoever sends that is not talked to.
        Err(_) => None,
    }
}

/// The node with an address: that of this program, unless it is another's. None: this program is on no node.
fn node_at(address: IpAddr) -> Option<Node> {
    let own = Node::from_env()?;
    let other = match address {
        IpAddr::V4(address) => own.at(address),
        IpAddr::V6(_) => None,
    };
    Some(other.unwrap_or(own))
}

/// The address by which a program on a node reaches another node where they have no networks of their own.
pub(super) fn node_route(target: IpAddr) -> Option<IpAddr> {
    let IpAddr::V4(target) = target else {
        return None;
    };
    let own = Node::from_env()?;
    own.at(target)?;
    Some(own.address().into())
}

/// Is it an address of this machine, or of a node of the fabric?
pub(super) fn is_local(address: IpAddr) -> bool {
    let is_unspecific = address.is_loopback() || address.is_unspecified();
    if is_unspecific || node_route(address).is_some() {
        return true;
    }
    // Only an address of one's own can be bound.
    std::net::UdpSocket::bind((address, 0)).is_ok()
}

/// The first HCA of the node with that address, or the lowest that this program sees; 127.0.0.N+1 is number N of those.
pub(super) fn hca_of(address: IpAddr, fabric: &Fabric) -> u32 {
    let all = fabric.hcas.len() as u32;
    let hcas = node_at(address).map_or(0..all, |node| node.hcas(all));
    match address {
        IpAddr::V4(v4) if v4.is_loopback() => {
            let number = u32::from(v4) & 0xff_ffff;
            match (1..=hcas.len() as u32).contains(&number) {
                true => hcas.start + number - 1,
                false => hcas.start,
            }
        }
        _ => hcas.start,
    }
}

/// IPv6 addresses that mean IPv4 ones are those.
pub(super) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
