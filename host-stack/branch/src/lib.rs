//! Branches of a checkpoint: a running job, restarted many times, each time with another fault plan.
//!
//! ```text
//! run --starts--> keeper --fork--> first process of namespaces of its own (PIDs, mounts, network, System V)
//!      <--events--                   |  the checkpoint's directory and those of the program's files, copied when written to
//!                                    |  a fabric
//!                                    '--starts--> restart; the plan begins when the program runs again
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`Branches`] | what is branched, and how; runs it |
//! | `source` | a checkpoint: of a tree, or of a job |
//! | `draw` | plans from seeds |
//! | [`process`] | the process that is one branch |
//! | `isolate` | its namespaces, and copies of directories |
//! | [`verdict`] | what became of one |
//!
//! What must stay true: nothing that a branch does changes the checkpoint or another branch; whatever ends this process, or a
//! branch, ends all of that branch's processes, and the kernel takes away what they had.

mod branches;
mod draw;
mod isolate;
pub mod process;
mod run;
mod source;
pub mod verdict;

pub use self::{
    branches::{BranchError, Branches, Output, Results, folder_name},
    verdict::{Branch, Verdict},
};

use snaprig_supervisor::Ckpt;

/// `Ckpt::branch`.
pub trait CkptBranch {
    /// Branches of the checkpoint in a directory.
    fn branch(directory: impl Into<std::path::PathBuf>) -> Branches {
        Branches::of(directory)
    }
}

impl CkptBranch for Ckpt {}
