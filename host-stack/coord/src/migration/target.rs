//! The side that a tree comes to. It decides, by a record on its disk, whether the tree is its own; and it answers
//! whoever asks, for as long as it is there.

use std::collections::{BTreeMap, BTreeSet};

use snaprig_peers::{Nonce, Token};

use super::{
    GREETING_NS, Id, PREPARED_NS, SILENCE_NS, SiteId, WriteError,
    greeting::{Greeting, Next, Side},
    message::{COMMAND_MAX, ToSource, ToTarget, VERSION},
    retry_ns,
};
use crate::{Ns, message::cut};

/// Connections at one time; more are closed.
const CONNECTIONS_MAX: usize = 16;

/// What happened. A connection is a number of the driver's choosing, another one for each.
#[derive(Clone, Debug)]
pub enum Input {
    /// Somebody has connected.
    Connected {
        /// Its number.
        connection: u64,
        /// Random bytes.
        nonce: Nonce,
    },
    /// A connection has ended.
    Closed {
        /// Its number.
        connection: u64,
    },
    /// A message came.
    Message {
        /// Over which connection.
        connection: u64,
        /// What was said.
        message: ToTarget,
    },
    /// A part of the image has come ([`Output::Receive`]).
    Progress {
        /// Which migration.
        id: Id,
    },
    /// All of the image has come: from now on it is the driver that takes its time.
    Received {
        /// Which migration.
        id: Id,
    },
    /// The tree is restored, and stands still; or why not.
    Restored {
        /// Which migration.
        id: Id,
        /// How.
        result: Result<(), String>,
    },
    /// The record is on the disk ([`Output::Commit`]), or why not.
    Committed {
        /// Which migration.
        id: Id,
        /// How.
        result: Result<(), WriteError>,
    },
    /// The record is not on the disk, for good ([`Output::Withdraw`]), or why that is not known.
    Withdrawn {
        /// Which migration.
        id: Id,
        /// How.
        result: Result<(), String>,
    },
    /// Time has passed: [`Target::deadline`].
    Tick,
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A message leaves.
    Send {
        /// Over which connection.
        connection: u64,
        /// What is said.
        message: ToSource,
    },
    /// A connection is to end. Nothing of it is of interest any more.
    Close {
        /// Its number.
        connection: u64,
        /// What is wrong with the peer, if it is that which ends it.
        why: Option<String>,
    },
    /// The image that follows on this connection is to be read, checked, kept and restored; the tree stands still then.
    Receive {
        /// Over which connection.
        connection: u64,
        /// Which migration.
        id: Id,
        /// The program's command line.
        command: Vec<String>,
    },
    /// Whatever has come of this tree, restored or not, is to be forgotten.
    Drop {
        /// Which migration.
        id: Id,
    },
    /// The decision: the image is to be a checkpoint of this side's, with a record that says which migration it
    /// came by. [`Input::Committed`] says whether both are on the disk.
    Commit {
        /// Which migration.
        id: Id,
    },
    /// The record of a decision that failed halfway is to be removed, for good.
    Withdraw {
        /// Which migration.
        id: Id,
    },
    /// The tree runs. If it cannot, it is restarted from its checkpoint: it is this side's now.
    Run {
        /// Which migration.
        id: Id,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Idle,
    /// The image comes over this connection; all of it is there, or not.
    Receiving {
        connection: u64,
        id: Id,
        is_whole: bool,
    },
    /// It is restored, and waits for Go.
    Prepared {
        connection: u64,
        id: Id,
    },
    /// The record is being written.
    Committing(Id),
    /// The record is being removed: now, or when it is time.
    Withdrawing {
        id: Id,
        is_under_way: bool,
    },
    /// A tree is here.
    Owner,
}

/// A connection.
#[derive(Debug)]
struct Peer {
    greeting: Greeting,
    since_ns: Ns,
}

/// The machine of a target.
#[derive(Debug)]
pub struct Target {
    site: SiteId,
    token: Option<Token>,
    now: Ns,
    state: State,
    due_ns: Ns,
    attempts: u32,
    peers: BTreeMap<u64, Peer>,
    /// Migrations whose trees are this side's, by records on its disk.
    committed: BTreeSet<Id>,
    /// Those of them whose source may not know it yet.
    awaited: BTreeSet<Id>,
    /// Connections over which was asked what has become of the tree, and that are to be told.
    askers: BTreeSet<u64>,
    out: Vec<Output>,
}

impl Target {
    /// A target without a tree, which waits for one. It answers for the records that it finds on its disk, which must
    /// be sure to stay there.
    pub fn new(site: SiteId, token: Option<Token>, committed: BTreeSet<Id>, now: Ns) -> Self {
        Self {
            site,
            token,
            now,
            state: State::Idle,
            due_ns: 0,
            attempts: 0,
            peers: BTreeMap::new(),
            awaited: committed.clone(),
            committed,
            askers: BTreeSet::new(),
            out: Vec::new(),
        }
    }

