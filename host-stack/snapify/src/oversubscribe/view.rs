//! What there is in a rig: its cards, and the offload processes of all its programs.
//!
//! What must stay true: a process that somebody else pauses or swaps is not touched; a program that does not answer keeps
//! nobody waiting for long.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use snaprig_coi::{Engine, gate::RESERVE_PART};
use snaprig_scif::{client::Endpoint, host::cards::CardState};
use snaprig_wire::scif::{HOST, NodeId};

use super::policy::{Card, Policy, Seen, Sight, Who};
use crate::{
    Phase,
    control::{Client, Command, Described, programs},
    snapshot_name,
};

/// How long a program may take to say which processes it has, and how long it is let alone if it does not.
const LIST_TIME_MAX: Duration = Duration::from_millis(500);
const SILENCE: Duration = Duration::from_secs(5);
/// How long a program that says nothing is taken for one that is about to.
const NEW: Duration = Duration::from_secs(30);
/// What a process takes beside its buffers, until a swap has shown it; and at least.
const IMAGE_BYTES: u64 = 8 << 20;
const IMAGE_BYTES_MIN: u64 = 1 << 20;

/// What was moved in a swap.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    /// To the disk, or from there.
    pub bytes: u64,
    /// So much more of its card is free: others come and go meanwhile.
    pub freed_bytes: u64,
}

/// A program with offload processes.
struct Host {
    since: Instant,
    /// It has said which it has, or is gone.
    is_known: bool,
    client: Option<Client>,
    processes: Vec<Described>,
    silent_until: Option<Instant>,
}

/// The rig, as it was seen last.
pub(super) struct View {
    rig: PathBuf,
    directory: PathBuf,
    hosts: BTreeMap<u32, Host>,
    memory_bytes: BTreeMap<NodeId, u64>,
    /// The most that was ever free on a card.
    most_free_bytes: BTreeMap<NodeId, u64>,
    /// Cards of which somebody has said that they are about to fail.
    pub failing: BTreeSet<NodeId>,
    /// What processes take beside their buffers.
    images: BTreeMap<Who, u64>,
    /// Processes whose swap is under way.
    pub swapping: BTreeSet<Who>,
}

impl View {
    pub fn new(rig: &Path, directory: &Path) -> Self {
        Self {
            rig: rig.to_owned(),
            directory: directory.to_owned(),
            hosts: BTreeMap::new(),
            memory_bytes: BTreeMap::new(),
            most_free_bytes: BTreeMap::new(),
            failing: BTreeSet::new(),
            images: BTreeMap::new(),
            swapping: BTreeSet::new(),
        }
    }

