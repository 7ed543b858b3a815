//! The tree that this process supervises: all of its descendants; or a process that somebody else has started and this one
//! has adopted, with that one's descendants.
//!
//! What must stay true: a process supervises one tree, and which one is said before anybody asks.

use std::sync::OnceLock;

use libc::pid_t;

use crate::{
    descriptors::me,
    error::Result,
    freeze::{descendants, is_descendant},
};

static ADOPTED: OnceLock<pid_t> = OnceLock::new();

/// From now on the tree of this process is another process with its descendants. A second time it is the same one.
pub fn adopt(root: pid_t) {
    let _ = ADOPTED.set(root);
}

/// Who has launched the tree, or the first process of one that was adopted: no process of it began earlier, and each has the
/// control group, security label and filters of this one unless it has changed them.
pub fn first() -> pid_t {
    ADOPTED.get().copied().unwrap_or_else(me)
}

/// Its processes, a parent before its children.
pub fn processes() -> Result<Vec<pid_t>> {
    let mut found: Vec<pid_t> = ADOPTED.get().copied().into_iter().collect();
    found.extend(descendants(first())?);
    Ok(found)
}

/// Whether a process is of it, or this one.
pub fn is_ours(pid: pid_t) -> bool {
    pid == me() || is_descendant(pid, first())
}
