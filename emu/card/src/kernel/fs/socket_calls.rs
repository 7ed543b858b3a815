//! Calls on Unix sockets.

use std::sync::Arc;

use super::{
    FsCall,
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
        libc::SYS_getsockname | libc::SYS_getpeername => name(call, int(0), a[1], a[2]),
        libc::SYS_setsockopt => with(call, int(0), |_, _| Ok(0)),
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

fn check_kind(domain: i32, kind: i32) -> Result<(), Errno> {
    match (domain, kind & 0xf) {
        (libc::AF_UNIX, libc::SOCK_STREAM) => Ok(()),
        (libc::AF_UNIX, _) => Err(Errno::EPROTONOSUPPORT),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

fn open_of(socket: Arc<Socket>, kind: i32) -> Arc<Open> {
    Open::new(socket, libc::O_RDWR | kind & libc::SOCK_NONBLOCK)
}

fn socket(call: &mut FsCall, domain: i32, kind: i32) -> SysResult {
    check_kind(domain, kind)?;
    call.insert(open_of(Socket::new(), kind), kind & libc::SOCK_CLOEXEC != 0)
}

fn socketpair(call: &mut FsCall, domain: i32, kind: i32, to: u64) -> SysResult {
    check_kind(domain, kind)?;
    let (one, other) = socket::pair();
    let close = kind & libc::SOCK_CLOEXEC != 0;
    call.insert_pair(to, open_of(one, kind), open_of(other, kind), close)
}

/// The name in a `struct sockaddr_un` (unix(7)).
enum Address {
    Path(String),
    Abstract(Vec<u8>),
}

fn address(call: &mut FsCall, at: u64, len: u64) -> Result<Address, Errno> {
    if !(3..=ADDRESS_BYTES).contains(&len) {
        return Err(Errno::EINVAL);
    }
    let mut bytes = vec![0; len as usize];
    call.cx.memory.read(at, &mut bytes)?;
    if u16::from_le_bytes([bytes[0], bytes[1]]) != libc::AF_UNIX as u16 {
        return Err(Errno::EAFNOSUPPORT);
    }
    let name = &bytes[2..];
    match name.iter().position(|byte| *byte == 0) {
        Some(0) => Ok(Address::Abstract(name[1..].to_vec())),
        end => {
            let path = name[..end.unwrap_or(name.len())].to_vec();
            let path = String::from_utf8(path).map_err(|_| Errno::EINVAL)?;
            Ok(Address::Path(path))
        }
    }
}

fn bind(call: &mut FsCall, fd: i32, at: u64, len: u64) -> SysResult {
    let address = address(call, at, len)?;
    with(call, fd, |call, socket| {
        socket.bind(|listener| match address {
            Address::Abstract(name) => call.vfs.add_abstract(name, listener),
            Address::Path(path) => {
                let found = call.vfs.find(&call.fs.cwd, &path, true)?;
                if found.node.is_some() {
                    return Err(Errno::EADDRINUSE);
                }
                let node = Node::Socket(listener.clone());
                call.vfs.add(found.parent, &found.name, node).map(|_| ())
            }
        })?;
        Ok(0)
    })
}

fn accept(call: &mut FsCall, fd: i32, to: u64, len: u64, flags: i32) -> SysResult {
    with(call, fd, |call, socket| {
        call.check_room(1)?;
        let accepted = socket.accept(call.cx.nonblock)?;
        // Somebody may be waiting for room in the backlog.
        for channel in File::channels(socket) {
            (call.cx.wake)(channel);
        }
        let close = flags & libc::SOCK_CLOEXEC != 0;
        let fd = call.insert(open_of(accepted, flags), close)?;
        if let Err(errno) = put_unnamed(call, to, len) {
            call.files.close(fd as i32, call.cx.wake)?;
            return Err(errno.into());
        }
        Ok(fd)
    })
}

fn connect(call: &mut FsCall, fd: i32, at: u64, len: u64) -> SysResult {
    let address = address(call, at, len)?;
    with(call, fd, |call, socket| {
        let listener = match address {
            Address::Abstract(name) => call.vfs.find_abstract(&name),
            Address::Path(path) => {
                let found = call.vfs.find(&call.fs.cwd, &path, true)?;
                match call.vfs.node(found.node.ok_or(Errno::ENOENT)?) {
                    Some(Node::Socket(listener)) => Some(listener.clone()),
                    _ => None,
                }
            }
        };
        socket.connect(&*listener.ok_or(Errno::ECONNREFUSED)?, &mut call.cx)?;
        Ok(0)
    })
}

fn send(call: &mut FsCall, fd: i32, from: &Vectors, flags: i32) -> SysResult {
    with(call, fd, |call, socket| {
        call.cx.nonblock |= flags & libc::MSG_DONTWAIT != 0;
        let result = call.put(from, true, |call, _, data| call.write_to(socket, data));
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

/// The buffers in a `struct msghdr`; descriptors cannot be passed.
fn message(call: &mut FsCall, at: u64) -> Result<(Vectors, u64), Errno> {
    let mut bytes = [0; 56];
    call.cx.memory.read(at, &mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let vectors = Vectors::load(call.cx.memory, word(16), word(24));
    // sendmsg(2) has an error of its own for too many.
    let vectors = vectors.map_err(|errno| match word(24) > IOV_MAX {
        true => Errno::EMSGSIZE,
        false => errno,
    })?;
    Ok((vectors, word(40)))
}

fn sendmsg(call: &mut FsCall, fd: i32, at: u64, flags: i32) -> SysResult {
    let (from, control_bytes) = message(call, at)?;
    if control_bytes != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    send(call, fd, &from, flags)
}

fn recvmsg(call: &mut FsCall, fd: i32, at: u64, flags: i32) -> SysResult {
    let (to, _) = message(call, at)?;
    let count = receive(call, fd, &to, flags)?;
    // No address, no control data, no flags.
    call.cx.memory.write(at.wrapping_add(8), &[0; 4])?;
    call.cx.memory.write(at.wrapping_add(40), &[0; 16])?;
    Ok(count)
}

fn name(call: &mut FsCall, fd: i32, to: u64, len: u64) -> SysResult {
    with(call, fd, |call, _| {
        put_unnamed(call, to, len)?;
        Ok(0)
    })
}

/// The address of an unnamed socket: the family alone (unix(7)).
fn put_unnamed(call: &mut FsCall, to: u64, len: u64) -> Result<(), Errno> {
    if to == 0 || len == 0 {
        return Ok(());
    }
    call.cx
        .memory
        .write(to, &(libc::AF_UNIX as u16).to_le_bytes())?;
    call.cx.memory.write(len, &2_u32.to_le_bytes())
}

/// getsockopt(2): an int, or as much of it as there is room for.
fn getsockopt(call: &mut FsCall, fd: i32, level: i32, option: i32, to: u64, len: u64) -> SysResult {
    with(call, fd, |call, socket| {
        if level != libc::SOL_SOCKET {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let value = match option {
            libc::SO_TYPE => libc::SOCK_STREAM,
            libc::SO_DOMAIN => libc::AF_UNIX,
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
}
