//! What a kind of state does at each step of a checkpoint and of a restart.
//!
//! ```text
//! the tree runs           look, recognises, look_closer             a refusal costs the program nothing
//! the tree stands still   save (each open file, when it is met first) --> join --> contents
//!                         --> alone, or meet_others (of a job) --> number --> scan --> write --> abandon (it ends)
//! a restart, supervisor   check --> prepare --> open --> refill --> claim
//! its processes           lead_session --> open_late --> add        each of them, as a fork of the supervisor
//! held processes          with_inherited --> with_own               by the calls that they make
//! supervisor              targets (memory is filled) --> filled --> finish --> before_it_runs; or withdraw
//! ```
//! Every step of one kind is done before the next step of any. Within a step, kinds are asked in the order of their list
//! ([`super::list`]).

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use libc::pid_t;
use snaprig_ckpt_image::chain::Chain;
use snaprig_tracee::freeze::Frozen;

use crate::{
    board::Board,
    clocks::Clocks,
    collected::Collected,
    copy::PageWriter,
    descriptor::FoundDescriptor,
    error::Result,
    files::named::Named,
    growing::Growing,
    memory::shared::Shared,
    opened::{Item, Opened},
    plugins::owned::Owned,
    spaces::Spaces,
    state::{Body, Kind, Lock, OpenFile, Process, Tree},
    target::Targets,
};

/// What a tree is looked at for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A checkpoint of its own.
    Alone,
    /// A checkpoint of its job, with others that it may be connected to.
    Job,
    /// It is to go on while what it has here may be there still.
    Moving,
    /// The same, on this machine: its sockets and shared memory go along as they are, whoever else has them.
    MovingAlong,
}

/// A tree that runs.
pub struct Running<'a> {
    /// Its processes, when it was looked at.
    pub pids: &'a [pid_t],
    /// What it is looked at for.
    pub purpose: Purpose,
    /// Its IPC namespace is its alone.
    pub has_own_ipc: bool,
    /// What belongs to plugins.
    pub owned: &'a Owned,
}

/// An open file of a tree that stands still, when it is met first.
pub struct FoundFile<'a> {
    /// Its number among the open files of the tree.
    pub number: u32,
    /// The descriptor that it is met by.
    pub seen: &'a FoundDescriptor,
    /// A descriptor of this process for it.
    pub copy: OwnedFd,
    /// Locks that are held through it.
    pub locks: &'a [Lock],
}

/// What is known of a tree beside one of its open files.
pub struct TreeContext<'a> {
    /// Memory that several can map.
    pub shared: &'a mut Shared,
    /// Files by their names.
    pub named: &'a mut Named,
    /// Its clocks when it stood still.
    pub clocks: Clocks,
    /// What all this is for.
    pub purpose: Purpose,
}

/// What an open file is.
pub struct Saved {
    /// As the image says it.
    pub kind: Kind,
    /// Files that are in it, on their way to somebody: they are open files of the tree, too. Where `kind` names them, it
    /// has their places here until [`Resource::number_passed`].
    pub passed: Vec<OwnedFd>,
}

impl From<Kind> for Saved {
    fn from(kind: Kind) -> Self {
        Self {
            kind,
            passed: Vec::new(),
        }
    }
}

/// A tree that stands still, all of whose processes and open files are known.
pub struct Stopped<'a> {
    /// Its processes, held.
    pub frozen: &'a mut Frozen,
    /// Its open files: who has each.
    pub collected: &'a mut Collected,
    /// Memory that several can map.
    pub shared: &'a mut Shared,
    /// Its IPC namespace is its alone.
    pub has_own_ipc: bool,
    /// What it was stopped for.
    pub purpose: Purpose,
}

/// A kind of state that processes have beside their registers and their own memory. A value of it lives for one
/// checkpoint, or for one restart.
#[allow(unused_variables)] // Of each step, most kinds need a part or nothing.
pub trait Resource {
    /// The tree runs: refuses what it has as a whole and what cannot be saved.
    fn look(&self, tree: &Running<'_>) -> Result<()> {
        Ok(())
    }

