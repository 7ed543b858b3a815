//! What a coordinator and its peers say to each other, and the bounds of it. A message is postcard
//! behind its length ([`snaprig_wire::frame`]).
//!
//! ```text
//!   peer                                        coordinator
//!     | ---- Hello {version, nonce} ---------------> |
//!     | <--- Challenge {version, nonce, proof} ----- |   the coordinator knows the token
//!     | ---- Join {job, role, proof} --------------> |   the peer does
//!     | <--- Welcome | Refused --------------------- |
//!     |                                              |
//!     | ---- Call {id, ..} ------------------------> |   at any time: barriers, the board, orders
//!     | <--- Answer {id, ..} ----------------------- |
//!     | ---- Ping ---------------------------------> |   after a while without anything else
//!     | <--- Pong ---------------------------------- |
//!     |                                              |
//!     | <--- Begin {round, phase, order} ----------- |   to members: each phase of a round,
//!     | ---- GetsOn {round, phase} ----------------> |   a phase may take as long again
//!     | ---- Done {round, phase, result} ----------> |   until all are done
//!     | <--- Finished | Undo ----------------------- |
//! ```
//!
//! [`VERSION`] changes with any of these types. `Hello` and `Refused` stay as they are in all
//! versions, so that another one is refused by name.

use serde::{Deserialize, Serialize};

pub use snaprig_peers::{Nonce, Proof};

use snaprig_ckpt_plugin::message::entries;

use crate::phase::{Kind, Order, Phase};

/// Version of the protocol.
pub const VERSION: u16 = 5;
/// Most bytes of a message of who has not proved anything yet.
pub const STRANGER_MAX: usize = 1024;
/// Most bytes of any message.
pub const MESSAGE_MAX: usize = snaprig_wire::frame::MESSAGE_MAX;
/// Most bytes of names: of jobs, members and barriers.
pub const NAME_MAX: usize = 255;
/// Most bytes of a reason; longer ones are cut.
pub const REASON_MAX: usize = 1024;
/// Most bytes of a key on the board.
pub const KEY_MAX: usize = 255;
/// Most bytes of a value on the board.
pub const VALUE_MAX: usize = 64 << 10;
/// Most entries of one call about the board.
pub const ENTRIES_MAX: usize = 4096;
/// Most bytes of an order's note.
pub const NOTE_MAX: usize = 16 << 10;
/// Most bytes of what a member says of its image.
pub const REPORT_MAX: usize = 16 << 10;
/// The longest time that anybody may ask to be waited for: a day.
pub const PATIENCE_MS_MAX: u32 = 24 * 3600 * 1000;

/// In the reason of a round that was undone: it is worth another try.
pub const NOT_NOW: &str = "not now: ";

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// What peers say.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// First of all.
    Hello {
        /// [`VERSION`].
        version: u16,
        /// The peer's.
        nonce: Nonce,
    },
    /// Then.
    Join {
        /// Which job.
        job: String,
        /// As what.
        role: Role,
        /// The peer knows the token.
        proof: Proof,
    },
    /// A member goes for good.
    Leave,
    /// The peer is there.
    Ping,
    /// A call, and the peer's number for it, larger than all before.
    Call {
        /// The number.
        id: u64,
        /// What for.
        call: Call,
    },
    /// A member has done a phase, or cannot. What it says of the phase [`Phase::Write`] goes into
    /// the manifest.
    Done {
        /// The round.
        round: u64,
        /// The phase.
        phase: Phase,
        /// How; why not.
        result: Result<String, String>,
    },
    /// A member has not done a phase, but gets on with it: the phase may take as long again, from now on.
    GetsOn {
        /// The round.
        round: u64,
        /// The phase.
        phase: Phase,
    },
}

/// As what a peer comes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Part of the job.
    Member {
        /// Its name in the job, and in manifests.
        name: String,
        /// Random, and the same when it comes again.
        incarnation: u64,
        /// It is none yet, and takes part in nothing but the move of a tree to it.
        is_heir: bool,
    },
    /// Somebody who orders and asks.
    Control,
}

