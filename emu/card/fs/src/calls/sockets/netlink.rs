//! Calls on sockets of netlink(7).

use std::sync::Arc;

use snaprig_card_driver::{errno::Errno, wait::SysResult};

use super::{
    messages::message,
    names::{put_name, raw_address},
};
use crate::{
    call::FsCall, calls::vectors::Vectors, files::netlink::Netlink, rtnetlink, table::Open,
};

/// Bytes of `struct sockaddr_nl`.
const ADDRESS_BYTES: usize = 12;
/// The longest request that is taken.
const REQUEST_MAX: usize = 4096;
/// Bytes that are said to fit into its buffers.
const BUFFER: i32 = 212_992;

/// socket(2).
pub fn open(call: &mut FsCall, kind: i32, protocol: i32) -> SysResult {
    const FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    match kind & !FLAGS {
        libc::SOCK_RAW | libc::SOCK_DGRAM => {}
        _ => return Err(Errno::ESOCKTNOSUPPORT.into()),
    }
    if protocol != libc::NETLINK_ROUTE {
        return Err(Errno::EPROTONOSUPPORT.into());
    }
    let flags = libc::O_RDWR | kind & libc::SOCK_NONBLOCK;
    let open = Open::new(Netlink::new(), flags);
    call.insert(open, kind & libc::SOCK_CLOEXEC != 0)
}

/// Runs a call on a socket; `None` if the socket is none of these.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let open = call.files.get(a[0] as i32).ok()?;
    open.file.as_any().downcast_ref::<Netlink>()?;
    Some(run_on(call, &open, number as i64, a))
}

fn run_on(call: &mut FsCall, open: &Arc<Open>, number: i64, a: [u64; 6]) -> SysResult {
    let netlink = open.file.as_any().downcast_ref::<Netlink>();
    let netlink = netlink.ok_or(Errno::ENOTSOCK)?;
    call.cx.nonblock = open.nonblock();
    let flags = |at: usize| a[at] as i32;
    match number {
        libc::SYS_bind => {
            let bytes = raw_address(call, a[1], a[2])?;
            let bytes = bytes.first_chunk::<ADDRESS_BYTES>().ok_or(Errno::EINVAL)?;
            if i32::from(u16::from_le_bytes([bytes[0], bytes[1]])) != libc::AF_NETLINK {
                return Err(Errno::EINVAL.into());
            }
            let port = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
            netlink.bind(port);
            bind_any(call, netlink);
            Ok(0)
        }
        // The kernel is the only peer.
        libc::SYS_connect | libc::SYS_setsockopt => Ok(0),
        libc::SYS_getsockname => {
            let name = address(netlink.port());
            put_name(call, a[1], a[2], name)?;
            Ok(0)
        }
        libc::SYS_getsockopt => option(call, a),
        libc::SYS_sendto => ask(call, netlink, &Vectors::one(a[1], a[2] as usize)),
        libc::SYS_sendmsg => {
            let (_, vectors) = message(call, a[1])?;
            ask(call, netlink, &vectors)
        }
        libc::SYS_recvfrom => {
            let to = Vectors::one(a[1], a[2] as usize);
            let (count, _) = receive(call, netlink, &to, flags(3))?;
            if a[4] != 0 {
                put_name(call, a[4], a[5], address(0))?;
            }
            Ok(count)
        }
        libc::SYS_recvmsg => {
            let (header, vectors) = message(call, a[1])?;
            let (count, told) = receive(call, netlink, &vectors, flags(2))?;
            header.tell(call, a[1], &address(0), 0, told)?;
            Ok(count)
        }
        _ => Err(Errno::EOPNOTSUPP.into()),
    }
}

/// `struct sockaddr_nl`; 0 is the kernel's port.
fn address(port: u32) -> Vec<u8> {
    let family = (libc::AF_NETLINK as u16).to_le_bytes();
    [&family[..], &[0; 2], &port.to_le_bytes(), &[0; 4]].concat()
}

/// One that has no port gets its process's number (netlink(7)).
fn bind_any(call: &FsCall, netlink: &Netlink) {
    netlink.bind(call.cx.pid as u32);
}

fn ask(call: &mut FsCall, netlink: &Netlink, from: &Vectors) -> SysResult {
    if from.total() > REQUEST_MAX {
        return Err(Errno::EMSGSIZE.into());
    }
    bind_any(call, netlink);
    let request = from.read(call.cx.memory, 0, from.total())?;
    let relay = call.sockets.relay.as_ref();
    let interface = relay.map(|relay| relay.interface());
    let answers = rtnetlink::answer(interface, &request, netlink.port());
    netlink.answered(answers, &mut call.cx)?;
    Ok(from.total() as u64)
}

/// How many bytes, and flags (recv(2)).
fn receive(
    call: &mut FsCall,
    netlink: &Netlink,
    to: &Vectors,
    flags: i32,
) -> SysResult<(u64, i32)> {
    call.cx.nonblock |= flags & libc::MSG_DONTWAIT != 0;
    let answer = netlink.receive(&call.cx, flags & libc::MSG_PEEK != 0)?;
    let room = to.total().min(answer.len());
    to.write(call.cx.memory, 0, &answer[..room])?;
    let is_cut = room < answer.len();
    let count = match flags & libc::MSG_TRUNC {
        0 => room,
        _ => answer.len(),
    };
    Ok((count as u64, if is_cut { libc::MSG_TRUNC } else { 0 }))
}

fn option(call: &mut FsCall, a: [u64; 6]) -> SysResult {
    let value = match (a[1] as i32, a[2] as i32) {
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_RAW,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_NETLINK,
        (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF) => BUFFER,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL | libc::SO_ERROR) => 0,
        _ => return Err(Errno::ENOPROTOOPT.into()),
    };
    put_name(call, a[3], a[4], value.to_le_bytes().to_vec())?;
    Ok(0)
}
