//! What happens to a member, what it has done, and what its agent must know.

use snaprig_peers::Token;

use crate::{
    message::{Answer, Call, CallError, Nonce, Outcome, Refusal, Role, ToCoordinator, ToMember},
    phase::{Order, Phase},
};

/// Who it is.
#[derive(Clone, Debug)]
pub struct Config {
    /// The job's name.
    pub job: String,
    /// What all of the job know.
    pub token: Token,
    /// As what it comes.
    pub role: Role,
    /// Whether it tries again when it loses the coordinator, or does not reach it.
    pub is_persistent: bool,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// [`Output::Connect`] has succeeded.
    Connected {
        /// Random bytes.
        nonce: Nonce,
    },
    /// The connection has ended, or none could be made.
    Closed {
        /// Why.
        why: String,
    },
    /// A message came.
    Message(ToMember),
    /// The agent calls.
    Call {
        /// Its number, larger than all before.
        id: u64,
        /// What for.
        call: Call,
    },
    /// The agent has done a phase, or cannot.
    Done {
        /// The round.
        round: u64,
        /// The phase.
        phase: Phase,
        /// How; why not.
        result: Result<String, String>,
    },
    /// The agent has not done a phase yet, but gets on with it.
    GetsOn {
        /// The round.
        round: u64,
        /// The phase.
        phase: Phase,
    },
    /// A move is decided: the heir has the member's name, and the member that of its heir.
    Renamed {
        /// The name.
        name: String,
    },
    /// The member goes for good.
    Leave,
    /// Time has passed: [`super::Machine::deadline`].
    Tick,
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// To connect; [`Input::Connected`] or [`Input::Closed`] says what came of it.
    Connect,
    /// A message leaves.
    Send(ToCoordinator),
    /// The connection is to end, after what was sent. Nothing of it is of interest any more.
    Close,
    /// A call has ended.
    Answer {
        /// Its number.
        id: u64,
        /// What comes of it.
        result: Result<Answer, CallError>,
    },
    /// The agent must know.
    Event(Event),
}

/// What an agent must know, and do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The coordinator has taken the member in.
    Joined,
    /// The coordinator is not reachable. The program runs on; the member tries again.
    Apart {
        /// Why.
        why: String,
    },
    /// The coordinator will never take the member in. The program runs on.
    Refused(Refusal),
    /// A phase begins: to be done, and said to be done ([`Input::Done`]).
    Begin {
        /// The round.
        round: u64,
        /// The phase.
        phase: Phase,
        /// What the round is for.
        order: Order,
    },
    /// The round is undone: [`Phase::Undo`], to be said to be done as others.
    Undo {
        /// The round.
        round: u64,
        /// Why.
        reason: String,
        /// The coordinator was lost when it may have decided already: what was written stays, for
        /// the manifest may name it; and of a checkpoint after which processes end, who finds the
        /// manifest has them end.
        in_doubt: bool,
    },
    /// The round is over.
    Finished {
        /// The round.
        round: u64,
        /// How.
        outcome: Outcome,
    },
}
