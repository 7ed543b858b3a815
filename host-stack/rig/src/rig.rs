//! Starting, killing and cleaning up the processes of a rig.

use std::{
    io::{self, Write},
    ops::RangeInclusive,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use snaprig_card::platform::Kind;
use snaprig_scif::host::{HostConfig, HostNode};
use tempfile::TempDir;

use crate::{card_process::KILL_DAEMON, files::CardFiles};

/// How long a card may take from its start to a COI daemon that listens. Software emulation
/// (`ci/vm`) is 20 times slower than hardware.
const BOOT_TIMEOUT: Duration = Duration::from_secs(60);

/// Memory that a card may have, in bytes.
const MEMORY_BYTES: RangeInclusive<u64> = 64 << 20..=16 << 30;
/// Most cores of a card: four times those of the largest Xeon Phi.
const CORES_MAX: usize = 288;

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

/// What a rig is to have.
#[derive(Clone, Debug)]
pub struct RigBuilder {
    exe: PathBuf,
    cards: usize,
    memory_bytes: Vec<u64>,
    cores: usize,
    platform: Option<Kind>,
    files: Vec<CardFiles>,
    keep: bool,
}

impl RigBuilder {
    /// The program whose hidden command `card-process` is a card: `snaprig` itself. Tests pass
    /// `env!("CARGO_BIN_EXE_...")`.
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
        self.platform = platform;
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
            if !MEMORY_BYTES.contains(&bytes) || !bytes.is_multiple_of(4096) {
                return Err(RigError::Memory { bytes });
            }
        }
        if !(1..=CORES_MAX).contains(&self.cores) {
            return Err(RigError::Cores { cores: self.cores });
        }
        let mut dir = tempfile::Builder::new()
            .prefix("snaprig-")
            .tempdir()
            .map_err(|source| RigError::Directory {
                path: std::env::temp_dir(),
                source,
            })?;
        dir.disable_cleanup(self.keep);
        let mut cards = (1..=self.cards)
            .map(|number| Card::start(&self, dir.path(), number as u16))
            .collect::<Result<Vec<_>, _>>()?;
        for card in &mut cards {
            card.wait_for_socket()?;
        }
        let config = HostConfig {
            socket: dir.path().join("scif.sock"),
            cards: cards.iter().map(|card| card.socket.clone()).collect(),
        };
        let node = HostNode::start(config).map_err(|e| RigError::Node(e.into()))?;
        let io =
            snaprig_snapify_io::Daemon::start(dir.path()).map_err(|e| RigError::Node(e.into()))?;
        let mut rig = Rig {
            cards,
            _io: io,
            node,
            dir,
        };
        rig.wait_online()?;
        Ok(rig)
    }
}

/// A running rig.
pub struct Rig {
    // In the order in which they end: cards first, so that nobody reports their loss.
    cards: Vec<Card>,
    _io: snaprig_snapify_io::Daemon,
    node: HostNode,
    dir: TempDir,
}

impl Rig {
    /// A rig of one card with 512 MiB and 4 cores, made by `snaprig` from the path.
    pub fn builder() -> RigBuilder {
        RigBuilder {
            exe: "snaprig".into(),
            cards: 1,
            memory_bytes: vec![512 << 20],
            cores: 4,
            platform: None,
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

    /// Card `i`, to be killed.
    pub fn card_mut(&mut self, i: usize) -> &mut Card {
        &mut self.cards[i]
    }

    /// The host's SCIF node.
    pub fn node(&self) -> &HostNode {
        &self.node
    }

    fn wait_online(&mut self) -> Result<(), RigError> {
        for card in &mut self.cards {
            self.node
                .wait_online(card.node, BOOT_TIMEOUT)
                .map_err(|e| {
                    let why = match card.child.try_wait() {
                        Ok(Some(status)) => format!("its process ended: {status}"),
                        _ => e.to_string(),
                    };
                    RigError::Boot {
                        node: card.node,
                        why,
                    }
                })?;
        }
        Ok(())
    }
}

/// A card's process.
pub struct Card {
    node: u16,
    socket: PathBuf,
    child: Child,
}

impl Card {
    fn start(rig: &RigBuilder, dir: &Path, node: u16) -> Result<Self, RigError> {
        let socket = dir.join(format!("card{node}.sock"));
        let memory = rig
            .memory_bytes
            .get(node as usize - 1)
            .or(rig.memory_bytes.last());
        let mut command = Command::new(&rig.exe);
        command
            .arg("card-process")
            .arg("--socket")
            .arg(&socket)
            .args((!rig.keep).then_some("--remove-directory"))
            .args(["--node", &node.to_string()])
            .args([
                "--memory",
                &memory.copied().unwrap_or(512 << 20).to_string(),
            ])
            .args(["--cores", &rig.cores.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // What a terminal sends to the rig's group is not for the card: it ends after the rig,
            // and tidies up.
            .process_group(0);
        if let Some(platform) = rig.platform {
            command.args(["--platform", &platform.to_string()]);
        }
        for files in &rig.files {
            command.arg("--files").arg(files.to_string());
        }
        let spawn = |source| RigError::Spawn {
            node,
            exe: rig.exe.clone(),
            source,
        };
        let child = command.spawn().map_err(spawn)?;
        Ok(Self {
            node,
            socket,
            child,
        })
    }

    /// Waits until its PCI function is served, or its process has ended.
    fn wait_for_socket(&mut self) -> Result<(), RigError> {
        let deadline = Instant::now() + BOOT_TIMEOUT;
        while !self.socket.exists() {
            let why = match self.child.try_wait() {
                Ok(Some(status)) => format!("its process ended: {status}; see its message above"),
                _ if Instant::now() >= deadline => format!("nothing after {BOOT_TIMEOUT:?}"),
                _ => {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                }
            };
            return Err(RigError::Boot {
                node: self.node,
                why,
            });
        }
        Ok(())
    }

    /// Its SCIF node.
    pub fn node(&self) -> u16 {
        self.node
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills its COI daemon (SIGKILL, on the card); the card stops without it.
    pub fn kill_daemon(&mut self) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut();
        let stdin = stdin.ok_or(io::ErrorKind::BrokenPipe)?;
        stdin.write_all(&[KILL_DAEMON])
    }

    /// Kills its process (SIGKILL) and waits until it is gone: a card failure.
    pub fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(|_| ())
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        // It may be gone already; there is nobody to tell.
        let _ = self.kill();
    }
}
