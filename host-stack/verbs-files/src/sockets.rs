//! Sockets between connection managers: names in the fabric's directory, and the thread that waits.
//!
//! ```text
//!   cm-SPACE-ADDRESS-PORT         who listens there (SEQPACKET); whoever is dead has left a file that
//!   cm-NODE-SPACE-ADDRESS-PORT    refuses, and that the next one replaces, holding the lock
//!   cm-lock
//! ```
//! Nodes of a fabric have names of their own: programs on two nodes may listen at the same port. Where a node has a daemon of
//! its own, that daemon passes on what managers on two nodes say.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use rustix::{
    event::epoll,
    fs::{FlockOperation, Mode, OFlags, flock},
    io::Errno,
    net::{Shutdown, SocketFlags, accept_with, shutdown},
};
use snaprig_fabric::{Node, Tcp, place::Place, protocol::Ask, socket};
use snaprig_hca::model::Model;
use snaprig_peers::packets;
use snaprig_verbs_cm::{
    Host, LinkId, NotConnected, Port, Service,
    wire::{Message, REJ_INVALID_SERVICE, SIDR_UNSUPPORTED},
};

use crate::{Fabric, Join, port_of};

/// Most connections that wait to be taken; the thread takes them at once.
const WAITING: i32 = 4096;
/// The largest packet of an HCA that has no smaller one.
const MTU_BYTES: u32 = 4096;
/// `enum rdma_ucm_port_space`.
const PS_IPOIB: u16 = 0x0002;
const PS_TCP: u16 = 0x0106;
const PS_UDP: u16 = 0x0111;
const PS_IB: u16 = 0x013f;
/// The thread's own descriptor, among the numbers of links.
pub(crate) const WAKE: u64 = 0;

/// A link between two managers, or a place where this process listens.
#[derive(Debug)]
enum Socket {
    Link(Arc<OwnedFd>),
    /// With the name of its file, which goes when it is closed.
    Listener(Arc<OwnedFd>, String),
}

impl Socket {
    fn fd(&self) -> &Arc<OwnedFd> {
        match self {
            Self::Link(fd) | Self::Listener(fd, _) => fd,
        }
    }
}

/// What has come over a socket.
#[derive(Debug)]
pub(crate) enum Arrival {
    Message(Message),
    /// The other side is gone, or says what is no message.
    End,
    /// A new link, to this listener.
    Accepted(LinkId),
    Nothing,
}

/// All sockets of a process, and what the manager asks of its machine.
#[derive(Debug)]
pub(crate) struct Sockets {
    join: Join,
    epoll: Arc<OwnedFd>,
    all: HashMap<LinkId, Socket>,
    next: u64,
}

impl Sockets {
    /// No sockets; those to come are waited for by `epoll`, each under its number.
    pub(crate) fn new(join: Join, epoll: Arc<OwnedFd>) -> Self {
        Self {
            join,
            epoll,
            all: HashMap::new(),
            next: WAKE + 1,
        }
    }

    /// Its descriptors.
    pub(crate) fn owned(&self, descriptor: &mut impl FnMut(BorrowedFd<'_>)) {
        descriptor(self.epoll.as_fd());
        for socket in self.all.values() {
            descriptor(socket.fd().as_fd());
        }
    }

    fn add(&mut self, socket: Socket) -> io::Result<LinkId> {
        let link = LinkId(self.next);
        self.next += 1;
        let data = epoll::EventData::new_u64(link.0);
        epoll::add(&self.epoll, socket.fd(), data, epoll::EventFlags::IN)?;
        self.all.insert(link, socket);
        Ok(link)
    }

    pub(crate) fn send(&self, link: LinkId, message: &Message) {
        if let Some(socket) = self.all.get(&link) {
            // Whoever is gone is heard of as the end of the link.
            let _ = socket::send(&**socket.fd(), message, &[]);
        }
    }

    pub(crate) fn close(&mut self, link: LinkId) {
        let Some(socket) = self.all.remove(&link) else {
            return;
        };
        if let Socket::Listener(_, file) = &socket {
            remove(file);
        }
        // A child of fork(2) may have the socket, too; it is not to be heard of here.
        let _ = epoll::delete(&self.epoll, &**socket.fd());
        let _ = shutdown(&**socket.fd(), Shutdown::Both);
    }

    /// Takes what has come over a link, which is readable.
    pub(crate) fn take(&mut self, link: LinkId) -> Arrival {
        match self.all.get(&link) {
            None => Arrival::Nothing,
            Some(Socket::Link(fd)) => receive(&**fd),
            Some(Socket::Listener(fd, _)) => {
                let accepted = accept(&**fd).and_then(|new| self.add(Socket::Link(Arc::new(new))));
                accepted.map_or(Arrival::Nothing, Arrival::Accepted)
            }
        }
    }

    fn fabric(&self) -> Result<Arc<dyn Fabric>, Errno> {
        (self.join)()
    }
}

impl Host for Sockets {
    fn is_local(&self, address: IpAddr) -> bool {
        is_local(address)
    }

