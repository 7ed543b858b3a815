//! Buffers share memory: each has some pages of an [`Arena`] of the processes that it is for, and making
//! one where there is room is a matter of the host alone. Where there is none, a large buffer has memory
//! of its own, and for small ones there is more to share.
//!
//! What must stay true: no page is in two slots; a slot that is not fresh is not zero; memory that
//! is empty is given back, but for what is to be kept and for one that the next buffer finds.
//!
//! Whoever is given a slot that is not fresh clears it on the host and moves the zeroes.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    addresses::Ranges,
    arena::{Arena, Kind, Room},
};
use crate::{CoiError, Process, process::lock};

const PAGE: u64 = 4096;
/// For buffers of more bytes no memory is made that others could share.
const SMALL_MAX: u64 = 1 << 20;
/// The first memory of a pool; each that follows is as large as all before it.
const ARENA_MIN: u64 = 64 << 10;
const ARENA_MAX: u64 = 16 << 20;

/// What the pools of a process are told apart by: all processes of the buffers, and how they are made.
pub(crate) type Key = (Vec<u64>, Kind);
/// The pools of buffers of which it is the first process.
pub(crate) type Pools = Mutex<BTreeMap<Key, Arc<Pool>>>;

/// Memory of small buffers of the same processes.
#[derive(Default)]
pub(crate) struct Pool {
    space: Mutex<Space>,
    /// One at a time makes more.
    growing: Mutex<()>,
}

#[derive(Default)]
struct Space {
    free: Ranges,
    /// By address: memory, and up to where it was ever used.
    arenas: BTreeMap<u64, (Arc<Arena>, u64)>,
    bytes: u64,
    /// So much there shall be, in use or not.
    keep: u64,
    /// Memory without buffers that is more than that.
    spare: Option<u64>,
}

/// Bytes of an arena that are a buffer's: some, or all.
pub(crate) struct Slot {
    pub arena: Arc<Arena>,
    /// Where in the arena.
    pub at: u64,
    /// Nobody had it before: it is zero in all places.
    pub fresh: bool,
    len: u64,
    pool: Option<Arc<Pool>>,
    given_back: AtomicBool,
}

impl Slot {
    /// Room for a buffer in all of these processes.
    pub fn take(processes: &[Process], bytes: u64, kind: Kind) -> Result<Self, CoiError> {
        let too_large = || CoiError::NoMemory("a buffer");
        let len = bytes.checked_next_multiple_of(PAGE).ok_or_else(too_large)?;
        let pool = pool(processes, kind);
        if let Some(slot) = pool.take(len, kind) {
            return Ok(slot);
        }
        if len > SMALL_MAX {
            let arena = Arena::create(processes, len, kind, Room::Make)?;
            return Ok(Self::whole(arena, len));
        }
        let _one_at_a_time = lock(&pool.growing);
        loop {
            if let Some(slot) = pool.take(len, kind) {
                return Ok(slot);
            }
            pool.grow(processes, len, kind)?;
        }
    }

    /// Memory that is one buffer's.
    pub fn whole(arena: Arc<Arena>, len: u64) -> Self {
        Self {
            arena,
            at: 0,
            fresh: true,
            len,
            pool: None,
            given_back: AtomicBool::new(false),
        }
    }

    /// Whether the arena is its alone, and the host's to place.
    pub fn is_whole(&self) -> bool {
        self.pool.is_none() && self.arena.is_ours()
    }

    /// Which part of the arena it is.
    pub fn pages(&self) -> Range<u64> {
        self.at..self.at + self.len.next_multiple_of(PAGE)
    }

    /// Nobody uses it any more. Memory that nobody needs is taken away from the processes.
    pub fn give_back(&self) {
        if self.given_back.swap(true, Ordering::Relaxed) {
            return;
        }
        match &self.pool {
            None => self.arena.leave(),
            Some(pool) => {
                let empty = pool.give(self);
                empty.iter().for_each(|arena| arena.leave());
            }
        }
    }
}

/// Memory that is kept for buffers to come is given up, for those of another kind; whether there was
/// any.
pub(super) fn give_up_spares(processes: &[Process]) -> bool {
    let pools = processes.iter().flat_map(|process| {
        let pools = lock(&process.0.pools);
        pools.values().cloned().collect::<Vec<_>>()
    });
    let given_up = pools.filter(|pool| pool.give_up_spare());
    given_up.count() > 0
}

