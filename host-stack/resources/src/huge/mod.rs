//! Huge pages: which of them are there, and whether a machine has enough of them.
//!
//! They are no kind of state of their own, but a kind of memory: shared memory, System V segments, files and areas of
//! processes may be of them, and ask here.

pub mod pages;
mod restore;
pub mod save;

use snaprig_ckpt_image::chain::Chain;

pub use self::restore::{do_without, explained, map_flags};
use crate::{error::Result, resource::Resource, state::Tree};

/// Huge pages of a tree.
#[derive(Debug)]
pub struct HugePages;

impl Resource for HugePages {
    fn check(&self, tree: &Tree, chain: &Chain) -> Result<()> {
        restore::enough(tree, chain)
    }
}
