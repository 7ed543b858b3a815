//! Files that Snapify-IO moves, and what is kept of captured processes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use coi_device::{
    daemon::machine::{Conn, Pid},
    offload::{machine as sink, references::References},
};
use snaprig_offload_wire::snapify_io::{Machine, Mode};
use snaprig_scif::node::EndpointId;
use snaprig_wire::scif::NodeId;

/// What an endpoint is for.
#[derive(Clone, Debug)]
pub enum Role {
    /// The server listens.
    Listener,
    /// A card asks the server.
    Served,
    /// The server is asked by a card.
    Requester,
}

/// For whom a card moves a file.
#[derive(Clone, Debug)]
pub enum Owner {
    Process(Pid, String),
    Restore(Conn),
}

/// One end of a transfer.
pub struct Transfer {
    pub machine: Option<Box<dyn Machine>>,
    pub path: String,
    pub mode: Mode,
    /// Of this end's buffer: DMA address and offset.
    pub address: u64,
    pub own: i64,
    /// Offset of the requester's, on the server.
    pub window: i64,
    /// What is still to be moved, and what has been.
    pub chunks: VecDeque<Vec<u8>>,
    pub got: Vec<u8>,
    /// The slot that RMA is at work on.
    pub copying: Option<(u8, u32, u64)>,
    pub owner: Option<Owner>,
}

/// What is kept of a captured process.
pub type Kept = (sink::Machine, References, BTreeMap<u64, Vec<u64>>);

/// All transfers, by node and endpoint.
#[derive(Default)]
pub struct Transfers {
    pub all: BTreeMap<(NodeId, EndpointId), Transfer>,
    /// Machines of captured processes: they are no bytes, so the model keeps them here. And what was
    /// in their buffers, to compare it with what comes back.
    pub machines: BTreeMap<u64, Kept>,
    pub kept: u64,
    /// Those whose processes ran on, and were ended then: they have done more than they will know of.
    pub stale: BTreeSet<u64>,
}
