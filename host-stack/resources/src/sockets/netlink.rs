//! What is of netlink sockets alone (netlink(7)).

use std::{io, os::fd::AsFd};

use super::socket;

/// NETLINK_PKTINFO, _BROADCAST_ERROR, _NO_ENOBUFS, _CAP_ACK, _EXT_ACK, _GET_STRICT_CHK.
const OPTIONS: [i32; 6] = [3, 4, 5, 10, 11, 12];
/// Groups up to here are in the socket's name.
const NAMED_GROUPS: usize = 32;
/// Where the bytes that are in a socket are in what SO_MEMINFO says (SK_MEMINFO_RMEM_ALLOC).
const UNREAD: std::ops::Range<usize> = 0..4;

/// What a socket is set to, its groups included: as setsockopt(2) takes it.
pub fn options(fd: impl AsFd) -> Vec<(i32, i32, Vec<u8>)> {
    let fd = fd.as_fd();
    let level = libc::SOL_NETLINK;
    let set = OPTIONS.iter().filter_map(|name| {
        let value = socket::option(fd, level, *name).ok()?;
        Some((level, *name, value))
    });
    let groups = socket::option(fd, level, libc::NETLINK_LIST_MEMBERSHIPS).unwrap_or_default();
    let is_in = |group: &usize| groups[(group - 1) / 8] & 1 << ((group - 1) % 8) != 0;
    let groups = (NAMED_GROUPS + 1..=groups.len() * 8).filter(is_in);
    let joins = groups.map(|group| {
        let group = (group as u32).to_ne_bytes().to_vec();
        (level, libc::NETLINK_ADD_MEMBERSHIP, group)
    });
    set.chain(joins).collect()
}

/// Whether there is something in a socket that the program has not read: an answer to what it has asked, or news. The
/// kernel alone can put such a message there.
pub fn is_unread(fd: impl AsFd) -> io::Result<bool> {
    let memory = socket::option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(memory.get(UNREAD).is_some_and(|bytes| bytes != [0; 4]))
}
