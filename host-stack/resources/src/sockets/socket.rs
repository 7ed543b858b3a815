//! Calls on sockets that are not our own program's: what they are set to, what is in them, what they are called.

use std::{
    io,
    mem::size_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use crate::calls::{check, count, events, readable};

/// Longest name of a socket (`struct sockaddr_storage`).
const NAME_MAX: usize = 128;

/// Longest value of an option that is kept.
const OPTION_MAX: usize = 64;

/// Longest datagram.
const DATAGRAM_MAX: usize = 1 << 20;

/// Descriptors that one message can carry (SCM_MAX_FD).
const PASSED_MAX: usize = 253;

/// SO_BUF_LOCK (socket(7)): which buffers have a size that the program has set; 1: sending, 2: receiving.
pub const SO_BUF_LOCK: i32 = 72;

/// Of it: the receiving one.
pub const RECEIVE_LOCK: i32 = 2;

/// One message, as it is in a socket.
#[derive(Debug, Default)]
pub struct Received {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Descriptors that came with it: copies.
    pub files: Vec<OwnedFd>,
    /// Who has sent it.
    pub from: Vec<u8>,
}

/// socket(2).
pub fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes numbers alone; the descriptor that it returns is new, so nobody else owns it.
    unsafe {
        let fd = check(libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// socketpair(2).
pub fn pair(family: i32, kind: i32) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: socketpair(2) writes two numbers, for which there is room; the descriptors are new, so nobody else owns
    // them.
    unsafe {
        let kind = kind | libc::SOCK_CLOEXEC;
        check(libc::socketpair(family, kind, 0, ends.as_mut_ptr()))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// getsockopt(2), as bytes.
pub fn option(fd: impl AsFd, level: i32, name: i32) -> io::Result<Vec<u8>> {
    let mut value = vec![0u8; OPTION_MAX];
    let mut length = OPTION_MAX as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as `length` says, which are those of the vector.
    check(unsafe {
        let fd = fd.as_fd().as_raw_fd();
        libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut length)
    })?;
    value.truncate(length as usize);
    Ok(value)
}

/// getsockopt(2) of an option that is a number.
pub fn number(fd: impl AsFd, level: i32, name: i32) -> io::Result<i32> {
    let value = option(fd, level, name)?;
    let value: [u8; 4] = value
        .try_into()
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(i32::from_ne_bytes(value))
}

/// setsockopt(2).
pub fn set_option(fd: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads as many bytes as it is told, which is the length of the slice.
    check(unsafe {
        let fd = fd.as_fd().as_raw_fd();
        libc::setsockopt(fd, level, name, value.as_ptr().cast(), length)
    })?;
    Ok(())
}

/// setsockopt(2) of an option that is a number.
pub fn set_number(fd: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_option(fd, level, name, &value.to_ne_bytes())
}

/// What a socket is bound to, without what is behind the name; empty: nothing.
pub fn local_name(fd: impl AsFd) -> io::Result<Vec<u8>> {
    name(fd, libc::getsockname)
}

/// What a socket is connected to; empty: nothing.
pub fn remote_name(fd: impl AsFd) -> io::Result<Vec<u8>> {
    match name(fd, libc::getpeername) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(Vec::new()),
        name => name,
    }
}

type GetName = unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn name(fd: impl AsFd, get: GetName) -> io::Result<Vec<u8>> {
    let mut name = vec![0u8; NAME_MAX];
    let mut length = NAME_MAX as libc::socklen_t;
    // SAFETY: both functions of the type write at most as many bytes as `length` says, which are those of the vector.
    check(unsafe {
        let fd = fd.as_fd().as_raw_fd();
        get(fd, name.as_mut_ptr().cast(), &raw mut length)
    })?;
    name.truncate(length as usize);
    // Of a Unix socket without a name there is only the family.
    if name.len() == size_of::<libc::sa_family_t>() {
        name.clear();
    }
    Ok(name)
}

/// bind(2).
pub fn bind(fd: impl AsFd, name: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as it is told, which is the length of the slice.
    check(unsafe {
        let fd = fd.as_fd().as_raw_fd();
        libc::bind(fd, name.as_ptr().cast(), name.len() as libc::socklen_t)
    })?;
    Ok(())
}

/// connect(2).
pub fn connect(fd: impl AsFd, name: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as it is told, which is the length of the slice.
    check(unsafe {
        let fd = fd.as_fd().as_raw_fd();
        libc::connect(fd, name.as_ptr().cast(), name.len() as libc::socklen_t)
    })?;
    Ok(())
}

/// listen(2).
pub fn listen(fd: impl AsFd, backlog: u32) -> io::Result<()> {
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    // SAFETY: listen(2) takes numbers alone and no address, so the kernel reads and writes no memory of this process.
    check(unsafe { libc::listen(fd.as_fd().as_raw_fd(), backlog) })?;
    Ok(())
}

/// accept(2).
pub fn accept(fd: impl AsFd) -> io::Result<OwnedFd> {
    let (fd, none) = (fd.as_fd().as_raw_fd(), ptr::null_mut());
    // SAFETY: with null pointers accept4(2) writes no name; the descriptor that it returns is new, so nobody else owns
    // it.
    unsafe {
        let accepted = check(libc::accept4(fd, none, none.cast(), libc::SOCK_CLOEXEC))?;
        Ok(OwnedFd::from_raw_fd(accepted))
    }
}

/// shutdown(2).
pub fn shut(fd: impl AsFd, how: i32) -> io::Result<()> {
    // SAFETY: shutdown(2) takes numbers alone and no address, so the kernel reads and writes no memory of this process.
    check(unsafe { libc::shutdown(fd.as_fd().as_raw_fd(), how) })?;
    Ok(())
}

/// Bytes that have been sent and not yet been acknowledged or read (SIOCOUTQ).
pub fn unsent(fd: impl AsFd) -> io::Result<u64> {
    count(fd, libc::TIOCOUTQ)
}

/// All messages of a socket, which stay in it (SO_PEEK_OFF); of a stream, its bytes, divided
/// behind those with which descriptors came. The kernel does not say where these begin. It shows empty messages once.
pub fn peek_messages(fd: impl AsFd) -> io::Result<Vec<Received>> {
    let fd = fd.as_fd();
    let before = number(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF)?;
    set_number(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, 0)?;
    let is_stream = number(fd, libc::SOL_SOCKET, libc::SO_TYPE)? == libc::SOCK_STREAM;
    let mut messages: Vec<Received> = Vec::new();
    let peeked = loop {
        match peek(fd) {
            Ok(Some(message))
                if message.bytes.is_empty() && (is_stream || is_end(fd, &messages)?) =>
            {
                break Ok(messages);
            }
            Ok(Some(message)) => messages.push(message),
            Ok(None) => break Ok(messages),
            Err(error) => break Err(error),
        }
    };
    set_number(fd, libc::SOL_SOCKET, libc::SO_PEEK_OFF, before)?;
    peeked
}

/// Of a socket whose next message seems to be empty: whether that is the end, and these are all.
fn is_end(fd: impl AsFd, messages: &[Received]) -> io::Result<bool> {
    let fd = fd.as_fd();
    let bytes: usize = messages.iter().map(|one| one.bytes.len()).sum();
    let hung_up = events(fd, libc::POLLRDHUP, 0)? & libc::POLLRDHUP != 0;
    Ok(hung_up && readable(fd)? == bytes as u64)
}

/// The first message of a socket, which stays in it; none: there is nothing.
pub fn peek(fd: impl AsFd) -> io::Result<Option<Received>> {
    let mut bytes = vec![0u8; DATAGRAM_MAX];
    let mut from = vec![0u8; NAME_MAX];
    // Words, for their alignment.
    let mut control = vec![0u64; (PASSED_MAX * 4 + 256) / 8];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the structure has numbers and pointers alone, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = from.as_mut_ptr().cast();
    header.msg_namelen = NAME_MAX as libc::socklen_t;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len() * 8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names a name, one part and control data, each a vector of this function that is as long as it
    // says, for the kernel to write to.
    let count = unsafe { libc::recvmsg(fd.as_fd().as_raw_fd(), &raw mut header, flags) };
    let Ok(count) = usize::try_from(count) else {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOTCONN | libc::EINVAL) => Ok(None),
            _ => Err(error),
        };
    };
    let files = passed(&header);
    if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return Err(io::Error::other("a message that is too long"));
    }
    bytes.truncate(count);
    from.truncate(header.msg_namelen as usize);
    Ok(Some(Received { bytes, files, from }))
}

