//! Messages that are to leave over a control socket.
//!
//! Whoever has something said also sends it, without the lock of its node: a thread that does nothing else would have to be
//! woken for every message. What the socket does not take at once is left to such a thread, so nobody else waits for a peer.
//!
//! What must stay true: messages leave in the order in which they were left; what was left leaves, whoever was sending
//! meanwhile.

use std::{
    io::{self, Write},
    sync::{Arc, Condvar, Mutex, PoisonError, TryLockError},
    time::Duration,
};

use rustix::{io::Errno, net::SendFlags};
use snaprig_peers::Stream;

use super::lock;

/// What may wait: more than messages about all chunks that are agreed on.
const BYTES_MAX: usize = 8 << 20;

/// Messages that wait, and who sends them.
#[derive(Debug)]
pub struct Outbox {
    waiting: Mutex<Waiting>,
    /// Whoever has this sends.
    sender: Mutex<Sender>,
    /// It is stuck, or over.
    stuck: Condvar,
    /// All has left, for somebody who waits for that.
    empty: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// Some are being sent.
    is_sending: bool,
    /// The socket takes no more at once: the rest is for the thread that may wait.
    is_stuck: bool,
    is_over: bool,
    is_awaited: bool,
}

impl Waiting {
    /// Whether somebody has to send, who does not wait.
    fn is_due(&self) -> bool {
        !self.bytes.is_empty() && !self.is_stuck && !self.is_over
    }

    fn is_empty(&self) -> bool {
        self.is_over || (self.bytes.is_empty() && !self.is_sending)
    }
}

#[derive(Debug)]
struct Sender {
    socket: Stream,
    bytes: Vec<u8>,
}

impl Outbox {
    /// Of this socket.
    pub fn new(socket: Stream) -> Arc<Self> {
        Arc::new(Self {
            waiting: Mutex::default(),
            sender: Mutex::new(Sender {
                socket,
                bytes: Vec::new(),
            }),
            stuck: Condvar::new(),
            empty: Condvar::new(),
        })
    }

    /// Leaves a message. It is sent by [`Self::flush`]. Whether it can be: not if there are too many, or it is over.
    pub fn leave(&self, message: &[u8]) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.is_over || waiting.bytes.len() + message.len() > BYTES_MAX {
            return false;
        }
        waiting.bytes.extend_from_slice(message);
        true
    }

    /// Sends what the socket takes at once. What others leave meanwhile is sent by whoever is sending.
    pub fn flush(&self) {
        loop {
            {
                let mut sender = match self.sender.try_lock() {
                    Ok(sender) => sender,
                    Err(TryLockError::Poisoned(sender)) => sender.into_inner(),
                    Err(TryLockError::WouldBlock) => return,
                };
                if self.take(&mut sender, false) {
                    let sent = send_at_once(&mut sender);
                    self.sent(&mut sender, &sent);
                }
            }
            // Whoever has left something since found somebody who was sending.
            if !lock(&self.waiting).is_due() {
                return;
            }
        }
    }

    /// Sends what is stuck, until it is over.
    pub fn run(&self) -> io::Result<()> {
        loop {
            {
                let waiting = lock(&self.waiting);
                let is_idle = |waiting: &mut Waiting| !waiting.is_stuck && !waiting.is_over;
                let waited = self.stuck.wait_while(waiting, is_idle);
                let waiting = waited.unwrap_or_else(PoisonError::into_inner);
                if waiting.is_over {
                    return Ok(());
                }
            }
            {
                let mut sender = lock(&self.sender);
                if self.take(&mut sender, true) {
                    let Sender { socket, bytes } = &mut *sender;
                    let sent = socket.write_all(bytes);
                    bytes.clear();
                    self.sent(&mut sender, &sent);
                }
            }
            self.flush();
        }
    }

    /// Has the sender have what waits; whether that is anything. The thread of [`Self::run`] takes what is stuck, and all
    /// others what is not.
    fn take(&self, sender: &mut Sender, is_stuck: bool) -> bool {
        let mut waiting = lock(&self.waiting);
        if waiting.is_over || waiting.is_stuck != is_stuck {
            return false;
        }
        if waiting.bytes.is_empty() {
            waiting.is_stuck = false;
            return false;
        }
        std::mem::swap(&mut waiting.bytes, &mut sender.bytes);
        waiting.is_sending = true;
        true
    }

    /// Some of it was sent, and the rest is to be.
    fn sent(&self, sender: &mut Sender, result: &io::Result<()>) {
        let mut waiting = lock(&self.waiting);
        waiting.is_sending = false;
        waiting.is_over |= result.is_err();
        if !sender.bytes.is_empty() {
            waiting.is_stuck = true;
            // In front of what was left meanwhile.
            sender.bytes.append(&mut waiting.bytes);
            std::mem::swap(&mut waiting.bytes, &mut sender.bytes);
        }
        if waiting.is_stuck || waiting.is_over {
            self.stuck.notify_all();
        }
        if waiting.is_awaited && waiting.is_empty() {
            self.empty.notify_all();
        }
    }

    /// Waits until all has left, or nothing does any more, for no longer than this.
    pub fn wait(&self, max: Duration) {
        self.flush();
        let mut waiting = lock(&self.waiting);
        waiting.is_awaited = true;
        let is_left = |waiting: &mut Waiting| !waiting.is_empty();
        // How it has ended does not matter.
        drop(self.empty.wait_timeout_while(waiting, max, is_left));
    }

    /// Nothing leaves any more.
    pub fn end(&self) {
        lock(&self.waiting).is_over = true;
        self.stuck.notify_all();
        self.empty.notify_all();
    }
}

