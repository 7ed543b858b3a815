//! Card memory: one memfd of the configured size, handed out in 4 KiB frames.
//!
//! Everything on the card takes from it: page tables, processes, the RAM file system, rings. The
//! host maps the same memfd through BAR0. A frame is named by its card-physical address and
//! counted: it goes back when the last [`CardMemory::put`] matches [`CardMemory::get`]. Above it are
//! pages of others ([`outside`]), which are no frames: they can be read and written, and
//! have more than one use, always.
//!
//! What must stay true: every access is checked against the size, and goes through raw pointers
//! or atomics, never through references, because guests, the DMA engine and the host write to it
//! at any time. A frame from [`CardMemory::alloc`] is zero.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::{
    dirty::Dirty,
    huge::HugePages,
    layout::{HUGE_PAGE, PAGE},
    outside::{self, Outside},
};

/// The card's memory and which of its frames are in use.
pub struct CardMemory {
    memfd: File,
    base: NonNull<u8>,
    bytes: u64,
    frames: Mutex<Frames>,
    huge: HugePages,
    dirty: Dirty,
    outside: Outside,
}

struct Frames {
    /// Uses of each frame; 0 is free.
    uses: Vec<u32>,
    /// Where the next search starts: for single frames, and for runs, so that a frame between two runs
    /// does not keep the second from its place.
    next: [usize; 2],
    free: u64,
}

// SAFETY: `base` points to a shared mapping that lives as long as `self`, and is only ever
// accessed by copies through raw pointers and atomics.
unsafe impl Send for CardMemory {}
// SAFETY: no method gives out a reference to what is mapped: threads at the same time copy through raw pointers, or
// load and store atomically, as guests and the DMA engine do.
unsafe impl Sync for CardMemory {}