    fn source_for(&self, target: SocketAddr) -> Option<IpAddr> {
        route(target)
    }

    fn port_at(&self, address: IpAddr) -> Result<Port, Errno> {
        let fabric = self.fabric()?;
        port_of(&*fabric, hca_of(address, fabric.models().len() as u32))
    }

    fn mtu_bytes(&self) -> u32 {
        let of = |fabric: Arc<dyn Fabric>| {
            let bytes = fabric.models().iter().map(|name| Model::of(*name).mtu);
            bytes.min()
        };
        self.fabric().ok().and_then(of).unwrap_or(MTU_BYTES)
    }

    fn is_taken(&self, service: &Service) -> bool {
        is_taken(&names(service))
    }

    fn listen(&mut self, service: &Service, ipv6_only: bool) -> Result<LinkId, Errno> {
        let Service { space, address } = *service;
        let name = name(space, address.ip(), address.port(), ipv6_only);
        let fd = listen_at(&name).map_err(errno)?;
        let listener = Socket::Listener(Arc::new(fd), name.clone());
        self.add(listener).map_err(|error| {
            remove(&name);
            errno(error)
        })
    }

    fn connect(&mut self, service: &Service, first: &Message) -> Result<LinkId, NotConnected> {
        let connected = match elsewhere(service.address.ip()) {
            Some(node) => reach(node, service, first),
            None => connect_to(&names(service))
                .and_then(|fd| socket::send(&fd, first, &[]).map(|()| fd)),
        };
        connected
            .and_then(|fd| self.add(Socket::Link(Arc::new(fd))))
            .map_err(|error| match error.kind() {
                io::ErrorKind::ConnectionRefused => NotConnected::Refused,
                _ => NotConnected::Failed,
            })
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The name of a listener's socket. Who listens at all of IPv6 answers for IPv4, too, unless it is
/// told not to.
fn name(space: u16, address: IpAddr, port: u16, afonly: bool) -> String {
    name_on(node_of_network(), space, address, port, afonly)
}

fn name_on(node: Option<Node>, space: u16, address: IpAddr, port: u16, afonly: bool) -> String {
    let space: String = match space {
        PS_UDP => "udp".into(),
        PS_IPOIB => "ipoib".into(),
        PS_TCP => "tcp".into(),
        PS_IB => "ib".into(),
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

/// Names of those who may answer at a service, the first one first.
fn names(service: &Service) -> Vec<String> {
    let Service { space, address: at } = *service;
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
fn connect_to(names: &[String]) -> io::Result<OwnedFd> {
    for name in names {
        let (_directory, path) = address(name)?;
        match packets::connect(&path, SocketFlags::NONBLOCK) {
            Err(error) if packets::is_nobody(&error) => {}
            other => return other,
        }
    }
    Err(Errno::CONNREFUSED.into())
}

/// Has this node's daemon connect to who listens at a service of another node. That nobody does is heard of later.
fn reach(node: u32, service: &Service, first: &Message) -> io::Result<OwnedFd> {
    let reason = match service.space {
        PS_UDP | PS_IPOIB => SIDR_UNSUPPORTED,
        _ => REJ_INVALID_SERVICE,
    };
    let data = Vec::new();
    let ask = Ask::Reach {
        node,
        names: names(service),
        first: socket::encode(first)?,
        refusal: socket::encode(&Message::Rej { reason, data })?,
    };
    let daemon = packets::connect(&Place::from_env()?.socket(), SocketFlags::NONBLOCK)?;
    socket::send(&daemon, &ask, &[])?;
    Ok(daemon)
}

/// Does somebody listen there?
fn is_taken(names: &[String]) -> bool {
    connect_to(names).is_ok()
}

/// Listens under a name; EADDRINUSE if somebody does.
fn listen_at(name: &str) -> io::Result<OwnedFd> {
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
fn remove(name: &str) {
    if let Ok(place) = Place::from_env() {
        let _ = fs::remove_file(place.directory.join(name));
    }
}

fn accept(socket: impl AsFd) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(accept_with(socket, flags)?)
}

fn receive(from: impl AsFd) -> Arrival {
    match socket::receive::<Message>(&from) {
        Ok(Some((message, _))) => Arrival::Message(message),
        // An end by reset is told before what came before it.
        Ok(None) => match socket::receive::<Message>(&from) {
            Ok(Some((message, _))) => Arrival::Message(message),
            _ => Arrival::End,
        },
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Arrival::Nothing,
        // Whoever sends what is no message is not talked to.
        Err(_) => Arrival::End,
    }
}

/// The node whose network this program is in. Who has moved to another one's HCAs has taken its network along, and others know it
/// by that. None: it is on no node.
fn node_of_network() -> Option<Node> {
    let own = Node::from_env()?;
    let is_here = |node: &Node| is_own(node.address().into());
    if is_here(&own) {
        return Some(own);
    }
    let mut all = (1..).map_while(|number| own.other(number));
    // Where nodes have no networks of their own there is none.
    Some(all.find(is_here).unwrap_or(own))
}

/// Only an address of one's own can be bound.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The node with an address: that of this program, unless it is another's. None: this program is on no node.
fn node_at(address: IpAddr) -> Option<Node> {
    let own = Node::from_env()?;
    let other = match address {
        IpAddr::V4(address) => own.at(address),
        IpAddr::V6(_) => None,
    };
    let by_tcp = || own.other(tcp()?.addresses.node_at(address)?);
    let other = other.or_else(|| {
        if address.is_loopback() {
            None
        } else {
            by_tcp()
        }
    });
    other.or_else(node_of_network)
}

/// How nodes reach each other, if each has a daemon of its own.
fn tcp() -> Option<Tcp> {
    Tcp::from_env().ok()?
}

/// The node with an address, if another daemon than this program's has it.
fn elsewhere(address: IpAddr) -> Option<u32> {
    let (tcp, node) = (tcp()?, node_at(address)?);
    let is_elsewhere = Some(node) != node_of_network() && node.number <= tcp.addresses.count();
    is_elsewhere.then_some(node.number)
}

/// The address by which a program on a node reaches another node where they have no networks of their own.
fn node_route(target: IpAddr) -> Option<IpAddr> {
    let IpAddr::V4(target) = target else {
        return None;
    };
    let own = Node::from_env()?;
    own.at(target)?;
    Some(node_of_network()?.address().into())
}

/// Is it an address of this machine, or of a node of the fabric?
fn is_local(address: IpAddr) -> bool {
    let is_unspecific = address.is_loopback() || address.is_unspecified();
    if is_unspecific || node_route(address).is_some() {
        return true;
    }
    is_own(address)
}

/// Of `all` HCAs the first one of the node with that address, or the lowest that this program sees; 127.0.0.N+1 is number
/// N of those.
fn hca_of(address: IpAddr, all: u32) -> u32 {
    let node = match node_at(address) {
        node if node == node_of_network() => Node::from_env(),
        node => node,
    };
    let hcas = node.map_or(0..all, |node| node.hcas(all));
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

/// The address that this machine has on the way to a target.
fn route(target: SocketAddr) -> Option<IpAddr> {
    if target.ip().is_loopback() {
        return Some(match target {
            SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            SocketAddr::V6(_) => target.ip(),
        });
    }
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    if let Some(own) = node_route(target.ip().to_canonical()) {
        return Some(own);
    }
    let port = target.port().max(1);
    let socket = UdpSocket::bind(any).ok()?;
    let routed = socket.connect(SocketAddr::new(target.ip(), port));
    // No way to a group, on a machine without a network: the loopback device has them all.
    match routed.and_then(|()| socket.local_addr()) {
        Ok(local) => Some(local.ip()),
        Err(_) if target.ip().is_multicast() => Some(Ipv4Addr::LOCALHOST.into()),
        Err(_) => None,
    }
}
