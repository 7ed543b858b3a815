//! Whose turn it is on cards that are too small for all: takes what is seen of cards and processes, and says which swaps are
//! to be made and which requests for room are granted. It does no I/O.
//!
//! ```text
//!            SwapOut               Swapped                  SwapIn                 Swapped
//!  resident --------> leaving ----------------> out ---------------> coming ----------------> resident
//!     ^                  |  failed               ^  wanted, and its    |  failed
//!     '------------------'                       |  turn has come      |
//!                                                '---------------------'
//! ```
//!
//! Who claims room: a process that is out and wanted, and a request, for a buffer or for a new process. Claims are served in
//! the order of turns, which advance as a process is served: the one that was served least comes
//! first. The first claim that finds no room holds its card, so that no later one takes from it what is freed for it. A
//! resident process is a victim when its stay has been long enough, and when nobody wants it or it was served as much as who
//! claims; of those nobody wants, the one goes first that has been idle for longest.
//!
//! What must stay true:
//!
//! - **Thrash is bounded.** A process leaves for others only when its stay has lasted for [`Settings::worth`] times what its
//!   swaps since the last stay have cost, failed ones too, and for a quantum at least. So of a process's time on cards and on
//!   its way at most 1 part in `worth + 1` goes into swaps, those aside that its stay of now has still to be worth. Only a
//!   card that is about to fail has its processes leave earlier; what that costs, later stays have to be worth.
//! - **Nobody starves.** The turn of a process that waits stands still while those of resident ones advance, and no process
//!   is ahead of the others by more than [`LEAD_STAYS_MAX`] stays when it leaves.
//! - **No card is promised twice.** What was granted or is to come in counts as taken until it is seen to be.
//! - **Every request is answered.** Who waits for room may itself be swapped out: then it comes back with the room that it
//!   asked for. A request is refused when all that could have made room has, or has failed to [`FAILURES_MAX`] times, and it
//!   has been so for [`Settings::patience`].

pub mod account;
mod claims;
mod process;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use snaprig_wire::scif::NodeId;

pub use self::account::{Account, jain};
use self::process::{Place, Process};

/// No request is kept waiting for a process whose swaps have failed so often in a row, before it is tried again.
pub const FAILURES_MAX: u32 = 3;
/// How many of its stays a process may be ahead of the one that was served least, when it leaves.
pub const LEAD_STAYS_MAX: u32 = 4;

/// A process: its host process, and its number in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Who {
    /// The host process.
    pub host: u32,
    /// The number of the offload process in it.
    pub process: u64,
}

/// The number of a request for room.
pub type RequestId = u64;

/// What can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The shortest stay of a process on a card, if others want its place.
    pub quantum: Duration,
    /// How many times longer than its swaps a stay is, at least.
    pub worth: u32,
    /// How long a request waits where nobody is known who could make room: one that is being made, or goes, is not.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            quantum: Duration::from_secs(1),
            worth: 9,
            patience: Duration::from_secs(10),
        }
    }
}

/// A card, as it is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    /// All of its memory.
    pub memory_bytes: u64,
    /// What of it is free.
    pub free_bytes: u64,
    /// It is about to fail: nothing goes there, and what is there leaves.
    pub is_failing: bool,
}

/// A process, as it is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its card; none if it is out. While it is on its way, that means nothing.
    pub node: Option<NodeId>,
    /// Card memory that it takes: of one that is out, what it took.
    pub bytes: u64,
    /// Something of the program waits for it.
    pub is_wanted: bool,
}

/// All that is seen at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sight {
    /// The cards that there are.
    pub cards: BTreeMap<NodeId, Card>,
    /// The processes that take turns.
    pub processes: BTreeMap<Who, Seen>,
    /// There may be others: a program that is new has not said yet which it has.
    pub has_unknown: bool,
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Everything, as it is seen: also before the end of a swap or of a grant is told.
    Sight(Sight),
    /// A program has found no room on a card, and waits.
    Request {
        /// A number of its own.
        id: RequestId,
        /// The process that needs it; none: one that is to be made.
        who: Option<Who>,
        /// The card, of a process that is to be made.
        node: NodeId,
        /// How much it needs.
        bytes: u64,
    },
    /// A request is withdrawn; or what was granted has been used, or is not needed any more.
    RequestOver(RequestId),
    /// The swap of this process that was ordered has ended, well or not.
    Swapped(Who, bool),
    /// The time that [`Policy::deadline`] has named has come.
    Tick,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Swap it out.
    SwapOut(Who),
    /// Swap it in, on this card.
    SwapIn(Who, NodeId),
    /// Who asked may try again: so much is free, and kept for it until the request is over.
    Grant(RequestId),
    /// There will be no room.
    Refuse(RequestId),
}

#[derive(Debug)]
struct Request {
    who: Option<Who>,
    node: NodeId,
    bytes: u64,
    /// Where in the order it stands: by its process's turn when it came, then by the time.
    turn: Duration,
    since: Duration,
    /// Since when nobody is known who could make room for it; none: somebody is.
    hopeless: Option<Duration>,
    is_granted: bool,
}

