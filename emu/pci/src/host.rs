//! What a driver on the host needs of a PCI function, however it is reached.
//!
//! The card is a hostile peer: a [`Mapping`] is made only of memory that cannot shrink, and every
//! number that comes back from a register is the driver's to check.

use std::{io, os::fd::BorrowedFd, ptr::NonNull};

use rustix::{
    fs::{SealFlags, fcntl_get_seals, fstat},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// Why a device did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The device is gone: its process died, hung up, or broke the protocol.
    #[error("the device is gone; restart the card")]
    Gone,
    /// Nobody serves the socket.
    #[error("cannot reach a device at {path}: {source}; is the card running?")]
    Connect {
        /// The socket.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// The device answered with an error.
    #[error("the device refused to {what}: {}", io::Error::from_raw_os_error(*errno))]
    Refused {
        /// What was asked.
        what: &'static str,
        /// Its error number.
        errno: i32,
    },
    /// The device's answer makes no sense; the connection was closed.
    #[error("the device's answer to {what} makes no sense")]
    Protocol {
        /// What was asked.
        what: &'static str,
    },
    /// A BAR cannot be mapped safely.
    #[error("cannot map BAR {bar}: {why}")]
    Map {
        /// The BAR.
        bar: u32,
        /// Why not.
        why: &'static str,
    },
    /// The host's kernel refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// A PCI function as its driver sees it. Every call returns an error at once when the device is
/// gone.
pub trait HostDevice: Send + Sync {
    /// Reads configuration space.
    fn config_read(&self, offset: u64, to: &mut [u8]) -> Result<(), DeviceError>;
    /// Writes configuration space.
    fn config_write(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError>;
    /// Reads 1, 2, 4 or 8 bytes of a BAR.
    fn bar_read(&self, bar: u32, offset: u64, to: &mut [u8]) -> Result<(), DeviceError>;
    /// Writes 1, 2, 4 or 8 bytes of a BAR. Posted, as on the bus: it arrives before any later call,
    /// but nobody waits for it.
    fn bar_write(&self, bar: u32, offset: u64, from: &[u8]) -> Result<(), DeviceError>;
    /// Maps a BAR that is memory.
    fn map_bar(&self, bar: u32) -> Result<Mapping, DeviceError>;
    /// Lets the device reach `len` bytes at `offset` of a memfd (sealed with `F_SEAL_SHRINK`) at
    /// address `iova`. All but the descriptor in multiples of 4 KiB.
    fn dma_map(
        &self,
        iova: u64,
        len: u64,
        fd: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), DeviceError>;
    /// Takes a range of [`HostDevice::dma_map`] away; on return the device no longer uses it.
    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DeviceError>;
    /// The device signals this eventfd for interrupts of MSI-X vector `vector`.
    fn set_vector(&self, vector: u32, event: BorrowedFd<'_>) -> Result<(), DeviceError>;
    /// Resets the function.
    fn reset(&self) -> Result<(), DeviceError>;
    /// A descriptor on which poll(2) reports `POLLHUP` when the device is gone, if it can tell.
    fn hang_up(&self) -> Option<BorrowedFd<'_>>;
    /// Gives the device up: every call from now on fails.
    fn close(&self);

    /// Reads a 32-bit register.
    fn read32(&self, bar: u32, offset: u64) -> Result<u32, DeviceError> {
        let mut bytes = [0; 4];
        self.bar_read(bar, offset, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Writes a 32-bit register.
    fn write32(&self, bar: u32, offset: u64, value: u32) -> Result<(), DeviceError> {
        self.bar_write(bar, offset, &value.to_le_bytes())
    }
}

/// A mapped BAR.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: u64,
}

// SAFETY: the mapping lives as long as `self` and is shared memory that anybody may change at any
// time; users access it through raw pointers and atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes at `offset` of a memfd that is large enough and sealed against shrinking.
    pub fn new(bar: u32, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Self, DeviceError> {
        let refuse = |why| DeviceError::Map { bar, why };
        let seals = fcntl_get_seals(fd).map_err(|_| refuse("its descriptor is no memfd"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(refuse("its memfd is not sealed against shrinking"));
        }
        let bytes = fstat(fd).map_or(0, |stat| stat.st_size as u64);
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(refuse("its memfd is shorter than the BAR"));
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses; a file of `len` bytes
        // exists, so `len` fits a usize.
        let base = unsafe { mmap(std::ptr::null_mut(), len as usize, prot, flags, fd, offset) };
        let base = base.map_err(|_| refuse("mmap(2) failed"))?;
        Ok(Self {
            base: NonNull::new(base.cast()).expect("mmap never returns null"),
            len,
        })
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// The address of `len` bytes at `offset`, if they are inside. Other processes write to them
    /// at any time: no references, only raw copies and atomics.
    pub fn pointer(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        // SAFETY: `offset` is at most the end of the mapping.
        (end <= self.len).then(|| unsafe { self.base.add(offset as usize) })
    }

    /// Copies `from` to `offset`; false, and nothing written, if that is not inside.
    #[must_use]
    pub fn write(&self, offset: u64, from: &[u8]) -> bool {
        let Some(to) = self.pointer(offset, from.len() as u64) else {
            return false;
        };
        // SAFETY: the range is inside the mapping; `from` is private memory, so they are disjoint.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
        true
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; pointers into it are used only while `self` lives.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len as usize) };
    }
}
