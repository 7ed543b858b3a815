//! Which pages of a process have something in them that is nowhere else, and which of those were written to.

use std::{fs::File, io, ops::Range, os::fd::AsRawFd, os::unix::fs::FileExt, sync::OnceLock};

use crate::{
    error::{Error, Result},
    parallel,
    ranges::Ranges,
    remote::PAGE,
};
use libc::pid_t;

/// `_IOWR('f', 16, struct pm_scan_arg)` (Documentation/admin-guide/mm/pagemap.rst).
const PAGEMAP_SCAN: libc::c_ulong = 3 << 30 | (SCAN_BYTES << 16) | (b'f' as u64) << 8 | 16;
const SCAN_BYTES: u64 = 96;
/// PM_SCAN_WP_MATCHING.
const PROTECT: u64 = 1;
const IS_TRACKED: u64 = 1;
const IS_WRITTEN: u64 = 1 << 1;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
/// MADV_GUARD_INSTALL: to touch it is SIGSEGV. Told since Linux 6.15; such pages count as swapped.
const IS_GUARD: u64 = 1 << 8;
/// Whether this kernel tells of them.
static TELLS_GUARDS: OnceLock<bool> = OnceLock::new();
/// Ranges that one scan reports at most.
const RANGES: usize = 4096;
/// Entries of pagemap that are read at once.
const ENTRIES: usize = 1 << 15;
/// Bytes that one page table is for.
const TABLE: u64 = 2 << 20;
/// Bytes that are worth a thread.
const PIECE_MIN: u64 = 128 << 20;

/// Finds pages of a process.
pub struct Pagemap {
    file: File,
    pid: pid_t,
}

/// What is asked of a scan: pages that are there and not zero, of all of some categories, and of none of others. What
/// need not be asked is not: whether a page is a file's takes longer than everything else.
#[derive(Clone, Copy, Default)]
struct Wanted {
    categories: u64,
    not: u64,
    /// Categories that are told of each range.
    told: u64,
    flags: u64,
}

impl Pagemap {
    /// Of a process.
    pub fn open(pid: pid_t) -> Result<Self> {
        let path = format!("/proc/{pid}/pagemap");
        let file = File::open(&path).map_err(|source| Error::io(path, source))?;
        Ok(Self { file, pid })
    }