/// What a peer asks for. `round` is a round that the member is in, or 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Call {
    /// Waits until all members (of the round) wait at the barrier of this name.
    Barrier {
        /// The round, or 0: all members of the job.
        round: u64,
        /// Its name.
        name: String,
        /// How long at most: the shortest of all counts. In a round, who is late ends the round.
        patience_ms: u32,
    },
    /// Puts entries on the board; what is under a key already goes, if it is the member's own.
    Publish {
        /// The round, with which they go, or 0: they go with the member.
        round: u64,
        /// The entries.
        #[serde(with = "entries")]
        entries: Vec<Entry>,
    },
    /// Waits until all of these keys are on the board.
    Lookup {
        /// The round, or 0.
        round: u64,
        /// The keys.
        keys: Vec<Vec<u8>>,
        /// How long at most.
        patience_ms: u32,
    },
    /// Entries that are on the board now, in the order of their keys: as many as fit.
    Collect {
        /// The round, or 0.
        round: u64,
        /// What their keys begin with.
        prefix: Vec<u8>,
        /// Only those behind this key.
        after: Vec<u8>,
        /// Most bytes of keys and values; the first entry comes whatever its length.
        bytes_max: u32,
    },
    /// Waits until so many calls, of whichever members, wait at the counted barrier of this name.
    Count {
        /// The round, or 0.
        round: u64,
        /// Its name.
        name: Vec<u8>,
        /// How many; all say the same.
        count: u32,
        /// How long this call waits at most.
        patience_ms: u32,
    },
    /// Has a round begin, and waits until it is over.
    Order(Order),
    /// How the job is.
    Status,
    /// A member that is missing does not come back.
    Forget {
        /// Its name.
        name: String,
    },
}

/// What a coordinator says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ToMember {
    /// No, and the connection ends.
    Refused(Refusal),
    /// To a `Hello`.
    Challenge {
        /// [`VERSION`].
        version: u16,
        /// The coordinator's.
        nonce: Nonce,
        /// The coordinator knows the token.
        proof: Proof,
    },
    /// To a `Join`.
    Welcome,
    /// To a `Ping`.
    Pong,
    /// To a call.
    Answer {
        /// Its number.
        id: u64,
        /// What comes of it.
        result: Result<Answer, CallError>,
    },
    /// A phase begins.
    Begin {
        /// The round.
        round: u64,
        /// The phase.
        phase: Phase,
        /// What the round is for.
        order: Order,
    },
    /// The round is undone: this is the phase [`Phase::Undo`].
    Undo {
        /// The round.
        round: u64,
        /// Why.
        reason: String,
    },
    /// The round is over.
    Finished {
        /// The round.
        round: u64,
        /// How.
        outcome: Outcome,
    },
}

/// Why a peer is turned away.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// It speaks another version.
    #[error(
        "the coordinator speaks version {ours} of the protocol; use the same snaprig for all of a job"
    )]
    Version {
        /// The coordinator's.
        ours: u16,
    },
    /// It does not know the token.
    #[error("the token is not that of the coordinator's job; it is in the job's directory")]
    Token,
    /// It comes for another job.
    #[error("the coordinator is that of job {ours:?}")]
    Job {
        /// The coordinator's.
        ours: String,
    },
    /// Somebody else has its name.
    #[error("there is a member {name:?} already")]
    Taken {
        /// The name.
        name: String,
    },
    /// There are too many.
    #[error("the coordinator has as many {of} as it takes: {most}")]
    Full {
        /// Of what.
        of: String,
        /// How many.
        most: u64,
    },
    /// It said what makes no sense.
    #[error("the coordinator does not take {what}")]
    Nonsense {
        /// What.
        what: String,
    },
    /// It did not answer in time.
    #[error("nothing was heard from there for too long: {what}")]
    Silent {
        /// What was waited for.
        what: String,
    },
}

