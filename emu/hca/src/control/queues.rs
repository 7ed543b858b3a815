//! Completion queues and shared receive queues.

use super::{Control, Errno, Reply, Ring, errno};
use crate::{
    Hca, Host, Memory,
    cell::U64,
    cq::{Cq, ENTRY_WORDS},
    memory::{CQS_MAX, SRQS_MAX},
    queue::{Queue, count_add, places},
    srq::Srq,
};

impl Control {
    pub(super) fn own_cq<'m>(
        &self,
        memory: &'m Memory,
        process: u32,
        cq: u32,
    ) -> Result<&'m Cq, Errno> {
        let entry = memory.cq(cq).filter(|_| self.cqs.used.contains(&cq));
        let entry = entry.filter(|entry| entry.process.get() == process);
        entry.ok_or(errno::EINVAL)
    }

    pub(super) fn own_srq<'m>(
        &self,
        memory: &'m Memory,
        process: u32,
        srq: u32,
    ) -> Result<&'m Srq, Errno> {
        let entry = memory.srq(srq).filter(|_| self.srqs.used.contains(&srq));
        let entry = entry.filter(|entry| entry.process.get() == process);
        entry.ok_or(errno::EINVAL)
    }

    /// Takes room for a ring; what was there under this name is kept.
    pub(super) fn ring(&mut self, ring: Ring, bytes: u64) -> Result<u64, Errno> {
        let at = self.heap.take(bytes).ok_or(errno::ENOMEM)?;
        if let Some((old, bytes)) = self.rings.insert(ring, (at, bytes)) {
            self.heap.give(old, bytes);
        }
        Ok(at)
    }

    pub(super) fn free_ring(&mut self, ring: Ring) {
        if let Some((at, bytes)) = self.rings.remove(&ring) {
            self.heap.give(at, bytes);
        }
    }

    pub(super) fn create_cq(
        &mut self,
        memory: &Memory,
        process: u32,
        hca: u32,
        entries: u32,
        channel: Option<u32>,
        stamps: bool,
    ) -> Result<Reply, Errno> {
        let model = self.model(hca)?;
        if entries == 0 || entries > model.cq_entries {
            return Err(errno::EINVAL);
        }
        let (place, _) = self.cqs.take(CQS_MAX).ok_or(errno::ENOMEM)?;
        let slots = (entries + 1).next_power_of_two();
        let ring = self.ring(Ring::Cq(place), u64::from(slots) * 8 * ENTRY_WORDS as u64);
        let (Ok(at), Some(cq)) = (ring, memory.cq(place)) else {
            self.cqs.give(place);
            return Err(errno::ENOMEM);
        };
        cq.process.set(process);
        cq.hca.set(hca);
        cq.channel.set(channel.map_or(0, |channel| channel + 1));
        cq.slots.set(slots);
        cq.limit.set(slots - 1);
        cq.at.set(at);
        let counts = [&cq.produced, &cq.seen, &cq.consumed, &cq.told, &cq.told_at];
        for word in counts.into_iter().chain([&cq.armed, &cq.failed]) {
            word.set(0);
        }
        self.cq_serial = self.cq_serial.wrapping_add(1).max(1);
        cq.serial.set(self.cq_serial);
        cq.stamps.set(stamps.into());
        cq.used.release(1);
        Ok(Reply::Queue(place, slots - 1))
    }

    pub(super) fn resize_cq<H: Host>(
        &mut self,
        hca: &Hca<'_, H>,
        process: u32,
        place: u32,
        entries: u32,
    ) -> Result<Reply, Errno> {
        let cq = self.own_cq(hca.memory, process, place)?;
        let model = self.model(cq.hca.get())?;
        if entries == 0 || entries > model.cq_entries {
            return Err(errno::EINVAL);
        }
        let slots = (entries + 1).next_power_of_two();
        let bytes = u64::from(slots) * 8 * ENTRY_WORDS as u64;
        let _held = hca.hold_whole(&cq.lock);
        let (from, to) = (cq.consumed.get(), hca.count(cq));
        let waiting = to.wrapping_sub(from);
        if waiting > entries {
            return Err(errno::EINVAL);
        }
        let at = self.heap.take(bytes).ok_or(errno::ENOMEM)?;
        let ring = |at, slots: u32| hca.memory.words(at, slots as usize * ENTRY_WORDS);
        let (Some(old), Some(new)) = (ring(cq.at.get(), cq.slots.get()), ring(at, slots)) else {
            self.heap.give(at, bytes);
            return Err(errno::ENOMEM);
        };
        let entry = |ring, slots: u32, count: u32| -> &[U64] {
            let at = (count & (slots - 1)) as usize * ENTRY_WORDS;
            let ring: &[U64] = ring;
            &ring[at..at + ENTRY_WORDS]
        };
        for offset in 0..waiting {
            let count = from.wrapping_add(offset);
            let old = entry(old, cq.slots.get(), count);
            for (to, from) in entry(new, slots, count).iter().zip(old) {
                to.set(from.get());
            }
        }
        if let Some((at, bytes)) = self.rings.insert(Ring::Cq(place), (at, bytes)) {
            self.heap.give(at, bytes);
        }
        cq.at.set(at);
        cq.slots.set(slots);
        cq.limit.set(slots - 1);
        Ok(Reply::Queue(place, slots - 1))
    }

    pub(super) fn destroy_cq(
        &mut self,
        memory: &Memory,
        process: u32,
        place: u32,
    ) -> Result<Reply, Errno> {
        let cq = self.own_cq(memory, process, place)?;
        if self.cq_users.get(&place).is_some_and(|users| *users > 0) {
            return Err(errno::EBUSY);
        }
        cq.used.release(0);
        self.free_ring(Ring::Cq(place));
        self.cqs.give(place);
        Ok(Reply::Done)
    }

    pub(super) fn create_srq(
        &mut self,
        memory: &Memory,
        process: u32,
        pd: u32,
        (slots, sges, limit): (u32, u32, u32),
        xrc: Option<(u32, u32)>,
    ) -> Result<Reply, Errno> {
        let hca = self.pd(process, pd)?.hca;
        let model = *self.model(hca)?;
        if slots == 0 || slots > model.srq_slots || sges > model.sges || limit > slots {
            return Err(errno::EINVAL);
        }
        if let Some((domain, cq)) = xrc {
            self.own_cq(memory, process, cq)?;
            self.xrcd(process, domain)?;
        }
        let (place, _) = self.srqs.take(SRQS_MAX).ok_or(errno::ENOMEM)?;
        // Not one more than was asked for: UCX posts all that it gets, and has as many entries for completions as it asked for.
        let bytes = u64::from(places(slots)) * 8 * Queue::receive_words(sges) as u64;
        let ring = self.ring(Ring::Srq(place), bytes);
        let (Ok(at), Some(srq)) = (ring, memory.srq(place)) else {
            self.srqs.give(place);
            return Err(errno::ENOMEM);
        };
        self.pd(process, pd)?.users += 1;
        if let Some((domain, cq)) = xrc {
            self.xrcd(process, domain)?.users += 1;
            *self.cq_users.entry(cq).or_default() += 1;
        }
        srq.process.set(process);
        srq.hca.set(hca);
        srq.pd.set(pd);
        reset_queue(&srq.queue);
        srq.queue.at.set(at);
        srq.queue.slots.set(slots);
        srq.queue.sges.set(sges);
        srq.limit.set(limit);
        srq.xrc_domain.set(xrc.map_or(0, |(domain, _)| domain + 1));
        srq.cq.set(xrc.map_or(0, |(_, cq)| cq));
        srq.used.release(1);
        Ok(Reply::Queue(place, slots))
    }

    pub(super) fn modify_srq<H: Host>(
        &mut self,
        hca: &Hca<'_, H>,
        process: u32,
        place: u32,
        slots: Option<u32>,
        limit: Option<u32>,
    ) -> Result<Reply, Errno> {
        let srq = self.own_srq(hca.memory, process, place)?;
        // So that nobody posts to it, or takes from it.
        let _held = (
            hca.hold_whole(&srq.post_lock),
            hca.hold_lock(&srq.take_lock),
        );
        let model = self.model(srq.hca.get())?;
        let new_slots = match slots {
            None => srq.queue.size(),
            Some(slots) if (1..=model.srq_slots).contains(&slots) => slots,
            Some(_) => return Err(errno::EINVAL),
        };
        if limit.unwrap_or(srq.limit.get()) > new_slots {
            return Err(errno::EINVAL);
        }
        if slots.is_some() {
            self.resize_srq(hca.memory, place, srq, new_slots)?;
        }
        if let Some(limit) = limit {
            srq.limit.set(limit);
        }
        Ok(Reply::Done)
    }

    /// Gives a shared queue, whose locks the caller holds, another ring with the same receives.
    fn resize_srq(
        &mut self,
        memory: &Memory,
        place: u32,
        srq: &Srq,
        slots: u32,
    ) -> Result<(), Errno> {
        let old = &srq.queue;
        let (taken, waiting) = (old.taken.get(), old.waiting());
        if waiting > slots {
            return Err(errno::EINVAL);
        }
        let words = Queue::receive_words(old.sges.get());
        let bytes = u64::from(places(slots)) * 8 * words as u64;
        let at = self.heap.take(bytes).ok_or(errno::ENOMEM)?;
        let new = Queue::default();
        new.at.set(at);
        new.slots.set(slots);
        new.sges.set(old.sges.get());
        for receive in (0..waiting).map(|offset| count_add(taken, offset)) {
            let from = old.receive_slot(memory, receive);
            let to = new.receive_slot(memory, receive);
            let (Some(from), Some(to)) = (from, to) else {
                self.heap.give(at, bytes);
                return Err(errno::EINVAL);
            };
            for (to, from) in to.iter().zip(from) {
                to.set(from.get());
            }
        }
        old.at.set(at);
        old.slots.set(slots);
        if let Some((at, bytes)) = self.rings.insert(Ring::Srq(place), (at, bytes)) {
            self.heap.give(at, bytes);
        }
        Ok(())
    }

    /// Receives were posted to a shared queue: those who wait for one go on.
    pub fn receives_shared<H: Host>(&self, hca: &Hca<'_, H>, place: u32) {
        let Some(srq) = hca.memory.srq(place).filter(|srq| srq.used.get() != 0) else {
            return;
        };
        for qp in self.qps.used.iter().filter_map(|qp| hca.memory.qp(*qp)) {
            let in_domain = qp.srq.get() == 0
                && srq.xrc_domain.get() != 0
                && qp.xrc_domain.get() == srq.xrc_domain.get();
            if qp.srq.get() == place + 1 || in_domain {
                hca.receive_posted(qp);
            }
        }
    }

    pub(super) fn destroy_srq(
        &mut self,
        memory: &Memory,
        process: u32,
        place: u32,
    ) -> Result<Reply, Errno> {
        let srq = self.own_srq(memory, process, place)?;
        if self.srq_users.get(&place).is_some_and(|users| *users > 0) {
            return Err(errno::EBUSY);
        }
        srq.used.release(0);
        if let Some(domain) = srq.xrc_domain.get().checked_sub(1) {
            self.leave_xrcd(domain);
            leave(&mut self.cq_users, srq.cq.get());
        }
        self.leave_pd(srq.pd.get());
        self.free_ring(Ring::Srq(place));
        self.srqs.give(place);
        Ok(Reply::Done)
    }
}

/// One user less.
pub(super) fn leave(users: &mut std::collections::BTreeMap<u32, u32>, place: u32) {
    if let Some(count) = users.get_mut(&place) {
        *count = count.saturating_sub(1);
    }
}

/// Empties a queue.
pub(super) fn reset_queue(queue: &Queue) {
    let Queue {
        posted,
        freed,
        starved,
        taken,
        seen,
        ..
    } = queue;
    for word in [posted, freed, starved, taken, seen] {
        word.set(0);
    }
}
