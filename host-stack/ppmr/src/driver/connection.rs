//! A connection: messages over its control socket, in their order, and chunks, whichever way was agreed on.
//!
//! What must stay true: when a thread of a connection ends, all of them do; it is [`Node::closed`] when the last one has.

use std::{
    io::{self, Read},
    sync::{Arc, Condvar, Mutex},
    thread,
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use snaprig_peers::Stream;

use super::{lock, memory::Memory, outbox::Outbox, rdma, tcp, transport::Transport};
use crate::message::{Messages, encode_framed};

const READ_BYTES: usize = 64 << 10;
/// How long the other side may take to let in what was said to it last.
const LINGER_MAX: Duration = Duration::from_millis(200);

/// How long what the other side has said may take longer to come than the end of its chunks.
const HEAR_MAX: Duration = Duration::from_secs(1);

/// What a connection's threads tell its node.
pub trait Node: Send + Sync + 'static {
    /// What the other side says.
    type Message: DeserializeOwned;

    /// A message; none: what came is no message.
    fn heard(&self, message: Option<Self::Message>);

    /// A chunk of this node that was to be pulled or put has been, or cannot be.
    fn moved(&self, slot: u32, is_done: bool);

    /// Nothing comes or leaves any more; the connection is to be let go.
    fn lost(&self);

    /// No thread of the connection is there any more, and nothing reaches the pool over it.
    fn closed(&self);
}

/// A chunk of this node, and where its bytes are, or are to be, at the other one.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub slot: u32,
    /// Where its bytes are, if they are lent.
    pub lent: Option<u64>,
    /// In the other one's pool.
    pub address: u64,
    pub bytes: u32,
}

/// A connection whose other side is known, and with which it was agreed how chunks go.
#[derive(Debug)]
pub struct Link {
    pub control: Stream,
    pub way: Way,
}

/// How chunks go.
#[derive(Debug)]
pub enum Way {
    /// Over a socket of their own.
    Socket(Stream),
    /// By RDMA.
    Rdma(rdma::Pair),
}

/// A connection, for as long as it is wanted: without it, all of its threads end.
#[derive(Debug)]
pub struct Connection {
    messages: Arc<Outbox>,
    control: Stream,
    hearing: Arc<Hearing>,
    chunks: Chunks,
}

/// Whether messages still come.
#[derive(Debug, Default)]
struct Hearing {
    is_over: Mutex<bool>,
    over: Condvar,
}

/// Held by the thread that hears.
struct Hears(Arc<Hearing>);

impl Drop for Hears {
    fn drop(&mut self) {
        *lock(&self.0.is_over) = true;
        self.0.over.notify_all();
    }
}

#[derive(Debug)]
enum Chunks {
    Socket(tcp::Chunks),
    Rdma(rdma::Chunks),
}

/// Held by each thread of a connection.
pub struct Alive<N: Node>(N);

impl<N: Node> Drop for Alive<N> {
    fn drop(&mut self) {
        self.0.closed();
    }
}

/// A thread, which ends the others with itself, even by a panic.
struct Ends<N: Node>(Arc<Alive<N>>);

impl<N: Node> Drop for Ends<N> {
    fn drop(&mut self) {
        self.0.0.lost();
    }
}

impl Connection {
    /// Runs a connection. Whether its chunks are there to be read by the other side, or to be written where it is told to
    /// ([`Self::expect`]).
    pub fn run(
        link: Link,
        memory: &Arc<Memory>,
        is_readable: bool,
        node: impl Node,
    ) -> io::Result<Self> {
        let Link { control, way } = link;
        let messages = Outbox::new(control.try_clone()?);
        let hears = control.try_clone()?;
        // What fails has failed by then: its end is told by threads alone.
        let alive;
        let chunks = match way {
            Way::Socket(socket) => {
                let (chunks, run) = tcp::Chunks::new(socket, memory, is_readable)?;
                alive = Arc::new(Alive(node));
                run.start(&alive);
                Chunks::Socket(chunks)
            }
            Way::Rdma(pair) => {
                let (chunks, run) = rdma::Chunks::new(pair)?;
                alive = Arc::new(Alive(node));
                run.start(&alive);
                Chunks::Rdma(chunks)
            }
        };
        let says = messages.clone();
        start(&alive, move |_| says.run());
        let hearing = Arc::<Hearing>::default();
        let until_over = Hears(hearing.clone());
        start(&alive, move |node| {
            let _until_over = until_over;
            hear(hears, node)
        });
        Ok(Self {
            messages,
            control,
            hearing,
            chunks,
        })
    }

    /// The other side has ended the way of chunks. What it said before may still be on its way over another socket: it is
    /// heard first, if that does not take long.
    pub fn hear_out(&self) {
        let is_over = lock(&self.hearing.is_over);
        let over = &self.hearing.over;
        // How it has ended does not matter.
        drop(over.wait_timeout_while(is_over, HEAR_MAX, |is_over| !*is_over));
    }

    /// How chunks go.
    pub fn transport(&self) -> Transport {
        match self.chunks {
            Chunks::Socket(_) => Transport::Tcp,
            Chunks::Rdma(_) => Transport::Rdma,
        }
    }

    /// A message is to leave, after those before. It does when the outbox is flushed.
    pub fn say(&self, message: &impl Serialize) -> &Arc<Outbox> {
        self.unless(self.messages.leave(&encode_framed(message)));
        &self.messages
    }

    /// A chunk is to come from the other side.
    pub fn pull(&self, piece: Piece) {
        self.unless(match &self.chunks {
            Chunks::Socket(chunks) => chunks.pull(piece),
            Chunks::Rdma(chunks) => chunks.pull(piece),
        });
    }

    /// A chunk is to go to where the other side has placed it.
    pub fn put(&self, piece: Piece) {
        self.unless(match &self.chunks {
            Chunks::Socket(chunks) => chunks.put(piece),
            Chunks::Rdma(chunks) => chunks.put(piece),
        });
    }

    /// The other side is told that it may read what is lent here, or may not any more.
    pub fn lend(&self, address: u64, bytes: Option<u32>) {
        // An HCA knows no such limits: who reads what it was not told of has bytes that mean nothing.
        if let Chunks::Socket(chunks) = &self.chunks {
            chunks.lend(address, bytes);
        }
    }

    /// The other side is told that it may put something into this chunk.
    pub fn expect(&self, slot: u32) {
        if let Chunks::Socket(chunks) = &self.chunks {
            chunks.expect(slot);
        }
    }

    /// Its threads end, and say so, unless it is well: it is lost already, or the other side does not take what it has asked
    /// for.
    fn unless(&self, is_well: bool) {
        if !is_well {
            self.end();
        }
    }

    fn end(&self) {
        // It may be closed by the other side already.
        let _ = self.control.shutdown();
        self.messages.end();
        match &self.chunks {
            Chunks::Socket(chunks) => chunks.end(),
            Chunks::Rdma(chunks) => chunks.end(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // That an image is whole, say, is what the other side waits for.
        self.messages.wait(LINGER_MAX);
        self.end();
    }
}

/// A thread of a connection. What it has taken with it is gone before the connection is told to be closed.
pub fn start<N: Node>(
    alive: &Arc<Alive<N>>,
    run: impl FnOnce(&N) -> io::Result<()> + Send + 'static,
) {
    let ends = Ends(alive.clone());
    thread::spawn(move || {
        // Why a connection has ended is nothing that its streams could do something about.
        let _ = run(&ends.0.0);
    });
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
