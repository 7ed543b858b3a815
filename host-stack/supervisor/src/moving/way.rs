//! The ways that the image of a tree takes to its heir: those that PPMR's section V-C compares, and a descriptor, where both
//! supervisors are on one machine.
//!
//! ```text
//!               source                                        heir
//! Descriptor    memory --------------------------------------> the same memory
//! Pipeline      chunks of a pool ====== TCP or RDMA ======> chunks of a pool --> memory, read as it comes
//! RDMA+Local    chunks of a pool ====== TCP or RDMA ======> chunks of a pool --> a file, read when it is there
//! Local         a file ------------------ scp(1) ------------> a file
//! Shared        a file of a file system that both have ------> the same file
//! ```

use std::{
    fs::{self, File},
    net::IpAddr,
    path::PathBuf,
};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use snaprig_ckpt_image::image::FileSink;
use snaprig_image::{Filled, Memory, Sink};
use snaprig_peers::{Address, Token};
use snaprig_ppmr::{
    Buffers, Digest, Mode,
    driver::{
        source::{Moves, SourceNode, Writer},
        transport::Transport,
    },
};
use snaprig_resources::error::{Error, Result};

use super::{network, scp::Scp};

/// The stream of a tree's image: a source has no other.
const RANK: u32 = 0;
/// What is lent for all buffers of an image's writer, its own among them.
const LENT_BYTES: usize = (PIPELINE_BUFFERS + 3) * (4 << 20) + (1 << 20);

/// The fastest there is but for those that hardly compress.
const ZSTD_LEVEL: i32 = 1;
/// One that is being filled, one that waits.
const PIPELINE_BUFFERS: usize = 2;

/// How an image is to come.
#[derive(Clone, Debug, Default)]
pub enum Strategy {
    /// As memory of this machine.
    #[default]
    Descriptor,
    /// Through a pipeline, and read while it is written.
    Pipeline(Pipelined),
    /// Through a pipeline into a file of this directory, which is read when all of it is there.
    RdmaLocal(Pipelined, PathBuf),
    /// Written to a file of this directory, copied by scp(1) to one that is the heir's.
    Local(IpAddr, PathBuf),
    /// Written to a file of this directory, which both nodes have.
    Shared(PathBuf),
}

/// A pipeline.
#[derive(Clone, Copy, Debug)]
pub struct Pipelined {
    /// Where the heir's node is reached.
    pub host: IpAddr,
    /// The pools of both nodes.
    pub buffers: Buffers,
    /// Which way chunks go.
    pub mode: Mode,
    /// By RDMA, or over a socket.
    pub transport: Transport,
    /// Whether memory goes before or after the tree does.
    pub copy: Copying,
    /// Compressed, as long as that is faster.
    pub compress: bool,
}

/// When large private memory goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Copying {
    /// While the tree stands still.
    #[default]
    Stopped,
    /// Most of it before that, while the tree runs where it was (pre-copy).
    Before,
    /// After that, while the tree runs where it goes on (post-copy).
    After,
}

/// The way that an image takes, as an order says it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Way {
    Descriptor,
    Pipeline(ToTarget),
    File {
        /// Where the source writes it.
        path: PathBuf,
        /// How the heir has it, if not by that name.
        copied: Option<Scp>,
    },
}

/// Where a pipeline leads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ToTarget {
    pub target: Address,
    pub secret: [u8; 32],
    pub pool_bytes: u64,
    pub chunk_bytes: u32,
    pub mode: Mode,
    pub copy: Copying,
    pub compress: bool,
}

impl Way {
    /// Whether most of the memory goes before the tree stands still.
    pub fn is_ahead(&self) -> bool {
        match self {
            Self::Descriptor => true,
            Self::Pipeline(to) => to.copy == Copying::Before,
            Self::File { .. } => false,
        }
    }

    /// Whether the tree runs before all of its memory has come.
    pub fn defers(&self) -> bool {
        matches!(self, Self::Pipeline(to) if to.copy == Copying::After)
    }

