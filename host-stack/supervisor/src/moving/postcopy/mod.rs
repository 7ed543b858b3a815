//! Post-copy: a tree runs where it goes on before all of its memory is there. What is large and private follows; who touches
//! what is missing waits for it, and it comes next.
//!
//! ```text
//! source                                                heir: a process beside it (`filler`)       its supervisor
//! the tree stands still; all but what can wait --------------------------------------------------> restores the tree
//!                                                            <--- a userfaultfd of each process ---
//!           <-- the address of a page, when somebody waits for it
//! pages, through the same pipeline (`feeder`) ---------> puts them where they are missing
//!           ...                                     [COMMIT]                                       the tree runs
//! all the others, in order, or from what somebody waits for on
//! the image's end -------------------------------------> nothing is missing
//!           <-- whole --------------------------------------------- whole ----------------------> it stays
//! the tree ends
//! ```
//!
//! | dies before the last page is there | after the commit |
//! |---|---|
//! | source, or the way between both | what runs cannot go on: it ends, and its job hears of it; a checkpoint is what is left |
//! | whoever puts pages there | the same: its supervisor hears of it |
//! | heir | the same: the source's has been left, and what has run since is nowhere else |
//!
//! Before the commit nothing has run there, and the tree runs on at the source.
//!
//! Before it runs, nothing goes but what somebody waits for: all else would only take time from what it takes to run.
//!
//! What must stay true: nothing of the tree ever sees a page that is missing as zeroes. The userfaultfds are open in two
//! processes, each of which ends the tree if the other one dies: the kernel shows what is missing as zeroes when nobody has
//! them any more. The source keeps its own, standing still, until the heir has the last page.

pub mod feeder;
pub mod filler;
mod missing;
mod order;
#[cfg(test)]
mod simulated;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use snaprig_ckpt_image::image::PAGE;
use snaprig_resources::error::{Error, Result};
use snaprig_tracee::ranges::Ranges;

/// End of the addresses of processes.
const USER_END: u64 = 0x7fff_ffff_f000;
/// Most parts that a message tells of.
pub const PARTS_MAX: usize = 2000;
/// Most parts in all: each takes some memory.
const ALL_PARTS_MAX: usize = 4 << 20;

/// What of a space follows.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Part {
    space: u32,
    start: u64,
    end: u64,
}

/// What follows of a tree.
#[derive(Clone, Debug, Default)]
pub struct Follows {
    spaces: BTreeMap<u32, Ranges>,
    /// How many parts have been told of.
    parts: usize,
}

impl Follows {
    /// By space.
    pub fn spaces(&self) -> &BTreeMap<u32, Ranges> {
        &self.spaces
    }

    /// Parts, as they are told of.
    pub fn parts(&self) -> Vec<Part> {
        let parts = self.spaces.iter().flat_map(|(space, ranges)| {
            ranges.iter().map(|range| Part {
                space: *space,
                start: range.start,
                end: range.end,
            })
        });
        parts.collect()
    }

    /// More is told of: in order, of each space.
    pub fn add(&mut self, parts: &[Part]) -> Result<()> {
        self.parts += parts.len();
        if self.parts > ALL_PARTS_MAX {
            return Err(super::nonsense("memory that follows in too many parts"));
        }
        for part in parts {
            let ranges = self.spaces.entry(part.space).or_default();
            let is_of_pages = part.start % PAGE == 0 && part.end % PAGE == 0;
            let is_behind = ranges
                .iter()
                .next_back()
                .is_none_or(|last| last.end < part.start);
            if part.start >= part.end || part.end > USER_END || !is_of_pages || !is_behind {
                return Err(super::nonsense("memory that follows, and is nowhere"));
            }
            ranges.push(part.start..part.end);
        }
        Ok(())
    }
}

impl FromIterator<(u32, Ranges)> for Follows {
    fn from_iter<I: IntoIterator<Item = (u32, Ranges)>>(spaces: I) -> Self {
        Self {
            spaces: spaces.into_iter().collect(),
            parts: 0,
        }
    }
}

/// What the heir says to the source.
#[derive(Debug, Serialize, Deserialize)]
enum Asks {
    /// Somebody waits for this page.
    Page { space: u32, address: u64 },
    /// The tree runs: everything may come. The source says that to itself.
    Rest,
    /// The last page is there.
    Whole,
}

fn lost(who: &str) -> Error {
    let what = format!(
        "{who} was lost before all memory had followed; what ran there has ended, and a checkpoint is what is left of it"
    );
    Error::Job { what }
}
