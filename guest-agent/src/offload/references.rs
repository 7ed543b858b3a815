//! References that a process holds to its buffers (COIBufferAddRef, COIBufferReleaseRef), and which of
//! them its host knows of.
//!
//! The host takes references itself when it sends a run function that is given one, is told of new
//! ones with a run function's result, and of those that are given back with a notice. What was taken
//! and given back in between it is never told.
//!
//! What must stay true: what the host knows is never more than the host was told, or took, and all of
//! it is given back in the end; a reference that is not held cannot be given back.

use std::collections::BTreeMap;

/// References by buffer.
#[derive(Clone, Debug, Default)]
pub struct References {
    all: BTreeMap<u64, Counts>,
    /// How often the host was told of new ones.
    told: u64,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    held: u64,
    /// By the host.
    known: u64,
}

impl References {
    /// The host has taken one for the process.
    pub fn given(&mut self, id: u64) {
        let counts = self.all.entry(id).or_default();
        counts.held = counts.held.saturating_add(1);
        counts.known = counts.known.saturating_add(1);
    }

    /// The process takes one.
    pub fn add(&mut self, id: u64) {
        let counts = self.all.entry(id).or_default();
        counts.held = counts.held.saturating_add(1);
    }

    /// The process gives one back; how many the host is to be told of. `None`: it holds none.
    pub fn release(&mut self, id: u64) -> Option<u64> {
        let counts = self.all.get_mut(&id).filter(|counts| counts.held > 0)?;
        counts.held -= 1;
        let released = counts.known.saturating_sub(counts.held);
        counts.known -= released;
        if counts.held == 0 {
            self.all.remove(&id);
        }
        Some(released)
    }

    /// How often the host was told of new ones.
    pub fn told(&self) -> u64 {
        self.told
    }

    /// What the host is told with a result: new references, buffer by buffer.
    pub fn tell_added(&mut self) -> Vec<(u64, u64)> {
        let counts = self.all.iter_mut();
        let added = counts.filter_map(|(id, counts)| {
            let added = counts.held - counts.known;
            counts.known = counts.held;
            (added > 0).then_some((*id, added))
        });
        let added: Vec<_> = added.collect();
        self.told += u64::from(!added.is_empty());
        added
    }

    /// The buffer is gone.
    pub fn forget(&mut self, id: u64) {
        self.all.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_told_of_each_reference_once_and_of_its_end_once() {
        let mut references = References::default();
        references.add(1);
        references.add(1);
        references.add(2);
        assert_eq!(references.tell_added(), [(1, 2), (2, 1)]);
        assert_eq!(references.tell_added(), []);
        assert_eq!(references.release(1), Some(1));
        references.add(1);
        assert_eq!(references.tell_added(), [(1, 1)]);
        assert_eq!(references.release(1), Some(1));
        assert_eq!(references.release(1), Some(1));
        assert_eq!(references.release(1), None);
    }

    #[test]
    fn what_comes_and_goes_between_two_results_the_host_never_hears_of() {
        let mut references = References::default();
        references.add(1);
        assert_eq!(references.release(1), Some(0));
        assert_eq!(references.tell_added(), []);
        assert_eq!(references.release(1), None);
    }

    #[test]
    fn what_the_host_took_it_is_told_of_when_nothing_newer_is_left() {
        let mut references = References::default();
        references.given(1);
        references.add(1);
        // One of the two is back: the one that the host does not know of.
        assert_eq!(references.release(1), Some(0));
        assert_eq!(references.tell_added(), []);
        assert_eq!(references.release(1), Some(1));
    }

    #[test]
    fn a_buffer_that_is_gone_has_none() {
        let mut references = References::default();
        references.given(1);
        references.forget(1);
        assert_eq!(references.release(1), None);
    }
}
