//! The memory that a device reaches: the IOMMU's page size and ranges, and what is mapped.

use std::{collections::BTreeMap, ops::RangeInclusive, os::fd::BorrowedFd, sync::Arc};

use rustix::process::{Resource, getrlimit};
use vfio_bindings::bindings::vfio::{
    VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE,
};
use vfio_ioctls::{VfioContainer, VfioError};

use super::{ioctl, refused};
use crate::{
    host::{DeviceError, DmaRefusal, Mapping},
    vfio_user::{u32_at, u64_at},
};

const PAGE_BYTES: u64 = 4096;

pub(super) struct Iommu {
    container: Arc<VfioContainer>,
    limits: Limits,
    /// By address. The kernel has locked these pages.
    mapped: BTreeMap<u64, Mapping>,
}

/// What the IOMMU can map.
#[derive(Debug, PartialEq, Eq)]
struct Limits {
    page_bytes: u64,
    ranges: Vec<RangeInclusive<u64>>,
}

impl Iommu {
    pub(super) fn of(container: Arc<VfioContainer>) -> Result<Self, DeviceError> {
        let what = "ask the IOMMU for its ranges";
        let info = ioctl::iommu_info(&container).map_err(refused(what))?;
        Ok(Self {
            container,
            limits: Limits::parse(&info).ok_or(DeviceError::Protocol { what })?,
            mapped: BTreeMap::new(),
        })
    }

    pub(super) fn ranges(&self) -> &[RangeInclusive<u64>] {
        &self.limits.ranges
    }

    pub(super) fn map(
        &mut self,
        iova: u64,
        len: u64,
        fd: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), DmaRefusal> {
        let last = self.limits.check(iova, len, offset)?;
        let below = self.mapped.range(..=last).next_back();
        if below.is_some_and(|(start, memory)| start + (memory.bytes() - 1) >= iova) {
            return Err(DmaRefusal::Overlap);
        }
        let memory = Mapping::of_memfd(fd, offset, len).map_err(DmaRefusal::Memory)?;
        let base = memory.pointer(0, len).expect("all of it is mapped");
        // SAFETY: the memory stays mapped until it is unmapped from the IOMMU, and nobody has a
        // reference to it: it is reached by raw pointers and through the memfd.
        let done = unsafe {
            self.container
                .vfio_dma_map(iova, len as usize, base.as_ptr())
        };
        done.map_err(explain)?;
        self.mapped.insert(iova, memory);
        Ok(())
    }

    pub(super) fn unmap(&mut self, iova: u64, len: u64) -> Result<(), DmaRefusal> {
        match self.mapped.get(&iova) {
            Some(memory) if memory.bytes() == len => {}
            _ => return Err(DmaRefusal::NotMapped),
        }
        let done = self.container.vfio_dma_unmap(iova, len as usize);
        done.map_err(DmaRefusal::Vfio)?;
        self.mapped.remove(&iova);
        Ok(())
    }

    pub(super) fn unmap_all(&mut self) {
        for (iova, memory) in std::mem::take(&mut self.mapped) {
            // Memory that the device may still reach is left to it until the process ends.
            if self
                .container
                .vfio_dma_unmap(iova, memory.bytes() as usize)
                .is_err()
            {
                std::mem::forget(memory);
            }
        }
    }
}

impl Limits {
    /// Reads a `struct vfio_iommu_type1_info` and its capabilities (`linux/vfio.h`).
    fn parse(info: &[u8]) -> Option<Self> {
        let flags = u32_at(info, 4)?;
        let page_bytes = match flags & VFIO_IOMMU_INFO_PGSIZES {
            0 => PAGE_BYTES,
            _ => 1u64.checked_shl(u64_at(info, 8)?.trailing_zeros())?,
        };
        let mut limits = Self {
            page_bytes: page_bytes.max(PAGE_BYTES),
            ranges: vec![0..=u64::MAX],
        };
        if flags & VFIO_IOMMU_INFO_CAPS == 0 {
            return Some(limits);
        }
        // Each capability begins with its id, a version, and where the next one is.
        let mut at = u32_at(info, 16)? as usize;
        while at != 0 {
            let id = u32_at(info, at)? & 0xffff;
            if id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE {
                let count = u32_at(info, at + 8)? as usize;
                let range =
                    |i| Some(u64_at(info, at + 16 + 16 * i)?..=u64_at(info, at + 24 + 16 * i)?);
                limits.ranges = (0..count).map(range).collect::<Option<_>>()?;
            }
            let next = u32_at(info, at + 4)? as usize;
            at = if next > at { next } else { 0 };
        }
        Some(limits)
    }

