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

use snaprig_ckpt_image::{
    chain::Chain,
    store::{Checkpoint, Store},
};

use super::{MEMBER, Options, Supervisor, control::listen, signals::Signals};
use crate::{
    error::{Error, Result},
    restart::{self, Clocks},
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
    let failed = |source| Error::io("pipe", source);
    let (mut damage, damaged) = io::pipe().map_err(failed)?;
    let place = restart::place(&tree);
    let clocks = Clocks {
        monotonic: tree.monotonic_nanos,
        boottime: tree.boottime_nanos,
    };
    let status = restart::run(place, clocks, || {
        let supervised = supervise(store.dir(), &checkpoint, options, || {
            restart::restore(&tree, &mut chain, drops_privileges(), || Ok(()))?;
            drop(chain);
            Ok(tree.root)
        });
        supervised.unwrap_or_else(|error| {
            let message = restart::chain(&error);
            match error.is_damage() {
                true => tell(&damaged, &message),
                false => eprintln!("snaprig: {message}"),
            }
            1
        })
    })?;
    drop(damaged);
    let mut what = String::new();
    damage.read_to_string(&mut what).map_err(failed)?;
    match what.is_empty() {
        true => Ok(status),
        false => Err(Error::Damaged { what }),
    }
}

/// A message that fits into a pipe.
fn tell(mut to: impl Write, message: &str) {
    let end = message.floor_char_boundary(MESSAGE_MAX);
    // Who would read it is gone.
    let _ = to.write_all(&message.as_bytes()[..end]);
}

/// Whether a tree is restarted by somebody who cannot give it other users than himself.
fn drops_privileges() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() != 0 }
}

/// Restores a tree, and supervises it.
fn supervise(
    directory: &Path,
    checkpoint: &Checkpoint,
    options: &Options,
    restore: impl FnOnce() -> Result<libc::pid_t>,
) -> Result<i32> {
    let listener = listen(directory)?;
    let signals = Signals::block()?;
    let root = restore()?;
    let command = checkpoint.manifest().command.clone();
    Supervisor::new(directory, listener, signals, root, command, options)?.run()
}
