//! From an image to processes.
//!
//! ```text
//! outside:    read the first section --> namespaces --> wait for the exit status
//! supervisor: open files --> plant processes --> lay out their memory --> fill it --> finish --> let all go
//! ```
//! What must stay true: none of the tree's code runs before the image has been read to its end; if anything is wrong
//! all processes end, and no file of the tree has been written to.

mod areas;
mod credentials;
mod fill;
mod groups;
mod lacks;
mod namespaces;
mod process;
mod rebuilding;
mod seed;
mod staging;
mod threads;
mod timers;
mod vdso;

use std::os::fd::OwnedFd;

use crate::{
    faults,
    locks::{self, Hidden},
};
use libc::pid_t;
use snaprig_ckpt_image::chain::Chain;
use snaprig_tracee::faults::reached;
use snaprig_tracee::{error::Error as TraceeError, trace::Tracee};

pub use self::{
    groups::place,
    lacks::Lacks,
    namespaces::{Complete, exit_code, run},
    staging::Staging,
};
pub use snaprig_resources::error::chain;
use snaprig_resources::event::Reporter;
use snaprig_resources::{
    self,
    board::Board,
    clocks::Clocks,
    error::Result,
    huge,
    opened::{self, Carried, Opened},
    plugins,
    resource::Resources,
    state::{Process, Tree},
};

/// Reads what a chain of images says of its tree.
pub fn read_tree(chain: &Chain) -> Result<Tree> {
    let mut tree = None;
    chain.states(|state| -> Result<()> {
        tree = Some(state.decode()?);
        Ok(())
    })?;
    tree.ok_or_else(|| opened::damaged("no tree of processes"))
}

/// A tree that is being made: dropped before it is let go, all of its processes end.
pub struct Restored<'a> {
    tree: &'a Tree,
    opened: Option<Opened>,
    resources: Resources,
    threads: Vec<Tracee>,
    staging: Staging,
    /// Locks in memory that has come along: until all runs, its threads may have to end without a trace.
    hidden: Vec<Hidden>,
    runs: bool,
}

impl<'a> Restored<'a> {
    /// Opens the files of the tree of a chain of images; in a job, together with other trees.
    /// The caller is its supervisor.
    pub fn open(
        tree: &'a Tree,
        chain: &Chain,
        board: Option<&Board>,
        reporter: &Reporter,
    ) -> Result<Self> {
        Self::open_with(tree, chain, (board, None), reporter)
    }

    /// The same, with sockets that have come along.
    pub fn open_with(
        tree: &'a Tree,
        chain: &Chain,
        (board, carried): (Option<&Board>, Option<Carried>),
        reporter: &Reporter,
    ) -> Result<Self> {
        check(tree)?;
        let mut resources = snaprig_resources::all(reporter);
        resources
            .iter()
            .try_for_each(|kind| kind.check(tree, chain))?;
        groups::lead(tree);
        let mut kinds = resources.iter_mut();
        kinds.try_for_each(|kind| kind.prepare(tree))?;
        let opened = open(tree, &mut resources, board, carried)?;
        reached(&faults::RESTART_FILES);
        Ok(Self {
            tree,
            opened: Some(opened),
            resources,
            threads: Vec::new(),
            staging: Staging::default(),
            hidden: Vec::new(),
            runs: false,
        })
    }

    /// What is there of its memory already: as much as the chain says.
    pub fn have(&mut self, mut staging: Staging) {
        staging.settle(self.tree);
        self.staging = staging;
    }

    /// Makes its processes, every byte of which has been read and checked when it returns; none of them runs. The caller
    /// has one thread, but for that of a member of a job.
    pub fn grow(
        &mut self,
        chain: &Chain,
        drops_privileges: bool,
        board: Option<&Board>,
    ) -> Result<()> {
        self.grow_lacking(chain, drops_privileges, board, None)
    }

    /// The same, but for what follows: its processes wait for what is missing, also in system calls.
    pub fn grow_lacking(
        &mut self,
        chain: &Chain,
        drops_privileges: bool,
        board: Option<&Board>,
        lacks: Option<Lacks<'_>>,
    ) -> Result<()> {
        let Some(opened) = &mut self.opened else {
            return Ok(());
        };
        let made = (opened, &self.resources, &self.staging);
        let how = (drops_privileges, board);
        (self.threads, self.hidden) = grow(self.tree, chain, made, how, lacks)?;
        Ok(())
    }

    /// The threads of plugins run, and nothing else of the tree: their processes, and the other ends of their
    /// connections. If the supervisor dies, they end with the threads that are still held.
    pub fn wake_plugins(&mut self) -> Result<Vec<(pid_t, OwnedFd)>> {
        let mut connections = Vec::new();
        if let Some(opened) = &self.opened {
            for kind in &self.resources {
                connections.extend(kind.connections(self.tree, opened.end())?);
            }
        }
        let tids = plugins::threads(self.tree, &connections);
        let is_of_plugin = |thread: &mut Tracee| tids.contains(&thread.tid());
        for thread in self.threads.extract_if(.., is_of_plugin) {
            thread.detach(0)?;
        }
        Ok(connections)
    }

    /// All of it runs.
    pub fn go(mut self, complete: Complete) -> Result<()> {
        self.before_it_runs()?;
        reached(&faults::RESTART_HELD);
        for thread in &self.threads {
            thread.unbind()?;
        }
        self.keep_from_now_on(complete);
        self.let_go()
    }

