//! Memory regions and windows.

use super::{Control, Errno, Reply, errno};
use crate::{
    Access, Hca, Host, Memory,
    key::{self, FREE, Key, key_number},
    memory::KEYS_MAX,
};

impl Control {
    /// The entry of a key that is this process's own and of this kind.
    fn own<'m>(
        &self,
        memory: &'m Memory,
        process: u32,
        number: u32,
        windows: bool,
    ) -> Result<&'m Key, Errno> {
        let entry = memory.key(key::place(number)).ok_or(errno::EINVAL)?;
        let is_window = matches!(entry.kind.get(), key::WINDOW_1 | key::WINDOW_2);
        // A window's tag is its user's to change: its place names it here.
        let named = entry.kind.get() != FREE
            && self.keys.used.contains(&key::place(number))
            && (windows || entry.tag.get() & 0xff == number & 0xff);
        if named && is_window == windows && entry.process.get() == process {
            Ok(entry)
        } else {
            Err(errno::EINVAL)
        }
    }

    fn new_key<'m>(
        &mut self,
        memory: &'m Memory,
        process: u32,
        pd: u32,
    ) -> Result<(u32, &'m Key), Errno> {
        let hca = self.pd(process, pd)?.hca;
        let (place, generation) = self.keys.take(KEYS_MAX).ok_or(errno::ENOMEM)?;
        let entry = memory.key(place).ok_or(errno::ENOMEM)?;
        self.pd(process, pd)?.users += 1;
        entry.hca.set(hca);
        entry.pd.set(pd);
        entry.process.set(process);
        entry.tag.set(generation & 0xff);
        for word in [
            &entry.access,
            &entry.pooled,
            &entry.region,
            &entry.qp,
            &entry.windows,
        ] {
            word.set(0);
        }
        for word in [&entry.start, &entry.length, &entry.address] {
            word.set(0);
        }
        Ok((place, entry))
    }

    fn give_key(&mut self, memory: &Memory, place: u32) {
        if let Some(entry) = memory.key(place) {
            entry.kind.release(FREE);
            self.leave_pd(entry.pd.get());
        }
        self.keys.give(place);
    }

    pub(super) fn register(
        &mut self,
        memory: &Memory,
        process: u32,
        pd: u32,
        (start, address, length): (u64, u64, u64),
        access: u32,
        pooled: bool,
    ) -> Result<Reply, Errno> {
        check_access(access)?;
        let (place, entry) = self.new_key(memory, process, pd)?;
        entry.access.set(access);
        let zero_based = access & Access::ZERO_BASED.bits() != 0;
        entry.start.set(if zero_based { 0 } else { start });
        entry.length.set(length);
        entry.address.set(address);
        entry.pooled.set(pooled.into());
        entry.kind.release(key::REGION);
        Ok(Reply::Made(key_number(place, entry.tag.get())))
    }

    pub(super) fn null_region(
        &mut self,
        memory: &Memory,
        process: u32,
        pd: u32,
    ) -> Result<Reply, Errno> {
        let (place, entry) = self.new_key(memory, process, pd)?;
        entry.access.set(Access::LOCAL_WRITE.bits());
        entry.kind.release(key::NULL_REGION);
        Ok(Reply::Made(key_number(place, entry.tag.get())))
    }

    pub(super) fn reregister(
        &mut self,
        memory: &Memory,
        process: u32,
        number: u32,
        pd: Option<u32>,
        access: Option<u32>,
        range: Option<(u64, u64, bool)>,
    ) -> Result<Reply, Errno> {
        let entry = self.own(memory, process, number, false)?;
        if entry.windows.get() > 0 {
            return Err(errno::EBUSY);
        }
        if let Some(access) = access {
            check_access(access)?;
        }
        if let Some(pd) = pd {
            let hca = entry.hca.get();
            let new = self.pd(process, pd)?;
            if new.hca != hca {
                return Err(errno::EINVAL);
            }
            new.users += 1;
            self.leave_pd(entry.pd.get());
            entry.pd.set(pd);
        }
        if let Some(access) = access {
            entry.access.set(access);
        }
        if let Some((address, length, pooled)) = range {
            let zero_based = entry.access.get() & Access::ZERO_BASED.bits() != 0;
            entry.start.set(if zero_based { 0 } else { address });
            entry.address.set(address);
            entry.length.set(length);
            entry.pooled.set(pooled.into());
        }
        Ok(Reply::Done)
    }

    pub(super) fn deregister(
        &mut self,
        memory: &Memory,
        process: u32,
        number: u32,
    ) -> Result<Reply, Errno> {
        if self.own(memory, process, number, false)?.windows.get() > 0 {
            return Err(errno::EBUSY);
        }
        self.give_key(memory, key::place(number));
        Ok(Reply::Done)
    }

    pub(super) fn alloc_window(
        &mut self,
        memory: &Memory,
        process: u32,
        pd: u32,
        kind: u32,
    ) -> Result<Reply, Errno> {
        let kind = match kind {
            1 => key::WINDOW_1,
            2 => key::WINDOW_2,
            _ => return Err(errno::EINVAL),
        };
        let (place, entry) = self.new_key(memory, process, pd)?;
        entry.kind.release(kind);
        Ok(Reply::Made(key_number(place, entry.tag.get())))
    }

    pub(super) fn free_window<H: Host>(
        &mut self,
        hca: &Hca<'_, H>,
        process: u32,
        number: u32,
    ) -> Result<Reply, Errno> {
        hca.unbind(self.own(hca.memory, process, number, true)?);
        self.give_key(hca.memory, key::place(number));
        Ok(Reply::Done)
    }

    /// Takes a key away whose owner is gone.
    pub(super) fn drop_key<H: Host>(&mut self, hca: &Hca<'_, H>, place: u32) {
        if let Some(entry) = hca.memory.key(place)
            && matches!(entry.kind.get(), key::WINDOW_1 | key::WINDOW_2)
        {
            hca.unbind(entry);
        }
        self.give_key(hca.memory, place);
    }
}

/// Peers may not write where the owner may not (ibv_reg_mr(3)).
fn check_access(access: u32) -> Result<(), Errno> {
    /// Optional bits may be ignored (`IBV_ACCESS_OPTIONAL_RANGE`).
    const OPTIONAL: u32 = 0x3ff0_0000;
    /// Huge pages are as good as any.
    const HUGE: u32 = 1 << 7;
    let access = access & !OPTIONAL & !HUGE;
    let known = Access::from_bits(access).ok_or(errno::EINVAL)?;
    let writes = known.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if writes && !known.contains(Access::LOCAL_WRITE) {
        return Err(errno::EINVAL);
    }
    Ok(())
}
