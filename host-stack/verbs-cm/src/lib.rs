//! The RDMA connection manager without input and output: what the kernel's module `rdma_ucm` does for librdmacm, as a
//! machine.
//!
//! ```text
//!   program --bytes--> Call --> Manager --Output--> driver --> sockets of other processes, readability of channels
//!                                 ^  |
//!               Message, time ----+  +--questions--> Host: addresses, ports, who listens
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`abi`] | the structures of rdma/rdma_user_cm.h |
//! | [`command`] | commands, read from bytes |
//! | [`wire`] | what the connection managers of two processes say to each other |
//! | [`manager`] | all ids of a process, their events and timers |
//! | [`host`] | what the manager asks of the machine that it runs on |
//!
//! What must stay true: nothing here reads a clock, draws a random number, waits, or touches a descriptor or the
//! program's memory. The time is an argument, the seed of all numbers is given at the start, and what is to be done is
//! returned as [`Output`]s, in order. So the same inputs lead to the same outputs, in a test or a simulator as in a
//! program. What a program writes and what another process sends is checked here.

pub mod abi;
pub mod command;
pub mod host;
mod id;
pub mod manager;
pub mod wire;

pub use command::{Call, Command};
pub use host::{Host, LinkId, NotConnected, Port, Service};
pub use manager::{Channel, Manager, Output, Reply};
