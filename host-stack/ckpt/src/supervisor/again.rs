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

use snaprig_ckpt_image::{chain::Chain, store::Store};

use super::{MEMBER, Options, Supervisor, control::listen, signals::Signals};
use crate::{
    error::{Error, Result},
    restart::{self, Clocks, Complete},
    state::Tree,
};

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
    let mut chain = Chain::open(&checkpoint.chain(MEMBER)?)?;
    let tree = restart::read_tree(&chain)?;
    run(store.dir(), &tree, options, |complete| {
        restart::restore(&tree, &mut chain, drops_privileges(), complete, || Ok(()))?;
        Ok(checkpoint.manifest().command.clone())
    })
}

/// Has `restore` make a tree in namespaces of its own, and supervises that to its end; its exit status. `restore` says
/// what the tree's command line was; if it fails, so does this.
pub fn run(
    directory: &Path,
    tree: &Tree,
    options: &Options,
    restore: impl FnOnce(Complete) -> Result<Vec<String>>,
) -> Result<i32> {
    let failed = |source| Error::io("pipe", source);
    let (mut heard, said) = io::pipe().map_err(failed)?;
    let clocks = Clocks {
        monotonic: tree.monotonic_nanos,
        boottime: tree.boottime_nanos,
    };
    let status = restart::run(restart::place(tree), clocks, |complete| {
        let restore = || restore(complete);
        supervise(directory, tree, options, restore).unwrap_or_else(|error| {
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

/// Restores a tree, and supervises it.
fn supervise(
    directory: &Path,
    tree: &Tree,
    options: &Options,
    restore: impl FnOnce() -> Result<Vec<String>>,
) -> Result<i32> {
    let listener = listen(directory)?;
    let signals = Signals::block()?;
    let command = restore()?;
    Supervisor::new(directory, listener, signals, tree.root, command, options)?.run()
}
