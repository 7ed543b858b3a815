//! Calls to the kernel's VFIO that vfio-ioctls lacks, or of which it hides the result.

use std::io;

use rustix::io::Errno;
use vfio_bindings::bindings::vfio::{VFIO_BASE, VFIO_TYPE};
use vfio_ioctls::{VfioContainer, VfioDevice};
use vmm_sys_util::{
    ioctl::{ioctl, ioctl_with_mut_ptr},
    ioctl_io_nr,
};

ioctl_io_nr!(VFIO_DEVICE_RESET, VFIO_TYPE.into(), VFIO_BASE + 11);
ioctl_io_nr!(VFIO_IOMMU_GET_INFO, VFIO_TYPE.into(), VFIO_BASE + 12);

/// Room for what the IOMMU says of itself: some hundred ranges.
const INFO_WORDS: usize = 512;

/// Resets the device by the best means that it has; `EINVAL` if it has none.
pub(super) fn reset(device: &VfioDevice) -> Result<(), Errno> {
    // SAFETY: the ioctl has no argument.
    checked(unsafe { ioctl(device, VFIO_DEVICE_RESET()) })
}

/// A `struct vfio_iommu_type1_info` and its capabilities.
pub(super) fn iommu_info(container: &VfioContainer) -> Result<Vec<u8>, Errno> {
    let mut info = [0u64; INFO_WORDS];
    // The first field: room in bytes.
    info[0] = size_of_val(&info) as u64;
    // SAFETY: the kernel writes at most as many bytes as the first field says.
    checked(unsafe { ioctl_with_mut_ptr(container, VFIO_IOMMU_GET_INFO(), info.as_mut_ptr()) })?;
    Ok(info.iter().flat_map(|word| word.to_ne_bytes()).collect())
}

fn checked(result: i32) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
