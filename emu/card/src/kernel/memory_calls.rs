//! The calls that change an address space: mmap(2) and its relatives.

use super::{
    call::Call,
    device::UserMemory,
    errno::Errno,
    fs::{RegularFile, is_zero_device, shared_anonymous},
    mm::{Area, Backing},
    state::lock,
    wait::SysResult,
};
use crate::{memory::PAGE, platform::USER_END};

const PROT_ALL: i32 = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;

/// The end of user space on Linux (arch/x86/include/asm/page_64_types.h, TASK_SIZE).
const LINUX_USER_END: u64 = (1 << 47) - PAGE;

impl Call<'_> {
    /// Runs a memory call; `None` if it is none.
    pub fn memory_call(&mut self, number: u64, a: [u64; 6]) -> Option<SysResult> {
        let int = |i: usize| a[i] as i32;
        Some(match number as i64 {
            libc::SYS_mmap => self.mmap(a[0], a[1], int(2), int(3), int(4), a[5]),
            libc::SYS_munmap => self.munmap(a[0], a[1]),
            libc::SYS_mprotect => self.mprotect(a[0], a[1], int(2)),
            libc::SYS_mremap => self.mremap(a[0], a[1], a[2], int(3), a[4]),
            libc::SYS_madvise => self.madvise(a[0], a[1], int(2)),
            libc::SYS_brk => self.brk(a[0]),
            libc::SYS_mincore => self.mincore(a[0], a[1], a[2]),
            // Memory is never swapped, and files live in it.
            libc::SYS_mlock | libc::SYS_munlock | libc::SYS_mlock2 => self.is_mapped(a[0], a[1]),
            libc::SYS_mlockall | libc::SYS_munlockall => Ok(0),
            libc::SYS_msync => self.msync(a[0], a[1], int(2)),
            _ => return None,
        })
    }

    fn mmap(
        &mut self,
        at: u64,
        len: u64,
        prot: i32,
        flags: i32,
        fd: i32,
        offset: u64,
    ) -> SysResult {
        let len = page_range(0, len)?.1;
        let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
        let kind = flags & libc::MAP_TYPE;
        if !(libc::MAP_SHARED..=libc::MAP_SHARED_VALIDATE).contains(&kind)
            || kind == libc::MAP_SHARED_VALIDATE && flags & libc::MAP_ANONYMOUS != 0
            || !offset.is_multiple_of(PAGE)
            || fixed && !at.is_multiple_of(PAGE)
        {
            return Err(Errno::EINVAL.into());
        }
        // Of protections mmap(2) ignores what it does not know.
        let prot = prot & PROT_ALL;
        let shared = kind != libc::MAP_PRIVATE;
        let backing = match flags & libc::MAP_ANONYMOUS != 0 {
            true if shared => {
                let inode = shared_anonymous(&self.kernel.memory, len)?;
                Backing::File {
                    inode,
                    path: "/dev/zero (deleted)".into(),
                    offset: 0,
                }
            }
            true => Backing::Anonymous,
            false => self.file_backing(
                fd,
                offset,
                len,
                shared && prot & libc::PROT_WRITE != 0,
                shared,
            )?,
        };
        let mm = self.process().mm.clone();
        let mut mm = lock(&mm);
        let hint = at & !(PAGE - 1);
        let is_promised = flags & libc::MAP_NORESERVE == 0 && prot & libc::PROT_WRITE != 0;
        if matches!(backing, Backing::Anonymous) && is_promised && !mm.has_room(len) {
            return Err(Errno::ENOMEM.into());
        }
        let start = match fixed {
            true => at,
            false if hint != 0 && mm.is_free(hint, hint.saturating_add(len)) => hint,
            false => mm.find(len)?,
        };
        let end = start
            .checked_add(len)
            .filter(|end| *end <= USER_END)
            .ok_or(Errno::ENOMEM)?;
        if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE && !mm.is_free(start, end)
        {
            return Err(Errno::EEXIST.into());
        }
        mm.map(
            self.cpu,
            start,
            Area {
                end,
                prot,
                shared,
                backing,
            },
        )?;
        if flags & libc::MAP_POPULATE != 0 {
            for page in (start..end).step_by(PAGE as usize) {
                if mm.frame(page, false).is_err() {
                    break;
                }
            }
        }
        Ok(start)
    }

    fn file_backing(
        &mut self,
        fd: i32,
        offset: u64,
        len: u64,
        writes: bool,
        shared: bool,
    ) -> Result<Backing, Errno> {
        let files = self.process().files.clone();
        let open = lock(&files).get(fd)?;
        if is_zero_device(&*open.file) {
            return match shared {
                false => Ok(Backing::Anonymous),
                true => {
                    let inode = shared_anonymous(&self.kernel.memory, len)?;
                    Ok(Backing::File {
                        inode,
                        path: "/dev/zero".into(),
                        offset: 0,
                    })
                }
            };
        }
        let file = open
            .file
            .as_any()
            .downcast_ref::<RegularFile>()
            .ok_or(Errno::ENODEV)?;
        // A private mapping reads the file, whatever becomes of its own pages (mmap(2), EACCES).
        if open.check_readable().is_err() || writes && open.check_writable().is_err() {
            return Err(Errno::EACCES);
        }
        // What is beyond the largest offset of a file cannot be mapped (mmap(2), EOVERFLOW).
        if offset
            .checked_add(len)
            .is_none_or(|end| end > i64::MAX as u64)
        {
            return Err(Errno::EOVERFLOW);
        }
        let (inode, path) = (file.inode().clone(), file.path().to_owned());
        Ok(Backing::File {
            inode,
            path,
            offset,
        })
    }

    fn munmap(&mut self, start: u64, len: u64) -> SysResult {
        if !start.is_multiple_of(PAGE) || len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = start
            .checked_add(len)
            .and_then(|end| end.checked_next_multiple_of(PAGE));
        // Linux's user space goes on where the card's ends: nothing is mapped there.
        let end = end.filter(|end| *end <= LINUX_USER_END);
        let end = end.ok_or(Errno::EINVAL)?.min(USER_END);
        if start >= end {
            return Ok(0);
        }
        let mm = self.process().mm.clone();
        lock(&mm).unmap(self.cpu, start, end)?;
        Ok(0)
    }

    fn mprotect(&mut self, start: u64, len: u64, prot: i32) -> SysResult {
        if len == 0 {
            return Ok(0);
        }
        let (start, end) = page_range(start, len)?;
        if prot & !PROT_ALL != 0 {
            return Err(Errno::EINVAL.into());
        }
        let mm = self.process().mm.clone();
        lock(&mm).protect(self.cpu, start, end, prot)?;
        Ok(0)
    }

    fn mremap(&mut self, old: u64, old_len: u64, new_len: u64, flags: i32, to: u64) -> SysResult {
        let may_move = flags & libc::MREMAP_MAYMOVE != 0;
        let fixed = flags & libc::MREMAP_FIXED != 0;
        if flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) != 0 || fixed && !may_move {
            return Err(Errno::EINVAL.into());
        }
        let (old, old_end) = page_range(old, old_len)?;
        let (_, new_len) = page_range(0, new_len)?;
        let mm = self.process().mm.clone();
        let mut mm = lock(&mm);
        if !fixed {
            return Ok(mm.remap(self.cpu, old, old_end - old, new_len, may_move)?);
        }
        let (to, to_end) = page_range(to, new_len)?;
        if to < old_end && old < to_end {
            return Err(Errno::EINVAL.into());
        }
        Ok(mm.remap_to(self.cpu, old, old_end - old, to, new_len)?)
    }

    /// mincore(2): pages that have been touched are there.
    fn mincore(&mut self, start: u64, len: u64, to: u64) -> SysResult {
        if len == 0 {
            return Ok(0);
        }
        let (start, end) = page_range(start, len)?;
        if (end - start) / PAGE > self.kernel.memory.bytes() / PAGE {
            return Err(Errno::ENOMEM.into());
        }
        let mm = self.process().mm.clone();
        let mut mm = lock(&mm);
        let mut there = vec![0_u8; ((end - start) / PAGE) as usize];
        let mut at = start;
        while at < end {
            let (_, area) = mm.area(at).ok_or(Errno::ENOMEM)?;
            at = area.end;
        }
        mm.present(start, end, |page, _| {
            there[((page - start) / PAGE) as usize] = 1;
        });
        UserMemory::write(&mut *mm, to, &there)?;
        Ok(0)
    }

    fn madvise(&mut self, start: u64, len: u64, advice: i32) -> SysResult {
        if len == 0 {
            return Ok(0);
        }
        let (start, end) = page_range(start, len)?;
        // Advice may be ignored, but these are orders.
        if matches!(advice, libc::MADV_REMOVE | libc::MADV_WIPEONFORK) {
            return Err(Errno::EINVAL.into());
        }
        let mm = self.process().mm.clone();
        if matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE) {
            lock(&mm).release(self.cpu, start, end);
        }
        // What is mapped has been advised all the same.
        lock(&mm).check_mapped(start, end)?;
        Ok(0)
    }

    /// Calls that have nothing to do but to say whether all of a range is mapped.
    fn is_mapped(&mut self, start: u64, len: u64) -> SysResult {
        let within = start % PAGE;
        if len == 0 {
            return Ok(0);
        }
        let (start, end) = page_range(start - within, len.saturating_add(within))?;
        let mm = self.process().mm.clone();
        lock(&mm).check_mapped(start, end)?;
        Ok(0)
    }

    fn msync(&mut self, start: u64, len: u64, flags: i32) -> SysResult {
        const ALL: i32 = libc::MS_ASYNC | libc::MS_INVALIDATE | libc::MS_SYNC;
        let both = libc::MS_ASYNC | libc::MS_SYNC;
        if flags & !ALL != 0 || flags & both == both || !start.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL.into());
        }
        self.is_mapped(start, len)
    }

    fn brk(&mut self, to: u64) -> SysResult {
        let mm = self.process().mm.clone();
        Ok(lock(&mm).set_brk(self.cpu, to))
    }
}

/// `start` and the end of `len` bytes from there, in whole pages, below the end of user space.
fn page_range(start: u64, len: u64) -> Result<(u64, u64), Errno> {
    if !start.is_multiple_of(PAGE) || len == 0 {
        return Err(Errno::EINVAL);
    }
    let end = start
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(PAGE));
    match end {
        Some(end) if end <= USER_END => Ok((start, end)),
        _ => Err(Errno::ENOMEM),
    }
}
