//! What a card does by itself, and what its offload processes say to its daemon.

use coi_device::daemon::machine::{self as daemon, Conn, Pid};
use snaprig_offload_wire::{
    coi::Exit,
    snapify::{Hello, Reply, Request},
};

/// Something that a card does by itself.
#[derive(Clone, Debug)]
pub enum CardTask {
    /// To the daemon, over the Unix socket.
    FromSink(daemon::Pipe, Option<FromSink>),
    /// To an offload process, over the same.
    ToSink(Pid, daemon::Pipe, Option<Request>),
    /// The daemon has something to do that takes its time.
    Daemon(daemon::Output),
    /// A program was started, or was not.
    Spawned(Conn, Result<(Pid, String), daemon::Failure>),
    /// A process has ended.
    Exited(Pid, Exit),
    /// Nothing of it is left.
    CleanedUp(Pid),
    /// The run function of this pipeline has run.
    Ran(Pid, u32),
    /// Its result is sent.
    SendResult(Pid, u32),
    /// A notice is sent.
    SendNotice(Pid),
    /// A process gives back the references that it holds.
    GiveBack(Pid),
    /// The service streams the process.
    Capture(Pid),
    /// A file of another card has come, or has not.
    Fetched(Conn, Result<Vec<u8>, i32>),
}

impl CardTask {
    /// The process whose threads do it.
    pub fn of_thread(&self) -> Option<Pid> {
        match self {
            Self::ToSink(pid, ..)
            | Self::Ran(pid, _)
            | Self::SendResult(pid, _)
            | Self::SendNotice(pid)
            | Self::GiveBack(pid) => Some(*pid),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub enum FromSink {
    Hello(Hello),
    Reply(Reply),
}
