//! The benchmarks.

pub mod card;
pub mod ckpt;
pub mod ckpt_ib;
pub mod coi;
pub mod ppmr;
pub mod scif;
pub mod sim;
pub mod snapify;
pub mod snapify_io;
pub mod verbs;

use crate::Bench;

/// All of them.
pub static ALL: &[&dyn Bench] = &[
    &sim::BENCH,
    &card::BENCH,
    &ckpt::BENCH,
    &ckpt_ib::BENCH,
    &coi::BENCH,
    &ppmr::BENCH,
    &scif::BENCH,
    &snapify::BENCH,
    &snapify_io::BENCH,
    &verbs::BENCH,
];
