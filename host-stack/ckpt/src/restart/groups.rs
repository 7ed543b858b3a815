//! Sessions and process groups whose leaders are not in the tree: they have ended, or are the launcher's.
//!
//! A number is a session's or a group's as long as anybody is in it. So a helper takes the number, makes session or
//! group, and ends when the others have joined.

use libc::pid_t;

use super::namespaces::{Place, fork_as};
use crate::{
    error::{Error, Result},
    state::{Process, Tree},
};

/// Where a tree is put. On a terminal it stays in the session and the group of whoever restarts it: only those may
/// use it.
pub fn place(tree: &Tree) -> Place {
    let root = tree
        .processes
        .iter()
        .find(|process| process.pid == tree.root);
    let session = root.map_or(0, |root| root.session);
    let is_outside = session > 0 && !is_there(tree, session);
    Place {
        supervisor: tree.supervisor,
        session: (is_outside && !is_on_terminal()).then_some(session),
    }
}

fn is_on_terminal() -> bool {
    // SAFETY: no memory is involved.
    (0..3).any(|fd| unsafe { libc::isatty(fd) } == 1)
}

fn is_there(tree: &Tree, pid: pid_t) -> bool {
    tree.processes.iter().any(|process| process.pid == pid)
}

/// Whether a session's leader has ended, or is outside.
pub fn is_orphaned(tree: &Tree, session: pid_t) -> bool {
    session > 1 && session != tree.supervisor && !is_there(tree, session)
}

/// Groups of a session whose leaders are not there.
fn orphans(tree: &Tree, session: pid_t) -> Vec<pid_t> {
    let is_orphan =
        |process: &&Process| process.session == session && is_orphaned(tree, process.group);
    let members = tree.processes.iter().filter(is_orphan);
    let mut groups: Vec<_> = members.map(|process| process.group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.retain(|group| *group != session);
    groups
}

/// Makes the groups of a session whose leaders are not there; the caller is in that session. The helpers are nobody's
/// children: the one in between ends.
pub fn make(tree: &Tree, session: pid_t) -> Result<()> {
    let groups = orphans(tree, session);
    if groups.is_empty() {
        return Ok(());
    }
    // SAFETY: the process has one thread.
    let between = unsafe { libc::fork() };
    if between != 0 {
        return wait(between);
    }
    for group in groups {
        match fork_as(group, libc::SIGCHLD) {
            Ok(0) => loop {
                // SAFETY: no preconditions.
                unsafe { libc::pause() };
            },
            // SAFETY: no memory is involved.
            Ok(helper) => unsafe {
                libc::setpgid(helper, helper);
            },
            Err(_) => std::process::exit(1),
        }
    }
    std::process::exit(0)
}

/// Waits for a child that ends at once.
pub fn wait(child: pid_t) -> Result<()> {
    let mut status = 0;
    // SAFETY: `status` is valid to write to.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    match ended == child && status == 0 {
        true => Ok(()),
        false => {
            let what = "the number of a session or group cannot be had";
            Err(Error::io(what, std::io::Error::last_os_error()))
        }
    }
}

/// The group that a process has to join, if it does not lead it.
pub fn joins(tree: &Tree, process: &Process) -> Option<pid_t> {
    let is_leader = process.session == process.pid || process.group == process.pid;
    let is_of_callers = is_orphaned(tree, process.group) && is_on_terminal();
    (!is_leader && process.group > 0 && !is_of_callers).then_some(process.group)
}

/// Everybody has joined: helpers end.
pub fn dismiss(tree: &Tree) {
    for process in &tree.processes {
        let group = process.group;
        if is_orphaned(tree, group) && group != process.session {
            // SAFETY: no memory is involved; in this namespace the number is a helper's, or free.
            unsafe { libc::kill(group, libc::SIGKILL) };
        }
    }
}
