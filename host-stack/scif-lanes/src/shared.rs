//! A little memory that several processes have mapped.
//!
//! What must stay true: it stays as long as it is mapped, whatever the other side does: the file is sealed, or a card's
//! memory.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// The mapping.
pub struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `base` and `len` are the mapping's, which is this value's own and lives as long; nothing about it belongs to
// a thread.
unsafe impl Send for SharedMemory {}
// SAFETY: the memory is reached through atomics and raw copies alone, also by other processes at any time; no plain
// reference into it is made.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory, all zero, and its file.
    pub fn create(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let memory = Self::map(std::os::fd::AsFd::as_fd(&file), 0, len)?;
        Ok((memory, file))
    }

    /// Of a file, from this offset on.
    pub fn map(file: BorrowedFd<'_>, at: u64, len: usize) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing is at, so no memory of ours changes.
        let base = unsafe { mmap(ptr::null_mut(), len, prot, MapFlags::SHARED, file, at) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// Where it begins: as many bytes as were asked for, on a page of its own.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Address and bytes.
    pub fn range(&self) -> (usize, usize) {
        (self.base.as_ptr().expose_provenance(), self.len)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and all that reaches into it owns or borrows this value, so nothing does any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
