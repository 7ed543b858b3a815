//! One coordinator for each job: it has all processes of a job checkpointed at the same moment, on
//! however many machines they run, and restarted together.
//!
//! ```text
//!   snaprig ckpt dump, status                 machine 1                        machine 2
//!        |  control                   agent: member "0"  agent: member "1"   agent: member "2"
//!        |                               |  ptrace           |                   |
//!        |                            a process tree      a process tree      a process tree
//!        |                               |                   |                   |
//!        '------------ coordinator ------'-------------------'------- TCP -------'
//!                        |
//!                      a manifest, by rename: that is the commit ([`driver::Keeper`])
//! ```
//!
//! An agent stops, saves and restores the processes of its tree; what must happen in all trees or in
//! none goes through here: membership, phases of a round, barriers, and a board on which members
//! publish what their peers must know (the ends of TCP connections, new addresses).
//!
//! | module | what it is |
//! |---|---|
//! | [`message`] | what is said, and how much of it |
//! | [`phase`] | a round: its phases, by what was ordered |
//! | [`auth`] | how the job's token is proved to be known |
//! | [`coordinator`] | the coordinator, as a machine |
//! | [`member`] | a member's side, as a machine |
//! | [`migration`] | how a tree goes on at another supervisor: both sides, as machines |
//! | [`driver`] | both over sockets: [`driver::Coordinator`], [`driver::Member`] |
//! | [`job`] | a job's directory: where its coordinator is, its token, who belongs to it |
//! | [`plugins`] | the plugins of a tree in a round, as a machine |
//! | [`faults`] | where it can go wrong |
//!
//! What must stay true: a checkpoint is complete or is none, and that is decided in one place (the
//! rename of its manifest); nobody waits for ever; whoever was stopped for a round that is not
//! committed runs on, whoever dies, the coordinator included.
//!
//! Peers are authenticated, and what they say is bounded; what they say is neither encrypted nor
//! signed. Over a network that others can write to, put a tunnel under it.

pub mod auth;
pub mod coordinator;
pub mod driver;
pub mod faults;
pub mod job;
pub mod member;
pub mod message;
pub mod migration;
pub mod phase;
pub mod plugins;

/// Nanoseconds of a monotonic clock, whose zero is anywhere.
pub type Ns = u64;

const MS: Ns = 1_000_000;
const SECOND: Ns = 1000 * MS;
