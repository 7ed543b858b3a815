//! From a tree of processes that stands still to an image.
//!
//! The image's state is the tree ([`snaprig_resources::state::Tree`]); its spaces are the address spaces of the processes, shared
//! memory, and contents of files. What processes have beside registers and their own memory is said and written by its
//! kind ([`snaprig_resources`]).

mod areas;
mod placement;
mod process;
mod refused;
mod threads;
mod write;

use std::{collections::BTreeSet, os::fd::BorrowedFd};

use libc::pid_t;
use procfs::process::{Process as Proc, Stat};
use snaprig_resources::event::Reporter;
use snaprig_resources::{
    board::Board,
    clocks::Clocks,
    collected::Collected,
    error::Result,
    memory::shared::Shared,
    opened::Item,
    plugins::owned::Owned,
    resource::{Resources, Running, Stopped, TreeContext},
    spaces::{Key, Spaces},
    state::{Area, Backing, Process, Tree},
};
use snaprig_tracee::{
    descriptors::me,
    freeze::{Frozen, HeldProcess},
    memory, tree,
};

use crate::locks;

use self::areas::Flags;
pub use self::{
    process::{SIGNALS, code_among, credentials, own_session_keyring},
    write::{Deferred, Saving, defer, look, write},
};
pub use snaprig_resources::{
    copy::copy_running, files::named::Named, resource::Purpose,
    sockets::remote::outside_peers::refuse as refuse_outside_peers,
};

/// What can be found out of a tree while it runs, so that it stands still for a shorter time.
#[derive(Debug)]
pub struct Survey {
    flags: Vec<(pid_t, Flags)>,
    /// The IPC namespace is the tree's alone.
    has_own_ipc: bool,
    purpose: Purpose,
}

impl Survey {
    /// Of all processes of this one's tree.
    pub fn look(
        (purpose, has_own_ipc): (Purpose, bool),
        named: &mut Named,
        owned: &Owned,
    ) -> Result<Self> {
        let (mut flags, pids) = (Vec::new(), tree::processes()?);
        let resources = snaprig_resources::all(&Reporter::default());
        for pid in &pids {
            let looked = refused::check(*pid, &resources, named, owned)?;
            // One that has ended has none.
            if let Some(Ok(found)) = looked.map(Flags::read) {
                refused::flags(*pid, &found)?;
                flags.push((*pid, found));
            }
        }
        let tree = Running {
            pids: &pids,
            purpose,
            has_own_ipc,
            owned,
        };
        resources.iter().try_for_each(|kind| kind.look(&tree))?;
        Ok(Self {
            flags,
            has_own_ipc,
            purpose,
        })
    }
}

/// A tree, and where its bytes are.
pub struct Described {
    /// What the image says of it.
    pub tree: Tree,
    shared: Shared,
    resources: Resources,
    /// Areas all of whose pages are saved: process and first address.
    nameless: Vec<(pid_t, u64)>,
    /// Processes that share pages with relatives.
    sharing: BTreeSet<pid_t>,
    /// It has copies of files that only this process has: on their way from process to process.
    _collected: Collected,
}

impl Described {
    /// The tree is in no job: it has no connections to others.
    pub fn alone(&mut self) -> Result<()> {
        self.resources.iter_mut().try_for_each(|kind| kind.alone())
    }

    /// All trees of the job stand still: connections between them are described, and what is on its way in them.
    pub fn meet_others(&mut self, board: &Board) -> Result<()> {
        let open = &mut self.tree.files;
        let mut kinds = self.resources.iter_mut();
        kinds.try_for_each(|kind| kind.meet_others(open, board))
    }

    /// What goes along as it is, by what the image calls it.
    pub fn carried(&self) -> Vec<(Item, BorrowedFd<'_>)> {
        let kinds = self.resources.iter();
        kinds
            .flat_map(|kind| kind.carried(&self.tree.files))
            .collect()
    }

    /// Its threads end without what they hold: robust locks in memory that has gone along are those of who goes on with it.
    pub fn forget_locks(&self, frozen: &Frozen) {
        for (held, process) in frozen.processes.iter().zip(&self.tree.processes) {
            // It is decided: nothing is left to be done about one that fails.
            let _ = locks::hide(process, held.handle());
        }
    }

    /// The image is complete, and the tree is to end.
    pub fn abandon(&mut self) {
        self.resources.iter().for_each(|kind| kind.abandon());
    }

