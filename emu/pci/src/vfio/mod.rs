//! [`HostDevice`] over VFIO: a device of this machine that is bound to vfio-pci.
//!
//! What must stay true: the device reaches only the memory that is mapped for it, and none once it
//! is closed; the MSI-X table is the kernel's and is never mapped; BARs, descriptors and ranges are
//! used within what the kernel says of them.
//!
//! Group, container, regions and interrupts are vfio-ioctls' (0.10). Register accesses, resets and
//! what the IOMMU says of itself are not: that crate logs a failed access or reset and goes on, and
//! does not ask the IOMMU.
//!
//! While a mapped BAR lives, the kernel counts the device as open, even after
//! [`HostDevice::close`]. A driver that switches memory decoding off must not touch mappings.

mod bars;
mod ioctl;
mod iommu;
mod open;
mod vectors;

use std::{
    ops::RangeInclusive,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, RwLock},
};

use rustix::{
    event::{PollFd, PollFlags},
    io::{Errno, pread, pwrite},
};
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX,
};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use self::{iommu::Iommu, vectors::Vectors};
use crate::host::{DeviceError, HostDevice, Mapping, region};

pub use self::open::{Address, Bound, OpenError, probe};

/// The command register, and in it memory decoding and bus mastering (PCI Local Bus 3.0, 6.2.2).
const COMMAND: u64 = 4;
const COMMAND_ENABLE: u16 = 0x0006;
/// Configuration space up to where extended capabilities begin.
const CONFIG_BYTES: usize = 256;

/// A device that is bound to vfio-pci.
pub struct VfioClient {
    open: RwLock<Option<Open>>,
    /// Signalled by the kernel when it wants the device back, or when the device has failed.
    hang_up: EventFd,
}

struct Open {
    device: VfioDevice,
    /// The device's descriptor again. Dropped after `device`, whose drop panics if the device has left
    /// sysfs: while this is open, one that is unplugged stays there. (vfio-ioctls logs, then, that it
    /// could not take the group out of its container, which is closed next.)
    file: OwnedFd,
    iommu: Mutex<Iommu>,
    vectors: Mutex<Vectors>,
}

impl VfioClient {
    /// Opens the device, alone in a container of its own, and lets it act as a bus master.
    pub fn open(address: Address) -> Result<Self, OpenError> {
        let group = open::check(address)?;
        let container = open::container()?;
        let sysfs = address.sysfs();
        let device = VfioDevice::new(Path::new(&sysfs), container.clone(), false);
        let device = device.map_err(|e| open::explain(address, group, e))?;
        Self::set_up(device, container).map_err(|source| OpenError::SetUp { address, source })
    }

    fn set_up(device: VfioDevice, container: Arc<VfioContainer>) -> Result<Self, DeviceError> {
        let io = |what| move |source| DeviceError::Io { what, source };
        // SAFETY: `device` keeps its descriptor open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) };
        let file = file.try_clone_to_owned();
        let hang_up = EventFd::new(EFD_NONBLOCK).map_err(io("eventfd(2)"))?;
        for index in [VFIO_PCI_ERR_IRQ_INDEX, VFIO_PCI_REQ_IRQ_INDEX] {
            if device.get_irq_info(index).is_some_and(|irq| irq.count > 0) {
                let asked = device.enable_irq(index, vec![&hang_up]);
                asked.map_err(vfio("ask for a notice of removal"))?;
            }
        }
        let client = Self {
            open: RwLock::new(Some(Open {
                vectors: Mutex::new(Vectors::of(&device)),
                iommu: Mutex::new(Iommu::of(container)?),
                file: file.map_err(io("dup(2)"))?,
                device,
            })),
            hang_up,
        };
        let mut command = [0; 2];
        client.config_read(COMMAND, &mut command)?;
        let enabled = u16::from_le_bytes(command) | COMMAND_ENABLE;
        client.config_write(COMMAND, &enabled.to_le_bytes())?;
        Ok(client)
    }

    fn with<T>(&self, act: impl FnOnce(&Open) -> Result<T, DeviceError>) -> Result<T, DeviceError> {
        let open = self.open.read().expect("no state is left half-changed");
        act(open.as_ref().ok_or(DeviceError::Gone)?)
    }
}

impl Open {
    fn read(&self, region: u32, offset: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        let len = to.len();
        let at = self.place(region, offset, len);
        let done = at.and_then(|at| pread(&self.file, to, at));
        whole(done, len).map_err(refused("read a register"))
    }

