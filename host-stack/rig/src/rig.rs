//! A rig: what it is to have, and how it starts and ends.

use std::{
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
};

use snaprig_card_platform::Kind;
use snaprig_scif::host::{HostNode, cards::CardState};
use tempfile::TempDir;

use crate::{card::Card, files::CardFiles};

/// Memory of a card unless told otherwise, in bytes.
pub(crate) const MEMORY_BYTES: u64 = 512 << 20;
/// Memory that a card may have, in bytes.
const MEMORY_BYTES_RANGE: RangeInclusive<u64> = 64 << 20..=16 << 30;
/// Most cores of a card: four times those of the largest Xeon Phi.
const CORES_MAX: usize = 288;
/// Longest name of the directory that a rig's own is made in. Sockets have names below it, and an address has room for 108
/// bytes (unix(7)).
const DIRECTORY_BYTES_MAX: usize = 64;

/// Why a rig did not start.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// The rig's directory.
    #[error("rig directory {path}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// A card's process could not be started.
    #[error("card {node}: {exe}: {source}")]
    Spawn {
        /// The card.
        node: u16,
        /// The program that was to be the card's process.
        exe: PathBuf,
        /// What the host said.
        source: io::Error,
    },
    /// A card ended, or did not answer, while it booted.
    #[error("card {node} did not boot: {why}")]
    Boot {
        /// The card.
        node: u16,
        /// What is known of it.
        why: String,
    },
    /// A card that is not in the state for what was asked.
    #[error("card {node} is {state}: it cannot be {what}")]
    State {
        /// The card.
        node: u16,
        /// Its state.
        state: CardState,
        /// What was asked.
        what: &'static str,
    },
    /// There is no `snaprig` program, of which cards are processes.
    #[error("{0}")]
    Program(#[source] io::Error),
    /// The process of a card does not end.
    #[error("card {node}: ending its process: {source}")]
    End {
        /// The card.
        node: u16,
        /// What the host said.
        source: io::Error,
    },
    /// No card has so much memory, or so little.
    #[error("a card with {bytes} bytes of memory: it must be 64 MiB to 16 GiB, in pages of 4 KiB")]
    Memory {
        /// What was asked for.
        bytes: u64,
    },
    /// No card has so many cores.
    #[error("a card with {cores} cores: it must be 1 to {CORES_MAX}")]
    Cores {
        /// What was asked for.
        cores: usize,
    },
    /// The host's SCIF node.
    #[error("host SCIF node: {0}")]
    Node(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Where rigs have their directories: where the user has what is temporary, but not below a long name.
fn rigs_directory() -> PathBuf {
    let directory = std::env::temp_dir();
    match directory.as_os_str().len() <= DIRECTORY_BYTES_MAX {
        true => directory,
        false => "/tmp".into(),
    }
}

/// What a rig is to have.
#[derive(Clone, Debug)]
pub struct RigBuilder {
    pub(crate) exe: PathBuf,
    cards: usize,
    pub(crate) memory_bytes: Vec<u64>,
    pub(crate) cores: usize,
    pub(crate) platforms: Vec<Kind>,
    pub(crate) files: Vec<CardFiles>,
    pub(crate) keep: bool,
}

impl RigBuilder {
    /// The `snaprig` program, which is a card when it is started as such (default:
    /// [`snaprig_sdk::program::default`])
    #[must_use]
    pub fn exe(mut self, exe: impl Into<PathBuf>) -> Self {
        self.exe = exe.into();
        self
    }

    /// How many cards (1 to 8; default 1).
    #[must_use]
    pub fn cards(mut self, cards: usize) -> Self {
        self.cards = cards;
        self
    }

    /// Memory of every card, in bytes (default 512 MiB).
    #[must_use]
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = vec![bytes];
        self
    }

    /// Memory of each card, in bytes; the last one holds for all further cards.
    #[must_use]
    pub fn memory_bytes_each(mut self, bytes: &[u64]) -> Self {
        self.memory_bytes = bytes.to_vec();
        self
    }

    /// Cores of every card (default 4).
    #[must_use]
    pub fn cores(mut self, cores: usize) -> Self {
        self.cores = cores;
        self
    }

    /// The platform of every card; `None` (the default) is the best that works.
    #[must_use]
    pub fn platform(mut self, platform: Option<Kind>) -> Self {
        self.platforms = platform.into_iter().collect();
        self
    }

    /// The platform of each card; the last one holds for all further cards.
    #[must_use]
    pub fn platform_each(mut self, platforms: &[Kind]) -> Self {
        self.platforms = platforms.to_vec();
        self
    }

    /// Files of the host that every card has from its start.
    #[must_use]
    pub fn files(mut self, files: Vec<CardFiles>) -> Self {
        self.files = files;
        self
    }

    /// Leave the rig's directory behind, for inspection. `SNAPRIG_KEEP=1` does the same.
    #[must_use]
    pub fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// Starts the cards and the host's node, and waits until every card's COI daemon listens.
    pub fn start(mut self) -> Result<Rig, RigError> {
        self.keep |= std::env::var_os("SNAPRIG_KEEP").is_some();
        for bytes in self.memory_bytes.iter().copied() {
            if !MEMORY_BYTES_RANGE.contains(&bytes) || !bytes.is_multiple_of(4096) {
                return Err(RigError::Memory { bytes });
            }
        }
        if !(1..=CORES_MAX).contains(&self.cores) {
            return Err(RigError::Cores { cores: self.cores });
        }
        self.exe = snaprig_sdk::program::find(&self.exe).map_err(RigError::Program)?;
        let directory = rigs_directory();
        let mut dir = tempfile::Builder::new()
            .prefix("snaprig-")
            .tempdir_in(&directory)
            .map_err(|source| RigError::Directory {
                path: directory,
                source,
            })?;
        dir.disable_cleanup(self.keep);
        let host = HostNode::start(dir.path().join("scif.sock"));
        let host = Arc::new(host.map_err(|e| RigError::Node(e.into()))?);
        let io =
            snaprig_snapify_io::Daemon::start(dir.path()).map_err(|e| RigError::Node(e.into()))?;
        let cards = (1..=self.cards)
            .map(|number| Card::new(&self, dir.path(), number as u16, &host))
            .collect::<Vec<_>>();
        // All boot at once.
        for step in [Card::power_on, Card::attach, Card::wait_online] {
            cards.iter().try_for_each(step)?;
        }
        Ok(Rig {
            cards,
            _io: io,
            node: host,
            dir,
        })
    }
}

/// A running rig.
pub struct Rig {
    // In the order in which they end: cards first, so that nobody reports their loss.
    cards: Vec<Card>,
    _io: snaprig_snapify_io::Daemon,
    node: Arc<HostNode>,
    dir: TempDir,
}

impl Rig {
    /// A rig of one card with 512 MiB and 4 cores, made by the default program ([`RigBuilder::exe`]).
    pub fn builder() -> RigBuilder {
        RigBuilder {
            exe: snaprig_sdk::program::default(),
            cards: 1,
            memory_bytes: vec![MEMORY_BYTES],
            cores: 4,
            platforms: Vec::new(),
            files: Vec::new(),
            keep: false,
        }
    }

    /// Leaves the rig's directory behind.
    pub fn keep(&mut self) {
        self.dir.disable_cleanup(true);
    }

    /// The directory that host programs are given as `$SNAPRIG_RIG`.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The cards; card `i` is SCIF node `i + 1`.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// Card `i`, to be killed, reset, unplugged.
    pub fn card(&self, i: usize) -> &Card {
        &self.cards[i]
    }

    /// The host's SCIF node.
    pub fn node(&self) -> &HostNode {
        &self.node
    }
}
