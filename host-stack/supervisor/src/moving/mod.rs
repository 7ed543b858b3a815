//! A member of a job moves: its tree goes on at another supervisor of this machine, on another node, while the trees of all
//! other members stay. Nothing of those is restarted; they stand still only as far as their plugins do.
//!
//! ```text
//! phase    source, whose tree it is         the others                       heir (`heir`)
//! Look     copies memory ahead;             plugins quiesce, drain, save     waits at a socket; has what was
//!          plugins quiesce, drain, save                                      copied in its own memory (`ahead`)
//! Stop     the tree stands still
//! Write    the rest of its memory, its sockets, its network namespace  ---> has all of it, and joins the job
//! Connect                                   plugins rebuild, exchange        restores the tree; plugins rebuild, exchange
//! COMMIT   the coordinator writes down that it is decided (`decision`)
//! Go       the tree ends here               plugins refill, go               plugins refill; the tree runs, by its name
//! ```
//! With post-copy (`postcopy`), large private memory is not part of that: it follows, and the tree runs meanwhile. `Go` takes until
//! all of it is there.
//!
//! If it fails before the commit, what was made for it goes, and all are as they were. Whoever loses the coordinator when it may
//! have decided gives the move up, if nobody has decided it, for good; or does what is decided.
//!
//! Sockets go along as they are, whoever is at their other ends, and the network namespace that they are in: addresses are
//! the tree's, as if its node's had moved with it. So do open files: others may write to them all the while.
//!
//! What must stay true: the tree runs at one of both supervisors at most, and at one of them in the end, whoever dies; or, once it
//! runs without all of its memory, nowhere.

mod ahead;
mod awaited;
pub mod decision;
pub mod faults;
pub mod handover;
mod heir;
mod incoming;
mod network;
mod postcopy;
mod scp;
mod source;
mod spoken;
pub mod way;

use std::{io, time::Duration};

use libc::pid_t;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};
use snaprig_ckpt_image::store::{Joined, Store};
use snaprig_ckpt_plugin::phase::{Part, Phase as PluginPhase, Span};
use snaprig_coord::{
    driver,
    phase::{Moves, Order, Phase},
};
use snaprig_resources::{
    board::Board,
    error::{Error, Result},
};
use snaprig_tracee::faults::{begin_round, reached};

pub use self::heir::inherit;
use self::{decision::Decision, source::Leaving, way::Way};
use crate::{
    checkpoint::History,
    plugins::{JobRound, ReadyPlugins, SharedPlugins},
};

/// As many open files as a kernel lets a process have (fs.nr_open in proc_sys_fs(5)): those of a tree go through its supervisors.
const FILES_MAX: u64 = 1 << 20;
/// What errors call the image of a tree that moves.
const IMAGE: &str = "the image of a tree that moves";

/// What the order of a move says to members.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Note {
    /// What the decision is called: no other move's is.
    pub decision: String,
    /// Where the heir waits for the tree.
    pub heir: std::path::PathBuf,
    /// The way that its image takes.
    pub way: Way,
}

impl Note {
    /// As an order carries it.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a note holds only numbers and paths")
    }

    /// What an order says.
    pub fn of(order: &Order) -> Result<Self> {
        postcard::from_bytes(&order.note).map_err(|error| nonsense(&error.to_string()))
    }
}

/// The process that fork(2) has made, as its parent has it. The -1 of a fork that failed is no number of a process: to kill(2)
/// it is everybody.
fn child_of(forked: pid_t) -> io::Result<Pid> {
    Pid::from_raw(forked.max(0)).ok_or_else(io::Error::last_os_error)
}

fn nonsense(what: &str) -> Error {
    let what = format!("the order of a move: {what}");
    Error::Job { what }
}

/// A move that this supervisor's member takes part in.
pub struct Moving {
    round: u64,
    moves: Moves,
    decision: Decision,
    side: Side,
    /// Files of plugins are in its directory.
    joined: Joined,
}

enum Side {
    Leaves(Box<Leaving>),
    /// None: its plugins have not been gathered yet, or have been released.
    Stays(Option<ReadyPlugins>),
}

/// What a member has of its tree.
pub struct Parts<'a> {
    pub link: &'a driver::Member,
    pub name: &'a str,
    pub root: pid_t,
    pub known: &'a mut History,
    pub plugins: &'a SharedPlugins,
}

