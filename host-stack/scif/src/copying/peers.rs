//! Memory of peers, in this process: mapped, or where it may become shorter, as files that are read and written.
//!
//! What must stay true: what is mapped of it stays so while somebody looks.

use std::{
    collections::BTreeMap,
    mem,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{PoisonError, RwLock, RwLockReadGuard},
};

use rustix::mm::{Advice, madvise};
use snaprig_scif_lanes::shared::SharedMemory;

use super::{Connection, NONSENSE, Result};
use crate::host::protocol::{Answer, Call, Segment};

/// It is mapped in pieces of so many bytes.
const CHUNK: u64 = 1 << 30;
/// Most pieces that stay mapped.
const CHUNKS_MAX: usize = 64;
/// Most files that stay open.
const FILES_MAX: usize = 64;

/// Others' memory, by file and chunk; and files that are read and written, as they may become shorter. `K` is made of address and
/// bytes of a mapping, and is dropped before it is unmapped.
pub struct Peers<K> {
    /// Which process has it mapped: a child of fork(2) has nothing of its parent's.
    process: u32,
    chunks: BTreeMap<(u64, u64), Chunk<K>>,
    files: BTreeMap<u64, OwnedFd>,
}

struct Chunk<K> {
    _known: K,
    memory: SharedMemory,
}

/// Where a peer's bytes are.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// Here.
    Mapped(*mut u8),
    /// In this file.
    File(BorrowedFd<'a>, u64),
}

impl Place<'_> {
    /// A number that grows with its addresses, page by page as they do.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Mapped(at) => at.addr() as u64,
            Self::File(_, at) => at,
        }
    }
}

impl<K> Peers<K> {
    /// None.
    pub const fn new() -> Self {
        Self {
            process: 0,
            chunks: BTreeMap::new(),
            files: BTreeMap::new(),
        }
    }

    /// Where a segment is, and how much of it is there in a row.
    pub(super) fn at(&self, segment: Segment) -> Option<(Place<'_>, u64)> {
        if let Some(file) = self.files.get(&segment.memory) {
            return Some((Place::File(file.as_fd(), segment.offset), segment.len));
        }
        let skip = segment.offset % CHUNK;
        let chunk = self.chunks.get(&(segment.memory, segment.offset / CHUNK))?;
        let at = chunk.memory.base().as_ptr().wrapping_add(skip as usize);
        Some((Place::Mapped(at), segment.len.min(CHUNK - skip)))
    }

    fn missing(&self, segments: &[Segment]) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mapped = |segment: &&Segment| !self.files.contains_key(&segment.memory);
        for segment in segments.iter().filter(mapped) {
            let last = (segment.offset + segment.len.max(1) - 1) / CHUNK;
            for chunk in segment.offset / CHUNK..=last {
                let key = (segment.memory, chunk);
                if !self.chunks.contains_key(&key) && !missing.contains(&key) {
                    missing.push(key);
                }
            }
        }
        missing
    }

    fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// A child of fork(2) begins anew.
    fn own(&mut self) {
        if !self.is_own() {
            self.process = std::process::id();
            for chunk in mem::take(&mut self.chunks).into_values() {
                // Something of the child's may be there.
                mem::forget(chunk.memory);
            }
        }
    }

    fn add_file(&mut self, memory: u64, file: OwnedFd) {
        while self.files.len() >= FILES_MAX {
            self.files.pop_first();
        }
        self.files.insert(memory, file);
    }

    fn add_chunk(&mut self, key: (u64, u64), chunk: Chunk<K>) {
        while self.chunks.len() >= CHUNKS_MAX {
            // The file that came first is gone soonest.
            self.chunks.pop_first();
        }
        self.chunks.insert(key, chunk);
    }
}

impl<K> Default for Peers<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K> Drop for Peers<K> {
    fn drop(&mut self) {
        self.own();
    }
}

/// All of these segments, there for as long as the guard lives.
pub fn with<'a, K: From<(usize, usize)>>(
    peers: &'a RwLock<Peers<K>>,
    connection: &impl Connection,
    segments: &[Segment],
) -> Result<RwLockReadGuard<'a, Peers<K>>> {
    loop {
        let present = peers.read().unwrap_or_else(PoisonError::into_inner);
        let missing = present.missing(segments);
        if present.is_own() && missing.is_empty() {
            return Ok(present);
        }
        drop(present);
        peers.write().unwrap_or_else(PoisonError::into_inner).own();
        for key in missing {
            let (file, is_sealed) = file(connection, key.0)?;
            let chunk = is_sealed.then(|| map(&file, key.1)).transpose()?;
            let mut peers = peers.write().unwrap_or_else(PoisonError::into_inner);
            match chunk {
                Some(chunk) => peers.add_chunk(key, chunk),
                None => peers.add_file(key.0, file),
            }
        }
    }
}

fn map<K: From<(usize, usize)>>(file: &OwnedFd, chunk: u64) -> Result<Chunk<K>> {
    let memory = SharedMemory::map(file.as_fd(), chunk * CHUNK, CHUNK as usize);
    let memory = memory.map_err(|_| libc::ENOMEM)?;
    // SAFETY: the advice is on the mapping that was just made, and takes it away from children only: in this process nothing changes.
    let _ = unsafe {
        madvise(
            memory.base().as_ptr().cast(),
            CHUNK as usize,
            Advice::LinuxDontFork,
        )
    };
    let _known = memory.range().into();
    Ok(Chunk { _known, memory })
}

/// The file that segments name so, and whether it stays as long as it is.
pub fn file(connection: &impl Connection, memory: u64) -> Result<(OwnedFd, bool)> {
    match connection.ask(Call::Memory(memory))? {
        (Answer::Unit, Some(file)) => Ok((file, true)),
        (Answer::File, Some(file)) => Ok((file, false)),
        (Answer::Unit | Answer::File, None) => Err(libc::EMFILE),
        _ => Err(NONSENSE),
    }
}
