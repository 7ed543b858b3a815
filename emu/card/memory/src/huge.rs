//! Huge pages of the host behind those of the card.
//!
//! Few hosts give them to shared memory unasked (`shmem_enabled` is `never` unless somebody has changed
//! it), but MADV_COLLAPSE of madvise(2) does not heed that setting. They are for speed: fewer misses of
//! the TLB, and one fault of the host's for 512 frames.
//!
//! What must stay true: contents never change here, whoever writes to them meanwhile.
//!
//! Once writes are tracked ([`crate::dirty`]) no card memory is in huge pages: the host would see a write to one of them as
//! a write to all of it.

use std::{
    io,
    ops::Range,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::layout::{HUGE_PAGE, PAGE};

/// So many refusals, and the host is not asked again: to ask costs time.
const REFUSALS: u32 = 8;

/// The host's side of card memory.
pub struct HugePages {
    base: NonNull<u8>,
    bytes: u64,
    refusals: AtomicU32,
}

// SAFETY: `base` is only an address, which is given to the kernel and never dereferenced.
unsafe impl Send for HugePages {}
// SAFETY: all else is atomic, or set once; of `base` no thread ever makes a reference.
unsafe impl Sync for HugePages {}

impl HugePages {
    /// For the shared mapping of `bytes` at `base`, which outlives it.
    pub fn new(base: NonNull<u8>, bytes: u64) -> Self {
        let pages = Self {
            base,
            bytes,
            refusals: AtomicU32::new(0),
        };
        // Where the host gives them for the asking. Advice that is not followed costs only speed.
        let _ = pages.advise(0..bytes, libc::MADV_HUGEPAGE);
        pages
    }

    /// Has the host keep the [`HUGE_PAGE`] bytes at `address` in one page, if it will.
    pub fn join(&self, address: u64) {
        if self.refusals.load(Ordering::Relaxed) >= REFUSALS {
            return;
        }
        let collapse = || self.advise(address..address + HUGE_PAGE, libc::MADV_COLLAPSE);
        // Where nothing is mapped yet the host refuses.
        if self.touch(address).and_then(|()| collapse()).is_err() {
            self.refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// From now on the host maps card memory in frames.
    pub fn stop(&self) {
        self.refusals.store(REFUSALS, Ordering::Relaxed);
        // Fails where the host knows no huge pages.
        let _ = self.advise(0..self.bytes, libc::MADV_NOHUGEPAGE);
    }

    /// Maps what is in huge pages in frames, after [`HugePages::stop`].
    pub fn split(&self, range: Range<u64>) -> io::Result<()> {
        // Of a shared mapping this unmaps, and no more.
        self.advise(range.clone(), libc::MADV_DONTNEED)?;
        // With one frame the host maps all of its page, so that few fault by themselves.
        range
            .step_by(HUGE_PAGE as usize)
            .try_for_each(|address| self.touch(address))
    }

    /// Has a page be there, and be mapped for writing.
    fn touch(&self, address: u64) -> io::Result<()> {
        self.populate(address..address + PAGE)
    }

    /// The same for all pages of a range.
    pub fn populate(&self, range: Range<u64>) -> io::Result<()> {
        self.advise(range, libc::MADV_POPULATE_WRITE)
    }

    fn advise(&self, range: Range<u64>, advice: i32) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.bytes);
        // SAFETY: the range is inside a shared mapping of a file, whose contents no advice that is
        // given here changes.
        let result = unsafe {
            let start = self.base.add(range.start as usize).as_ptr();
            libc::madvise(start.cast(), (range.end - range.start) as usize, advice)
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
