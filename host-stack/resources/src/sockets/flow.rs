//! What is on its way through a TCP connection: read, and left where the program finds it. Of connections between trees,
//! each tree has one end, and goes these steps by itself (`remote/save_tcp.rs`).
//!
//! ```text
//! sender: push (nothing is held back) --> receiver: peek, when all has arrived
//!                 when it is more than the receiver's buffer holds:
//!                 who may peeks at what the sender still has (`queue`)
//!                 who may not has the receiver's buffer grow until it holds all, and the sender send less ahead
//! restart: warm (a new connection gets buffers of that size) --> put
//! ```
//! What must stay true: both programs stand still; nothing is ever taken out, so that nothing is lost with a supervisor.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use super::{
    queue,
    socket::{self, SO_BUF_LOCK},
};
use crate::{calls, detached::Detached, faults};
use snaprig_tracee::faults::reached;

/// How long it takes at most until what can arrive has arrived: acknowledgements that the receiver had put off are
/// asked for at once.
pub const ARRIVAL: Duration = Duration::from_millis(20);
/// The same, of what a larger buffer makes room for: a sender whose bytes found none sends them again after RTO_MIN
/// (200 ms), and then waits twice as long each time.
pub const GROWN_ARRIVAL: Duration = Duration::from_secs(3);
/// More bytes than this are in no connection, unless its receiver has not read for many checkpoints: then all of it would
/// not fit into the image's state.
const BYTES_MAX: u64 = 32 << 20;
/// After so long without a byte a connection does not work.
const SILENCE: Duration = Duration::from_secs(10);
/// A look at a connection that moves.
const LOOK: Duration = Duration::from_micros(200);
/// Bytes that are read or sent at once.
const PART: usize = 256 << 10;
/// As much is sent through a new connection, so that its buffers grow.
const WARMING_MAX: usize = 64 << 20;
/// What a sender may have from now on that is not yet on its way, if its receiver has not kept up: as programs that send
/// much set it themselves.
const UNSENT_MAX: i32 = 128 << 10;
/// SO_SNDBUFFORCE, SO_RCVBUFFORCE (socket(7)): for who may.
const SEND_FORCE: i32 = 32;
const RECEIVE_FORCE: i32 = 33;

/// SO_MEMINFO (linux/sock_diag.h): numbers of four bytes, of which the first one is what fills the receiving buffer.
const SO_MEMINFO: i32 = 55;

