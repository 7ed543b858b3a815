//! The node's cards: how they come and go, and what state each is in.
//!
//! ```text
//!            attach            its daemon listens
//!  offline ----------> booting ------------------> online ---> shutting down ---> offline
//!     ^                   |   \______ hangs up, stops, hangs, lies ______/ |
//!     |    detach         v                                               v
//!     '---------------- crashed <-----------------------------------------'
//!  any --detach--> resetting --attach--> booting      (or: reset failed)
//! ```
//!
//! These are the states that Linux's former mic driver shows in sysfs
//! (`Documentation/ABI/testing/sysfs-class-mic.txt`), with `offline` where there is no card.
//!
//! What must stay true: a card may go at any moment and another come in its place under the same node.
//! What was on its way from the former, or was mapped for it, never reaches the latter: everything
//! that refers to a card names its `Attachment`.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    path::Path,
    sync::{Arc, PoisonError, Weak},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use snaprig_pci::{
    mic::{Event, Mic},
    vfio_user_client::VfioUserClient,
};
use snaprig_wire::{bar4::spad, scif::NodeId};

use super::{HostError, HostNode, Shared, State, windows::Aperture};
use crate::{
    link::{Link, Watch},
    node::Input,
};

/// Why a card is dead that says so itself ([`spad::STATE_CRASHED`]).
const CRASHED: &str = "its kernel stopped; look at its log";

/// Where a card is between power-on and power-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CardState {
    /// There is no card.
    Offline,
    /// Its kernel starts.
    Booting,
    /// Its programs run and its COI daemon listens.
    Online,
    /// It was told to end, and does.
    ShuttingDown,
    /// It ended, or stopped, unasked. A reset helps.
    Crashed,
    /// It is being reset.
    Resetting,
    /// It did not come back from a reset.
    ResetFailed,
}

impl fmt::Display for CardState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Offline => "offline",
            Self::Booting => "booting",
            Self::Online => "online",
            Self::ShuttingDown => "shutting_down",
            Self::Crashed => "crashed",
            Self::Resetting => "resetting",
            Self::ResetFailed => "reset_failed",
        })
    }
}

/// One card's stay under one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) node: NodeId,
    pub(super) number: u64,
}

/// A card that is attached.
pub(super) struct Card {
    pub(super) mic: Arc<Mic>,
    /// Which stay this is.
    pub(super) number: u64,
    pub(super) link: Link,
    pub(super) watch: Watch,
    pub(super) outbox: VecDeque<Vec<u8>>,
    pub(super) dead: Option<String>,
    /// Its memory, if programs can map it.
    pub(super) aperture: Option<Aperture>,
    /// Memory of other cards that is mapped for it: whose stay, and where.
    pub(super) others: BTreeMap<NodeId, (u64, u64)>,
}

impl HostNode {
    /// Attaches the card that is served at this vfio-user socket. What was attached as this node before
    /// is let go of.
    pub fn attach(&self, node: NodeId, socket: &Path) -> Result<(), HostError> {
        let failed = |source| HostError::Card { node, source };
        let device = VfioUserClient::connect(socket).map_err(|e| failed(e.into()))?;
        let number = self.shared.lock().number();
        let attachment = Attachment { node, number };
        let weak = Arc::downgrade(&self.shared);
        let events = Box::new(move |event| card_event(&weak, attachment, event));
        let mic = Mic::open(Arc::new(device), events).map_err(|e| failed(e.into()))?;
        let mut state = self.shared.lock();
        state.lose(&self.shared, node, "another one took its place".into());
        let aperture = state.aperture(&mic);
        let card = Card {
            aperture,
            others: BTreeMap::new(),
            mic: mic.clone(),
            number,
            link: Link::default(),
            watch: Watch::default(),
            outbox: VecDeque::new(),
            dead: None,
        };
        if card.aperture.is_none() {
            state.node.cannot_map(node);
        }
        let former = state.cards.insert(node, card);
        state.step(&self.shared, Input::PeerUp(node));
        // Events before the insertion were for nobody.
        state.reports(&self.shared, node, mic.state());
        if mic.is_dead() {
            state.lose(&self.shared, node, "it hung up".into());
        }
        drop(state);
        drop(former);
        self.shared.drain(attachment);
        Ok(())
    }

