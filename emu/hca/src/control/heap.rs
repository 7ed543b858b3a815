//! Room for rings in device memory: first fit, neighbours joined.

use std::collections::BTreeMap;

use crate::memory::{HEAP_AT, HEAP_BYTES};

/// Rings begin at multiples of this: a page, so that no two owners share one.
const ALIGN: u64 = 4096;

/// Free ranges of the heap.
#[derive(Debug)]
pub struct Heap {
    /// Bytes of each free range, by its place.
    free: BTreeMap<u64, u64>,
}

impl Heap {
    /// All free.
    pub fn new() -> Self {
        Self {
            free: BTreeMap::from([(HEAP_AT, HEAP_BYTES)]),
        }
    }

    /// Takes room; none if there is none.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.max(1).checked_next_multiple_of(ALIGN)?;
        let (at, length) = self
            .free
            .iter()
            .map(|(at, length)| (*at, *length))
            .find(|(_, length)| *length >= bytes)?;
        self.free.remove(&at);
        if length > bytes {
            self.free.insert(at + bytes, length - bytes);
        }
        Some(at)
    }

    /// Whether nothing is taken.
    pub fn is_whole(&self) -> bool {
        self.free.get(&HEAP_AT) == Some(&HEAP_BYTES)
    }

    /// Gives room back that was taken with the same size.
    pub fn give(&mut self, mut at: u64, bytes: u64) {
        let mut bytes = bytes.max(1).next_multiple_of(ALIGN);
        if let Some(next) = self.free.remove(&(at + bytes)) {
            bytes += next;
        }
        if let Some((&before, &length)) = self.free.range(..at).next_back()
            && before + length == at
        {
            (at, bytes) = (before, length + bytes);
        }
        self.free.insert(at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_whole_again() {
        let mut heap = Heap::new();
        let places: Vec<_> = [1, 5000, 1 << 20]
            .map(|bytes| (heap.take(bytes).unwrap(), bytes))
            .into();
        for (at, bytes) in [places[1], places[0], places[2]] {
            heap.give(at, bytes);
        }
        assert_eq!(heap.free, Heap::new().free);
        assert_eq!(heap.take(HEAP_BYTES + 1), None);
    }
}
