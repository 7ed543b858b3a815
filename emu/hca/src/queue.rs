//! Work queues: rings of requests in device memory.
//!
//! ```text
//! freed <= taken <= posted      slots from `freed` on are in use; `posted - freed <= slots`
//! ```
//!
//! A slot is free again when its completion was taken by the consumer, or that of a later one:
//! that is when ibv_post_send(3) lets a program count on it. Counters run freely, modulo 2^31.

use crate::{
    Memory,
    cell::{Line, U32, U64},
    port::{gid_words, load_gid},
    types::{Opcode, SendFlags},
};

/// Scatter/gather entries that a request can have.
pub const SGES_MAX: usize = 32;
/// Slots that a ring can have: no model has more.
pub const SLOTS_MAX: u32 = 1 << 16;
/// Counters are modulo this + 1.
pub const COUNT_MASK: u32 = 0x7fff_ffff;

/// Words of a send request before its scatter/gather list, or its inline data.
pub const SEND_HEAD_WORDS: usize = 16;
/// Words of a receive request before its scatter/gather list.
pub const RECEIVE_HEAD_WORDS: usize = 2;

/// A ring of requests.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Queue {
    /// Set when it is made.
    pub constant: Line,
    /// Where it is in device memory.
    pub at: U64,
    /// How many requests it can hold.
    pub slots: U32,
    /// Scatter/gather entries of a request.
    pub sges: U32,
    /// Bytes of inline data of a request.
    pub inline_bytes: U32,
    /// For who posts.
    pub poster: Line,
    /// How many requests were ever posted.
    pub posted: U32,
    /// How many slots were ever freed.
    pub freed: U32,
    /// 1 if a message waits for a receive to be posted.
    pub starved: U32,
    /// For who takes.
    pub taker: Line,
    /// How many requests were ever taken for processing.
    pub taken: U32,
    /// How many are known to be posted.
    pub seen: U32,
}

/// How many places a ring has for so many requests. A power of two, so that the counters come round where the ring does: what is
/// in the ring when they do stays apart from what follows.
#[inline]
pub fn places(slots: u32) -> u32 {
    slots.next_power_of_two()
}

/// Where in its ring the request with this number is.
#[inline]
fn place(index: u32, slots: u32) -> u32 {
    index & (places(slots) - 1)
}

/// `a - b` of two counters.
#[inline]
pub fn count_from(a: u32, b: u32) -> u32 {
    a.wrapping_sub(b) & COUNT_MASK
}

/// `a + by` of a counter.
#[inline]
pub fn count_add(a: u32, by: u32) -> u32 {
    a.wrapping_add(by) & COUNT_MASK
}

/// A range of one's own memory, by key. Laid out as `ibv_sge` is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// Local key.
    pub key: u32,
}

/// Where a datagram goes: an address handle and the peer's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// LID of the port, or of a multicast group.
    pub lid: u16,
    /// Service level.
    pub service_level: u8,
    /// Low bits of the sender's LID.
    pub path_bits: u8,
    /// The sender's GID to use, if there is a global route.
    pub global: Option<u8>,
    /// GID, if there is a global route.
    pub gid: [u8; 16],
    /// Queue pair number.
    pub qp: u32,
    /// Q_Key; with the top bit, the sender's own is used.
    pub qkey: u32,
}

/// A send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// The consumer's name for it.
    pub wr_id: u64,
    /// What to do.
    pub opcode: Opcode,
    /// How.
    pub flags: SendFlags,
    /// Immediate data in network order, or the key to invalidate.
    pub immediate: u32,
    /// Address at the peer.
    pub remote_address: u64,
    /// Remote key.
    pub remote_key: u32,
    /// Operand: what to compare with, or to add. Of a bind: the window's key and the region's.
    pub compare_add: u64,
    /// What to swap in. Of a bind: the access.
    pub swap: u64,
    /// Where a datagram goes.
    pub to: Destination,
    /// Number of the shared receive queue, on an extended reliable connection.
    pub srq: u32,
    /// Bytes of the message.
    pub length: u32,
    /// Scatter/gather entries that follow; with [`SendFlags::INLINE`], none do but the data does.
    pub sges: u32,
    /// First packet sequence number, once it is on its way.
    pub psn: u32,
}

