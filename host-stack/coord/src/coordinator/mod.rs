//! The coordinator of a job, as a machine: it takes what happened and says what to do.
//!
//! A round, of kind [`Kind::Checkpoint`](crate::phase::Kind):
//!
//! ```text
//!   control          coordinator                        members
//!     | --- Order -----> |                                 |
//!     |               Gather: until nobody is missing      |
//!     |                  | ---- Begin {Stop} ------------> |   processes stop; or a veto
//!     |                  | <--- Done {Stop} -------------- |
//!     |                  | ---- Begin {Drain} -----------> |
//!     |                  | <--- Publish, Lookup, Barrier - |   ends of connections, as often
//!     |                  | ---- Answer ------------------> |   as they need
//!     |                  | <--- Done {Drain} ------------- |
//!     |                  | ---- Begin {Write} -----------> |
//!     |                  | <--- Done {Write, report} ----- |   written, and on the disk
//!     |               Commit: the manifest is renamed      |
//!     |                  | ---- Begin {Resume} ----------> |   this is how members learn of it
//!     |                  | <--- Done {Resume} ------------ |
//!     | <-- Answer ----- | ---- Finished {Complete} -----> |
//! ```
//!
//! ```text
//!            Order          nobody is missing        all done        all done
//!   (none) --------> Gather -----------------> Do(..) --------> Do(..) ----> ... --> (none)
//!     ^                | too long                | veto, death,   |                    ^
//!     |<---------------'                         | too long       | all have written   |
//!     |                                          v                v                    |
//!     |             all done, dead, or too long  |   fails      Commit --- renamed --> Do(Resume)
//!     '------------------------------------- Undo <--------------'
//! ```
//!
//! What must stay true:
//! - A round is decided once: when [`Input::Committed`] says that the manifest has its name, or when
//!   a restart comes to `Go`. Before, any death undoes it; from then on none does.
//! - [`Output::Commit`] is said only after every member of the job has said that it has written.
//! - Every wait has a deadline, but for the disk's answers to [`Output::Commit`] and [`Output::Members`]. A member that gets on
//!   with its phase puts that of the phase off.
//! - A checkpoint is of all members of the job: of one that may be alive and is not here, it is known
//!   that it is missing, also by a coordinator that took over from a dead one ([`Config::members`]): a member is welcome
//!   when the disk knows of it.

mod barriers;
mod board;
mod counted;
mod peers;
mod round;
mod rounds;
mod unkept;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use snaprig_peers::Token;

use crate::{
    Ns, SECOND,
    message::{
        Answer, Call, CallError, MemberStatus, Nonce, Refusal, RoundStatus, Status, Summary,
        ToCoordinator, ToMember, cut,
    },
    phase::Order,
};
use barriers::Barriers;
use board::Board;
use counted::{Counted, Wanted};
use peers::{Entry, Peer};
use round::Round;
use unkept::Unkept;

/// A connection, by a number of the driver's that is never used again.
pub type ConnectionId = u64;

/// Most peers at a time, members and others.
pub const PEERS_MAX: usize = 1024;
/// Most peers that have not proved anything yet.
pub const STRANGERS_MAX: usize = 128;
/// How long a peer may take to join.
pub const JOIN_NS: Ns = 10 * SECOND;
/// A peer that says nothing for so long is out of reach. Peers ping far more often.
pub const SILENCE_NS: Ns = 20 * SECOND;
/// How long a member whose connection has ended may take to come again, before it counts as dead.
pub const GRACE_NS: Ns = 3 * SECOND;
/// Most calls of a peer that wait at a time.
pub const CALLS_MAX: usize = 1024;
/// Rounds that are remembered.
pub const HISTORY: usize = 16;
/// Most lost members that a round's summary names.
const LOST_MAX: usize = 32;

