//! Writes what processes have in their memory, shared memory, and contents of files.

use std::{fs::File, io, ops::Range, os::fd::AsRawFd, os::unix::fs::FileExt};

use libc::pid_t;
use snaprig_ckpt_image::image::{Run, Sink, Writer};
use snaprig_tracee::{
    freeze::{Frozen, HeldProcess},
    memory,
    pagemap::Pagemap,
    parallel,
    ranges::Ranges,
    remote::PAGE,
    steps::{self, Step},
    track::Tracking,
};

use super::{
    Described,
    areas::{Mapping, SharedObject},
};
use crate::{
    error::{Error, Result},
    resources::{huge::save as huge, sysv::save::Bytes},
    spaces::{Key, Space, Spaces},
    state::{Area, Backing, Segment, Tree},
};

/// Parts of one process_vm_readv(2): as many as it takes (IOV_MAX).
const PARTS: usize = 1024;
/// Larger pages are not tracked: they are walked in parts (`Pagemap::take_written`), and protected whole or not at all.
const TRACKED_MAX: u64 = 2 << 20;

/// What of a process's memory is to be saved.
pub struct Saving {
    pid: pid_t,
    /// It shares pages with relatives.
    shares: bool,
    space: u32,
    /// What it can read itself.
    readable: Ranges,
    /// What only a tracer can.
    hidden: Ranges,
    /// Areas that are saved whole: of files that have no name.
    nameless: Ranges,
    /// What the chain says of it, and is no more.
    gone: Ranges,
}

impl Saving {
    /// Bytes of the pages that are to be copied.
    pub fn bytes(&self) -> u64 {
        self.readable.bytes() + self.hidden.bytes() + self.nameless.bytes()
    }
}

/// Looks which pages of a tree that stands still the chain does not have. With `tracking`, writes are tracked from now
/// on.
pub fn look(
    described: &mut Described,
    frozen: &mut Frozen,
    mut tracking: Option<&mut Tracking>,
    spaces: &mut Spaces,
) -> Result<Vec<Saving>> {
    let segments = described.tree.sysv.iter().flat_map(|sysv| &sysv.segments);
    let segments = segments.map(Segment::mapped_bytes);
    let segments = described.segments.iter().zip(segments);
    let lazy = lazy(frozen, &described.tree);
    described.untold = huge::find(frozen, &described.shared.met, segments, &lazy)?;
    let bodies = frozen
        .processes
        .iter_mut()
        .zip(&mut described.tree.processes)
        .filter_map(|(held, process)| Some((held, process.body.as_mut()?)));
    bodies
        .map(|(held, body)| {
            let nameless = described.nameless.iter().copied();
            let nameless = nameless.filter(|(pid, _)| *pid == held.handle());
            let nameless: Vec<u64> = nameless.map(|(_, start)| start).collect();
            let space = spaces.meet(Key::Process(held.pid));
            let looked = (nameless.as_slice(), described.sharing.contains(&held.pid));
            let (saving, guards) =
                look_at(held, &body.areas, looked, tracking.as_deref_mut(), space)?;
            body.guards = guards.iter().map(|part| (part.start, part.end)).collect();
            Ok(saving)
        })
        .collect()
}

/// Areas of huge pages for which none are reserved.
fn lazy(frozen: &Frozen, tree: &Tree) -> Vec<(pid_t, Range<u64>)> {
    let processes = frozen.processes.iter().zip(&tree.processes);
    let areas = processes.flat_map(|(held, process)| {
        let areas = process.body.iter().flat_map(|body| &body.areas);
        areas.map(|area| (held.handle(), area))
    });
    let lazy = areas.filter(|(_, area)| area.huge_bytes != 0 && area.flags.contains(b"nr"));
    lazy.map(|(pid, area)| (pid, area.start..area.end))
        .collect()
}

