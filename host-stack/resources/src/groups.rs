//! Sessions and process groups of a tree: which have lost their leaders, and who joins which.

use std::io::{self, IsTerminal};

use libc::pid_t;

use crate::state::{Process, Tree};

/// Whether whoever restarts the tree is on a terminal.
pub fn is_on_terminal() -> bool {
    io::stdin().is_terminal() || io::stdout().is_terminal() || io::stderr().is_terminal()
}

/// Whether a process is one of the tree.
pub fn is_there(tree: &Tree, pid: pid_t) -> bool {
    tree.processes.iter().any(|process| process.pid == pid)
}

/// Whether a session's leader has ended, or is outside.
pub fn is_orphaned(tree: &Tree, session: pid_t) -> bool {
    session > 1 && session != tree.supervisor && !is_there(tree, session)
}

/// The group that a process has to join, if it does not lead it.
pub fn joins(tree: &Tree, process: &Process) -> Option<pid_t> {
    let group = process.group;
    let is_leader = process.session == process.pid || group == process.pid;
    let is_outside = is_orphaned(tree, group) || group == tree.supervisor;
    let is_of_callers = is_outside && is_on_terminal();
    // The first process leads a group where it leads a session.
    let can_be = group > 1 || group == 1 && process.session == 1;
    (!is_leader && can_be && !is_of_callers).then_some(group)
}