/// What a coordinator is told when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// The job's name.
    pub job: String,
    /// What its members know.
    pub token: Token,
    /// Members that there are already: of a coordinator before this one, or of a manifest.
    pub members: Vec<String>,
    /// The first round's number: larger than that of any before in this job.
    pub first_round: u64,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// Somebody has connected.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// Random bytes.
        nonce: Nonce,
    },
    /// A message came.
    Message {
        /// Where.
        connection: ConnectionId,
        /// What.
        message: ToCoordinator,
    },
    /// What came is no message, or too long: why.
    Nonsense {
        /// Where.
        connection: ConnectionId,
        /// What it is.
        what: String,
    },
    /// A connection has ended.
    Gone {
        /// Which.
        connection: ConnectionId,
    },
    /// The disk has what the first [`Output::Members`] said that it has not answered yet.
    Kept,
    /// What came of [`Output::Commit`]: the manifest has its name and will keep it, or it does not.
    Committed {
        /// Of which round.
        round: u64,
        /// Why it failed.
        result: Result<(), String>,
    },
    /// Time has passed: [`Machine::deadline`].
    Tick,
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A message leaves.
    Send {
        /// Where.
        connection: ConnectionId,
        /// What.
        message: ToMember,
    },
    /// A connection is to end, after what was sent. Nothing of it is of interest any more.
    Disconnect {
        /// Which.
        connection: ConnectionId,
        /// Why.
        why: String,
    },
    /// The members of the job have changed: who takes over from this coordinator must know. To be answered with
    /// [`Input::Kept`], in this order.
    Members(Vec<String>),
    /// The manifest is to be written and renamed, or that a move is decided; [`Input::Committed`] says what came of it.
    Commit {
        /// The round.
        round: u64,
        /// What was ordered.
        order: Order,
        /// By member, what it said of what it has written.
        reports: BTreeMap<String, String>,
    },
}

/// The machine.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    now: Ns,
    peers: BTreeMap<ConnectionId, Peer>,
    members: BTreeMap<String, Entry>,
    /// Those of them that are none yet, or no more: heirs, and those whose names they have.
    heirs: BTreeSet<String>,
    /// Members that were told last.
    told: Vec<String>,
    /// Who hears nothing before the disk knows of it.
    unkept: Unkept,
    barriers: Barriers,
    counted: Counted,
    board: Board,
    round: Option<Round>,
    next_round: u64,
    rounds: VecDeque<Summary>,
    out: Vec<Output>,
}

impl Machine {
    /// A coordinator that has just started.
    pub fn new(config: Config, now: Ns) -> Self {
        let missing = |name: &String| (name.clone(), Entry::expected());
        Self {
            members: config.members.iter().map(missing).collect(),
            heirs: BTreeSet::new(),
            told: config.members.clone(),
            unkept: Unkept::default(),
            next_round: config.first_round.max(1),
            config,
            now,
            peers: BTreeMap::new(),
            barriers: Barriers::default(),
            counted: Counted::default(),
            board: Board::default(),
            round: None,
            rounds: VecDeque::new(),
            out: Vec::new(),
        }
    }

    /// Something has happened. To be called again at [`Self::deadline`], if nothing happens before.
    pub fn handle(&mut self, input: Input, now: Ns) -> Vec<Output> {
        self.now = self.now.max(now);
        match input {
            Input::Connected { connection, nonce } => self.connected(connection, nonce),
            Input::Message {
                connection,
                message,
            } => self.heard(connection, message),
            Input::Nonsense { connection, what } => {
                self.disconnect(connection, Refusal::Nonsense { what: cut(what) });
            }
            Input::Gone { connection } => self.gone(connection),
            Input::Kept => self.kept(),
            Input::Committed { round, result } => self.committed(round, result),
            Input::Tick => {}
        }
        self.expire_peers();
        self.expire_barriers();
        self.expire_lookups();
        self.expire_counted();
        self.expire_round();
        self.settle_barriers();
        self.advance();
        std::mem::take(&mut self.out)
    }

    /// Whether there is nobody: no member of the job, not even a missing one, and no peer.
    pub fn is_idle(&self) -> bool {
        self.members.is_empty() && self.peers.is_empty() && self.round.is_none()
    }

