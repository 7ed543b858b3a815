//! From a tree of processes that stands still to an image.
//!
//! The image's first section is the tree ([`crate::state::Tree`]); its spaces are the address spaces of the
//! processes in their order, then shared memory, then contents of files.

mod areas;
mod diag;
mod files;
mod held;
mod named;
mod pages;
mod pipes;
mod process;
mod refused;
mod seen;
mod sockets;
mod stub;
mod terminals;
mod threads;
mod watches;

use std::{
    fs::File,
    io,
    ops::Range,
    os::fd::{AsRawFd, OwnedFd},
    os::unix::fs::FileExt,
};

use libc::pid_t;
use procfs::process::{Process as Proc, Stat};
use snaprig_ckpt_image::image::{Run, Sink, Writer};

pub use self::areas::kernels;
pub use self::named::{Named, hash, modified, tail};
pub use self::process::{SIGNALS, credentials, find_syscall, regs_of, syscall_instruction};
use self::{
    areas::{Flags, Shared},
    files::{Files, Source},
    pages::Pagemap,
    sockets::Sockets,
    terminals::Terminals,
};
use crate::{
    error::{Error, Result},
    freeze::{Frozen, HeldProcess},
    memory,
    remote::PAGE,
    state::{Area, Backing, Kind, Process, SharedMemory, Tree},
    steps::{self, Step},
};

/// Parts of one process_vm_readv(2).
const PARTS: usize = 512;

/// What can be found out of a tree while it runs, so that it stands still for a shorter time.
#[derive(Debug, Default)]
pub struct Before {
    flags: Vec<(pid_t, Flags)>,
}

impl Before {
    /// Of all descendants of a process.
    pub fn look(ancestor: pid_t, named: &mut Named) -> Result<Self> {
        let mut flags = Vec::new();
        for pid in crate::freeze::descendants(ancestor)? {
            let Some(living) = refused::check(pid, ancestor, named)? else {
                continue;
            };
            // One that has ended has none.
            if let Ok(found) = Flags::read(living) {
                refused::flags(pid, &found)?;
                flags.push((pid, found));
            }
        }
        Ok(Self { flags })
    }
}

/// A tree, and where its bytes are.
pub struct Described {
    /// What the image says of it.
    pub tree: Tree,
    shared: Shared,
    /// Areas all of whose pages are saved: process and first address.
    nameless: Vec<(pid_t, u64)>,
    contents: Vec<Source>,
    sockets: Sockets,
    terminals: Terminals,
    /// Files that only we have: on their way from process to process.
    _kept: Vec<OwnedFd>,
}

