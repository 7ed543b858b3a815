//! What sockets are set to (getsockopt(2)), and the multicast groups that they are in.

use std::os::fd::AsFd;

use super::{multicast, netlink, socket};

/// linux/tcp.h.
const TCP_INQ: i32 = 36;
/// Options by level: what was set before bind(2) first.
const OPTIONS: [(i32, i32); 70] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_PASSCRED),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_CORK),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_CONGESTION),
    (libc::IPPROTO_IP, libc::IP_TOS),
    (libc::IPPROTO_IP, libc::IP_TTL),
    (libc::IPPROTO_IP, libc::IP_RECVERR),
    (libc::IPPROTO_IP, libc::IP_PKTINFO),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_TTL),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_PASSSEC),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT),
    (libc::IPPROTO_TCP, TCP_INQ),
    (libc::IPPROTO_UDP, libc::UDP_SEGMENT),
    (libc::IPPROTO_UDP, libc::UDP_GRO),
    (libc::IPPROTO_IP, libc::IP_RECVTTL),
    (libc::IPPROTO_IP, libc::IP_RECVTOS),
    (libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR),
    (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
    (libc::IPPROTO_IP, libc::IP_MINTTL),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
    (libc::IPPROTO_IP, libc::IP_MULTICAST_IF),
    (libc::IPPROTO_IP, libc::IP_UNICAST_IF),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP),
    (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR),
    (libc::IPPROTO_IPV6, libc::IPV6_FREEBIND),
    (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_IF),
];

/// All of a socket of a family and kind, as setsockopt(2) takes them.
pub fn all(fd: impl AsFd, (family, kind): (i32, i32)) -> Vec<(i32, i32, Vec<u8>)> {
    let fd = fd.as_fd();
    let known = OPTIONS.iter().filter_map(|(level, name)| {
        let value = socket::option(fd, *level, *name).ok()?;
        Some((*level, *name, value))
    });
    let mut options: Vec<_> = known.collect();
    // Sizes of buffers count if the program has set them; else the kernel goes on to choose.
    let lock = socket::number(fd, libc::SOL_SOCKET, socket::SO_BUF_LOCK).unwrap_or(0);
    for (bit, name) in [(1, libc::SO_SNDBUF), (2, libc::SO_RCVBUF)] {
        if let (true, Ok(bytes)) = (lock & bit != 0, socket::number(fd, libc::SOL_SOCKET, name)) {
            // The kernel doubles what it is given (socket(7)).
            options.push((libc::SOL_SOCKET, name, (bytes / 2).to_ne_bytes().to_vec()));
        }
    }
    match family {
        libc::AF_NETLINK => options.extend(netlink::options(fd)),
        libc::AF_INET | libc::AF_INET6 if kind == libc::SOCK_DGRAM => {
            options.extend(multicast::memberships(fd));
        }
        _ => {}
    }
    options
}

/// Whether the kernel does more for a connection than TCP (TLS, say): what it knows of that cannot be asked for.
pub fn has_upper_layer(fd: impl AsFd) -> bool {
    let name = socket::option(fd, libc::IPPROTO_TCP, libc::TCP_ULP).unwrap_or_default();
    name.first().is_some_and(|first| *first != 0)
}
