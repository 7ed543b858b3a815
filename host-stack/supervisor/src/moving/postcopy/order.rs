//! Which of the pages that follow go next: those that somebody waits for, then what is behind them.
//!
//! ```text
//!          wants                  wants, runs
//!         .------.               .------.
//!         v      |    runs       v      |      all are taken
//! tree does not run ------> tree runs -----------------------> over
//!   only what is wanted          what is wanted first
//! ```
//! Others follow in order from there on: a program that touches a page mostly touches the next.
//!
//! What must stay true: each page is taken once, and who waits for one waits for one block at most that is taken before it, and for
//! those that others have waited for before.

use std::{collections::VecDeque, ops::Range};

use snaprig_tracee::ranges::Ranges;

/// What is taken at a time.
pub const BLOCK_BYTES: u64 = 256 << 10;

/// What is still to be taken, and in which order.
#[derive(Debug)]
pub struct Order {
    /// By space.
    left: Vec<(u32, Ranges)>,
    /// Pages that somebody waits for, longest first.
    wanted: VecDeque<(u32, u64)>,
    /// What is behind the last block.
    behind: Option<(u32, u64)>,
    runs: bool,
}

/// Some of it: of which space, by its place in the list, and which addresses.
pub type Block = (usize, Range<u64>);

impl Order {
    /// Of all these.
    pub fn of(spaces: impl IntoIterator<Item = (u32, Ranges)>) -> Self {
        Self {
            left: spaces.into_iter().collect(),
            wanted: VecDeque::new(),
            behind: None,
            runs: false,
        }
    }

    /// Somebody waits for a page.
    pub fn wants(&mut self, space: u32, address: u64) {
        self.wanted.push_back((space, address));
    }

    /// The tree runs: not only what somebody waits for goes.
    pub fn runs(&mut self) {
        self.runs = true;
    }

    /// Whether there is nothing to be taken until somebody says more.
    pub fn is_idle(&self) -> bool {
        !self.runs && self.wanted.is_empty()
    }

    /// Whether the tree runs, and all has been taken.
    pub fn is_over(&self) -> bool {
        self.runs && self.left.iter().all(|(_, left)| left.bytes() == 0)
    }

    /// Takes what goes next; none: all that may go has been taken.
    pub fn next(&mut self) -> Option<Block> {
        let (index, block) = self.wanted().or_else(|| self.unwanted())?;
        let (space, left) = &mut self.left[index];
        *left = left.without(&Ranges::from(block.clone()));
        self.behind = Some((*space, block.end));
        Some((index, block))
    }

    fn wanted(&mut self) -> Option<Block> {
        while let Some((space, address)) = self.wanted.pop_front() {
            let found = self.from(space, address);
            // Otherwise it is on its way.
            if let Some(found) = found.filter(|(_, block)| block.start == address) {
                return Some(found);
            }
        }
        None
    }

    fn unwanted(&self) -> Option<Block> {
        if !self.runs {
            return None;
        }
        let behind = self.behind;
        let behind = behind.and_then(|(space, address)| self.from(space, address));
        behind.or_else(|| {
            let mut all = self.left.iter().enumerate();
            all.find_map(|(index, (_, left))| Some((index, front(left.iter().next()?))))
        })
    }

    /// What is left of a space, from this address on.
    fn from(&self, space: u32, address: u64) -> Option<Block> {
        let index = self.left.iter().position(|(one, _)| *one == space)?;
        let mut parts = self.left[index].1.iter();
        let part = parts.find(|part| part.end > address)?;
        Some((index, front(part.start.max(address)..part.end)))
    }
}

/// The front of a part.
fn front(part: Range<u64>) -> Range<u64> {
    part.start..part.end.min(part.start.saturating_add(BLOCK_BYTES))
}
