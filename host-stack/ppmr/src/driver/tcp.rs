//! Chunks over a socket of their own, where there is no RDMA: a message never waits behind one.
//!
//! ```text
//! source                                target
//!   | <- Read { slot, address, bytes } - |   the target pulls
//!   | -- Here { slot, bytes } bytes ---> |
//!   |                                    |
//!   | -- Write { slot, address, bytes }  |   the source puts
//!   |    bytes ------------------------> |
//!   | <- There { slot } ---------------- |
//! ```
//!
//! A slot is the number of whoever asks; an address is in the pool of the other one, which checks it.
//!
//! What must stay true: a chunk is read or written for a peer only as messages have agreed on it, and once.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read},
    os::fd::AsFd,
    sync::{Arc, Mutex},
};

use rustix::{io::Errno, net::SendFlags};
use snaprig_peers::Stream;
use vm_memory::{ReadVolatile, VolatileMemoryError, WriteVolatile};

use super::{
    connection::{Alive, Node, Piece, start},
    lock,
    memory::Memory,
    queue::{Queue, Taker, queue},
};
use crate::options::CHUNKS_MAX;

const HEAD_BYTES: usize = 1 + 4 + 8 + 4;
/// Chunks that wait to leave: more than both pools have are never agreed on.
const JOBS_MAX: usize = 2 * CHUNKS_MAX as usize;

/// Before each chunk, and instead of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    what: What,
    slot: u32,
    address: u64,
    bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read,
    Here,
    Write,
    There,
}

impl Head {
    fn encode(self) -> Vec<u8> {
        let Self {
            what,
            slot,
            address,
            bytes,
        } = self;
        let (slot, bytes) = (slot.to_le_bytes(), bytes.to_le_bytes());
        [&[what as u8][..], &slot, &address.to_le_bytes(), &bytes].concat()
    }

    fn receive(from: &mut impl Read) -> io::Result<Self> {
        // All of it by one call.
        let bytes: [u8; HEAD_BYTES] = part(from)?;
        let from = &mut &bytes[..];
        let what = match part(from)? {
            [0] => What::Read,
            [1] => What::Here,
            [2] => What::Write,
            [3] => What::There,
            _ => return Err(nonsense()),
        };
        Ok(Self {
            what,
            slot: u32::from_le_bytes(part(from)?),
            address: u64::from_le_bytes(part(from)?),
            bytes: u32::from_le_bytes(part(from)?),
        })
    }
}

/// The next bytes.
fn part<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// What is to leave.
#[derive(Clone, Copy, Debug)]
struct Job {
    head: Head,
    /// Where the bytes are that follow.
    from: Option<u64>,
}

/// What the other side may say about chunks.
#[derive(Debug, Default)]
struct Agreed {
    /// Chunks that are being pulled, and how many bytes each has.
    pulls: BTreeMap<u32, u32>,
    /// Those that are being put.
    puts: BTreeSet<u32>,
    /// Those into which the other side may put something.
    expected: BTreeSet<u32>,
    /// Whether it may read all others: what is in a source's pool is on its way to its target.
    is_readable: bool,
    /// What it may read beside chunks: where that begins, and how many bytes it has.
    lent: BTreeMap<u64, u32>,
}

impl Agreed {
    /// The chunk that a head is about, if it makes sense now. It does so once.
    fn take(&mut self, head: &Head, memory: &Memory) -> Option<u32> {
        let slot = head.slot;
        let is_agreed = match head.what {
            What::Read => {
                let is_lent = self.lent.get(&head.address) == Some(&head.bytes);
                let is_there = is_lent || memory.slot_at(head.address, head.bytes).is_some();
                return (self.is_readable && is_there).then_some(slot);
            }
            What::Write => {
                let slot = memory.slot_at(head.address, head.bytes)?;
                return self.expected.remove(&slot).then_some(slot);
            }
            What::Here => self.pulls.remove(&slot) == Some(head.bytes),
            What::There => self.puts.remove(&slot),
        };
        is_agreed.then_some(slot)
    }
}

/// The chunks of a connection.
#[derive(Debug)]
pub struct Chunks {
    jobs: Queue<Job>,
    agreed: Arc<Mutex<Agreed>>,
    memory: Arc<Memory>,
    socket: Stream,
}

/// Its threads, which are to start.
#[derive(Debug)]
pub struct Threads {
    to_do: Taker<Job>,
    answers: Queue<Job>,
    sockets: [Stream; 2],
    agreed: Arc<Mutex<Agreed>>,
    memory: Arc<Memory>,
}

