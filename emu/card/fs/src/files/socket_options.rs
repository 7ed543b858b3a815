//! Options of sockets (socket(7), tcp(7), ip(7), ipv6(7), unix(7)): what is set is told again. Those
//! that say how long to wait, how to close, how much may be on its way and what is told of a sender do what they say; the
//! others are about a network that a card does not see: packets of its own are the host's.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
/// Bytes that are said to fit into a socket's buffers (net.core.wmem_default, net.ipv4.tcp_wmem,
/// net.ipv4.tcp_rmem).
const BUFFER: i32 = 212_992;
const TCP_SEND_BUFFER: i32 = 16_384;
const TCP_RECEIVE_BUFFER: i32 = 131_072;
const TTL: i32 = 64;
/// What kind of number an option has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On or off.
    Flag,
    /// Any number in this range.
    Number(i32, i32),
}

/// The options of one socket that are not as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// By level and option.
    pub values: BTreeMap<(i32, i32), i32>,
    /// SO_LINGER: whether, and seconds.
    pub linger: (i32, i32),
    /// How long a call waits to receive, and to send (SO_RCVTIMEO, SO_SNDTIMEO).
    pub timeouts: [Option<Duration>; 2],
}

impl Options {
    /// Whether an option is on.
    pub fn is_on(&self, level: i32, option: i32) -> bool {
        self.values
            .get(&(level, option))
            .is_some_and(|value| *value != 0)
    }

    #[cfg(test)]
    pub fn with(level: i32, option: i32, value: i32) -> Self {
        Self {
            values: BTreeMap::from([((level, option), value)]),
            ..Self::default()
        }
    }

    /// Whether a socket of this domain and kind may have them.
    pub fn are_sound(&self, domain: i32, kind: i32) -> bool {
        let is_sound = |(&(level, option), value): (&(i32, i32), &i32)| {
            number((domain, kind), level, option).is_some_and(|(_, values)| match values {
                Kind::Flag => (0..=1).contains(value),
                Kind::Number(least, most) => (least..=most).contains(value),
            })
        };
        (0..=1).contains(&self.linger.0) && self.values.iter().all(is_sound)
    }
}

/// The number that an option is, until it is set, and its kind.
pub fn number((domain, kind): (i32, i32), level: i32, option: i32) -> Option<(i32, Kind)> {
    use Kind::{Flag, Number};
    let is_internet = domain != libc::AF_UNIX;
    let tcp = is_internet && kind == libc::SOCK_STREAM;
    let any = Number(i32::MIN, i32::MAX);
    Some(match (level, option) {
        (
            libc::SOL_SOCKET,
            libc::SO_REUSEADDR
            | libc::SO_KEEPALIVE
            | libc::SO_BROADCAST
            | libc::SO_OOBINLINE
            | libc::SO_DONTROUTE
            | libc::SO_DEBUG
            | libc::SO_REUSEPORT
            | libc::SO_PASSCRED
            | libc::SO_TIMESTAMP
            | libc::SO_TIMESTAMPNS,
        ) => (0, Flag),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => (if tcp { TCP_SEND_BUFFER } else { BUFFER }, any),
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => (if tcp { TCP_RECEIVE_BUFFER } else { BUFFER }, any),
        (libc::SOL_SOCKET, libc::SO_PRIORITY) => (0, Number(0, 6)),
        (libc::SOL_SOCKET, libc::SO_MARK | libc::SO_INCOMING_CPU) => (0, any),
        (libc::SOL_SOCKET, libc::SO_RCVLOWAT) => (1, any),
        (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK) if tcp => (0, Flag),
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) if tcp => (1, Flag),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) if tcp => (7200, Number(1, 32767)),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) if tcp => (75, Number(1, 32767)),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) if tcp => (9, Number(1, 127)),
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT) if tcp => (6, Number(1, 127)),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if tcp => (536, Number(88, 32767)),
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) if tcp => (0, Number(0, i32::MAX)),
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT | libc::TCP_FASTOPEN) if tcp => {
            (0, Number(0, i32::MAX))
        }
        (libc::IPPROTO_IP, libc::IP_TTL) if is_internet => (TTL, Number(1, 255)),
        (libc::IPPROTO_IP, libc::IP_TOS) if is_internet => (0, Number(0, 255)),
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) if is_internet => (1, Number(0, 5)),
        (libc::IPPROTO_IP, libc::IP_RECVERR | libc::IP_PKTINFO | libc::IP_FREEBIND)
            if is_internet =>
        {
            (0, Flag)
        }
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY | libc::IPV6_RECVPKTINFO | libc::IPV6_RECVERR)
            if domain == libc::AF_INET6 =>
        {
            (0, Flag)
        }
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) if domain == libc::AF_INET6 => {
            (TTL, Number(-1, 255))
        }
        _ => return None,
    })
}