impl CardMemory {
    /// Memory of `bytes` (a multiple of 4 KiB), all zero, all free but frame 0 (so that address 0
    /// can mean "none").
    pub fn new(bytes: u64) -> io::Result<Self> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE) || bytes > outside::START {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = File::from(memfd_create(c"snaprig-card", flags)?);
        memfd.set_len(bytes)?;
        // The host maps this memfd too: whoever could shrink it could kill the other by SIGBUS.
        fcntl_add_seals(
            &memfd,
            SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
        )?;
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at, so no memory of ours changes; the
        // result is checked before it is used.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                memfd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let count = (bytes / PAGE) as usize;
        let mut uses = vec![0; count];
        uses[0] = 1;
        let base = NonNull::new(base.cast()).expect("mmap never returns null");
        Ok(Self {
            memfd,
            base,
            bytes,
            huge: HugePages::new(base, bytes),
            dirty: Dirty::new(base, bytes),
            outside: Outside::default(),
            frames: Mutex::new(Frames {
                uses,
                next: [1; 2],
                free: count as u64 - 1,
            }),
        })
    }

    /// Has the host find memory for the first bytes at once, which costs a fifth of what it costs page by
    /// page. Best effort: what it does not find now it is asked for again at the first touch.
    pub fn populate(&self, bytes: u64) {
        let _ = self.huge.populate(0..bytes.min(self.bytes));
    }

    /// Size in bytes, of frames.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes in free frames.
    pub fn free_bytes(&self) -> u64 {
        self.lock().free * PAGE
    }

    /// The memfd.
    pub fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    /// Where card-physical address 0 is mapped in this process.
    #[inline]
    pub fn host_base(&self) -> NonNull<u8> {
        self.base
    }

    /// One zeroed frame, used once. `None`: the card's memory is full.
    pub fn alloc(&self) -> Option<u64> {
        self.alloc_run(1, 1)
    }

    /// `pages` contiguous zeroed frames, each used once, aligned to `align_pages` (a power of
    /// two).
    pub fn alloc_run(&self, pages: usize, align_pages: usize) -> Option<u64> {
        let address = self.alloc_unzeroed(pages, align_pages)?;
        // Frames that nobody has used are zero already; but a guest's first write to one is dearer than
        // one from here.
        self.zero(address, pages as u64 * PAGE);
        Some(address)
    }

    /// The same, with anything in the frames: the caller writes to all of each before anybody sees it.
    pub fn alloc_unzeroed(&self, pages: usize, align_pages: usize) -> Option<u64> {
        let start = self.lock().take_run(pages, align_pages)?;
        Some(start as u64 * PAGE)
    }

    /// The frames of a huge page, each used once, with anything in them, as
    /// [`CardMemory::alloc_unzeroed`]; in a huge page of the host's, too, where it has one.
    pub fn alloc_huge_unzeroed(&self) -> Option<u64> {
        let pages = (HUGE_PAGE / PAGE) as usize;
        let address = self.alloc_unzeroed(pages, pages)?;
        self.huge.join(address);
        Some(address)
    }

    /// The same, zeroed.
    pub fn alloc_huge(&self) -> Option<u64> {
        let address = self.alloc_huge_unzeroed()?;
        self.zero(address, HUGE_PAGE);
        Some(address)
    }

    /// Fills with zeros. Panics as [`CardMemory::read`] does.
    #[inline]
    pub fn zero(&self, address: u64, len: u64) {
        assert!(self.contains(address, len));
        // SAFETY: the range is inside the mapping (asserted above), which lives as long as `self`.
        unsafe {
            self.base.add(address as usize).write_bytes(0, len as usize);
        }
    }

    /// Memory of others that the card's programs have.
    #[inline]
    pub fn outside(&self) -> &Outside {
        &self.outside
    }

    /// Which frames have been written to.
    #[inline]
    pub fn dirty(&self) -> &Dirty {
        &self.dirty
    }

    /// Sees from now on which frames are written to. One caller at a time.
    pub fn track_writes(&self) -> io::Result<()> {
        self.dirty.start(&self.huge)
    }

    /// Whether the frame at `address` holds nothing but zeros.
    pub fn is_zero(&self, address: u64) -> bool {
        if address < outside::START {
            return (0..PAGE / 8)
                .all(|word| self.word(address + word * 8).load(Ordering::Relaxed) == 0);
        }
        let mut page = [0; PAGE as usize];
        self.read(address, &mut page);
        page == [0; PAGE as usize]
    }

    /// One more use of the frame at `address`.
    pub fn get(&self, address: u64) {
        self.get_run(address, 1);
    }

    /// One more use of each of `pages` frames from `address` on.
    pub fn get_run(&self, address: u64, pages: u64) {
        if address >= outside::START {
            return;
        }
        let first = (address / PAGE) as usize;
        let frames = &mut *self.lock();
        for uses in &mut frames.uses[first..first + pages as usize] {
            *uses += 1;
            if *uses == 1 {
                frames.free -= 1;
                scribbled(address);
            }
        }
    }

    /// One use less; the last one frees the frame.
    pub fn put(&self, address: u64) {
        self.put_run(address, 1);
    }

    /// One use less of each of `pages` frames from `address` on.
    pub fn put_run(&self, address: u64, pages: u64) {
        if address >= outside::START {
            return;
        }
        let first = (address / PAGE) as usize;
        let frames = &mut *self.lock();
        for uses in &mut frames.uses[first..first + pages as usize] {
            if *uses == 0 {
                scribbled(address);
                continue;
            }
            *uses -= 1;
            frames.free += u64::from(*uses == 0);
        }
    }

    /// Uses of the frame at `address`.
    pub fn uses(&self, address: u64) -> u32 {
        match address {
            ..outside::START => self.lock().uses[(address / PAGE) as usize],
            _ => 2,
        }
    }

    /// Whether frames have more than one use, for many of them: nothing is handed out or given
    /// back while the answer is held.
    pub fn shared(&self) -> impl Fn(u64) -> bool {
        let frames = self.lock();
        move |address| address >= outside::START || frames.uses[(address / PAGE) as usize] > 1
    }

    /// Copies out of memory.
    ///
    /// # Panics
    /// If the range is not inside: addresses from outside are checked by [`CardMemory::contains`].
    #[inline]
    pub fn read(&self, address: u64, to: &mut [u8]) {
        if address >= outside::START {
            return self.outside.read(address, to);
        }
        assert!(self.contains(address, to.len() as u64));
        // SAFETY: the range is inside the mapping; `to` is private memory, so they do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.base.add(address as usize).as_ptr(),
                to.as_mut_ptr(),
                to.len(),
            );
        }
    }

    /// Copies into memory. Panics as [`CardMemory::read`] does.
    #[inline]
    pub fn write(&self, address: u64, from: &[u8]) {
        if address >= outside::START {
            return self.outside.write(address, from);
        }
        assert!(self.contains(address, from.len() as u64));
        // SAFETY: the range is inside the mapping; `from` is private memory, so they do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.as_ptr(),
                self.base.add(address as usize).as_ptr(),
                from.len(),
            );
        }
    }

    /// Copies within memory, to frames. Panics as [`CardMemory::read`] does.
    #[inline]
    pub fn copy(&self, from: u64, to: u64, len: u64) {
        if from >= outside::START {
            let mut bytes = vec![0; len as usize];
            self.read(from, &mut bytes);
            return self.write(to, &bytes);
        }
        assert!(self.contains(from, len) && self.contains(to, len));
        // SAFETY: both ranges are inside the mapping; they may overlap.
        unsafe {
            std::ptr::copy(
                self.base.add(from as usize).as_ptr(),
                self.base.add(to as usize).as_ptr(),
                len as usize,
            );
        }
    }

    /// Whether `len` bytes at `address` are card memory, of frames.
    #[inline]
    pub fn contains(&self, address: u64, len: u64) -> bool {
        address
            .checked_add(len)
            .is_some_and(|end| end <= self.bytes)
    }

    /// The 8 bytes at `address` (a multiple of 8, inside), as an atomic.
    #[inline]
    pub fn word(&self, address: u64) -> &AtomicU64 {
        assert!(address.is_multiple_of(8) && self.contains(address, 8));
        // SAFETY: aligned, inside the mapping, which lives as long as `self`; an atomic makes
        // concurrent writes defined.
        unsafe { &*self.base.add(address as usize).as_ptr().cast() }
    }

    /// The 4 bytes at `address` (a multiple of 4, inside), as an atomic.
    #[inline]
    pub fn half_word(&self, address: u64) -> &AtomicU32 {
        assert!(address.is_multiple_of(4) && self.contains(address, 4));
        // SAFETY: aligned, inside the mapping, which lives as long as `self`; an atomic makes
        // concurrent writes defined.
        unsafe { &*self.base.add(address as usize).as_ptr().cast() }
    }

    /// Loads the word at `address`.
    #[inline]
    pub fn load(&self, address: u64) -> u64 {
        self.word(address).load(Ordering::Acquire)
    }

    /// Stores the word at `address`.
    #[inline]
    pub fn store(&self, address: u64, value: u64) {
        self.word(address).store(value, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Frames> {
        self.frames
            .lock()
            .expect("no frame count is left half-changed")
    }
}

/// A page table has had a free frame. The kernel puts none there: the host's driver has, which is its card's
/// loss.
fn scribbled(address: u64) {
    tracing::error!("frame {address:#x} is free: the host has written to page tables of the card");
}

impl Frames {
    fn take_run(&mut self, pages: usize, align: usize) -> Option<usize> {
        assert!(pages > 0 && align.is_power_of_two());
        if (self.free as usize) < pages {
            return None;
        }
        let kind = usize::from(pages > 1);
        let next = self.next[kind];
        let start = self
            .find(next, self.uses.len(), pages, align)
            .or_else(|| self.find(1, (next + pages).min(self.uses.len()), pages, align))?;
        self.uses[start..start + pages].fill(1);
        self.free -= pages as u64;
        self.next[kind] = start + pages;
        Some(start)
    }

    fn find(&self, from: usize, to: usize, pages: usize, align: usize) -> Option<usize> {
        let mut start = from.next_multiple_of(align);
        while start + pages <= to {
            match self.uses[start..start + pages]
                .iter()
                .rposition(|uses| *uses > 0)
            {
                None => return Some(start),
                Some(used) => start = (start + used + 1).next_multiple_of(align),
            }
        }
        None
    }
}

impl Drop for CardMemory {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, nobody else unmaps it, and what borrows from it (`word`) borrows `self`, which
        // ends here.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_zero_counted_and_finite() {
        let memory = CardMemory::new(16 * PAGE).unwrap();
        let run = memory.alloc_run(8, 8).unwrap();
        assert_eq!(run % (8 * PAGE), 0);
        memory.write(run, &[7; 100]);
        memory.get(run);
        memory.put(run);
        assert_eq!(memory.uses(run), 1);
        for page in 0..8 {
            memory.put(run + page * PAGE);
        }
        let mut taken = Vec::new();
        while let Some(frame) = memory.alloc() {
            let mut bytes = [1; 100];
            memory.read(frame, &mut bytes);
            assert_eq!(bytes, [0; 100]);
            taken.push(frame);
        }
        assert_eq!(taken.len(), 15);
        assert_eq!(memory.free_bytes(), 0);
        memory.put(taken[3]);
        assert_eq!(memory.alloc(), Some(taken[3]));
    }
}
