//! Where the peer's windows are, as long as the node says so (`leases` of the node's crate).
//!
//! What must stay true: whoever uses a lease has counted itself before it looks whether that holds still, and the
//! node is told when the last copy of a recalled one has ended.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, PoisonError, RwLock},
};

use snaprig_scif::host::{
    leases::Leases,
    protocol::{Answer, Call, Segment},
};

use super::{
    NONSENSE,
    endpoint::{ask, tell},
    lock, memory,
};
use crate::ffi::Result;

/// Most that is asked for in one copy: what is in more pieces is planned.
const ASKED_MAX: usize = 64;
/// Most of these that are remembered.
const RUNS_MAX: usize = 1024;

pub(super) struct Lease {
    process: u32,
    leases: Leases,
    /// Of its own: its end tells the node of this process's.
    channel: Mutex<Option<OwnedFd>>,
    known: RwLock<Generation>,
}

/// Of one generation.
#[derive(Default)]
struct Generation {
    generation: u32,
    runs: BTreeMap<i64, Run>,
}

/// From an offset on.
struct Run {
    len: u64,
    prot: u8,
    segments: Vec<Segment>,
}

/// Counted in.
struct Copying<'a> {
    lease: &'a Lease,
    generation: u32,
}

impl Lease {
    pub(super) fn new(channel: OwnedFd) -> Result<Self> {
        let (_, file) = ask(&channel, Call::Leases, None, false)?;
        let leases = Leases::map(file.ok_or(NONSENSE)?.as_fd()).map_err(|_| libc::ENOMEM)?;
        let (start, len) = leases.range();
        memory::claim(start, len);
        Ok(Self {
            process: std::process::id(),
            leases,
            channel: Mutex::new(Some(channel)),
            known: RwLock::default(),
        })
    }

    /// A child of fork(2) has its parent's.
    pub(super) fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// The endpoint is closed.
    pub(super) fn close(&self) {
        drop(lock(&self.channel).take());
    }

    /// Makes a copy from or to these bytes of the peer's windows, if they are leased, or can be.
    pub(super) fn copy(
        &self,
        remote: i64,
        len: u64,
        prot: u8,
        copy: impl FnOnce(&[Segment]) -> Result,
    ) -> Option<Result> {
        for _ in 0..ASKED_MAX {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let generation = known.generation;
            let copying = Copying::begin(self, generation);
            let found = match self.leases.generation() == generation {
                true => known.find(remote, len, prot),
                false => Err(Some(remote)),
            };
            drop(known);
            let missing = match found {
                Ok(segments) => return Some(copy(&segments)),
                Err(missing) => missing?,
            };
            drop(copying);
            self.ask(missing).ok()?;
        }
        None
    }

    fn ask(&self, remote: i64) -> Result {
        let (answer, _) = {
            let channel = lock(&self.channel);
            let channel = channel.as_ref().ok_or(libc::EBADF)?;
            ask(channel, Call::Lease(remote), None, false)?
        };
        let Answer::Lease {
            generation,
            offset,
            prot,
            segments,
        } = answer
        else {
            return Err(NONSENSE);
        };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.generation != generation || known.runs.len() >= RUNS_MAX {
            known.generation = generation;
            known.runs.clear();
        }
        let len = segments.iter().map(|segment| segment.len).sum();
        let run = Run {
            len,
            prot,
            segments,
        };
        known.runs.insert(offset, run);
        Ok(())
    }
}

impl Generation {
    /// Where these bytes are; else the first of them that is not known, or nothing if they may not be used so.
    fn find(
        &self,
        remote: i64,
        len: u64,
        prot: u8,
    ) -> std::result::Result<Vec<Segment>, Option<i64>> {
        let mut found = Vec::new();
        let (mut at, mut left) = (remote, len);
        while left > 0 {
            let run = self.runs.range(..=at).next_back();
            let run = run.map(|(start, run)| ((at - start).cast_unsigned(), run));
            let Some((mut skip, run)) = run.filter(|(skip, run)| *skip < run.len) else {
                return Err(Some(at));
            };
            if run.prot & prot != prot {
                return Err(None);
            }
            for segment in &run.segments {
                if skip >= segment.len {
                    skip -= segment.len;
                    continue;
                }
                let part = (segment.len - skip).min(left);
                found.push(Segment {
                    memory: segment.memory,
                    offset: segment.offset + skip,
                    len: part,
                });
                skip = 0;
                at = at.saturating_add_unsigned(part);
                left -= part;
                if left == 0 {
                    break;
                }
            }
        }
        Ok(found)
    }
}

impl<'a> Copying<'a> {
    fn begin(lease: &'a Lease, generation: u32) -> Self {
        lease.leases.enter();
        Self { lease, generation }
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        if self.lease.leases.leave(self.generation) {
            // A node that is gone waits for nothing.
            if let Some(channel) = &*lock(&self.lease.channel) {
                let _ = tell(channel, Call::Leased, None);
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (start, len) = self.leases.range();
        memory::disclaim(start, len);
    }
}