    fn write(&self, region: u32, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let at = self.place(region, offset, from.len());
        let done = at.and_then(|at| pwrite(&self.file, from, at));
        whole(done, from.len()).map_err(refused("write a register"))
    }

    /// Where `len` bytes at `offset` of a region are in the device's file.
    fn place(&self, region: u32, offset: u64, len: usize) -> Result<u64, Errno> {
        let end = offset.checked_add(len as u64).ok_or(Errno::INVAL)?;
        match end <= self.device.get_region_size(region) {
            true => Ok(self.device.get_region_offset(region) + offset),
            false => Err(Errno::INVAL),
        }
    }

    fn map_bar(&self, bar: u32) -> Result<Mapping, DeviceError> {
        let mut config = [0; CONFIG_BYTES];
        self.read(VFIO_PCI_CONFIG_REGION_INDEX, 0, &mut config)?;
        let (device, len) = (&self.device, self.device.get_region_size(bar));
        let areas = bars::mappable(
            len,
            device.get_region_flags(bar),
            &device.get_region_caps(bar),
            bars::msix_table(&config).filter(|table| table.bar == bar),
        );
        let offset = device.get_region_offset(bar);
        Mapping::of_areas(self.file.as_fd(), offset, len, areas)
            .map_err(|why| DeviceError::Map { bar, why })
    }
}

impl Drop for Open {
    /// A mapped BAR may keep the device open, so all that it could do to us is undone here.
    fn drop(&mut self) {
        lock(&self.vectors).disable(&self.device);
        lock(&self.iommu).unmap_all();
    }
}

impl HostDevice for VfioClient {
    fn config_read(&self, offset: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        self.with(|open| open.read(VFIO_PCI_CONFIG_REGION_INDEX, offset, to))
    }

    fn config_write(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.with(|open| open.write(VFIO_PCI_CONFIG_REGION_INDEX, offset, from))
    }

    fn bar_read(&self, bar: u32, offset: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        self.with(|open| open.read(region(bar)?, offset, to))
    }

    fn bar_write(&self, bar: u32, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        self.with(|open| open.write(region(bar)?, offset, from))
    }

    fn map_bar(&self, bar: u32) -> Result<Mapping, DeviceError> {
        self.with(|open| open.map_bar(region(bar)?))
    }

    fn dma_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.with(|open| Ok(lock(&open.iommu).ranges().to_vec()))
            .unwrap_or_default()
    }

    fn dma_map(
        &self,
        iova: u64,
        len: u64,
        fd: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), DeviceError> {
        self.with(|open| {
            let mapped = lock(&open.iommu).map(iova, len, fd, offset);
            mapped.map_err(|why| DeviceError::Dma { iova, len, why })
        })
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DeviceError> {
        self.with(|open| {
            let unmapped = lock(&open.iommu).unmap(iova, len);
            unmapped.map_err(|why| DeviceError::Dma { iova, len, why })
        })
    }

    fn set_vector(&self, vector: u32, event: BorrowedFd<'_>) -> Result<(), DeviceError> {
        self.with(|open| lock(&open.vectors).set(&open.device, vector, event))
    }

    fn unmask(&self) -> Result<(), DeviceError> {
        self.with(|open| lock(&open.vectors).unmask(&open.device))
    }

    fn reset(&self) -> Result<(), DeviceError> {
        self.with(|open| ioctl::reset(&open.device).map_err(refused("reset")))
    }

    fn hang_up(&self) -> Option<PollFd<'_>> {
        // SAFETY: `self` keeps the descriptor open for as long as the borrow lives.
        let fd = unsafe { BorrowedFd::borrow_raw(self.hang_up.as_raw_fd()) };
        Some(PollFd::from_borrowed_fd(fd, PollFlags::IN))
    }

    fn close(&self) {
        *self.open.write().expect("no state is left half-changed") = None;
    }
}

/// All of an access, or an error: the rest of it would come too late.
fn whole(done: Result<usize, Errno>, bytes: usize) -> Result<(), Errno> {
    match done? {
        count if count == bytes => Ok(()),
        _ => Err(Errno::IO),
    }
}

fn refused(what: &'static str) -> impl Fn(Errno) -> DeviceError {
    move |errno| match errno {
        Errno::NODEV => DeviceError::Gone,
        _ => DeviceError::Refused {
            what,
            errno: errno.raw_os_error(),
        },
    }
}

fn vfio(what: &'static str) -> impl Fn(VfioError) -> DeviceError {
    move |source| DeviceError::Vfio { what, source }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no state is left half-changed")
}
