//! What sockets send and receive.

use std::sync::Arc;

use snaprig_card_driver::{
    errno::Errno,
    file::Identity,
    wait::{Stop, SysResult},
};

use super::names::{bind_any, find_mailbox, put_name, raw_address, read_address};
use crate::{
    call::FsCall,
    calls::{
        socket_of::with,
        transfer::More,
        vectors::{IOV_MAX, Vectors},
    },
    files::{
        address::{self, Address, Place},
        datagram::{Letter, Mailbox},
        socket::Socket,
    },
    passed::Passed,
};

/// Bytes of `struct mmsghdr`.
const MMSGHDR_BYTES: u64 = 64;

/// EFAULT if a buffer of sendto(2) or recvfrom(2) cannot be in user space: Linux asks that first.
fn check_buffer(one: &Vectors) -> Result<(), Errno> {
    match one.is_in_user_space() {
        true => Ok(()),
        false => Err(Errno::EFAULT),
    }
}

pub(super) fn sendto(
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

pub(super) fn recvfrom(
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
pub(super) struct Message {
    /// Address and length of a name.
    name: (u64, u64),
    control: u64,
    control_bytes: u64,
}

/// The one that is there, and where its bytes are.
pub(super) fn message(call: &mut FsCall, at: u64) -> Result<(Message, Vectors), Errno> {
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

pub(super) fn sendmsg(call: &mut FsCall, fd: i32, at: u64, flags: i32) -> SysResult {
    with(call, fd, |_, _| Ok(0))?;
    let (message, vectors) = message(call, at)?;
    send_message(call, fd, &vectors, flags, &message)
}

pub(super) fn recvmsg(call: &mut FsCall, fd: i32, at: u64, flags: i32) -> SysResult {
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
    message.tell(call, at, &name, bytes, told)?;
    Ok(received.count)
}

impl Message {
    /// Says whom what was received is from, how many bytes of control data there are, and flags.
    pub(super) fn tell(
        &self,
        call: &mut FsCall,
        at: u64,
        name: &[u8],
        control_bytes: u64,
        flags: i32,
    ) -> Result<(), Errno> {
        if self.name.0 != 0 {
            let part = &name[..name.len().min(self.name.1 as usize)];
            call.cx.memory.write(self.name.0, part)?;
            let len = (name.len() as u32).to_le_bytes();
            call.cx.memory.write(at.wrapping_add(8), &len)?;
        }
        let ends = [control_bytes.to_le_bytes(), (flags as u64).to_le_bytes()].concat();
        call.cx.memory.write(at.wrapping_add(40), &ends[..12])
    }
}

/// sendmmsg(2): a message of which only a part fits is the last.
pub(super) fn sendmmsg(call: &mut FsCall, fd: i32, at: u64, count: u64, flags: i32) -> SysResult {
    each_message(call, at, count, |call, at, _| sendmsg(call, fd, at, flags))
}

/// recvmmsg(2): waits for the first message, and takes the others that are there.
pub(super) fn recvmmsg(call: &mut FsCall, fd: i32, at: u64, count: u64, flags: i32) -> SysResult {
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
