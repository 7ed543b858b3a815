//! Pipelined process migration with RDMA (PPMR, Ouyang et al., "High Performance Pipelined Process Migration with RDMA",
//! section IV): how images of processes go from a source node to a target node, through small pools of buffers at both,
//! while they are still being written, and are already being read. The buffer managers of both sides, as machines without
//! I/O, and what runs them.
//!
//! ```text
//! writers (one a process)      source                       target                      readers (one a process)
//!    | -- Want ----------------> |                            |                              |
//!    | <- Room ----------------- | -- Open { ranks } -------> |                              |
//!    |    fills it               | <- Opened - or Refused --- |                              |
//!    | -- Wrote ---------------> |                            |                              |
//!    |                           | -- Full { rank, offset,    |                              |
//!    |                           |    bytes, remote } ------> | a free chunk of its pool     |
//!    |                           | <======= RDMA read ======= |                              |
//!    |                           | <- Done { rank, offset } - | in its place in the stream   |
//!    |                           | the chunk is recycled      |                 <--- Want -- |
//!    |                           |                            | -- Part ------------------>  |
//!    |                           |                            |    reads it     <--- Took -- |
//!    |                           |                            | the chunk is recycled        |
//!    | -- End { checksum } ----> | -- End { bytes, sum } ---> | -- Drained --------------->  |
//!    |                           |                            |              <--- Checked -- |
//!    | <- StreamOver ----------- | <- Whole { rank } -------- | -- StreamOver ------------>  |
//!    |                           | the connection ends        |                              |
//! ```
//!
//! With RDMA writes ([`Mode::Push`]) the target answers Full with where its chunk is:
//!
//! ```text
//!                                | -- Full -----------------> | a free chunk of its pool
//!                                | <- Place { remote } ------ |
//!                                | ======= RDMA write ======> |
//!      the chunk is recycled     | -- Written --------------> | in its place in the stream
//! ```
//!
//! ```text
//! a chunk of the source:  free --> filling --> announced ---------------- Done --> free
//!                                                  '-- Place --> put ---- done --> free
//! a chunk of the target:  free --> coming --> here --> read --> free
//!
//! a stream:       open --> ended --> whole
//!                   '--------'-----> failed, for a reason that has a name ([`Failure`])
//! a connection:   opening --> moving --> closing --> over
//! ```
//!
//! A source moves the processes of one node, over one connection; a target takes them from many sources at once, into one
//! pool. The stream of a process fails alone, and the others go on; what breaks a connection fails all of its streams. What
//! becomes of the processes then is decided above, by whoever decides who has them (`snaprig_coord::migration`).
//!
//! | module | what it is |
//! |---|---|
//! | [`options`] | how large pools and chunks are, which way chunks go, how long anything takes |
//! | [`message`] | what source and target say to each other, and its bytes |
//! | [`source`] | the buffer manager of the node that processes leave |
//! | [`target`] | that of the node that they come to |
//! | `events` | what both are told, and say is to be done |
//! | `streams` | the stream of one process, at each of its ends |
//! | [`pool`] | chunks, and how many of them a stream may have |
//! | [`digest`] | the checksum of a stream |
//! | [`failure`] | why a stream failed |
//! | [`driver`] | what runs source and target: by RDMA, or over sockets |
//! | `clock` | when silence and standstill are failures |
//! | [`faults`] | where it can go wrong |
//!
//! What must stay true:
//!
//! - A reader gets the bytes that the writer gave, in order, once; it is told that they are all of them only when their
//!   number and their checksum are those of the writer.
//! - A chunk is free again only when nobody can reach it any more: the source's when it was pulled or put, the target's when
//!   its reader is done with it; all others of a connection when that is gone ([`source::Input::Closed`]).
//! - Memory is bounded by the pools, whatever the images' sizes, and whatever a peer says.
//! - Every stream always has a chunk that no other one can have ([`pool`]): who is slow is slow alone.
//! - Nobody waits for ever. A machine says when it is to be called again (`deadline`), and then gives up what has stood still
//!   for too long.
//! - What a peer says is believed only as far as it has been checked: nothing panics, and nothing is allocated by it that
//!   was not agreed on.
//!
//! What that demands of a driver:
//!
//! - It knows who is at the other end of a connection before a machine hears of it.
//! - Control messages keep their order: one TCP connection, or one reliable queue pair. Chunks may take any way, and come in
//!   any order.
//! - `Disconnect` is answered with `Closed`, and `Closed` means that nothing that goes over this connection
//!   reads or writes the pool, now or later: queue pairs are gone, or in error and drained. No completion follows.
//! - A source's pool, and what its writers lend, can be read by the target where messages say that it is; a target's pool
//!   can be written by its sources, if chunks are put there.
//! - A front computes the checksum ([`digest::Digest`]) of what goes through it, so that no lock is held for that.

mod clock;
pub mod digest;
pub mod driver;
mod events;
pub mod failure;
pub mod faults;
pub mod message;
pub mod options;
pub mod pool;
pub mod source;
mod streams;
pub mod target;

pub use self::{
    digest::Digest,
    failure::{Failure, Nonsense, Refusal},
    options::{Buffers, Mode, OptionsError, Times},
    source::Source,
    target::Target,
};

/// Nanoseconds of a monotonic clock, whose zero is anywhere.
pub type Ns = u64;
