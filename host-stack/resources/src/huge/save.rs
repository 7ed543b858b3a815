//! Huge pages that several can map, and which of them are there: what has no page is to cost nothing, and to get none by
//! being looked at.
//!
//! ```text
//! page table of who maps it     tells of what that process has touched
//! UFFDIO_CONTINUE               puts there what the file has beside that, of whoever has written it, and makes nothing
//! ```
//! Nothing else tells: SEEK_DATA calls all of a file data, mincore(2) knows page tables alone, and the first touch of a
//! page through a mapping makes it. Of what somebody has a descriptor, the mapping is the supervisor's; else it is that
//! of a process. Where userfaultfd(2) is not to be had, a container say, files are read: read(2) makes no pages, but does
//! not tell holes from zeros. What nobody has a descriptor of is read through mappings then, and made by that, of pages that
//! are reserved for it; where none are, it is refused.

use std::{
    collections::{HashMap, hash_map::Entry},
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt},
    },
};

use libc::pid_t;
use snaprig_tracee::{
    descriptors::me, freeze::Frozen, memory, pagemap::Pagemap, ranges::Ranges,
    userfault::userfault_of,
};
use snaprig_userfault::{Mode, Userfault, features::MINOR_HUGE};

use super::pages::{self, Mapped};
use crate::{
    copy::{self, PageWriter, copy_held, write_mapped},
    error::{Error, Result},
    memory::shared::{Mapping, SharedObject},
    state::Tree,
    sysv::{Bytes, Source},
};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// Where part of an object can be read: pages of a mapping.
#[derive(Clone, Debug)]
pub struct Place {
    pid: pid_t,
    /// Addresses.
    area: Range<u64>,
    /// What is taken off them for offsets.
    back: u64,
    /// Pages of the process's own may be there instead.
    is_private: bool,
}

impl Place {
    /// A shared mapping of all of an object.
    fn whole(pid: pid_t, start: u64, bytes: u64) -> Self {
        Self {
            pid,
            area: start..start.saturating_add(bytes),
            back: start,
            is_private: false,
        }
    }

    /// Its pages that are there, as far as the page table tells.
    fn there(&self) -> Result<Ranges> {
        let mut there = Ranges::default();
        let pagemap = Pagemap::open(self.pid)?;
        pagemap.there(self.area.clone(), self.is_private, &mut there)?;
        Ok(there)
    }
}

/// Mappings in which the page table does not tell of all that is there.
pub type Untold = Vec<(pid_t, u64)>;

/// Where all of an object can be read that nobody has a descriptor of: each part at one place.
fn places(object: &SharedObject) -> Vec<Place> {
    let (mut places, mut known) = (Vec::new(), Ranges::default());
    for Mapping {
        pid,
        start,
        part,
        is_shared,
    } in &object.mapped
    {
        let own: Ranges = std::iter::once(part.clone()).collect();
        let back = start.wrapping_sub(part.start);
        let address = |offset: u64| offset.wrapping_add(back);
        places.extend(own.without(&known).iter().map(|part| Place {
            pid: *pid,
            area: address(part.start)..address(part.end),
            back,
            is_private: !is_shared,
        }));
        known = known.union(&own);
    }
    places
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

/// Has the page tables of a tree that stands still tell of all that is there of objects that nobody has a descriptor of;
/// those that do not.
pub fn find_objects(frozen: &mut Frozen, objects: &[SharedObject], tree: &Tree) -> Result<Untold> {
    let is_huge = |object: &&SharedObject| object.huge_bytes != 0 && object.open.is_none();
    let objects = objects.iter().filter(is_huge);
    let wanted = objects.flat_map(|object| {
        let places = places(object).into_iter();
        places.map(|place| (place, object.huge_bytes))
    });
    find(frozen, wanted.collect(), tree)
}

/// The same of System V segments of so many bytes.
pub fn find_segments<'a>(
    frozen: &mut Frozen,
    segments: impl Iterator<Item = (&'a Source, u64)>,
    tree: &Tree,
) -> Result<Untold> {
    let huge = segments.filter(|(source, _)| source.huge_bytes != 0);
    let wanted = huge.filter_map(|(source, bytes)| match source.bytes {
        Bytes::Mapped(pid, start) => Some((Place::whole(pid, start, bytes), source.huge_bytes)),
        Bytes::Attached(_) => None,
    });
    find(frozen, wanted.collect(), tree)
}

fn find(frozen: &mut Frozen, wanted: Vec<(Place, u64)>, tree: &Tree) -> Result<Untold> {
    if wanted.is_empty() {
        return Ok(Untold::new());
    }
    let lazy = lazy(frozen, tree);
    let (mut userfaults, mut untold) = (HashMap::new(), Untold::new());
    for (place, page_bytes) in wanted {
        let holes = holes(&place)?;
        if holes.bytes() == 0 {
            continue;
        }
        if let Entry::Vacant(entry) = userfaults.entry(place.pid) {
            let mut held = frozen.processes.iter_mut();
            let held = held.find(|held| held.handle() == place.pid);
            let made = held
                .map(|held| userfault_of(held, MINOR_HUGE))
                .transpose()?;
            entry.insert(made.and_then(io::Result::ok));
        }
        let userfault = userfaults.get(&place.pid).and_then(Option::as_ref);
        if !userfault.is_some_and(|it| tells(it, &place.area, &holes, page_bytes)) {
            let start = place.area.start;
            let is_it =
                |(pid, area): &(pid_t, _)| *pid == place.pid && Range::contains(area, &start);
            if lazy.iter().any(is_it) {
                let what = format!(
                    "huge pages at {start:#x}, none reserved (MAP_NORESERVE), and without userfaultfd(2) nothing tells which \
                     there are"
                );
                return Err(Error::refused(place.pid, what));
            }
            untold.push((place.pid, place.area.start));
        }
    }
    Ok(untold)
}

fn holes(place: &Place) -> Result<Ranges> {
    let whole: Ranges = std::iter::once(place.area.clone()).collect();
    Ok(whole.without(&place.there()?))
}

/// Has the page table of an area tell what is in its holes; whether it does.
fn tells(userfault: &Userfault, area: &Range<u64>, holes: &Ranges, page_bytes: u64) -> bool {
    if userfault.register(area, Mode::Minor).is_err() {
        return false;
    }
    let mut pages = holes.iter().flat_map(|hole| {
        let starts = (hole.start..hole.end).step_by(page_bytes as usize);
        starts.map(move |start| start..start + page_bytes)
    });
    let told = pages.all(|page| match userfault.go_on(&page) {
        Ok(()) => true,
        // There is none; or one, that is the process's own.
        Err(error) => matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EEXIST)),
    });
    userfault.unregister(area).is_ok() && told
}

