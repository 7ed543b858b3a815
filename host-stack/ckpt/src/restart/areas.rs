//! The areas of a restarted process: mapped to be filled, and then protected as they were.

use snaprig_resources::{
    error::Result,
    growing::Data,
    huge,
    opened::{Opened, damaged},
    state::{Area, Backing, Placement, Tree},
};
use snaprig_tracee::remote::{self, Call, call};

use super::{rebuilding::Rebuilding, staging::Staging};

/// Policies that are set at once: the masks of their nodes find room.
const PLACEMENTS: usize = 256;
/// mmap(2), since Linux 6.11.
const MAP_DROPPABLE: i32 = 8;

/// madvise(2), since Linux 6.13.
const MADV_GUARD_INSTALL: u64 = 102;

impl Rebuilding<'_> {
    pub(crate) fn map_areas(&self, tree: &Tree, opened: &Opened, staging: &Staging) -> Result<()> {
        let mut calls = staging.moves(self.process);
        let rest = |area: &&Area| !staging.gives(self.process, area);
        for area in self.body.areas.iter().filter(rest) {
            match (&area.backing, &tree.sysv) {
                (Backing::Segment(id, offset), Some(sysv)) => {
                    calls.extend(self.attach(area, (*id, *offset), sysv)?);
                }
                _ => calls.extend(map(area, opened)?),
            }
        }
        self.make("its memory cannot be mapped", &calls)?;
        self.place()
    }

    /// Before there are pages. Of a machine with other nodes it is not worth a restart.
    fn place(&self) -> Result<()> {
        let pid = self.process.pid;
        for placements in self.body.placements.chunks(PLACEMENTS) {
            let mut data = Data::at(remote::data(self.stub));
            let place = |one: &Placement| {
                let (nodes, bits) = (data.put_words(&one.nodes), one.nodes.len() as u64 * 64);
                let bytes = one.end.saturating_sub(one.start);
                // The kernel takes one bit less than it is told of.
                let arguments = [one.start, bytes, one.mode as u64, nodes, bits + 1, 0];
                call(libc::SYS_mbind, arguments)
            };
            let calls: Vec<_> = placements.iter().map(place).collect();
            data.write(pid)?;
            self.remote()?.calls(self.stub, pid, &calls)?;
        }
        Ok(())
    }

    /// What is not to change any more, and what is locked that is yet to come.
    pub(crate) fn lock(&self) -> Result<()> {
        /// mseal(2), since Linux 6.10.
        const SYS_MSEAL: i64 = 462;
        let sealed = self.body.areas.iter();
        let sealed = sealed.filter(|area| area.flags.contains(b"sl") && !is_kernels(area));
        let mut calls: Vec<_> = sealed
            .map(|area| call(SYS_MSEAL, [area.start, area.end - area.start, 0]))
            .collect();
        if self.body.locks_future != 0 {
            calls.push(call(libc::SYS_mlockall, [self.body.locks_future as u64]));
        }
        self.make("its memory cannot be locked", &calls)
    }

    /// Before anything is locked: then there are none to be had.
    pub(crate) fn guard(&self) -> Result<()> {
        let guards = self.body.guards.iter();
        let install = |(start, end): &(u64, u64)| {
            let arguments = [*start, end.saturating_sub(*start), MADV_GUARD_INSTALL];
            call(libc::SYS_madvise, arguments)
        };
        let calls: Vec<_> = guards.map(install).collect();
        let what = "this kernel makes no guard pages (MADV_GUARD_INSTALL, since Linux 6.13, of files 6.15)";
        self.make(what, &calls)
    }

    pub(crate) fn protect(&self) -> Result<()> {
        let mut calls = Vec::new();
        for area in self.body.areas.iter().filter(|area| !is_kernels(area)) {
            let range = [area.start, area.end - area.start];
            if !area.is_shared && area.protection != libc::PROT_READ | libc::PROT_WRITE {
                let protection = area.protection as u64;
                calls.push(call(libc::SYS_mprotect, [range[0], range[1], protection]));
            }
            for advice in area.flags.iter().filter_map(advice) {
                calls.push(call(libc::SYS_madvise, [range[0], range[1], advice as u64]));
            }
            if area.flags.contains(b"lo") {
                let on_fault = u64::from(area.flags.contains(b"lf"));
                calls.push(call(libc::SYS_mlock2, [range[0], range[1], on_fault]));
            }
        }
        self.make("its memory cannot be protected", &calls)
    }
}

/// The call that maps an area.
fn map(area: &Area, opened: &Opened) -> Result<Option<Call>> {
    let (start, bytes) = (area.start, area.end - area.start);
    let to_fill = libc::PROT_READ | libc::PROT_WRITE;
    let has = |flag: &[u8; 2], bit| if area.flags.contains(flag) { bit } else { 0 };
    let fixed = libc::MAP_FIXED_NOREPLACE
        | has(b"gd", libc::MAP_GROWSDOWN)
        | has(b"nr", libc::MAP_NORESERVE);
    let (protection, flags, fd, offset) = match &area.backing {
        Backing::Kernel(_) => return Ok(None),
        Backing::Plugin => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            (libc::PROT_NONE, flags, -1, 0)
        }
        Backing::Anonymous if area.flags.contains(b"dp") => {
            (to_fill, MAP_DROPPABLE | libc::MAP_ANONYMOUS, -1, 0)
        }
        Backing::Anonymous => {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | huge::map_flags(area);
            (to_fill, flags, -1, 0)
        }
        Backing::File {
            file,
            offset,
            write,
        } => {
            let fd = opened
                .mapped(file, *write)
                .ok_or_else(|| damaged("a mapped file"))?;
            match area.is_shared {
                true => (area.protection, libc::MAP_SHARED, fd, *offset),
                false => (to_fill, libc::MAP_PRIVATE, fd, *offset),
            }
        }
        Backing::Shared(number, offset) => {
            let fd = opened.shared.get(*number as usize).copied();
            let (_, fd) = fd.ok_or_else(|| damaged("shared memory"))?;
            match area.is_shared {
                true => (area.protection, libc::MAP_SHARED, fd, *offset),
                false => (to_fill, libc::MAP_PRIVATE, fd, *offset),
            }
        }
        Backing::Segment(..) => return Err(damaged("System V shared memory")),
    };
    let arguments = [
        start,
        bytes,
        protection as u64,
        (flags | fixed) as u64,
        fd as i64 as u64,
        offset,
    ];
    Ok(Some(call(libc::SYS_mmap, arguments)))
}

fn is_kernels(area: &Area) -> bool {
    matches!(area.backing, Backing::Kernel(_))
}

/// madvise(2) of a flag of smaps.
fn advice(flag: &[u8; 2]) -> Option<i32> {
    Some(match flag {
        b"dc" => libc::MADV_DONTFORK,
        b"dd" => libc::MADV_DONTDUMP,
        b"wf" => libc::MADV_WIPEONFORK,
        b"hg" => libc::MADV_HUGEPAGE,
        b"nh" => libc::MADV_NOHUGEPAGE,
        b"mg" => libc::MADV_MERGEABLE,
        b"sr" => libc::MADV_SEQUENTIAL,
        b"rr" => libc::MADV_RANDOM,
        _ => return None,
    })
}
