//! Sockets that meet: listen(2), accept(2), connect(2).

use std::{
    net::{IpAddr, SocketAddrV4},
    sync::Arc,
};

use snaprig_card_driver::{errno::Errno, file::File, wait::SysResult};

use super::names::{bind_any, find, find_mailbox, put_name, raw_address, read_address};
use crate::{
    call::FsCall,
    calls::socket_of::{open_of, with},
    files::{
        address::{self, Address, Place},
        datagram::Mailbox,
        socket::{Listener, Names, Socket},
    },
};

pub(super) fn listen(call: &mut FsCall, fd: i32, backlog: i32) -> SysResult {
    with(call, fd, |call, socket| {
        if socket.kind != libc::SOCK_DGRAM {
            bind_any(call, socket)?;
        }
        if let Some(relay) = &call.sockets.relay {
            socket.listen_outside(relay)?;
        }
        // A negative one is as many as there may be (listen(2)).
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
        socket.listen(backlog, call.cx.identity)?;
        Ok(0)
    })
}

pub(super) fn accept(call: &mut FsCall, fd: i32, to: u64, len: u64, flags: i32) -> SysResult {
    with(call, fd, |call, socket| {
        call.check_room(1)?;
        let accepted = socket.accept(call.cx.nonblock)?;
        let peer = accepted.name(true)?;
        // Somebody may be waiting for room in the backlog.
        for channel in File::channels(socket) {
            (call.cx.wake)(channel);
        }
        let close = flags & libc::SOCK_CLOEXEC != 0;
        let fd = call.insert(open_of(accepted, flags), close)?;
        let told = match to {
            0 => Ok(()),
            to => put_name(call, to, len, peer),
        };
        if let Err(errno) = told {
            call.files.close(fd as i32, call.cx.wake)?;
            return Err(errno.into());
        }
        Ok(fd)
    })
}

/// What each end of a connection is told of itself and of the other.
fn names_of(
    call: &mut FsCall,
    socket: &Socket,
    to: &Listener,
    address: &Address,
) -> Result<[Names; 2], Errno> {
    let mut own = socket.name(false)?;
    let Address::Port(place) = address else {
        return Ok([[own.clone(), to.name()], [to.name(), own]]);
    };
    let there = place.reached();
    let kind = (false, there.ip.is_ipv6());
    let here = match address::parse(socket.domain, &own) {
        Ok(Address::Port(here)) => here.port,
        _ => call.sockets.free_port(&[kind])?,
    };
    let here = Place {
        port: here,
        ..there
    };
    own = here.bytes(socket.domain);
    Ok([
        [own, there.bytes(socket.domain)],
        [there.bytes(to.domain), here.bytes(to.domain)],
    ])
}

pub(super) fn connect(call: &mut FsCall, fd: i32, at: u64, len: u64) -> SysResult {
    call.files.get(fd)?;
    // Linux looks at the address before it asks what the descriptor is.
    raw_address(call, at, len)?;
    with(call, fd, |call, socket| {
        let (address, bytes) = read_address(call, socket, at, len)?;
        if let Some(mailbox) = socket.mailbox() {
            return connect_mailbox(call, socket, &mailbox, &address, bytes).map_err(Into::into);
        }
        if let (Some(relay), Address::Port(place)) = (&call.sockets.relay, &address)
            && let (IpAddr::V4(ip), false) = (place.ip, call.sockets.is_here(*place))
        {
            let to = SocketAddrV4::new(ip, place.port);
            socket.connect_outside(relay, to, call.cx.nonblock)?;
            return Ok(0);
        }
        let to = find(call, socket, &address)?.ok_or(Errno::ECONNREFUSED)?;
        let names = names_of(call, socket, &to, &address)?;
        socket.connect(&to, names, &mut call.cx)?;
        Ok(0)
    })
}

/// connect(2) of a socket of datagrams says whom it writes to, and hears from.
fn connect_mailbox(
    call: &mut FsCall,
    socket: &Socket,
    mailbox: &Arc<Mailbox>,
    address: &Address,
    bytes: Vec<u8>,
) -> Result<u64, Errno> {
    if *address == Address::Nobody {
        mailbox.connect_nobody(None);
        return Ok(0);
    }
    let to = find_mailbox(call, socket, address)?;
    let name = match address {
        Address::Port(place) => {
            bind_any(call, socket)?;
            let there = place.reached();
            if let Ok(Address::Port(here)) = address::parse(socket.domain, &socket.name(false)?) {
                let here = match here.ip.is_unspecified() {
                    true => Place {
                        port: here.port,
                        ..there
                    },
                    false => here,
                };
                mailbox.set_name(here.bytes(socket.domain));
            }
            there.bytes(socket.domain)
        }
        _ => bytes,
    };
    match to {
        Some(to) => mailbox.connect(&to, name),
        None => mailbox.connect_nobody(Some(name)),
    }
    Ok(0)
}
