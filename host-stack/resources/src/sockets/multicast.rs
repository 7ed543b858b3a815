//! The multicast groups that a socket is in (ip(7)). The kernel lists those of the machine, and tells of each whether a
//! socket is in it, and whom it hears there.

use std::{
    fs, io,
    mem::size_of,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd},
};

use super::socket;
use crate::calls;

/// Sources that are kept of one group.
const SOURCES_MAX: usize = 64;
/// Of `gf_fmode`: everybody but the sources.
const EXCLUDE: u32 = 0;
/// `struct group_req` (linux/in.h): an interface, and a group at 8.
const JOIN_BYTES: usize = 8 + size_of::<libc::sockaddr_storage>();
/// `struct group_filter`: the same, then `gf_fmode` and how many sources there are.
const HEAD_BYTES: usize = JOIN_BYTES + 8;
/// With all sources.
const FILTER_BYTES: usize = HEAD_BYTES + SOURCES_MAX * size_of::<libc::sockaddr_storage>();

/// A socket's memberships, as options that make them again.
pub fn memberships(fd: impl AsFd) -> Vec<(i32, i32, Vec<u8>)> {
    let fd = fd.as_fd();
    let mut options = Vec::new();
    for (interface, group) in groups() {
        let (level, family) = match group {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::AF_INET),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::AF_INET6),
        };
        let name = socket::name_of(family, group);
        // Who is in no such group says EADDRNOTAVAIL.
        let Ok(filter) = filter(fd, level, interface, &name) else {
            continue;
        };
        let join = filter[..JOIN_BYTES].to_vec();
        options.push((level, libc::MCAST_JOIN_GROUP, join));
        let everybody = [EXCLUDE, 0].map(u32::to_ne_bytes).concat();
        if filter[JOIN_BYTES..HEAD_BYTES] != everybody {
            options.push((level, libc::MCAST_MSFILTER, filter));
        }
    }
    options
}

/// What a socket has of a group, as `struct group_filter`.
fn filter(fd: impl AsFd, level: i32, interface: u32, name: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; FILTER_BYTES];
    bytes[..4].copy_from_slice(&interface.to_ne_bytes());
    bytes[8..8 + name.len()].copy_from_slice(name);
    bytes[HEAD_BYTES - 4..HEAD_BYTES].copy_from_slice(&(SOURCES_MAX as u32).to_ne_bytes());
    let mut length = FILTER_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as `length` says, which are those of the vector.
    calls::check(unsafe {
        let fd = fd.as_fd().as_raw_fd();
        libc::getsockopt(
            fd,
            level,
            libc::MCAST_MSFILTER,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    })?;
    Ok(bytes)
}

/// The groups that somebody on this machine is in, and on which interface: /proc/net/igmp and igmp6.
///
/// ```text
/// 4       eth0      :     1      V3
///                                 010000E0     1 0:00000000               0
/// 1    lo              ff020000000000000000000000000001     1 0000000C 0
/// ```
fn groups() -> Vec<(u32, SocketAddr)> {
    let mut groups = Vec::new();
    let mut interface = 0;
    for line in fs::read_to_string("/proc/net/igmp")
        .unwrap_or_default()
        .lines()
    {
        let first = line.split_whitespace().next().unwrap_or_default();
        match line.starts_with('\t') {
            true => groups.extend(
                u32::from_str_radix(first, 16)
                    .map(|group| (interface, IpAddr::from(group.to_ne_bytes()))),
            ),
            false => interface = first.parse().unwrap_or(0),
        }
    }
    for line in fs::read_to_string("/proc/net/igmp6")
        .unwrap_or_default()
        .lines()
    {
        let mut words = line.split_whitespace();
        let interface = words.next().and_then(|word| word.parse().ok());
        let group = words
            .nth(1)
            .and_then(|word| u128::from_str_radix(word, 16).ok());
        let both = interface.zip(group);
        groups
            .extend(both.map(|(interface, group)| (interface, IpAddr::from(group.to_be_bytes()))));
    }
    let named = groups
        .into_iter()
        .map(|(interface, group)| (interface, SocketAddr::new(group, 0)));
    named.collect()
}
