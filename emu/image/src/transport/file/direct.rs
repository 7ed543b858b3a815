//! Reads what is not in memory past the page cache (O_DIRECT): a restart wants it once, and to bring it there takes longer
//! than to have it from the disk.

use std::{
    fs::{File, OpenOptions},
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, OpenOptionsExt},
    },
};

use super::{BLOCK, sink::bypasses_cache};

/// linux/mman.h: cachestat(2), from Linux 6.5 on.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`.
#[repr(C)]
struct Part {
    offset: u64,
    bytes: u64,
}

/// `struct cachestat`, in pages.
#[derive(Default)]
#[repr(C)]
struct Cached {
    cached: u64,
    others: [u64; 4],
}

/// A file that can be read past the page cache.
#[derive(Debug)]
pub struct Direct(File);

impl Direct {
    /// The same file; none: it cannot be read so.
    pub fn of(file: &File) -> Option<Self> {
        if !bypasses_cache(file) {
            return None;
        }
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        let opened = options.open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        opened.ok().map(Self)
    }

    /// Reads what begins at a page of the file, if that is worth it: less than half of it is in memory. False: it has to be
    /// read as usual.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> bool {
        let pages = to.len() as u64 / BLOCK;
        let is_aligned = to.as_ptr().addr().is_multiple_of(BLOCK as usize);
        let cached = self.cached(offset, to.len() as u64);
        is_aligned
            && cached.is_some_and(|cached| cached < pages.div_ceil(2))
            && self.0.read_exact_at(to, offset).is_ok()
    }

    /// Pages of a part that are in memory; none: the kernel does not say.
    fn cached(&self, offset: u64, bytes: u64) -> Option<u64> {
        let (part, mut cached) = (Part { offset, bytes }, Cached::default());
        // SAFETY: both are as long as the call has them; the second is written to.
        let done = unsafe {
            let fd = self.0.as_raw_fd();
            libc::syscall(SYS_CACHESTAT, fd, &raw const part, &raw mut cached, 0)
        };
        (done == 0).then_some(cached.cached)
    }
}
