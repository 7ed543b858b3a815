//! A conversation with a peer that ends in time, however slowly the peer talks.
//!
//! A timeout of a socket counts one read: a peer that sends a byte now and then keeps its reader for ever. An
//! [`Exchange`] has a deadline instead, before which all of it must have been said; each wait is for what is left.

use std::{
    io::{self, Read, Write},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};

/// As good as no deadline: ten years.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Reads from a socket and writes to it until a deadline. Whether the socket blocks does not matter.
#[derive(Debug)]
pub struct Exchange<S> {
    socket: S,
    deadline: Instant,
}

impl<S: AsFd> Exchange<S> {
    /// An exchange that takes no longer than this.
    pub fn new(socket: S, time_max: Duration) -> Self {
        let deadline = Instant::now() + time_max.min(FOR_EVER);
        Self { socket, deadline }
    }

    /// Waits until the socket is ready, and no longer than until the deadline.
    fn wait(&self, events: PollFlags) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.socket, events)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Does what does not wait, as soon as it need not.
    fn when_ready(
        &self,
        events: PollFlags,
        mut step: impl FnMut(&S) -> Result<usize, Errno>,
    ) -> io::Result<usize> {
        loop {
            // A peer that always has something to say does not get more time either.
            self.wait(events)?;
            match step(&self.socket) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }
}

impl<S: AsFd> Read for Exchange<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.when_ready(PollFlags::IN, |socket| {
            recv(socket, &mut *into, RecvFlags::DONTWAIT).map(|(count, _)| count)
        })
    }
}

impl<S: AsFd> Write for Exchange<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        self.when_ready(PollFlags::OUT, |socket| send(socket, from, flags))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixStream, thread};

    const SHORT: Duration = Duration::from_millis(50);

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    #[test]
    fn a_peer_that_always_says_something_does_not_get_more_time() {
        let (own, mut peer) = pair();
        let mut exchange = Exchange::new(own, SHORT);
        // It ends when the other end is closed: nobody waits for it longer than the exchange takes.
        let talker = thread::spawn(move || while peer.write_all(&[0]).is_ok() {});
        let mut all = Vec::new();
        let error = exchange.read_to_end(&mut all).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(exchange);
        talker.join().unwrap();
    }

    #[test]
    fn a_peer_that_is_silent_or_does_not_read_is_given_up() {
        let (own, _peer) = pair();
        let error = Exchange::new(&own, SHORT).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let much = vec![0; 64 << 20];
        let error = Exchange::new(&own, SHORT).write_all(&much).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn what_is_said_in_time_comes_through() {
        let (own, peer) = pair();
        own.set_nonblocking(true).unwrap();
        let long = Duration::from_secs(60);
        let (mut one, mut other) = (Exchange::new(own, long), Exchange::new(peer, long));
        let much = vec![7; 4 << 20];
        let expected = much.clone();
        let writer = thread::spawn(move || one.write_all(&much).unwrap());
        let mut all = Vec::new();
        other.read_to_end(&mut all).unwrap();
        writer.join().unwrap();
        assert_eq!(all, expected);
    }
}
