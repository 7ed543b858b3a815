//! An offload process: its machine, its threads, its buffers, and what of it is in an image.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash, Hasher},
};

use coi_device::{
    daemon::machine as daemon,
    offload::{machine as sink, references::References},
};
use serde::{Deserialize, Serialize};
use snaprig_coi::graph::Mode;
use snaprig_offload_wire::{
    coi::{BufferUse, Channel, Notice, Window},
    snapify::{Link, StoredFile},
};
use snaprig_scif::node::EndpointId;
use snaprig_wire::scif::NodeId;

use super::{HostId, app::BUFFER_BYTES, ledger::Counts, task::CardTask};

/// What a pipeline's thread does.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Thread {
    /// What its run functions count, and return.
    pub count: u64,
    /// The run function that runs, or whose result waits.
    pub running: Option<Running>,
    pub result: Option<Vec<u8>>,
}

/// What of an offload process is in its image.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Image {
    pub host: HostId,
    pub threads: BTreeMap<u32, Thread>,
    /// What its pipelines have received and sent.
    pub counts: BTreeMap<u32, Counts>,
    /// What run functions have written to buffers since the local store was saved.
    pub changed: BTreeMap<u64, Pages>,
    /// Of an image of a chain: what it says of its memory.
    pub copy: Option<Copy>,
    /// References that the process holds: since which run function, and to which buffer.
    pub held: VecDeque<(u64, u64)>,
    /// Run functions that it has begun.
    pub begun: BTreeSet<u64>,
    /// What the host is still to be told unasked.
    pub notices: VecDeque<Notice>,
}

/// What is in a buffer, page by page.
pub type Pages = Vec<u64>;

/// What an image of a chain says of buffers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Copy {
    /// The image that it builds on.
    pub parent: Option<u64>,
    /// Its pages are of no moment.
    pub live: bool,
    /// Buffers that there are.
    pub buffers: BTreeSet<u64>,
    /// Pages that it has, by buffer and number.
    pub pages: BTreeMap<(u64, u64), u64>,
}

impl Copy {
    /// Adds the one that builds on it.
    pub fn follow(&mut self, next: Self) {
        self.pages.retain(|(id, _), _| next.buffers.contains(id));
        self.pages.extend(next.pages);
        (self.buffers, self.live) = (next.buffers, next.live);
    }

    /// What is in its buffers.
    pub fn contents(&self) -> BTreeMap<u64, Pages> {
        let pages = |id: &u64| {
            let pages = self.pages.range((*id, 0)..=(*id, u64::MAX));
            pages.map(|(_, value)| *value).collect()
        };
        self.buffers.iter().map(|id| (*id, pages(id))).collect()
    }
}

/// A buffer, alone in its memory: a file of local store, mapped, and a window. The two have one
/// number.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub address: u64,
    pub offset: Option<i64>,
}

/// An offload process.
#[derive(Clone, Debug)]
pub struct Offload {
    pub machine: sink::Machine,
    /// Which of the references the host knows of.
    pub references: References,
    pub image: Image,
    pub buffers: BTreeMap<u64, Buffer>,
    /// Buffers that are being registered, in order; the last one may be new.
    pub registering: VecDeque<u64>,
    pub creating: Option<u64>,
    /// A pipeline that is to go, and has no channel yet.
    pub leaving: Option<u32>,
    pub windows_asked: bool,
    /// A notice is being sent.
    pub noticing: bool,
    /// Files of the local store: those that are saved, those that are not.
    pub saved: Vec<StoredFile>,
    pub marked: BTreeMap<u64, Pages>,
    pub unsaved: VecDeque<u64>,
    pub saving_to: String,
    /// They stay where they are, and the image has nothing of them.
    pub stays: bool,
    /// The capture under way ends the process.
    pub ending: bool,
    /// Its image is taken, and it ends when its snapshot is complete: what its threads would do meanwhile.
    pub held: Option<Vec<CardTask>>,
    /// It has said that its image is safe, and ends if that is what it is asked for next.
    pub is_leaving: bool,
    /// The number of its last image.
    pub kept: u64,
    /// Of the chain that is being made: the image under way, what the last one had, and what run functions have written since.
    pub link: Option<Link>,
    pub copying: bool,
    pub copied: Option<(u64, BTreeSet<u64>)>,
    pub dirty: BTreeSet<(u64, u64)>,
    pub alive: bool,
    pub pipe: Option<daemon::Pipe>,
    pub listener: Option<EndpointId>,
    /// Why it says hello when it listens.
    pub hello: Option<bool>,
    pub channels: BTreeMap<Channel, EndpointId>,
}