    /// Adds the pages of `part` that are the process's own: touched, and not (or no longer) a file's; `of_file`: one is
    /// mapped there. And those that are guards.
    pub fn own(
        &self,
        part: Range<u64>,
        of_file: bool,
        to: &mut Ranges,
        guards: &mut Ranges,
    ) -> Result<()> {
        let wanted = Wanted {
            not: IS_ZERO | if of_file { IS_FILE } else { 0 },
            told: self.guard(),
            ..Wanted::default()
        };
        let divide = |range, told| match told & IS_GUARD {
            0 => to.push(range),
            _ => guards.push(range),
        };
        let scanned = match self.scan(part.clone(), wanted, divide) {
            // Before Linux 6.7.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                self.read(part, |is_file| !is_file, to)
            }
            scanned => scanned,
        };
        self.done(scanned)
    }

    /// Adds the pages of `part` that are there; `of_file`: only those that are a file's, which is mapped there.
    pub fn there(&self, part: Range<u64>, of_file: bool, to: &mut Ranges) -> Result<()> {
        let wanted = Wanted {
            categories: if of_file { IS_FILE } else { 0 },
            ..Wanted::default()
        };
        let scanned = match self.scan(part.clone(), wanted, |range, _| to.push(range)) {
            // Before Linux 6.7.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                self.read(part, |is_file| is_file || !of_file, to)
            }
            scanned => scanned,
        };
        self.done(scanned)
    }

    /// Whether writes to the area that this page is of are tracked.
    pub fn is_tracked(&self, page: u64) -> bool {
        let wanted = Wanted {
            categories: IS_TRACKED,
            told: IS_TRACKED,
            ..Wanted::default()
        };
        let asked = self.ask(page..page + PAGE, wanted, 0, &mut [[0; 3]]);
        asked.is_ok_and(|(found, _)| found == 1)
    }

    /// Adds the process's own pages of `part` where that is tracked, and which of them have been written to since this
    /// was asked the last time, or since they are tracked.
    pub fn take_written(
        &self,
        part: Range<u64>,
        own: &mut Ranges,
        written: &mut Ranges,
        guards: &mut Ranges,
    ) -> Result<()> {
        // Large areas are walked by several at a time: a process may stand still for it.
        let pieces = parallel::split(part, PIECE_MIN, TABLE);
        let walked = parallel::each(pieces, |piece| self.take_piece(piece));
        for piece in walked {
            for (from, to) in self.done(piece)?.iter().zip([&mut *own, written, guards]) {
                from.iter().for_each(|range| to.push(range));
            }
        }
        Ok(())
    }

    /// Own pages, those of them that have been written to, and guards. One walk for all; the kernel protects only what it
    /// tells to be written to.
    fn take_piece(&self, part: Range<u64>) -> io::Result<[Ranges; 3]> {
        let wanted = Wanted {
            categories: IS_TRACKED,
            not: IS_ZERO,
            told: IS_WRITTEN | self.guard(),
            flags: PROTECT,
        };
        let (mut own, mut written) = (Ranges::default(), Ranges::default());
        let mut guards = Ranges::default();
        self.scan(part, wanted, |range, told| {
            if told & IS_GUARD != 0 {
                guards.push(range);
                return;
            }
            if told & IS_WRITTEN != 0 {
                written.push(range.clone());
            }
            own.push(range);
        })?;
        Ok([own, written, guards])
    }

    /// Adds the pages of `part` that are guards.
    pub fn guards(&self, part: Range<u64>, to: &mut Ranges) -> Result<()> {
        let wanted = Wanted {
            categories: self.guard(),
            ..Wanted::default()
        };
        match wanted.categories {
            0 => Ok(()),
            _ => self.done(self.scan(part, wanted, |range, _| to.push(range))),
        }
    }

    /// The category of guards, if this kernel has it.
    fn guard(&self) -> u64 {
        let wanted = Wanted {
            categories: IS_GUARD,
            told: IS_GUARD,
            ..Wanted::default()
        };
        let tells = || self.ask(0..PAGE, wanted, 0, &mut [[0; 3]]).is_ok();
        if *TELLS_GUARDS.get_or_init(tells) {
            IS_GUARD
        } else {
            0
        }
    }

    /// Bytes of the pages that [`Pagemap::take_written`] would find to be written to; they stay what they are.
    pub fn written_bytes(&self, part: Range<u64>) -> Result<u64> {
        let wanted = Wanted {
            categories: IS_TRACKED | IS_WRITTEN,
            not: IS_ZERO,
            ..Wanted::default()
        };
        let mut bytes = 0;
        let scanned = self.scan(part, wanted, |range, _| bytes += range.end - range.start);
        self.done(scanned)?;
        Ok(bytes)
    }

    fn done<T>(&self, scanned: io::Result<T>) -> Result<T> {
        scanned.map_err(|source| Error::io(format!("process {}: pagemap", self.pid), source))
    }

    fn scan(
        &self,
        part: Range<u64>,
        wanted: Wanted,
        mut each: impl FnMut(Range<u64>, u64),
    ) -> io::Result<()> {
        let mut from = part.start;
        let mut ranges = vec![[0; 3]; RANGES];
        while from < part.end {
            let asked = self.ask(from..part.end, wanted, IS_PRESENT | IS_SWAPPED, &mut ranges)?;
            for [start, end, told] in &ranges[..asked.0] {
                each(*start..*end, *told);
            }
            from = asked.1;
        }
        Ok(())
    }

    /// Asks the kernel for ranges of any of some categories (0: of whatever); how many it has told, and how far that is.
    fn ask(
        &self,
        part: Range<u64>,
        wanted: Wanted,
        any: u64,
        ranges: &mut [[u64; 3]],
    ) -> io::Result<(usize, u64)> {
        let mut scan = [
            SCAN_BYTES,
            wanted.flags,
            part.start,
            part.end,
            0,
            ranges.as_mut_ptr() as u64,
            ranges.len() as u64,
            0,
            wanted.not,
            wanted.not | wanted.categories,
            any,
            wanted.told,
        ];
        // SAFETY: `scan` is a `struct pm_scan_arg`, as long as its first word says, on this stack.
        // The kernel writes to one word of it, and at most as many `struct page_region`, of three
        // words each, as `ranges` has: its address and length are in it, and it is borrowed
        // exclusively during the call.
        let found = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, scan.as_mut_ptr()) };
        match usize::try_from(found) {
            Ok(found) if found <= ranges.len() => Ok((found, scan[4])),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn read(
        &self,
        part: Range<u64>,
        is_wanted: impl Fn(bool) -> bool,
        to: &mut Ranges,
    ) -> io::Result<()> {
        let mut at = part.start;
        let mut bytes = vec![0; ENTRIES * 8];
        while at < part.end {
            let count = (((part.end - at) / PAGE) as usize).min(ENTRIES);
            self.file
                .read_exact_at(&mut bytes[..count * 8], at / PAGE * 8)?;
            for entry in bytes[..count * 8].chunks_exact(8) {
                let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
                let (present, swapped, file) = (entry >> 63, entry >> 62 & 1, entry >> 61 & 1);
                if (present | swapped) == 1 && is_wanted(file == 1) {
                    to.push(at..at + PAGE);
                }
                at += PAGE;
            }
        }
        Ok(())
    }
}