impl Moving {
    /// Takes part in a move.
    pub fn new(member: &str, round: u64, order: &Order, store: &Store) -> Result<Self> {
        let (Some(moves), note) = (order.moves.clone(), Note::of(order)?) else {
            return Err(nonsense("it does not say whose"));
        };
        let joined = store.join(round)?;
        let decision = Decision::of(store, &note.decision)?;
        let side = match moves.member == member {
            true => Side::Leaves(Box::new(Leaving::new(note))),
            false => Side::Stays(None),
        };
        Ok(Self {
            round,
            moves,
            decision,
            side,
            joined,
        })
    }

    /// Whether the tree stands still.
    pub fn holds(&self) -> bool {
        matches!(&self.side, Side::Leaves(leaving) if leaving.holds())
    }

    /// Does a phase; whether the tree is gone.
    pub fn phase(&mut self, phase: Phase, order: &Order, parts: &mut Parts<'_>) -> Result<bool> {
        let board = Board {
            member: parts.link,
            round: self.round,
            patience: Duration::from_millis(order.phase_ms.into()),
        };
        let job = JobRound {
            member: parts.name,
            board: &board,
        };
        match (phase, &mut self.side) {
            (Phase::Look, side) => {
                begin_round();
                reached(&faults::BEGUN);
                let part = match side {
                    Side::Leaves(_) => Part::Moves,
                    Side::Stays(_) => Part::Stays,
                };
                parts.plugins.borrow_mut().take_part(part);
                match side {
                    Side::Leaves(leaving) => leaving.look(self.joined.dir(), job, parts)?,
                    Side::Stays(gathered) => {
                        board.meet("copied")?;
                        let directory = self.joined.dir();
                        *gathered = Some(ReadyPlugins::of(
                            parts.plugins,
                            directory,
                            Some(job),
                            Span::Save,
                        )?);
                    }
                }
            }
            (Phase::Stop, Side::Leaves(leaving)) => leaving.stop(job, parts)?,
            (Phase::Write, Side::Leaves(leaving)) => {
                leaving.hand_over(self.joined.dir(), &board)?
            }
            (Phase::Connect, Side::Leaves(_)) => parts.plugins.borrow_mut().look_on(job)?,
            (Phase::Connect, Side::Stays(_)) => {
                let mut plugins = parts.plugins.borrow_mut();
                plugins.connect(self.joined.dir(), job)?;
                reached(&faults::CONNECTED);
            }
            (Phase::Stop | Phase::Write, Side::Stays(_)) => {}
            (Phase::Go, _) => return self.decided(parts),
            _ => return Err(nonsense("it has no such phase")),
        }
        Ok(false)
    }

    /// It is decided; whether the tree is gone.
    fn decided(&mut self, parts: &mut Parts<'_>) -> Result<bool> {
        match &mut self.side {
            Side::Leaves(leaving) => {
                // Where it runs without all of its memory, it ends, and its job hears of that from there.
                if let Err(error) = leaving.end() {
                    tracing::warn!("{}", snaprig_resources::error::chain(&error));
                }
                parts.link.rename(&self.moves.heir);
                Ok(true)
            }
            Side::Stays(gathered) => {
                let mut plugins = parts.plugins.borrow_mut();
                reached(&faults::FOLLOWS);
                let refilled = plugins.refill(self.joined.dir());
                plugins.release(PluginPhase::Go);
                drop(plugins);
                if let Some(gathered) = gathered.take() {
                    gathered.forget();
                }
                refilled.map(|()| false)
            }
        }
    }

    /// All is as it was; or, if it was decided after all, that is done. Whether the tree is gone.
    pub fn undo(mut self, in_doubt: bool, parts: &mut Parts<'_>) -> Result<bool> {
        if in_doubt && self.decision.is_for_it()? {
            return self.decided(parts);
        }
        match self.side {
            Side::Leaves(leaving) => leaving.stay(parts.known)?,
            Side::Stays(gathered) => drop(gathered),
        }
        // Also where nobody was told of it.
        parts.plugins.borrow_mut().take_part(Part::All);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_that_failed_has_made_nobody() {
        assert!(child_of(-1).is_err());
        let own = rustix::process::getpid();
        assert_eq!(child_of(own.as_raw_pid()).unwrap(), own);
    }
}