    /// The last address of a range that can be mapped.
    fn check(&self, iova: u64, len: u64, offset: u64) -> Result<u64, DmaRefusal> {
        let page_bytes = self.page_bytes;
        if len == 0 || !(iova | len | offset).is_multiple_of(page_bytes) {
            return Err(DmaRefusal::Unaligned { page_bytes });
        }
        let last = iova.checked_add(len - 1);
        let inside = |last: &u64| {
            let holds = |range: &RangeInclusive<u64>| range.contains(&iova) && range.contains(last);
            self.ranges.iter().any(holds)
        };
        last.filter(inside).ok_or_else(|| DmaRefusal::OutOfRange {
            ranges: self.ranges.clone(),
        })
    }
}

/// What errno means of VFIO_IOMMU_MAP_DMA (the kernel's vfio_iommu_type1.c).
fn explain(error: VfioError) -> DmaRefusal {
    let VfioError::IommuDmaMap(errno) = &error else {
        return DmaRefusal::Vfio(error);
    };
    match errno.errno() {
        libc::ENOMEM => DmaRefusal::MemoryLimit {
            limit_bytes: getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX),
        },
        libc::ENOSPC => DmaRefusal::TooMany,
        _ => DmaRefusal::Vfio(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As VT-d has it: pages of 4 KiB, 2 MiB and 1 GiB, 39 bits, and a hole for interrupts.
    fn info() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut push = |word: u64| bytes.extend(word.to_le_bytes());
        push(u64::from(VFIO_IOMMU_INFO_PGSIZES | VFIO_IOMMU_INFO_CAPS) << 32 | 4096);
        push(0x4020_1000);
        push(24);
        // A capability of another kind; then the ranges, two of them.
        push(40 << 32 | 1 << 16 | 3);
        push(65535);
        push(u64::from(VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) | 1 << 16);
        push(2);
        for word in [0, 0xfedf_ffff, 0xfef0_0000, 0x7f_ffff_ffff] {
            push(word);
        }
        bytes
    }

    #[test]
    fn limits_are_kept() {
        let limits = Limits::parse(&info()).unwrap();
        assert_eq!(limits.page_bytes, 4096);
        assert_eq!(
            limits.ranges,
            [0..=0xfedf_ffff, 0xfef0_0000..=0x7f_ffff_ffff]
        );
        assert_eq!(limits.check(0xfedf_f000, 4096, 0).unwrap(), 0xfedf_ffff);
        let refused = |iova, len, offset| limits.check(iova, len, offset).unwrap_err().to_string();
        for (iova, len, offset) in [(0, 0, 0), (1, 4096, 0), (0, 100, 0), (0, 4096, 512)] {
            assert!(refused(iova, len, offset).contains("pages of 4096 bytes"));
        }
        let ranges = "only 0x0 to 0xfedfffff 0xfef00000 to 0x7fffffffff";
        assert!(refused(0xfedf_f000, 8192, 0).ends_with(ranges));
        assert!(refused(0xfee0_0000, 4096, 0).ends_with(ranges));
        assert!(refused(!4095, 4096, 0).ends_with(ranges));
        assert!(refused(!4095, 8192, 0).ends_with(ranges));
    }

    #[test]
    fn an_old_kernel_says_nothing_of_ranges() {
        let mut bytes = vec![0; 24];
        assert_eq!(Limits::parse(&bytes).unwrap().ranges, [0..=u64::MAX]);
        bytes[4] = VFIO_IOMMU_INFO_CAPS as u8;
        bytes[16] = 200;
        assert_eq!(Limits::parse(&bytes), None);
    }

    proptest! {
        #[test]
        fn any_answer_is_read(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            let _ = Limits::parse(&bytes);
        }
    }
}
