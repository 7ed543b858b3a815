//! What a TCP connection has in its sender's queue, looked at where it is (TCP_REPAIR, tcp_peek_sndq): for who has
//! CAP_NET_ADMIN in its network namespace.
//!
//! ```text
//! read <-- receiver's buffer --> <-- on its way, or not sent --> written
//!                      what it has          sender's queue
//! ```
//! What must stay true: both programs stand still; nobody is left with a socket in repair mode, in which recv(2) fails
//! (EPERM). So a process of its own has it in that mode, for as long as it takes to copy the queue, and goes on to the
//! end if this one is killed meanwhile; a program that runs on then, and reads at that very moment, sees the error.

use std::{
    io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsRawFd, BorrowedFd},
    ptr, slice,
};

use super::socket;
use crate::detached::Detached;

/// linux/tcp.h
const TCP_REPAIR: i32 = 19;
const TCP_REPAIR_QUEUE: i32 = 20;
const TCP_QUEUE_SEQ: i32 = 21;
const RECEIVED: i32 = 1;
const SENT: i32 = 2;
/// Without a probe of the window (TCP_REPAIR_OFF_NO_WP).
const OFF: i32 = -1;
/// How often the receiver is looked at again into which something comes at that moment.
const LOOKS: usize = 1000;

/// What the process of its own says.
#[derive(Clone, Copy)]
#[repr(C)]
struct HelperAnswer {
    /// errno; -1: it has said nothing.
    error: i32,
    /// Bytes of the queue.
    count: u32,
    /// Numbers of the first byte behind the queue, and of the first one that is not read.
    written: u32,
    unread: u32,
}

const NOTHING: HelperAnswer = HelperAnswer {
    error: -1,
    count: 0,
    written: 0,
    unread: 0,
};

/// A sender's queue, with numbers that count from the first byte that the receiver's program has not read.
#[derive(Debug)]
pub struct Queue {
    bytes: Vec<u8>,
    at: i32,
}

impl Queue {
    /// What is behind bytes that the receiver has; none: that cannot be.
    pub fn behind(&self, received: usize) -> Option<&[u8]> {
        let skipped = i64::try_from(received).ok()? - i64::from(self.at);
        self.bytes.get(usize::try_from(skipped).ok()?..)
    }
}