    /// Looks at everything. None: the rig is gone.
    pub fn look(&mut self, policy: &Policy) -> Option<Sight> {
        let pids = programs(&self.rig).ok()?;
        self.hosts.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            let host = self.hosts.entry(pid).or_insert_with(Host::new);
            host.list(&self.rig, pid);
        }
        let cards = self.cards();
        let all = self.described().filter_map(|(who, process)| {
            let seen = self.seen(who, process, policy)?;
            Some((who, seen))
        });
        let processes: BTreeMap<_, _> = all.collect();
        self.images.retain(|who, _| processes.contains_key(who));
        let mut hosts = self.hosts.values();
        let has_unknown = hosts.any(|host| !host.is_known && host.since.elapsed() < NEW);
        Some(Sight {
            cards,
            processes,
            has_unknown,
        })
    }

    /// All processes, as they were seen last.
    fn described(&self) -> impl Iterator<Item = (Who, &Described)> {
        self.hosts.iter().flat_map(|(pid, host)| {
            let with_name = |process: &'_ Described| Who {
                host: *pid,
                process: process.process,
            };
            host.processes
                .iter()
                .map(move |process| (with_name(process), process))
        })
    }

    /// A process, as it was seen last.
    pub fn process(&self, who: Who) -> Option<&Described> {
        let host = self.hosts.get(&who.host)?;
        let mut processes = host.processes.iter();
        processes.find(|process| process.process == who.process)
    }

    /// Whether there is such a card.
    pub fn has_card(&self, node: NodeId) -> bool {
        self.memory_bytes.contains_key(&node)
    }

    /// What its program is called.
    pub fn name(&self, who: Who) -> &str {
        self.process(who).map_or("?", |process| &process.name)
    }

    /// Where its snapshot is, or will be.
    pub fn snapshot(&self, who: Who) -> Option<PathBuf> {
        let name = &self.process(who)?.name;
        let name = snapshot_name(name, who.host, who.process);
        Some(self.directory.join(name))
    }

    fn cards(&mut self) -> BTreeMap<NodeId, Card> {
        let states = Endpoint::open(&self.rig).and_then(|endpoint| endpoint.cards());
        let mut cards = BTreeMap::new();
        // A rig that ends has none.
        for (node, state) in states.unwrap_or_default() {
            let is_leaving = state == CardState::ShuttingDown;
            if node == HOST || !(is_leaving || state == CardState::Online) {
                continue;
            }
            let engine = Engine::get(&self.rig, node - 1);
            let info = engine.and_then(|engine| engine.info()).unwrap_or_default();
            let memory_bytes = self.memory_bytes.entry(node).or_default();
            *memory_bytes = info.memory_bytes.max(*memory_bytes);
            let reserve = *memory_bytes / RESERVE_PART;
            let free_bytes = info.free_bytes.saturating_sub(reserve);
            let most_free_bytes = self.most_free_bytes.entry(node).or_default();
            *most_free_bytes = free_bytes.max(*most_free_bytes);
            let card = Card {
                memory_bytes: *memory_bytes - reserve,
                free_bytes,
                is_failing: is_leaving || self.failing.contains(&node),
            };
            cards.insert(node, card);
        }
        cards
    }

    /// How the policy is to see a process; none: it is somebody else's concern.
    fn seen(&self, who: Who, process: &Described, policy: &Policy) -> Option<Seen> {
        let is_known = policy.account(who).is_some();
        let is_swapping = self.swapping.contains(&who);
        let node = match process.state {
            Phase::Running => Some(process.card),
            // An arbiter before this one may have left it out.
            Phase::SwappedOut => {
                let is_ours =
                    policy.has_away(who) || self.snapshot(who).is_some_and(|path| path.is_dir());
                is_ours.then_some(())?;
                None
            }
            Phase::Ended => return None,
            _ if is_known && is_swapping => Some(process.card),
            _ => return None,
        };
        let image = self.images.get(&who).copied().unwrap_or(IMAGE_BYTES);
        // It has been on one of them: what it takes is not known so well that it would not fit on a card that is empty.
        let most = self.most_free_bytes.values().max();
        Some(Seen {
            node,
            bytes: process
                .buffer_bytes
                .saturating_add(image)
                .min(most.copied().unwrap_or(u64::MAX)),
            is_wanted: process.is_wanted,
        })
    }

    /// What a swap has shown of a process; none: there was no room for it.
    pub fn learn(&mut self, who: Who, moved: Option<Moved>) {
        let buffers = self.process(who).map_or(0, |process| process.buffer_bytes);
        let image = self.images.entry(who).or_insert(IMAGE_BYTES);
        *image = match moved {
            Some(Moved { bytes, freed_bytes }) => {
                // Page tables and files are no part of an image; what was written to while it was saved is in there twice.
                let most = (bytes + bytes / 8).saturating_sub(buffers);
                let least = bytes.saturating_sub(2 * buffers);
                let freed_bytes = freed_bytes.saturating_sub(buffers);
                freed_bytes.clamp(least, most).max(IMAGE_BYTES_MIN)
            }
            None => *image + *image / 8,
        };
    }

    /// Free memory of a process's card, as long as that is there.
    pub fn free_bytes(&self, who: Who) -> impl Fn() -> u64 + Send + use<> {
        let (rig, node) = (self.rig.clone(), self.process(who).map(|it| it.card));
        move || {
            let engine = node.and_then(|node| Engine::get(&rig, node - 1).ok());
            engine.map_or(0, |engine| engine.info().map_or(0, |info| info.free_bytes))
        }
    }

    /// Its snapshot has served its purpose.
    pub fn forget_snapshot(&self, who: Who) {
        if let Some(path) = self.snapshot(who) {
            // Whoever has taken it away before us has done no harm.
            let _ = fs::remove_dir_all(path);
        }
    }
}

impl Host {
    fn new() -> Self {
        Self {
            since: Instant::now(),
            is_known: false,
            client: None,
            processes: Vec::new(),
            silent_until: None,
        }
    }

    /// Asks which processes it has. One that does not say so has what it had; one that is gone has none.
    fn list(&mut self, rig: &Path, pid: u32) {
        let now = Instant::now();
        if self.silent_until.is_some_and(|until| now < until) {
            return;
        }
        self.silent_until = None;
        let client = match self.client.take() {
            Some(client) => Ok(client),
            None => Client::connect(rig, pid),
        };
        // A program that has ended leaves its socket.
        let Ok(mut client) = client else {
            self.is_known = true;
            return self.processes.clear();
        };
        match client.run(&Command::List, LIST_TIME_MAX) {
            Ok(report) => {
                self.processes = report.processes;
                self.client = Some(client);
                self.is_known = true;
            }
            Err(crate::control::ControlError::TimedOut) => self.silent_until = Some(now + SILENCE),
            Err(_) => self.processes.clear(),
        }
    }
}