/// Writes what is there of an object that nobody has a descriptor of. What was written.
pub fn write_object(
    space: u32,
    object: &SharedObject,
    untold: &Untold,
    writer: &mut dyn PageWriter,
) -> Result<Ranges> {
    let mut written = Ranges::default();
    for place in places(object) {
        written = written.union(&write_place(space, &place, untold, writer)?);
    }
    Ok(written)
}

/// The same of a System V segment of so many bytes.
pub fn write_segment(
    space: u32,
    (source, bytes): (&Source, u64),
    untold: &Untold,
    writer: &mut dyn PageWriter,
) -> Result<Ranges> {
    let place = match &source.bytes {
        Bytes::Mapped(pid, start) => {
            let place = Place::whole(*pid, *start, bytes);
            return write_place(space, &place, untold, writer);
        }
        Bytes::Attached(attached) => Place::whole(me(), attached.start(), bytes),
    };
    let untold = match tells_all(&place, source.huge_bytes)? {
        true => Untold::new(),
        false => vec![(place.pid, place.area.start)],
    };
    write_place(space, &place, &untold, writer)
}

/// Writes what is in an open file, of whatever pages. What was written.
pub fn write_any_file(space: u32, file: &File, writer: &mut dyn PageWriter) -> Result<Ranges> {
    match pages::of_file(file) {
        0 => copy::write_file(space, file, writer),
        page_bytes => write_file(space, file, page_bytes, writer),
    }
}

/// The same of an open file.
fn write_file(
    space: u32,
    file: &File,
    page_bytes: u64,
    writer: &mut dyn PageWriter,
) -> Result<Ranges> {
    let metadata = file.metadata().map_err(unread)?;
    if metadata.blocks() == 0 {
        return Ok(Ranges::default());
    }
    if let Some(mapped) = map(file, metadata.len()) {
        let place = Place::whole(me(), mapped.start(), metadata.len());
        if tells_all(&place, page_bytes)? {
            return write_place(space, &place, &Untold::new(), writer);
        }
    }
    read_file(space, file, metadata.len(), writer)
}

/// Maps a file as userfaultfd(2) wants it: one that could be written to. What is sealed against that is not.
fn map(file: &File, bytes: u64) -> Option<Mapped> {
    // SAFETY: F_GETFL takes no argument, so fcntl(2) reads and writes no memory of this process.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags & libc::O_ACCMODE == libc::O_RDWR {
        return Mapped::map(file, bytes, false).ok();
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let opened = OpenOptions::new().read(true).write(true).open(path).ok()?;
    Mapped::map(&opened, bytes, false).ok()
}

/// Has the page table of this process tell of all that is there; whether it does.
fn tells_all(place: &Place, page_bytes: u64) -> Result<bool> {
    let holes = holes(place)?;
    let userfault = Userfault::own(MINOR_HUGE);
    Ok(userfault.is_ok_and(|it| tells(&it, &place.area, &holes, page_bytes)))
}

fn write_place(
    space: u32,
    place: &Place,
    untold: &Untold,
    writer: &mut dyn PageWriter,
) -> Result<Ranges> {
    let back = place.back;
    let offsets = |part: Range<u64>| part.start.wrapping_sub(back)..part.end.wrapping_sub(back);
    if untold.contains(&(place.pid, place.area.start)) {
        let file = memory::open(place.pid, false)?;
        write_mapped(space, &file, place.area.clone(), back, writer)?;
        return Ok(std::iter::once(offsets(place.area.clone())).collect());
    }
    let there = place.there()?;
    // What the process may not read itself is read with its tracer's rights.
    let gather = |pid, parts: &[libc::iovec], to: &mut [u8]| {
        memory::gather(pid, parts, to).or_else(|_| memory::gather_shared(pid, parts, to))
    };
    copy_held(space, (place.pid, back), &there, gather, writer)?;
    Ok(there.iter().map(offsets).collect())
}

/// Writes all of a file that is not zero.
fn read_file(space: u32, file: &File, size: u64, writer: &mut dyn PageWriter) -> Result<Ranges> {
    let mut bytes = vec![0; PIECE];
    let (mut at, mut written) = (0, Ranges::default());
    while at < size {
        let count = (size - at).min(PIECE as u64) as usize;
        file.read_exact_at(&mut bytes[..count], at)
            .map_err(unread)?;
        if bytes[..count].iter().any(|byte| *byte != 0) {
            writer.pages(space, at, &bytes[..count])?;
            written.push(at..at + count as u64);
        }
        at += count as u64;
    }
    Ok(written)
}

fn unread(source: io::Error) -> Error {
    Error::io("contents of a file of huge pages", source)
}