/// What comes of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// Values, in the order of the keys.
    Values(Vec<Vec<u8>>),
    /// Entries, in the order of their keys.
    Entries(#[serde(with = "entries")] Vec<Entry>),
    /// How a round ended.
    Round(Summary),
    /// How the job is.
    Status(Box<Status>),
}

/// Why a call fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub enum CallError {
    /// Members did not come to a barrier in time.
    #[error("barrier {name:?}: {} did not come in time", missing.join(", "))]
    Missing {
        /// The barrier's name.
        name: String,
        /// Their names.
        missing: Vec<String>,
    },
    /// Not enough came to a counted barrier in time.
    #[error(
        "barrier {:?}: {there} of {count} came in time",
        String::from_utf8_lossy(name)
    )]
    Few {
        /// The barrier's name.
        name: Vec<u8>,
        /// How many waited.
        there: u32,
        /// How many were to come.
        count: u32,
    },
    /// Nobody published it in time.
    #[error("nobody has published {key:?}")]
    NotFound {
        /// The first key that is not there.
        key: Vec<u8>,
    },
    /// The key is another member's.
    #[error("{key:?} was published by {owner:?}")]
    Owned {
        /// The key.
        key: Vec<u8>,
        /// Whose it is.
        owner: String,
    },
    /// It is too much, or nonsense.
    #[error("{what}")]
    Invalid {
        /// What is wrong.
        what: String,
    },
    /// The round was undone.
    #[error("round {round} is undone: {reason}")]
    Undone {
        /// The round.
        round: u64,
        /// Why.
        reason: String,
    },
    /// The member is not in that round.
    #[error("round {round} is over, or none of this member's")]
    NotInRound {
        /// The round.
        round: u64,
    },
    /// There is a round already.
    #[error("round {round} is under way")]
    Busy {
        /// The round.
        round: u64,
    },
    /// There is nobody.
    #[error("the job has no members")]
    Nobody,
    /// There is no such member, or it is not missing.
    #[error("no member {name:?} is missing")]
    NotMissing {
        /// The name.
        name: String,
    },
    /// Said by the member's own side: there is no coordinator.
    #[error("the coordinator is not reachable: {why}")]
    Apart {
        /// Why.
        why: String,
    },
}

/// How a round ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The checkpoint is complete, or the job restarted.
    Complete,
    /// Nothing has come of it, and all are as they were.
    Undone {
        /// Why.
        reason: String,
    },
}

/// A round that is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Summary {
    /// Its number.
    pub round: u64,
    /// What it was for.
    pub kind: Kind,
    /// Members.
    pub members: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// Members that did not do all after it was decided, and why.
    pub lost: Vec<(String, String)>,
    /// How long each step took, in nanoseconds.
    pub steps: Vec<(String, u64)>,
}

/// How a job is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub job: String,
    /// Its members.
    pub members: Vec<MemberStatus>,
    /// The round that is under way.
    pub round: Option<RoundStatus>,
    /// The last rounds, oldest first.
    pub rounds: Vec<Summary>,
}

/// How a member is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its name.
    pub name: String,
    /// Why it is missing, if it is.
    pub missing: Option<String>,
}

/// How a round is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RoundStatus {
    /// Its number.
    pub round: u64,
    /// What it is for.
    pub kind: Kind,
    /// What is being done.
    pub step: String,
    /// For how long, in nanoseconds.
    pub for_ns: u64,
    /// Who has not done it yet.
    pub waiting_for: Vec<String>,
}

/// Cuts a reason to what may be sent.
pub fn cut(mut reason: String) -> String {
    if reason.len() > REASON_MAX {
        let end = (0..=REASON_MAX)
            .rev()
            .find(|at| reason.is_char_boundary(*at));
        reason.truncate(end.unwrap_or(0));
    }
    reason
}

/// Whether it can be a name: not empty, not too long, no path, nothing that a terminal obeys.
pub fn is_name(name: &str) -> bool {
    let fits = (1..=NAME_MAX).contains(&name.len());
    fits && !name.starts_with('.') && !name.contains(|c: char| c.is_control() || c == '/')
}
