//! A round: the phases that all members go through together. What was ordered decides which they
//! are, and in which order; the next one begins when every member has done the one before.
//!
//! ```text
//!   checkpoint, then run on     Look  Stop  Drain  Write  COMMIT  Resume
//!   checkpoint, then end        Look  Stop  Drain  Write  COMMIT  End
//!   checkpoint, in background   Look  Stop  Drain  Freeze  Resume  Write  COMMIT
//!   restart                     Connect  Refill  Go
//!   move of one member          Look  Stop  Write  Connect  COMMIT  Go
//!
//!   any of them fails           Undo
//! ```
//!
//! COMMIT is the coordinator's alone: nobody but it does anything there. A round that is committed,
//! or a restart that has come to `Go`, is finished whoever dies; any other is undone.
//!
//! In a move, the tree of one member goes on at another one, its heir, who has come to the job before `Connect` and is in
//! the round from then on. Once it is committed, the heir has the member's name, and the member is nobody.

use serde::{Deserialize, Serialize};

/// What members do at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Processes run still. Whoever sees what cannot be saved says so; what can be copied ahead is.
    Look,
    /// All processes are stopped. Whoever has what cannot be saved says so, and how: a veto.
    Stop,
    /// What is on its way in connections between members arrives, or is taken out.
    Drain,
    /// What the image will hold is fixed; processes may run on, and be written meanwhile.
    Freeze,
    /// Images are written, and are on the disk.
    Write,
    /// What was taken out of connections is put back, and processes run on.
    Resume,
    /// Processes end.
    End,
    /// Restored processes, which do not run yet, have their connections again.
    Connect,
    /// Connections hold again what they held.
    Refill,
    /// Restored processes run.
    Go,
    /// A round is over that did not succeed: of a checkpoint, processes run on as if it had not
    /// begun; of a restart, what was restored ends. What was written and is not committed goes.
    Undo,
}

impl Phase {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Stop => "stop",
            Self::Drain => "drain",
            Self::Freeze => "freeze",
            Self::Write => "write",
            Self::Resume => "resume",
            Self::End => "end",
            Self::Connect => "connect",
            Self::Refill => "refill",
            Self::Go => "go",
            Self::Undo => "undo",
        }
    }
}

/// What a round is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A checkpoint; processes run on.
    Checkpoint,
    /// A checkpoint that is written while processes run on.
    Background,
    /// A checkpoint; processes end once it is committed.
    Final,
    /// A restart.
    Restart,
    /// A move: the tree of one member goes on at its heir, and those of all others where they are.
    Move,
}

impl Kind {
    /// Whether it comes to a checkpoint.
    pub fn is_checkpoint(self) -> bool {
        !matches!(self, Self::Restart | Self::Move)
    }

    /// Its steps, in order.
    pub fn steps(self) -> &'static [Step] {
        use Phase::{Connect, Drain, End, Freeze, Go, Look, Refill, Resume, Stop, Write};
        use Step::{Commit, Do};
        match self {
            Self::Checkpoint => &[Do(Look), Do(Stop), Do(Drain), Do(Write), Commit, Do(Resume)],
            Self::Background => &[
                Do(Look),
                Do(Stop),
                Do(Drain),
                Do(Freeze),
                Do(Resume),
                Do(Write),
                Commit,
            ],
            Self::Final => &[Do(Look), Do(Stop), Do(Drain), Do(Write), Commit, Do(End)],
            Self::Restart => &[Do(Connect), Do(Refill), Do(Go)],
            Self::Move => &[Do(Look), Do(Stop), Do(Write), Do(Connect), Commit, Do(Go)],
        }
    }

    /// The first phase.
    pub fn first(self) -> Phase {
        match self {
            Self::Restart => Phase::Connect,
            _ => Phase::Look,
        }
    }

    /// The phase after this one, if there is one: what a member is told next.
    pub fn after(self, phase: Phase) -> Option<Phase> {
        let mut phases = self.steps().iter().filter_map(|step| step.phase());
        phases.find(|one| *one == phase)?;
        phases.next()
    }

    /// Whether members do nothing more before this kind is decided: who has done this phase, and
    /// loses the coordinator, cannot know how the round ended.
    pub fn is_last_before_decision(self, phase: Phase) -> bool {
        match self {
            Self::Restart => phase == Phase::Refill,
            Self::Move => phase == Phase::Connect,
            _ => phase == Phase::Write,
        }
    }

    /// Whether a round that has come to this phase is decided: it is finished, whoever dies.
    pub fn is_decided_in(self, phase: Phase) -> bool {
        match self {
            Self::Checkpoint => phase == Phase::Resume,
            Self::Background => false,
            Self::Final => phase == Phase::End,
            Self::Restart | Self::Move => phase == Phase::Go,
        }
    }
}

/// A step of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// All members do this.
    Do(Phase),
    /// The coordinator commits.
    Commit,
}

impl Step {
    /// What members do.
    pub fn phase(self) -> Option<Phase> {
        match self {
            Self::Do(phase) => Some(phase),
            Self::Commit => None,
        }
    }
}

/// What is ordered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Order {
    /// What for.
    pub kind: Kind,
    /// How long each phase may take, in milliseconds.
    pub phase_ms: u32,
    /// How long to wait for members that are missing, in milliseconds.
    pub gather_ms: u32,
    /// What agents need to know: where images go, how they are written. At most
    /// [`NOTE_MAX`](crate::message::NOTE_MAX) bytes; the coordinator does not look into it.
    pub note: Vec<u8>,
    /// Of a move: who, and where to.
    pub moves: Option<Moves>,
}

/// Whose tree goes on at whom.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Moves {
    /// The member.
    pub member: String,
    /// Its heir, until that has the member's name: one that nobody else has.
    pub heir: String,
}

impl Order {
    /// With the usual patience: a minute for each phase, ten seconds for who is missing.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            phase_ms: 60_000,
            gather_ms: 10_000,
            note: Vec::new(),
            moves: None,
        }
    }

    /// Whether somebody begins with this phase.
    pub fn begins(&self, member: &str, phase: Phase) -> bool {
        let is_heir = self.moves.as_ref().is_some_and(|it| it.heir == member);
        match is_heir {
            true => phase == Phase::Connect,
            false => phase == self.kind.first(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Kind; 5] = [
        Kind::Checkpoint,
        Kind::Background,
        Kind::Final,
        Kind::Restart,
        Kind::Move,
    ];

    #[test]
    fn every_checkpoint_commits_once_and_after_all_is_written() {
        for kind in ALL {
            let steps = kind.steps();
            let commits = steps.iter().filter(|step| **step == Step::Commit);
            assert_eq!(commits.count(), usize::from(kind != Kind::Restart));
            if let Some(at) = steps.iter().position(|step| *step == Step::Commit) {
                let last = steps[at - 1].phase().unwrap();
                assert!(kind.is_last_before_decision(last) && !kind.is_decided_in(last));
                let decided = steps[at + 1..].iter().filter_map(|step| step.phase());
                assert!(decided.into_iter().all(|phase| kind.is_decided_in(phase)));
            }
        }
    }

    #[test]
    fn phases_follow_each_other_and_commits_are_not_theirs() {
        assert_eq!(Kind::Checkpoint.after(Phase::Write), Some(Phase::Resume));
        assert_eq!(Kind::Background.after(Phase::Write), None);
        assert_eq!(Kind::Restart.after(Phase::Undo), None);
        for kind in ALL {
            assert_eq!(kind.steps()[0].phase(), Some(kind.first()));
        }
    }
}
