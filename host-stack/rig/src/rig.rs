//! A rig: what it is to have, and how it starts and ends.

use std::{
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::Arc,
};

use snaprig_card_platform::Kind;
use snaprig_scif::host::{HostNode, cards::CardState};
use snaprig_snapify_io::{Grant, sums::StoreError};
use tempfile::TempDir;

use crate::{
    card::Card,
    control::Service,
    files::CardFiles,
    network::{Network, NetworkError},
    sysfs::Sysfs,
};

/// Memory of a card unless told otherwise, in bytes.
pub(crate) const MEMORY_BYTES: u64 = 512 << 20;
/// Memory that a card may have, in bytes.
const MEMORY_BYTES_RANGE: RangeInclusive<u64> = 64 << 20..=16 << 30;
/// Most processors of a card: those of the largest Xeon Phi, of 72 cores.
const PROCESSORS_MAX: usize = 288;
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
    /// No card has this number.
    #[error("there is no card {node}: the rig has {}", named(cards))]
    NoCard {
        /// What was asked for.
        node: u16,
        /// The cards that there are.
        cards: Vec<u16>,
    },
    /// There is no `snaprig` program, of which cards are processes.
    #[error("{0}")]
    Program(#[source] io::Error),
    /// A card's process does not take what it is told.
    #[error("card {node} cannot be told anything: {source}")]
    Order {
        /// The card.
        node: u16,
        /// What the host said.
        source: io::Error,
    },
    /// The process of a card does not end.
    #[error("card {node}: ending its process: {source}")]
    End {
        /// The card.
        node: u16,
        /// What the host said.
        source: io::Error,
    },
    /// A directory that cards were to share.
    #[error("a directory for cards: {0}")]
    Share(#[source] StoreError),
    /// No card has so much memory, or so little.
    #[error("a card with {bytes} bytes of memory: it must be 64 MiB to 16 GiB, in pages of 4 KiB")]
    Memory {
        /// What was asked for.
        bytes: u64,
    },
    /// No card has so many processors.
    #[error(
        "a card with {processors} processors (cores, times hardware threads of each): it must be 1 to {PROCESSORS_MAX}"
    )]
    Processors {
        /// What was asked for.
        processors: usize,
    },
    /// The network between host and cards.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The host's SCIF node.
    #[error("host SCIF node: {0}")]
    Node(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Cards, as in `cards 1, 2 and 3`.
fn named(cards: &[u16]) -> String {
    let words: Vec<_> = cards.iter().map(u16::to_string).collect();
    match words.split_last() {
        None => "no cards".into(),
        Some((last, [])) => format!("card {last}"),
        Some((last, others)) => format!("cards {} and {last}", others.join(", ")),
    }
}

/// The one of these cards that is this SCIF node.
pub(crate) fn card_of_node(cards: &[Card], node: u16) -> Result<&Card, RigError> {
    let card = cards.iter().find(|card| card.node() == node);
    card.ok_or_else(|| {
        let cards = cards.iter().map(Card::node).collect();
        RigError::NoCard { node, cards }
    })
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
    pub(crate) cards: usize,
    pub(crate) memory_bytes: Vec<u64>,
    pub(crate) cores: usize,
    pub(crate) threads_per_core: usize,
    pub(crate) platforms: Vec<Kind>,
    pub(crate) files: Vec<CardFiles>,
    shares: Vec<PathBuf>,
    pub(crate) network: bool,
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

    /// Hardware threads of every core (default 1; a Knights Corner has 4).
    #[must_use]
    pub fn threads_per_core(mut self, threads: usize) -> Self {
        self.threads_per_core = threads;
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

    /// Directories of the host in which programs on cards may read and write files, with Snapify-IO.
    #[must_use]
    pub fn shares(mut self, directories: Vec<PathBuf>) -> Self {
        self.shares = directories;
        self
    }

    /// Gives host and cards a network to each other ([`crate::network`]), which takes CAP_NET_ADMIN and CAP_SYS_ADMIN (default: none).
    #[must_use]
    pub fn network(mut self, network: bool) -> Self {
        self.network = network;
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
        let processors = self.cores.saturating_mul(self.threads_per_core);
        if !(1..=PROCESSORS_MAX).contains(&processors) {
            return Err(RigError::Processors { processors });
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
        let programs = snaprig_snapify_io::Programs::start(dir.path());
        let programs = programs.map_err(|e| RigError::Node(e.into()))?;
        let shares = self
            .shares
            .iter()
            .map(|shared| Grant::new(dir.path(), shared))
            .collect::<Result<_, _>>()
            .map_err(RigError::Share)?;
        let network = match self.network {
            true => Some(Network::start(dir.path(), self.cards as u16)?),
            false => None,
        };
        let cards = (1..=self.cards)
            .map(|number| Card::new(&self, dir.path(), number as u16, &host))
            .collect::<Arc<[_]>>();
        // All boot at once.
        for step in [Card::power_on, Card::attach, Card::wait_online] {
            cards.iter().try_for_each(step)?;
        }
        let sysfs =
            Sysfs::start(dir.path(), &cards, &host).map_err(|e| RigError::Node(e.into()))?;
        let control = Service::start(dir.path(), cards.clone());
        let control = control.map_err(|e| RigError::Node(e.into()))?;
        Ok(Rig {
            _control: control,
            _sysfs: sysfs,
            cards,
            _io: (io, programs),
            _shares: shares,
            _network: network,
            node: host,
            dir,
        })
    }
}

/// A running rig.
pub struct Rig {
    // In the order in which they end: cards before what reports their loss, and nobody plugs one in again.
    _control: Service,
    _sysfs: Sysfs,
    cards: Arc<[Card]>,
    _io: (snaprig_snapify_io::Daemon, snaprig_snapify_io::Programs),
    _shares: Vec<Grant>,
    _network: Option<Network>,
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
            threads_per_core: 1,
            platforms: Vec::new(),
            files: Vec::new(),
            shares: Vec::new(),
            network: false,
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

    /// The card that is this SCIF node.
    pub fn card_of_node(&self, node: u16) -> Result<&Card, RigError> {
        card_of_node(&self.cards, node)
    }

    /// The host's SCIF node.
    pub fn node(&self) -> &HostNode {
        &self.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_a_card_that_is_not_there_hears_which_are() {
        let said = |cards: &[u16]| {
            let cards = cards.to_vec();
            RigError::NoCard { node: 9, cards }.to_string()
        };
        assert_eq!(said(&[1]), "there is no card 9: the rig has card 1");
        assert_eq!(
            said(&[1, 2, 3]),
            "there is no card 9: the rig has cards 1, 2 and 3"
        );
    }
}
