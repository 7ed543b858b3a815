//! What is measured: points of the paper's figures.

use serde::{Deserialize, Serialize};

/// Bytes, and what they are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    /// How many.
    pub bytes: u64,
    /// In short.
    pub name: &'static str,
}

const fn size(bytes: u64, name: &'static str) -> Size {
    Size { bytes, name }
}

pub const K16: Size = size(16 << 10, "16K");
pub const K128: Size = size(128 << 10, "128K");
pub const M1: Size = size(1 << 20, "1M");
pub const M8: Size = size(8 << 20, "8M");
pub const M32: Size = size(32 << 20, "32M");

/// The paper's pools.
pub const POOLS: [Size; 3] = [M1, M8, M32];
/// Its chunks.
pub const CHUNKS: [Size; 7] = [
    K16,
    size(32 << 10, "32K"),
    size(64 << 10, "64K"),
    K128,
    size(256 << 10, "256K"),
    size(512 << 10, "512K"),
    M1,
];
/// Messages of its Figure 6.
pub const MESSAGES: [Size; 11] = [
    size(1 << 10, "1K"),
    size(2 << 10, "2K"),
    size(4 << 10, "4K"),
    size(8 << 10, "8K"),
    K16,
    size(32 << 10, "32K"),
    size(64 << 10, "64K"),
    K128,
    size(256 << 10, "256K"),
    size(512 << 10, "512K"),
    M1,
];
/// Its processes that write: how many, and in words.
pub const WRITERS: [(u32, &str); 4] = [(1, "1"), (8, "8"), (16, "16"), (32, "32")];

/// How chunks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Way {
    /// The target reads them by RDMA.
    Pull,
    /// The source writes them by RDMA.
    Push,
    /// The target asks for them over TCP.
    Tcp,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Tcp => "TCP",
        }
    }
}

/// What writers and readers have of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Front {
    /// `Write` and `Read`.
    Calls,
    /// Files of a mount.
    Fuse,
}

/// Between which ends; the paper's Figure 5 has the letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Stage {
    /// A: from writers into the pool of the source, where chunks are free again at once.
    Aggregation(Front),
    /// B: from the pool of the source into that of the target, unwritten and unread.
    Network(Way),
    /// C: from writers into the pool of the target, unread.
    Pipeline(Way),
    /// From writers to readers, who verify what they read.
    Delivery(Way, Front),
}

impl Stage {
    /// How chunks go, if they go anywhere.
    pub fn way(self) -> Option<Way> {
        match self {
            Self::Aggregation(_) => None,
            Self::Network(way) | Self::Pipeline(way) | Self::Delivery(way, _) => Some(way),
        }
    }

    /// What both ends have.
    pub fn front(self) -> Front {
        match self {
            Self::Aggregation(front) | Self::Delivery(_, front) => front,
            Self::Network(_) | Self::Pipeline(_) => Front::Calls,
        }
    }

    fn name(self) -> String {
        let front = match self.front() {
            Front::Calls => "",
            Front::Fuse => "FUSE ",
        };
        let what = match self {
            Self::Aggregation(_) => "aggregation",
            Self::Network(_) => "network ",
            Self::Pipeline(_) => "pipeline ",
            Self::Delivery(..) => "delivery ",
        };
        let way = self.way().map_or("", Way::name);
        format!("{front}{what}{way}")
    }
}

/// A point. In their order, those that are compared are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Of source and target.
    pub pool: Size,
    pub chunk: Size,
    /// Processes whose images are on their way.
    pub writers: u32,
    pub stage: Stage,
}

impl Point {
    /// A point, if every writer has a chunk of its own: there is no smaller pool.
    pub fn new(stage: Stage, pool: Size, chunk: Size, writers: u32) -> Option<Self> {
        let is_one = pool.bytes / chunk.bytes >= u64::from(writers);
        is_one.then_some(Self {
            pool,
            chunk,
            writers,
            stage,
        })
    }

    /// The same of another stage.
    pub fn at(self, stage: Stage) -> Self {
        Self { stage, ..self }
    }

    /// What chooses it.
    pub fn name(self) -> String {
        format!("{} {}", self.stage.name(), self.sizes())
    }

    /// Its pool, its chunk, its writers.
    pub fn sizes(self) -> String {
        let Self {
            pool,
            chunk,
            writers,
            ..
        } = self;
        format!("{} {} x{writers}", pool.name, chunk.name)
    }

    /// What it is to be compared with.
    pub fn beside(self) -> Vec<Self> {
        let stages = match self.stage {
            Stage::Aggregation(Front::Fuse) => vec![Stage::Aggregation(Front::Calls)],
            Stage::Delivery(way, Front::Fuse) => vec![Stage::Delivery(way, Front::Calls)],
            Stage::Pipeline(way) => vec![Stage::Aggregation(Front::Calls), Stage::Network(way)],
            Stage::Aggregation(Front::Calls)
            | Stage::Network(_)
            | Stage::Delivery(_, Front::Calls) => Vec::new(),
        };
        stages.into_iter().map(|stage| self.at(stage)).collect()
    }
}
