//! The scenarios that come with snaprig: a folder each, and a line each in [`ALL`].

pub mod coord;
pub mod offload;
mod parameters;
pub mod plugins;
pub mod scif;
pub mod verbs;

use crate::registry::Entry;

/// All of them. When no scenario is asked for, the first takes the seeds that none of the others does.
pub static ALL: &[Entry] = &[
    Entry::new(&offload::Offload, 1),
    Entry::new(&verbs::Verbs, 5),
    Entry::new(&scif::Scif, 4),
    Entry::new(&coord::Coord, 10),
    Entry::new(&plugins::Plugins, 12),
];
