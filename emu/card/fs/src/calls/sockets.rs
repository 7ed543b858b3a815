//! Calls on sockets.

use std::{sync::Arc, time::Duration};

use snaprig_card_driver::{
    errno::Errno,
    file::{File, Identity},
    wait::{Stop, SysResult},
};

use super::socket_options;
use crate::{
    call::FsCall,
    calls::{
        transfer::More,
        vectors::{IOV_MAX, Vectors},
    },
    files::{
        address::{self, Address, Place, STORAGE_BYTES},
        datagram::{Letter, Mailbox},
        socket::{self, Listener, Names, Socket},
    },
    passed::Passed,
    sockets::PortKind,
    table::Open,
    tree::Node,
};

/// Bytes of `struct mmsghdr`.
const MMSGHDR_BYTES: u64 = 64;

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
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

/// Runs `f` with a socket.
pub fn with(
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

fn open_of(socket: Arc<Socket>, kind: i32) -> Arc<Open> {
    Open::new(socket, libc::O_RDWR | kind & libc::SOCK_NONBLOCK)
}

fn socket(call: &mut FsCall, domain: i32, kind: i32, protocol: i32) -> SysResult {
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

/// Reads an address for a socket; its bytes too.
fn read_address(
    call: &mut FsCall,
    socket: &Socket,
    at: u64,
    len: u64,
) -> Result<(Address, Vec<u8>), Errno> {
    let bytes = raw_address(call, at, len)?;
    Ok((address::parse(socket.domain, &bytes)?, bytes))
}

/// Reads an address, whatever it says.
fn raw_address(call: &mut FsCall, at: u64, len: u64) -> Result<Vec<u8>, Errno> {
    if i64::from(len as i32) as u64 != len || len > STORAGE_BYTES {
        return Err(Errno::EINVAL);
    }
    let mut bytes = vec![0; len as usize];
    call.cx.memory.read(at, &mut bytes)?;
    Ok(bytes)
}

/// EFAULT if a buffer of sendto(2) or recvfrom(2) cannot be in user space: Linux asks that first.
fn check_buffer(one: &Vectors) -> Result<(), Errno> {
    match one.is_in_user_space() {
        true => Ok(()),
        false => Err(Errno::EFAULT),
    }
}

/// The tables of ports in which a socket that is bound to `place` is found.
fn port_kinds(socket: &Socket, place: Place) -> Vec<PortKind> {
    let udp = socket.kind == libc::SOCK_DGRAM;
    let v6 = place.ip.is_ipv6();
    let only = socket
        .options()
        .is_on(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    // Any address of IPv6 is any of IPv4 too (ipv6(7), IPV6_V6ONLY).
    match v6 && place.ip.is_unspecified() && !only {
        true => vec![(udp, true), (udp, false)],
        false => vec![(udp, v6)],
    }
}

fn bind(call: &mut FsCall, fd: i32, at: u64, len: u64) -> SysResult {
    with(call, fd, |call, socket| {
        let (address, bytes) = read_address(call, socket, at, len)?;
        bind_to(call, socket, address, bytes)?;
        Ok(0)
    })
}

fn bind_to(
    call: &mut FsCall,
    socket: &Socket,
    address: Address,
    bytes: Vec<u8>,
) -> Result<(), Errno> {
    if let Address::Port(place) = address
        && !place.is_here()
    {
        return Err(Errno::EADDRNOTAVAIL);
    }
    if let Address::Port(place) = address {
        let kinds = port_kinds(socket, place);
        return socket.bind(|listener| {
            let port = call.sockets.add_port(&kinds, place.port, listener)?;
            Ok(Place { port, ..place }.bytes(socket.domain))
        });
    }
    socket.bind(|listener| match address {
        Address::Abstract(name) => {
            call.sockets.add_abstract(name, listener)?;
            Ok(bytes)
        }
        Address::Path(path) => {
            let found = call.vfs.find(&call.fs.cwd, &path, true)?;
            if found.node.is_some() {
                return Err(Errno::EADDRINUSE);
            }
            let node = Node::Socket(Some(listener.clone()));
            call.vfs.add(found.parent, &found.name, node)?;
            Ok(bytes)
        }
        Address::Unnamed => {
            let name = call.sockets.add_unnamed(listener)?;
            let family = (libc::AF_UNIX as u16).to_le_bytes();
            Ok([&family[..], &[0], &name].concat())
        }
        Address::Nobody | Address::Port(_) => Err(Errno::EINVAL),
    })
}

/// Gives a socket of ip(7) that has no port one.
fn bind_any(call: &mut FsCall, socket: &Socket) -> Result<(), Errno> {
    match socket.is_internet() && socket.is_unnamed() {
        true => bind_to(
            call,
            socket,
            Address::Port(Place::any(socket.domain)),
            Vec::new(),
        ),
        false => Ok(()),
    }
}

fn listen(call: &mut FsCall, fd: i32, backlog: i32) -> SysResult {
    with(call, fd, |call, socket| {
        if socket.kind != libc::SOCK_DGRAM {
            bind_any(call, socket)?;
        }
        // A negative one is as many as there may be (listen(2)).
        let backlog = usize::try_from(backlog).unwrap_or(usize::MAX);
        socket.listen(backlog, call.cx.identity)?;
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
        let told = match to {
            0 => Ok(()),
            to => put_name(call, to, len, peer),
        };
        if let Err(errno) = told {
            call.files.close(fd as i32, call.cx.wake)?;
            return Err(errno.into());
        }
        Ok(fd)
    })
}

/// What listens at an address, or has its mailbox there.
fn find(
    call: &mut FsCall,
    socket: &Socket,
    address: &Address,
) -> Result<Option<Arc<Listener>>, Errno> {
    Ok(match address {
        Address::Port(place) if !place.is_here() => return Err(Errno::ENETUNREACH),
        Address::Port(place) => {
            let udp = socket.kind == libc::SOCK_DGRAM;
            call.sockets
                .find_port((udp, place.ip.is_ipv6()), place.port)
        }
        Address::Abstract(name) => call.sockets.find_abstract(name),
        Address::Path(path) => {
            let found = call.vfs.find(&call.fs.cwd, path, true)?;
            match call.vfs.node(found.node.ok_or(Errno::ENOENT)?) {
                Some(Node::Socket(listener)) => listener.clone(),
                _ => None,
            }
        }
        Address::Unnamed | Address::Nobody => return Err(Errno::EINVAL),
    })
}

/// A mailbox for letters of `socket`.
fn find_mailbox(
    call: &mut FsCall,
    socket: &Socket,
    address: &Address,
) -> Result<Option<Arc<Mailbox>>, Errno> {
    let listener = find(call, socket, address)?;
    // A path outlives its socket.
    match listener.filter(|listener| listener.is_open()) {
        Some(listener) => {
            let mailbox = listener.mailbox.clone().ok_or(Errno::EPROTOTYPE)?;
            Ok(Some(mailbox))
        }
        None if socket.is_internet() => Ok(None),
        None => Err(Errno::ECONNREFUSED),
    }
}

/// What each end of a connection is told of itself and of the other.
fn names_of(
    call: &mut FsCall,
    socket: &Socket,
    to: &Listener,
    address: &Address,
) -> Result<[Names; 2], Errno> {
    let mut own = socket.name(false)?;
    let Address::Port(place) = address else {
        return Ok([[own.clone(), to.name()], [to.name(), own]]);
    };
    let there = place.reached();
    let kind = (false, there.ip.is_ipv6());
    let here = match address::parse(socket.domain, &own) {
        Ok(Address::Port(here)) => here.port,
        _ => call.sockets.free_port(&[kind])?,
    };
    let here = Place {
        port: here,
        ..there
    };
    own = here.bytes(socket.domain);
    Ok([
        [own, there.bytes(socket.domain)],
        [there.bytes(to.domain), here.bytes(to.domain)],
    ])
}

fn connect(call: &mut FsCall, fd: i32, at: u64, len: u64) -> SysResult {
    call.files.get(fd)?;
    // Linux looks at the address before it asks what the descriptor is.
    raw_address(call, at, len)?;
    with(call, fd, |call, socket| {
        let (address, bytes) = read_address(call, socket, at, len)?;
        if let Some(mailbox) = socket.mailbox() {
            return connect_mailbox(call, socket, &mailbox, &address, bytes).map_err(Into::into);
        }
        let to = find(call, socket, &address)?.ok_or(Errno::ECONNREFUSED)?;
        let names = names_of(call, socket, &to, &address)?;
        socket.connect(&to, names, &mut call.cx)?;
        Ok(0)
    })
}

/// connect(2) of a socket of datagrams says whom it writes to, and hears from.
fn connect_mailbox(
    call: &mut FsCall,
    socket: &Socket,
    mailbox: &Arc<Mailbox>,
    address: &Address,
    bytes: Vec<u8>,
) -> Result<u64, Errno> {
    if *address == Address::Nobody {
        mailbox.connect_nobody(None);
        return Ok(0);
    }
    let to = find_mailbox(call, socket, address)?;
    let name = match address {
        Address::Port(place) => {
            bind_any(call, socket)?;
            let there = place.reached();
            if let Ok(Address::Port(here)) = address::parse(socket.domain, &socket.name(false)?) {
                let here = match here.ip.is_unspecified() {
                    true => Place {
                        port: here.port,
                        ..there
                    },
                    false => here,
                };
                mailbox.set_name(here.bytes(socket.domain));
            }
            there.bytes(socket.domain)
        }
        _ => bytes,
    };
    match to {
        Some(to) => mailbox.connect(&to, name),
        None => mailbox.connect_nobody(Some(name)),
    }
    Ok(0)
}

fn sendto(
    call: &mut FsCall,
    fd: i32,
    from: &Vectors,
    flags: i32,
    (at, len): (u64, u64),
) -> SysResult {
    check_buffer(from)?;
    let message = Message {
        name: (at, i64::from(len as i32) as u64),
        ..Message::default()
    };
    send_message(call, fd, from, flags, &message)
}

/// Sends a message: bytes, and maybe where to, and what goes with them.
fn send_message(
    call: &mut FsCall,
    fd: i32,
    from: &Vectors,
    flags: i32,
    message: &Message,
) -> SysResult {
    let (mut to, mut is_internet) = (None, false);
    with(call, fd, |call, socket| {
        is_internet = socket.is_internet();
        let (at, len) = message.name;
        let is_packets = socket.kind == libc::SOCK_SEQPACKET;
        if is_packets {
            socket.stream()?;
        }
        if at != 0 && (is_packets || socket.is_internet() && socket.mailbox().is_none()) {
            // A connection knows where it goes.
            raw_address(call, at, len)?;
        } else if at != 0 && len != 0 {
            to = Some(read_address(call, socket, at, len)?.0);
        }
        Ok(0)
    })?;
    let (passed, sender) = match *call.progress {
        0 if !is_internet => call.passed(message.control, message.control_bytes)?,
        // They went with the first part; and ip(7) passes nothing.
        _ => (None, None),
    };
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if let Some(sender) = sender {
        call.check_sender(sender)?;
        call.cx.identity = sender;
    }
    let mut mailbox = None;
    with(call, fd, |_, socket| {
        mailbox = socket.mailbox();
        Ok(0)
    })?;
    match mailbox {
        Some(mailbox) => with(call, fd, |call, socket| {
            call.cx.nonblock |= flags & libc::MSG_DONTWAIT != 0;
            send_letter(call, (socket, &mailbox), from, to, passed)
        }),
        None => {
            with(call, fd, |_, socket| match to {
                Some(_) if socket.stream().is_ok() => Err(Errno::EISCONN.into()),
                Some(_) => Err(Errno::EOPNOTSUPP.into()),
                None => Ok(0),
            })?;
            send_with(call, fd, from, flags, passed)
        }
    }
}

fn send_letter(
    call: &mut FsCall,
    (socket, mailbox): (&Socket, &Arc<Mailbox>),
    from: &Vectors,
    to: Option<Address>,
    passed: Option<Passed>,
) -> SysResult {
    let mut from_place = None;
    let to = match to {
        Some(address) => {
            let to = find_mailbox(call, socket, &address)?;
            if let Address::Port(place) = address {
                from_place = Some(place.reached());
            }
            to
        }
        None => mailbox.peer().map_err(|errno| match errno {
            Errno::ENOTCONN if socket.is_internet() => Errno::EDESTADDRREQ,
            errno => errno,
        })?,
    };
    bind_any(call, socket)?;
    let mut name = socket.name(false)?;
    if let Ok(Address::Port(here)) = address::parse(socket.domain, &name) {
        // From the address that its receiver would answer to, in the form that it knows.
        let here = match from_place {
            Some(there) if here.ip.is_unspecified() => Place {
                port: here.port,
                ..there
            },
            _ => here.reached(),
        };
        name = here.bytes(to.as_ref().map_or(socket.domain, |to| to.domain));
    }
    mailbox.check_len(from.total())?;
    let bytes = from.read(call.cx.memory, 0, from.total())?;
    let letter = Letter {
        bytes,
        from: name,
        sender: call.cx.identity,
        passed,
    };
    mailbox.send(to, letter, &mut call.cx)?;
    Ok(from.total() as u64)
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

/// What came of a receive beside its bytes.
#[derive(Default)]
struct Received {
    count: u64,
    /// Whom it is from; nobody says so on a stream.
    from: Option<Vec<u8>>,
    sender: Option<Identity>,
    passed: Vec<Passed>,
    /// `MSG_TRUNC`: there was more of it.
    flags: i32,
}

fn receive(call: &mut FsCall, fd: i32, to: &Vectors, flags: i32) -> SysResult<Received> {
    let mut received = Received::default();
    let peeks = flags & libc::MSG_PEEK != 0;
    with(call, fd, |call, socket| {
        call.cx.nonblock |= flags & libc::MSG_DONTWAIT != 0;
        let tells = socket.options().is_on(libc::SOL_SOCKET, libc::SO_PASSCRED);
        if let Some(mailbox) = socket.mailbox() {
            received = receive_letter(call, &mailbox, to, flags)?;
        } else {
            if flags & libc::MSG_OOB != 0 {
                return Err(match socket.is_internet() {
                    true => Errno::EINVAL,
                    false => Errno::EOPNOTSUPP,
                }
                .into());
            }
            let more = match flags & libc::MSG_WAITALL {
                0 => More::No,
                _ => More::UntilFull,
            };
            if to.total() == 0
                && let Ok(stream) = socket.stream()
                && !stream.incoming.readable().0
            {
                // Nothing is not there either before something is.
                return Err(match call.cx.nonblock {
                    true => Errno::EAGAIN.into(),
                    false => Stop::wait(stream.incoming.channel),
                });
            }
            received.count = match peeks {
                true => call.get(to, More::No, |call, _, max| socket.peek(&call.cx, max))?,
                false => call.get(to, more, |call, done, max| call.take(socket, to, done, max))?,
            };
            if let Ok(stream) = socket.stream() {
                received.sender = stream.incoming.sender();
                if !peeks {
                    received.passed = stream.incoming.collect();
                }
            }
        }
        if !tells {
            received.sender = None;
        }
        Ok(0)
    })?;
    Ok(received)
}

fn receive_letter(
    call: &mut FsCall,
    mailbox: &Mailbox,
    to: &Vectors,
    flags: i32,
) -> SysResult<Received> {
    let takes = flags & libc::MSG_PEEK == 0;
    let mut bytes = Vec::new();
    let received = mailbox.receive(&mut call.cx, takes, |letter| {
        let room = to.total().min(letter.bytes.len());
        bytes = letter.bytes[..room].to_vec();
        let is_cut = room < letter.bytes.len();
        Received {
            count: match flags & libc::MSG_TRUNC {
                0 => room as u64,
                _ => letter.bytes.len() as u64,
            },
            from: Some(letter.from.clone()),
            sender: Some(letter.sender),
            passed: takes
                .then(|| letter.passed.take())
                .flatten()
                .into_iter()
                .collect(),
            flags: if is_cut { libc::MSG_TRUNC } else { 0 },
        }
    })?;
    to.write(call.cx.memory, 0, &bytes)?;
    Ok(received.unwrap_or_default())
}

fn recvfrom(
    call: &mut FsCall,
    fd: i32,
    to: &Vectors,
    flags: i32,
    (at, len): (u64, u64),
) -> SysResult {
    check_buffer(to)?;
    let received = receive(call, fd, to, flags)?;
    for passed in received.passed {
        crate::passed::release([passed], call.cx.wake);
    }
    if at == 0 {
        return Ok(received.count);
    }
    match received.from {
        // One without a name has no length (recv(2)).
        Some(from) if !from.is_empty() => put_name(call, at, len, from)?,
        _ => call.cx.memory.write(len, &[0; 4])?,
    }
    Ok(received.count)
}

/// A `struct msghdr`.
#[derive(Default)]
struct Message {
    /// Address and length of a name.
    name: (u64, u64),
    control: u64,
    control_bytes: u64,
}

fn message(call: &mut FsCall, at: u64) -> Result<(Message, Vectors), Errno> {
    let mut bytes = [0; 56];
    call.cx.memory.read(at, &mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let vectors = Vectors::load(call.cx.memory, word(16), word(24));
    // sendmsg(2) has an error of its own for too many.
    let vectors = vectors.map_err(|errno| match word(24) > IOV_MAX {
        true => Errno::EMSGSIZE,
        false => errno,
    })?;
    let message = Message {
        name: (word(0), i64::from(word(8) as i32) as u64),
        control: word(32),
        control_bytes: word(40),
    };
    Ok((message, vectors))
}

fn sendmsg(call: &mut FsCall, fd: i32, at: u64, flags: i32) -> SysResult {
    with(call, fd, |_, _| Ok(0))?;
    let (message, vectors) = message(call, at)?;
    send_message(call, fd, &vectors, flags, &message)
}

fn recvmsg(call: &mut FsCall, fd: i32, at: u64, flags: i32) -> SysResult {
    with(call, fd, |_, _| Ok(0))?;
    let (message, vectors) = message(call, at)?;
    let received = receive(call, fd, &vectors, flags)?;
    let close = flags & libc::MSG_CMSG_CLOEXEC != 0;
    let room = (message.control, message.control_bytes);
    let (bytes, all) = call.deliver(received.sender, received.passed, room, close)?;
    let mut told = received.flags | flags & libc::MSG_CMSG_CLOEXEC;
    if !all {
        told |= libc::MSG_CTRUNC;
    }
    let name = received.from.unwrap_or_default();
    if message.name.0 != 0 {
        let part = &name[..name.len().min(message.name.1 as usize)];
        call.cx.memory.write(message.name.0, part)?;
        let len = (name.len() as u32).to_le_bytes();
        call.cx.memory.write(at.wrapping_add(8), &len)?;
    }
    // The control data; flags.
    let ends = [bytes.to_le_bytes(), (told as u64).to_le_bytes()].concat();
    call.cx.memory.write(at.wrapping_add(40), &ends[..12])?;
    Ok(received.count)
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
        if name.is_empty() && socket.is_internet() {
            name = Place::any(socket.domain).bytes(socket.domain);
        }
        put_name(call, to, len, name)?;
        Ok(0)
    })
}

/// Writes an address, cut to the room for it. That of an unnamed socket is the family alone
/// (unix(7)).
fn put_name(call: &mut FsCall, to: u64, len: u64, mut name: Vec<u8>) -> Result<(), Errno> {
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
    let socket = open.file.as_any().downcast_ref::<Socket>()?;
    socket.options().timeouts[direction]
}

#[cfg(test)]
mod tests;