    /// All of it runs, and ends with this process, or when this is dropped, until it is [kept](Self::keep).
    pub fn run(&mut self) -> Result<()> {
        self.before_it_runs()?;
        reached(&faults::RESTART_HELD);
        self.let_go()
    }

    /// What runs goes on, whatever becomes of this process.
    pub fn keep(mut self, complete: Complete) {
        self.keep_from_now_on(complete);
    }

    fn keep_from_now_on(&mut self, complete: Complete) {
        complete.set();
        self.runs = true;
        reached(&faults::RESTART_COMPLETE);
    }

    fn before_it_runs(&mut self) -> Result<()> {
        for hidden in self.hidden.drain(..) {
            hidden.show()?;
        }
        let kinds = self.resources.iter();
        kinds.for_each(|kind| kind.before_it_runs(self.tree));
        Ok(())
    }

    /// Those of a tree that is not complete end by the hand of process 1, if this process does, which is a moment later.
    fn let_go(&self) -> Result<()> {
        for thread in &self.threads {
            match thread.detach(0) {
                // Somebody has killed it.
                Err(TraceeError::Gone { .. }) | Ok(()) => reached(&faults::RESTART_LET_GO),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let Some(opened) = self.opened.take() else {
            return;
        };
        if !self.runs {
            self.resources.iter().for_each(|kind| kind.withdraw());
            for process in &self.tree.processes {
                // SAFETY: kill(2) takes numbers alone; in this PID namespace, which is the tree's, the number is nobody
                // else's.
                unsafe { libc::kill(process.pid, libc::SIGKILL) };
            }
        }
        opened.close();
    }
}

/// Numbers of an image that everything else relies on.
fn check(tree: &Tree) -> Result<()> {
    let is_known =
        |pid| pid == tree.supervisor || tree.processes.iter().any(|process| process.pid == pid);
    let lives = |process: &&Process| process.zombie.is_none();
    let is_sound = tree
        .processes
        .iter()
        .all(|process| process.pid > 1 && is_known(process.parent))
        && tree.processes.iter().filter(lives).all(|process| {
            let first = process.body.as_ref().and_then(|body| body.threads.first());
            first.is_some_and(|first| first.tid == process.pid)
        });
    match is_sound {
        true => Ok(()),
        false => Err(opened::damaged("processes that do not belong together")),
    }
}

/// Opens everything that a tree has open; in a job, together with other trees.
fn open(
    tree: &Tree,
    resources: &mut Resources,
    board: Option<&Board>,
    carried: Option<Carried>,
) -> Result<Opened> {
    let mut opened = Opened::new(tree);
    opened.carried = carried;
    opened.clocks = namespaces::keeps_time().then(|| Clocks::of(tree));
    for kind in &mut *resources {
        kind.open(tree, &mut opened, board)?;
    }
    let is_late = |kind| resources.iter().any(|one| one.is_late(kind));
    let mut files = tree.files.iter().zip(&opened.files);
    if files.any(|(file, fd)| *fd < 0 && !is_late(&file.kind)) {
        let what = "a file of a kind that this version does not restore";
        return Err(opened::damaged(what));
    }
    for kind in &mut *resources {
        kind.refill(tree, &opened, board)?;
    }
    let mut kinds = resources.iter();
    kinds.try_for_each(|kind| kind.claim(tree, &opened))?;
    Ok(opened)
}

fn grow(
    tree: &Tree,
    chain: &Chain,
    (opened, resources, staging): (&mut Opened, &Resources, &Staging),
    (drops_privileges, board): (bool, Option<&Board>),
    lacks: Option<Lacks<'_>>,
) -> Result<(Vec<Tracee>, Vec<Hidden>)> {
    let quiet = board.map(Board::quiet);
    seed::plant(tree, opened, resources, staging)?;
    drop(quiet);
    reached(&faults::RESTART_PLANTED);
    let mut growing = Vec::new();
    for process in &tree.processes {
        if let Some(body) = &process.body {
            let laid_out = process::lay_out((process, body), tree, opened, staging);
            growing.push(laid_out.map_err(|error| huge::explained(tree, error))?);
        }
    }
    let mut targets = fill::of_processes(tree);
    for kind in resources {
        kind.targets(tree, opened, &mut targets)?;
    }
    fill::fill(chain, &targets, staging).map_err(|error| huge::explained(tree, error))?;
    drop(targets);
    // From here on, processes are looked into, and make calls with what they have.
    if let Some(lacks) = lacks {
        lacks.wait(&growing)?;
    }
    reached(&faults::RESTART_FILLED);
    let mut hidden = Vec::new();
    if opened.carried.is_some() {
        for process in &tree.processes {
            hidden.extend(locks::hide(process, process.pid)?);
        }
    }
    let mut kinds = resources.iter();
    let all: Vec<&snaprig_resources::growing::Growing<'_>> =
        growing.iter().map(|one| &one.0).collect();
    kinds.try_for_each(|kind| kind.filled(tree, &all))?;
    let mut threads: Vec<Tracee> = Vec::new();
    for growing in growing {
        let finished = process::finish(growing, tree, (opened, resources), drops_privileges);
        threads.extend(finished?);
    }
    let mut kinds = resources.iter();
    kinds.try_for_each(|kind| kind.finish(tree, opened))?;
    groups::dismiss(tree)?;
    for process in &tree.processes {
        if let Some(signal) = process.stopped {
            // SAFETY: kill(2) takes numbers alone; in this PID namespace, which is the tree's, the number is nobody
            // else's.
            unsafe { libc::kill(process.pid, signal) };
        }
    }
    Ok((threads, hidden))
}
