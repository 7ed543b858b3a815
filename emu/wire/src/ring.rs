//! A single-producer, single-consumer byte ring in shared memory: how SCIF messages cross the
//! aperture. One ring each way; the producer rings a doorbell (to the card) or raises an
//! interrupt (to the host) after it has moved `head`.
//!
//! ```text
//! offset 0    head: u64   bytes ever written   (producer writes)
//! offset 64   tail: u64   bytes ever read      (consumer writes)
//! offset 128  data, RING_BYTES - 128 bytes, used as a circle
//! record:     length u32, then that many bytes ([`crate::link`]), then padding to 8
//! ```
//!
//! The other side may be hostile: indices and lengths are checked before use, and a record is
//! copied out before it is looked at.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a ring, header included.
pub const RING_BYTES: usize = 1 << 20;
/// Bytes of the header.
pub const HEADER_BYTES: usize = 128;
const TAIL_OFFSET: usize = 64;
const DATA_BYTES: u64 = (RING_BYTES - HEADER_BYTES) as u64;

/// What a ring says when it cannot do as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// Not enough room now: wait for the consumer.
    Full,
    /// The record could never fit.
    TooLong,
    /// The other side wrote impossible indices or lengths; the link is unusable.
    Corrupt,
}

/// One side's view of a ring in shared memory.
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    bytes: &'a [AtomicU8],
    head: &'a AtomicU64,
    tail: &'a AtomicU64,
}

impl<'a> Ring<'a> {
    /// A ring over shared memory.
    ///
    /// # Safety
    /// `base` must be 64-byte aligned and valid for reads and writes of [`RING_BYTES`] bytes for
    /// `'a`. Other processes may write to it at any time; this process must access it only
    /// through `Ring`s.
    pub unsafe fn new(base: *mut u8) -> Self {
        // SAFETY: the caller vouches for the memory; atomics make concurrent writes defined.
        unsafe {
            Self {
                bytes: core::slice::from_raw_parts(
                    base.add(HEADER_BYTES).cast(),
                    DATA_BYTES as usize,
                ),
                head: &*base.cast(),
                tail: &*base.add(TAIL_OFFSET).cast(),
            }
        }
    }

    /// Puts one record in. On success the caller notifies the consumer.
    pub fn push(&self, record: &[u8]) -> Result<(), RingError> {
        let need = record_bytes(record.len());
        if need > DATA_BYTES / 2 {
            return Err(RingError::TooLong);
        }
        let head = self.head.load(Ordering::Relaxed);
        let used = head.wrapping_sub(self.tail.load(Ordering::Acquire));
        if used > DATA_BYTES {
            return Err(RingError::Corrupt);
        }
        if DATA_BYTES - used < need {
            return Err(RingError::Full);
        }
        self.copy_in(head, &(record.len() as u32).to_le_bytes());
        self.copy_in(head.wrapping_add(4), record);
        self.head.store(head.wrapping_add(need), Ordering::Release);
        Ok(())
    }

    /// Takes one record out, if there is one.
    pub fn pop(&self) -> Result<Option<Vec<u8>>, RingError> {
        let tail = self.tail.load(Ordering::Relaxed);
        let used = self.head.load(Ordering::Acquire).wrapping_sub(tail);
        if used == 0 {
            return Ok(None);
        }
        if !(8..=DATA_BYTES).contains(&used) {
            return Err(RingError::Corrupt);
        }
        let mut prefix = [0; 4];
        self.copy_out(tail, &mut prefix);
        let len = u32::from_le_bytes(prefix) as usize;
        if record_bytes(len) > used {
            return Err(RingError::Corrupt);
        }
        let mut record = alloc::vec![0; len];
        self.copy_out(tail.wrapping_add(4), &mut record);
        self.tail
            .store(tail.wrapping_add(record_bytes(len)), Ordering::Release);
        Ok(Some(record))
    }

    /// Bytes that the consumer says it has ever taken out.
    pub fn taken(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    /// Whether nothing waits to be read.
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Acquire) == self.tail.load(Ordering::Acquire)
    }

    fn copy_in(&self, position: u64, from: &[u8]) {
        let (now, later) = self.circle(position, from.len());
        let (first, rest) = from.split_at(now.len());
        store(now, first);
        store(later, rest);
    }

    fn copy_out(&self, position: u64, to: &mut [u8]) {
        let (now, later) = self.circle(position, to.len());
        let (first, rest) = to.split_at_mut(now.len());
        load(now, first);
        load(later, rest);
    }

    /// The `len` bytes from `position` on: those up to the circle's end, and those from its start on.
    fn circle(&self, position: u64, len: usize) -> (&[AtomicU8], &[AtomicU8]) {
        // The data area is no power of two, so the circle breaks where a counter wraps: after 2^64
        // bytes, or as soon as a hostile peer says so. Such a record is nonsense, and that is all.
        let start = (position % DATA_BYTES) as usize;
        let now = len.min(self.bytes.len() - start);
        (&self.bytes[start..start + now], &self.bytes[..len - now])
    }
}

/// Bytes of a word that is copied at once.
const WORD_BYTES: usize = size_of::<u64>();