    /// The same, with a tree: it takes no other one.
    pub fn with_tree(site: SiteId, token: Option<Token>, committed: BTreeSet<Id>, now: Ns) -> Self {
        Self {
            state: State::Owner,
            ..Self::new(site, token, committed, now)
        }
    }

    /// Which one it is.
    pub fn site(&self) -> SiteId {
        self.site
    }

    /// When [`Input::Tick`] is due, if nothing happens before.
    pub fn deadline(&self) -> Option<Ns> {
        let own = self.waits().then_some(self.due_ns);
        let unknown = self.peers.values().filter(|peer| !peer.greeting.is_over());
        let greetings = unknown.map(|peer| peer.since_ns.saturating_add(GREETING_NS));
        greetings.chain(own).min()
    }

    /// Whether a source may still ask what has become of a tree that is this side's.
    pub fn is_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Whether the source of this migration may.
    pub fn is_awaited_by(&self, id: Id) -> bool {
        self.awaited.contains(&id)
    }

    /// Whether something must have come by [`Self::due_ns`], or is to be tried again then.
    fn waits(&self) -> bool {
        match self.state {
            State::Receiving { is_whole, .. } => !is_whole,
            State::Withdrawing { is_under_way, .. } => !is_under_way,
            State::Prepared { .. } => true,
            State::Idle | State::Committing(_) | State::Owner => false,
        }
    }

    /// What the machine would do next depends on this, and on nothing else but numbers and times.
    pub fn hash_state(&self, hash: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        std::mem::discriminant(&self.state).hash(hash);
        (self.peers.len(), self.askers.len(), self.committed.len()).hash(hash);
    }

    /// Something has happened. To be called again at [`Self::deadline`], if nothing happens before.
    pub fn handle(&mut self, input: Input, now: Ns) -> Vec<Output> {
        self.now = self.now.max(now);
        match input {
            Input::Connected { connection, nonce } => self.connected(connection, nonce),
            Input::Closed { connection } => self.closed(connection),
            Input::Message {
                connection,
                message,
            } => self.heard(connection, message),
            Input::Progress { id } => self.progress(id),
            Input::Received { id } => self.received(id),
            Input::Restored { id, result } => self.restored(id, result),
            Input::Committed { id, result } => self.written(id, result),
            Input::Withdrawn { id, result } => self.withdrawn(id, result),
            Input::Tick => self.tick(),
        }
        std::mem::take(&mut self.out)
    }

    fn connected(&mut self, connection: u64, nonce: Nonce) {
        if self.peers.len() >= CONNECTIONS_MAX {
            let why = Some(format!("{CONNECTIONS_MAX} are connected already"));
            return self.out.push(Output::Close { connection, why });
        }
        let peer = Peer {
            greeting: Greeting::new(Side::Target, nonce),
            since_ns: self.now,
        };
        self.peers.insert(connection, peer);
        let version = VERSION;
        self.say(connection, ToSource::Hello { version, nonce });
    }