/// Sends from the front, and keeps what the socket does not take.
fn send_at_once(sender: &mut Sender) -> io::Result<()> {
    let mut count = 0;
    let result = loop {
        let left = &sender.bytes[count..];
        if left.is_empty() {
            break Ok(());
        }
        match rustix::net::send(
            &sender.socket,
            left,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(sent) => count += sent,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => break Ok(()),
            Err(error) => break Err(error.into()),
        }
    };
    sender.bytes.drain(..count);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Read, os::unix::net::UnixStream, thread};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn what_many_leave_leaves_in_order_and_whole() {
        let (own, mut peer) = UnixStream::pair().unwrap();
        let outbox = Outbox::new(Stream::Unix(own));
        let runs = outbox.clone();
        let thread = thread::spawn(move || runs.run());
        // More than a socket takes at once.
        let (threads, each) = (4u8, 20_000u32);
        let leaves = (0..threads).map(|of| {
            let outbox = outbox.clone();
            thread::spawn(move || {
                for number in 0..each {
                    let message = [&[of][..], &number.to_le_bytes()].concat();
                    assert!(outbox.leave(&message));
                    outbox.flush();
                }
            })
        });
        let leaves: Vec<_> = leaves.collect();
        let mut next = [0; 4];
        for _ in 0..u32::from(threads) * each {
            let mut message = [0; 5];
            peer.read_exact(&mut message).unwrap();
            let [of, number @ ..] = message;
            let next = &mut next[usize::from(of)];
            assert_eq!(u32::from_le_bytes(number), *next);
            *next += 1;
        }
        leaves.into_iter().for_each(|thread| thread.join().unwrap());
        outbox.wait(LONG);
        outbox.end();
        thread.join().unwrap().unwrap();
        assert!(!outbox.leave(&[1]));
    }

    #[test]
    fn whose_peer_is_gone_is_over() {
        let (own, peer) = UnixStream::pair().unwrap();
        let outbox = Outbox::new(Stream::Unix(own));
        drop(peer);
        assert!(outbox.leave(&[1]));
        outbox.wait(LONG);
        assert!(!outbox.leave(&[1]));
        outbox.run().unwrap();
    }

    #[test]
    fn there_is_never_more_than_the_most() {
        let (own, _peer) = UnixStream::pair().unwrap();
        let outbox = Outbox::new(Stream::Unix(own));
        assert!(outbox.leave(&vec![0; BYTES_MAX]) && !outbox.leave(&[0]));
    }
}