    /// Numbers its spaces, once; a space keeps its number in all images of a chain.
    pub fn number(&mut self, spaces: &mut Spaces) -> Result<()> {
        spaces.gather();
        let tree = &mut self.tree;
        for process in tree.processes.iter_mut().filter(|p| p.body.is_some()) {
            process.space = spaces.meet(Key::Process(process.pid)).number();
        }
        let mut kinds = self.resources.iter();
        kinds.try_for_each(|kind| kind.number(tree, &self.shared, spaces))
    }
}

/// Describes a tree that stands still; `root` is its first process.
pub fn describe(
    frozen: &mut Frozen,
    root: pid_t,
    before: &Survey,
    named: &mut Named,
    owned: &Owned,
) -> Result<Described> {
    let (mut shared, mut resources) = (
        Shared::default(),
        snaprig_resources::all(&Reporter::default()),
    );
    let (mut collected, mut nameless) = (Collected::default(), Vec::new());
    let sharing = before.flags.iter().filter(|(_, flags)| flags.shares);
    let sharing = sharing.map(|(pid, _)| *pid).collect();
    let (mut processes, clocks) = (Vec::new(), Clocks::now());
    let none = Flags::default();
    for held in &mut frozen.processes {
        let stat = Proc::new(held.pid)?.stat()?;
        let known = before.flags.iter().find(|(pid, _)| *pid == held.pid);
        let flags = known.map_or(&none, |(_, flags)| flags);
        let known = (flags, owned);
        let mut body = process::describe(held, known, clocks, &mut shared, named, &mut nameless)?;
        let mut around = TreeContext {
            shared: &mut shared,
            named,
            clocks,
            purpose: before.purpose,
        };
        let handle = (held.pid, held.handle());
        body.descriptors = collected.add(handle, owned, &mut resources, &mut around)?;
        processes.push(Process {
            stopped: held.stopped,
            body: Some(Box::new(body)),
            ..plain(&stat)
        });
    }
    for pid in &frozen.zombies {
        let stat = Proc::new(*pid)?.stat()?;
        processes.push(Process {
            zombie: Some(stat.exit_code.unwrap_or(0)),
            ..plain(&stat)
        });
    }
    // Once the first process has ended, it is the parent of those that it has left behind (daemon(3)).
    let numbers: BTreeSet<pid_t> = processes.iter().map(|process| process.pid).collect();
    // A parent of another namespace has no number, and a restarted tree has another process 1.
    for orphan in processes.iter_mut().filter(|it| it.parent <= 1) {
        orphan.parent = me();
    }
    let mut tops = processes
        .iter()
        .filter(|top| !numbers.contains(&top.parent));
    let supervisor = tops.next().map_or(0, |top| top.parent);
    let mut tree = Tree {
        supervisor,
        root,
        monotonic_nanos: clocks.monotonic,
        boottime_nanos: clocks.boottime,
        vdso: vdso(&frozen.processes, &processes)?,
        processes,
        files: std::mem::take(&mut collected.open),
        pipes: Vec::new(),
        terminals: Vec::new(),
        console: None,
        shared: Vec::new(),
        sysv: None,
    };
    let mut stopped = Stopped {
        frozen,
        collected: &mut collected,
        shared: &mut shared,
        has_own_ipc: before.has_own_ipc,
        purpose: before.purpose,
    };
    for kind in &mut resources {
        kind.join(&mut tree, &mut stopped)?;
    }
    for kind in &mut resources {
        kind.contents(&mut tree)?;
    }
    Ok(Described {
        tree,
        shared,
        resources,
        nameless,
        sharing,
        _collected: collected,
    })
}

fn plain(stat: &Stat) -> Process {
    Process {
        pid: stat.pid,
        space: 0,
        parent: stat.ppid,
        group: stat.pgrp,
        session: stat.session,
        exit_signal: stat.exit_signal.unwrap_or(libc::SIGCHLD),
        zombie: None,
        stopped: None,
        body: None,
    }
}

fn vdso(held: &[HeldProcess], processes: &[Process]) -> Result<Vec<u8>> {
    for (held, process) in held.iter().zip(processes) {
        let areas = process.body.iter().flat_map(|body| &body.areas);
        let is_vdso = |area: &&Area| area.backing == Backing::Kernel(b"[vdso]".to_vec());
        if let Some(area) = areas.clone().find(is_vdso) {
            let mut bytes = vec![0; (area.end - area.start) as usize];
            memory::read(held.handle(), area.start, &mut bytes)?;
            return Ok(bytes);
        }
    }
    Ok(Vec::new())
}