    fn heard(&mut self, connection: u64, message: ToTarget) {
        let token = self.token.as_ref();
        let Some(peer) = self.peers.get_mut(&connection) else {
            return;
        };
        let is_known = peer.greeting.is_over();
        let next = match message {
            ToTarget::Hello { version, nonce } => peer.greeting.hello(version, nonce, token),
            ToTarget::Proof(proof) => peer.greeting.proof_came(&proof, token),
            _ if !is_known => Next::Refuse("it has not shown who it is".into()),
            ToTarget::Begin { id, command } => return self.begin(connection, id, command),
            ToTarget::Go { id, site } => return self.go(connection, id, site),
            ToTarget::Gone { id } => {
                self.awaited.remove(&id);
                return;
            }
            ToTarget::Abandon { id } => return self.abandon(id),
        };
        match next {
            Next::Wait | Next::Known(None) => {}
            Next::Say(proof) | Next::Known(Some(proof)) => {
                self.say(connection, ToSource::Proof(proof));
            }
            Next::Refuse(why) => self.close(connection, Some(why)),
        }
    }

    fn begin(&mut self, connection: u64, id: Id, command: Vec<String>) {
        let why = match self.state {
            State::Idle if self.committed.contains(&id) => "the tree has come already",
            State::Idle if command.iter().map(String::len).sum::<usize>() > COMMAND_MAX => {
                "the command line is too long"
            }
            State::Idle => {
                self.state = State::Receiving {
                    connection,
                    id,
                    is_whole: false,
                };
                self.wait(SILENCE_NS);
                let receive = Output::Receive {
                    connection,
                    id,
                    command,
                };
                return self.out.push(receive);
            }
            State::Owner => "a tree is here already",
            _ => "another tree is on its way here",
        };
        let why = why.into();
        self.say(connection, ToSource::Failed { id, why });
        // What follows is an image that nobody reads.
        self.close(connection, None);
    }

    /// Somebody wants the tree to go on here, and asks what has become of it.
    fn go(&mut self, connection: u64, id: Id, site: SiteId) {
        if site != self.site {
            // What has become of it, another one knows.
            return self.close(connection, Some("it asks for another target".into()));
        }
        if self.committed.contains(&id) {
            return self.say(connection, ToSource::Running { id });
        }
        match self.state {
            State::Prepared { id: prepared, .. } if prepared == id => {
                self.askers.insert(connection);
                self.state = State::Committing(id);
                self.out.push(Output::Commit { id });
            }
            State::Committing(under_way) | State::Withdrawing { id: under_way, .. }
                if under_way == id =>
            {
                self.askers.insert(connection);
            }
            State::Receiving { id: coming, .. } if coming == id => {
                self.give_up(id);
                self.fail(connection, id, "the tree was not ready");
            }
            _ => self.fail(
                connection,
                id,
                "the tree is not here: nobody said Go in time",
            ),
        }
    }

    fn abandon(&mut self, id: Id) {
        let (State::Receiving { id: own, .. } | State::Prepared { id: own, .. }) = self.state
        else {
            return;
        };
        if own == id {
            self.give_up(id);
        }
    }

    fn progress(&mut self, id: Id) {
        if matches!(self.state, State::Receiving { id: own, is_whole: false, .. } if own == id) {
            self.wait(SILENCE_NS);
        }
    }

    fn received(&mut self, id: Id) {
        if let State::Receiving {
            id: own, is_whole, ..
        } = &mut self.state
            && *own == id
        {
            *is_whole = true;
        }
    }

    fn restored(&mut self, id: Id, result: Result<(), String>) {
        let State::Receiving {
            connection,
            id: own,
            ..
        } = self.state
        else {
            return;
        };
        if own != id {
            return;
        }
        match result {
            Ok(()) => {
                self.state = State::Prepared { connection, id };
                self.wait(PREPARED_NS);
                let site = self.site;
                self.say(connection, ToSource::Ready { id, site });
            }
            Err(why) => {
                self.give_up(id);
                self.fail(connection, id, &why);
            }
        }
    }

