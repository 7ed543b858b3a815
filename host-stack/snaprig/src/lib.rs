//! snaprig for the tests of checkpoint stacks: real rigs, simulated ones, fabrics of HCAs, and an
//! attribute that gives a test any of them, seed by seed.
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
//! A program that uses InfiniBand runs unmodified on HCAs that are not there:
//!
//! ```no_run
//! use snaprig::Fabric;
//!
//! #[snaprig::test(hcas = 2)]
//! fn a_lost_link_is_survived(fabric: Fabric) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut program = fabric.command("./your-program").spawn()?;
//!     fabric.link_down(1, 1)?;
//!     fabric.heal()?;
//!     assert!(program.wait()?.success());
//!     Ok(())
//! }
//! ```
//!
//! And a program that was killed goes on from a checkpoint:
//!
//! ```no_run
//! use snaprig::Ckpt;
//!
//! #[snaprig::test]
//! fn a_killed_program_ends_as_if_nothing_had_been() -> Result<(), Box<dyn std::error::Error>> {
//!     let directory = std::env::temp_dir().join("checkpoints");
//!     let mut program = Ckpt::launch(&directory, ["./simulate", "--out", "result"])?;
//!     program.dump()?;
//!     program.kill()?;
//!     assert!(Ckpt::restart(&directory)?.wait()?.success());
//!     Ok(())
//! }
//! ```
//!
//! One checkpoint is branched, many times, each time with another fault:
//!
//! ```no_run
//! use snaprig::{Ckpt, CkptBranch as _};
//!
//! #[snaprig::test]
//! fn no_fault_has_it_hang() -> Result<(), Box<dyn std::error::Error>> {
//!     let results = Ckpt::branch("checkpoints").seeds(0..50).run()?;
//!     assert!(results.branches.iter().all(|branch| branch.verdict != snaprig::Verdict::Hung));
//!     Ok(())
//! }
//! ```
//!
//! A protocol of your own is simulated, too: say what its processes do, where it can go wrong and what must be true
//! of it, and campaigns, shrinking and replay are there ([`campaign::scenario::protocol`] has an example;
//! [`campaign::Scenario`] is the long way, for whole systems).
//!
//! Nothing has to be installed: a test's own program is started again to be a card or a fabric's daemon, and libraries that
//! programs are given are where cargo leaves them. A card that was compiled without optimisation is slow:
//! `[profile.dev.package."*"] opt-level = 1` in your `Cargo.toml` makes it bearable. Features, all of them on by default:
//!
//! | feature | what it brings |
//! |---|---|
//! | `verbs` | [`Fabric`] |
//! | `cards` | [`Rig`], [`coi`], [`scif`], [`snapify`] |
//! | `sim` | [`Sim`], [`campaign`], [`simulator`] |
//! | `ckpt` | [`Ckpt`] |
//!
//! | module | what it is |
//! |---|---|
//! | [`macro@test`] | the attribute |
//! | [`case`] | what a test is given, and what it prints when it fails |
//! | [`Rig`] | real cards, each a process; [`Card`]s crash, are reset, unplugged; everything ends with it |
//! | [`Fabric`] | HCAs, and programs that use them; everything ends with it |
//! | [`Ckpt`] | a program that is checkpointed, killed, restarted |
//! | [`CkptBranch`], [`Branches`] | a checkpoint that is restarted again and again, each time with another fault |
//! | [`sim`] | simulated systems |
//! | [`campaign`] | what they are made of: scenarios, campaigns, reports; a scenario of one's own |
//! | [`simulator`] | virtual time, order, faults, plans |
//! | [`coi`], [`scif`], [`snapify`] | the stack on a real rig |

pub mod case;
mod program;
#[cfg(feature = "sim")]
pub mod sim;

pub use snaprig_sim::{Fault, Kind, Plan, PlanError, Random, When};
pub use snaprig_wire::fault_points;

#[cfg(feature = "verbs")]
pub use snaprig_fabric::{Fabric, FabricBuilder, FabricError, Model, PathFaults, place::Place};

#[cfg(feature = "cards")]
pub use {
    snaprig_card_platform::Kind as Platform,
    snaprig_coi as coi,
    snaprig_rig::{Card, CardState, Rig, RigBuilder, RigError},
    snaprig_scif as scif, snaprig_snapify as snapify,
};

#[cfg(feature = "sim")]
pub use {
    self::sim::Sim,
    snaprig_campaign::{self as campaign, scenarios::offload::Workload},
    snaprig_sim as simulator,
};

#[cfg(feature = "ckpt")]
pub use snaprig_supervisor::{Ckpt, CkptBuilder, CkptError, Dumped, Mode as CkptMode};

#[cfg(feature = "ckpt")]
pub use snaprig_branch::{Branch, BranchError, Branches, CkptBranch, Output, Results, Verdict};

pub use self::case::{Case, FromCase};

/// A test that is run once for each seed, and on each platform if it takes a [`Rig`].
///
/// | argument | meaning | default |
/// |---|---|---|
/// | `cards = 2` | cards of the rig, or of the simulated system | 1 |
/// | `hcas = 2` | HCAs of the fabric | 1 |
/// | `model = "AB"` | their model, or a letter for each | `"A"` |
/// | `platforms = ["kvm", "ptrace"]` | how real cards run | the best that works here |
/// | `seeds = 0..20` | the seeds | `0..1` |
/// | `exe = PATH` | the `snaprig` program of real rigs and fabrics | `$SNAPRIG_EXE`, or the test itself |
///
/// The function takes what implements [`FromCase`], in any order: a [`Rig`], a [`Sim`], a [`Fabric`],
/// the seed (`u64`), numbers from it ([`Random`]), or all that is known ([`Case`]). It returns nothing, or a
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
/// #[snaprig::test(model = "C")]
/// fn there_is_no_such_model(fabric: snaprig::Fabric) {}
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
