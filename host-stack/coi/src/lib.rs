//! COI, the Coprocessor Offload Infrastructure, on the host: engines, processes, pipelines,
//! buffers, run functions; and the hooks with which Snapify quiesces all of it ([`quiesce`]).
//!
//! ```no_run
//! # fn main() -> Result<(), snaprig_coi::CoiError> {
//! # let (rig, binary) = (std::path::Path::new("/tmp/rig"), Vec::new());
//! let engine = snaprig_coi::Engine::get(rig, 0)?;
//! let process = snaprig_coi::Process::create(&engine, "sink", binary, vec![], vec![])?;
//! let pipeline = process.pipeline()?;
//! let buffer = process.buffer(4096)?;
//! buffer.write(0, b"input")?;
//! let event = pipeline.run(process.function("work")?, &[&buffer], b"", 8)?;
//! let returned = event.wait(None)?;
//! # Ok(())
//! # }
//! ```
//!
//! What must stay true: a card or a process that dies fails everybody who waits for it, unless the
//! process is paused: then they wait for its successor.

mod buffer;
mod error;
pub mod faults;
pub mod machine;
pub mod native;
mod pipeline;
mod process;
pub mod quiesce;

use std::path::{Path, PathBuf};

use snaprig_scif::client::Endpoint;
use snaprig_wire::scif::{HOST, NodeId, PortId, port};

pub use self::{
    buffer::Buffer,
    error::CoiError,
    pipeline::{Event, Pipeline},
    process::{Function, Process, Status},
};

/// A card, as a place to run offload processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    rig: PathBuf,
    node: NodeId,
}

impl Engine {
    /// How many there are.
    pub fn count(rig: &Path) -> Result<usize, CoiError> {
        let (nodes, _) = Endpoint::open(rig)?.node_ids()?;
        Ok(nodes.iter().filter(|node| **node != HOST).count())
    }

    /// Engine `index`, from 0: the card that is SCIF node `index + 1`.
    pub fn get(rig: &Path, index: u16) -> Result<Self, CoiError> {
        let node = index + 1;
        let (nodes, _) = Endpoint::open(rig)?.node_ids()?;
        match nodes.contains(&node) {
            true => Ok(Self {
                rig: rig.to_owned(),
                node,
            }),
            false => Err(CoiError::CardLost { node }),
        }
    }

    /// Its SCIF node.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The rig that it belongs to.
    pub fn rig(&self) -> &Path {
        &self.rig
    }

    /// A connection to a port on the card.
    pub fn connect(&self, port: u16) -> Result<Endpoint, CoiError> {
        let endpoint = Endpoint::open(&self.rig)?;
        endpoint.connect(PortId {
            node: self.node,
            port,
        })?;
        Ok(endpoint)
    }

    /// A connection to its COI daemon.
    pub fn connect_daemon(&self) -> Result<Endpoint, CoiError> {
        self.connect(port::COI_DAEMON)
    }
}
