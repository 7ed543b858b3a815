//! Which pages of a process have something in them that is nowhere else, and which of those were written to.

use std::{fs::File, io, ops::Range, os::unix::fs::FileExt, sync::OnceLock};

use crate::{
    error::{Error, Result},
    parallel,
    ranges::Ranges,
    remote::PAGE,
};
use libc::pid_t;
use snaprig_userfault::scan::{
    Scan,
    categories::{FILE, GUARD, PRESENT, SWAPPED, TRACKED, WRITTEN, ZERO},
    flags::PROTECT,
};

/// Whether this kernel tells of guards ([`GUARD`]).
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

impl Pagemap {
    /// Of a process.
    pub fn open(pid: pid_t) -> Result<Self> {
        Self::at(format!("/proc/{pid}/pagemap"), pid)
    }

    /// Of the calling process, whatever number it has in the /proc that is mounted (pid_namespaces(7)).
    pub fn own_process() -> Result<Self> {
        Self::at("/proc/self/pagemap".into(), std::process::id() as pid_t)
    }

    fn at(path: String, pid: pid_t) -> Result<Self> {
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
        let wanted = Scan {
            none: ZERO | if of_file { FILE } else { 0 },
            told: self.guard(),
            ..Scan::default()
        };
        let divide = |range, told| match told & GUARD {
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
        let wanted = Scan {
            all: if of_file { FILE } else { 0 },
            ..Scan::default()
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
        let wanted = Scan {
            all: TRACKED,
            told: TRACKED,
            ..Scan::default()
        };
        let asked = wanted.ask(&self.file, page..page + PAGE, &mut [[0; 3]]);
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
        let wanted = Scan {
            all: TRACKED,
            none: ZERO,
            told: WRITTEN | self.guard(),
            flags: PROTECT,
            ..Scan::default()
        };
        let (mut own, mut written) = (Ranges::default(), Ranges::default());
        let mut guards = Ranges::default();
        self.scan(part, wanted, |range, told| {
            if told & GUARD != 0 {
                guards.push(range);
                return;
            }
            if told & WRITTEN != 0 {
                written.push(range.clone());
            }
            own.push(range);
        })?;
        Ok([own, written, guards])
    }

    /// Adds the pages of `part` that are guards.
    pub fn guards(&self, part: Range<u64>, to: &mut Ranges) -> Result<()> {
        let wanted = Scan {
            all: self.guard(),
            ..Scan::default()
        };
        match wanted.all {
            0 => Ok(()),
            _ => self.done(self.scan(part, wanted, |range, _| to.push(range))),
        }
    }

    /// The category of guards, if this kernel has it.
    fn guard(&self) -> u64 {
        let wanted = Scan {
            all: GUARD,
            told: GUARD,
            ..Scan::default()
        };
        let tells = || wanted.ask(&self.file, 0..PAGE, &mut [[0; 3]]).is_ok();
        if *TELLS_GUARDS.get_or_init(tells) {
            GUARD
        } else {
            0
        }
    }

    /// Bytes of the pages that [`Pagemap::take_written`] would find to be written to; they stay what they are.
    pub fn written_bytes(&self, part: Range<u64>) -> Result<u64> {
        let wanted = Scan {
            all: TRACKED | WRITTEN,
            none: ZERO,
            ..Scan::default()
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
        wanted: Scan,
        mut each: impl FnMut(Range<u64>, u64),
    ) -> io::Result<()> {
        // What is there. What need not be asked is not: whether a page is a file's takes longer than everything else.
        let wanted = Scan {
            any: PRESENT | SWAPPED,
            ..wanted
        };
        let mut from = part.start;
        let mut ranges = vec![[0; 3]; RANGES];
        while from < part.end {
            let asked = wanted.ask(&self.file, from..part.end, &mut ranges)?;
            for [start, end, told] in &ranges[..asked.0] {
                each(*start..*end, *told);
            }
            from = asked.1;
        }
        Ok(())
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