/// Looks at the queue of a sender (`has_ended`: it has said that it sends no more).
pub fn peek(sender: BorrowedFd, receiver: BorrowedFd, has_ended: bool) -> io::Result<Queue> {
    let room = usize::try_from(socket::unsent(sender)?).map_err(io::Error::other)?;
    // The kernel copies whole parts of the queue, of whose first one some is acknowledged.
    let map = Shared::map(size_of::<HelperAnswer>() + room + (1 << 20))?;
    // SAFETY: the map has room for a `HelperAnswer`, is aligned to a page, and nobody else has it yet.
    unsafe { map.at.cast::<HelperAnswer>().write(NOTHING) };
    let keeps = vec![sender.as_raw_fd(), receiver.as_raw_fd()];
    let apart = Detached::begin(keeps, || {
        let room = map.bytes - size_of::<HelperAnswer>();
        // SAFETY: the map is `bytes` long, of which a `HelperAnswer` is the beginning and `room` the rest; it is shared with
        // the parent, which does not touch it before this process has ended.
        unsafe {
            let bytes = slice::from_raw_parts_mut(map.at.add(size_of::<HelperAnswer>()), room);
            let said = look(sender, receiver, bytes);
            let said = said.unwrap_or_else(|error| HelperAnswer { error, ..NOTHING });
            map.at.cast::<HelperAnswer>().write(said);
        }
    })?;
    apart.wait();
    // SAFETY: the child has written a `HelperAnswer`, or left the one from before, and has ended.
    let said = unsafe { map.at.cast::<HelperAnswer>().read_volatile() };
    match said.error {
        0 => {}
        -1 => return Err(io::Error::other("who looked at it was killed")),
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    let count = (said.count as usize).min(map.bytes - size_of::<HelperAnswer>());
    // SAFETY: `count` was limited to what the map has behind a `HelperAnswer`, all of which was zero or written by the child,
    // which has ended.
    let bytes = unsafe { slice::from_raw_parts(map.at.add(size_of::<HelperAnswer>()), count) };
    // The end of what is sent has a number as well.
    let first = said
        .written
        .wrapping_sub(u32::from(has_ended))
        .wrapping_sub(said.count);
    Ok(Queue {
        bytes: bytes.to_vec(),
        at: first.wrapping_sub(said.unread) as i32,
    })
}

/// In the process of its own.
fn look(sender: BorrowedFd, receiver: BorrowedFd, bytes: &mut [u8]) -> Result<HelperAnswer, i32> {
    let (count, written) = repairing(sender, SENT, || {
        // SAFETY: recv(2) writes at most as many bytes as it is told, which is the length of the slice.
        let count = unsafe {
            let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
            let room = bytes.len();
            libc::recv(sender.as_raw_fd(), bytes.as_mut_ptr().cast(), room, flags)
        };
        let count = u32::try_from(count).map_err(|_| errno())?;
        Ok((count, get(sender, libc::IPPROTO_TCP, TCP_QUEUE_SEQ)? as u32))
    })?;
    let unread = repairing(receiver, RECEIVED, || {
        for _ in 0..LOOKS {
            let before = readable(receiver)?;
            let next = get(receiver, libc::IPPROTO_TCP, TCP_QUEUE_SEQ)? as u32;
            if readable(receiver)? == before {
                return Ok(next.wrapping_sub(before as u32));
            }
        }
        Err(libc::EBUSY)
    })?;
    Ok(HelperAnswer {
        error: 0,
        count,
        written,
        unread,
    })
}

/// Works while a queue of a socket is under repair.
fn repairing<T>(
    fd: BorrowedFd,
    queue: i32,
    work: impl FnOnce() -> Result<T, i32>,
) -> Result<T, i32> {
    let set = |level, name, value| {
        socket::set_number(fd, level, name, value)
            .map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    };
    let reuse = get(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    set(libc::IPPROTO_TCP, TCP_REPAIR, 1)?;
    let done = set(libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, queue).and_then(|()| work());
    set(libc::IPPROTO_TCP, TCP_REPAIR, OFF)?;
    // The end of repair sets it to 0.
    set(libc::SOL_SOCKET, libc::SO_REUSEADDR, i32::from(reuse != 0))?;
    done
}

/// getsockopt(2), without memory of its own.
fn get(fd: BorrowedFd, level: i32, name: i32) -> Result<i32, i32> {
    let mut value = 0i32;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most as many bytes as `length` says, which are those of an int.
    let got = unsafe {
        let value = (&raw mut value).cast();
        libc::getsockopt(fd.as_raw_fd(), level, name, value, &raw mut length)
    };
    if got == 0 { Ok(value) } else { Err(errno()) }
}

fn readable(fd: BorrowedFd) -> Result<i32, i32> {
    let mut count = MaybeUninit::<i32>::uninit();
    // SAFETY: FIONREAD writes an int, or the call fails.
    unsafe {
        match libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, count.as_mut_ptr()) {
            0 => Ok(count.assume_init()),
            _ => Err(errno()),
        }
    }
}

fn errno() -> i32 {
    io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// Memory that is shared with a child.
struct Shared {
    at: *mut u8,
    bytes: usize,
}

impl Shared {
    fn map(bytes: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at, so no memory of ours changes.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        match at {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            at => Ok(Self {
                at: at.cast(),
                bytes,
            }),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `at` and `bytes` are those of the mapping that `map` made, and no slice of it outlives this value.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{ErrorKind, Read, Write},
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
    };

    use super::*;
    use crate::calls;

    fn written(end: &mut TcpStream) -> Vec<u8> {
        end.set_nonblocking(true).unwrap();
        let mut sent = Vec::new();
        loop {
            let part: Vec<u8> = (sent.len() as u32..)
                .take(1000)
                .map(|n| (n % 251) as u8)
                .collect();
            match end.write(&part) {
                Ok(count) => sent.extend(&part[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return sent,
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    #[cfg_attr(not(is_root), ignore = "only root may look into a socket's queues")]
    fn a_queue_is_seen_and_stays() {
        for has_ended in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut other, _) = listener.accept().unwrap();
            let sent = written(&mut one);
            if has_ended {
                one.shutdown(std::net::Shutdown::Write).unwrap();
            }
            let mut all = 0;
            for read in [0, 1, 30_000] {
                let mut bytes = vec![0; read];
                other.read_exact(&mut bytes).unwrap();
                let before = socket::number(&one, libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap();
                let queue = peek(one.as_fd(), other.as_fd(), has_ended).unwrap();
                let mut found = vec![0; calls::readable(&other).unwrap() as usize];
                let count = other.peek(&mut found).unwrap();
                assert_eq!(count, found.len());
                found.extend(queue.behind(count).unwrap());
                all += read;
                assert!(found == sent[all..], "{} {}", found.len(), sent.len() - all);
                let after = socket::number(&one, libc::SOL_SOCKET, libc::SO_REUSEADDR).unwrap();
                assert_eq!(before, after);
            }
            let mut rest = Vec::new();
            drop(one);
            other.read_to_end(&mut rest).unwrap();
            assert!(rest == sent[all..]);
        }
    }
}