    /// Lets go of a card, whether it is alive or not: its programs and those that talk to it find the
    /// connection reset. On return nothing of the host's refers to it.
    pub fn detach(&self, node: NodeId, into: CardState) {
        let mut state = self.shared.lock();
        state.enter(&self.shared, node, into);
        state.lose(&self.shared, node, "it was detached".into());
        let card = state.cards.remove(&node);
        drop(state);
        // Its driver waits for its interrupt thread, which may be waiting for the lock.
        drop(card);
    }

    /// The state of a card; `None` if there never was one under this node.
    pub fn state(&self, node: NodeId) -> Option<CardState> {
        self.shared.lock().states.get(&node).copied()
    }

    /// Says in what state a card is, where only its owner can know: it is being reset, say.
    pub fn set_state(&self, node: NodeId, into: CardState) {
        self.shared.lock().enter(&self.shared, node, into);
    }

    /// Waits until a card is in one of these states, and says in which.
    pub fn wait_state(
        &self,
        node: NodeId,
        any_of: &[CardState],
        timeout: Duration,
    ) -> Result<CardState, HostError> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        loop {
            match state.states.get(&node) {
                Some(now) if any_of.contains(now) => return Ok(*now),
                _ => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(HostError::Timeout {
                    node,
                    what: "its change of state",
                    after: timeout,
                });
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Why a card is dead; `None` while it lives, and where there is none.
    pub fn death_of(&self, node: NodeId) -> Option<String> {
        self.shared.lock().cards.get(&node)?.dead.clone()
    }
}

impl State {
    /// A card says in what state it is ([`spad::STATE`]).
    fn reports(&mut self, shared: &Arc<Shared>, node: NodeId, spad: u32) {
        match spad {
            spad::STATE_BOOTING => self.enter(shared, node, CardState::Booting),
            spad::STATE_ONLINE => self.enter(shared, node, CardState::Online),
            spad::STATE_SHUTTING_DOWN => self.enter(shared, node, CardState::ShuttingDown),
            _ => self.lose(shared, node, CRASHED.into()),
        }
    }

    fn enter(&mut self, shared: &Arc<Shared>, node: NodeId, into: CardState) {
        self.states.insert(node, into);
        shared.changed.notify_all();
    }

    /// A card is dead for everybody from now on. It is let go of, too, so that its programs notice.
    pub(super) fn lose(&mut self, shared: &Arc<Shared>, node: NodeId, why: String) {
        let Some(card) = self.cards.get_mut(&node).filter(|card| card.dead.is_none()) else {
            return;
        };
        let into = match self.states.get(&node) {
            Some(CardState::ShuttingDown) => CardState::Offline,
            Some(CardState::Booting | CardState::Online) | None => CardState::Crashed,
            Some(meant) => *meant,
        };
        match into {
            CardState::Crashed => tracing::warn!(node, why, "card is dead"),
            _ => tracing::info!(node, why, "card is gone"),
        }
        card.dead = Some(why);
        card.outbox.clear();
        card.mic.close();
        self.unreach(node);
        self.enter(shared, node, into);
        self.step(shared, Input::PeerDown(node));
    }
}

fn card_event(shared: &Weak<Shared>, attachment: Attachment, event: Event) {
    let Some(shared) = shared.upgrade() else {
        return;
    };
    let Attachment { node, number } = attachment;
    if event == Event::Scif {
        return shared.drain(attachment);
    }
    let mut state = shared.lock();
    let card = state.cards.get(&node);
    if card.is_none_or(|card| card.number != number || card.dead.is_some()) {
        return;
    }
    match event {
        Event::State(spad) => state.reports(&shared, node, spad),
        Event::Dead(why) => state.lose(&shared, node, why),
        Event::Scif => {}
    }
}
