//! Completion queues.
//!
//! Whoever completes a request, in whatever process, takes the queue's lock, writes the entry, and
//! publishes it with its last word: the mark of this entry of this queue, which was never there
//! before. The owner alone consumes. A queue that is armed notifies its channel once, after the
//! entry is published.
//!
//! What must stay true: a queue that stays armed has no entry that it is to notify of, whenever that was made. The
//! specification promises less, only what is made after the arming (InfiniBand Architecture 1, 11.4.2.2), but vendors' HCAs
//! notify of what waits, too (Linux, ed23a72778f3), and there are programs that poll, arm and then sleep. What it has notified of
//! and nobody has looked for since is not told of again: others arm first and then poll once, and take an event for an entry
//! (perftest's `ib_send_lat -e`).

use crate::{
    Hca, Host,
    cell::{Line, U32, U64, announce},
    lock::Lock,
    queue::count_from,
    types::{Event, State, Status},
};

/// Words of an entry.
pub const ENTRY_WORDS: usize = 8;
/// The word that says that it is there.
const MARK: usize = 7;

/// Not armed.
pub const IDLE: u32 = 0;
/// Armed for solicited and failed completions (ibv_req_notify_cq(3)).
pub const SOLICITED: u32 = 1;
/// Armed for any.
pub const ANY: u32 = 2;

/// A completion queue. Its owner polls the entry that comes next, and no word that others write
/// besides.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Cq {
    /// 1 if it is in use.
    pub used: U32,
    /// Owner's slot in the table of processes.
    pub process: U32,
    /// HCA.
    pub hca: U32,
    /// Completion channel + 1; 0: none.
    pub channel: U32,
    /// Entries, a power of two.
    pub slots: U32,
    /// How many of them may be used.
    pub limit: U32,
    /// Where they are in device memory.
    pub at: U64,
    /// Tells its entries from whatever was in the same place before: no two queues have the same.
    pub serial: U32,
    /// 1 if its entries say when they were made.
    pub stamps: U32,
    /// 1 after an overflow: it takes no more entries.
    pub failed: U32,
    /// For those who make entries.
    pub makers: Line,
    /// How many entries were ever made.
    pub produced: U32,
    /// How many are known to be taken.
    pub seen: U32,
    /// Held while an entry is made.
    pub lock: Lock,
    /// [`IDLE`], [`SOLICITED`] or [`ANY`].
    pub armed: U32,
    /// How many entries there were when it notified last.
    pub told: U32,
    /// How many had been taken then.
    pub told_at: U32,
    /// For who takes them.
    pub taker: Line,
    /// How many entries were ever taken.
    pub consumed: U32,
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// See [`crate::types::completed`].
    pub opcode: u32,
    /// The model's own number of the error.
    pub vendor_error: u32,
    /// Bytes received, or fetched.
    pub length: u32,
    /// Immediate data in network order, or the key that was invalidated.
    pub immediate: u32,
    /// The queue pair's number.
    pub qp_number: u32,
    /// The sender's number, of a datagram.
    pub source_qp: u32,
    /// See [`crate::types::completion_flags`].
    pub flags: u32,
    /// Which P_Key it came with.
    pub pkey_index: u16,
    /// The sender's LID.
    pub source_lid: u16,
    /// Service level.
    pub service_level: u8,
    /// Low bits of the LID it was sent to.
    pub path_bits: u8,
    /// The queue pair's place in the table.
    pub qp: u32,
    /// How far the work queue's slots are free once this is taken; the top bit: a receive queue's.
    pub frees: u32,
    /// The sender asked for an event.
    pub solicited: bool,
    /// Time of completion, in nanoseconds; 0 if its queue does not want to know.
    pub time_ns: u64,
}

/// In `frees`: it is a receive queue's count.
pub const FREES_RECEIVE: u32 = 1 << 31;
/// In the word of the flags, above all of them: the sender asked for an event.
const FLAGS_SOLICITED: u32 = 1 << 15;

