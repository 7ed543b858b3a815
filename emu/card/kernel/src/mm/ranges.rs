//! Calls that change a range of addresses, area by area: mprotect(2), mremap(2), mlock(2), madvise(2),
//! msync(2). What they meet before the first hole they change, and then say that there is a hole, as
//! Linux does.

use snaprig_card_driver::errno::Errno;
use snaprig_card_memory::{PAGE, USER_END};
use snaprig_card_platform::Cpu;

use super::{AddressSpace, Area, Backing, Fault, USER_START};

/// What mremap(2) is asked for. Lengths are in whole pages.
pub struct Remap {
    /// Where the range is.
    pub old: u64,
    /// Its length; 0 makes another mapping of shared memory.
    pub old_len: u64,
    /// The length that it is to have.
    pub new_len: u64,
    /// It may be elsewhere afterwards.
    pub may_move: bool,
    /// Where it is to be, over whatever is there.
    pub to: Option<u64>,
    /// The old range stays, empty (MREMAP_DONTUNMAP); the new one is here, if there is room.
    pub keeps_old: Option<u64>,
}

impl AddressSpace {
    /// Shows the areas in `start..end`, split where they reach beyond it, up to the first hole; whether
    /// there is one.
    fn each_area(
        &mut self,
        start: u64,
        end: u64,
        mut change: impl FnMut(&Self, u64, &mut Area) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut at = start;
        while at < end {
            self.split(at);
            self.split(end);
            let mut area = self.areas.get(&at).ok_or(Errno::ENOMEM)?.clone();
            change(self, at, &mut area)?;
            let next = area.end;
            self.areas.insert(at, area);
            at = next;
        }
        Ok(())
    }

    /// mprotect(2).
    pub fn protect(
        &mut self,
        cpu: &mut dyn Cpu,
        start: u64,
        end: u64,
        prot: i32,
    ) -> Result<(), Errno> {
        let mut taken_away = false;
        let result = self.each_area(start, end, |mm, at, area| {
            let is_device = matches!(area.backing, Backing::Device { .. });
            if prot & libc::PROT_WRITE != 0 && area.traits.read_only
                || prot & libc::PROT_EXEC != 0 && is_device
            {
                return Err(Errno::EACCES);
            }
            let before = area.access();
            area.prot = prot;
            let now = area.access();
            if now != before {
                taken_away |= now.none && !before.none
                    || before.write && !now.write
                    || before.execute && !now.execute;
                mm.tables.protect(at, area.end, now);
            }
            Ok(())
        });
        if taken_away {
            self.flush(Some(cpu), start, end);
        }
        result
    }

    /// mlock(2) and munlock(2): nothing is ever swapped, so all that a lock does is to be told.
    pub fn set_locked(&mut self, start: u64, end: u64, locked: bool) -> Result<(), Errno> {
        let mut untouchable = false;
        self.each_area(start, end, |_, _, area| {
            area.traits.locked = locked;
            untouchable |= area.access().none;
            Ok(())
        })?;
        // What cannot be touched cannot be brought in (mlock(2), ENOMEM).
        match locked && untouchable {
            true => Err(Errno::ENOMEM),
            false => Ok(()),
        }
    }

    /// mlockall(2) and munlockall(2).
    pub fn set_all_locked(&mut self, locked: bool) {
        for area in self.areas.values_mut() {
            area.traits.locked = locked;
        }
    }

    /// madvise(2): `advise` for each area in a range; ENOMEM if there are holes, which does not keep it
    /// from the areas behind them.
    pub fn advise(
        &mut self,
        start: u64,
        end: u64,
        mut advise: impl FnMut(&mut Self, u64, &mut Area) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (mut at, mut holes) = (start, false);
        while at < end {
            self.split(at);
            self.split(end);
            let Some((&found, area)) = self.areas.range(at..end).next() else {
                return Err(Errno::ENOMEM);
            };
            holes |= found > at;
            let mut area = area.clone();
            let next = area.end;
            advise(self, found, &mut area)?;
            self.areas.insert(found, area);
            at = next;
        }
        match holes {
            true => Err(Errno::ENOMEM),
            false => Ok(()),
        }
    }

    /// msync(2): files are in memory, so there is nothing to write. Whether there are holes, or pages
    /// that are to be invalidated but are locked.
    pub fn sync(&self, start: u64, end: u64, flags: i32) -> Result<(), Errno> {
        let (mut at, mut holes) = (start, false);
        for (found, area) in self.overlapping(start, end) {
            if found > at {
                holes = true;
                if flags == libc::MS_ASYNC {
                    return Err(Errno::ENOMEM);
                }
            }
            if flags & libc::MS_INVALIDATE != 0 && area.traits.locked {
                return Err(Errno::EBUSY);
            }
            at = area.end;
        }
        match holes || at < end {
            true => Err(Errno::ENOMEM),
            false => Ok(()),
        }
    }

