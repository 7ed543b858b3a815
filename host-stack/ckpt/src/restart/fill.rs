//! Fills memory, shared memory and files with what a chain of images has: for each page what the newest says.

use std::sync::atomic::{AtomicUsize, Ordering};

use snaprig_ckpt_image::chain::{Chain, Part, Place};
use snaprig_resources::{
    error::Result,
    state::{Backing, Tree},
    target::{Target, Targets, clear, put},
};
use snaprig_tracee::parallel;

use super::staging::Staging;

/// Fills all spaces but for what processes have been given, on all processors: what takes longest is to make the pages, and to have them
/// from the disk, for which one of two threads waits.
pub fn fill(chain: &Chain, targets: &Targets, there: &Staging) -> Result<()> {
    let next = AtomicUsize::new(0);
    let parts: Vec<_> = chain.parts().collect();
    // Parts of one chunk, which is read once.
    let groups: Vec<_> = parts
        .chunk_by(|one, other| one.place.is_beside(&other.place))
        .collect();
    let fill = || {
        let filled = fill_some(&groups, &next, chain, targets);
        if filled.is_err() {
            next.store(groups.len(), Ordering::Relaxed);
        }
        filled
    };
    let filled = parallel::each(0..2 * parallel::threads(), |_| fill());
    filled.into_iter().collect::<Result<()>>()?;
    there.fill_left(targets)
}

/// Fills group after group that nobody else has begun with.
fn fill_some(
    groups: &[&[Part]],
    next: &AtomicUsize,
    chain: &Chain,
    targets: &Targets,
) -> Result<()> {
    let mut loader = chain.loader();
    while let Some(group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
        for part in *group {
            let (target, start) = (targets.get(&part.run.space), part.run.address);
            match (part.place, target) {
                (Place::Zeroes, Some(target)) => clear(target, start..start + part.run.bytes)?,
                (Place::Zeroes, None) => {}
                // Of files that have not changed nothing is needed, but it is checked.
                (Place::Stored { .. }, target) => loader.load(part, |at, pages| {
                    target.map_or(Ok(()), |target| put(target, start + at, pages))
                })?,
            }
        }
    }
    Ok(())
}

/// Where the pages of processes go.
pub fn of_processes(tree: &Tree) -> Targets {
    let mut targets = Targets::new();
    for process in &tree.processes {
        let Some(body) = &process.body else { continue };
        let of_file = body
            .areas
            .iter()
            .filter(|area| !area.is_shared && is_of_file(&area.backing));
        let of_file = of_file.map(|area| area.start..area.end).collect();
        targets.insert(process.space, Target::Memory(process.pid, of_file));
    }
    targets
}

/// A private mapping of it shows what it has, but where it has been written to.
fn is_of_file(backing: &Backing) -> bool {
    matches!(backing, Backing::File { .. } | Backing::Shared(..))
}
