//! From a checkpoint in a directory to a tree that is supervised.
//!
//! ```text
//! caller:      the newest checkpoint --> namespaces --> wait         damaged: the one before it
//!                                            |            ^
//! supervisor:                             restore --------' damaged, and nothing has run
//! ```

use std::{
    io::{self, Read, Write},
    path::Path,
};

use libc::pid_t;
use procfs::process::Process;
use snaprig_ckpt::{
    error::{Error, Result},
    restart::{self, Clocks, Complete, Restored},
    state::Tree,
};
use snaprig_ckpt_image::{
    chain::Chain,
    store::{Checkpoint, Store},
};

use crate::supervisor::{MEMBER, Options, Parts, Supervisor};

/// Longest message of what is wrong with a checkpoint.
const MESSAGE_MAX: usize = 2000;

/// Restarts a checkpoint of a directory, and supervises it to its end; its exit status. `round` says which; none: the
/// newest that is sound, and what is wrong with newer ones is said. The calling process has one thread.
pub fn restart(directory: &Path, round: Option<u64>, options: &Options) -> Result<i32> {
    let nothing = || Error::Missing {
        what: format!("there is no complete checkpoint in {}", directory.display()),
    };
    if !directory.is_dir() {
        return Err(nothing());
    }
    let store = Store::open(directory)?;
    if let Some(round) = round {
        return attempt(&store, round, options);
    }
    for round in store.rounds()?.into_iter().rev() {
        match attempt(&store, round, options) {
            Err(error) if error.is_damage() => eprintln!(
                "snaprig: checkpoint {round} is passed over: {}",
                restart::chain(&error)
            ),
            other => return other,
        }
    }
    Err(nothing())
}

/// Restarts a checkpoint. If it is damaged, nothing of its tree has run.
fn attempt(store: &Store, round: u64, options: &Options) -> Result<i32> {
    let checkpoint = store.checkpoint(round)?;
    let (tree, chain) = open(&checkpoint, MEMBER)?;
    within(&tree, |complete| {
        let parts = Parts::new(store.dir(), store.clone())?;
        let mut restored = Restored::open(&tree, &chain, None)?;
        restored.grow(&chain, drops_privileges(), None)?;
        go(restored, complete, &parts, &checkpoint)?;
        let command = checkpoint.manifest().command.clone();
        Supervisor::of_restarted(parts, &tree, command, options).run()
    })
}

/// Has a tree run, and its plugins build up again what they have taken down. If one cannot, the tree ends.
pub fn go(
    restored: Restored,
    complete: Complete,
    parts: &Parts,
    checkpoint: &Checkpoint,
) -> Result<()> {
    let channels = restored.go(complete)?;
    let mut plugins = parts.plugins.borrow_mut();
    plugins
        .restart(channels, checkpoint.path())
        .inspect_err(|_| end_all())
}

/// Ends all processes of a tree that has been restarted, and is not to go on.
fn end_all() {
    // SAFETY: no preconditions.
    let me = unsafe { libc::getpid() };
    let lives = |pid: &pid_t| {
        let stat = Process::new(*pid).and_then(|process| process.stat());
        stat.is_ok_and(|stat| stat.state != 'Z')
    };
    // Those that are being made while others end are seen the next time.
    while let Ok(pids) = snaprig_tracee::freeze::descendants(me)
        && pids.iter().any(lives)
    {
        for pid in pids {
            // SAFETY: no memory is involved; in this namespace they are all of this tree.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// Opens a member's chain of images, and reads what it says of the tree.
pub fn open(checkpoint: &Checkpoint, member: &str) -> Result<(Tree, Chain)> {
    let chain = Chain::open(&checkpoint.chain(member)?)?;
    Ok((restart::read_tree(&chain)?, chain))
}

/// Works in the namespaces of a tree that is restarted, as its supervisor; the exit status. If it fails, so does this.
pub fn within(tree: &Tree, work: impl FnOnce(Complete) -> Result<i32>) -> Result<i32> {
    let failed = |source| Error::io("pipe", source);
    let (mut heard, said) = io::pipe().map_err(failed)?;
    let clocks = Clocks {
        monotonic: tree.monotonic_nanos,
        boottime: tree.boottime_nanos,
    };
    let has_own_ipc = tree.sysv.is_some();
    let status = restart::run(restart::place(tree), clocks, has_own_ipc, |complete| {
        work(complete).unwrap_or_else(|error| {
            tell(&said, &error);
            1
        })
    })?;
    drop(said);
    let mut what = Vec::new();
    heard.read_to_end(&mut what).map_err(failed)?;
    match String::from_utf8_lossy(&what).split_at_checked(1) {
        None => Ok(status),
        Some((DAMAGED, what)) => Err(Error::Damaged { what: what.into() }),
        Some((_, what)) => Err(Error::Refusal { what: what.into() }),
    }
}

/// What a message to the caller begins with.
const DAMAGED: &str = "d";
const OTHER: &str = "o";

/// An error, as a message that fits into a pipe.
fn tell(mut to: impl Write, error: &Error) {
    let kind = if error.is_damage() { DAMAGED } else { OTHER };
    let message = kind.to_owned() + &restart::chain(error);
    // Who would read it is gone.
    let _ = to.write_all(&message.as_bytes()[..message.len().min(MESSAGE_MAX)]);
}

/// Whether a tree is restarted by somebody who cannot give it other users than himself.
pub fn drops_privileges() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() != 0 }
}
