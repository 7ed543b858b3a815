//! Chunks by RDMA, over whatever libibverbs there is when the program runs: the target reads them out of the source's pool,
//! or the source writes them into the target's. Messages go over the control socket.
//!
//! | module | what it is |
//! |---|---|
//! | `device` | the port of a device, and the pool as its region |
//! | `pair` | a queue pair, from its creation until it is in error and drained |
//! | `raw` | what the compiler cannot check |
//!
//! What must stay true: one thread has a connection's queue pair, which is gone when that thread ends; so nothing reaches the
//! pool over a connection that is closed.

mod device;
mod pair;
mod raw;

use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
};

use rustix::event::{EventfdFlags, eventfd};

pub use self::{device::Device, pair::Pair};
use super::{
    connection::{Alive, Node, Piece, start},
    lock,
};

/// The chunks of a connection.
#[derive(Debug)]
pub struct Chunks(Arc<Jobs>);

/// Its thread, which is to start.
#[derive(Debug)]
pub struct Thread {
    pair: Pair,
    jobs: Arc<Jobs>,
}

/// What the thread is to do. There are never more jobs than its node has chunks.
#[derive(Debug)]
struct Jobs {
    asked: Mutex<Asked>,
    wakes: OwnedFd,
}

#[derive(Debug, Default)]
struct Asked {
    pieces: VecDeque<Piece>,
    is_over: bool,
}

impl Chunks {
    /// By this queue pair, which is connected.
    pub fn new(pair: Pair) -> io::Result<(Self, Thread)> {
        let jobs = Arc::new(Jobs {
            asked: Mutex::default(),
            wakes: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let chunks = Self(jobs.clone());
        Ok((chunks, Thread { pair, jobs }))
    }

    /// Whether a chunk can be asked for: the queue pair of a target reads, and that of a source writes.
    pub fn pull(&self, piece: Piece) -> bool {
        self.0.tell(|asked| asked.pieces.push_back(piece));
        true
    }

    /// Whether a chunk can be sent.
    pub fn put(&self, piece: Piece) -> bool {
        self.pull(piece)
    }

    /// Its thread ends.
    pub fn end(&self) {
        self.0.tell(|asked| asked.is_over = true);
    }
}

impl Jobs {
    fn tell(&self, what: impl FnOnce(&mut Asked)) {
        what(&mut lock(&self.asked));
        // If it is not to be written now, it wakes anyway.
        let _ = rustix::io::write(&self.wakes, &1u64.to_ne_bytes());
    }

    /// What is to be done now, as far as there is room for it; none: nothing any more.
    fn take(&self, room: usize) -> Option<Vec<Piece>> {
        // Whoever tells more wakes anew.
        let _ = rustix::io::read(&self.wakes, &mut [0; 8]);
        let mut asked = lock(&self.asked);
        let count = room.min(asked.pieces.len());
        (!asked.is_over).then(|| asked.pieces.drain(..count).collect())
    }
}

impl Thread {
    pub fn start<N: Node>(self, alive: &Arc<Alive<N>>) {
        let Self { mut pair, jobs } = self;
        start(alive, move |node| {
            let result = run(&mut pair, &jobs, node);
            pair.close();
            result
        });
    }
}

fn run(pair: &mut Pair, jobs: &Jobs, node: &impl Node) -> io::Result<()> {
    while let Some(pieces) = jobs.take(pair.room()) {
        let mut is_idle = pieces.is_empty();
        for piece in pieces {
            if pair.post(piece).is_err() {
                node.moved(piece.slot, false);
            }
        }
        let mut done = pair.poll()?;
        if done.is_empty() && is_idle {
            // What is completed from now on wakes.
            pair.arm()?;
            done = pair.poll()?;
        }
        is_idle &= done.is_empty();
        for (slot, is_done) in done {
            node.moved(slot, is_done);
        }
        if is_idle {
            pair.wait(&jobs.wakes)?;
        }
    }
    Ok(())
}