fn look_at(
    held: &mut HeldProcess,
    areas: &[Area],
    (nameless_at, shares): (&[u64], bool),
    tracking: Option<&mut Tracking>,
    space: &mut Space,
) -> Result<(Saving, Ranges)> {
    let (pid, pagemap) = (held.handle(), Pagemap::open(held.handle())?);
    let is_nameless = |area: &Area| nameless_at.contains(&area.start);
    let is_anonymous = |area: &Area| area.backing == Backing::Anonymous && !is_nameless(area);
    let is_private = |area: &&Area| !area.is_shared && !matches!(area.backing, Backing::Kernel(_));
    let private: Vec<&Area> = areas.iter().filter(is_private).collect();
    if let Some(tracking) = tracking {
        let new = private.iter().filter(|area| is_anonymous(area));
        let new = new.filter(|area| area.huge_bytes <= TRACKED_MAX);
        let new = new.filter(|area| !pagemap.is_tracked(area.start));
        let new: Vec<_> = new.map(|area| area.start..area.end).collect();
        tracking.start(held, &new)?;
    }
    let (mut own, mut written) = (Ranges::default(), Ranges::default());
    let (mut hidden, mut nameless) = (Ranges::default(), Ranges::default());
    // In areas that lie between the private ones: ranges are added in order.
    let (mut guards, mut shared_guards) = (Ranges::default(), Ranges::default());
    for area in areas
        .iter()
        .filter(|area| area.is_shared || is_nameless(area))
    {
        let before = shared_guards.bytes();
        pagemap.guards(area.start..area.end, &mut shared_guards)?;
        if shared_guards.bytes() > before && !matches!(area.backing, Backing::File { .. }) {
            // What is behind them can be read by others, but not through them.
            let what = format!(
                "guard pages (MADV_GUARD_INSTALL) in shared memory at {:#x}",
                area.start
            );
            return Err(Error::refused(held.pid, what));
        }
    }
    for area in private {
        let part = area.start..area.end;
        if is_nameless(area) {
            own.push(part.clone());
            nameless.push(part.clone());
            written.push(part);
            continue;
        }
        if is_anonymous(area) && pagemap.is_tracked(area.start) {
            pagemap.take_written(part.clone(), &mut own, &mut written, &mut guards)?;
        } else {
            pagemap.own(part.clone(), !is_anonymous(area), &mut own, &mut guards)?;
            written.push(part.clone());
        }
        if area.protection & libc::PROT_READ == 0 {
            hidden.push(part);
        }
    }
    space.written(&written);
    let missing = space.missing(&own).without(&nameless);
    let saving = Saving {
        pid,
        shares,
        space: space.number(),
        readable: missing.without(&hidden),
        hidden: missing.within(&hidden),
        nameless,
        gone: space.is_now(own),
    };
    Ok((saving, guards.union(&shared_guards)))
}

