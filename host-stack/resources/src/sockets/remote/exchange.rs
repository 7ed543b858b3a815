//! Bytes that the supervisors of two trees hand each other, both at once, so that neither waits for the other to read.
//!
//! ```text
//! this one --- count, bytes ---> the other one
//!          <-- count, bytes ----
//! ```

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
    thread,
    time::{Duration, Instant},
};

use crate::{calls, sockets::socket};

/// After so long without a byte the other one is taken for dead.
const SILENCE: Duration = Duration::from_secs(10);
/// More bytes than this are in no connection.
const BYTES_MAX: usize = 256 << 20;
/// Bytes that are read or sent at once.
const PART: usize = 256 << 10;
/// How long a buffer is filled before a part of it is read.
const FILLING: Duration = Duration::from_micros(200);
/// One wait for the other one.
const WAIT_MS: i32 = 100;

/// Sends bytes that the other one waits for, and returns those that it sends; no byte behind them is read.
pub fn swap(fd: impl AsFd, bytes: &[u8]) -> io::Result<Vec<u8>> {
    let fd = fd.as_fd();
    let count = (bytes.len() as u64).to_le_bytes();
    let theirs = both(fd, &count, count.len())?;
    let theirs = theirs.try_into().map_or(u64::MAX, u64::from_le_bytes);
    match usize::try_from(theirs) {
        Ok(theirs) if theirs <= BYTES_MAX => both(fd, bytes, theirs),
        _ => Err(io::Error::other("the other end says what makes no sense")),
    }
}

/// Sends as many zeros as the other one waits for, and reads as many as it sends: buffers grow with use (tcp(7),
/// tcp_wmem and tcp_rmem), the receiver's only while it reads less than comes.
pub fn pump(fd: impl AsFd, send: usize, receive: usize) -> io::Result<()> {
    let fd = fd.as_fd();
    let zeros = vec![0; PART.min(send)];
    let (mut sent, mut received) = (0, 0);
    let mut last = Instant::now();
    let mut part = vec![0; PART];
    while sent < send || received < receive {
        let before = (sent, received);
        if sent < send {
            sent += try_send(fd, &zeros[..zeros.len().min(send - sent)])?;
        }
        if received < receive {
            let most = PART.min(receive - received);
            thread::sleep(FILLING);
            received += try_receive(fd, &mut part[..most])?;
        }
        wait(
            fd,
            (sent < send, received < receive),
            before == (sent, received),
            &mut last,
        )?;
    }
    Ok(())
}

fn both(fd: impl AsFd, bytes: &[u8], count: usize) -> io::Result<Vec<u8>> {
    let fd = fd.as_fd();
    let (mut sent, mut received) = (0, Vec::new());
    let mut last = Instant::now();
    let mut part = vec![0; PART.min(count)];
    while sent < bytes.len() || received.len() < count {
        let before = (sent, received.len());
        if sent < bytes.len() {
            sent += try_send(fd, &bytes[sent..bytes.len().min(sent + PART)])?;
        }
        if received.len() < count {
            let most = PART.min(count - received.len());
            let read = try_receive(fd, &mut part[..most])?;
            received.extend_from_slice(&part[..read]);
        }
        let left = (sent < bytes.len(), received.len() < count);
        wait(fd, left, before == (sent, received.len()), &mut last)?;
    }
    Ok(received)
}

/// If nothing has moved, waits until something can.
fn wait(
    fd: impl AsFd,
    (sends, receives): (bool, bool),
    is_still: bool,
    last: &mut Instant,
) -> io::Result<()> {
    if !is_still {
        *last = Instant::now();
        return Ok(());
    }
    if last.elapsed() > SILENCE {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let wanted = if sends { libc::POLLOUT } else { 0 } | if receives { libc::POLLIN } else { 0 };
    calls::events(fd, wanted, WAIT_MS)?;
    Ok(())
}

fn try_send(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    none_yet(socket::send(fd, bytes, &[], &[]))
}

fn try_receive(fd: impl AsFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: recv(2) writes at most as many bytes as it is told, which is the length of the slice.
    let count = unsafe {
        let fd = fd.as_fd().as_raw_fd();
        libc::recv(
            fd,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            libc::MSG_DONTWAIT,
        )
    };
    match usize::try_from(count) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(count) => Ok(count),
        Err(_) => none_yet(Err(io::Error::last_os_error())),
    }
}

fn none_yet(moved: io::Result<usize>) -> io::Result<usize> {
    match moved {
        Err(error)
            if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) =>
        {
            Ok(0)
        }
        moved => moved,
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn both_get_what_the_other_has_and_no_more() {
        let (one, other) = socket::pair(libc::AF_UNIX, libc::SOCK_STREAM).unwrap();
        let large = vec![7u8; 3 << 20];
        let there = large.clone();
        let thread = thread::spawn(move || {
            let got = swap(&other, &there).unwrap();
            pump(&other, 5 << 20, 0).unwrap();
            socket::send(&other, b"rest", &[], &[]).unwrap();
            got
        });
        assert_eq!(swap(&one, b"little").unwrap(), large);
        pump(&one, 0, 5 << 20).unwrap();
        assert_eq!(both(&one, &[], 4).unwrap(), b"rest");
        assert_eq!(thread.join().unwrap(), b"little");
    }

    #[test]
    fn a_peer_that_is_gone_is_an_error() {
        let (one, other) = socket::pair(libc::AF_UNIX, libc::SOCK_STREAM).unwrap();
        drop(other);
        assert!(swap(&one, b"little").is_err());
    }
}
