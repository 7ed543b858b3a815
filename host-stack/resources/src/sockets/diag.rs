//! What sock_diag(7) says of Unix sockets: it alone knows who is connected to whom.

use std::{collections::HashMap, io, os::fd::AsRawFd};

use super::socket;
use crate::error::{Error, Result};

/// linux/unix_diag.h: what is asked for, and what comes.
const SHOW_PEER: u32 = 4;
const SHOW_WAITING: u32 = 8;
const SHOW_QUEUE: u32 = 16;
const PEER: u16 = 2;
const WAITING: u16 = 3;
const QUEUE: u16 = 4;
const SHUTDOWN: u16 = 6;
/// linux/sock_diag.h, linux/netlink.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const DUMP: u16 = 0x301;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// State of a socket that listens, as TCP numbers them.
const LISTENS: u8 = 10;

/// A Unix socket.
#[derive(Clone, Debug, Default)]
pub struct UnixSocket {
    /// It is connected to a name, not to a socket.
    pub is_datagram: bool,
    /// Inode of the socket at the other end; 0: nobody has it any more, or not yet.
    pub peer: Option<u64>,
    /// Inodes of those that wait to be accepted.
    pub waiting: Vec<u64>,
    /// It listens, with this backlog.
    pub listens: Option<u32>,
    /// shutdown(2): 1: no more receiving, 2: no more sending.
    pub shut: u8,
}

/// All Unix sockets of this network namespace, by their inodes.
pub fn unix_sockets() -> Result<HashMap<u64, UnixSocket>> {
    ask().map_err(|source| Error::io("sock_diag of Unix sockets", source))
}

fn ask() -> io::Result<HashMap<u64, UnixSocket>> {
    let netlink = socket::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_SOCK_DIAG)?;
    let mut request = Vec::new();
    request.extend(40u32.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(DUMP.to_ne_bytes());
    request.extend([0; 8]);
    // struct unix_diag_req: family, states, inode, what is shown, cookie.
    request.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    for word in [u32::MAX, 0, SHOW_PEER | SHOW_WAITING | SHOW_QUEUE, 0, 0] {
        request.extend(word.to_ne_bytes());
    }
    socket::send(&netlink, &request, &[], &[])?;
    let mut found = HashMap::new();
    let mut bytes = vec![0u8; 64 << 10];
    loop {
        // SAFETY: recv(2) writes at most as many bytes as it is told, which is the length of the vector.
        let count = unsafe {
            let fd = netlink.as_raw_fd();
            libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), 0)
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let mut rest = &bytes[..count];
        while let Some((kind, message, behind)) = next(rest, 16) {
            match kind {
                DONE => return Ok(found),
                ERROR => return Err(io::Error::other("sock_diag knows no Unix sockets")),
                _ => found.extend(one(message)),
            }
            rest = behind;
        }
    }
}

/// The first of messages (header of 16 bytes) or attributes (of 4): kind, what is in it, and the others.
fn next(bytes: &[u8], header: usize) -> Option<(u16, &[u8], &[u8])> {
    let (length, kind) = match header {
        4 => (u16_at(bytes, 0)? as usize, u16_at(bytes, 2)?),
        _ => (u32_at(bytes, 0)? as usize, u16_at(bytes, 4)?),
    };
    let message = bytes.get(header..length)?;
    let behind = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, message, behind))
}

/// struct unix_diag_msg and its attributes.
fn one(message: &[u8]) -> Option<(u64, UnixSocket)> {
    let is_listening = *message.get(2)? == LISTENS;
    let inode = u64::from(u32_at(message, 4)?);
    let mut known = UnixSocket {
        is_datagram: i32::from(*message.get(1)?) == libc::SOCK_DGRAM,
        ..UnixSocket::default()
    };
    let mut rest = message.get(16..)?;
    while let Some((kind, value, behind)) = next(rest, 4) {
        match kind {
            PEER => known.peer = u32_at(value, 0).map(u64::from),
            WAITING => {
                let inodes = value.chunks_exact(4).filter_map(|inode| u32_at(inode, 0));
                known.waiting = inodes.map(u64::from).collect();
            }
            QUEUE if is_listening => known.listens = u32_at(value, 4),
            SHUTDOWN => known.shut = value.first().copied().unwrap_or(0),
            _ => {}
        }
        rest = behind;
    }
    Some((inode, known))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