    /// When to call [`Self::handle`] at the latest.
    pub fn deadline(&self) -> Option<Ns> {
        let peers = self.peers.values().map(Peer::deadline);
        let strikes = self.members.values().filter_map(Entry::strike_ns);
        let round = self.round.as_ref().and_then(Round::deadline);
        let (barriers, counted) = (self.barriers.deadline(), self.counted.deadline());
        let calls = [barriers, counted, self.board.deadline(), round];
        let calls = calls.into_iter().flatten();
        peers.chain(strikes).chain(calls).min()
    }

    /// How the job is.
    pub fn status(&self) -> Status {
        let members = self.members.iter().map(|(name, entry)| MemberStatus {
            name: name.clone(),
            missing: entry.missing().map(str::to_owned),
        });
        Status {
            job: self.config.job.clone(),
            members: members.collect(),
            round: self.round_status(),
            rounds: self.rounds.iter().cloned().collect(),
        }
    }

    fn round_status(&self) -> Option<RoundStatus> {
        let round = self.round.as_ref()?;
        let missing = self.missing().map(|(name, _)| name.to_owned());
        Some(round.status(missing.collect(), self.now))
    }

    /// Members that are not here, and why.
    fn missing(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.members.iter();
        all.filter_map(|(name, entry)| Some((name.as_str(), entry.missing()?)))
    }

    fn send(&mut self, connection: ConnectionId, message: ToMember) {
        if let Some(message) = self.unkept.hold(connection, message) {
            self.out.push(Output::Send {
                connection,
                message,
            });
        }
    }

    fn kept(&mut self) {
        for (connection, messages) in self.unkept.kept() {
            for message in messages {
                self.send(connection, message);
            }
        }
    }

    /// To a member, if it is here.
    fn tell(&mut self, name: &str, message: ToMember) {
        if let Some(connection) = self.members.get(name).and_then(Entry::connection) {
            self.send(connection, message);
        }
    }

    /// A call ends.
    fn answer(&mut self, at: CallId, result: Result<Answer, CallError>) {
        // The connection may be gone: then nobody waits.
        if let Some(peer) = self.peers.get_mut(&at.connection) {
            peer.calls = peer.calls.saturating_sub(1);
            let id = at.id;
            self.send(at.connection, ToMember::Answer { id, result });
        }
    }

    fn call(&mut self, at: CallId, member: Option<&str>, call: Call) {
        let result = match (call, member) {
            (Call::Status, _) => Some(Ok(Answer::Status(Box::new(self.status())))),
            (Call::Order(order), _) => self.order(at, order),
            (Call::Forget { name }, _) => Some(self.forget(&name)),
            (_, None) => Some(Err(invalid("that is for members"))),
            (
                Call::Barrier {
                    round,
                    name,
                    patience_ms,
                },
                Some(member),
            ) => self.arrive(at, member, round, name, patience_ms),
            (Call::Publish { round, entries }, Some(member)) => {
                Some(self.publish(member, round, entries))
            }
            (
                Call::Lookup {
                    round,
                    keys,
                    patience_ms,
                },
                Some(member),
            ) => self.lookup(at, member, round, keys, patience_ms),
            (
                Call::Collect {
                    round,
                    prefix,
                    after,
                    bytes_max,
                },
                Some(member),
            ) => Some(self.collect(member, round, &prefix, &after, bytes_max)),
            (
                Call::Count {
                    round,
                    name,
                    count,
                    patience_ms,
                },
                Some(member),
            ) => {
                let wanted = Wanted {
                    name,
                    count,
                    patience_ms,
                };
                self.count(at, member, round, wanted)
            }
        };
        if let Some(result) = result {
            self.answer(at, result);
        }
    }
}

/// A call that waits: where, and under which number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CallId {
    connection: ConnectionId,
    id: u64,
}

fn invalid(what: impl Into<String>) -> CallError {
    CallError::Invalid { what: what.into() }
}

/// So much later; a peer may say any number.
fn later(now: Ns, ms: u32) -> Ns {
    let ms = ms.min(crate::message::PATIENCE_MS_MAX);
    now.saturating_add(Ns::from(ms) * crate::MS)
}