/// Writes what was looked at, all else that has bytes, and the tree's state.
pub fn write<S: Sink>(
    described: &Described,
    saving: Vec<Saving>,
    spaces: &mut Spaces,
    writer: &mut Writer<S>,
) -> Result<()> {
    for saving in saving {
        let gather = match saving.shares {
            true => memory::gather_shared,
            false => memory::gather,
        };
        copy_held(
            saving.space,
            (saving.pid, 0),
            &saving.readable,
            gather,
            writer,
        )?;
        // What a process may not read itself is read with its tracer's rights.
        let file = memory::open(saving.pid, false)?;
        for part in saving.hidden.iter() {
            write_part(saving.space, &file, part, writer)?;
        }
        for part in saving.nameless.iter() {
            write_mapped(saving.space, &file, part, 0, writer)?;
        }
        write_gone(saving.space, &saving.gone, writer)?;
    }
    for object in &described.shared.met {
        let space = spaces.meet(Key::Shared(object.id.0, object.id.1));
        let wrote = match (object.huge_bytes, object.open) {
            (1.., None) => huge::write_object(space.number(), object, &described.untold, writer)?,
            _ => write_shared(space.number(), object, writer)?,
        };
        write_gone(space.number(), &space.is_now(wrote), writer)?;
    }
    let segments = described.tree.sysv.iter().flat_map(|sysv| &sysv.segments);
    for (segment, source) in segments.zip(&described.segments) {
        let space = spaces.meet(Key::Segment(segment.object.id));
        if segment.huge_bytes != 0 {
            let source = (source, segment.mapped_bytes());
            let wrote = huge::write_segment(space.number(), source, &described.untold, writer)?;
            write_gone(space.number(), &space.is_now(wrote), writer)?;
            continue;
        }
        let whole = 0..segment.size.next_multiple_of(PAGE);
        match &source.bytes {
            Bytes::Mapped(pid, start) => {
                let (file, part) = (memory::open(*pid, false)?, *start..*start + whole.end);
                write_mapped(space.number(), &file, part, *start, writer)?;
            }
            Bytes::Attached(attached) => writer.pages(space.number(), 0, attached.pages())?,
        }
        let wrote = std::iter::once(whole).collect();
        write_gone(space.number(), &space.is_now(wrote), writer)?;
    }
    for (key, source) in &described.contents {
        let space = spaces.meet(*key);
        let mut wrote = Ranges::default();
        source.read(|file| {
            wrote = write_file(space.number(), file, writer)?;
            Ok(())
        })?;
        write_gone(space.number(), &space.is_now(wrote), writer)?;
    }
    for (space, gone) in spaces.part() {
        write_gone(space, &gone, writer)?;
    }
    writer.state(&described.tree)?;
    steps::reached(Step::WriteState);
    Ok(())
}

fn write_gone<S: Sink>(space: u32, gone: &Ranges, writer: &mut Writer<S>) -> Result<()> {
    for part in gone.iter() {
        writer.gone(space, part.start, part.end - part.start)?;
    }
    Ok(())
}

/// Pages that are copied at once: they fill the front of a buffer.
#[derive(Default)]
struct Load {
    runs: Vec<Run>,
    bytes: usize,
}

impl Load {
    /// Takes from the front of `parts` what fits.
    fn take(space: u32, parts: &mut Vec<Range<u64>>, room: usize) -> Self {
        let mut load = Self::default();
        while let Some(part) = parts.last_mut() {
            let bytes = (part.end - part.start).min((room - load.bytes) as u64);
            if bytes == 0 || load.runs.len() == PARTS {
                break;
            }
            load.runs.push(Run {
                space,
                address: part.start,
                bytes,
            });
            load.bytes += bytes as usize;
            part.start += bytes;
            if part.is_empty() {
                parts.pop();
            }
        }
        load
    }

    /// Where they are.
    fn remote(&self) -> Vec<libc::iovec> {
        let runs = self.runs.iter().map(|run| libc::iovec {
            iov_base: run.address as *mut libc::c_void,
            iov_len: run.bytes as usize,
        });
        runs.collect()
    }

    /// Leaves out what is behind so many bytes; the first page of that is left out for good.
    fn cut(&mut self, copied: usize, parts: &mut Vec<Range<u64>>) {
        let mut left = (copied as u64) / PAGE * PAGE;
        let mut behind = Vec::new();
        for run in &mut self.runs {
            let (address, bytes) = (run.address, run.bytes);
            run.bytes = bytes.min(left);
            left -= run.bytes;
            if run.bytes < bytes {
                behind.push(address + run.bytes..address + bytes);
            }
        }
        self.runs.retain(|run| run.bytes > 0);
        if let Some(first) = behind.first_mut() {
            first.start += PAGE;
        }
        parts.extend(behind.into_iter().rev().filter(|part| !part.is_empty()));
    }
}

