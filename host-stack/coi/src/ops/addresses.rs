//! Where buffers are in the memory of offload processes: at one address in all of them, which the host
//! chooses.

use std::{collections::BTreeMap, sync::Mutex};

use snaprig_wire::coi::{BUFFER_SPACE, BUFFER_SPACE_END};

use crate::process::lock;

const PAGE: u64 = 4096;

/// What is in use: beginnings and ends.
#[derive(Default)]
struct Space(BTreeMap<u64, u64>);

static SPACE: Mutex<Space> = Mutex::new(Space(BTreeMap::new()));

impl Space {
    /// The first gap that is large enough, with a page behind it that nobody has: who writes past a
    /// buffer's end is told so.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.checked_next_multiple_of(PAGE)?.checked_add(PAGE)?;
        let mut at = BUFFER_SPACE;
        for (start, end) in &self.0 {
            if start - at >= bytes {
                break;
            }
            at = *end;
        }
        let end = at
            .checked_add(bytes)
            .filter(|end| *end <= BUFFER_SPACE_END)?;
        self.0.insert(at, end);
        Some(at)
    }
}

/// A range of addresses; dropped, it is free again.
#[derive(Debug)]
pub(crate) struct Address(u64);

impl Address {
    pub fn take(bytes: u64) -> Option<Self> {
        lock(&SPACE).take(bytes).map(Self)
    }

    pub fn get(&self) -> u64 {
        self.0
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        lock(&SPACE).0.remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_meet_and_gaps_are_used_again() {
        let mut space = Space::default();
        let a = space.take(1).expect("room");
        let b = space.take(PAGE).expect("room");
        let c = space.take(1).expect("room");
        assert_eq!((a, b - a, c - b), (BUFFER_SPACE, 2 * PAGE, 2 * PAGE));
        space.0.remove(&b);
        assert_eq!(space.take(2 * PAGE), Some(c + 2 * PAGE));
        assert_eq!(space.take(PAGE), Some(b));
        assert_eq!(space.take(BUFFER_SPACE_END), None);
    }
}
