//! Names of sockets: what a call says, what a socket is bound to, and who is found there.

use std::sync::Arc;

use snaprig_card_driver::{errno::Errno, wait::SysResult};

use crate::{
    call::FsCall,
    calls::socket_of::with,
    files::{
        address::{self, Address, Place, STORAGE_BYTES},
        datagram::Mailbox,
        socket::{Listener, Socket},
    },
    sockets::PortKind,
    tree::Node,
};

/// Reads an address for a socket; its bytes too.
pub(super) fn read_address(
    call: &mut FsCall,
    socket: &Socket,
    at: u64,
    len: u64,
) -> Result<(Address, Vec<u8>), Errno> {
    let bytes = raw_address(call, at, len)?;
    Ok((address::parse(socket.domain, &bytes)?, bytes))
}

/// Reads an address, whatever it says.
pub(super) fn raw_address(call: &mut FsCall, at: u64, len: u64) -> Result<Vec<u8>, Errno> {
    if i64::from(len as i32) as u64 != len || len > STORAGE_BYTES {
        return Err(Errno::EINVAL);
    }
    let mut bytes = vec![0; len as usize];
    call.cx.memory.read(at, &mut bytes)?;
    Ok(bytes)
}

/// The tables of ports in which a socket that is bound to `place` is found.
fn port_kinds(socket: &Socket, place: Place) -> Vec<PortKind> {
    let udp = socket.kind == libc::SOCK_DGRAM;
    let v6 = place.ip.is_ipv6();
    let only = socket
        .options()
        .is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    // Any address of IPv6 is any of IPv4 too (ipv6(7), IPV6_V6ONLY).
    match v6 && place.ip.is_unspecified() && !only {
        true => vec![(udp, true), (udp, false)],
        false => vec![(udp, v6)],
    }
}

pub(super) fn bind(call: &mut FsCall, fd: i32, at: u64, len: u64) -> SysResult {
    with(call, fd, |call, socket| {
        let (address, bytes) = read_address(call, socket, at, len)?;
        bind_to(call, socket, address, bytes)?;
        Ok(0)
    })
}

fn bind_to(
    call: &mut FsCall,
    socket: &Socket,
    address: Address,
    bytes: Vec<u8>,
) -> Result<(), Errno> {
    if let Address::Port(place) = address
        && !call.sockets.is_here(place)
    {
        return Err(Errno::EADDRNOTAVAIL);
    }
    if let Address::Port(place) = address {
        let kinds = port_kinds(socket, place);
        return socket.bind(|listener| {
            let port = call.sockets.add_port(&kinds, place.port, listener)?;
            Ok(Place { port, ..place }.bytes(socket.domain))
        });
    }
    socket.bind(|listener| match address {
        Address::Abstract(name) => {
            call.sockets.add_abstract(name, listener)?;
            Ok(bytes)
        }
        Address::Path(path) => {
            let found = call.vfs.find(&call.fs.cwd, &path, true)?;
            if found.node.is_some() {
                return Err(Errno::EADDRINUSE);
            }
            let node = Node::Socket(Some(listener.clone()));
            call.vfs.add(found.parent, &found.name, node)?;
            Ok(bytes)
        }
        Address::Unnamed => {
            let name = call.sockets.add_unnamed(listener)?;
            let family = (libc::AF_UNIX as u16).to_le_bytes();
            Ok([&family[..], &[0], &name].concat())
        }
        Address::Nobody | Address::Port(_) => Err(Errno::EINVAL),
    })
}

/// Gives a socket of ip(7) that has no port one.
pub(super) fn bind_any(call: &mut FsCall, socket: &Socket) -> Result<(), Errno> {
    match socket.is_internet() && socket.is_unnamed() {
        true => bind_to(
            call,
            socket,
            Address::Port(Place::any(socket.domain)),
            Vec::new(),
        ),
        false => Ok(()),
    }
}

/// What listens at an address, or has its mailbox there.
pub(super) fn find(
    call: &mut FsCall,
    socket: &Socket,
    address: &Address,
) -> Result<Option<Arc<Listener>>, Errno> {
    Ok(match address {
        Address::Port(place) if !call.sockets.is_here(*place) => return Err(Errno::ENETUNREACH),
        Address::Port(place) => {
            let udp = socket.kind == libc::SOCK_DGRAM;
            call.sockets
                .find_port((udp, place.ip.is_ipv6()), place.port)
        }
        Address::Abstract(name) => call.sockets.find_abstract(name),
        Address::Path(path) => {
            let found = call.vfs.find(&call.fs.cwd, path, true)?;
            match call.vfs.node(found.node.ok_or(Errno::ENOENT)?) {
                Some(Node::Socket(listener)) => listener.clone(),
                _ => None,
            }
        }
        Address::Unnamed | Address::Nobody => return Err(Errno::EINVAL),
    })
}

/// A mailbox for letters of `socket`.
pub(super) fn find_mailbox(
    call: &mut FsCall,
    socket: &Socket,
    address: &Address,
) -> Result<Option<Arc<Mailbox>>, Errno> {
    let listener = find(call, socket, address)?;
    // A path outlives its socket.
    match listener.filter(|listener| listener.is_open()) {
        Some(listener) => {
            let mailbox = listener.mailbox.clone().ok_or(Errno::EPROTOTYPE)?;
            Ok(Some(mailbox))
        }
        None if socket.is_internet() => Ok(None),
        None => Err(Errno::ECONNREFUSED),
    }
}

pub(super) fn name(call: &mut FsCall, fd: i32, peer: bool, to: u64, len: u64) -> SysResult {
    with(call, fd, |call, socket| {
        let mut name = socket.name(peer)?;
        if name.is_empty() && socket.is_internet() {
            name = Place::any(socket.domain).bytes(socket.domain);
        }
        put_name(call, to, len, name)?;
        Ok(0)
    })
}

/// Writes an address, cut to the room for it. That of an unnamed socket is the family alone
/// (unix(7)).
pub(super) fn put_name(
    call: &mut FsCall,
    to: u64,
    len: u64,
    mut name: Vec<u8>,
) -> Result<(), Errno> {
    if name.is_empty() {
        name = (libc::AF_UNIX as u16).to_le_bytes().to_vec();
    }
    let mut room = [0; 4];
    call.cx.memory.read(len, &mut room)?;
    let room = usize::try_from(i32::from_le_bytes(room)).map_err(|_| Errno::EINVAL)?;
    call.cx.memory.write(to, &name[..room.min(name.len())])?;
    call.cx
        .memory
        .write(len, &(name.len() as u32).to_le_bytes())
}
