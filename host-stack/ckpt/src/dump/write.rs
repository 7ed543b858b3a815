//! Writes what processes have in their memory, and has each kind of state write what it has.

use std::ops::Range;

use super::Described;
use crate::faults;
use libc::pid_t;
use snaprig_ckpt_image::image::{Sink, Writer};
use snaprig_resources::{
    copy::{PageWriter, copy_held, write_gone, write_mapped, write_part},
    error::{Error, Result},
    spaces::{Key, Space, Spaces},
    state::{Area, Backing},
};
use snaprig_tracee::faults::reached;
use snaprig_tracee::{
    freeze::{Frozen, HeldProcess},
    memory,
    pagemap::Pagemap,
    ranges::Ranges,
    track::Tracking,
};

/// Larger pages are not tracked: they are walked in parts (`Pagemap::take_written`), and protected whole or not at all.
const TRACKED_MAX: u64 = 2 << 20;

/// What of a process's memory is to be saved.
pub struct Saving {
    pid: pid_t,
    /// It shares pages with relatives.
    shares: bool,
    space: u32,
    /// What it can read itself.
    readable: Ranges,
    /// What only a tracer can.
    hidden: Ranges,
    /// Areas that are saved whole: of files that have no name.
    nameless: Ranges,
    /// What the chain says of it, and is no more.
    gone: Ranges,
}

impl Saving {
    /// Bytes of the pages that are to be copied.
    pub fn bytes(&self) -> u64 {
        self.readable.bytes() + self.hidden.bytes() + self.nameless.bytes()
    }

    /// Leaves for later what `can_wait`.
    fn defer(&mut self, can_wait: &Ranges) -> Deferred {
        let pages = self.readable.within(can_wait);
        self.readable = self.readable.without(&pages);
        Deferred {
            pid: self.pid,
            shares: self.shares,
            space: self.space,
            pages,
        }
    }
}

/// Pages of a process that stands still, which are copied when all else of its tree has been.
pub struct Deferred {
    pid: pid_t,
    shares: bool,
    /// Its number.
    pub space: u32,
    /// All of them.
    pub pages: Ranges,
}

impl Deferred {
    /// Writes some of them.
    pub fn write(&self, part: Range<u64>, writer: &mut dyn PageWriter) -> Result<()> {
        let part = Ranges::from(part).within(&self.pages);
        copy_held(
            self.space,
            (self.pid, 0),
            &part,
            gather(self.shares),
            writer,
        )
    }
}

/// Leaves for later what of processes' memory nobody needs before they run: of what is private, the parts that are large, and
/// that a userfaultfd(2) can be waited for at, in them and in children of theirs.
pub fn defer(described: &Described, saving: &mut [Saving]) -> Vec<Deferred> {
    let bodies = described.tree.processes.iter();
    let bodies = bodies.filter_map(|process| process.body.as_ref());
    let deferred = saving.iter_mut().zip(bodies);
    let deferred = deferred.map(|(saving, body)| saving.defer(&can_wait(&body.areas)));
    let is_some = |deferred: &Deferred| deferred.pages.bytes() > 0;
    deferred.filter(is_some).collect()
}

/// Smaller memory is not worth a wait for it.
const DEFERRED_MIN: u64 = 1 << 20;

fn can_wait(areas: &[Area]) -> Ranges {
    /// Stacks that grow; what is locked; what kernels may drop; what children do not have, or have as zeroes.
    const NOT: [&[u8; 2]; 5] = [b"gd", b"lo", b"dp", b"dc", b"wf"];
    let is_plain =
        |area: &&Area| area.is_own() && !NOT.iter().any(|flag| area.flags.contains(flag));
    let areas = areas.iter().filter(is_plain);
    let pieces: Ranges = areas.map(|area| area.start..area.end).collect();
    let is_large = |piece: &Range<u64>| piece.end - piece.start >= DEFERRED_MIN;
    pieces.iter().filter(is_large).collect()
}

/// How pages of a process are read.
fn gather(shares: bool) -> Gather {
    match shares {
        true => memory::gather_shared,
        false => memory::gather,
    }
}

type Gather = fn(pid_t, &[libc::iovec], &mut [u8]) -> snaprig_tracee::error::Result<()>;