impl Chunks {
    /// Over this socket. Whether the other side may read chunks.
    pub fn new(
        socket: Stream,
        memory: &Arc<Memory>,
        is_readable: bool,
    ) -> io::Result<(Self, Threads)> {
        let (jobs, to_do) = queue(JOBS_MAX);
        let agreed = Arc::new(Mutex::new(Agreed {
            is_readable,
            ..Agreed::default()
        }));
        let threads = Threads {
            to_do,
            answers: jobs.clone(),
            sockets: [socket.try_clone()?, socket.try_clone()?],
            agreed: agreed.clone(),
            memory: memory.clone(),
        };
        let chunks = Self {
            jobs,
            agreed,
            memory: memory.clone(),
            socket,
        };
        Ok((chunks, threads))
    }

    /// Whether a chunk can be asked for.
    pub fn pull(&self, piece: Piece) -> bool {
        lock(&self.agreed).pulls.insert(piece.slot, piece.bytes);
        self.ask(What::Read, piece, None)
    }

    /// Whether a chunk can be sent.
    pub fn put(&self, piece: Piece) -> bool {
        lock(&self.agreed).puts.insert(piece.slot);
        let from = piece.lent.unwrap_or(self.memory.address(piece.slot));
        self.ask(What::Write, piece, Some(from))
    }

    fn ask(&self, what: What, piece: Piece, from: Option<u64>) -> bool {
        let Piece {
            slot,
            address,
            bytes,
            ..
        } = piece;
        let head = Head {
            what,
            slot,
            address,
            bytes,
        };
        self.jobs.leave(Job { head, from })
    }

    /// This may be read, or may not any more.
    pub fn lend(&self, address: u64, bytes: Option<u32>) {
        let lent = &mut lock(&self.agreed).lent;
        match bytes {
            Some(bytes) => lent.insert(address, bytes),
            None => lent.remove(&address),
        };
    }

    /// A chunk may be put.
    pub fn expect(&self, slot: u32) {
        lock(&self.agreed).expected.insert(slot);
    }

    /// Its threads end.
    pub fn end(&self) {
        // It may be closed by the other side already.
        let _ = self.socket.shutdown();
    }
}

impl Threads {
    /// One that sends, and one that receives.
    pub fn start<N: Node>(self, alive: &Arc<Alive<N>>) {
        let Self {
            to_do,
            answers,
            sockets: [sends, receives],
            agreed,
            memory,
        } = self;
        let of_memory = memory.clone();
        start(alive, move |_| send(to_do, &of_memory, sends));
        start(alive, move |node| {
            receive(receives, &memory, &agreed, &answers, node)
        });
    }
}

fn send(mut jobs: Taker<Job>, memory: &Memory, to: Stream) -> io::Result<()> {
    while let Some(Job { head, from }) = jobs.take() {
        let bytes = from.and_then(|address| memory.at(address, head.bytes));
        send_head(&to, head, bytes.is_some())?;
        if let Some(bytes) = bytes {
            to.as_fd().write_all_volatile(&bytes).map_err(failed)?;
        }
    }
    Ok(())
}

/// Sends a head; one that a chunk follows leaves in a packet with its first bytes.
fn send_head(to: &Stream, head: Head, is_followed: bool) -> io::Result<()> {
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::MORE, is_followed);
    let bytes = head.encode();
    let mut left = &bytes[..];
    while !left.is_empty() {
        match rustix::net::send(to, left, flags) {
            Ok(count) => left = &left[count..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn receive(
    mut from: Stream,
    memory: &Memory,
    agreed: &Mutex<Agreed>,
    answers: &Queue<Job>,
    node: &impl Node,
) -> io::Result<()> {
    let answer = |head, from| match answers.leave(Job { head, from }) {
        true => Ok(()),
        false => Err(nonsense()),
    };
    loop {
        let head = Head::receive(&mut from)?;
        let slot = lock(agreed).take(&head, memory).ok_or_else(nonsense)?;
        if let What::Here | What::Write = head.what {
            let mut room = memory.part(slot, 0, head.bytes).ok_or_else(nonsense)?;
            from.as_fd()
                .read_exact_volatile(&mut room)
                .map_err(failed)?;
        }
        let what = match head.what {
            What::Read => What::Here,
            What::Write => What::There,
            What::Here | What::There => {
                node.moved(slot, true);
                continue;
            }
        };
        let from = (what == What::Here).then_some(head.address);
        answer(Head { what, ..head }, from)?;
    }
}

fn failed(error: VolatileMemoryError) -> io::Error {
    match error {
        VolatileMemoryError::IOError(error) => error,
        other => io::Error::other(other),
    }
}
