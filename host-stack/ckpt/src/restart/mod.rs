//! From an image to processes.
//!
//! ```text
//! outside:    read the first section --> namespaces --> wait for the exit status
//! supervisor: open files --> plant processes --> lay out their memory --> fill it --> finish --> let all go
//! ```
//! What must stay true: none of the tree's code runs before the image has been read to its end; if anything is wrong
//! all processes end, and no file of the tree has been written to but those whose contents the image has.

mod credentials;
mod files;
mod groups;
mod layout;
mod namespaces;
mod process;
mod seed;
mod sockets;
mod timers;

mod fill;

use std::io;

use snaprig_ckpt_image::chain::Chain;

use self::{files::Opened, fill::fill, process::Growing};
pub use self::{
    groups::place,
    namespaces::{Clocks, chain, exit_code, run},
};
use crate::{
    error::{Error, Result},
    state::{Kind, Process, Tree},
    trace::Tracee,
};

/// Reads what a chain of images says of its tree.
pub fn read_tree(chain: &Chain) -> Result<Tree> {
    let mut tree = None;
    chain.states(|state| -> Result<()> {
        tree = Some(state.decode()?);
        Ok(())
    })?;
    tree.ok_or_else(|| files::damaged("no tree of processes"))
}

/// Makes the tree of a chain of images; the caller is its supervisor, and has one thread. When all processes stand as
/// they were, and every byte of them has been read and checked, `may_go` says whether they run; then they do when this
/// returns.
pub fn restore(
    tree: &Tree,
    chain: &mut Chain,
    drops_privileges: bool,
    may_go: impl FnOnce() -> Result<()>,
) -> Result<()> {
    check(tree)?;
    groups::lead(tree);
    let mut opened = Opened::open(tree)?;
    let result = grow(tree, chain, &mut opened, drops_privileges, may_go);
    if result.is_err() {
        for process in &tree.processes {
            // SAFETY: no memory is involved; in this namespace the number is nobody else's.
            unsafe { libc::kill(process.pid, libc::SIGKILL) };
        }
    }
    opened.close();
    result
}

/// Numbers of an image that everything else relies on.
fn check(tree: &Tree) -> Result<()> {
    let is_known =
        |pid| pid == tree.supervisor || tree.processes.iter().any(|process| process.pid == pid);
    let lives = |process: &&Process| process.zombie.is_none();
    let is_sound = tree
        .processes
        .iter()
        .all(|process| process.pid > 1 && is_known(process.parent))
        && tree.processes.iter().filter(lives).all(|process| {
            let first = process.body.as_ref().and_then(|body| body.threads.first());
            first.is_some_and(|first| first.tid == process.pid)
        });
    match is_sound {
        true => Ok(()),
        false => Err(files::damaged("processes that do not belong together")),
    }
}

fn grow(
    tree: &Tree,
    chain: &mut Chain,
    opened: &mut Opened,
    drops_privileges: bool,
    may_go: impl FnOnce() -> Result<()>,
) -> Result<()> {
    seed::plant(tree, opened)?;
    let mut growing = Vec::new();
    for process in &tree.processes {
        if let Some(body) = &process.body {
            growing.push(Growing::lay_out(process, body, tree, opened)?);
        }
    }
    fill(tree, chain, opened)?;
    cut(tree, opened)?;
    let mut threads: Vec<Tracee> = Vec::new();
    for growing in growing {
        threads.extend(growing.finish(tree, opened, drops_privileges)?);
    }
    may_go()?;
    groups::dismiss(tree);
    for process in &tree.processes {
        if let Some(signal) = process.stopped {
            // SAFETY: no memory is involved.
            unsafe { libc::kill(process.pid, signal) };
        }
    }
    for thread in threads {
        thread.detach(0)?;
    }
    Ok(())
}

/// Contents come in whole pages: takes off what is behind a file's end.
fn cut(tree: &Tree, opened: &Opened) -> Result<()> {
    for file in &tree.files {
        let Kind::Path {
            contents: Some(contents),
            ..
        } = &file.kind
        else {
            continue;
        };
        if let Some(Some(fd)) = opened.contents.get(&contents.space) {
            // SAFETY: no memory is involved.
            if unsafe { libc::ftruncate(*fd, contents.size as i64) } != 0 {
                return Err(Error::io("ftruncate", io::Error::last_os_error()));
            }
        }
    }
    Ok(())
}
