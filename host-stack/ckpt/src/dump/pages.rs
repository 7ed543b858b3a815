//! Which pages of a process have something in them that is nowhere else.

use std::{fs::File, io, ops::Range, os::fd::AsRawFd, os::unix::fs::FileExt};

use libc::pid_t;

use crate::{
    error::{Error, Result},
    remote::PAGE,
};

/// `_IOWR('f', 16, struct pm_scan_arg)` (Documentation/admin-guide/mm/pagemap.rst).
const PAGEMAP_SCAN: libc::c_ulong = 3 << 30 | (SCAN_BYTES << 16) | (b'f' as u64) << 8 | 16;
const SCAN_BYTES: u64 = 96;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
/// Ranges that one scan reports at most.
const RANGES: usize = 4096;
/// Entries of pagemap that are read at once.
const ENTRIES: usize = 1 << 15;

/// Finds pages of a process.
pub struct Pagemap {
    file: File,
    pid: pid_t,
}

impl Pagemap {
    /// Of a process.
    pub fn open(pid: pid_t) -> Result<Self> {
        let path = format!("/proc/{pid}/pagemap");
        let file = File::open(&path).map_err(|source| Error::io(path, source))?;
        Ok(Self { file, pid })
    }

    /// Adds the pages of `part` that are the process's own: touched, and not (or no longer) a file's.
    pub fn own(&self, part: Range<u64>, to: &mut Vec<Range<u64>>) -> Result<()> {
        let scanned = match self.scan(part.clone(), to) {
            // Before Linux 6.7.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.read(part, to),
            scanned => scanned,
        };
        let what = || format!("process {}: pagemap", self.pid);
        scanned.map_err(|source| Error::io(what(), source))
    }

    fn scan(&self, part: Range<u64>, to: &mut Vec<Range<u64>>) -> io::Result<()> {
        let mut from = part.start;
        let mut ranges = vec![[0u64; 3]; RANGES];
        while from < part.end {
            let not = IS_FILE | IS_ZERO;
            let mut scan = [
                SCAN_BYTES,
                0,
                from,
                part.end,
                0,
                ranges.as_mut_ptr() as u64,
                RANGES as u64,
                0,
                not,
                not,
                IS_PRESENT | IS_SWAPPED,
                IS_PRESENT,
            ];
            // SAFETY: the structure is as long as its number says; the ranges are as many as it says.
            let found =
                unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, scan.as_mut_ptr()) };
            let found = usize::try_from(found).map_err(|_| io::Error::last_os_error())?;
            for [start, end, _] in &ranges[..found] {
                push(to, *start..*end);
            }
            from = scan[4];
        }
        Ok(())
    }

    fn read(&self, part: Range<u64>, to: &mut Vec<Range<u64>>) -> io::Result<()> {
        let mut at = part.start;
        let mut bytes = vec![0; ENTRIES * 8];
        while at < part.end {
            let count = (((part.end - at) / PAGE) as usize).min(ENTRIES);
            self.file
                .read_exact_at(&mut bytes[..count * 8], at / PAGE * 8)?;
            for entry in bytes[..count * 8].chunks_exact(8) {
                let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
                let (present, swapped, file) = (entry >> 63, entry >> 62 & 1, entry >> 61 & 1);
                if (present | swapped) == 1 && file == 0 {
                    push(to, at..at + PAGE);
                }
                at += PAGE;
            }
        }
        Ok(())
    }
}

/// Adds a range behind all others.
fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}