impl Described {
    /// The image is complete, and the tree is to end.
    pub fn abandon(&mut self) {
        self.sockets.abandon();
        self.terminals.abandon();
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
        let mut body = process::describe(held, flags, &mut shared, named, &mut nameless)?;
        body.descriptors = files.of(held.handle(), &mut shared, named)?;
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
    number_contents(&mut files, processes.len() + shared.met.len());
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
        pipes: resolved.pipes,
        terminals: resolved.terminals,
        console: resolved.console,
        shared: shared
            .met
            .iter()
            .map(|object| SharedMemory {
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
        contents: files.contents,
        sockets: files.sockets,
        terminals: files.terminals,
        _kept: files.kept,
    })
}

fn plain(stat: &Stat) -> Process {
    Process {
        pid: stat.pid,
        parent: stat.ppid,
        group: stat.pgrp,
        session: stat.session,
        exit_signal: stat.exit_signal.unwrap_or(libc::SIGCHLD),
        zombie: None,
        stopped: None,
        body: None,
    }
}

/// Contents of files are in the spaces behind those of memory.
fn number_contents(files: &mut Files, first: usize) {
    for file in &mut files.open {
        if let Kind::Path {
            contents: Some(contents),
            ..
        } = &mut file.kind
        {
            contents.space += first as u32;
        }
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

fn clock(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid to write to.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Writes state and pages of a tree.
pub fn write<S: Sink>(
    described: &Described,
    frozen: &Frozen,
    writer: &mut Writer<S>,
) -> Result<()> {
    writer.state(&described.tree)?;
    steps::reached(Step::WriteState);
    let bodies = frozen.processes.iter().zip(&described.tree.processes);
    for (space, (held, process)) in bodies.enumerate() {
        let areas = process.body.iter().flat_map(|body| &body.areas);
        let is_nameless = |area: &&Area| described.nameless.contains(&(held.handle(), area.start));
        let (nameless, areas): (Vec<&Area>, Vec<_>) = areas.partition(is_nameless);
        write_space(space as u32, held.handle(), areas.into_iter(), writer)?;
        let file = memory::open(held.handle(), false)?;
        for area in nameless {
            write_mapped(space as u32, &file, area.start..area.end, 0, writer)?;
        }
    }
    let first = described.tree.processes.len();
    for (index, object) in described.shared.met.iter().enumerate() {
        write_shared((first + index) as u32, object, writer)?;
    }
    let first = first + described.shared.met.len();
    for (index, source) in described.contents.iter().enumerate() {
        source.read(|file| write_file((first + index) as u32, file, writer))?;
    }
    Ok(())
}

/// Writes what is a process's own.
fn write_space<'a, S: Sink>(
    space: u32,
    pid: pid_t,
    areas: impl Iterator<Item = &'a Area>,
    writer: &mut Writer<S>,
) -> Result<()> {
    let pagemap = Pagemap::open(pid)?;
    let (mut readable, mut other) = (Vec::new(), Vec::new());
    for area in areas {
        if area.is_shared || matches!(area.backing, Backing::Kernel(_)) {
            continue;
        }
        let to = match area.protection & libc::PROT_READ {
            0 => &mut other,
            _ => &mut readable,
        };
        pagemap.own(area.start..area.end, to)?;
    }
    copy_pages(space, pid, &readable, writer)?;
    // What a process may not read itself is read with its tracer's rights.
    let file = memory::open(pid, false)?;
    for part in other {
        write_part(space, &file, part, writer)?;
    }
    Ok(())
}

/// Has pages of a process written, as many at once as a buffer takes.
fn copy_pages<S: Sink>(
    space: u32,
    pid: pid_t,
    parts: &[Range<u64>],
    writer: &mut Writer<S>,
) -> Result<()> {
    let mut parts = parts.iter().cloned().peekable();
    while parts.peek().is_some() {
        let mut buffer = writer.buffer()?;
        let (mut runs, mut remote, mut filled) = (Vec::new(), Vec::new(), 0);
        while let Some(part) = parts.peek_mut() {
            let bytes = (part.end - part.start).min((buffer.len() - filled) as u64);
            if bytes == 0 || remote.len() == PARTS {
                break;
            }
            runs.push(Run {
                space,
                address: part.start,
                bytes,
            });
            remote.push(libc::iovec {
                iov_base: part.start as *mut libc::c_void,
                iov_len: bytes as usize,
            });
            filled += bytes as usize;
            part.start += bytes;
            if part.is_empty() {
                parts.next();
            }
        }
        memory::gather(pid, &remote, &mut buffer[..filled])?;
        steps::reached(Step::WritePages);
        writer.submit(buffer, &runs)?;
    }
    Ok(())
}

/// Has part of a process's memory written.
fn write_part<S: Sink>(
    space: u32,
    file: &File,
    part: Range<u64>,
    writer: &mut Writer<S>,
) -> Result<()> {
    let mut at = part.start;
    while at < part.end {
        let mut buffer = writer.buffer()?;
        let bytes = (part.end - at).min(buffer.len() as u64);
        let read = file.read_exact_at(&mut buffer[..bytes as usize], at);
        read.map_err(|source| Error::io(format!("memory at {at:#x}"), source))?;
        let run = Run {
            space,
            address: at,
            bytes,
        };
        writer.submit(buffer, &[run])?;
        at += bytes;
    }
    Ok(())
}

/// Writes shared memory: from its descriptor, or through who maps it.
fn write_shared<S: Sink>(
    space: u32,
    object: &areas::SharedObject,
    writer: &mut Writer<S>,
) -> Result<()> {
    if let Some((pid, fd)) = object.open {
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = File::open(&path).map_err(|source| Error::io(path, source))?;
        return write_file(space, &file, writer);
    }
    let mut written: Vec<Range<u64>> = Vec::new();
    for (pid, address, part) in &object.mapped {
        if written.contains(part) {
            continue;
        }
        let file = memory::open(*pid, false)?;
        let bytes = part.end - part.start;
        let back = address.wrapping_sub(part.start);
        write_mapped(space, &file, *address..address + bytes, back, writer)?;
        written.push(part.clone());
    }
    Ok(())
}

/// As [`write_part`], as far as there is something; `back` is what is taken off addresses.
fn write_mapped<S: Sink>(
    space: u32,
    file: &File,
    part: Range<u64>,
    back: u64,
    writer: &mut Writer<S>,
) -> Result<()> {
    let mut at = part.start;
    let mut bytes = vec![0; 1 << 20];
    while at < part.end {
        let count = (part.end - at).min(bytes.len() as u64) as usize;
        match file.read_exact_at(&mut bytes[..count], at) {
            Ok(()) => writer.pages(space, at.wrapping_sub(back), &bytes[..count])?,
            // Behind the end of the memory there is nothing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => return Ok(()),
            Err(source) => return Err(Error::io(format!("memory at {at:#x}"), source)),
        }
        at += count as u64;
    }
    Ok(())
}

/// Writes the data of a file, but not its holes; the last page is filled with zeros.
fn write_file<S: Sink>(space: u32, file: &File, writer: &mut Writer<S>) -> Result<()> {
    let failed = |source| Error::io("contents of a file", source);
    let size = file.metadata().map_err(failed)?.len();
    let mut at = 0;
    let mut bytes = vec![0; 1 << 20];
    while at < size {
        // SAFETY: no memory is involved.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
        at = match u64::try_from(data) {
            Ok(data) => (data / PAGE * PAGE).max(at),
            // A hole to the end; or a file system that does not say.
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => break,
            Err(_) => at,
        };
        let count = (size - at).min(bytes.len() as u64) as usize;
        file.read_exact_at(&mut bytes[..count], at)
            .map_err(failed)?;
        let whole = count.next_multiple_of(PAGE as usize);
        bytes[count..whole].fill(0);
        writer.pages(space, at, &bytes[..whole])?;
        at += whole as u64;
    }
    Ok(())
}