/// A receive request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The consumer's name for it.
    pub wr_id: u64,
    /// Scatter/gather entries that follow.
    pub sges: u32,
}

#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

impl Queue {
    /// Words of one slot of a send queue.
    #[inline]
    pub fn send_words(sges: u32, inline_bytes: u32) -> usize {
        SEND_HEAD_WORDS + (sges as usize * 2).max((inline_bytes as usize).div_ceil(8))
    }

    /// Words of one slot of a receive queue.
    #[inline]
    pub fn receive_words(sges: u32) -> usize {
        RECEIVE_HEAD_WORDS + sges as usize * 2
    }

    /// How many requests it can hold, whatever is in the table.
    #[inline]
    pub fn size(&self) -> u32 {
        self.slots.get().min(SLOTS_MAX)
    }

    /// How many requests could be posted now.
    #[inline]
    pub fn room(&self) -> u32 {
        self.room_after(self.posted.get())
    }

    /// How many requests could be posted if so many had been.
    #[inline]
    pub fn room_after(&self, posted: u32) -> u32 {
        let used = count_from(posted, self.freed.acquire());
        self.size().saturating_sub(used)
    }

    /// How many requests wait to be taken.
    #[inline]
    pub fn waiting(&self) -> u32 {
        count_from(self.posted.acquire(), self.taken.get())
    }

    /// Whether a request waits, for who takes: looks at the poster's line only when it must.
    #[inline]
    pub fn has_waiting(&self) -> bool {
        let taken = self.taken.get();
        let known = count_from(self.seen.get(), taken);
        if known != 0 && known <= self.size() {
            return true;
        }
        let posted = self.posted.acquire();
        self.seen.set(posted);
        posted != taken
    }

    #[inline]
    fn slot<'m>(&self, memory: &'m Memory, index: u32, words: usize) -> Option<&'m [U64]> {
        let slots = self.slots.get();
        if slots == 0 || slots > SLOTS_MAX {
            return None;
        }
        let offset = u64::from(place(index, slots)) * words as u64 * 8;
        memory.words(self.at.get().checked_add(offset)?, words)
    }

    /// The slot of a send request.
    #[inline]
    pub fn send_slot<'m>(&self, memory: &'m Memory, index: u32) -> Option<&'m [U64]> {
        let (sges, inline) = (self.sges.get(), self.inline_bytes.get());
        let sane = sges as usize <= SGES_MAX && inline <= 1 << 16;
        self.slot(memory, index, sane.then(|| Self::send_words(sges, inline))?)
    }

    /// The slot of a receive request.
    #[inline]
    pub fn receive_slot<'m>(&self, memory: &'m Memory, index: u32) -> Option<&'m [U64]> {
        let sges = self.sges.get();
        self.slot(
            memory,
            index,
            (sges as usize <= SGES_MAX).then(|| Self::receive_words(sges))?,
        )
    }
}

impl Send {
    /// A request without data, operands or destination: what it needs of them is set after.
    #[inline]
    pub fn new(wr_id: u64, opcode: Opcode, flags: SendFlags) -> Self {
        Self {
            wr_id,
            opcode,
            flags,
            immediate: 0,
            remote_address: 0,
            remote_key: 0,
            compare_add: 0,
            swap: 0,
            to: Destination::default(),
            srq: 0,
            length: 0,
            sges: 0,
            psn: 0,
        }
    }

    /// Writes all but the list.
    #[inline]
    pub fn store(&self, slot: &[U64]) {
        let to = &self.to;
        let route = u32::from(to.lid)
            | u32::from(to.service_level & 0xf) << 16
            | u32::from(to.path_bits & 0x7f) << 20
            | u32::from(to.global.is_some()) << 27;
        let gid = gid_words(to.gid);
        let words = [
            self.wr_id,
            pair(self.opcode as u32, self.flags.bits()),
            pair(self.immediate, self.sges),
            self.remote_address,
            pair(self.remote_key, self.length),
            self.compare_add,
            self.swap,
            pair(self.psn, self.srq),
            pair(to.qp, to.qkey),
            pair(route, u32::from(to.global.unwrap_or(0))),
            gid[0],
            gid[1],
        ];
        for (word, value) in slot.iter().zip(words) {
            word.set(value);
        }
    }