/// Descriptors that came with a message.
fn passed(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut files = Vec::new();
    // SAFETY: the kernel has written the control data that the header names, of which these macros find whole messages;
    // one with descriptors has as many as its length says, which are new and nobody else's.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while let Some(message) = at.as_ref() {
            if (message.cmsg_level, message.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = message.cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(at).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    let fd = data.add(index).read_unaligned();
                    files.push(OwnedFd::from_raw_fd(fd));
                }
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    files
}

/// Sends a message at once, with descriptors; how many bytes went.
pub fn send(fd: impl AsFd, bytes: &[u8], files: &[RawFd], to: &[u8]) -> io::Result<usize> {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = vec![0u64; (PASSED_MAX * 4 + 64) / 8];
    // SAFETY: the structure has numbers and pointers alone, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !to.is_empty() {
        header.msg_name = to.as_ptr().cast_mut().cast();
        header.msg_namelen = to.len() as libc::socklen_t;
    }
    if files.len() > PASSED_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    if !files.is_empty() {
        let length = size_of_val(files) as u32;
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: the control data has room for a message with PASSED_MAX descriptors, as was checked there are no
        // more, and is aligned; so the first message is there, and the copy within it.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(length) as usize;
            let message = libc::CMSG_FIRSTHDR(&raw const header);
            (*message).cmsg_level = libc::SOL_SOCKET;
            (*message).cmsg_type = libc::SCM_RIGHTS;
            (*message).cmsg_len = libc::CMSG_LEN(length) as usize;
            let data = libc::CMSG_DATA(message).cast::<RawFd>();
            ptr::copy_nonoverlapping(files.as_ptr(), data, files.len());
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header names a name, one part and control data, each of which is as long as it says and is only read.
    let sent = unsafe { libc::sendmsg(fd.as_fd().as_raw_fd(), &raw const header, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// An internet address; one of IPv4 within IPv6 is the former, so that both ends of a connection have the same.
pub fn address(name: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(name.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(name.get(2..4)?.try_into().ok()?);
    let ip = match i32::from(family) {
        libc::AF_INET => {
            let bytes: [u8; 4] = name.get(4..8)?.try_into().ok()?;
            IpAddr::V4(Ipv4Addr::from(bytes))
        }
        libc::AF_INET6 => {
            let bytes: [u8; 16] = name.get(8..24)?.try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// As a name for sockets of a family: those of IPv6 reach addresses of IPv4, too.
pub fn name_of(family: i32, address: SocketAddr) -> Vec<u8> {
    let port = address.port().to_be_bytes();
    let mut name = (family as u16).to_ne_bytes().to_vec();
    name.extend(port);
    match (family, address.ip()) {
        (libc::AF_INET6, ip) => {
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let scope = match address {
                SocketAddr::V6(address) => address.scope_id(),
                SocketAddr::V4(_) => 0,
            };
            // struct sockaddr_in6: the flow, the address, the scope.
            name.extend([0; 4]);
            name.extend(ip.octets());
            name.extend(scope.to_ne_bytes());
        }
        (_, IpAddr::V4(ip)) => {
            name.extend(ip.octets());
            name.extend([0; 8]);
        }
        // Nobody reaches it from there: connect(2) says so.
        (_, IpAddr::V6(_)) => name.extend([0; 12]),
    }
    name
}

/// A name as people write it.
pub fn show(name: &[u8]) -> String {
    if let Some(address) = address(name) {
        return address.to_string();
    }
    match name.get(2..) {
        None | Some([]) => "no name".into(),
        Some([0, name @ ..]) => format!("@{}", String::from_utf8_lossy(name)),
        Some(path) => String::from_utf8_lossy(path)
            .trim_end_matches('\0')
            .to_owned(),
    }
}
