//! Memory that the bytes of an image are put into on their way to a sink.

use std::{
    any::Any,
    io,
    ptr::{self, NonNull},
};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

/// Memory of a sink's, lent to a writer. The writer fills it and gives it back, over and over: a sink that has to
/// register its memory with a device does so once.
pub trait Memory: Any + Send {
    /// All of it.
    fn bytes(&self) -> &[u8];

    /// All of it, to write.
    fn bytes_mut(&mut self) -> &mut [u8];

    /// It is about to be used for the first time: what can be done in advance for all of it is done now.
    fn populate(&mut self) {}
}

impl Memory for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Anonymous memory, page-aligned, whose last whole huge pages are huge pages if the machine has any left: to make small
/// ones takes as long as to fill them.
pub struct Anonymous {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    /// From the start of what is mapped to the memory itself.
    before: usize,
    bytes: usize,
}

impl Anonymous {
    /// So many bytes, whole pages. They cost nothing before they are used.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let mapped_bytes = bytes.checked_add(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice: nobody else has it.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), mapped_bytes, protection, MapFlags::PRIVATE)?
        };
        let mapped = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let small = bytes % HUGE;
        let huge_at = (mapped.addr().get() + small).next_multiple_of(HUGE);
        Ok(Self {
            mapped,
            mapped_bytes,
            before: huge_at - small - mapped.addr().get(),
            bytes,
        })
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: `before` is less than the huge page that was mapped in addition.
        unsafe { self.mapped.add(self.before) }
    }
}

// SAFETY: the mapping belongs to this value alone; a thread that has the value may use and unmap it.
unsafe impl Send for Anonymous {}

impl Memory for Anonymous {
    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped readable from `new` to `drop`, initialized (to zero) by the kernel, and written only through
        // `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped writable from `new` to `drop`, initialized (to zero) by the kernel; `&mut self` makes the slice
        // the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.bytes) }
    }

    fn populate(&mut self) {
        let (start, small) = (self.start().as_ptr(), self.bytes % HUGE);
        // SAFETY: both ranges are of the mapping, whose content this leaves as it is. Where there are no huge pages, or
        // the kernel cannot populate, pages come as they are used.
        unsafe {
            let _ = madvise(
                start.add(small).cast(),
                self.bytes - small,
                Advice::LinuxHugepage,
            );
            let _ = madvise(start.cast(), self.bytes, Advice::LinuxPopulateWrite);
        }
    }
}

impl Drop for Anonymous {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`, which no slice outlives.
        let unmapped = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
