//! Calls on sockets.

use std::{sync::Arc, time::Duration};

use super::{
    FsCall,
    passed::Passed,
    pipe::CAPACITY,
    socket::{self, Socket},
    table::Open,
    transfer::More,
    tree::Node,
    vectors::{IOV_MAX, Vectors},
};
use crate::kernel::{errno::Errno, file::File, wait::SysResult};

/// Bytes of `struct sockaddr_un`.
const ADDRESS_BYTES: u64 = 110;
/// Bytes of `struct mmsghdr`.
const MMSGHDR_BYTES: u64 = 64;

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let int = |i: usize| a[i] as i32;
    let one = || Vectors::one(a[1], a[2] as usize);
    Some(match number as i64 {
        libc::SYS_socket => socket(call, int(0), int(1)),
        libc::SYS_socketpair => socketpair(call, int(0), int(1), a[3]),
        libc::SYS_bind => bind(call, int(0), a[1], a[2]),
        libc::SYS_listen => with(call, int(0), |_, s| {
            Ok(s.listen(a[1] as usize).map(|()| 0)?)
        }),
        libc::SYS_accept => accept(call, int(0), a[1], a[2], 0),
        libc::SYS_accept4 => accept(call, int(0), a[1], a[2], int(3)),
        libc::SYS_connect => connect(call, int(0), a[1], a[2]),
        libc::SYS_shutdown => with(call, int(0), |call, socket| {
            socket.shutdown(int(1), call.cx.wake)?;
            Ok(0)
        }),
        libc::SYS_sendto => send(call, int(0), &one(), int(3)),
        libc::SYS_recvfrom => recvfrom(call, int(0), &one(), int(3), a[5]),
        libc::SYS_sendmsg => sendmsg(call, int(0), a[1], int(2)),
        libc::SYS_recvmsg => recvmsg(call, int(0), a[1], int(2)),
        libc::SYS_sendmmsg => sendmmsg(call, int(0), a[1], a[2], int(3)),
        libc::SYS_recvmmsg => recvmmsg(call, int(0), a[1], a[2], int(3)),
        libc::SYS_getsockname => name(call, int(0), false, a[1], a[2]),
        libc::SYS_getpeername => name(call, int(0), true, a[1], a[2]),
        libc::SYS_setsockopt => setsockopt(call, int(0), int(1), int(2), a[3], a[4]),
        libc::SYS_getsockopt => getsockopt(call, int(0), int(1), int(2), a[3], a[4]),
        _ => return None,
    })
}

fn with(
    call: &mut FsCall,
    fd: i32,
    f: impl FnOnce(&mut FsCall, &Socket) -> SysResult,
) -> SysResult {
    let open = call.files.get(fd)?;
    call.cx.nonblock = open.nonblock();
    let socket = open
        .file
        .as_any()
        .downcast_ref::<Socket>()
        .ok_or(Errno::ENOTSOCK)?;
    f(call, socket)
}

