//! Puts into the sockets of a tree what was in them, and makes them what they were, when all files are open: they may be
//! passed along.
//!
//! ```text
//! contents --> ends of streams --> options
//! ```

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
};

use super::{
    flow::{self, EnlargedBuffer},
    names::{reuse, within},
    remote::restore_unix,
    restore::{BUFFERS, COLD_BYTES, Lost, apply, covers, is_datagram, plain, sockets},
    socket,
};
use crate::{
    board::Board,
    error::{Error, Result},
    opened::{Opened, damaged, set_flags},
    state::{Message, Socket, Stage, Tree},
};

/// Of all sockets of a tree; in a job, together with other trees.
pub fn refill(tree: &Tree, opened: &Opened, lost: Lost, board: Option<&Board>) -> Result<()> {
    let fd_of = |inode: u64| {
        let (number, _) = sockets(tree).find(|(_, socket)| socket.inode == inode)?;
        // SAFETY: `Opened` keeps what it has open until `close` takes it, so it is open for as long as `opened` is
        // borrowed.
        Some(unsafe { BorrowedFd::borrow_raw(opened.files[number]) })
    };
    let is_between_trees = |socket: &Socket| matches!(socket.stage, Stage::BetweenTrees { .. });
    let is_ours = |socket: &Socket| socket.family == libc::AF_UNIX || !is_between_trees(socket);
    let filled = sockets(tree).filter(|(_, socket)| !socket.received.is_empty());
    for (_, socket) in filled.filter(|(_, socket)| is_ours(socket)) {
        let failed = |source| {
            let name = socket::show(&socket.local);
            Error::io(format!("contents of the socket {name}"), source)
        };
        let fd = fd_of(socket.inode).ok_or_else(|| damaged("a socket"))?;
        let peer = match socket.stage {
            Stage::Connected { peer: Some(peer) } => fd_of(peer),
            _ => lost.get(&socket.inode).map(AsFd::as_fd),
        };
        let refilled = match (peer, is_datagram(socket)) {
            (Some(peer), false) if socket.family != libc::AF_UNIX => tcp(peer, fd, socket),
            (Some(peer), _) if socket.family == libc::AF_UNIX => unix(peer, opened, socket),
            _ => datagrams(tree, opened, socket),
        };
        refilled.map_err(failed)?;
    }
    restore_unix::filled(tree, board)?;
    for (number, socket) in sockets(tree) {
        let fd = fd_of(socket.inode).ok_or_else(|| damaged("a socket"))?;
        let is_connected = matches!(
            socket.stage,
            Stage::Connected { .. } | Stage::BetweenTrees { .. }
        );
        for (bit, how) in [(1, libc::SHUT_RD), (2, libc::SHUT_WR)] {
            if is_connected && socket.shut & bit != 0 {
                // The other end may have said so before.
                let _ = socket::shut(fd, how);
            }
        }
        if let (Stage::Ended { reset }, Some(end)) = (&socket.stage, lost.get(&socket.inode)) {
            match reset {
                true => {
                    let linger = [1i32, 0].map(i32::to_ne_bytes).concat();
                    let _ = socket::set_option(end, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
                }
                false => {
                    let _ = socket::shut(end, libc::SHUT_WR)
                        .and_then(|()| socket::shut(fd, libc::SHUT_WR));
                }
            }
        }
        // One that had to grow for what is in it stays so (flow::hold).
        let is_larger = |bytes: &i32| *bytes > buffer_of(socket).saturating_mul(2);
        let size = socket::number(fd, libc::SOL_SOCKET, libc::SO_RCVBUF);
        let has_grown = !socket.received.is_empty() && size.as_ref().is_ok_and(is_larger);
        apply(fd, socket, |option| !(has_grown && option == BUFFERS[1]));
        set_flags(&fd, tree.files[number].flags)?;
    }
    Ok(())
}

/// The size that the program has given the receiving buffer.
fn buffer_of(socket: &Socket) -> i32 {
    let mut options = socket.options.iter();
    let set = options.find(|(level, name, _)| (*level, *name) == BUFFERS[1]);
    let bytes = set.and_then(|(_, _, value)| value.as_slice().try_into().ok());
    bytes.map_or(i32::MAX, i32::from_ne_bytes)
}

fn tcp(sender: BorrowedFd, receiver: BorrowedFd, socket: &Socket) -> io::Result<()> {
    for message in &socket.received {
        let lock = socket::number(receiver, libc::SOL_SOCKET, socket::SO_BUF_LOCK)?;
        if lock & socket::RECEIVE_LOCK != 0 {
            // It does not grow with use.
            flow::hold(receiver, message.bytes.len() as u64)?;
        } else if message.bytes.len() > COLD_BYTES {
            flow::warm(sender, receiver, message.bytes.len())?;
        }
        flow::put(sender, Some(receiver), &message.bytes)?;
    }
    Ok(())
}

/// Sends messages, with the files that came with them, through the other end.
fn unix(sender: BorrowedFd, opened: &Opened, socket: &Socket) -> io::Result<()> {
    let total: usize = socket
        .received
        .iter()
        .map(|one| one.bytes.len() + 1024)
        .sum();
    let grown = EnlargedBuffer::sending(sender, total)?;
    for message in &socket.received {
        let files = files(opened, message)?;
        let mut sent = socket::send(sender, &message.bytes, &files, &[])?;
        while sent < message.bytes.len() {
            sent += socket::send(sender, &message.bytes[sent..], &[], &[])?;
        }
    }
    grown.shrink(sender)
}

fn files(opened: &Opened, message: &Message) -> io::Result<Vec<i32>> {
    let files = message.files.iter();
    let files = files.map(|number| opened.files.get(*number as usize).copied());
    let files: Option<Vec<i32>> = files.collect();
    files.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Sends datagrams to a name, from the names that they came from.
fn datagrams(tree: &Tree, opened: &Opened, socket: &Socket) -> io::Result<()> {
    for message in &socket.received {
        let from = message.from.as_slice();
        let address = socket::address(from);
        let is_sender = |other: &Socket| match (address, socket::address(&other.local)) {
            (Some(from), Some(name)) => other.protocol == libc::IPPROTO_UDP && covers(name, from),
            _ => !from.is_empty() && other.local == from,
        };
        let sender = sockets(tree).find(|(_, other)| is_sender(other));
        let temporary;
        let sender = match sender {
            // SAFETY: `Opened` keeps what it has open until `close` takes it, so it is open for as long as `opened` is
            // borrowed.
            Some((number, _)) => unsafe { BorrowedFd::borrow_raw(opened.files[number]) },
            None => {
                temporary = plain(socket)?;
                reuse(&temporary);
                if address.is_some() && socket::bind(&temporary, from).is_err() {
                    // From another machine; datagrams may get lost (udp(7)).
                    continue;
                }
                temporary.as_fd()
            }
        };
        let to = reachable(&socket.local);
        let files = files(opened, message)?;
        within(socket, || socket::send(sender, &message.bytes, &files, &to))?;
    }
    Ok(())
}

/// The name by which this machine reaches who is bound to `name`.
fn reachable(name: &[u8]) -> Vec<u8> {
    let mut name = name.to_vec();
    match socket::address(&name) {
        Some(SocketAddr::V4(v4)) if v4.ip().is_unspecified() && name.len() < 24 => {
            name[4..8].copy_from_slice(&[127, 0, 0, 1]);
        }
        Some(SocketAddr::V6(v6)) if v6.ip().is_unspecified() => name[23] = 1,
        _ => {}
    }
    name
}
