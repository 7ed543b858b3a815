//! Calls on sockets.
//!
//! | file | what it is |
//! |---|---|
//! | `names` | names of sockets, and who is found there |
//! | `connect` | sockets that meet |
//! | `messages` | what they send and receive |
//! | `netlink` | those of sockets of netlink(7) |

mod connect;
mod messages;
mod names;
mod netlink;

use std::time::Duration;

use snaprig_card_driver::{errno::Errno, wait::SysResult};

use self::{
    connect::{accept, connect, listen},
    messages::{recvfrom, recvmmsg, recvmsg, sendmmsg, sendmsg, sendto},
    names::{bind, name},
};
use crate::{
    call::FsCall,
    calls::{
        socket_of::{open_of, with},
        socket_options,
        vectors::Vectors,
    },
    files::socket::{self, Socket},
};

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    if is_one(number)
        && let Some(result) = netlink::run(call, number, a)
    {
        return Some(result);
    }
    let int = |i: usize| a[i] as i32;
    let one = || Vectors::one(a[1], a[2] as usize);
    Some(match number as i64 {
        libc::SYS_socket => socket(call, int(0), int(1), int(2)),
        libc::SYS_socketpair => socketpair(call, int(0), int(1), int(2), a[3]),
        libc::SYS_bind => bind(call, int(0), a[1], a[2]),
        libc::SYS_listen => listen(call, int(0), a[1] as i32),
        libc::SYS_accept => accept(call, int(0), a[1], a[2], 0),
        libc::SYS_accept4 => accept(call, int(0), a[1], a[2], int(3)),
        libc::SYS_connect => connect(call, int(0), a[1], a[2]),
        libc::SYS_shutdown => with(call, int(0), |call, socket| {
            socket.shutdown(int(1), call.cx.wake)?;
            Ok(0)
        }),
        libc::SYS_sendto => sendto(call, int(0), &one(), int(3), (a[4], a[5])),
        libc::SYS_recvfrom => recvfrom(call, int(0), &one(), int(3), (a[4], a[5])),
        libc::SYS_sendmsg => sendmsg(call, int(0), a[1], int(2)),
        libc::SYS_recvmsg => recvmsg(call, int(0), a[1], int(2)),
        libc::SYS_sendmmsg => sendmmsg(call, int(0), a[1], a[2], int(3)),
        libc::SYS_recvmmsg => recvmmsg(call, int(0), a[1], a[2], int(3)),
        libc::SYS_getsockname => name(call, int(0), false, a[1], a[2]),
        libc::SYS_getpeername => name(call, int(0), true, a[1], a[2]),
        libc::SYS_setsockopt => socket_options::set(call, int(0), [a[1], a[2], a[3], a[4]]),
        libc::SYS_getsockopt => socket_options::get(call, int(0), [a[1], a[2], a[3], a[4]]),
        _ => return None,
    })
}

/// Whether it is a call on a socket that is there.
fn is_one(number: u64) -> bool {
    matches!(
        number as i64,
        libc::SYS_bind
            | libc::SYS_listen
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_connect
            | libc::SYS_shutdown
            | libc::SYS_sendto
            | libc::SYS_recvfrom
            | libc::SYS_sendmsg
            | libc::SYS_recvmsg
            | libc::SYS_sendmmsg
            | libc::SYS_recvmmsg
            | libc::SYS_getsockname
            | libc::SYS_getpeername
            | libc::SYS_setsockopt
            | libc::SYS_getsockopt
    )
}

/// The kind of socket that is asked for, if a card has it.
fn check_kind(domain: i32, kind: i32, protocol: i32) -> Result<i32, Errno> {
    const FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    const KIND_MASK: i32 = 0xf;
    const KINDS: i32 = 11;
    const FAMILIES: i32 = 46;
    let (flags, kind) = (kind & !KIND_MASK, kind & KIND_MASK);
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if !(0..FAMILIES).contains(&domain) {
        return Err(Errno::EAFNOSUPPORT);
    }
    if kind >= KINDS {
        return Err(Errno::EINVAL);
    }
    match (domain, kind) {
        (libc::AF_UNIX, _) if protocol != 0 && protocol != libc::AF_UNIX => {
            Err(Errno::EPROTONOSUPPORT)
        }
        (libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_SEQPACKET | libc::SOCK_DGRAM) => Ok(kind),
        (libc::AF_UNIX, libc::SOCK_RAW) => Ok(libc::SOCK_DGRAM),
        (libc::AF_INET | libc::AF_INET6, _) if !(0..=255).contains(&protocol) => Err(Errno::EINVAL),
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_DGRAM) => {
            let own = match kind {
                libc::SOCK_STREAM => libc::IPPROTO_TCP,
                _ => libc::IPPROTO_UDP,
            };
            match protocol == 0 || protocol == own {
                true => Ok(kind),
                false => Err(Errno::EPROTONOSUPPORT),
            }
        }
        (libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX, _) => Err(Errno::ESOCKTNOSUPPORT),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

fn socket(call: &mut FsCall, domain: i32, kind: i32, protocol: i32) -> SysResult {
    if domain == libc::AF_NETLINK {
        return netlink::open(call, kind, protocol);
    }
    let checked = check_kind(domain, kind, protocol)?;
    let open = open_of(Socket::new(domain, checked), kind);
    call.insert(open, kind & libc::SOCK_CLOEXEC != 0)
}

fn socketpair(call: &mut FsCall, domain: i32, kind: i32, protocol: i32, to: u64) -> SysResult {
    let checked = check_kind(domain, kind, protocol)?;
    if domain != libc::AF_UNIX {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let (one, other) = socket::pair(checked, call.cx.identity);
    let close = kind & libc::SOCK_CLOEXEC != 0;
    call.insert_pair(to, open_of(one, kind), open_of(other, kind), close)
}

/// How long a call on a socket may wait, if it is such a call.
pub fn timeout(call: &FsCall, number: u64, fd: i32) -> Option<Duration> {
    let direction = match number as i64 {
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg
        | libc::SYS_accept
        | libc::SYS_accept4 => 0,
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_connect => 1,
        _ => return None,
    };
    let open = call.files.get(fd).ok()?;
    let socket = open.file.as_any().downcast_ref::<Socket>()?;
    socket.options().timeouts[direction]
}

#[cfg(test)]
mod tests;
