//! From an image to processes.
//!
//! ```text
//! outside:    read the first section --> namespaces --> wait for the exit status
//! supervisor: open files --> plant processes --> lay out their memory --> fill it --> finish --> let all go
//! ```
//! What must stay true: none of the tree's code runs before the image has been read to its end; if anything is wrong
//! all processes end, and no file of the tree has been written to.

pub(crate) mod areas;
pub(crate) mod credentials;
pub(crate) mod fill;
pub(crate) mod groups;
pub(crate) mod layout;
pub(crate) mod namespaces;
pub(crate) mod process;
pub(crate) mod seed;
pub(crate) mod threads;
pub(crate) mod timers;
pub(crate) mod vdso;

use std::os::fd::OwnedFd;

use snaprig_ckpt_image::chain::Chain;
use snaprig_tracee::{
    error::Error as TraceeError,
    steps::{self, Step},
    trace::Tracee,
};

use self::{fill::fill, process::Growing};
pub use self::{
    groups::place,
    namespaces::{Clocks, Complete, chain, exit_code, run},
};
use crate::{
    board::Board,
    error::Result,
    resources::{
        files::restore as files,
        huge::restore as huge,
        locks::restore as locks,
        opened::{self, Opened},
        plugins::restore as plugins,
        sysv::restore as sysv,
        terminals::restore as terminals,
    },
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
    threads: Vec<Tracee>,
    runs: bool,
}

impl<'a> Restored<'a> {
    /// Opens the files of the tree of a chain of images; in a job, together with other trees.
    /// The caller is its supervisor.
    pub fn open(tree: &'a Tree, chain: &Chain, board: Option<&Board>) -> Result<Self> {
        check(tree)?;
        huge::enough(tree, chain)?;
        groups::lead(tree);
        if let Some(sysv) = &tree.sysv {
            sysv::make(sysv).map_err(|error| huge::explained(tree, error))?;
        }
        let opened = Opened::open(tree, board)?;
        steps::reached(Step::RestartFiles);
        Ok(Self {
            tree,
            opened: Some(opened),
            threads: Vec::new(),
            runs: false,
        })
    }

    /// Makes its processes, every byte of which has been read and checked when it returns; none of them runs. The caller
    /// has one thread, but for that of a member of a job.
    pub fn grow(
        &mut self,
        chain: &Chain,
        drops_privileges: bool,
        board: Option<&Board>,
    ) -> Result<()> {
        let Some(opened) = &mut self.opened else {
            return Ok(());
        };
        self.threads = grow(self.tree, chain, opened, drops_privileges, board)?;
        Ok(())
    }

    /// The threads of plugins run, and nothing else of the tree: their processes, and the other ends of their
    /// connections. If the supervisor dies, they end with the threads that are still held.
    pub fn wake_plugins(&mut self) -> Result<Vec<(i32, OwnedFd)>> {
        let Some(opened) = &self.opened else {
            return Ok(Vec::new());
        };
        let channels = opened.channels(self.tree)?;
        let tids = plugins::threads(self.tree, &channels);
        let is_of_plugin = |thread: &mut Tracee| tids.contains(&thread.tid());
        for thread in self.threads.extract_if(.., is_of_plugin) {
            thread.detach(0)?;
        }
        Ok(channels)
    }

    /// All of it runs.
    pub fn go(mut self, complete: Complete) -> Result<()> {
        let_go(&self.threads, complete)?;
        self.runs = true;
        terminals::redraw(self.tree);
        Ok(())
    }
}

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let Some(opened) = self.opened.take() else {
            return;
        };
        if !self.runs {
            files::withdraw(&opened);
            for process in &self.tree.processes {
                // SAFETY: no memory is involved; in this namespace the number is nobody else's.
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

fn grow(
    tree: &Tree,
    chain: &Chain,
    opened: &mut Opened,
    drops_privileges: bool,
    board: Option<&Board>,
) -> Result<Vec<Tracee>> {
    let quiet = board.map(Board::quiet);
    seed::plant(tree, opened)?;
    drop(quiet);
    steps::reached(Step::RestartPlanted);
    let mut growing = Vec::new();
    for process in &tree.processes {
        if let Some(body) = &process.body {
            let laid_out = Growing::lay_out(process, body, tree, opened);
            growing.push(laid_out.map_err(|error| huge::explained(tree, error))?);
        }
    }
    fill(tree, chain, opened).map_err(|error| huge::explained(tree, error))?;
    steps::reached(Step::RestartFilled);
    files::commit(opened)?;
    if let Some(sysv) = &tree.sysv {
        for work in [Growing::owe, Growing::touch] {
            growing.iter().try_for_each(|growing| work(growing, sysv))?;
        }
        sysv::finish(sysv)?;
    }
    let mut threads: Vec<Tracee> = Vec::new();
    for growing in growing {
        threads.extend(growing.finish(tree, opened, drops_privileges)?);
    }
    locks::finish(tree, opened)?;
    terminals::finish(tree, opened)?;
    terminals::take_over(tree)?;
    groups::dismiss(tree);
    for process in &tree.processes {
        if let Some(signal) = process.stopped {
            // SAFETY: no memory is involved.
            unsafe { libc::kill(process.pid, signal) };
        }
    }
    Ok(threads)
}

/// All of them run on, also if this process dies, from one moment on. Before that they end with it: those that it has
/// let go of already by the hand of process 1, which is a moment later.
fn let_go(threads: &[Tracee], complete: Complete) -> Result<()> {
    steps::reached(Step::RestartHeld);
    for thread in threads {
        thread.unbind()?;
    }
    complete.set();
    steps::reached(Step::RestartComplete);
    for thread in threads {
        match thread.detach(0) {
            // Somebody has killed it.
            Err(TraceeError::Gone { .. }) | Ok(()) => steps::reached(Step::RestartLetGo),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
