//! Memory of a device, mapped.
//!
//! What must stay true: a pointer is handed out only into an area that is mapped, and stays so for
//! as long as the [`Mapping`] lives. Whoever is on the other side writes at any time.

use std::{iter, ops::Range, os::fd::BorrowedFd, ptr::NonNull};

use rustix::{
    fs::{SealFlags, fcntl_get_seals, fstat},
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
};

/// A mapped BAR, or other memory that is shared with a device. Parts of it may be out of reach.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: u64,
    areas: Vec<Range<u64>>,
}

// SAFETY: the mapping lives as long as `self` and is shared memory that anybody may change at any
// time; users access it through raw pointers and atomics only.
unsafe impl Send for Mapping {}
// SAFETY: threads that share it only use raw pointers and atomics in memory that lives as long as `self` and that other
// processes may change at any time.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes at `offset` of a memfd that is large enough and sealed against shrinking; or
    /// says why not.
    pub fn of_memfd(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<Self, &'static str> {
        let seals = fcntl_get_seals(fd).map_err(|_| "its descriptor is no memfd")?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err("its memfd is not sealed against shrinking");
        }
        let bytes = fstat(fd).map_or(0, |stat| stat.st_size as u64);
        if offset.checked_add(len).is_none_or(|end| end > bytes) {
            return Err("its memfd is too short");
        }
        Self::of_areas(fd, offset, len, iter::once(0..len).collect())
    }

    /// Maps those areas of a BAR of `len` bytes, which begins at `offset` of a VFIO device's
    /// descriptor. The kernel backs all of them for as long as they are mapped.
    pub(crate) fn of_areas(
        fd: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        areas: Vec<Range<u64>>,
    ) -> Result<Self, &'static str> {
        if len == 0 || areas.is_empty() || areas.iter().any(|area| area.end > len) {
            return Err("it is not memory");
        }
        // The whole range first, out of reach, so that its areas are where they are in the BAR.
        let reserve = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len as usize,
                ProtFlags::empty(),
                reserve,
            )
        };
        let base = base.map_err(|_| "no addresses are left")?;
        let mapping = Self {
            base: NonNull::new(base.cast()).expect("mmap never returns null"),
            len,
            areas,
        };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        for area in &mapping.areas {
            let bytes = (area.end - area.start) as usize;
            // SAFETY: the area is inside the range that was reserved above, which is ours.
            let mapped = unsafe {
                let at = mapping.base.add(area.start as usize);
                mmap(
                    at.as_ptr().cast(),
                    bytes,
                    prot,
                    flags,
                    fd,
                    offset + area.start,
                )
            };
            mapped.map_err(|_| "mmap(2) failed")?;
        }
        Ok(mapping)
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// The address of `len` bytes at `offset`, if they are inside. Others write to them at any time:
    /// no references, only raw copies and atomics.
    pub fn pointer(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(len)?;
        let inside = |area: &Range<u64>| area.start <= offset && end <= area.end;
        let is_mapped = self.areas.iter().any(inside);
        // SAFETY: `offset` is at most the end of the mapping.
        is_mapped.then(|| unsafe { self.base.add(offset as usize) })
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    use std::os::fd::{AsFd, OwnedFd};

    fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
        let fd = memfd_create("mapping", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    #[test]
    fn only_mapped_areas_can_be_reached() {
        let fd = memfd(32 << 10, SealFlags::SHRINK);
        let areas = vec![0..4096, 12288..16384];
        let mapping = Mapping::of_areas(fd.as_fd(), 8192, 16384, areas).unwrap();
        assert_eq!(mapping.bytes(), 16384);
        for (offset, len, is_inside) in [
            (0, 4096, true),
            (4095, 2, false),
            (4096, 4096, false),
            (12280, 16, false),
            (16376, 8, true),
            (16377, 8, false),
            (8, u64::MAX, false),
        ] {
            let pointer = mapping.pointer(offset, len);
            assert_eq!(pointer.is_some(), is_inside, "{offset} {len}");
        }
        assert!(mapping.write(12290, b"second area") && !mapping.write(5000, b"hole"));
        let mut bytes = [0; 11];
        rustix::io::pread(&fd, &mut bytes, 8192 + 12290).unwrap();
        assert_eq!(&bytes, b"second area");
    }

    #[test]
    fn memory_that_could_go_away_is_refused() {
        let map = |fd: &OwnedFd, offset, len| Mapping::of_memfd(fd.as_fd(), offset, len).err();
        let open = memfd(4096, SealFlags::empty());
        let sealed = memfd(4096, SealFlags::SHRINK);
        assert!(map(&open, 0, 4096).unwrap().contains("not sealed"));
        assert!(map(&sealed, 4096, 4096).unwrap().contains("too short"));
        assert!(map(&sealed, u64::MAX, 2).unwrap().contains("too short"));
        assert!(map(&sealed, 0, 0).unwrap().contains("not memory"));
        assert!(map(&sealed, 0, 4096).is_none());
    }
}