    /// The decision is on the disk, or is not, or may be.
    fn written(&mut self, id: Id, result: Result<(), WriteError>) {
        if self.state != State::Committing(id) {
            return;
        }
        match result {
            Ok(()) => {
                self.state = State::Owner;
                self.committed.insert(id);
                self.awaited.insert(id);
                self.out.push(Output::Run { id });
                for connection in std::mem::take(&mut self.askers) {
                    self.say(connection, ToSource::Running { id });
                }
            }
            Err(WriteError {
                in_doubt: false,
                why,
            }) => self.undecided(id, &why),
            Err(WriteError { in_doubt: true, .. }) => self.withdraw(id),
        }
    }

    fn withdraw(&mut self, id: Id) {
        self.state = State::Withdrawing {
            id,
            is_under_way: true,
        };
        self.out.push(Output::Withdraw { id });
    }

    fn withdrawn(&mut self, id: Id, result: Result<(), String>) {
        let State::Withdrawing { id: own, .. } = self.state else {
            return;
        };
        match result {
            _ if own != id => {}
            Ok(()) => self.undecided(id, "the decision could not be written down"),
            Err(_) => {
                self.state = State::Withdrawing {
                    id,
                    is_under_way: false,
                };
                self.wait(retry_ns(self.attempts));
                self.attempts = self.attempts.saturating_add(1);
            }
        }
    }

    /// There is no record, and never will be.
    fn undecided(&mut self, id: Id, why: &str) {
        self.give_up(id);
        for connection in std::mem::take(&mut self.askers) {
            self.fail(connection, id, why);
        }
    }

    fn closed(&mut self, connection: u64) {
        self.peers.remove(&connection);
        self.askers.remove(&connection);
        if let State::Receiving {
            connection: own,
            id,
            ..
        } = self.state
            && own == connection
        {
            self.give_up(id);
        }
    }

    fn tick(&mut self) {
        let now = self.now;
        let is_late = |peer: &Peer| peer.since_ns.saturating_add(GREETING_NS) <= now;
        let unknown = self
            .peers
            .iter()
            .filter(|(_, peer)| !peer.greeting.is_over());
        let late = unknown.filter(|(_, peer)| is_late(peer));
        for connection in late.map(|(connection, _)| *connection).collect::<Vec<_>>() {
            self.close(connection, Some("it does not show who it is".into()));
        }
        if !self.waits() || now < self.due_ns {
            return;
        }
        match self.state {
            State::Receiving { connection, id, .. } => {
                self.give_up(id);
                self.fail(connection, id, "the image does not come");
            }
            State::Prepared { connection, id } => {
                self.give_up(id);
                self.fail(connection, id, "nobody said Go in time");
            }
            State::Withdrawing { id, .. } => self.withdraw(id),
            State::Idle | State::Committing(_) | State::Owner => {}
        }
    }

    /// A tree that is not this side's, and will not be.
    fn give_up(&mut self, id: Id) {
        self.state = State::Idle;
        self.out.push(Output::Drop { id });
    }

    fn fail(&mut self, connection: u64, id: Id, why: &str) {
        let why = cut(why.into());
        self.say(connection, ToSource::Failed { id, why });
    }

    fn close(&mut self, connection: u64, why: Option<String>) {
        self.closed(connection);
        self.out.push(Output::Close { connection, why });
    }

    /// Says something, if the connection is there still.
    fn say(&mut self, connection: u64, message: ToSource) {
        if self.peers.contains_key(&connection) {
            self.out.push(Output::Send {
                connection,
                message,
            });
        }
    }

    fn wait(&mut self, for_ns: Ns) {
        self.due_ns = self.now.saturating_add(for_ns);
    }
}
