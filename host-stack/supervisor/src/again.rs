//! From a checkpoint in a directory to a tree that is supervised.
//!
//! ```text
//! caller:      the newest checkpoint --> namespaces --> wait         damaged: the one before it
//!                                            |            ^
//! supervisor:                             restore --------' damaged, and nothing has run
//! ```

use snaprig_resources::error::chain;
use std::{
    io::{self, Read, Write},
    path::Path,
};

use snaprig_ckpt::restart::{self, Complete, Restored};
use snaprig_ckpt_image::{
    chain::Chain,
    store::{Checkpoint, Store},
};
use snaprig_resources::event::{Event, Reporter};
use snaprig_resources::{
    clocks::Clocks,
    error::{Error, Result},
    opened::make_room,
    state::Tree,
};
use snaprig_tracee::faults::begin_round;

use crate::{
    migrate::{self, Sources},
    plugins::JobRound,
    supervisor::{MEMBER, Options, Parts, Supervisor},
};

/// Longest message of what is wrong with a checkpoint.
const MESSAGE_MAX: usize = 2000;

/// Restarts a checkpoint of a directory, and supervises it to its end; its exit status. `round` says which; none: the
/// newest that is sound, and what is wrong with newer ones is said. If the tree has migrated, or may have, where it is
/// comes first: nothing of it is restarted that goes on elsewhere. The calling process has one thread.
pub fn restart(directory: &Path, round: Option<u64>, options: &Options) -> Result<i32> {
    let nothing = || Error::Missing {
        what: format!("there is no complete checkpoint in {}", directory.display()),
    };
    if !directory.is_dir() {
        return Err(nothing());
    }
    let store = Store::open(directory)?;
    let departure = migrate::settle(directory, &options.reporter)?;
    let refused = |round: u64| {
        let departure = departure.as_ref().filter(|it| it.is_of(round));
        departure.map(|it| it.refusal(directory))
    };
    if let Some(round) = round {
        return match refused(round) {
            Some(error) => Err(error),
            None => attempt(&store, round, options),
        };
    }
    for round in store.rounds()?.into_iter().rev() {
        if let Some(error) = refused(round) {
            return Err(error);
        }
        match attempt(&store, round, options) {
            Err(error) if error.is_damage() => {
                let why = chain(&error);
                options.reporter.tell(Event::PassedOver { round, why });
            }
            other => return other,
        }
    }
    Err(departure.map_or_else(nothing, |it| it.refusal(directory)))
}

/// Restarts a checkpoint. If it is damaged, nothing of its tree has run.
fn attempt(store: &Store, round: u64, options: &Options) -> Result<i32> {
    let checkpoint = store.checkpoint(round)?;
    let (tree, chain) = open(&checkpoint, MEMBER)?;
    within(&tree, &options.reporter, |complete| {
        let parts = Parts::new(store.dir(), store.clone())?;
        begin_round();
        let mut restored = Restored::open(&tree, &chain, None, &options.reporter)?;
        restored.grow(&chain, drops_privileges(), None)?;
        rebuild(&mut restored, &parts, checkpoint.path(), None)?;
        go(restored, complete, &parts)?;
        let manifest = checkpoint.manifest();
        let command = manifest.command.clone();
        let mut supervisor = Supervisor::of_restarted(parts, &tree, command, options);
        supervisor.sources = Sources::of(store, &manifest.arrivals, &options.reporter);
        supervisor.run()
    })
}

/// Has the plugins of a tree build up again what they have taken down, while the tree's own code does not run. If one
/// cannot, the tree is to end.
pub fn rebuild(
    restored: &mut Restored,
    parts: &Parts,
    checkpoint: &Path,
    job: Option<JobRound>,
) -> Result<()> {
    let channels = restored.wake_plugins()?;
    parts
        .plugins
        .borrow_mut()
        .rebuild(channels, checkpoint, job)
}

/// Has a tree run that is complete.
pub fn go(restored: Restored, complete: Complete, parts: &Parts) -> Result<()> {
    restored.go(complete)?;
    parts.plugins.borrow_mut().go();
    Ok(())
}

/// Opens a member's chain of images, and reads what it says of the tree.
pub fn open(checkpoint: &Checkpoint, member: &str) -> Result<(Tree, Chain)> {
    let chain = Chain::open(&checkpoint.chain(member)?)?;
    Ok((restart::read_tree(&chain)?, chain))
}

/// Works in the namespaces of a tree that is restarted, as its supervisor; the exit status. If it fails, so does this.
pub fn within(
    tree: &Tree,
    reporter: &Reporter,
    work: impl FnOnce(Complete) -> Result<i32>,
) -> Result<i32> {
    let failed = |source| Error::io("pipe", source);
    let (mut heard, said) = io::pipe().map_err(failed)?;
    let has_own_ipc = tree.sysv.is_some();
    let status = restart::run(
        restart::place(tree),
        Clocks::of(tree),
        has_own_ipc,
        reporter,
        |complete| {
            // Without, it only takes longer.
            let _ = make_room(tree);
            work(complete).unwrap_or_else(|error| {
                tell(&said, &error);
                1
            })
        },
    )?;
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
    let message = kind.to_owned() + &chain(error);
    // Who would read it is gone.
    let _ = to.write_all(&message.as_bytes()[..message.len().min(MESSAGE_MAX)]);
}

/// Whether a tree is restarted by somebody who cannot give it other users than himself.
pub fn drops_privileges() -> bool {
    !rustix::process::geteuid().is_root()
}