/// Sends what is held back (TCP_CORK, Nagle's algorithm).
pub fn push(sender: impl AsFd) -> io::Result<()> {
    let sender = sender.as_fd();
    let before = socket::number(sender, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    socket::set_number(sender, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    socket::set_number(sender, libc::IPPROTO_TCP, libc::TCP_NODELAY, before)
}

/// Has the receiver acknowledge what it has (tcp(7)): an even number, so that it goes on as before.
fn acknowledge(receiver: impl AsFd) {
    // Of an end that is no longer connected nobody waits for it.
    let _ = socket::set_number(receiver, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 2);
}

/// Has the kernel say that there is room, if there is: what has been read counts, also if it stays (tcp_cleanup_rbuf).
pub fn invite(receiver: impl AsFd) {
    acknowledge(&receiver);
    // Of an end that is no longer connected nobody waits for it.
    let _ = receive(&receiver, &mut [0], libc::MSG_PEEK);
}

/// All that was sent and not yet read, which stays there; none: neither can be looked at what the sender still has, nor
/// can the receiver have a buffer that holds it. `has_ended`: the sender has said that it sends no more.
pub fn gather(
    sender: &OwnedFd,
    receiver: &OwnedFd,
    has_ended: bool,
) -> io::Result<Option<Vec<u8>>> {
    push(sender)?;
    if arrives(sender, receiver, ARRIVAL)? {
        return peek(receiver).map(Some);
    }
    match peek_both(sender, receiver, has_ended) {
        Ok(bytes) => return Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= BYTES_MAX)),
        Err(error) => tracing::debug!(%error, "a sender's queue cannot be looked at"),
    }
    restrain(sender)?;
    for times in 1..=2 {
        let fits = hold(receiver, socket::unsent(sender)? * times)?;
        if !fits && times == 1 {
            return Ok(None);
        }
        reached(&faults::FLOW_GROWN);
        if arrives(sender, receiver, GROWN_ARRIVAL)? {
            let bytes = peek(receiver)?;
            reached(&faults::FLOW_READ);
            return Ok(Some(bytes));
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// What a sender had in its own buffer its receiver gets, so the sender needs no such room again (TCP_NOTSENT_LOWAT,
/// tcp(7)): else each checkpoint would have the receiver hold as much more. It stays so; what is on its way is not
/// counted, so that nothing is slower.
pub fn restrain(sender: impl AsFd) -> io::Result<()> {
    let sender = sender.as_fd();
    let before = socket::number(sender, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT)?;
    // 0: as net.ipv4.tcp_notsent_lowat says, which is no limit, or -1, which is none either.
    match (1..=UNSENT_MAX).contains(&before) {
        true => Ok(()),
        false => {
            let name = libc::TCP_NOTSENT_LOWAT;
            socket::set_number(sender, libc::IPPROTO_TCP, name, UNSENT_MAX)
        }
    }
}

/// What the receiver has, and what the sender still has, for who may look at that: nothing of it is moved.
fn peek_both(sender: &OwnedFd, receiver: &OwnedFd, has_ended: bool) -> io::Result<Vec<u8>> {
    let queue = queue::peek(sender.as_fd(), receiver.as_fd(), has_ended)?;
    let mut bytes = peek(receiver)?;
    let rest = queue.behind(bytes.len());
    bytes.extend(rest.ok_or_else(|| io::Error::other("a queue that does not fit the receiver"))?);
    reached(&faults::FLOW_READ);
    Ok(bytes)
}

/// Has a receiver's buffer hold what is to come beside what is there; whether it does. It stays so large: where the
/// sender has been told of room that is no more, what it sends is dropped, and it waits ever longer (RFC 7323, 2.4).
pub fn hold(receiver: impl AsFd, unsent: u64) -> io::Result<bool> {
    let (receiver, unsent) = (receiver.as_fd(), unsent.min(BYTES_MAX));
    let size = || socket::number(receiver, libc::SOL_SOCKET, libc::SO_RCVBUF);
    let filled = socket::option(receiver, libc::SOL_SOCKET, SO_MEMINFO)?;
    let filled = filled
        .first_chunk()
        .map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    // The kernel counts what packets take, which is more than what is in them.
    let all = match calls::readable(receiver)? {
        0 => unsent + unsent / 4,
        bytes => unsent * u64::from(filled) / bytes,
    };
    let needed = all.max(unsent + unsent / 32) + u64::from(filled);
    // A window closes when a 16th of the buffer is left. No more than that: the sender would fill it, too.
    let wanted = (needed + needed / 16 + PART as u64 / 2).min(BYTES_MAX) as i32;
    let lock = socket::number(receiver, libc::SOL_SOCKET, SO_BUF_LOCK)?;
    if size()? < wanted
        && socket::set_number(receiver, libc::SOL_SOCKET, RECEIVE_FORCE, wanted / 2).is_err()
    {
        await_bytes(receiver, lock, wanted)?;
    }
    socket::set_number(receiver, libc::SOL_SOCKET, SO_BUF_LOCK, lock)?;
    Ok(size()? as u64 >= needed)
}

/// Whether all that was sent arrives; waits until nothing has moved for a while.
fn arrives(sender: &OwnedFd, receiver: &OwnedFd, silence: Duration) -> io::Result<bool> {
    let (mut left, mut last) = (u64::MAX, Instant::now());
    loop {
        invite(receiver);
        let unsent = socket::unsent(sender)?;
        if unsent == 0 {
            return Ok(true);
        }
        if unsent != left {
            (left, last) = (unsent, Instant::now());
        }
        if last.elapsed() > silence {
            return Ok(false);
        }
        thread::sleep(LOOK);
    }
}

/// What has arrived, which stays there.
pub fn peek(receiver: impl AsFd) -> io::Result<Vec<u8>> {
    let receiver = receiver.as_fd();
    let count = calls::readable(receiver)? as usize;
    let mut bytes = vec![0; count];
    if count == 0 {
        return Ok(bytes);
    }
    let read = receive(receiver, &mut bytes, libc::MSG_PEEK)?;
    match read == count {
        true => Ok(bytes),
        // Urgent data (tcp(7)) divide what can be read.
        false => Err(io::Error::other("urgent data")),
    }
}

fn receive(fd: impl AsFd, bytes: &mut [u8], flags: i32) -> io::Result<usize> {
    // SAFETY: recv(2) writes at most as many bytes as it is told, which is the length of the slice.
    let count = unsafe {
        let fd = fd.as_fd().as_raw_fd();
        let flags = flags | libc::MSG_DONTWAIT;
        libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags)
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Puts bytes where they were: sent again, and in the buffers of the two ends, as far as they are at hand, which grow if
/// they must.
pub fn put(sender: impl AsFd, receiver: Option<BorrowedFd<'_>>, bytes: &[u8]) -> io::Result<()> {
    let sender = sender.as_fd();
    let mut sent = 0;
    let mut grown: Option<EnlargedBuffer> = None;
    let mut last = Instant::now();
    while sent < bytes.len() {
        let part = &bytes[sent..bytes.len().min(sent + PART)];
        match socket::send(sender, part, &[], &[]) {
            Ok(count) => {
                sent += count;
                last = Instant::now();
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if last.elapsed() < ARRIVAL => thread::sleep(LOOK),
            Err(_) if grown.is_none() => {
                grown = Some(EnlargedBuffer::sending(sender, bytes.len())?);
                receiver.map_or(Ok(true), |end| hold(end, bytes.len() as u64))?;
                last = Instant::now();
            }
            Err(_) if last.elapsed() < SILENCE => thread::sleep(LOOK),
            Err(_) => {
                let what = format!(
                    "{} of {} bytes find no room",
                    bytes.len() - sent,
                    bytes.len()
                );
                return Err(io::Error::other(what));
            }
        }
    }
    grown.map_or(Ok(()), |grown| grown.shrink(sender))
}

/// The buffer of a sender that has been made larger for a while.
#[derive(Debug)]
pub struct EnlargedBuffer {
    bytes: i32,
    lock: i32,
}

impl EnlargedBuffer {
    /// Room for what is to be sent.
    pub fn sending(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        let fd = fd.as_fd();
        let grown = Self {
            bytes: socket::number(fd, libc::SOL_SOCKET, libc::SO_SNDBUF)?,
            lock: socket::number(fd, libc::SOL_SOCKET, SO_BUF_LOCK)?,
        };
        // The kernel doubles it, for what it needs itself.
        let wanted = i32::try_from(bytes)
            .unwrap_or(i32::MAX / 4)
            .min(i32::MAX / 4)
            .saturating_add(grown.bytes);
        if socket::set_number(fd, libc::SOL_SOCKET, SEND_FORCE, wanted).is_err()
            && wanted > grown.bytes
        {
            socket::set_number(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, wanted)?;
            if socket::number(fd, libc::SOL_SOCKET, libc::SO_SNDBUF)? < grown.bytes {
                // Who is not root cannot have what the kernel itself has given.
                socket::set_number(fd, libc::SOL_SOCKET, SO_BUF_LOCK, grown.lock)?;
            }
        }
        Ok(grown)
    }

    /// As it was.
    pub fn shrink(&self, fd: impl AsFd) -> io::Result<()> {
        let (fd, bytes) = (fd.as_fd(), self.bytes / 2);
        socket::set_number(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
        socket::set_number(fd, libc::SOL_SOCKET, SO_BUF_LOCK, self.lock)
    }
}

/// The buffer of a receiver that waits for many bytes grows until it holds as many (tcp_set_rcvlowat): further than who
/// is not root can set it, up to half of net.ipv4.tcp_rmem. No program must be left waiting for them: a process of its
/// own has it wait no longer, also if this one is killed.
fn await_bytes(receiver: BorrowedFd, lock: i32, bytes: i32) -> io::Result<()> {
    let low = socket::number(receiver, libc::SOL_SOCKET, libc::SO_RCVLOWAT)?;
    let unlocked = lock & !socket::RECEIVE_LOCK;
    let set = |name, value| {
        let _ = socket::set_number(receiver, libc::SOL_SOCKET, name, value);
    };
    let apart = Detached::begin(vec![receiver.as_raw_fd()], || {
        set(SO_BUF_LOCK, unlocked);
        set(libc::SO_RCVLOWAT, bytes);
        set(libc::SO_RCVLOWAT, low);
    })?;
    apart.wait();
    Ok(())
}

/// Sends so much through a new connection that the kernel gives it buffers for `bytes`: they grow with use (tcp(7),
/// tcp_wmem and tcp_rmem), further than who is not root can set them.
pub fn warm(sender: impl AsFd, receiver: impl AsFd, bytes: usize) -> io::Result<()> {
    let (sender, receiver) = (sender.as_fd(), receiver.as_fd());
    let part = vec![0; PART];
    let (mut pumped, mut left) = (0, 0);
    let room = |fd, option| socket::number(fd, libc::SOL_SOCKET, option);
    while pumped < WARMING_MAX {
        let both = room(sender, libc::SO_SNDBUF)? / 2 + room(receiver, libc::SO_RCVBUF)? / 2;
        if both as usize > bytes * 2 && pumped > 0 {
            break;
        }
        match socket::send(sender, &part, &[], &[]) {
            Ok(count) => {
                pumped += count;
                left += count;
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) => left -= swallow(receiver, left)?,
        }
    }
    let begun = Instant::now();
    while left > 0 {
        left -= swallow(receiver, left)?;
        if begun.elapsed() > SILENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

fn swallow(receiver: impl AsFd, most: usize) -> io::Result<usize> {
    let mut bytes = vec![0; PART.min(most)];
    calls::events(&receiver, libc::POLLIN, 10)?;
    match receive(receiver, &mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        read => read,
    }
}
