//! From a tree of processes that stands still to an image.
//!
//! The image's state is the tree ([`crate::state::Tree`]); its spaces are the address spaces of the processes, shared
//! memory, and contents of files.

pub(crate) mod areas;
pub(crate) mod placement;
pub(crate) mod process;
pub(crate) mod refused;
pub(crate) mod threads;
pub(crate) mod write;

use std::{collections::BTreeSet, os::fd::OwnedFd};

use libc::pid_t;
use procfs::process::{Process as Proc, Stat};

pub use self::process::{SIGNALS, code_among, credentials};
pub use self::write::{Saving, copy_running, look, write};
pub use crate::resources::{
    files::named::Named, sockets::remote::outside_peers::refuse as refuse_outside_peers,
};
use snaprig_tracee::{
    freeze::{Frozen, HeldProcess},
    memory,
};

use self::areas::{Flags, Shared};
use crate::{
    board::Board,
    calls,
    error::Result,
    resources::{
        collected::{Files, Source},
        huge::save as huge,
        locks::save as locks,
        plugins::owned::Owned,
        sockets::{self, save::Sockets},
        sysv::save as sysv,
    },
    spaces::{Key, Spaces},
    state::{Area, Backing, Kind, Process, SharedMemory, Tree},
};

/// What can be found out of a tree while it runs, so that it stands still for a shorter time.
#[derive(Debug, Default)]
pub struct Before {
    flags: Vec<(pid_t, Flags)>,
    /// The IPC namespace is the tree's alone.
    has_own_ipc: bool,
}

/// What a tree is looked at for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A checkpoint of its own.
    Alone,
    /// A checkpoint of its job, with others that it may be connected to.
    Job,
    /// It is to go on while what it has here may be there still.
    Moving,
}

impl Before {
    /// Of all descendants of a process.
    pub fn look(
        ancestor: pid_t,
        (purpose, has_own_ipc): (Purpose, bool),
        named: &mut Named,
        owned: &Owned,
    ) -> Result<Self> {
        let (mut flags, pids) = (Vec::new(), snaprig_tracee::freeze::descendants(ancestor)?);
        sysv::look(&pids, has_own_ipc)?;
        for pid in pids {
            let Some(living) = refused::check(pid, ancestor, named, owned)? else {
                continue;
            };
            // One that has ended has none.
            if let Ok(found) = Flags::read(living) {
                refused::flags(pid, &found)?;
                flags.push((pid, found));
            }
        }
        sockets::outside::check(ancestor, owned, purpose != Purpose::Job)?;
        if purpose == Purpose::Moving {
            locks::none(ancestor)?;
        }
        Ok(Self { flags, has_own_ipc })
    }
}

/// A tree, and where its bytes are.
pub struct Described {
    /// What the image says of it.
    pub tree: Tree,
    shared: Shared,
    /// System V shared memory, as the tree has it.
    segments: Vec<sysv::Source>,
    /// Areas all of whose pages are saved: process and first address.
    nameless: Vec<(pid_t, u64)>,
    /// Where page tables do not tell of all huge pages that are there.
    untold: huge::Untold,
    /// Processes that share pages with relatives.
    sharing: BTreeSet<pid_t>,
    /// Contents of files, in the order that the tree numbers them until their spaces are.
    contents: Vec<(Key, Source)>,
    sockets: Sockets,
    /// Files that only we have: on their way from process to process.
    _kept: Vec<OwnedFd>,
}

impl Described {
    /// The tree is in no job: it has no connections to others.
    pub fn alone(&mut self) -> Result<()> {
        self.sockets.alone()
    }

    /// All trees of the job stand still: connections between them are described, and what is on its way in them.
    pub fn meet_others(&mut self, board: &Board) -> Result<()> {
        self.sockets.meet_others(&mut self.tree.files, board)
    }