    /// Whether the image is read while it is written.
    pub fn is_read_at_once(&self) -> bool {
        matches!(self, Self::Pipeline(_))
    }

    /// How many buffers of an image may be on its way to whatever comes next.
    pub fn buffers_max(&self) -> usize {
        match self {
            // Its pools are what keeps writing and reading apart.
            Self::Pipeline(_) => PIPELINE_BUFFERS,
            Self::Descriptor | Self::File { .. } => usize::MAX,
        }
    }

    /// The level of zstd where compressing may be faster.
    pub fn zstd(&self) -> Option<i32> {
        match self {
            Self::Pipeline(to) => to.compress.then_some(ZSTD_LEVEL),
            Self::Descriptor | Self::File { .. } => None,
        }
    }

    /// Begins an image.
    pub fn open(&self) -> Result<Leads> {
        let failed = |source| Error::io(super::IMAGE, source);
        match self {
            Self::Descriptor => {
                let memory = memfd_create("snaprig-moving", MemfdFlags::CLOEXEC);
                let memory = File::from(memory.map_err(|error| failed(error.into()))?);
                let sink = FileSink::new(memory.try_clone().map_err(failed)?).map_err(failed)?;
                Ok(Leads {
                    sink: Box::new(sink),
                    memory: Some(memory),
                })
            }
            Self::Pipeline(to) => Ok(Leads {
                sink: Box::new(Pipe::connect(to).map_err(failed)?),
                memory: None,
            }),
            Self::File { path, .. } => {
                let file = File::create_new(path);
                let sink = file.and_then(FileSink::new);
                let sink = sink.map_err(|source| Error::io(path.display().to_string(), source))?;
                Ok(Leads {
                    sink: Box::new(sink),
                    memory: None,
                })
            }
        }
    }

    /// All of it is written: has the heir have it.
    pub fn arrive(&self) -> Result<()> {
        match self {
            Self::File {
                path,
                copied: Some(scp),
            } => scp.copy(path),
            _ => Ok(()),
        }
    }

    /// The source's file is of no use any more.
    pub fn clean_up(&self) {
        if let Self::File {
            path,
            copied: Some(_),
        } = self
        {
            // It need not be there.
            let _ = fs::remove_file(path);
        }
    }
}

/// Where an image goes.
pub struct Leads {
    pub sink: Box<dyn Sink>,
    /// What it is in, if the heir gets that.
    pub memory: Option<File>,
}

/// An image goes through a pipeline.
struct Pipe {
    node: SourceNode,
    writer: Option<Writer>,
}

impl Pipe {
    fn connect(to: &ToTarget) -> std::io::Result<Self> {
        let moves = Moves {
            buffers: Buffers {
                pool_bytes: to.pool_bytes,
                chunk_bytes: to.chunk_bytes,
            },
            mode: to.mode,
            ranks: vec![RANK],
            lent_bytes: LENT_BYTES,
            ..Moves::default()
        };
        let token = Token::new(to.secret);
        let node = network::within(|| SourceNode::connect(&to.target, &token, moves))??;
        let mut writer = node.writer(RANK);
        // Of the image: its reader checks every chunk.
        writer.vouch(Digest::none());
        let writer = Some(writer);
        Ok(Self { node, writer })
    }
}

impl Sink for Pipe {
    fn memory(&mut self, bytes: usize) -> std::io::Result<Box<dyn Memory>> {
        Ok(Box::new(self.node.lend(bytes)?))
    }

    fn write(&mut self, bytes: Filled) -> std::io::Result<()> {
        let ended = std::io::ErrorKind::BrokenPipe;
        let writer = self.writer.as_mut().ok_or(ended)?;
        writer.write_lent(bytes)
    }

    fn settle(&mut self) -> std::io::Result<bool> {
        Ok(self.node.settle(RANK))
    }

    fn finish(&mut self) -> std::io::Result<()> {
        if let Some(writer) = self.writer.take() {
            writer.end();
        }
        self.node.wait(RANK).map_err(std::io::Error::other)
    }
}
