//! Sessions and process groups whose leaders are not in the tree: they have ended, or are the launcher's.
//!
//! A number is a session's or a group's as long as anybody is in it. So a helper takes the number, makes session or
//! group, and ends when the others have joined. A leader of another namespace has number 0: a tree of its group is in
//! that of whoever restarts it.

use libc::pid_t;
use snaprig_resources::groups::{is_on_terminal, is_orphaned, is_there};
use snaprig_resources::{
    error::{Error, Result},
    processes::await_end,
    state::{Process, Tree},
};

use super::namespaces::{Place, fork_as};

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
        root: tree.root,
        session: (is_outside && !is_on_terminal()).then_some(session),
        hidden: tree.processes.iter().find(is_hidden).map(|it| it.pid),
    }
}

fn is_hidden(process: &&Process) -> bool {
    let body = process.body.as_ref();
    body.and_then(|body| body.attributes.get(&libc::PR_SET_DUMPABLE))
        .is_some_and(|value| *value != 1)
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
    // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
    let between = unsafe { libc::fork() };
    if between != 0 {
        return wait(between);
    }
    for group in groups {
        match fork_as(group, libc::SIGCHLD) {
            Ok(0) => loop {
                // SAFETY: pause(2) takes no argument, and waits for a signal.
                unsafe { libc::pause() };
            },
            // SAFETY: setpgid(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
            // process.
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
    // SAFETY: waitpid(2) writes an int, which is a variable of this function.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    match ended == child && status == 0 {
        true => Ok(()),
        false => {
            let what = "the number of a session or group cannot be had";
            Err(Error::io(what, std::io::Error::last_os_error()))
        }
    }
}

/// A supervisor that led a group does again, as it does where a shell has started it; the caller is the supervisor.
pub fn lead(tree: &Tree) {
    let led = |process: &Process| process.group == tree.supervisor;
    if tree.processes.iter().any(led) && !is_on_terminal() {
        // SAFETY: setpgid(2) takes numbers alone. It fails for who leads a session, and its group with that.
        unsafe { libc::setpgid(0, 0) };
    }
}

/// Everybody has joined: helpers end, before anybody looks at the tree.
pub fn dismiss(tree: &Tree) -> Result<()> {
    for process in &tree.processes {
        let group = process.group;
        if is_orphaned(tree, group) && group != process.session {
            // SAFETY: kill(2) takes numbers alone; in this PID namespace, which is the tree's, the number is a
            // helper's, or free.
            unsafe { libc::kill(group, libc::SIGKILL) };
            await_end(group)?;
        }
    }
    Ok(())
}
