//! From a tree of processes that stands still to an image.
//!
//! The image's state is the tree ([`crate::state::Tree`]); its spaces are the address spaces of the processes, shared
//! memory, and contents of files.

mod areas;
mod diag;
mod files;
mod named;
mod pages;
mod process;
mod refused;
mod sockets;
mod write;

use std::{collections::HashMap, os::fd::OwnedFd};

use libc::pid_t;
use procfs::process::{MMPermissions, Process as Proc, Stat};

pub use self::areas::kernels;
pub use self::files::copy_of;
pub use self::named::{Named, hash, modified};
pub use self::pages::Pagemap;
pub use self::process::{SIGNALS, credentials, find_syscall, regs_of, syscall_instruction};
pub use self::write::{Saving, copy_running, look, write};
use self::{
    areas::{Flags, Shared},
    files::Files,
    sockets::Sockets,
};
use crate::{
    error::{Error, Result},
    freeze::{Frozen, HeldProcess},
    memory,
    spaces::{Key, Spaces},
    state::{Area, Backing, Kind, Process, SharedMemory, Tree},
};

/// What can be found out of a tree while it runs, so that it stands still for a shorter time.
#[derive(Debug, Default)]
pub struct Before {
    flags: Vec<(pid_t, Flags)>,
}

impl Before {
    /// Of all descendants of a process.
    pub fn look(ancestor: pid_t) -> Result<Self> {
        let pids = crate::freeze::descendants(ancestor)?;
        for pid in &pids {
            refused::check(*pid, ancestor)?;
        }
        let flags = pids
            .into_iter()
            .filter_map(|pid| Some((pid, Flags::read(pid).ok()?)));
        Ok(Self {
            flags: flags.collect(),
        })
    }
}

/// A tree, and where its bytes are.
pub struct Described {
    /// What the image says of it.
    pub tree: Tree,
    shared: Shared,
    /// Areas all of whose pages are saved: process and first address.
    nameless: Vec<(pid_t, u64)>,
    /// Contents of files: which file's, where it can be opened, which space they are.
    contents: Vec<(u32, std::path::PathBuf, Key)>,
    sockets: Sockets,
    /// Files that only we have: on their way from process to process.
    _kept: Vec<OwnedFd>,
}

impl Described {
    /// The image is complete, and the tree is to end.
    pub fn abandon(&mut self) {
        self.sockets.abandon();
    }
}

/// Describes a tree that stands still; `root` is its first process.
pub fn describe(
    frozen: &mut Frozen,
    root: pid_t,
    before: &Before,
    named: &mut Named,
) -> Result<Described> {
    let (mut shared, mut files) = (Shared::default(), Files::default());
    let (mut processes, mut nameless) = (Vec::new(), Vec::new());
    let none = Flags::default();
    for held in &mut frozen.processes {
        let stat = Proc::new(held.pid)?.stat()?;
        let known = before.flags.iter().find(|(pid, _)| *pid == held.pid);
        let flags = known.map_or(&none, |(_, flags)| flags);
        let mut body = process::describe(held, &stat, flags, &mut shared, named, &mut nameless)?;
        body.descriptors = files.of(held.pid, &mut shared, named)?;
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
    files.resolve()?;
    let vdso = vdso(&frozen.processes, &processes)?;
    let supervisor = processes
        .iter()
        .find(|process| process.pid == root)
        .map_or(0, |p| p.parent);
    let tree = Tree {
        supervisor,
        root,
        monotonic_nanos: clock(libc::CLOCK_MONOTONIC),
        boottime_nanos: clock(libc::CLOCK_BOOTTIME),
        vdso,
        processes,
        files: files.open,
        shared: shared
            .met
            .iter()
            .map(|object| SharedMemory {
                space: 0,
                name: object.name.clone(),
                size: object.size,
                seals: object.seals,
            })
            .collect(),
    };
    Ok(Described {
        tree,
        shared,
        nameless,
        contents: files
            .contents
            .into_iter()
            .map(|(file, path)| (file, path, Key::Contents(0, 0, 0)))
            .collect(),
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
    /// Numbers its spaces; a space keeps its number in all images of a chain.
    pub fn number(&mut self, spaces: &mut Spaces) -> Result<()> {
        spaces.gather();
        let tree = &mut self.tree;
        for process in tree.processes.iter_mut().filter(|p| p.body.is_some()) {
            process.space = spaces.meet(Key::Process(process.pid)).number();
        }
        for (shared, object) in tree.shared.iter_mut().zip(&self.shared.met) {
            shared.space = spaces.meet(Key::Shared(object.id.0, object.id.1)).number();
        }
        let mut met = HashMap::new();
        for (file, path, key) in &mut self.contents {
            let metadata = std::fs::metadata(&*path);
            let metadata =
                metadata.map_err(|source| Error::io(path.display().to_string(), source))?;
            let (device, inode) = areas::id_of(&metadata);
            let count = met.entry((device, inode)).or_insert(0);
            *key = Key::Contents(device, inode, *count);
            *count += 1;
            if let Kind::Path { contents, .. } = &mut tree.files[*file as usize].kind
                && let Some(contents) = contents
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
            memory::read(held.pid, area.start, &mut bytes)?;
            return Ok(bytes);
        }
    }
    Ok(Vec::new())
}

fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid to write to.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Where a process that is held can make a system call.
pub fn syscall_of(pid: pid_t) -> Result<u64> {
    let maps = Proc::new(pid)?.maps()?;
    let code = maps
        .iter()
        .filter(|map| map.perms.contains(MMPermissions::EXECUTE));
    let areas: Vec<_> = code
        .map(|map| Area {
            start: map.address.0,
            end: map.address.1,
            protection: libc::PROT_EXEC,
            is_shared: false,
            backing: kernels(map).map_or(Backing::Anonymous, Backing::Kernel),
            flags: Vec::new(),
        })
        .collect();
    syscall_instruction(pid, &areas)
}