    /// mremap(2), by moving the pages' frames.
    pub fn remap(&mut self, cpu: &mut dyn Cpu, ask: &Remap) -> Result<u64, Errno> {
        let Remap {
            old,
            old_len,
            new_len,
            ..
        } = *ask;
        let (start, area) = self.area(old).ok_or(Errno::EFAULT)?;
        if old_len == 0 && !area.shared {
            return Err(Errno::EINVAL);
        }
        let (rule, area_end) = (area.advanced(old - start), area.end);
        if ask.to.is_none() && ask.keeps_old.is_none() && new_len <= old_len {
            self.cut(cpu, ask)?;
            return Ok(old);
        }
        if old_len.min(new_len) > area_end - old {
            return Err(Errno::EFAULT);
        }
        if old_len > area_end - old && new_len > old_len {
            return Err(Errno::EFAULT);
        }
        // VM_DONTEXPAND.
        if matches!(rule.backing, Backing::Device { .. }) && new_len > old_len {
            return Err(Errno::EFAULT);
        }
        if let Backing::File { offset, .. } = &rule.backing
            && offset.checked_add(new_len).is_none()
        {
            return Err(Errno::EINVAL);
        }
        if let Some(to) = ask.to {
            return self.remap_to(cpu, ask, rule, to);
        }
        let grows_in_place = ask.keeps_old.is_none()
            && old_len > 0
            && area_end == old + old_len
            && self.is_free(old + old_len, old + new_len);
        if grows_in_place {
            let more = Area {
                end: old + new_len,
                ..rule.advanced(old_len)
            };
            self.insert(old + old_len, more);
            return Ok(old);
        }
        if !ask.may_move {
            return Err(Errno::ENOMEM);
        }
        let hint = ask.keeps_old.filter(|at| self.is_free(*at, at + new_len));
        let new = match hint {
            Some(at) => at,
            None => self.find(new_len)?,
        };
        self.move_pages(cpu, ask, rule, new)
    }

    /// Takes away what the old range has and the new one does not.
    fn cut(&mut self, cpu: &mut dyn Cpu, ask: &Remap) -> Result<(), Errno> {
        if ask.old_len > USER_END - ask.old {
            return Err(Errno::EINVAL);
        }
        match ask.new_len < ask.old_len {
            true => self.unmap(cpu, ask.old + ask.new_len, ask.old + ask.old_len),
            false => Ok(()),
        }
    }

    /// With MREMAP_FIXED: over whatever was there. The ranges are apart.
    fn remap_to(
        &mut self,
        cpu: &mut dyn Cpu,
        ask: &Remap,
        rule: Area,
        to: u64,
    ) -> Result<u64, Errno> {
        if to < USER_START {
            return Err(Errno::EPERM);
        }
        self.unmap(cpu, to, to + ask.new_len)?;
        self.cut(cpu, ask)?;
        self.move_pages(cpu, ask, rule, to)
    }

    fn move_pages(
        &mut self,
        cpu: &mut dyn Cpu,
        ask: &Remap,
        rule: Area,
        new: u64,
    ) -> Result<u64, Errno> {
        let (old, len) = (ask.old, ask.old_len.min(ask.new_len));
        let end = new + ask.new_len;
        if end > USER_END {
            return Err(Errno::ENOMEM);
        }
        self.insert(new, Area { end, ..rule });
        for (va, frame, access) in self.tables.mapped(old, old + len) {
            self.memory.get(frame);
            self.enter(new + (va - old), frame, access)?;
        }
        match (ask.keeps_old, len) {
            (_, 0) => {}
            (Some(_), _) => self.release(cpu, old, old + len),
            (None, _) => self.unmap(cpu, old, old + len)?,
        }
        Ok(new)
    }

    /// Brings in all of a range, as reads or as writes would (MAP_POPULATE, MADV_POPULATE_READ).
    pub fn populate(&self, start: u64, end: u64, write: bool) -> Result<(), Fault> {
        for page in (start..end).step_by(PAGE as usize) {
            let there = self.tables.get(page);
            let is_there = there.is_some_and(|(_, access)| access.allows(write, false));
            if !is_there || write && self.is_copied(page) {
                self.fault(page, write, false)?;
            }
        }
        Ok(())
    }
}
