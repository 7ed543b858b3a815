//! The calls that change an address space: mmap(2) and its relatives.

use std::sync::Arc;

use snaprig_card_driver::{device::UserMemory, errno::Errno, file::Description, wait::SysResult};
use snaprig_card_fs::{
    Open,
    files::{memory_device::is_zero_device, pipe::is_nameless_pipe, regular::RegularFile},
    inode::shared_anonymous,
};
use snaprig_card_memory::{PAGE, USER_END};

use super::{AddressSpace, Area, Backing, Fault, Traits, ranges::Remap};
use crate::{call::Call, state::lock};

/// MLOCK_ONFAULT of mlock2(2).
const MLOCK_ONFAULT: i32 = 1;
/// Flags that mmap(2) has always known (Linux: LEGACY_MAP_MASK), MAP_UNINITIALIZED among them.
const LEGACY_FLAGS: i32 = libc::MAP_SHARED
    | libc::MAP_PRIVATE
    | libc::MAP_FIXED
    | libc::MAP_ANONYMOUS
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE
    | 0x0400_0000
    | libc::MAP_GROWSDOWN
    | libc::MAP_LOCKED
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_STACK
    | libc::MAP_HUGETLB
    | libc::MAP_32BIT;
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
            libc::SYS_mlock => self.lock_range(a[0], a[1], true),
            libc::SYS_mlock2 if int(2) & !MLOCK_ONFAULT != 0 => Err(Errno::EINVAL.into()),
            libc::SYS_mlock2 => self.lock_range(a[0], a[1], true),
            libc::SYS_munlock => self.lock_range(a[0], a[1], false),
            libc::SYS_mlockall => self.mlockall(int(0)),
            libc::SYS_munlockall => self.lock_all(false, false),
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
        if !offset.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL.into());
        }
        let file = match flags & libc::MAP_ANONYMOUS {
            0 => {
                let files = self.process().files.clone();
                let open = lock(&files).get(fd)?;
                Some(open)
            }
            // No huge pages are set aside (mmap(2), ENOMEM).
            _ if flags & libc::MAP_HUGETLB != 0 => return Err(Errno::ENOMEM.into()),
            _ => None,
        };
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
        let len = len
            .checked_next_multiple_of(PAGE)
            .filter(|len| *len <= USER_END);
        let len = len.ok_or(Errno::ENOMEM)?;
        if fixed && at > USER_END - len {
            return Err(Errno::ENOMEM.into());
        }
        if fixed && !at.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL.into());
        }
        let no_replace = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
        let mm = self.process().mm.clone();
        if no_replace && !lock(&mm).is_free(at, at + len) {
            return Err(Errno::EEXIST.into());
        }
        let kind = flags & libc::MAP_TYPE;
        let shared = kind != libc::MAP_PRIVATE;
        let is_kind = match kind {
            libc::MAP_SHARED | libc::MAP_PRIVATE => true,
            libc::MAP_SHARED_VALIDATE => file.is_some(),
            _ => false,
        };
        // Of protections mmap(2) ignores what it does not know.
        let prot = prot & PROT_ALL;
        let mut traits = Traits::default();
        let backing = match &file {
            Some(open) => {
                self.check_offset(open, offset, len)?;
                if !is_kind {
                    return Err(Errno::EINVAL.into());
                }
                if kind == libc::MAP_SHARED_VALIDATE && flags & !LEGACY_FLAGS != 0 {
                    return Err(Errno::EOPNOTSUPP.into());
                }
                traits.read_only = shared && open.check_writable().is_err();
                self.file_backing(open, offset, len, prot, shared)?
            }
            None if !is_kind => return Err(Errno::EINVAL.into()),
            None if shared => {
                let inode = shared_anonymous(&self.kernel.memory, len)?;
                Backing::File {
                    inode,
                    path: "/dev/zero (deleted)".into(),
                    offset: 0,
                }
            }
            None => Backing::Anonymous,
        };
        // Of a device, what is not asked for now is not to be had later.
        let is_device = matches!(backing, Backing::Device { .. });
        traits.read_only |= is_device && prot & libc::PROT_WRITE == 0;
        traits.locked = flags & libc::MAP_LOCKED != 0 || lock(&mm).locks_all;
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
        mm.map(
            self.cpu,
            start,
            Area {
                end,
                prot,
                shared,
                backing,
                traits,
            },
        )?;
        if flags & (libc::MAP_POPULATE | libc::MAP_LOCKED) != 0 {
            // What cannot be had is had on the first touch, or never.
            let _ = mm.populate(start, end, false);
        }
        Ok(start)
    }

    /// What is beyond the largest offset of a file cannot be mapped (mmap(2), EOVERFLOW).
    fn check_offset(&self, open: &Open, offset: u64, len: u64) -> Result<(), Errno> {
        let last = offset.checked_add(len).ok_or(Errno::EOVERFLOW)?;
        let is_regular = open.file.as_any().is::<RegularFile>();
        match is_regular && last > i64::MAX as u64 {
            true => Err(Errno::EOVERFLOW),
            false => Ok(()),
        }
    }

    fn file_backing(
        &mut self,
        open: &Arc<Open>,
        offset: u64,
        len: u64,
        prot: i32,
        shared: bool,
    ) -> SysResult<Backing> {
        let writes = shared && prot & libc::PROT_WRITE != 0;
        let executes = prot & libc::PROT_EXEC != 0;
        // A private mapping reads the file, whatever becomes of its own pages (mmap(2), EACCES).
        if writes && open.check_writable().is_err() || open.check_readable().is_err() {
            return Err(Errno::EACCES.into());
        }
        // Nothing can be executed that is of no file system.
        let file = &*open.file;
        let is_of_files = match file.describe() {
            Description::Path { .. } | Description::Device { .. } => true,
            Description::Pipe { .. } => !is_nameless_pipe(file),
            _ => false,
        };
        if executes && !is_of_files {
            return Err(Errno::EPERM.into());
        }
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
        let Some(file) = open.file.as_any().downcast_ref::<RegularFile>() else {
            return match open.file.describe() {
                Description::Device { path, .. } if shared => {
                    self.device_backing(open, path, offset, len, prot)
                }
                _ => Err(Errno::ENODEV.into()),
            };
        };
        let (inode, path) = (file.inode().clone(), file.path().to_owned());
        Ok(Backing::File {
            inode,
            path,
            offset,
        })
    }

    fn device_backing(
        &mut self,
        open: &Arc<Open>,
        path: String,
        offset: u64,
        len: u64,
        prot: i32,
    ) -> SysResult<Backing> {
        if prot & libc::PROT_EXEC != 0 {
            return Err(Errno::EACCES.into());
        }
        let memory = self.with_file(open, |file, cx| file.map(cx, offset, len, prot))?;
        Ok(Backing::Device {
            path,
            memory: Arc::new(memory),
            offset: 0,
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
        const PROT_SEM: i32 = 8;
        let grows = prot & (libc::PROT_GROWSDOWN | libc::PROT_GROWSUP);
        let both = grows == libc::PROT_GROWSDOWN | libc::PROT_GROWSUP;
        if both || !start.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL.into());
        }
        if len == 0 {
            return Ok(0);
        }
        let end = len
            .checked_next_multiple_of(PAGE)
            .and_then(|len| start.checked_add(len))
            .ok_or(Errno::ENOMEM)?;
        if prot & !(PROT_ALL | PROT_SEM | grows) != 0 {
            return Err(Errno::EINVAL.into());
        }
        let mm = self.process().mm.clone();
        lock(&mm).protect(self.cpu, start, end.min(USER_END), prot & PROT_ALL)?;
        match end > USER_END {
            true => Err(Errno::ENOMEM.into()),
            false => Ok(0),
        }
    }

    fn mremap(&mut self, old: u64, old_len: u64, new_len: u64, flags: i32, to: u64) -> SysResult {
        let has = |flag| flags & flag != 0;
        let (may_move, fixed) = (has(libc::MREMAP_MAYMOVE), has(libc::MREMAP_FIXED));
        let keeps_old = has(libc::MREMAP_DONTUNMAP);
        let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let (old_len, new_len) = (whole_pages(old_len), whole_pages(new_len));
        if flags & !known != 0 || !old.is_multiple_of(PAGE) || new_len == 0 || new_len > USER_END {
            return Err(Errno::EINVAL.into());
        }
        if fixed || keeps_old {
            let is_apart = |to: u64| {
                to + new_len <= old || old.checked_add(old_len).is_none_or(|end| end <= to)
            };
            if to > USER_END - new_len
                || !to.is_multiple_of(PAGE)
                || !may_move
                || keeps_old && old_len != new_len
                || !is_apart(to)
            {
                return Err(Errno::EINVAL.into());
            }
        }
        let ask = Remap {
            old,
            old_len,
            new_len,
            may_move,
            to: fixed.then_some(to),
            keeps_old: keeps_old.then_some(to),
        };
        let mm = self.process().mm.clone();
        let moved = lock(&mm).remap(self.cpu, &ask)?;
        Ok(moved)
    }

    /// mincore(2): pages that have been touched are there.
    fn mincore(&mut self, start: u64, len: u64, to: u64) -> SysResult {
        if !start.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL.into());
        }
        if len == 0 {
            return Ok(0);
        }
        let (start, end) = page_range(start, len)?;
        if to >= USER_END {
            return Err(Errno::EFAULT.into());
        }
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

    /// madvise(2). Advice about what the host has, or about speed alone, is taken.
    fn madvise(&mut self, start: u64, len: u64, advice: i32) -> SysResult {
        const TAKEN: [i32; 15] = [
            libc::MADV_NORMAL,
            libc::MADV_RANDOM,
            libc::MADV_SEQUENTIAL,
            libc::MADV_WILLNEED,
            libc::MADV_MERGEABLE,
            libc::MADV_UNMERGEABLE,
            libc::MADV_HUGEPAGE,
            libc::MADV_NOHUGEPAGE,
            libc::MADV_DONTDUMP,
            libc::MADV_DODUMP,
            libc::MADV_COLD,
            libc::MADV_PAGEOUT,
            libc::MADV_KEEPONFORK,
            libc::MADV_DOFORK,
            libc::MADV_DONTFORK,
        ];
        const ACTS: [i32; 6] = [
            libc::MADV_DONTNEED,
            libc::MADV_FREE,
            libc::MADV_REMOVE,
            libc::MADV_WIPEONFORK,
            libc::MADV_POPULATE_READ,
            libc::MADV_POPULATE_WRITE,
        ];
        let is_known = TAKEN.contains(&advice) || ACTS.contains(&advice);
        let wraps = len > 0 && whole_pages(len) == 0;
        if !is_known || !start.is_multiple_of(PAGE) || wraps {
            return Err(Errno::EINVAL.into());
        }
        let end = start.checked_add(whole_pages(len)).ok_or(Errno::EINVAL)?;
        let cpu = &mut *self.cpu;
        let mm = self.state.process(self.pid).mm.clone();
        lock(&mm).advise(start, end, |mm, at, area| {
            let anonymous = matches!(area.backing, Backing::Anonymous);
            match advice {
                libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_COLD | libc::MADV_PAGEOUT
                    if area.traits.locked =>
                {
                    return Err(Errno::EINVAL);
                }
                libc::MADV_DONTNEED => mm.release(cpu, at, area.end),
                libc::MADV_FREE if !anonymous => return Err(Errno::EINVAL),
                libc::MADV_FREE => mm.release(cpu, at, area.end),
                libc::MADV_REMOVE => remove(mm, at, area)?,
                libc::MADV_DONTFORK => area.traits.not_forked = true,
                libc::MADV_DOFORK => area.traits.not_forked = false,
                libc::MADV_WIPEONFORK if !anonymous => return Err(Errno::EINVAL),
                libc::MADV_WIPEONFORK => area.traits.wiped_on_fork = true,
                libc::MADV_KEEPONFORK => area.traits.wiped_on_fork = false,
                libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => {
                    let write = advice == libc::MADV_POPULATE_WRITE;
                    mm.populate(at, area.end, write)
                        .map_err(|fault| match fault {
                            Fault::NoPage => Errno::EFAULT,
                            Fault::Denied => Errno::EINVAL,
                            Fault::Unmapped | Fault::Full => Errno::ENOMEM,
                        })?;
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(0)
    }

    /// mlock(2), mlock2(2), munlock(2).
    fn lock_range(&mut self, start: u64, len: u64, locked: bool) -> SysResult {
        let within = start % PAGE;
        let len = whole_pages(len.wrapping_add(within));
        let start = start - within;
        let end = start.checked_add(len).ok_or(Errno::EINVAL)?;
        let mm = self.process().mm.clone();
        lock(&mm).set_locked(start, end, locked)?;
        Ok(0)
    }

    fn mlockall(&mut self, flags: i32) -> SysResult {
        let known = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
        if flags & !known != 0 || flags & !libc::MCL_ONFAULT == 0 {
            return Err(Errno::EINVAL.into());
        }
        self.lock_all(
            flags & libc::MCL_CURRENT != 0,
            flags & libc::MCL_FUTURE != 0,
        )
    }

    fn lock_all(&mut self, current: bool, future: bool) -> SysResult {
        let mm = self.process().mm.clone();
        let mut mm = lock(&mm);
        mm.locks_all = future;
        if current || !future {
            mm.set_all_locked(current);
        }
        Ok(0)
    }

    fn msync(&mut self, start: u64, len: u64, flags: i32) -> SysResult {
        const ALL: i32 = libc::MS_ASYNC | libc::MS_INVALIDATE | libc::MS_SYNC;
        let both = libc::MS_ASYNC | libc::MS_SYNC;
        if flags & !ALL != 0 || flags & both == both || !start.is_multiple_of(PAGE) {
            return Err(Errno::EINVAL.into());
        }
        let end = start.checked_add(whole_pages(len)).ok_or(Errno::ENOMEM)?;
        let mm = self.process().mm.clone();
        lock(&mm).sync(start, end, flags)?;
        Ok(0)
    }

    fn brk(&mut self, to: u64) -> SysResult {
        let mm = self.process().mm.clone();
        Ok(lock(&mm).set_brk(self.cpu, to))
    }
}

/// A length in whole pages; one that wraps around is none, as it is for Linux's PAGE_ALIGN.
fn whole_pages(len: u64) -> u64 {
    len.checked_next_multiple_of(PAGE).unwrap_or(0)
}

/// MADV_REMOVE: a hole in the file behind an area.
fn remove(mm: &AddressSpace, start: u64, area: &Area) -> Result<(), Errno> {
    let Backing::File { inode, offset, .. } = &area.backing else {
        return Err(Errno::EINVAL);
    };
    if area.traits.locked {
        return Err(Errno::EINVAL);
    }
    if !area.shared || area.prot & libc::PROT_WRITE == 0 {
        return Err(Errno::EACCES);
    }
    let bytes = inode.size().saturating_sub(*offset).min(area.end - start);
    let zeros = [0; PAGE as usize];
    for at in (0..bytes).step_by(PAGE as usize) {
        let frame = inode.frame((offset + at) / PAGE)?;
        mm.memory
            .write(frame, &zeros[..(bytes - at).min(PAGE) as usize]);
    }
    Ok(())
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
