//! What is held through open files: locks, leases, and who gets their signals.
//!
//! | | |
//! |---|---|
//! | flock(2), F_SETLK, F_OFD_SETLK, leases, F_SETOWN, F_SETSIG, O_ASYNC | saved |
//! | a lease that is being broken | refused for now |
//! | a lock that keeps others out, of a tree that moves to another supervisor of this machine | refused |
//! | a process outside that gets the signals | refused |

mod restore;
pub mod save;
pub mod state;

use snaprig_tracee::remote::result;

use crate::{
    error::Result,
    growing::Growing,
    opened::Opened,
    resource::{Purpose, Resource, Running},
    state::Tree,
};

/// Locks, leases, owners. They are saved with the files that they are of.
#[derive(Debug)]
pub struct Locks;

impl Resource for Locks {
    fn look(&self, tree: &Running<'_>) -> Result<()> {
        match tree.purpose {
            Purpose::Moving | Purpose::MovingAlong => save::none(),
            Purpose::Alone | Purpose::Job => Ok(()),
        }
    }

    fn claim(&self, tree: &Tree, opened: &Opened) -> Result<()> {
        restore::lock(tree, opened)
    }

    /// To close any descriptor of a file gives the locks up that a process has on it: it has no others any more.
    fn with_own(&self, tree: &Tree, growing: &Growing<'_>) -> Result<()> {
        for step in restore::steps(tree, growing.process, growing.body) {
            let made = growing.call_with(step.call, step.data.as_deref())?;
            result(made).map_err(|source| step.failed(growing.process.pid, source))?;
        }
        Ok(())
    }

    fn finish(&self, tree: &Tree, opened: &Opened) -> Result<()> {
        restore::own_all(tree, opened)
    }
}
