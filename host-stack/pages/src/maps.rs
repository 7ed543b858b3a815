//! What is mapped where in this process: /proc/self/maps (proc_pid_maps(5)).

use std::{
    fs,
    io::{self, BufRead, BufReader},
    iter,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::pages::Range;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Where.
    pub range: Range,
    /// It can be read.
    pub reads: bool,
    /// It can be written.
    pub writes: bool,
    /// It can be executed.
    pub executes: bool,
    /// It is private.
    pub private: bool,
    /// Where it begins in its file.
    pub offset: u64,
    /// Its file's inode; 0: none.
    pub inode: u64,
    /// What it is called.
    pub name: String,
}

/// All mappings, in order.
pub fn all() -> io::Result<Vec<Mapping>> {
    let (start, end) = (0, u64::MAX);
    within(Range { start, end })
}

/// Mappings of which these addresses have some, in order. No more of the file is made than that takes: programs have hundreds.
pub fn within(addresses: Range) -> io::Result<Vec<Mapping>> {
    let mut maps = BufReader::new(fs::File::open("/proc/self/maps")?);
    let (mut found, mut line) = (Vec::new(), String::new());
    while maps.read_line(&mut line)? > 0 {
        match range(&line) {
            Some(range) if range.start >= addresses.end => break,
            Some(range) if range.and(addresses).is_some() => found.extend(parse(&line)),
            _ => {}
        }
        line.clear();
    }
    Ok(found)
}

fn range(line: &str) -> Option<Range> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    Some(Range {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
    })
}

fn parse(line: &str) -> Option<Mapping> {
    let range = range(line)?;
    let mut fields = line.split_ascii_whitespace().skip(1);
    let bits = fields.next()?.as_bytes();
    let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    Some(Mapping {
        range,
        reads: bits.first() == Some(&b'r'),
        writes: bits.get(1) == Some(&b'w'),
        executes: bits.get(2) == Some(&b'x'),
        private: bits.get(3) == Some(&b'p'),
        offset,
        inode,
        name: fields.collect::<Vec<_>>().join(" "),
    })
}

/// The file that a range is mapped shared of, opened anew, and where in it the range begins; `None` if it
/// is of no file, or of several mappings, or if there is no way to the file.
///
/// Whoever has CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE reaches it by the mapping itself; others only if
/// they have it open, and may open it again: anonymous shared memory (mmap(2), MAP_ANONYMOUS) is then out
/// of reach.
pub fn shared_file(range: Range, writes: bool) -> io::Result<Option<(fs::File, u64)>> {
    let holds = |m: &Mapping| m.range.start <= range.start && range.end <= m.range.end;
    let mapping = within(range)?.into_iter().find(holds);
    let Some(mapping) = mapping.filter(|m| !m.private && m.inode != 0) else {
        return Ok(None);
    };
    let Range { start, end } = mapping.range;
    let mapped = format!("/proc/self/map_files/{start:x}-{end:x}").into();
    let named = |path: &PathBuf| fs::read_link(path).is_ok_and(|to| to == Path::new(&mapping.name));
    let open = fs::read_dir("/proc/self/fd")?.filter_map(|entry| Some(entry.ok()?.path()));
    for path in iter::once(mapped).chain(open.filter(named)) {
        let file = fs::File::options().read(true).write(writes).open(path);
        let file = file.ok().filter(|file| {
            let is_it = file.metadata().map(|of| of.ino() == mapping.inode);
            is_it.unwrap_or(false)
        });
        if let Some(file) = file {
            return Ok(Some((file, mapping.offset + (range.start - start))));
        }
    }
    Ok(None)
}

/// Whether `mappings`, in order, leave no gap in `range`.
pub fn covers(mappings: &[Mapping], range: Range) -> bool {
    let mut at = range.start;
    for mapping in mappings {
        if mapping.range.start > at {
            return false;
        }
        at = mapping.range.end;
    }
    at >= range.end
}

#[cfg(test)]
mod tests {
    use rustix::{
        fs::{MemfdFlags, ftruncate, memfd_create},
        mm::{MapFlags, ProtFlags, mmap, munmap},
    };

    use super::*;

    const PAGE: u64 = 4096;

    #[test]
    fn the_file_of_shared_memory_is_found_and_that_of_other_memory_is_not() {
        let file = memfd_create("shared", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4 * PAGE).unwrap();
        let inode = rustix::fs::fstat(&file).unwrap().st_ino;
        for (flags, is_found) in [(MapFlags::SHARED, true), (MapFlags::PRIVATE, false)] {
            let (prot, len) = (ProtFlags::READ | ProtFlags::WRITE, 3 * PAGE);
            // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at, so no memory of ours changes.
            let at = unsafe { mmap(std::ptr::null_mut(), len as usize, prot, flags, &file, PAGE) };
            let at = at.unwrap();
            let start = at.addr() as u64 + PAGE;
            let part = |end| shared_file(Range { start, end }, true).unwrap();
            let found = part(start + PAGE);
            assert_eq!(found.is_some(), is_found);
            if let Some((same, offset)) = found {
                assert_eq!((same.metadata().unwrap().ino(), offset), (inode, 2 * PAGE));
            }
            assert!(part(start + 3 * PAGE).is_none(), "more than is mapped");
            // SAFETY: it was mapped above, and nothing refers to it.
            unsafe { munmap(at, len as usize) }.unwrap();
        }
    }
}