/// The policy: [`Policy::handle`] everything that happens, then [`Policy::poll_output`].
#[derive(Debug)]
pub struct Policy {
    settings: Settings,
    now: Duration,
    cards: BTreeMap<NodeId, Card>,
    processes: BTreeMap<Who, Process>,
    requests: BTreeMap<RequestId, Request>,
    /// There may be processes that nobody knows of yet.
    has_unknown: bool,
    /// No wanted process has a turn before this one.
    floor: Duration,
    wake: Option<Duration>,
    outputs: VecDeque<Output>,
}

impl Policy {
    /// Without cards and processes.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            now: Duration::ZERO,
            cards: BTreeMap::new(),
            processes: BTreeMap::new(),
            requests: BTreeMap::new(),
            has_unknown: false,
            floor: Duration::ZERO,
            wake: None,
            outputs: VecDeque::new(),
        }
    }

    /// Takes note of what happened at `now`, and decides.
    pub fn handle(&mut self, input: Input, now: Duration) {
        self.pass_time(now);
        match input {
            Input::Sight(sight) => self.see(sight),
            Input::Request {
                id,
                who,
                node,
                bytes,
            } => self.ask(id, who, node, bytes),
            Input::RequestOver(id) => {
                self.requests.remove(&id);
            }
            Input::Swapped(who, is_well) => self.swapped(who, is_well),
            Input::Tick => {}
        }
        self.decide();
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Tick`] is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.wake
    }

    /// What has become of a process so far.
    pub fn account(&self, who: Who) -> Option<&Account> {
        self.processes.get(&who).map(|process| &process.account)
    }

    /// All processes, and what has become of them so far.
    pub fn accounts(&self) -> impl Iterator<Item = (Who, &Account)> {
        let all = self.processes.iter();
        all.map(|(who, process)| (*who, &process.account))
    }

    /// The card that a process is on.
    pub fn card(&self, who: Who) -> Option<NodeId> {
        match self.processes.get(&who)?.place {
            Place::In(node) | Place::Leaving(node) => Some(node),
            Place::Out | Place::Coming(..) => None,
        }
    }

    /// Whether a process is out because this policy said so, or on its way out or in.
    pub fn has_away(&self, who: Who) -> bool {
        let process = self.processes.get(&who);
        process.is_some_and(|process| !matches!(process.place, Place::In(_)))
    }

    fn pass_time(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        for process in self.processes.values_mut() {
            process.pass(passed);
        }
        let wanted = self.processes.values().filter(|one| one.is_wanted);
        if let Some(least) = wanted.map(|one| one.turn).min() {
            self.floor = self.floor.max(least);
        }
    }

    fn see(&mut self, sight: Sight) {
        self.cards = sight.cards;
        self.has_unknown = sight.has_unknown;
        self.processes
            .retain(|who, _| sight.processes.contains_key(who));
        for (who, seen) in sight.processes {
            self.see_process(who, seen);
        }
    }

    fn see_process(&mut self, who: Who, seen: Seen) {
        let (now, floor) = (self.now, self.floor);
        let place = seen.node.map_or(Place::Out, Place::In);
        let process = self
            .processes
            .entry(who)
            .or_insert_with(|| Process::new(place, now));
        if seen.is_wanted != process.is_wanted {
            process.is_wanted = seen.is_wanted;
            // Who has asked for nothing has saved up nothing.
            process.turn = process.turn.max(floor);
            process.changed = now;
        }
        process.bytes = seen.bytes;
        if let (Place::In(before), Place::In(node)) = (process.place, place)
            && before != node
        {
            process.arrive(node, now);
        }
    }

    fn ask(&mut self, id: RequestId, who: Option<Who>, node: NodeId, bytes: u64) {
        let turn = match who.and_then(|who| self.processes.get(&who)) {
            Some(process) => process.turn.min(self.lead(process)),
            // One that is new comes after those that wait already.
            None => {
                let wanted = self.processes.values().filter(|one| one.is_wanted);
                wanted.map(|one| one.turn).max().unwrap_or(self.floor)
            }
        };
        let request = Request {
            who,
            node,
            bytes,
            turn,
            since: self.now,
            hopeless: None,
            is_granted: false,
        };
        self.requests.insert(id, request);
    }

    fn swapped(&mut self, who: Who, is_well: bool) {
        let now = self.now;
        let Some(process) = self.processes.get_mut(&who) else {
            return;
        };
        match (process.place, is_well) {
            (Place::Leaving(_), true) => process.left(now),
            (Place::Leaving(node), false) => process.failed(Place::In(node), now, self.settings),
            (Place::Coming(node, _), true) => process.arrive(node, now),
            (Place::Coming(..), false) => process.failed(Place::Out, now, self.settings),
            (Place::In(_) | Place::Out, _) => return,
        }
        let place = process.place;
        if place == Place::Out && is_well {
            let lead = self.processes.get(&who).map(|process| self.lead(process));
            if let (Some(lead), Some(process)) = (lead, self.processes.get_mut(&who)) {
                process.turn = process.turn.min(lead);
            }
        }
        if matches!(place, Place::In(_)) && is_well {
            self.grant_what_came_along(who);
        }
    }

    /// The turn beyond which a process is not ahead of others.
    fn lead(&self, process: &Process) -> Duration {
        self.floor + process.least_stay(self.settings) * LEAD_STAYS_MAX
    }
}
