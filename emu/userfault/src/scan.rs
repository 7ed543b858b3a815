//! PAGEMAP_SCAN: which pages of a process are of some categories, and were written to where that is noted
//! (Documentation/admin-guide/mm/pagemap.rst; Linux 6.7).

use std::{
    io,
    ops::Range,
    os::fd::{AsFd, AsRawFd},
};

use linux_raw_sys::general::pm_scan_arg;

/// The request's number: `_IOWR('f', 16, struct pm_scan_arg)`.
pub const PAGEMAP_SCAN: u64 =
    3 << 30 | (size_of::<pm_scan_arg>() as u64) << 16 | (b'f' as u64) << 8 | 16;

/// Flags of a scan.
pub mod flags {
    use linux_raw_sys::general;

    /// What is found is write-protected.
    pub const PROTECT: u64 = general::PM_SCAN_WP_MATCHING as u64;
    /// Where writes are not noted it is an error.
    pub const CHECK: u64 = general::PM_SCAN_CHECK_WPASYNC as u64;
}

/// Categories of pages: PAGE_IS_ bits.
pub mod categories {
    use linux_raw_sys::general;

    /// In an area whose writes are noted.
    pub const TRACKED: u64 = general::PAGE_IS_WPALLOWED as u64;
    /// Written to since it was protected.
    pub const WRITTEN: u64 = general::PAGE_IS_WRITTEN as u64;
    /// A file's, or shared.
    pub const FILE: u64 = general::PAGE_IS_FILE as u64;
    /// In memory.
    pub const PRESENT: u64 = general::PAGE_IS_PRESENT as u64;
    /// On swap.
    pub const SWAPPED: u64 = general::PAGE_IS_SWAPPED as u64;
    /// The page of zeros.
    pub const ZERO: u64 = general::PAGE_IS_PFNZERO as u64;
    /// Huge.
    pub const HUGE: u64 = general::PAGE_IS_HUGE as u64;
    /// MADV_GUARD_INSTALL: to touch it is SIGSEGV. Told since Linux 6.15; such pages count as swapped.
    pub const GUARD: u64 = general::PAGE_IS_GUARD as u64;
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    /// [`flags`].
    pub flags: u64,
    /// Pages of all of these categories,
    pub all: u64,
    /// and of one of these, if any is named,
    pub any: u64,
    /// and of none of these.
    pub none: u64,
    /// Categories that are told of each range.
    pub told: u64,
}

impl Scan {
    /// Asks the kernel for ranges of pages of `part`, by a process's `pagemap`; each is start, end and categories. How many there
    /// are, and how far that is: with as many as there is room for, there may be more behind.
    pub fn ask(
        &self,
        pagemap: impl AsFd,
        part: Range<u64>,
        ranges: &mut [[u64; 3]],
    ) -> io::Result<(usize, u64)> {
        let mut argument = pm_scan_arg {
            size: size_of::<pm_scan_arg>() as u64,
            flags: self.flags,
            start: part.start,
            end: part.end,
            walk_end: 0,
            vec: ranges.as_mut_ptr() as u64,
            vec_len: ranges.len() as u64,
            max_pages: 0,
            category_inverted: self.none,
            category_mask: self.none | self.all,
            category_anyof_mask: self.any,
            return_mask: self.told,
        };
        // SAFETY: the argument is on this stack, and as long as its first member says. The kernel writes to one member of it, and
        // at most as many `struct page_region`, of three words each, as `ranges` has: its address and length are in it, and it
        // is borrowed exclusively during the call.
        let found =
            unsafe { libc::ioctl(pagemap.as_fd().as_raw_fd(), PAGEMAP_SCAN, &raw mut argument) };
        match usize::try_from(found) {
            Ok(found) if found <= ranges.len() => Ok((found, argument.walk_end)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