    /// Reads all but the list.
    #[inline]
    pub fn load(slot: &[U64]) -> Option<Self> {
        let word = |i: usize| slot[i].get();
        let low = |i: usize| word(i) as u32;
        let high = |i: usize| (word(i) >> 32) as u32;
        if slot.len() < SEND_HEAD_WORDS {
            return None;
        }
        let route = low(9);
        let gid = load_gid(slot[10..12].try_into().ok()?);
        Some(Self {
            wr_id: word(0),
            opcode: Opcode::from_number(low(1))?,
            flags: SendFlags::from_bits_truncate(high(1)),
            immediate: low(2),
            sges: high(2),
            remote_address: word(3),
            remote_key: low(4),
            length: high(4),
            compare_add: word(5),
            swap: word(6),
            psn: low(7),
            srq: high(7),
            to: Destination {
                lid: route as u16,
                service_level: (route >> 16 & 0xf) as u8,
                path_bits: (route >> 20 & 0x7f) as u8,
                global: (route >> 27 & 1 != 0).then_some(high(9) as u8),
                gid,
                qp: low(8),
                qkey: high(8),
            },
        })
    }

    /// Notes the first packet sequence number.
    #[inline]
    pub fn store_psn(&self, slot: &[U64], psn: u32) {
        slot[7].set(pair(psn, self.srq));
    }

    /// Whether data is in the slot.
    #[inline]
    pub fn is_inline(&self) -> bool {
        self.flags.contains(SendFlags::INLINE)
    }
}

impl Receive {
    /// Writes all but the list.
    #[inline]
    pub fn store(&self, slot: &[U64]) {
        slot[0].set(self.wr_id);
        slot[1].set(u64::from(self.sges));
    }

    /// Reads all but the list.
    #[inline]
    pub fn load(slot: &[U64]) -> Self {
        Self {
            wr_id: slot[0].get(),
            sges: slot[1].get() as u32,
        }
    }
}

/// Writes a scatter/gather entry of a list.
#[inline]
pub fn store_sge(list: &[U64], index: usize, sge: Sge) {
    if let Some([address, rest]) = list.get(index * 2..index * 2 + 2) {
        address.set(sge.address);
        rest.set(pair(sge.length, sge.key));
    }
}

/// A scatter/gather list of up to [`SGES_MAX`] entries.
#[inline]
pub fn load_sges(list: &[U64], count: u32) -> impl Iterator<Item = Sge> {
    list.chunks_exact(2).take(count as usize).map(|words| Sge {
        address: words[0].get(),
        length: words[1].get() as u32,
        key: (words[1].get() >> 32) as u32,
    })
}

/// Writes bytes into words, one part after the other.
#[inline]
pub fn store_parts(words: &[U64], parts: &[&[u8]]) {
    let mut words = words.iter();
    let (mut value, mut filled) = ([0; 8], 0);
    for mut part in parts.iter().copied() {
        while !part.is_empty() {
            let (now, later) = part.split_at(part.len().min(8 - filled));
            value[filled..filled + now.len()].copy_from_slice(now);
            (part, filled) = (later, filled + now.len());
            if filled == 8 {
                store_word(&mut words, value);
                filled = 0;
            }
        }
    }
    if filled > 0 {
        store_word(&mut words, value);
    }
}

fn store_word(words: &mut std::slice::Iter<'_, U64>, value: [u8; 8]) {
    if let Some(word) = words.next() {
        word.set(u64::from_ne_bytes(value));
    }
}

/// Reads bytes out of words, from byte `at` on.
#[inline]
pub fn load_bytes(words: &[U64], at: usize, bytes: &mut [u8]) {
    for (offset, byte) in bytes.iter_mut().enumerate() {
        let at = at + offset;
        *byte = words
            .get(at / 8)
            .map_or(0, |word| word.get().to_ne_bytes()[at % 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_ring_are_apart_when_the_counters_come_round() {
        for slots in [1, 2, 3, 5, 100, 4095, 4096] {
            let first = COUNT_MASK - slots / 2;
            let places = (0..slots).map(|offset| place(count_add(first, offset), slots));
            let mut places: Vec<_> = places.collect();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), slots as usize, "{slots}");
        }
    }
}