/// Sees to it that there is so much memory for buffers of a process alone, and stays
/// (COIProcessSetCacheSize). `now`: it is made, if there is less.
pub(crate) fn keep(process: &Process, bytes: u64, kind: Kind, now: bool) -> Result<(), CoiError> {
    let processes = std::slice::from_ref(process);
    let pool = pool(processes, kind);
    let _one_at_a_time = lock(&pool.growing);
    let has = {
        let mut space = lock(&pool.space);
        space.keep = bytes;
        space.bytes
    };
    let missing = bytes.saturating_sub(has).next_multiple_of(PAGE);
    if now && missing > 0 {
        let arena =
            Arena::create(processes, missing, kind, Room::Ask).map_err(|error| {
                match error.is_out_of_memory() {
                    true => CoiError::Exhausted(format!(
                        "the card has no room for {missing} bytes of buffers"
                    )),
                    false => error,
                }
            })?;
        lock(&pool.space).add(arena);
    }
    Ok(())
}

/// The pool of buffers for all of these processes; there is one.
fn pool(processes: &[Process], kind: Kind) -> Arc<Pool> {
    let mut ids: Vec<_> = processes.iter().map(Process::id).collect();
    ids.sort_unstable();
    let key = (ids, kind);
    match processes.first() {
        Some(first) => lock(&first.0.pools).entry(key).or_default().clone(),
        None => Arc::default(),
    }
}

impl Space {
    fn add(&mut self, arena: Arc<Arena>) {
        let (start, bytes) = (arena.address(), arena.memory().len() as u64);
        self.free.give(start, bytes);
        self.arenas.insert(start, (arena, start));
        self.bytes += bytes;
    }

    /// Memory without buffers is no more.
    fn remove(&mut self, start: u64) -> Option<Arc<Arena>> {
        let (arena, _) = self.arenas.remove(&start)?;
        let bytes = arena.memory().len() as u64;
        self.free.remove(start, bytes);
        self.bytes -= bytes;
        Some(arena)
    }
}

impl Pool {
    fn take(self: &Arc<Self>, len: u64, kind: Kind) -> Option<Slot> {
        let mut space = lock(&self.space);
        let address = space.free.take(len, kind.align())?;
        let (start, (arena, used)) = space.arenas.range_mut(..=address).next_back()?;
        let start = *start;
        let fresh = address >= *used;
        *used = (*used).max(address + len);
        let arena = arena.clone();
        if space.spare == Some(start) {
            space.spare = None;
        }
        Some(Slot {
            arena,
            at: address - start,
            fresh,
            len,
            pool: Some(self.clone()),
            given_back: AtomicBool::new(false),
        })
    }

    /// A slot is free again. Memory that is empty now and not needed is returned.
    fn give(&self, slot: &Slot) -> Option<Arc<Arena>> {
        let mut space = lock(&self.space);
        let start = slot.arena.address();
        space.free.give(start + slot.at, slot.len);
        let bytes = slot.arena.memory().len() as u64;
        if !space.free.has(start, bytes) || space.bytes - bytes < space.keep {
            return None;
        }
        let other = space.spare.replace(start)?;
        space.remove(other)
    }

    /// Memory that is kept for the next buffer goes as well.
    fn give_up_spare(&self) -> bool {
        let spare = {
            let mut space = lock(&self.space);
            let start = space.spare.take();
            start.and_then(|start| space.remove(start))
        };
        spare.iter().for_each(|arena| arena.leave());
        spare.is_some()
    }

    /// More memory, of at least so many bytes; of less than there should be if a card has no more.
    fn grow(&self, processes: &[Process], least: u64, kind: Kind) -> Result<(), CoiError> {
        let usual = lock(&self.space).bytes.clamp(ARENA_MIN, ARENA_MAX);
        let mut bytes = usual.next_power_of_two().max(least);
        let arena = loop {
            let room = if bytes > least {
                Room::Find
            } else {
                Room::Make
            };
            match Arena::create(processes, bytes, kind, room) {
                Err(error) if error.is_out_of_memory() && bytes > least => {
                    bytes = (bytes / 4).next_multiple_of(PAGE).max(least);
                }
                made => break made?,
            }
        };
        lock(&self.space).add(arena);
        Ok(())
    }
}
