//! A completion queue as the program sees it (principles 3 and 4): completions that were put by come first, then those of
//! the queue below.

use std::collections::VecDeque;

/// A work completion, with the fields and numbers of `struct ibv_wc` (ibv_poll_cq(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // ibv_poll_cq(3) documents them
pub struct Completion {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_error: u32,
    pub length: u32,
    pub immediate: u32,
    pub qp: u32,
    pub source_qp: u32,
    pub flags: u32,
    pub pkey_index: u16,
    pub source_lid: u16,
    pub service_level: u8,
    pub path_bits: u8,
    /// Nanoseconds; 0 if its queue does not say.
    pub time_ns: u64,
}

/// A request succeeded.
pub const SUCCESS: u32 = 0;
/// A request was flushed: its queue pair had failed before.
pub const FLUSHED: u32 = 5;

/// Completions of a queue that were put by.
#[derive(Clone, Debug, Default)]
pub struct Completions {
    put_by: VecDeque<Completion>,
    /// How many the program has had an event for, and has not looked for since.
    told: usize,
}

impl Completions {
    /// One is put by, with virtual names.
    pub fn put_by(&mut self, completion: Completion) {
        self.put_by.push_back(completion);
    }

    /// The program takes the next one that was put by. If there is none, the queue below is asked.
    #[inline]
    pub fn take(&mut self) -> Option<Completion> {
        let taken = self.put_by.pop_front()?;
        self.told = 0;
        Some(taken)
    }

    /// Whether one waits that the program is to have an event for: as HCAs have it (`snaprig_hca::cq`), those that it has had one
    /// for, and has not looked for since, are not told of again.
    pub fn has_news(&self) -> bool {
        self.put_by.len() > self.told
    }

    /// The program has had an event, and has not looked since: it was at least for the first of them.
    pub fn tell_first(&mut self) {
        self.told = self.told.max(1).min(self.put_by.len());
    }

    /// The program has an event for all of them.
    pub fn tell(&mut self) {
        self.told = self.put_by.len();
    }

    /// How many were put by.
    pub fn len(&self) -> usize {
        self.put_by.len()
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.put_by.is_empty()
    }

    /// Those of a queue pair that was reset or destroyed are about requests that are no more.
    pub fn forget(&mut self, qp: u32) {
        self.put_by.retain(|completion| completion.qp != qp);
        self.told = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_an_event_has_no_other_until_there_is_more_or_one_was_taken() {
        let mut queue = Completions::default();
        assert!(!queue.has_news());
        queue.put_by(Completion::default());
        queue.put_by(Completion::default());
        assert!(queue.has_news());
        queue.tell();
        assert!(!queue.has_news());
        queue.put_by(Completion::default());
        assert!(queue.has_news(), "there is more");
        queue.tell();
        queue.take().expect("one of three");
        assert!(queue.has_news(), "it has looked, and left two");
    }
}