#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[inline]
fn split(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Completion {
    #[inline]
    fn words(&self) -> [u64; ENTRY_WORDS] {
        let ids = u32::from(self.pkey_index) | u32::from(self.source_lid) << 16;
        let small = u32::from(self.service_level) | u32::from(self.path_bits) << 8;
        let solicited = u32::from(self.solicited) * FLAGS_SOLICITED;
        [
            self.wr_id,
            pair(self.status as u32 | self.opcode << 16, self.vendor_error),
            pair(self.length, self.immediate),
            pair(self.qp_number, self.source_qp),
            pair(self.flags | solicited | small << 16, ids),
            pair(self.qp, self.frees),
            self.time_ns,
            0, // The mark.
        ]
    }

    #[inline]
    fn load(entry: &[U64]) -> Self {
        let mut words = [0; ENTRY_WORDS];
        for (value, word) in words.iter_mut().zip(entry) {
            *value = word.get();
        }
        let (kind, vendor_error) = split(words[1]);
        let (length, immediate) = split(words[2]);
        let (qp_number, source_qp) = split(words[3]);
        let (flags, ids) = split(words[4]);
        let (qp, frees) = split(words[5]);
        Self {
            wr_id: words[0],
            status: Status::from_number(kind & 0xffff).unwrap_or(Status::LocalOperation),
            opcode: kind >> 16,
            vendor_error,
            length,
            immediate,
            qp_number,
            source_qp,
            flags: flags & (FLAGS_SOLICITED - 1),
            solicited: flags & FLAGS_SOLICITED != 0,
            pkey_index: ids as u16,
            source_lid: (ids >> 16) as u16,
            service_level: (flags >> 16) as u8,
            path_bits: (flags >> 24) as u8,
            qp,
            frees,
            time_ns: words[6],
        }
    }

    /// Whether it notifies a queue that is armed so.
    fn notifies(&self, armed: u32) -> bool {
        let counts_as_solicited = self.solicited || self.status != Status::Success;
        armed == ANY || armed == SOLICITED && counts_as_solicited
    }
}

impl Cq {
    /// Whether one more than `produced` entries have room, by who makes entries: looks at the
    /// taker's line only when it must.
    #[inline]
    fn has_room(&self, produced: u32) -> bool {
        let fits = |taken: u32| produced.wrapping_sub(taken) < self.limit.get();
        if fits(self.seen.get()) {
            return true;
        }
        self.seen.set(self.consumed.acquire());
        fits(self.seen.get())
    }

    /// The last word of an entry that was made as number `count`.
    #[inline]
    fn mark(&self, count: u32) -> u64 {
        pair(count, self.serial.get())
    }
}

impl<'m, H: Host> Hca<'m, H> {
    /// Arms a queue: what completes from now on notifies, or what waits to be taken.
    pub fn request_notification(&self, cq_index: u32, solicited_only: bool) {
        let Some(cq) = self.memory.cq(cq_index) else {
            return;
        };
        let wanted = if solicited_only { SOLICITED } else { ANY };
        // Never less than was asked for before: ibv_req_notify_cq(3).
        if cq.armed.get() < wanted {
            cq.armed.swap(wanted);
        }
        announce();
        let armed = cq.armed.look();
        let (told, consumed) = (cq.told.get(), cq.consumed.get());
        let is_told = consumed == cq.told_at.get();
        let news = |count: u32, entry: &Completion| {
            entry.notifies(armed) && (!is_told || count.wrapping_sub(told) as i32 >= 0)
        };
        if let Some(count) = self.waiting(cq, news) {
            self.tell(cq_index, cq, armed, count);
        }
    }

    /// Notifies of an entry, unless somebody else does.
    fn tell(&self, cq_index: u32, cq: &Cq, armed: u32, count: u32) {
        if cq.armed.replace(armed, IDLE) {
            cq.told.set(count.wrapping_add(1));
            cq.told_at.set(cq.consumed.get());
            self.host.notify(cq_index);
        }
    }

    /// Adds an entry. False if it is lost, and with it the queue pair.
    pub(crate) fn complete(&self, cq_index: u32, completion: &Completion) -> bool {
        let Some(cq) = self.memory.cq(cq_index) else {
            return false;
        };
        let held = self.hold_whole(&cq.lock);
        let produced = self.count(cq);
        let room = cq.failed.get() == 0 && cq.has_room(produced);
        let (Some(entry), true) = (cq_entry(self.memory, cq, produced), room) else {
            drop(held);
            self.overflow(cq_index, cq, completion.qp);
            return false;
        };
        for (word, value) in entry[..MARK].iter().zip(completion.words()) {
            word.set(value);
        }
        entry[MARK].announce(cq.mark(produced));
        let armed = cq.armed.look();
        cq.produced.set(produced.wrapping_add(1));
        drop(held);
        if completion.notifies(armed) {
            self.tell(cq_index, cq, armed, produced);
        }
        true
    }

    /// What an entry of this queue is to say of the time. Asked before anything is changed: who makes
    /// an entry makes it without a pause.
    pub(crate) fn stamp(&self, cq_index: u32) -> u64 {
        let wanted = self
            .memory
            .cq(cq_index)
            .is_some_and(|cq| cq.stamps.get() != 0);
        if wanted { self.host.now_ns() } else { 0 }
    }

    /// An entry was lost: the queue takes no more, and who completes to it fails (InfiniBand
    /// Architecture 1, 11.6.3.1 and 11.6.3.3; ibv_get_async_event(3)).
    fn overflow(&self, cq_index: u32, cq: &Cq, qp_index: u32) {
        if cq.failed.swap(1) == 0 {
            self.host.event(Event::CqError, cq_index);
        }
        if let Some(qp) = self.memory.qp(qp_index)
            && qp.state() != State::Error
        {
            self.fail(qp_index, qp, State::Error);
            self.host.event(Event::QpFatal, qp_index);
        }
    }

    /// Takes every entry of a queue pair out that was reset or destroyed: they are about requests
    /// that are no more. The owner's threads must not poll meanwhile.
    pub fn clean(&self, cq: &Cq, qp_number: u32) {
        let _held = self.hold_whole(&cq.lock);
        let (consumed, produced) = (cq.consumed.get(), self.count(cq));
        let mut kept = consumed;
        for index in 0..produced.wrapping_sub(consumed).min(cq.slots.get()) {
            let from = cq_entry(self.memory, cq, consumed.wrapping_add(index));
            let to = cq_entry(self.memory, cq, kept);
            let (Some(from), Some(to)) = (from, to) else {
                return;
            };
            // Taken away, it is not to be taken for the one that will be made in its place.
            from[MARK].set(0);
            if Completion::load(from).qp_number == qp_number {
                continue;
            }
            for (to, from) in to[..MARK].iter().zip(from) {
                to.set(from.get());
            }
            to[MARK].release(cq.mark(kept));
            kept = kept.wrapping_add(1);
        }
        cq.produced.release(kept);
        cq.told.set(consumed);
    }

    /// The entry with number `count`, if it is there.
    #[inline]
    fn made_entry(&self, cq: &Cq, count: u32) -> Option<&'m [U64]> {
        let entry = cq_entry(self.memory, cq, count)?;
        (entry[MARK].acquire() == cq.mark(count)).then_some(entry)
    }

    /// How many entries were ever made, for who holds the lock.
    #[inline]
    pub(crate) fn count(&self, cq: &Cq) -> u32 {
        let produced = cq.produced.get();
        // Who died when it had published an entry did not count it.
        let more = self.made_entry(cq, produced).is_some();
        produced.wrapping_add(more.into())
    }

    /// An entry will be made soon.
    #[inline]
    pub(crate) fn want_entry(&self, cq_index: u32) {
        let cq = self.memory.cq(cq_index);
        let entry = cq.and_then(|cq| cq_entry(self.memory, cq, cq.produced.get()));
        if let Some(entry) = entry {
            entry[MARK].want();
        }
    }

    /// Whether there is an entry to be taken.
    #[inline]
    pub fn has_completion(&self, cq: &Cq) -> bool {
        self.made_entry(cq, cq.consumed.get()).is_some()
    }

    /// Whether such an entry waits to be taken.
    pub(crate) fn has_waiting(&self, cq: &Cq, is: impl Fn(&Completion) -> bool) -> bool {
        self.waiting(cq, |_, entry| is(entry)).is_some()
    }

    /// The number of the last such entry that waits to be taken.
    fn waiting(&self, cq: &Cq, is: impl Fn(u32, &Completion) -> bool) -> Option<u32> {
        let _held = self.hold_whole(&cq.lock);
        let consumed = cq.consumed.acquire();
        let counts = (0..cq.slots.get()).map(|place| consumed.wrapping_add(place));
        counts
            .map_while(|count| Some((count, self.made_entry(cq, count)?)))
            .filter(|(count, entry)| is(*count, &Completion::load(entry)))
            .map(|(count, _)| count)
            .last()
    }

    /// Tells the channel of a queue that has entries, whoever should have told.
    pub fn tell_again(&self, cq_index: u32, cq: &Cq) {
        if self.has_completion(cq) {
            cq.armed.swap(IDLE);
            self.host.notify(cq_index);
        }
    }

    /// Takes an entry. The owner's threads must not do this at once.
    pub fn poll(&self, cq: &Cq) -> Option<Completion> {
        let consumed = cq.consumed.get();
        let entry = self.made_entry(cq, consumed)?;
        let completion = Completion::load(entry);
        if let Some(qp) = self.memory.qp(completion.qp)
            && qp.number.get() == completion.qp_number
        {
            let queue = if completion.frees & FREES_RECEIVE != 0 {
                &qp.rq
            } else {
                &qp.sq
            };
            // Not if the queue pair was reset since.
            let (frees, freed) = (completion.frees & !FREES_RECEIVE, queue.freed.get());
            if count_from(frees, freed) <= count_from(queue.posted.get(), freed) {
                queue.freed.release(frees);
            }
        }
        // Last: before that, the entry tells what is complete, and then `freed` does.
        cq.consumed.release(consumed.wrapping_add(1));
        Some(completion)
    }
}

#[inline]
fn cq_entry<'m>(memory: &'m crate::Memory, cq: &Cq, index: u32) -> Option<&'m [U64]> {
    let slots = cq.slots.get();
    let slot = slots.is_power_of_two().then(|| index & (slots - 1))?;
    let at = cq
        .at
        .get()
        .checked_add(u64::from(slot) * 8 * ENTRY_WORDS as u64)?;
    memory.words(at, ENTRY_WORDS)
}