    /// The image is complete, and the tree is to end.
    pub fn abandon(&mut self) {
        self.sockets.abandon();
        self.segments.iter().for_each(sysv::Source::abandon);
    }
}

/// Describes a tree that stands still; `root` is its first process.
pub fn describe(
    frozen: &mut Frozen,
    root: pid_t,
    before: &Before,
    named: &mut Named,
    owned: &Owned,
) -> Result<Described> {
    let (mut shared, mut files) = (Shared::default(), Files::new(owned));
    let (mut processes, mut nameless) = (Vec::new(), Vec::new());
    let sharing = before.flags.iter().filter(|(_, flags)| flags.shares);
    let sharing = sharing.map(|(pid, _)| *pid).collect();
    let none = Flags::default();
    for held in &mut frozen.processes {
        let stat = Proc::new(held.pid)?.stat()?;
        let known = before.flags.iter().find(|(pid, _)| *pid == held.pid);
        let flags = known.map_or(&none, |(_, flags)| flags);
        let known = (flags, owned);
        let mut body = process::describe(held, known, &mut shared, named, &mut nameless)?;
        body.descriptors = files.of((held.pid, held.handle()), &mut shared, named)?;
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
    let bodies = processes.iter().filter_map(|process| process.body.as_ref());
    for area in bodies.flat_map(|body| &body.areas) {
        if let Backing::File {
            file, write: true, ..
        } = &area.backing
        {
            files.mapped(file)?;
        }
    }
    let pids: Vec<pid_t> = processes.iter().map(|process| process.pid).collect();
    let resolved = files.resolve(&pids, &mut shared)?;
    let vdso = vdso(&frozen.processes, &processes)?;
    let (sysv, segments) = sysv::describe(frozen, &shared.attachments, before.has_own_ipc)?;
    let supervisor = processes
        .iter()
        .find(|process| process.pid == root)
        .map_or(0, |p| p.parent);
    let tree = Tree {
        supervisor,
        root,
        monotonic_nanos: calls::clock(libc::CLOCK_MONOTONIC),
        boottime_nanos: calls::clock(libc::CLOCK_BOOTTIME),
        vdso,
        processes,
        files: files.open,
        pipes: resolved.pipes,
        terminals: resolved.terminals,
        console: resolved.console,
        shared: shared
            .met
            .iter()
            .map(|object| SharedMemory {
                space: 0,
                name: object.name.clone(),
                size: object.size,
                seals: object.seals,
                huge_bytes: object.huge_bytes,
            })
            .collect(),
        sysv,
    };
    let contents = files.contents.into_iter();
    let contents = contents.map(|source| Ok((source.key()?, source)));
    Ok(Described {
        contents: contents.collect::<Result<_>>()?,
        tree,
        shared,
        segments,
        nameless,
        untold: huge::Untold::new(),
        sharing,
        sockets: files.sockets,
        _kept: files.kept,
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

impl Described {
    /// Numbers its spaces, once; a space keeps its number in all images of a chain.
    pub fn number(&mut self, spaces: &mut Spaces) -> Result<()> {
        spaces.gather();
        let tree = &mut self.tree;
        for process in tree.processes.iter_mut().filter(|p| p.body.is_some()) {
            process.space = spaces.meet(Key::Process(process.pid)).number();
        }
        for (shared, object) in tree.shared.iter_mut().zip(&self.shared.met) {
            shared.space = spaces.meet(Key::Shared(object.id.0, object.id.1)).number();
        }
        for segment in tree.sysv.iter_mut().flat_map(|sysv| &mut sysv.segments) {
            segment.space = spaces.meet(Key::Segment(segment.object.id)).number();
        }
        for file in &mut tree.files {
            if let Kind::Path {
                contents: Some(contents),
                ..
            } = &mut file.kind
                && let Some((key, _)) = self.contents.get(contents.space as usize)
            {
                contents.space = spaces.meet(*key).number();
            }
        }
        Ok(())
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
