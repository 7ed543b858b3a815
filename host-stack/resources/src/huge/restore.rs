//! Huge pages of a restarted tree: whether the machine has enough of them, before anything is made; and what to say where
//! that has changed since.
//!
//! Pages that are reserved or have data are counted before anything is made, and written to with process_vm_writev(2), to
//! which a missing page is an error, and not SIGBUS. A page that was there and zero is there again.

use std::{
    collections::BTreeMap,
    io,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use snaprig_ckpt_image::chain::Chain;
use snaprig_tracee::ranges::Ranges;

use super::pages;
use crate::{
    error::{Error, Result, chain as text_of},
    opened::damaged,
    state::{Area, Backing, Tree},
};

/// How long pages may take that are on their way back, and how often it is looked.
const PATIENCE: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// What of a space is of huge pages: where, and of how many bytes.
struct Part {
    range: Range<u64>,
    page_bytes: u64,
    /// They are reserved, with or without data.
    is_reserved: bool,
}

/// Refuses a tree for which there are too few huge pages: what is reserved for it (mmap(2), MAP_NORESERVE), and what has
/// data.
pub fn enough(tree: &Tree, chain: &Chain) -> Result<()> {
    enough_within(tree, chain, PATIENCE)
}

fn enough_within(tree: &Tree, chain: &Chain, patience: Duration) -> Result<()> {
    let parts = parts(tree)?;
    if parts.is_empty() {
        return Ok(());
    }
    for (page_bytes, pages) in wanted(&parts, chain) {
        let kib = page_bytes >> 10;
        let available = available(page_bytes, pages, patience);
        let what = match available {
            Some(available) if available >= pages => continue,
            Some(available) => format!(
                "{pages} huge pages of {kib} kB are needed, and {available} are to be had; {}",
                pages::advice(page_bytes)
            ),
            None => format!("this machine has no huge pages of {kib} kB"),
        };
        return Err(Error::Missing { what });
    }
    Ok(())
}

/// Takes ordinary pages for a tree's huge ones if those are too few; why. Files in a hugetlbfs are what they are. A segment
/// then has the size of all its pages. Whoever else has them keeps them as long as this is not done: nobody waits for them.
pub fn do_without(tree: &mut Tree, chain: &Chain) -> Result<Option<String>> {
    let why = match enough_within(tree, chain, Duration::ZERO) {
        Err(Error::Missing { what }) => what,
        other => return other.map(|()| None),
    };
    let bodies = tree.processes.iter_mut();
    let areas = bodies.flat_map(|process| process.body.iter_mut().flat_map(|it| &mut it.areas));
    for area in areas.filter(|area| !matches!(area.backing, Backing::File { .. })) {
        area.huge_bytes = 0;
    }
    for memory in &mut tree.shared {
        memory.huge_bytes = 0;
    }
    for segment in tree.sysv.iter_mut().flat_map(|sysv| &mut sysv.segments) {
        segment.size = segment.mapped_bytes();
        segment.huge_bytes = 0;
    }
    Ok(Some(why))
}

/// How many pages can be had, as soon as they are enough: the kernel gives back what an IPC namespace had some time after
/// its last process has ended, and most often that is the same program.
fn available(page_bytes: u64, enough: u64, patience: Duration) -> Option<u64> {
    let begun = Instant::now();
    loop {
        let available = pages::available(page_bytes);
        if begun.elapsed() >= patience || available.is_none_or(|available| available >= enough) {
            return available;
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}

/// Says of a failure that huge pages may be what it is for.
pub fn explained(tree: &Tree, error: Error) -> Error {
    let (Error::Io { source, .. } | Error::Process { source, .. }) = &error else {
        return error;
    };
    if !is_short(source) {
        return error;
    }
    let sizes = parts(tree).unwrap_or_default();
    let sizes = sizes.values().flatten().map(|part| part.page_bytes);
    let Some(page_bytes) = sizes.min() else {
        return error;
    };
    let available = pages::available(page_bytes).unwrap_or(0);
    let (kib, advice) = (page_bytes >> 10, pages::advice(page_bytes));
    Error::Missing {
        what: format!(
            "{}; it has huge pages of {kib} kB, of which {available} are left; {advice}",
            text_of(&error)
        ),
    }
}

/// mmap(2), shmget(2), and writing to a page that is not to be had.
fn is_short(source: &io::Error) -> bool {
    let errors = [libc::ENOMEM, libc::ENOSPC, libc::EFAULT];
    source
        .raw_os_error()
        .is_some_and(|error| errors.contains(&error))
}

/// By space.
fn parts(tree: &Tree) -> Result<BTreeMap<u32, Vec<Part>>> {
    let mut parts: BTreeMap<u32, Vec<Part>> = BTreeMap::new();
    let bodies = tree.processes.iter();
    let bodies = bodies.filter_map(|process| Some((process.space, process.body.as_ref()?)));
    for (space, body) in bodies {
        for area in body.areas.iter().filter(|area| area.huge_bytes != 0) {
            let is_reserved = !area.flags.contains(b"nr");
            let (space, range) = match (&area.backing, area.is_shared) {
                (Backing::Shared(number, offset), true) => {
                    let object = tree.shared.get(*number as usize);
                    let object = object.ok_or_else(|| damaged("shared memory"))?;
                    let end = offset.checked_add(area.end.saturating_sub(area.start));
                    let end = end.ok_or_else(|| damaged("shared memory"))?;
                    (object.space, *offset..end)
                }
                // Segments are reserved as a whole; what a file has that is there, it has.
                (_, true) => continue,
                (_, false) => (space, area.start..area.end),
            };
            parts.entry(space).or_default().push(Part {
                range: aligned(range, area.huge_bytes)?,
                page_bytes: area.huge_bytes,
                is_reserved,
            });
        }
    }
    let objects = tree.shared.iter();
    let objects = objects.map(|one| (one.space, one.size, one.huge_bytes, false));
    let segments = tree.sysv.iter().flat_map(|sysv| &sysv.segments);
    let segments = segments.map(|one| (one.space, one.mapped_bytes(), one.huge_bytes, true));
    for (space, bytes, page_bytes, is_reserved) in objects.chain(segments) {
        if page_bytes != 0 {
            parts.entry(space).or_default().push(Part {
                range: aligned(0..bytes, page_bytes)?,
                page_bytes,
                is_reserved,
            });
        }
    }
    Ok(parts)
}

fn aligned(range: Range<u64>, page_bytes: u64) -> Result<Range<u64>> {
    let is_whole = |address: u64| address.is_multiple_of(page_bytes);
    let is_sound = page_bytes.is_power_of_two() && range.start <= range.end;
    match is_sound && is_whole(range.start) && is_whole(range.end) {
        true => Ok(range),
        false => Err(damaged("huge pages that are none")),
    }
}

/// How many pages of each size are needed.
fn wanted(parts: &BTreeMap<u32, Vec<Part>>, chain: &Chain) -> BTreeMap<u64, u64> {
    let mut ranges: BTreeMap<(u64, u32), Vec<Range<u64>>> = BTreeMap::new();
    for (space, parts) in parts {
        for part in parts.iter().filter(|part| part.is_reserved) {
            let of = ranges.entry((part.page_bytes, *space)).or_default();
            of.push(part.range.clone());
        }
    }
    for run in chain.parts().map(|part| part.run) {
        for part in parts.get(&run.space).into_iter().flatten() {
            let start = run.address.max(part.range.start);
            let end = run.address.saturating_add(run.bytes).min(part.range.end);
            if start < end {
                let mask = part.page_bytes - 1;
                let whole = start & !mask..end.saturating_add(mask) & !mask;
                let of = ranges.entry((part.page_bytes, run.space)).or_default();
                match of.last_mut() {
                    Some(last) if last.start <= whole.start && whole.start <= last.end => {
                        last.end = last.end.max(whole.end);
                    }
                    _ => of.push(whole),
                }
            }
        }
    }
    let mut wanted = BTreeMap::new();
    for ((page_bytes, _), ranges) in ranges {
        let bytes = ranges.into_iter().collect::<Ranges>().bytes();
        *wanted.entry(page_bytes).or_default() += bytes / page_bytes;
    }
    wanted
}

/// Bytes of the pages that an area is mapped with that is of no file (MAP_HUGETLB).
pub fn map_flags(area: &Area) -> i32 {
    match area.huge_bytes {
        0 => 0,
        bytes => libc::MAP_HUGETLB | pages::size_flags(bytes),
    }
}
