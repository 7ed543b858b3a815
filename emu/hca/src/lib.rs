//! An InfiniBand HCA, and the fabric between many of them, as machines that do no I/O.
//!
//! ```text
//!   requester's process            device memory                responder's process
//!   post_send --> send queue --> requester ==request==> responder --> receive queue, memory
//!   poll_cq   <-- completions <--    "    <==response==     "     --> completions --> poll_cq
//! ```
//!
//! All state is in device memory (one shared mapping, [`Memory`]), so whoever has something to do
//! can move both machines: the thread that posts runs the peer's responder too and copies straight
//! into the peer's memory; nobody else needs to run. What it cannot finish (the peer has no receive,
//! is gone, or the path is not clean) is left for the peer, or for the control daemon and its clock.
//!
//! On a clean path a message is one [`Packet`] that counts for as many sequence numbers as it would
//! have packets. On a path with faults, or one that is watched, packets have the path's MTU, and the
//! [`Host`] takes them away, to deliver them later, or never.
//!
//! | module | what it is |
//! |---|---|
//! | [`memory`] | the layout of device memory |
//! | [`qp`], [`queue`], [`cq`], [`srq`], [`key`], [`port`] | what is in it |
//! | [`packet`] | what goes over a path |
//! | [`post`] | requests into the queues |
//! | `requester` | requests out of the send queue, responses in |
//! | `responder` | requests in, responses out |
//! | `datagram` | unreliable datagrams and multicast |
//! | [`wire`], [`capture`] | packets as InfiniBand has them on a link; files of them |
//! | [`control`], [`model`] | the control plane; what a model can do |
//! | `express` | the short way of messages that can go at once |
//! | [`faults`], [`canary`] | where something can go wrong; bugs on purpose |
//! | `flush` | what becomes of the requests of a queue pair that failed |
//! | `mend` | what a process that died left half done |
//!
//! What must stay true: every request completes once, in order; nothing in device memory is trusted;
//! a process that dies at any point harms only those who are connected to it.

pub mod canary;
pub mod capture;
pub mod cell;
pub mod control;
pub mod cq;
mod datagram;
mod express;
pub mod faults;
mod flush;
pub mod key;
pub mod lock;
pub mod memory;
mod mend;
pub mod model;
pub mod packet;
pub mod payload;
pub mod port;
pub mod post;
pub mod qp;
pub mod queue;
mod requester;
mod responder;
pub mod srq;
#[cfg(feature = "testing")]
pub mod testing;
pub mod traffic;
pub mod types;
pub mod wire;

use std::cell::Cell;

pub use canary::Canary;
pub use cq::Completion;
pub use key::Segment;
use lock::{Held, Lock};
pub use memory::Memory;
pub use packet::Packet;
pub use requester::{ack_timeout_ns, give_up_ns as requester_timeout_ns, rnr_timer_ns};
pub use types::{Access, Event, Opcode, SendFlags, State, Status, Transport};

/// How packets go over a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Delivered on the spot, a message at a time.
    Whole,
    /// Packet by packet.
    Packets,
    /// Not by this caller: the daemon is to do it.
    Elsewhere,
}

/// An atomic operation on 8 bytes (host byte order, as ibv_post_send(3) has it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Replaces the value if it is the first number.
    CompareSwap(u64, u64),
    /// Adds.
    FetchAdd(u64),
}

/// What the HCA needs from the machine it is in.
pub trait Host {
    /// Copies between two processes' memory; both have the same length. False if that failed.
    fn copy(&self, from: Segment, to: Segment) -> bool;
    /// Reads a process's memory.
    fn read(&self, from: Segment, into: &mut [u8]) -> bool;
    /// Writes a process's memory.
    fn write(&self, bytes: &[u8], to: Segment) -> bool;
    /// Does it on 8 aligned bytes; what was there.
    fn atomic(&self, at: Segment, operation: Atomic) -> Option<u64>;
    /// A completion queue that was armed has an entry.
    fn notify(&self, cq: u32);
    /// Something happened out of turn to a queue pair, queue or port (its place in the table).
    fn event(&self, event: Event, element: u32);
    /// The daemon is to look after this queue pair, now or at its deadline.
    fn attention(&self, qp: u32);
    /// The daemon is to look after those who wait for receives of this shared queue.
    fn srq_attention(&self, srq: u32);
    /// How packets go from one port to another.
    fn path(&self, from_port: u32, to_port: u32) -> Path;
    /// Whether so many packets are under way on a path that goes packet by packet that those are to
    /// wait who have no window: unreliable transports, as a link without credits has them wait (7.9).
    fn is_full(&self, from_port: u32, to_port: u32) -> bool {
        let _ = (from_port, to_port);
        false
    }
    /// A message that may be lost finds no receive; so often it has looked for one. Whether to look again, after a moment: a link
    /// without credits has packets wait (7.9), and a receiver that has no processor would lose what one with a processor of
    /// its own takes.
    fn is_patient(&self, looked: u32) -> bool {
        let _ = looked;
        false
    }
    /// Takes a packet away, on a path that goes packet by packet.
    fn transmit(&self, packet: &Packet<'_>);
    /// Whether the process in this slot is dead: asked while one of its locks is waited for.
    fn is_dead(&self, process: u32) -> bool {
        let _ = process;
        false
    }
    /// Whether the machines have this bug: in simulations, on purpose.
    fn has(&self, canary: Canary) -> bool {
        let _ = canary;
        false
    }
    /// Nanoseconds since some moment that all users of the fabric share.
    fn now_ns(&self) -> u64;
}

/// The machines of all HCAs of a fabric, seen from one process.
#[derive(Debug)]
pub struct Hca<'m, H> {
    /// Device memory.
    pub memory: &'m Memory,
    /// The machine it is in.
    pub host: &'m H,
    /// One's own slot in the table of processes.
    pub me: u32,
    /// Queue pairs that failed, to be flushed when no lock is held.
    failed: Cell<[u32; FAILED_MAX]>,
    failed_count: Cell<usize>,
}

/// More queue pairs than this do not fail in one call; if they do, the daemon flushes the rest.
const FAILED_MAX: usize = 4;

impl<'m, H: Host> Hca<'m, H> {
    /// The machines, for process `me`.
    pub fn new(memory: &'m Memory, host: &'m H, me: u32) -> Self {
        Self {
            memory,
            host,
            me,
            failed: Cell::default(),
            failed_count: Cell::default(),
        }
    }

    /// Counts something at a queue pair's port.
    #[cold]
    pub(crate) fn count_at_port(
        &self,
        qp: &qp::Qp,
        counter: impl Fn(&port::Counters) -> &cell::U64,
    ) {
        if let Some(port) = self.memory.header().ports.get(qp.port.get() as usize) {
            counter(&port.counters).add(1);
        }
    }

    /// Waits for a lock under which whoever dies may leave a step half done.
    pub(crate) fn hold_lock<'l>(&self, lock: &'l Lock) -> Held<'l> {
        lock.take(self.me, |process| {
            let is_dead = self.host.is_dead(process);
            if is_dead {
                self.mend_all(process);
            }
            is_dead
        })
    }

    /// Waits for a lock under which nothing is half done.
    pub(crate) fn hold_whole<'l>(&self, lock: &'l Lock) -> Held<'l> {
        lock.take(self.me, |process| self.host.is_dead(process))
    }
}