/// Looks which pages of a tree that stands still the chain does not have. With `tracking`, writes are tracked from now
/// on.
pub fn look(
    described: &mut Described,
    frozen: &mut Frozen,
    mut tracking: Option<&mut Tracking>,
    spaces: &mut Spaces,
) -> Result<Vec<Saving>> {
    let Described {
        tree,
        shared,
        resources,
        ..
    } = described;
    let mut kinds = resources.iter_mut();
    kinds.try_for_each(|kind| kind.scan(tree, shared, frozen))?;
    let bodies = frozen
        .processes
        .iter_mut()
        .zip(&mut described.tree.processes)
        .filter_map(|(held, process)| Some((held, process.body.as_mut()?)));
    bodies
        .map(|(held, body)| {
            let nameless = described.nameless.iter().copied();
            let nameless = nameless.filter(|(pid, _)| *pid == held.handle());
            let nameless: Vec<u64> = nameless.map(|(_, start)| start).collect();
            let space = spaces.meet(Key::Process(held.pid));
            let looked = (nameless.as_slice(), described.sharing.contains(&held.pid));
            let (saving, guards) =
                look_at(held, &body.areas, looked, tracking.as_deref_mut(), space)?;
            body.guards = guards.iter().map(|part| (part.start, part.end)).collect();
            Ok(saving)
        })
        .collect()
}

fn look_at(
    held: &mut HeldProcess,
    areas: &[Area],
    (nameless_at, shares): (&[u64], bool),
    tracking: Option<&mut Tracking>,
    space: &mut Space,
) -> Result<(Saving, Ranges)> {
    let (pid, pagemap) = (held.handle(), Pagemap::open(held.handle())?);
    let is_nameless = |area: &Area| nameless_at.contains(&area.start);
    let is_anonymous = |area: &Area| area.backing == Backing::Anonymous && !is_nameless(area);
    let is_private = |area: &&Area| !area.is_shared && !matches!(area.backing, Backing::Kernel(_));
    let private: Vec<&Area> = areas.iter().filter(is_private).collect();
    if let Some(tracking) = tracking {
        let new = private.iter().filter(|area| is_anonymous(area));
        let new = new.filter(|area| area.huge_bytes <= TRACKED_MAX);
        let new = new.filter(|area| !pagemap.is_tracked(area.start));
        let new: Vec<_> = new.map(|area| area.start..area.end).collect();
        tracking.start(held, &new)?;
    }
    let (mut own, mut written) = (Ranges::default(), Ranges::default());
    let (mut hidden, mut nameless) = (Ranges::default(), Ranges::default());
    // In areas that lie between the private ones: ranges are added in order.
    let (mut guards, mut shared_guards) = (Ranges::default(), Ranges::default());
    for area in areas
        .iter()
        .filter(|area| area.is_shared || is_nameless(area))
    {
        let before = shared_guards.bytes();
        pagemap.guards(area.start..area.end, &mut shared_guards)?;
        if shared_guards.bytes() > before && !matches!(area.backing, Backing::File { .. }) {
            // What is behind them can be read by others, but not through them.
            let what = format!(
                "guard pages (MADV_GUARD_INSTALL) in shared memory at {:#x}",
                area.start
            );
            return Err(Error::refused(held.pid, what));
        }
    }
    for area in private {
        let part = area.start..area.end;
        if is_nameless(area) {
            own.push(part.clone());
            nameless.push(part.clone());
            written.push(part);
            continue;
        }
        if is_anonymous(area) && pagemap.is_tracked(area.start) {
            pagemap.take_written(part.clone(), &mut own, &mut written, &mut guards)?;
        } else {
            pagemap.own(part.clone(), !is_anonymous(area), &mut own, &mut guards)?;
            written.push(part.clone());
        }
        if area.protection & libc::PROT_READ == 0 {
            hidden.push(part);
        }
    }
    space.written(&written);
    let missing = space.missing(&own).without(&nameless);
    let saving = Saving {
        pid,
        shares,
        space: space.number(),
        readable: missing.without(&hidden),
        hidden: missing.within(&hidden),
        nameless,
        gone: space.is_now(own),
    };
    Ok((saving, guards.union(&shared_guards)))
}

/// Writes what was looked at, all else that has bytes, and the tree's state.
pub fn write<S: Sink>(
    described: &Described,
    saving: Vec<Saving>,
    spaces: &mut Spaces,
    writer: &mut Writer<S>,
) -> Result<()> {
    for saving in saving {
        let at = (saving.pid, 0);
        let gather = gather(saving.shares);
        copy_held(saving.space, at, &saving.readable, gather, writer)?;
        // What a process may not read itself is read with its tracer's rights.
        let file = memory::open(saving.pid, false)?;
        for part in saving.hidden.iter() {
            write_part(saving.space, &file, part, writer)?;
        }
        for part in saving.nameless.iter() {
            write_mapped(saving.space, &file, part, 0, writer)?;
        }
        write_gone(saving.space, &saving.gone, writer)?;
    }
    for kind in &described.resources {
        kind.write(&described.tree, &described.shared, spaces, writer)?;
    }
    for (space, gone) in spaces.part() {
        write_gone(space, &gone, writer)?;
    }
    writer.state(&described.tree)?;
    reached(&faults::STATE);
    Ok(())
}
