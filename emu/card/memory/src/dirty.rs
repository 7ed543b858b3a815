//! Which frames of card memory have been written to: write protection of userfaultfd(2) in its
//! asynchronous mode, read with PAGEMAP_SCAN (Documentation/admin-guide/mm/pagemap.rst).
//!
//! It sees every write through this process's mapping: the card kernel's, and through KVM the
//! guests'. What is written through another mapping (traced processes, the host through BAR0, the
//! DMA engine) is reported by [`Dirty::mark`], or belongs to a frame with more than one use.
//!
//! Time is counted in epochs: a scan ends one. Whoever saved a frame in an epoch has it still if it
//! has not changed since that epoch. A scan looks at the frames that are saved then, and at few
//! others: a write to one of those is seen by the scan that does, as of a later epoch than it was.

use std::{
    fs::File,
    io,
    ops::Range,
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use snaprig_userfault::{
    Mode, Userfault,
    features::{NOTE_WRITES, PROTECT_SHARED, PROTECT_UNPOPULATED},
    scan::{
        Scan,
        categories::{HUGE, WRITTEN},
        flags::{CHECK, PROTECT},
    },
};

use crate::{huge::HugePages, layout::PAGE};

/// Ranges that one scan reports at most.
const RANGES: usize = 4096;
/// What lies between frames is scanned with them up to so many bytes: another scan costs more.
const GAP_BYTES: u64 = 1 << 20;

/// The tracker of one memory. It does nothing until `Dirty::start`.
pub struct Dirty {
    base: NonNull<u8>,
    bytes: u64,
    /// The epoch in which each frame was last seen to have been written to.
    written: OnceLock<Box<[AtomicU32]>>,
    epoch: AtomicU32,
    /// The userfaultfd and this process's pagemap.
    descriptors: OnceLock<(Userfault, File)>,
}

// SAFETY: `base` is only an address, which is given to the kernel and never dereferenced.
unsafe impl Send for Dirty {}
// SAFETY: all else is atomic, or set once; of `base` no thread ever makes a reference.
unsafe impl Sync for Dirty {}

impl Dirty {
    /// For the mapping of `bytes` at `base`, which outlives it.
    pub fn new(base: NonNull<u8>, bytes: u64) -> Self {
        Self {
            base,
            bytes,
            written: OnceLock::new(),
            epoch: AtomicU32::new(1),
            descriptors: OnceLock::new(),
        }
    }

    /// Whether writes are tracked.
    pub fn is_on(&self) -> bool {
        self.written.get().is_some()
    }

    /// Tracks writes from now on, to all frames, which are no longer in `huge` pages: those are only
    /// tracked as a whole. One caller at a time.
    pub(crate) fn start(&self, huge: &HugePages) -> io::Result<()> {
        if self.is_on() {
            return Ok(());
        }
        self.open()?;
        let (userfault, pagemap) = self.descriptors.get().expect("just opened");
        huge.stop();
        let all = 0..self.bytes;
        self.scan(pagemap, all, 0, HUGE, |range| huge.split(range))?;
        let base = self.base.as_ptr() as u64;
        userfault.register(&(base..base + self.bytes), Mode::WriteProtect)?;
        let frames = (0..self.bytes / PAGE).map(|_| AtomicU32::new(0)).collect();
        // Whoever was faster has done the same.
        let _ = self.written.set(frames);
        Ok(())
    }

    /// Opens what `Dirty::start` needs, in a process that will be allowed to open nothing.
    pub fn open(&self) -> io::Result<()> {
        if self.descriptors.get().is_some() {
            return Ok(());
        }
        let userfault = Userfault::own(PROTECT_SHARED | PROTECT_UNPOPULATED | NOTE_WRITES)?;
        let pagemap = File::open("/proc/self/pagemap")?;
        // Whoever was faster has done the same.
        let _ = self.descriptors.set((userfault, pagemap));
        Ok(())
    }

    /// Ends the epoch: every write to `frames` before this call belongs to it or an earlier one.
    /// Returns the epoch that begins. One caller at a time.
    pub fn end_epoch(&self, frames: impl IntoIterator<Item = Range<u64>>) -> io::Result<u32> {
        let (Some((_, pagemap)), Some(written)) = (self.descriptors.get(), self.written.get())
        else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let epoch = self.epoch.load(Ordering::SeqCst);
        for part in joined(frames.into_iter().collect()) {
            self.scan(pagemap, part, PROTECT | CHECK, WRITTEN, |range| {
                for frame in &written[(range.start / PAGE) as usize..(range.end / PAGE) as usize] {
                    frame.store(epoch, Ordering::SeqCst);
                }
                Ok(())
            })?;
        }
        Ok(self.epoch.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Calls `each` with every range of addresses in `part` whose pages are of a category.
    fn scan(
        &self,
        pagemap: &File,
        part: Range<u64>,
        flags: u64,
        category: u64,
        mut each: impl FnMut(Range<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        let base = self.base.as_ptr() as u64;
        let (mut from, end) = (base + part.start, base + part.end);
        let wanted = Scan {
            flags,
            all: category,
            told: category,
            ..Scan::default()
        };
        let mut ranges = vec![[0u64; 3]; RANGES];
        while from < end {
            let (found, walked) = wanted.ask(pagemap, from..end, &mut ranges)?;
            for [start, end, _] in &ranges[..found] {
                each(start - base..end - base)?;
            }
            from = walked;
        }
        Ok(())
    }

    /// The frame at `address` is written to, or may be, in this epoch.
    pub fn mark(&self, address: u64) {
        let written = self.written.get();
        // What is no frame is nobody's to track.
        if let Some(frame) = written.and_then(|written| written.get((address / PAGE) as usize)) {
            let epoch = self.epoch.load(Ordering::SeqCst);
            frame.store(epoch, Ordering::SeqCst);
        }
    }

    /// Whether the frame at `address` has been written to in `epoch` or later, up to the end of the
    /// last one.
    pub fn changed_since(&self, address: u64, epoch: u32) -> bool {
        self.written.get().is_none_or(|written| {
            written[(address / PAGE) as usize].load(Ordering::SeqCst) >= epoch
        })
    }
}

/// As few ranges as have all of these, and not much more.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end + GAP_BYTES => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;
    use crate::memory::CardMemory;

    fn end_epoch(memory: &CardMemory) -> u32 {
        let all = 0..memory.bytes();
        memory.dirty().end_epoch(once(all)).unwrap()
    }

    #[test]
    fn ranges_are_joined_where_little_is_between() {
        let far = 1 << 30;
        let apart = vec![
            far..far + 8 * PAGE,
            far + PAGE..far + 2 * PAGE,
            GAP_BYTES + PAGE..GAP_BYTES + 2 * PAGE,
            0..PAGE,
        ];
        assert_eq!(
            joined(apart),
            [0..GAP_BYTES + 2 * PAGE, far..far + 8 * PAGE]
        );
    }

    #[test]
    #[cfg_attr(
        not(has_write_tracking),
        ignore = "the host does not track writes (Linux 6.7 can)"
    )]
    fn what_is_not_scanned_in_its_epoch_is_seen_later() {
        let memory = CardMemory::new(4096 * PAGE).unwrap();
        memory.track_writes().unwrap();
        let (near, far) = (8 * PAGE, 4000 * PAGE);
        let first = end_epoch(&memory);
        memory.write(near, b"written");
        memory.write(far, b"written");
        let second = memory.dirty().end_epoch(once(near..near + PAGE)).unwrap();
        let changed = |address| memory.dirty().changed_since(address, first);
        assert!(changed(near) && !changed(far));
        let third = end_epoch(&memory);
        assert!(changed(far) && memory.dirty().changed_since(far, second));
        assert!(!memory.dirty().changed_since(near, second));
        assert!(!memory.dirty().changed_since(far, third));
    }

    #[test]
    #[cfg_attr(
        not(has_write_tracking),
        ignore = "the host does not track writes (Linux 6.7 can)"
    )]
    fn a_frame_has_changed_if_it_was_written_to() {
        let memory = CardMemory::new(4096 * PAGE).unwrap();
        memory.track_writes().unwrap();
        let frames: Vec<_> = (0..64).map(|_| memory.alloc().unwrap()).collect();
        let first = end_epoch(&memory);
        for written in [3, 17, 40] {
            memory.write(frames[written] + 8, b"written");
        }
        memory.dirty().mark(frames[50]);
        let second = end_epoch(&memory);
        let changed = |epoch| -> Vec<usize> {
            let since = |i: &usize| memory.dirty().changed_since(frames[*i], epoch);
            (0..64).filter(since).collect()
        };
        assert_eq!(changed(first), [3, 17, 40, 50]);
        assert_eq!(changed(second), [0; 0]);
        memory.write(frames[63], b"written");
        end_epoch(&memory);
        assert_eq!(changed(second), [63]);
        assert_eq!(changed(first), [3, 17, 40, 50, 63]);
    }

    #[test]
    #[cfg_attr(
        not(has_write_tracking),
        ignore = "the host does not track writes (Linux 6.7 can)"
    )]
    fn frames_of_a_huge_page_are_told_apart() {
        let memory = CardMemory::new(4096 * PAGE).unwrap();
        let huge = memory.alloc_huge().unwrap();
        memory.write(huge + 9 * PAGE, b"before");
        memory.track_writes().unwrap();
        let first = end_epoch(&memory);
        memory.write(huge + 5 * PAGE, b"written");
        let mut bytes = [0; 6];
        memory.read(huge + 9 * PAGE, &mut bytes);
        assert_eq!(&bytes, b"before");
        let later = memory.alloc_huge().unwrap();
        end_epoch(&memory);
        let since = |page: &u64| memory.dirty().changed_since(huge + page * PAGE, first);
        assert_eq!((0..512).filter(since).collect::<Vec<_>>(), [5]);
        assert!(memory.dirty().changed_since(later + 511 * PAGE, first));
    }
}
