//! What a driver on the host needs of a PCI function, however it is reached.
//!
//! The card is a hostile peer: a [`Mapping`] is made only of memory that cannot shrink, and every
//! number that comes back from a register is the driver's to check.

use std::{
    fmt::Write as _,
    io,
    ops::RangeInclusive,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::event::PollFd;
use vfio_bindings::bindings::vfio::VFIO_PCI_BAR5_REGION_INDEX;
use vfio_ioctls::VfioError;

pub use crate::mapping::Mapping;

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
    /// Memory cannot be mapped for the device, or unmapped.
    #[error("DMA of {len:#x} bytes at {iova:#x}: {why}")]
    Dma {
        /// Where the device would see it.
        iova: u64,
        /// Bytes.
        len: u64,
        /// Why not.
        why: DmaRefusal,
    },
    /// The kernel's VFIO driver refused something.
    #[error("cannot {what}: {source}")]
    Vfio {
        /// What was asked.
        what: &'static str,
        /// Why it failed.
        source: VfioError,
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

/// Why memory was not mapped for a device, or not unmapped.
#[derive(Debug, thiserror::Error)]
pub enum DmaRefusal {
    /// Not in pages.
    #[error("addresses, offsets and sizes come in pages of {page_bytes} bytes")]
    Unaligned {
        /// The IOMMU's smallest page.
        page_bytes: u64,
    },
    /// Not all of it is in one of the ranges that the IOMMU translates.
    #[error("the IOMMU translates only{}", list(ranges))]
    OutOfRange {
        /// What [`HostDevice::dma_ranges`] says.
        ranges: Vec<RangeInclusive<u64>>,
    },
    /// Some of it is mapped.
    #[error("it overlaps what is mapped already; unmap that first")]
    Overlap,
    /// What was to be unmapped is not what was mapped.
    #[error("no such range was mapped; ranges are unmapped as they were mapped")]
    NotMapped,
    /// Not memory that stays.
    #[error("{0}")]
    Memory(&'static str),
    /// A device's memory is locked, and so much may not be.
    #[error("the limit of locked memory is {limit_bytes} bytes; raise it (ulimit -l)")]
    MemoryLimit {
        /// RLIMIT_MEMLOCK.
        limit_bytes: u64,
    },
    /// The kernel counts mappings, too.
    #[error("no mappings are left; map fewer and larger ones (vfio_iommu_type1.dma_entry_limit)")]
    TooMany,
    /// Anything else.
    #[error("{0}")]
    Vfio(VfioError),
}

fn list(ranges: &[RangeInclusive<u64>]) -> String {
    let mut text = String::new();
    for range in ranges {
        let _ = write!(text, " {:#x} to {:#x}", range.start(), range.end());
    }
    text
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
    /// The file behind a BAR that is memory, and where in it the BAR begins, if another process could
    /// map that as well.
    fn bar_file(&self, _bar: u32) -> Option<(OwnedFd, u64)> {
        None
    }
    /// The addresses at which [`HostDevice::dma_map`] can map, in order.
    fn dma_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0..=u64::MAX]
    }
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
    /// The device signals this eventfd for interrupts of MSI-X vector `vector`. It may be signalled
    /// without one, too.
    fn set_vector(&self, vector: u32, event: BorrowedFd<'_>) -> Result<(), DeviceError>;
    /// To be called once the causes of an interrupt are cleared in the device: if all it has is a
    /// level-triggered line, it is silent until then.
    fn unmask(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    /// Resets the function.
    fn reset(&self) -> Result<(), DeviceError>;
    /// What to poll(2) to hear that the device is gone, or is wanted back by the kernel, if it can
    /// tell.
    fn hang_up(&self) -> Option<PollFd<'_>>;
    /// Gives the device up: every call from now on fails, and what was mapped for it is unmapped.
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

/// VFIO's region of a BAR, here and on the wire. Those that come after the BARs are of another kind.
pub(crate) fn region(bar: u32) -> Result<u32, DeviceError> {
    match bar {
        0..=VFIO_PCI_BAR5_REGION_INDEX => Ok(bar),
        _ => Err(DeviceError::Refused {
            what: "find a BAR",
            errno: libc::EINVAL,
        }),
    }
}