/// The kind of socket that is asked for, if a card has it.
fn check_kind(domain: i32, kind: i32) -> Result<i32, Errno> {
    match (domain, kind & 0xf) {
        (libc::AF_UNIX, kind @ (libc::SOCK_STREAM | libc::SOCK_SEQPACKET)) => Ok(kind),
        (libc::AF_INET, kind @ libc::SOCK_STREAM) => Ok(kind),
        // SOCK_PACKET is the last that there is.
        (libc::AF_UNIX | libc::AF_INET, 11..) => Err(Errno::EINVAL),
        (libc::AF_UNIX | libc::AF_INET, _) => Err(Errno::EPROTONOSUPPORT),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

fn open_of(socket: Arc<Socket>, kind: i32) -> Arc<Open> {
    Open::new(socket, libc::O_RDWR | kind & libc::SOCK_NONBLOCK)
}

fn socket(call: &mut FsCall, domain: i32, kind: i32) -> SysResult {
    let open = open_of(Socket::new(domain, check_kind(domain, kind)?), kind);
    call.insert(open, kind & libc::SOCK_CLOEXEC != 0)
}

fn socketpair(call: &mut FsCall, domain: i32, kind: i32, to: u64) -> SysResult {
    let checked = check_kind(domain, kind)?;
    if domain != libc::AF_UNIX {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let (one, other) = socket::pair(checked);
    let close = kind & libc::SOCK_CLOEXEC != 0;
    call.insert_pair(to, open_of(one, kind), open_of(other, kind), close)
}

/// An address: the name in a `struct sockaddr_un` (unix(7)), or the port in a `struct sockaddr_in`
/// (ip(7)) of this machine.
#[derive(Debug)]
pub enum Address {
    /// A path.
    Path(String),
    /// An abstract name.
    Abstract(Vec<u8>),
    /// A port.
    Port(u16),
}

/// Reads an address of a socket's own family; its bytes too.
fn address(call: &mut FsCall, fd: i32, at: u64, len: u64) -> SysResult<(Address, Vec<u8>)> {
    let mut domain = 0;
    with(call, fd, |_, socket| {
        domain = socket.domain;
        Ok(0)
    })?;
    if !(3..=ADDRESS_BYTES).contains(&len) {
        return Err(Errno::EINVAL.into());
    }
    let mut bytes = vec![0; len as usize];
    call.cx.memory.read(at, &mut bytes)?;
    if i32::from(u16::from_le_bytes([bytes[0], bytes[1]])) != domain {
        return Err(Errno::EAFNOSUPPORT.into());
    }
    let address = Address::parse(&bytes, domain)?;
    match address {
        Address::Port(port) => Ok((address, internet(port))),
        _ => Ok((address, bytes)),
    }
}

impl Address {
    /// The address in a `struct sockaddr` of a family.
    pub fn parse(bytes: &[u8], domain: i32) -> Result<Self, Errno> {
        if domain == libc::AF_INET {
            let Some([_, _, high, low, ip @ ..]) = bytes.first_chunk::<8>() else {
                return Err(Errno::EINVAL);
            };
            return match ip {
                [127, ..] | [0, 0, 0, 0] => Ok(Self::Port(u16::from_be_bytes([*high, *low]))),
                _ => Err(Errno::EADDRNOTAVAIL),
            };
        }
        let name = bytes.get(2..).ok_or(Errno::EINVAL)?;
        match name.iter().position(|byte| *byte == 0) {
            Some(0) => Ok(Self::Abstract(name[1..].to_vec())),
            end => {
                let path = name[..end.unwrap_or(name.len())].to_vec();
                let path = String::from_utf8(path).map_err(|_| Errno::EINVAL)?;
                Ok(Self::Path(path))
            }
        }
    }
}

/// `struct sockaddr_in` of a port of 127.0.0.1.
fn internet(port: u16) -> Vec<u8> {
    let mut bytes = (libc::AF_INET as u16).to_le_bytes().to_vec();
    bytes.extend_from_slice(&port.to_be_bytes());
    bytes.extend_from_slice(&[127, 0, 0, 1]);
    bytes.resize(16, 0);
    bytes
}

fn bind(call: &mut FsCall, fd: i32, at: u64, len: u64) -> SysResult {
    let (address, bytes) = address(call, fd, at, len)?;
    with(call, fd, |call, socket| {
        socket.bind(|listener| {
            match address {
                Address::Port(port) => return Ok(internet(call.vfs.add_port(port, listener)?)),
                Address::Abstract(name) => call.vfs.add_abstract(name, listener)?,
                Address::Path(path) => {
                    let found = call.vfs.find(&call.fs.cwd, &path, true)?;
                    if found.node.is_some() {
                        return Err(Errno::EADDRINUSE);
                    }
                    let node = Node::Socket(Some(listener.clone()));
                    call.vfs.add(found.parent, &found.name, node)?;
                }
            }
            Ok(bytes)
        })?;
        Ok(0)
    })
}

fn accept(call: &mut FsCall, fd: i32, to: u64, len: u64, flags: i32) -> SysResult {
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
        if let Err(errno) = put_name(call, to, len, peer) {
            call.files.close(fd as i32, call.cx.wake)?;
            return Err(errno.into());
        }
        Ok(fd)
    })
}

fn connect(call: &mut FsCall, fd: i32, at: u64, len: u64) -> SysResult {
    let (address, _) = address(call, fd, at, len)?;
    with(call, fd, |call, socket| {
        let own = match address {
            Address::Port(_) => internet(call.vfs.free_port()?),
            _ => Vec::new(),
        };
        let listener = match address {
            Address::Port(port) => call.vfs.find_port(port),
            Address::Abstract(name) => call.vfs.find_abstract(&name),
            Address::Path(path) => {
                let found = call.vfs.find(&call.fs.cwd, &path, true)?;
                match call.vfs.node(found.node.ok_or(Errno::ENOENT)?) {
                    Some(Node::Socket(listener)) => listener.clone(),
                    _ => None,
                }
            }
        };
        socket.connect(&*listener.ok_or(Errno::ECONNREFUSED)?, own, &mut call.cx)?;
        Ok(0)
    })
}

fn send(call: &mut FsCall, fd: i32, from: &Vectors, flags: i32) -> SysResult {
    send_with(call, fd, from, flags, None)
}

/// Sends, with descriptors that go with the first byte.
fn send_with(
    call: &mut FsCall,
    fd: i32,
    from: &Vectors,
    flags: i32,
    mut passed: Option<Passed>,
) -> SysResult {
    with(call, fd, |call, socket| {
        call.cx.nonblock |= flags & libc::MSG_DONTWAIT != 0;
        let result = call.put(from, true, |call, done, data| {
            let count = call.write_to(socket, data)?;
            if done == 0
                && count > 0
                && let Some(passed) = passed.take()
            {
                socket.stream()?.outgoing.pass(passed, count);
            }
            Ok(count)
        });
        if flags & libc::MSG_NOSIGNAL != 0 {
            *call.sigpipe = false;
        }
        result
    })
}

fn receive(call: &mut FsCall, fd: i32, to: &Vectors, flags: i32) -> SysResult {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    with(call, fd, |call, socket| {
        call.cx.nonblock |= flags & libc::MSG_DONTWAIT != 0;
        if flags & libc::MSG_PEEK != 0 {
            return call.get(to, More::No, |call, _, max| socket.peek(&call.cx, max));
        }
        let more = match flags & libc::MSG_WAITALL {
            0 => More::No,
            _ => More::UntilFull,
        };
        call.get(to, more, |call, done, max| call.take(socket, to, done, max))
    })
}

fn recvfrom(call: &mut FsCall, fd: i32, to: &Vectors, flags: i32, address_len: u64) -> SysResult {
    let count = receive(call, fd, to, flags)?;
    if address_len != 0 {
        call.cx.memory.write(address_len, &[0; 4])?;
    }
    Ok(count)
}

/// A `struct msghdr`.
struct Message {
    vectors: Vectors,
    control: u64,
    control_bytes: u64,
}

fn message(call: &mut FsCall, at: u64) -> Result<Message, Errno> {
    let mut bytes = [0; 56];
    call.cx.memory.read(at, &mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let vectors = Vectors::load(call.cx.memory, word(16), word(24));
    // sendmsg(2) has an error of its own for too many.
    let vectors = vectors.map_err(|errno| match word(24) > IOV_MAX {
        true => Errno::EMSGSIZE,
        false => errno,
    })?;
    Ok(Message {
        vectors,
        control: word(32),
        control_bytes: word(40),
    })
}

fn sendmsg(call: &mut FsCall, fd: i32, at: u64, flags: i32) -> SysResult {
    with(call, fd, |_, _| Ok(0))?;
    let message = message(call, at)?;
    let passed = match *call.progress {
        0 => call.passed(message.control, message.control_bytes)?,
        // They went with the first part.
        _ => None,
    };
    let mut domain = 0;
    with(call, fd, |_, socket| {
        domain = socket.domain;
        Ok(0)
    })?;
    if passed.is_some() && domain != libc::AF_UNIX {
        return Err(Errno::EINVAL.into());
    }
    send_with(call, fd, &message.vectors, flags, passed)
}

fn recvmsg(call: &mut FsCall, fd: i32, at: u64, flags: i32) -> SysResult {
    with(call, fd, |_, _| Ok(0))?;
    let message = message(call, at)?;
    let count = receive(call, fd, &message.vectors, flags)?;
    let mut passed = Vec::new();
    if flags & libc::MSG_PEEK == 0 {
        with(call, fd, |_, socket| {
            passed = socket.stream()?.incoming.collect();
            Ok(0)
        })?;
    }
    let close = flags & libc::MSG_CMSG_CLOEXEC != 0;
    let (bytes, all) = call.deliver(passed, message.control, message.control_bytes, close)?;
    let flags = if all { 0 } else { libc::MSG_CTRUNC as u64 };
    // No address; the control data; flags.
    call.cx.memory.write(at.wrapping_add(8), &[0; 4])?;
    let ends = [bytes.to_le_bytes(), flags.to_le_bytes()].concat();
    call.cx.memory.write(at.wrapping_add(40), &ends)?;
    Ok(count)
}

/// sendmmsg(2): a message of which only a part fits is the last.
fn sendmmsg(call: &mut FsCall, fd: i32, at: u64, count: u64, flags: i32) -> SysResult {
    each_message(call, at, count, |call, at, _| sendmsg(call, fd, at, flags))
}

/// recvmmsg(2): waits for the first message, and takes the others that are there.
fn recvmmsg(call: &mut FsCall, fd: i32, at: u64, count: u64, flags: i32) -> SysResult {
    each_message(call, at, count, |call, at, done| {
        let flags = flags & !libc::MSG_WAITFORONE;
        let later = if done > 0 { libc::MSG_DONTWAIT } else { 0 };
        match recvmsg(call, fd, at, flags | later)? {
            // The end of the stream is told once.
            0 if done > 0 => Err(Errno::EAGAIN.into()),
            bytes => Ok(bytes),
        }
    })
}

/// Runs `one` for each `struct mmsghdr` until it cannot; how many messages that were.
fn each_message(
    call: &mut FsCall,
    at: u64,
    count: u64,
    mut one: impl FnMut(&mut FsCall, u64, u64) -> SysResult,
) -> SysResult {
    let mut done = 0;
    while done < count.min(IOV_MAX) {
        let header = at.wrapping_add(done * MMSGHDR_BYTES);
        let result = one(call, header, done);
        let moved = std::mem::take(call.progress) as u64;
        let bytes = match result {
            Ok(bytes) => bytes,
            Err(_) if moved > 0 => moved,
            Err(_) if done > 0 => break,
            Err(stop) => return Err(stop),
        };
        let len = (bytes as u32).to_le_bytes();
        call.cx
            .memory
            .write(header.wrapping_add(MMSGHDR_BYTES - 8), &len)?;
        done += 1;
    }
    Ok(done)
}

fn name(call: &mut FsCall, fd: i32, peer: bool, to: u64, len: u64) -> SysResult {
    with(call, fd, |call, socket| {
        let mut name = socket.name(peer)?;
        if name.is_empty() && socket.domain == libc::AF_INET {
            name = internet(0);
        }
        put_name(call, to, len, name)?;
        Ok(0)
    })
}

/// Writes an address, cut to the room for it. That of an unnamed socket is the family alone
/// (unix(7)).
fn put_name(call: &mut FsCall, to: u64, len: u64, mut name: Vec<u8>) -> Result<(), Errno> {
    if to == 0 || len == 0 {
        return Ok(());
    }
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
    open.file
        .as_any()
        .downcast_ref::<Socket>()?
        .timeout(direction)
}

/// setsockopt(2): timeouts; what else there is changes nothing on a card.
fn setsockopt(call: &mut FsCall, fd: i32, level: i32, option: i32, at: u64, len: u64) -> SysResult {
    with(call, fd, |call, socket| {
        let direction = match (level, option) {
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => 0,
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => 1,
            _ => return Ok(0),
        };
        let mut bytes = [0; 16];
        if len < 16 {
            return Err(Errno::EINVAL.into());
        }
        call.cx.memory.read(at, &mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (seconds, micros) = (word(0), word(8));
        if seconds > i64::MAX as u64 || micros >= 1_000_000 {
            return Err(Errno::EDOM.into());
        }
        let timeout = Duration::new(seconds, micros as u32 * 1000);
        socket.set_timeout(
            direction,
            Some(timeout).filter(|timeout| !timeout.is_zero()),
        );
        Ok(0)
    })
}

/// getsockopt(2): an int, or as much of it as there is room for.
fn getsockopt(call: &mut FsCall, fd: i32, level: i32, option: i32, to: u64, len: u64) -> SysResult {
    with(call, fd, |call, socket| {
        let tcp = level == libc::IPPROTO_TCP && socket.domain == libc::AF_INET;
        if level != libc::SOL_SOCKET && !tcp {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let value = match option {
            _ if tcp => 0,
            // Nobody asks who the peer is where everybody is root.
            libc::SO_PEERCRED => return Err(Errno::ENOPROTOOPT.into()),
            libc::SO_TYPE => socket.kind,
            libc::SO_DOMAIN => socket.domain,
            libc::SO_PROTOCOL if socket.domain == libc::AF_INET => libc::IPPROTO_TCP,
            libc::SO_ACCEPTCONN => socket.listens().into(),
            libc::SO_SNDBUF | libc::SO_RCVBUF => CAPACITY as i32,
            libc::SO_ERROR if socket.stream().err() == Some(Errno::ECONNRESET) => libc::ECONNRESET,
            // No error; off; zero.
            _ => 0,
        };
        let mut room = [0; 4];
        call.cx.memory.read(len, &mut room)?;
        let room = usize::try_from(i32::from_le_bytes(room)).map_err(|_| Errno::EINVAL)?;
        let bytes = value.to_le_bytes();
        let part = &bytes[..room.min(bytes.len())];
        call.cx.memory.write(to, part)?;
        call.cx
            .memory
            .write(len, &(part.len() as u32).to_le_bytes())?;
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use crate::kernel::{
        errno::Errno,
        fs::test_kit::{Kit, error, is_wait},
    };

    /// Puts a `struct sockaddr_un` at 0x700; returns its length.
    fn address(kit: &mut Kit, name: &[u8]) -> u64 {
        kit.put(0x700, &[libc::AF_UNIX as u8, 0]);
        kit.put(0x702, name);
        name.len() as u64 + 2
    }

    fn socket(kit: &mut Kit) -> u64 {
        kit.call(libc::SYS_socket, &[1, 1, 0]).unwrap()
    }

    #[test]
    fn a_connection_waits_until_there_is_a_descriptor_for_it() {
        let mut kit = Kit::new();
        let (listener, client) = (socket(&mut kit), socket(&mut kit));
        let len = address(&mut kit, b"/tmp/s\0");
        kit.call(libc::SYS_bind, &[listener, 0x700, len]).unwrap();
        kit.call(libc::SYS_listen, &[listener, 5]).unwrap();
        kit.call(libc::SYS_connect, &[client, 0x700, len]).unwrap();
        kit.limit_nofile = 5;
        let full = error(Errno::EMFILE);
        assert_eq!(kit.call(libc::SYS_accept, &[listener, 0, 0]), full);
        kit.limit_nofile = 6;
        assert_eq!(kit.call(libc::SYS_accept, &[listener, 0, 0]), Ok(5));
        assert!(is_wait(&kit.call(libc::SYS_read, &[client, 0x2000, 1])));
    }

    #[test]
    fn nothing_is_made_without_a_descriptor_for_it() {
        let mut kit = Kit::new();
        kit.limit_nofile = 4;
        let full = error(Errno::EMFILE);
        assert_eq!(kit.call(libc::SYS_pipe, &[0x800]), full);
        assert_eq!(kit.call(libc::SYS_socketpair, &[1, 1, 0, 0x800]), full);
        kit.limit_nofile = 3;
        assert_eq!(kit.open("/tmp/a", libc::O_CREAT | libc::O_RDWR), full);
        assert!(!kit.exists("/tmp/a"));
        // A pair that cannot be told is closed again.
        kit.limit_nofile = 1024;
        assert_eq!(
            kit.call(libc::SYS_pipe, &[u64::MAX - 3]),
            error(Errno::EFAULT)
        );
        assert_eq!(kit.call(libc::SYS_dup, &[0]), Ok(3));
    }

    #[test]
    fn an_abstract_name_is_free_when_its_socket_is_gone() {
        let mut kit = Kit::new();
        let len = address(&mut kit, b"\0name");
        for _ in 0..2 {
            let (one, other) = (socket(&mut kit), socket(&mut kit));
            assert_eq!(kit.call(libc::SYS_bind, &[one, 0x700, len]), Ok(0));
            let used = kit.call(libc::SYS_bind, &[other, 0x700, len]);
            assert_eq!(used, error(Errno::EADDRINUSE));
            kit.call(libc::SYS_listen, &[one, 5]).unwrap();
            assert_eq!(kit.call(libc::SYS_connect, &[other, 0x700, len]), Ok(0));
            kit.call(libc::SYS_close, &[one]).unwrap();
            kit.call(libc::SYS_close, &[other]).unwrap();
        }
        let late = socket(&mut kit);
        let refused = error(Errno::ECONNREFUSED);
        assert_eq!(kit.call(libc::SYS_connect, &[late, 0x700, len]), refused);
    }

    #[test]
    fn a_socket_that_cannot_have_its_name_is_not_bound() {
        let mut kit = Kit::new();
        let fd = socket(&mut kit);
        let len = address(&mut kit, b"/none/s\0");
        assert_eq!(
            kit.call(libc::SYS_bind, &[fd, 0x700, len]),
            error(Errno::ENOENT)
        );
        let len = address(&mut kit, b"/tmp/s\0");
        assert_eq!(kit.call(libc::SYS_bind, &[fd, 0x700, len]), Ok(0));
    }

    #[test]
    fn bytes_can_be_peeked_at_and_waited_for() {
        let mut kit = Kit::new();
        let (a, b) = kit.sockets();
        kit.put(0x2000, b"12345678");
        kit.call(libc::SYS_write, &[a, 0x2000, 4]).unwrap();
        let peek = [b, 0x3000, 8, libc::MSG_PEEK as u64];
        let all = [b, 0x4000, 8, libc::MSG_WAITALL as u64];
        assert_eq!(kit.call(libc::SYS_recvfrom, &peek), Ok(4));
        assert!(is_wait(&kit.call(libc::SYS_recvfrom, &all)));
        kit.meanwhile(|kit| kit.call(libc::SYS_write, &[a, 0x2004, 4]))
            .unwrap();
        assert_eq!(kit.call(libc::SYS_recvfrom, &all), Ok(8));
        assert_eq!(kit.bytes(0x3000, 4), b"1234");
        assert_eq!(kit.bytes(0x4000, 8), b"12345678");
        // The end of the stream ends the waiting.
        kit.call(libc::SYS_write, &[a, 0x2000, 4]).unwrap();
        kit.call(libc::SYS_close, &[a]).unwrap();
        assert_eq!(kit.call(libc::SYS_recvfrom, &all), Ok(4));
        assert_eq!(kit.call(libc::SYS_recvfrom, &all), Ok(0));
    }

    #[test]
    fn options_are_cut_to_the_room_for_them() {
        let mut kit = Kit::new();
        let (a, _) = kit.sockets();
        kit.put(0x600, &[2, 0, 0, 0, 0xee, 0xee, 0xee, 0xee]);
        let kind = [
            a,
            libc::SOL_SOCKET as u64,
            libc::SO_TYPE as u64,
            0x604,
            0x600,
        ];
        assert_eq!(kit.call(libc::SYS_getsockopt, &kind), Ok(0));
        assert_eq!(kit.bytes(0x600, 8), &[2, 0, 0, 0, 1, 0, 0xee, 0xee]);
        kit.put(0x600, &(-1_i32).to_le_bytes());
        assert_eq!(kit.call(libc::SYS_getsockopt, &kind), error(Errno::EINVAL));
    }

    #[test]
    fn a_send_without_a_reader_raises_sigpipe_unless_told_not_to() {
        let mut kit = Kit::new();
        let (a, b) = kit.sockets();
        kit.call(libc::SYS_close, &[b]).unwrap();
        for (flags, raises) in [(0, true), (libc::MSG_NOSIGNAL, false)] {
            kit.sigpipe = false;
            let sent = kit.call(libc::SYS_sendto, &[a, 0x2000, 4, flags as u64]);
            assert_eq!((sent, kit.sigpipe), (error(Errno::EPIPE), raises));
        }
    }

    /// Puts a `struct msghdr` at 0xc00, of `bytes` at 0x2000 and control data at 0xd00.
    fn message(kit: &mut Kit, bytes: u64, control_bytes: u64) -> u64 {
        kit.put_words(0xb00, &[0x2000, bytes]);
        kit.put_words(0xc00, &[0, 0, 0xb00, 1, 0xd00, control_bytes, 0]);
        0xc00
    }

    /// Control data that passes a descriptor.
    fn rights(kit: &mut Kit, fd: u64) {
        kit.put_words(0xd00, &[20, 1 << 32 | 1]);
        kit.put(0xd10, &(fd as i32).to_le_bytes());
    }

    #[test]
    fn descriptors_go_with_their_bytes() {
        let mut kit = Kit::new();
        let (a, b) = kit.sockets();
        let (read, write) = kit.pipe(0);
        kit.call(libc::SYS_write, &[a, 0x2000, 3]).unwrap();
        rights(&mut kit, read);
        let at = message(&mut kit, 4, 24);
        assert_eq!(kit.call(libc::SYS_sendmsg, &[a, at, 0]), Ok(4));
        kit.call(libc::SYS_close, &[read]).unwrap();
        let at = message(&mut kit, 100, 24);
        // What came before them is a read of its own.
        assert_eq!(kit.call(libc::SYS_recvmsg, &[b, at, 0]), Ok(3));
        assert_eq!(kit.bytes(0xc28, 8), &[0; 8]);
        let at = message(&mut kit, 100, 24);
        assert_eq!(kit.call(libc::SYS_recvmsg, &[b, at, 0]), Ok(4));
        assert_eq!(kit.bytes(0xc28, 8), &24_u64.to_le_bytes());
        let passed = i32::from_le_bytes(kit.bytes(0xd10, 4).try_into().unwrap()) as u64;
        kit.call(libc::SYS_write, &[write, 0x2000, 2]).unwrap();
        assert_eq!(kit.call(libc::SYS_read, &[passed, 0x3000, 9]), Ok(2));
    }

    #[test]
    fn descriptors_that_nobody_takes_are_closed() {
        let mut kit = Kit::new();
        for takes in ["read", "close", "no room"] {
            let (a, b) = kit.sockets();
            let (read, write) = kit.pipe(0);
            rights(&mut kit, read);
            let at = message(&mut kit, 4, 24);
            kit.call(libc::SYS_sendmsg, &[a, at, 0]).unwrap();
            kit.call(libc::SYS_close, &[read]).unwrap();
            match takes {
                "read" => {
                    kit.call(libc::SYS_read, &[b, 0x3000, 9]).unwrap();
                    kit.call(libc::SYS_write, &[a, 0x3000, 1]).unwrap();
                    kit.call(libc::SYS_read, &[b, 0x3000, 9]).unwrap();
                }
                "close" => drop(kit.call(libc::SYS_close, &[b]).unwrap()),
                _ => {
                    let at = message(&mut kit, 4, 0);
                    kit.call(libc::SYS_recvmsg, &[b, at, 0]).unwrap();
                    assert_eq!(kit.bytes(0xc30, 4), &libc::MSG_CTRUNC.to_le_bytes());
                }
            }
            let broken = kit.call(libc::SYS_write, &[write, 0x3000, 1]);
            assert_eq!(broken, error(Errno::EPIPE), "{takes}");
        }
        let (a, _) = kit.sockets();
        rights(&mut kit, 999);
        let at = message(&mut kit, 4, 24);
        let bad = kit.call(libc::SYS_sendmsg, &[a, at, 0]);
        assert_eq!(bad, error(Errno::EBADF));
    }

    #[test]
    fn descriptors_on_their_way_are_bounded() {
        let mut kit = Kit::new();
        let mut sent = || {
            let (a, b) = kit.sockets();
            rights(&mut kit, b);
            let at = message(&mut kit, 1, 24);
            let result = kit.call(libc::SYS_sendmsg, &[a, at, 0]);
            // A socket that is on its way through itself.
            kit.call(libc::SYS_close, &[a]).unwrap();
            kit.call(libc::SYS_close, &[b]).unwrap();
            result
        };
        let full = (0..100_000).find_map(|_| sent().err());
        assert_eq!(full, error::<()>(Errno::ETOOMANYREFS).err());
    }

    #[test]
    fn several_messages_at_once() {
        let mut kit = Kit::new();
        let (a, b) = kit.sockets();
        kit.put_words(0xb00, &[0x2000, 3]);
        for header in [0xc00, 0xc40] {
            kit.put_words(header, &[0, 0, 0xb00, 1, 0, 0, 0, 0]);
        }
        assert_eq!(kit.call(libc::SYS_sendmmsg, &[a, 0xc00, 2, 0]), Ok(2));
        assert_eq!(kit.call(libc::SYS_recvmmsg, &[b, 0xc00, 2, 0, 0]), Ok(2));
        assert_eq!(kit.bytes(0xc78, 4), &3_u32.to_le_bytes());
        let none = kit.call(
            libc::SYS_recvmmsg,
            &[b, 0xc00, 2, libc::MSG_DONTWAIT as u64, 0],
        );
        assert_eq!(none, error(Errno::EAGAIN));
    }

    #[test]
    fn tcp_reaches_this_machine_alone() {
        let mut kit = Kit::new();
        let sockets = [0; 3].map(|_| kit.call(libc::SYS_socket, &[2, 1, 0]).unwrap());
        let [server, client, other] = sockets;
        let mut address = |ip: [u8; 4], port: u16| {
            let [high, low] = port.to_be_bytes();
            kit.put(0x700, &[2, 0, high, low]);
            kit.put(0x704, &ip);
            kit.put(0x708, &[0; 8]);
        };
        address([10, 0, 0, 1], 80);
        let away = kit.call(libc::SYS_bind, &[server, 0x700, 16]);
        assert_eq!(away, error(Errno::EADDRNOTAVAIL));
        kit.put(0x702, &[0x1f, 0x90, 127, 0, 0, 1]);
        assert_eq!(kit.call(libc::SYS_bind, &[server, 0x700, 16]), Ok(0));
        let used = kit.call(libc::SYS_bind, &[other, 0x700, 16]);
        assert_eq!(used, error(Errno::EADDRINUSE));
        kit.call(libc::SYS_listen, &[server, 5]).unwrap();
        assert_eq!(kit.call(libc::SYS_connect, &[client, 0x700, 16]), Ok(0));
        kit.put(0x600, &16_u32.to_le_bytes());
        kit.call(libc::SYS_getpeername, &[client, 0x800, 0x600])
            .unwrap();
        assert_eq!(kit.bytes(0x800, 8), &[2, 0, 0x1f, 0x90, 127, 0, 0, 1]);
        kit.put(0x702, &[0, 1]);
        let refused = kit.call(libc::SYS_connect, &[other, 0x700, 16]);
        assert_eq!(refused, error(Errno::ECONNREFUSED));
    }

    #[test]
    fn a_receive_gives_up_after_its_timeout() {
        let mut kit = Kit::new();
        let (a, _) = kit.sockets();
        kit.put_words(0x600, &[0, 5000]);
        let receive = libc::SO_RCVTIMEO as u64;
        kit.call(libc::SYS_setsockopt, &[a, 1, receive, 0x600, 16])
            .unwrap();
        assert!(is_wait(&kit.call(libc::SYS_read, &[a, 0x2000, 1])));
        kit.now += std::time::Duration::from_millis(5);
        let late = kit.call(libc::SYS_read, &[a, 0x2000, 1]);
        assert_eq!(late, error(Errno::EAGAIN));
    }

    #[test]
    fn messages_stay_apart() {
        let mut kit = Kit::new();
        kit.call(
            libc::SYS_socketpair,
            &[1, libc::SOCK_SEQPACKET as u64, 0, 0x800],
        )
        .unwrap();
        let (a, b) = (kit.bytes(0x800, 1)[0].into(), kit.bytes(0x804, 1)[0].into());
        for len in [5, 0, 7] {
            assert_eq!(kit.call(libc::SYS_write, &[a, 0x2000, len]), Ok(len));
        }
        let huge = kit.call(libc::SYS_write, &[a, 0x2000, 1 << 20]);
        assert_eq!(huge, error(Errno::EMSGSIZE));
        for (room, got) in [(100, 5), (100, 0), (3, 3)] {
            assert_eq!(kit.call(libc::SYS_read, &[b, 0x3000, room]), Ok(got));
        }
        assert!(is_wait(&kit.call(libc::SYS_read, &[b, 0x3000, 100])));
        let full = (0..10_000).find(|_| is_wait(&kit.call(libc::SYS_sendto, &[a, 0x2000, 0, 0])));
        assert!(full.is_some());
    }
}
