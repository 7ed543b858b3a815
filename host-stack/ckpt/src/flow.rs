//! What is on its way through a TCP connection: taken out, and put back. Of connections between trees, each tree has one
//! end, and goes these steps by itself (`dump/abroad.rs`, `stuck.rs`).
//!
//! ```text
//! sender: push (nothing is held back) --> receiver: peek, when all has arrived
//!                                                   take, when it is more than the receiver's buffer holds
//! go on:  sender: put (what was taken, before the program sends anything else)
//! ```
//! What must stay true: both programs stand still; what was taken is put back, whatever happens in between.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    thread,
    time::{Duration, Instant},
};

use crate::socket::{self, SO_BUF_LOCK};

/// How long it takes at most until what can arrive has arrived: acknowledgements that the receiver had put off are
/// asked for at once.
pub const ARRIVAL: Duration = Duration::from_millis(20);
/// After so long without a byte a connection does not work.
const SILENCE: Duration = Duration::from_secs(10);
/// A look at a connection that moves.
const LOOK: Duration = Duration::from_micros(200);
/// Bytes that are read or sent at once.
const PART: usize = 256 << 10;
/// As much is sent through a new connection, so that its buffers grow.
const WARMING_MAX: usize = 64 << 20;
/// SO_SNDBUFFORCE, SO_RCVBUFFORCE (socket(7)): for who may.
const SEND_FORCE: i32 = 32;
const RECEIVE_FORCE: i32 = 33;

/// Sends what is held back (TCP_CORK, Nagle's algorithm).
pub fn push(sender: impl AsFd) -> io::Result<()> {
    let sender = sender.as_fd();
    let before = socket::number(sender, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    socket::set_number(sender, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    socket::set_number(sender, libc::IPPROTO_TCP, libc::TCP_NODELAY, before)
}

/// Has the receiver acknowledge what it has (tcp(7)): an even number, so that it goes on as before.
pub fn acknowledge(receiver: impl AsFd) {
    // Of an end that is no longer connected nobody waits for it.
    let _ = socket::set_number(receiver, libc::IPPROTO_TCP, libc::TCP_QUICKACK, 2);
}

/// Whether all that was sent has arrived; waits as long as that can take.
pub fn arrives(sender: impl AsFd, receiver: impl AsFd) -> io::Result<bool> {
    push(&sender)?;
    let begun = Instant::now();
    loop {
        acknowledge(&receiver);
        if socket::unsent(&sender)? == 0 {
            return Ok(true);
        }
        if begun.elapsed() > ARRIVAL {
            return Ok(false);
        }
        thread::sleep(LOOK);
    }
}

/// What has arrived, which stays there.
pub fn peek(receiver: impl AsFd) -> io::Result<Vec<u8>> {
    let receiver = receiver.as_fd();
    let count = socket::readable(receiver)? as usize;
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

/// Takes everything until `is_all` says that the sender has no more; what has come is in `bytes`, also if this fails.
pub fn take(
    receiver: impl AsFd,
    bytes: &mut Vec<u8>,
    mut is_all: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let receiver = receiver.as_fd();
    let mut last = Instant::now();
    let mut part = vec![0; PART];
    loop {
        acknowledge(receiver);
        // Before it is read: what has been acknowledged has arrived.
        let all = is_all()?;
        match receive(receiver, &mut part, 0) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                bytes.extend_from_slice(&part[..count]);
                last = Instant::now();
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if all => return Ok(()),
            Err(_) if last.elapsed() > SILENCE => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => thread::sleep(LOOK),
        }
    }
}

fn receive(fd: impl AsFd, bytes: &mut [u8], flags: i32) -> io::Result<usize> {
    // SAFETY: the bytes are as many as it says.
    let count = unsafe {
        let fd = fd.as_fd().as_raw_fd();
        let flags = flags | libc::MSG_DONTWAIT;
        libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags)
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// Takes what is there, and more than a part of it later; how much.
pub fn take_some(receiver: impl AsFd, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let before = bytes.len();
    bytes.resize(before + PART, 0);
    let read = receive(receiver, &mut bytes[before..], 0);
    let count = match &read {
        Ok(count) => *count,
        Err(_) => 0,
    };
    bytes.truncate(before + count);
    match read {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        read => read,
    }
}

/// Puts bytes where they were: sent again, and in the buffers of the two ends, as far as they are at hand, which grow if
/// they must.
pub fn put(sender: impl AsFd, receiver: Option<BorrowedFd<'_>>, bytes: &[u8]) -> io::Result<()> {
    let sender = sender.as_fd();
    let mut sent = 0;
    let mut grown: Option<(Grown, Option<Grown>)> = None;
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
                let receiving = receiver.map(|end| Grown::receiving(end, bytes.len()));
                grown = Some((Grown::sending(sender, bytes.len())?, receiving.transpose()?));
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
    if let Some((sending, receiving)) = grown {
        sending.shrink(sender)?;
        if let (Some(receiving), Some(receiver)) = (receiving, receiver) {
            receiving.shrink(receiver)?;
        }
    }
    Ok(())
}

/// A buffer that has been made larger for a while.
pub struct Grown {
    option: i32,
    bytes: i32,
    lock: i32,
}

impl Grown {
    /// Room for what is to be sent.
    pub fn sending(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        Self::grow(fd, bytes, libc::SO_SNDBUF, SEND_FORCE)
    }

    /// Room for what is to come.
    pub fn receiving(fd: impl AsFd, bytes: usize) -> io::Result<Self> {
        Self::grow(fd, bytes, libc::SO_RCVBUF, RECEIVE_FORCE)
    }

    fn grow(fd: impl AsFd, bytes: usize, option: i32, force: i32) -> io::Result<Self> {
        let fd = fd.as_fd();
        let grown = Self {
            option,
            bytes: socket::number(fd, libc::SOL_SOCKET, option)?,
            lock: socket::number(fd, libc::SOL_SOCKET, SO_BUF_LOCK)?,
        };
        // The kernel doubles it, for what it needs itself.
        let wanted = i32::try_from(bytes)
            .unwrap_or(i32::MAX / 4)
            .min(i32::MAX / 4)
            + grown.bytes;
        if socket::set_number(fd, libc::SOL_SOCKET, force, wanted).is_err() && wanted > grown.bytes
        {
            socket::set_number(fd, libc::SOL_SOCKET, option, wanted)?;
            if socket::number(fd, libc::SOL_SOCKET, option)? < grown.bytes {
                // Who is not root cannot have what the kernel itself has given.
                socket::set_number(fd, libc::SOL_SOCKET, SO_BUF_LOCK, grown.lock)?;
            }
        }
        Ok(grown)
    }

    /// As it was.
    pub fn shrink(&self, fd: impl AsFd) -> io::Result<()> {
        let fd = fd.as_fd();
        socket::set_number(fd, libc::SOL_SOCKET, self.option, self.bytes / 2)?;
        socket::set_number(fd, libc::SOL_SOCKET, SO_BUF_LOCK, self.lock)
    }
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
    socket::events(&receiver, libc::POLLIN, 10)?;
    match receive(receiver, &mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        read => read,
    }
}
