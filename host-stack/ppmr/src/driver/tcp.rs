//! Chunks and messages over two sockets: one keeps what source and target say in order, the other one moves chunks, so that a
//! message never waits behind one.
//!
//! ```text
//! source                                target
//!   | <= messages, behind their length => |
//!   |                                    |
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
//! What must stay true: a chunk is read or written for a peer only as messages have agreed on it; when a thread of a connection
//! ends, all of them do.

use std::{
    io::{self, Read, Write},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_peers::Stream;

use super::{door::Sockets, memory::Memory};
use crate::{
    message::{Messages, encode_framed},
    options::CHUNKS_MAX,
};

const HEAD_BYTES: usize = 1 + 4 + 8 + 4;
const READ_BYTES: usize = 64 << 10;
/// Messages, and chunks, that wait to leave: more than both pools have chunks are never agreed on.
const QUEUE_MAX: usize = 2 * CHUNKS_MAX as usize;

/// The next bytes.
fn part<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Before each chunk, and instead of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub what: What,
    pub slot: u32,
    pub address: u64,
    pub bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
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
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok(Self {
            what,
            slot: u32::from_le_bytes(part(from)?),
            address: u64::from_le_bytes(part(from)?),
            bytes: u32::from_le_bytes(part(from)?),
        })
    }
}

/// What is to leave on the connection of chunks.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    pub head: Head,
    /// The chunk whose first bytes follow.
    pub from: Option<u32>,
}

/// What a connection's threads tell its node.
pub trait Node: Send + Sync + 'static {
    /// What the other side says.
    type Message: DeserializeOwned;

    /// A message; none: what came is no message.
    fn heard(&self, message: Option<Self::Message>);

    /// Whether the other one may read this chunk now, or write it; for [`What::Here`], whether it was asked for.
    fn may(&self, head: &Head) -> Option<u32>;

    /// A chunk has come, or has been written there.
    fn moved(&self, head: &Head);

    /// Nothing comes or leaves any more; the connection is to be let go.
    fn lost(&self);

    /// No thread of the connection is there any more.
    fn closed(&self);
}

/// A connection, for as long as it is wanted: without it, all of its threads end.
#[derive(Debug)]
pub struct Connection {
    messages: SyncSender<Vec<u8>>,
    jobs: SyncSender<Job>,
    sockets: [Stream; 2],
}

/// Held by each thread of a connection.
struct Alive<N: Node>(N);

impl<N: Node> Drop for Alive<N> {
    fn drop(&mut self) {
        self.0.closed();
    }
}

impl Connection {
    /// Runs a connection whose other side is known.
    pub fn run(sockets: Sockets, memory: &Arc<Memory>, node: impl Node) -> io::Result<Self> {
        let Sockets { control, chunks } = sockets;
        let alive = Arc::new(Alive(node));
        let (messages, to_say) = sync_channel(QUEUE_MAX);
        let (jobs, to_do) = sync_channel(QUEUE_MAX);
        let [says, hears] = [control.try_clone()?, control.try_clone()?];
        let [sends, receives] = [chunks.try_clone()?, chunks.try_clone()?];
        let (of_memory, to_memory) = (memory.clone(), memory.clone());
        let answers = jobs.clone();
        start(&alive, move |_| say(&to_say, says));
        start(&alive, move |node| hear(hears, node));
        start(&alive, move |_| send(&to_do, &of_memory, sends));
        start(&alive, move |node| {
            receive(receives, &to_memory, &answers, node)
        });
        Ok(Self {
            messages,
            jobs,
            sockets: [control, chunks],
        })
    }

    /// A message leaves, after those before.
    pub fn say(&self, message: &impl Serialize) {
        if self.messages.try_send(encode_framed(message)).is_err() {
            self.end();
        }
    }

    /// A chunk, or a question for one.
    pub fn send(&self, job: Job) {
        if self.jobs.try_send(job).is_err() {
            self.end();
        }
    }

    /// Its threads end, and say so: it is lost already, or the other side does not take what it has asked for.
    fn end(&self) {
        for socket in &self.sockets {
            // It may be closed by the other side already.
            let _ = socket.shutdown();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.end();
    }
}

fn start<N: Node>(alive: &Arc<Alive<N>>, run: impl FnOnce(&N) -> io::Result<()> + Send + 'static) {
    let alive = alive.clone();
    thread::spawn(move || {
        // Why a connection has ended is nothing that its streams could do something about.
        let _ = run(&alive.0);
        alive.0.lost();
    });
}

fn say(messages: &Receiver<Vec<u8>>, mut to: Stream) -> io::Result<()> {
    while let Ok(message) = messages.recv() {
        to.write_all(&message)?;
    }
    Ok(())
}

fn hear(mut from: Stream, node: &impl Node) -> io::Result<()> {
    let (mut messages, mut buffer) = (Messages::default(), vec![0; READ_BYTES]);
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            count => messages.push(&buffer[..count]),
        }
        loop {
            match messages.next_message() {
                Ok(Some(message)) => node.heard(Some(message)),
                Ok(None) => break,
                Err(_) => {
                    node.heard(None);
                    return Ok(());
                }
            }
        }
    }
}

fn send(jobs: &Receiver<Job>, memory: &Memory, mut to: Stream) -> io::Result<()> {
    while let Ok(Job { head, from }) = jobs.recv() {
        to.write_all(&head.encode())?;
        let chunk = from.and_then(|slot| memory.chunk(slot));
        if let Some(bytes) = chunk
            .as_deref()
            .and_then(|chunk| chunk.get(..head.bytes as usize))
        {
            to.write_all(bytes)?;
        }
    }
    Ok(())
}

fn receive(
    mut from: Stream,
    memory: &Memory,
    answers: &SyncSender<Job>,
    node: &impl Node,
) -> io::Result<()> {
    let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
    loop {
        let head = Head::receive(&mut from)?;
        let slot = node.may(&head).ok_or_else(nonsense)?;
        let answer = |what| Head { what, ..head };
        match head.what {
            What::Read => {
                let job = Job {
                    head: answer(What::Here),
                    from: Some(slot),
                };
                answers.try_send(job).map_err(|_| nonsense())?;
            }
            What::Here | What::Write => {
                let mut chunk = memory.chunk(slot).ok_or_else(nonsense)?;
                let room = chunk.get_mut(..head.bytes as usize);
                from.read_exact(room.ok_or_else(nonsense)?)?;
                drop(chunk);
                node.moved(&head);
                if head.what == What::Write {
                    let job = Job {
                        head: answer(What::There),
                        from: None,
                    };
                    answers.try_send(job).map_err(|_| nonsense())?;
                }
            }
            What::There => node.moved(&head),
        }
    }
}