    /// Whether a descriptor is of this kind; refuses one that is, and cannot be saved. The tree may run.
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        Ok(false)
    }

    /// The tree runs: looks closer at a descriptor of this kind, and refuses what cannot be saved.
    fn look_closer(&self, seen: &FoundDescriptor, named: &mut Named) -> Result<()> {
        Ok(())
    }

    /// Says what an open file of this kind is.
    fn save(&mut self, met: FoundFile<'_>, around: &mut TreeContext<'_>) -> Result<Saved> {
        Err(met.seen.refused("a kind of file that is not saved"))
    }

    /// The files that were passed along with a file of this kind have these numbers.
    fn number_passed(&self, kind: &mut Kind, numbers: &[u32]) {}

    /// All processes and open files are known: adds to the tree what more there is to say.
    fn join(&mut self, tree: &mut Tree, stopped: &mut Stopped<'_>) -> Result<()> {
        Ok(())
    }

    /// All has been said but for what is only seen when it is taken out and put back: what is in terminals.
    fn contents(&mut self, tree: &mut Tree) -> Result<()> {
        Ok(())
    }

    /// The tree is in no job: refuses what it shares with others.
    fn alone(&mut self) -> Result<()> {
        Ok(())
    }

    /// All trees of the job stand still: says what they share.
    fn meet_others(&mut self, open: &mut [OpenFile], board: &Board<'_>) -> Result<()> {
        Ok(())
    }

    /// Numbers the spaces of the image that are of this kind; a space keeps its number in all images of a chain.
    fn number(&self, tree: &mut Tree, shared: &Shared, spaces: &mut Spaces) -> Result<()> {
        Ok(())
    }

    /// Finds out which pages there are, where that takes the processes.
    fn scan(&mut self, tree: &Tree, shared: &Shared, frozen: &mut Frozen) -> Result<()> {
        Ok(())
    }

    /// Writes the pages of its spaces.
    fn write(
        &self,
        tree: &Tree,
        shared: &Shared,
        spaces: &mut Spaces,
        writer: &mut dyn PageWriter,
    ) -> Result<()> {
        Ok(())
    }

    /// What goes along as it is ([`Opened::carried`]).
    fn carried(&self, open: &[OpenFile]) -> Vec<(Item, BorrowedFd<'_>)> {
        Vec::new()
    }

    /// The image is complete, and the tree is to end: takes away what would be left of it.
    fn abandon(&self) {}

    /// A restart begins: refuses what this machine does not have.
    fn check(&self, tree: &Tree, chain: &Chain) -> Result<()> {
        Ok(())
    }

    /// Makes what must be there before any file is opened.
    fn prepare(&mut self, tree: &Tree) -> Result<()> {
        Ok(())
    }

    /// Opens the files of this kind; in a job, together with other trees.
    fn open(&mut self, tree: &Tree, opened: &mut Opened, board: Option<&Board<'_>>) -> Result<()> {
        Ok(())
    }

    /// All files are open: puts into those of this kind what was in them.
    fn refill(&mut self, tree: &Tree, opened: &Opened, board: Option<&Board<'_>>) -> Result<()> {
        Ok(())
    }

    /// All files are open and full: takes what others may want as well, or refuses.
    fn claim(&self, tree: &Tree, opened: &Opened) -> Result<()> {
        Ok(())
    }

    /// Whether a file can only be opened when the processes of the tree are there, by who has it.
    fn is_late(&self, kind: &Kind) -> bool {
        false
    }

    /// In a process that has just made a session.
    fn lead_session(&self, tree: &Tree, session: pid_t) -> Result<()> {
        Ok(())
    }

    /// In a process, when all others are there: opens a file that is late.
    fn open_late(&self, file: &OpenFile) -> Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// In a process that has all of its descriptors.
    fn add(&self, tree: &Tree, opened: &Opened, process: &Process, body: &Body) -> Result<()> {
        Ok(())
    }

    /// Says where pages of the image go.
    fn targets(&self, tree: &Tree, opened: &Opened, targets: &mut Targets) -> Result<()> {
        Ok(())
    }

    /// All pages of the image have been read and are where they belong; no process has been finished.
    fn filled(&self, tree: &Tree, growing: &[&Growing<'_>]) -> Result<()> {
        Ok(())
    }

    /// By calls of a process that still has the supervisor's descriptors.
    fn with_inherited(&self, tree: &Tree, growing: &Growing<'_>) -> Result<()> {
        Ok(())
    }

    /// By calls of a process that has its own descriptors alone.
    fn with_own(&self, tree: &Tree, growing: &Growing<'_>) -> Result<()> {
        Ok(())
    }

    /// All processes are what they were, and held.
    fn finish(&self, tree: &Tree, opened: &Opened) -> Result<()> {
        Ok(())
    }

    /// All of the tree is as it was, and about to run. Its threads are held: a signal that is sent now interrupts the calls
    /// that they are in; sent later it could come before they are made again.
    fn before_it_runs(&self, tree: &Tree) {}

    /// The supervisor's ends of connections that processes of the tree have to it, moved behind `last`, with those
    /// processes.
    fn connections(&self, tree: &Tree, last: RawFd) -> Result<Vec<(pid_t, OwnedFd)>> {
        Ok(Vec::new())
    }

    /// The restart has failed: takes away what was made for it.
    fn withdraw(&self) {}

    /// An open file of this kind, for people.
    fn describe(&self, file: &OpenFile) -> Option<String> {
        None
    }

    /// Spaces of the image that are of this kind, for people: lines.
    fn describe_spaces(&self, tree: &Tree) -> Vec<String> {
        Vec::new()
    }

    /// What else the image says of this kind, for people: lines.
    fn describe_all(&self, tree: &Tree) -> Vec<String> {
        Vec::new()
    }
}

/// All kinds, as the list has them.
pub type Resources = Vec<Box<dyn Resource>>;