/// Copies into shared memory, in words where that is aligned: bytes take ten times as long.
fn store(to: &[AtomicU8], from: &[u8]) {
    // SAFETY: an aligned AtomicU64 has the bytes of eight AtomicU8, and all bits are valid for both. Sides that keep
    // to the protocol never access the same bytes at a time; what others do, they do from other processes.
    let (head, words, tail) = unsafe { to.align_to::<AtomicU64>() };
    let bytes = |to: &[AtomicU8], from: &[u8]| {
        to.iter()
            .zip(from)
            .for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
    };
    let (first, rest) = from.split_at(head.len());
    let (middle, last) = rest.split_at(words.len() * WORD_BYTES);
    bytes(head, first);
    for (to, from) in words.iter().zip(middle.as_chunks().0) {
        to.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
    }
    bytes(tail, last);
}

/// The same, out of it.
fn load(from: &[AtomicU8], to: &mut [u8]) {
    // SAFETY: an aligned AtomicU64 has the bytes of eight AtomicU8, and all bits are valid for both. Sides that keep to
    // the protocol never access the same bytes at a time; what others do, they do from other processes.
    let (head, words, tail) = unsafe { from.align_to::<AtomicU64>() };
    let bytes = |from: &[AtomicU8], to: &mut [u8]| {
        from.iter()
            .zip(to)
            .for_each(|(from, to)| *to = from.load(Ordering::Relaxed));
    };
    let (first, rest) = to.split_at_mut(head.len());
    let (middle, last) = rest.split_at_mut(words.len() * WORD_BYTES);
    bytes(head, first);
    for (from, to) in words.iter().zip(middle.as_chunks_mut().0) {
        *to = from.load(Ordering::Relaxed).to_ne_bytes();
    }
    bytes(tail, last);
}

fn record_bytes(len: usize) -> u64 {
    (len as u64 + 4).next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[repr(align(64))]
    struct Memory([u8; RING_BYTES]);

    fn memory() -> alloc::boxed::Box<Memory> {
        // SAFETY: all-zero bytes are a valid `Memory`.
        unsafe { alloc::boxed::Box::new_zeroed().assume_init() }
    }

    #[test]
    fn records_come_out_as_they_went_in_many_times_round() {
        let mut memory = memory();
        // SAFETY: the box is aligned, large enough, and outlives the ring.
        let ring = unsafe { Ring::new(memory.0.as_mut_ptr()) };
        for round in 0..5000usize {
            let record = vec![round as u8; round % 1700];
            ring.push(&record).unwrap();
            assert_eq!(ring.pop(), Ok(Some(record)));
        }
        assert_eq!(ring.pop(), Ok(None));
    }

    #[test]
    fn a_full_ring_says_so_and_a_corrupt_one_is_refused() {
        let mut memory = memory();
        // SAFETY: the box is aligned, large enough, and outlives the ring.
        let ring = unsafe { Ring::new(memory.0.as_mut_ptr()) };
        assert_eq!(ring.push(&vec![0; RING_BYTES]), Err(RingError::TooLong));
        while ring.push(&[1; 4000]).is_ok() {}
        assert_eq!(ring.push(&[1; 4000]), Err(RingError::Full));
        ring.head.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(ring.pop(), Err(RingError::Corrupt));
        assert_eq!(ring.push(&[1]), Err(RingError::Corrupt));
    }

    /// Indices that a hostile peer would try: anything, and what is near the ends.
    fn index() -> impl Strategy<Value = u64> {
        let end = prop_oneof![Just(0), Just(DATA_BYTES), Just(1 << 63), Just(u64::MAX)];
        let near = (end, -16..16i64).prop_map(|(end, off)| end.wrapping_add_signed(off));
        prop_oneof![any::<u64>(), near]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Head(u64),
        Tail(u64),
        /// A length prefix where the consumer will look for one.
        Len(u32),
        Push(usize),
        Pop,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            index().prop_map(Step::Head),
            index().prop_map(Step::Tail),
            any::<u32>().prop_map(Step::Len),
            (0..RING_BYTES).prop_map(Step::Push),
            Just(Step::Pop),
        ]
    }

    proptest! {
        /// Whatever the peer writes: no panic (so no access beyond the slice), no record longer
        /// than the ring, and a producer's head moves only by what it put in.
        #[test]
        fn hostile_indices_and_lengths_do_no_harm(steps in prop::collection::vec(step(), 1..40)) {
            let mut memory = memory();
            // SAFETY: the box is aligned, large enough, and outlives the ring.
            let ring = unsafe { Ring::new(memory.0.as_mut_ptr()) };
            for step in steps {
                match step {
                    Step::Head(to) => ring.head.store(to, Ordering::Relaxed),
                    Step::Tail(to) => ring.tail.store(to, Ordering::Relaxed),
                    Step::Len(len) => {
                        ring.copy_in(ring.tail.load(Ordering::Relaxed), &len.to_le_bytes());
                    }
                    Step::Push(len) => {
                        let before = ring.head.load(Ordering::Relaxed);
                        let pushed = ring.push(&vec![1; len]);
                        let moved = ring.head.load(Ordering::Relaxed).wrapping_sub(before);
                        prop_assert_eq!(moved, pushed.map_or(0, |()| record_bytes(len)));
                    }
                    Step::Pop => match ring.pop() {
                        Ok(record) => prop_assert!(record.is_none_or(|r| r.len() < RING_BYTES)),
                        Err(error) => prop_assert_eq!(error, RingError::Corrupt),
                    },
                }
            }
        }
    }
}
