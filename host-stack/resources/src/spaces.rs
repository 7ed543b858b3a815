//! What the images of a chain say about the spaces of a tree: address spaces, shared memory, contents of files.
//!
//! ```text
//! to save: own pages that the chain does not have as they are now      gone: what it says, and is no more
//! ```
//! What must stay true: a page is taken off what the chain has before anybody knows that it was written to since, and
//! put there when it has been copied after that. So whatever goes wrong in between, it is saved.

use std::collections::HashMap;

use libc::pid_t;
use snaprig_tracee::ranges::Ranges;

/// What a space is of, from one image of a chain to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A process's memory.
    Process(pid_t),
    /// Shared memory: device and inode.
    Shared(u64, u64),
    /// System V shared memory: its number.
    Segment(i32),
    /// A file's contents: device and inode.
    Contents(u64, u64),
}

/// A space.
#[derive(Clone, Debug, Default)]
pub struct Space {
    number: u32,
    /// Pages about which the chain says something.
    said: Ranges,
    /// Those of them that it has as they are, or were when they were last seen to be written to.
    has: Ranges,
    /// What has been written to since [`Spaces::begin`].
    written: Ranges,
    /// It is there in the checkpoint that is being made.
    is_met: bool,
}

impl Space {
    /// Its number in the images.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// These have been written to.
    pub fn written(&mut self, pages: &Ranges) {
        self.has = self.has.without(pages);
        self.written = self.written.union(pages);
    }

    /// Of these pages, which are all that there are, the ones that the chain does not have.
    pub fn missing(&self, own: &Ranges) -> Ranges {
        own.without(&self.has)
    }

    /// These have been copied to the image that is being made.
    pub fn copied(&mut self, pages: &Ranges) {
        self.has = self.has.union(pages);
        self.said = self.said.union(pages);
    }

    /// These are all that there are, and the image has them; what it has to say is gone.
    pub fn is_now(&mut self, own: Ranges) -> Ranges {
        let gone = self.said.without(&own);
        (self.said, self.has) = (own.clone(), own);
        gone
    }
}

/// All spaces of a tree.
#[derive(Clone, Debug, Default)]
pub struct Spaces {
    next: u32,
    known: HashMap<Key, Space>,
}

impl Spaces {
    /// A space, which is there.
    pub fn meet(&mut self, key: Key) -> &mut Space {
        let next = &mut self.next;
        let space = self.known.entry(key).or_insert_with(|| {
            *next += 1;
            Space {
                number: *next - 1,
                ..Space::default()
            }
        });
        space.is_met = true;
        space
    }

    /// An image is begun: for [`Spaces::undone`], what is written to is noted from now on.
    pub fn begin(&mut self) {
        for space in self.known.values_mut() {
            space.written = Ranges::default();
        }
    }

    /// The image that was begun when these were the spaces is not part of the chain; what became of them for it is known.
    /// What was seen to be written to then is not told again.
    pub fn undone(mut self, attempt: &Self) -> Self {
        for (key, space) in &mut self.known {
            match attempt.known.get(key) {
                Some(seen) => space.written(&seen.written),
                None => space.has = Ranges::default(),
            }
        }
        self
    }

    /// From now on, spaces are met anew.
    pub fn gather(&mut self) {
        for space in self.known.values_mut() {
            space.is_met = false;
        }
    }

    /// Forgets the spaces that have not been met since [`Spaces::gather`]: their numbers, and what was said of them.
    pub fn part(&mut self) -> Vec<(u32, Ranges)> {
        let mut gone = Vec::new();
        self.known.retain(|_, space| {
            if !space.is_met {
                gone.push((space.number, std::mem::take(&mut space.said)));
            }
            space.is_met
        });
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(ranges: &[(u64, u64)]) -> Ranges {
        ranges.iter().map(|(start, end)| *start..*end).collect()
    }

    #[test]
    fn what_was_copied_before_it_was_written_to_is_missing_again() {
        let mut spaces = Spaces::default();
        let space = spaces.meet(Key::Process(7));
        let own = pages(&[(0, 8)]);
        assert_eq!(space.missing(&own), own);
        space.written(&own);
        space.copied(&pages(&[(0, 6)]));
        assert_eq!(space.missing(&own), pages(&[(6, 8)]));
        space.written(&pages(&[(2, 3)]));
        // Page 4 is not there any more, and 2 was copied, but is not what it was.
        let own = pages(&[(0, 4), (5, 8)]);
        assert_eq!(space.missing(&own), pages(&[(2, 3), (6, 8)]));
        assert_eq!(space.is_now(own.clone()), pages(&[(4, 5)]));
        assert_eq!(space.missing(&own).bytes(), 0);
    }

    #[test]
    fn what_was_seen_for_an_image_that_is_undone_is_missing_still() {
        let mut spaces = Spaces::default();
        let own = pages(&[(0, 8)]);
        spaces.meet(Key::Process(7)).copied(&own);
        spaces.meet(Key::Process(8)).copied(&own);
        spaces.begin();
        let (before, mut attempt) = (spaces.clone(), spaces);
        attempt.gather();
        let space = attempt.meet(Key::Process(7));
        space.written(&pages(&[(2, 4)]));
        space.copied(&pages(&[(2, 4)]));
        assert_eq!(space.is_now(pages(&[(0, 6)])), pages(&[(6, 8)]));
        attempt.meet(Key::Process(9)).copied(&own);
        attempt.part();
        let mut spaces = before.undone(&attempt);
        let space = spaces.meet(Key::Process(7));
        assert_eq!(space.missing(&own), pages(&[(2, 4)]));
        assert_eq!(space.is_now(pages(&[(0, 6)])), pages(&[(6, 8)]));
        // It has ended meanwhile: another may have its number.
        assert_eq!(spaces.meet(Key::Process(8)).missing(&own), own);
        assert_eq!(spaces.meet(Key::Process(9)).number(), 2);
    }

    #[test]
    fn a_space_that_is_not_met_is_gone_and_its_number_is_not_another_s() {
        let mut spaces = Spaces::default();
        spaces.meet(Key::Process(7)).copied(&pages(&[(0, 8)]));
        assert_eq!(spaces.meet(Key::Shared(1, 1)).number(), 1);
        assert_eq!(spaces.part(), []);
        spaces.gather();
        assert_eq!(spaces.meet(Key::Shared(1, 1)).number(), 1);
        assert_eq!(spaces.part(), [(0, pages(&[(0, 8)]))]);
        assert_eq!(spaces.meet(Key::Process(7)).number(), 2);
    }
}
