//! snaprig for the tests of checkpoint stacks: real rigs, simulated ones, and an attribute that
//! gives a test either, seed by seed.
//!
//! ```no_run
//! use snaprig::{Sim, sim::SimError};
//!
//! #[snaprig::test(cards = 3, seeds = 0..1000)]
//! fn whatever_goes_wrong_is_survived(sim: Sim) -> Result<(), SimError> {
//!     sim.run(&sim.draw())?.check()
//! }
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`macro@test`] | the attribute |
//! | [`case`] | what a test is given, and what it prints when it fails |
//! | [`Rig`] | real cards, each a process; everything ends with it |
//! | [`sim`] | simulated systems |
//! | [`coi`], [`scif`], [`snapify`] | the stack on a real rig |

pub mod case;
pub mod sim;

pub use snaprig_card::platform::Kind as Platform;
pub use snaprig_rig::{Card, Rig, RigBuilder, RigError};
pub use snaprig_sim::{Fault, Kind, Plan, PlanError, Random, When, Workload};
pub use {snaprig_coi as coi, snaprig_scif as scif, snaprig_snapify as snapify};

pub use self::{
    case::{Case, FromCase},
    sim::Sim,
};

/// A test that is run once for each seed, and on each platform if it takes a [`Rig`].
///
/// | argument | meaning | default |
/// |---|---|---|
/// | `cards = 2` | cards of the rig, or of the simulated system | 1 |
/// | `hcas = 0` | HCAs; this version has none | 0 |
/// | `platforms = ["kvm", "ptrace"]` | how real cards run | the best that works here |
/// | `seeds = 0..20` | the seeds | `0..1` |
/// | `exe = PATH` | the `snaprig` program of real rigs | `$SNAPRIG_EXE`, or `snaprig` from the path |
///
/// The function takes what implements [`FromCase`], in any order: a [`Rig`], a [`Sim`], the seed
/// (`u64`), numbers from it ([`Random`]), or all that is known ([`Case`]). It returns nothing, or a
/// `Result` whose error is or becomes a `Box<dyn Error>`.
///
/// | variable | meaning |
/// |---|---|
/// | `SNAPRIG_SEED=7` | this seed only, whatever the range says |
/// | `SNAPRIG_PLATFORM=kvm` | this platform only |
/// | `SNAPRIG_KEEP=1` | leave the rigs' directories behind, and say where they are |
///
/// A failure prints the line that replays it. A platform that cannot run here is named as skipped.
///
/// What makes no sense does not compile:
///
/// ```compile_fail
/// #[snaprig::test(hcas = 1)]
/// fn this_version_has_no_hcas() {}
/// ```
///
/// ```compile_fail
/// #[snaprig::test(platforms = ["xen"])]
/// fn nor_this_platform(rig: snaprig::Rig) {}
/// ```
///
/// ```compile_fail
/// #[snaprig::test(crads = 2)]
/// fn nor_this_argument() {}
/// ```
pub use snaprig_macros::test;