/// A process that is being brought back: what of its files is still to come.
pub struct Restoring {
    pub snapshot: String,
    pub number: u32,
    /// It is only read, for the one that builds on it.
    pub preload: bool,
    pub files: VecDeque<StoredFile>,
    /// Who has them.
    pub from: NodeId,
    pub contents: BTreeMap<u64, Vec<u8>>,
}

impl Offload {
    pub fn new(machine: sink::Machine, image: Image) -> Self {
        Self {
            machine,
            references: References::default(),
            image,
            buffers: BTreeMap::new(),
            registering: VecDeque::new(),
            creating: None,
            leaving: None,
            windows_asked: false,
            noticing: false,
            saved: Vec::new(),
            marked: BTreeMap::new(),
            unsaved: VecDeque::new(),
            saving_to: String::new(),
            stays: false,
            ending: false,
            held: None,
            is_leaving: false,
            kept: 0,
            link: None,
            copying: false,
            copied: None,
            dirty: BTreeSet::new(),
            alive: true,
            pipe: None,
            listener: None,
            hello: None,
            channels: BTreeMap::new(),
        }
    }

    /// A process that starts.
    pub fn of_program(name: &str) -> Self {
        let host = name
            .trim_start_matches(|c: char| !c.is_ascii_digit())
            .parse();
        let image = Image {
            host: host.unwrap_or(0),
            ..Image::default()
        };
        Self::new(sink::Machine::default(), image)
    }

    pub fn is_alive(&self) -> bool {
        self.alive
    }

    pub fn describe(&self) -> String {
        format!("{:#?}\n{:#?}", self.machine, self.image)
    }

    /// What it will do next.
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        self.machine.hash_state(hash);
        for thread in self.image.threads.values() {
            (thread.running.is_some(), thread.result.is_some()).hash(hash);
        }
        (self.alive, self.pipe.is_some(), self.registering.is_empty()).hash(hash);
        (self.unsaved.len(), self.windows_asked).hash(hash);
    }

    pub fn windows(&self) -> Vec<Window> {
        let buffers = self.buffers.iter();
        let known = buffers.filter_map(|(id, buffer)| Some((*id, buffer.offset?, buffer.address)));
        known
            .map(|(id, offset, address)| window(id, offset, address))
            .collect()
    }
}

pub fn window(id: u64, offset: i64, address: u64) -> Window {
    Window {
        id,
        offset,
        len: BUFFER_BYTES,
        address,
    }
}

/// What a run function does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    Read,
    Change,
    Write,
}

impl From<Mode> for Access {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Read => Self::Read,
            Mode::Write => Self::Change,
            Mode::WriteEntire => Self::Write,
        }
    }
}

/// What a run function is told to do: its miscellaneous data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Task {
    /// What it leaves where it writes: no other one has this number.
    pub op: u64,
    /// What it does with each buffer.
    pub modes: Vec<Access>,
    /// Buffers of which it takes references.
    pub adds: Vec<u64>,
    /// A user event that it signals.
    pub event: Option<u64>,
}

/// What a run function returns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Returned {
    /// The how manieth of its pipeline it is.
    pub count: u64,
    /// What it saw, when it began and when it ended: buffers, cells, values.
    pub seen: Vec<(u64, u64, u64)>,
}

/// A run function that runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Running {
    pub task: Task,
    pub uses: Vec<BufferUse>,
    pub seen: Vec<(u64, u64, u64)>,
}