/// The last first.
fn reversed(parts: &Ranges) -> Vec<Range<u64>> {
    let mut parts: Vec<_> = parts.iter().collect();
    parts.reverse();
    parts
}

/// Has pages of a process that stands still written: on all processors, as many at once as a buffer takes. `back` is
/// what is taken off their addresses.
pub fn copy_held<S: Sink>(
    space: u32,
    (pid, back): (pid_t, u64),
    parts: &Ranges,
    gather: impl Fn(pid_t, &[libc::iovec], &mut [u8]) -> snaprig_tracee::error::Result<()> + Sync,
    writer: &mut Writer<S>,
) -> Result<()> {
    let mut parts = reversed(parts);
    while !parts.is_empty() {
        let mut loads = Vec::new();
        while !parts.is_empty() && loads.len() < parallel::threads() {
            let buffer = writer.buffer()?;
            let load = Load::take(space, &mut parts, buffer.len());
            loads.push((buffer, load));
        }
        let copied = parallel::each(loads, |(mut buffer, load)| {
            gather(pid, &load.remote(), &mut buffer[..load.bytes])?;
            Ok::<_, Error>((buffer, load))
        });
        for copied in copied {
            let (buffer, mut load) = copied?;
            for run in &mut load.runs {
                run.address = run.address.wrapping_sub(back);
            }
            steps::reached(Step::WritePages);
            writer.submit(buffer, &load.runs)?;
        }
    }
    Ok(())
}

/// The same of one that runs: what it takes away meanwhile is left out. What was copied.
pub fn copy_running<S: Sink>(
    space: u32,
    pid: pid_t,
    parts: &Ranges,
    writer: &mut Writer<S>,
) -> Result<Ranges> {
    let (mut parts, mut copied) = (reversed(parts), Vec::new());
    while !parts.is_empty() {
        let mut buffer = writer.buffer()?;
        let mut load = Load::take(space, &mut parts, buffer.len());
        let count = memory::gather_some(pid, &load.remote(), &mut buffer[..load.bytes])?;
        if count < load.bytes {
            load.cut(count, &mut parts);
        }
        let runs = load.runs.iter();
        copied.extend(runs.map(|run| run.address..run.address + run.bytes));
        writer.submit(buffer, &load.runs)?;
    }
    Ok(copied.into_iter().collect())
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

/// Writes shared memory: from its descriptor, or through who maps it. What was written.
fn write_shared<S: Sink>(
    space: u32,
    object: &SharedObject,
    writer: &mut Writer<S>,
) -> Result<Ranges> {
    if let Some((pid, fd)) = object.open {
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = File::open(&path).map_err(|source| Error::io(path, source))?;
        return write_file(space, &file, writer);
    }
    let mut written: Vec<Range<u64>> = Vec::new();
    for Mapping {
        pid, start, part, ..
    } in &object.mapped
    {
        if written.contains(part) {
            continue;
        }
        let file = memory::open(*pid, false)?;
        let bytes = part.end - part.start;
        let back = start.wrapping_sub(part.start);
        write_mapped(space, &file, *start..start + bytes, back, writer)?;
        written.push(part.clone());
    }
    Ok(written.into_iter().collect())
}

/// As [`write_part`], as far as there is something; `back` is what is taken off addresses.
pub fn write_mapped<S: Sink>(
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

/// Writes the data of a file, but not its holes; the last page is filled with zeros. What was written.
fn write_file<S: Sink>(space: u32, file: &File, writer: &mut Writer<S>) -> Result<Ranges> {
    let huge_bytes = crate::resources::huge::pages::of_file(file);
    if huge_bytes != 0 {
        return huge::write_file(space, file, huge_bytes, writer);
    }
    let failed = |source| Error::io("contents of a file", source);
    let size = file.metadata().map_err(failed)?.len();
    let (mut at, mut written) = (0, Ranges::default());
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
        written.push(at..at + whole as u64);
        at += whole as u64;
    }
    Ok(written)
}
