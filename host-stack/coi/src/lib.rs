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
//! That is the simple interface: nothing waits for anything but run functions of one pipeline. All of
//! COI, with buffers of many processes, events and dependencies, is in [`ops`] and
//! [`Pipeline::submit`]; `libcoi_host.so.0` is made of it.
//!
//! What must stay true: a card or a process that dies fails everybody who waits for it, unless the
//! process is paused: then they wait for its successor.

mod buffer;
mod descriptors;
mod error;
pub mod faults;
pub mod gate;
pub mod graph;
pub mod libraries;
pub mod machine;
pub mod native;
pub mod ops;
mod pipeline;
pub mod process;
pub mod quiesce;

use std::path::{Path, PathBuf};

use snaprig_offload_wire::coi::{FromDaemon, ToDaemon};
use snaprig_scif::{
    checkpoint,
    client::{Endpoint, ScifError},
    host::cards::CardState,
};
use snaprig_wire::scif::{HOST, NodeId, PortId, port};

use self::descriptors::with_room;
pub use self::{
    buffer::Buffer,
    error::CoiError,
    pipeline::{Event, Pipeline},
    process::{Function, Library, LibraryOptions, Process, ProcessOptions, Status},
};

/// A card, as a place to run offload processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine {
    rig: PathBuf,
    node: NodeId,
}

/// What is known of an engine; what is not known is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineInfo {
    /// Cores.
    pub cores: u32,
    /// Hardware threads.
    pub threads: u32,
    /// Memory.
    pub memory_bytes: u64,
    /// Memory that is free.
    pub free_bytes: u64,
    /// Its COI daemon listens.
    pub online: bool,
    /// How busy each hardware thread is, in percent.
    pub load: Vec<u32>,
}

impl Engine {
    /// How many there are, in whatever state.
    pub fn count(rig: &Path) -> Result<usize, CoiError> {
        let _inside = checkpoint::enter();
        let cards = Endpoint::open(rig)?.cards()?;
        Ok(cards.iter().filter(|(node, _)| *node != HOST).count())
    }

    /// Whether its COI daemon listens.
    pub fn is_online(&self) -> Result<bool, CoiError> {
        let _inside = checkpoint::enter();
        let cards = Endpoint::open(&self.rig)?.cards()?;
        let own = cards.iter().find(|(node, _)| *node == self.node);
        Ok(matches!(own, Some((_, CardState::Online))))
    }

    /// Engine `index`, from 0: the card that is SCIF node `index + 1`.
    pub fn get(rig: &Path, index: u16) -> Result<Self, CoiError> {
        let _inside = checkpoint::enter();
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

    /// What is known of it.
    pub fn info(&self) -> Result<EngineInfo, CoiError> {
        let _inside = checkpoint::enter();
        let online = self.is_online()?;
        if !online {
            return Ok(EngineInfo::default());
        }
        let daemon = self.connect_daemon()?;
        daemon.send_message(&ToDaemon::Info)?;
        let FromDaemon::Info(card) = daemon.receive_message()? else {
            return Err(CoiError::Protocol {
                node: self.node,
                what: "what the card is",
            });
        };
        Ok(EngineInfo {
            cores: card.cores,
            threads: card.threads,
            memory_bytes: card.memory_bytes,
            free_bytes: card.free_bytes,
            online,
            load: Vec::new(),
        })
    }

    /// Where the rig is now that it belongs to.
    pub fn rig(&self) -> PathBuf {
        checkpoint::place(&self.rig)
    }

    /// A connection to a port on the card.
    pub fn connect(&self, port: u16) -> Result<Endpoint, CoiError> {
        let errno = |error: &ScifError| Some(error.errno);
        let endpoint = with_room(|| Endpoint::open(&self.rig), errno)?;
        endpoint.connect(PortId {
            node: self.node,
            port,
        })?;
        with_room(|| endpoint.prepare(), errno)?;
        Ok(endpoint)
    }

    /// A connection to its COI daemon.
    pub fn connect_daemon(&self) -> Result<Endpoint, CoiError> {
        self.connect(port::COI_DAEMON)
    }
}
