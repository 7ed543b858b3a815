//! Where the peer's windows are, as long as the node says so ([`crate::host::leases`]).
//!
//! What must stay true: whoever uses a lease has counted itself before it looks whether that holds still, and the
//! node is told when the last copy of a recalled one has ended.

use std::{
    collections::BTreeMap,
    os::fd::AsFd,
    sync::{PoisonError, RwLock},
};

use super::{Connection, NONSENSE, Result};
use crate::host::{
    leases::Leases,
    protocol::{Answer, Call, Segment},
};

/// Most that is asked for in one copy: what is in more pieces is for the node.
const ASKED_MAX: usize = 64;
/// Most of these that are remembered.
const RUNS_MAX: usize = 1024;

/// What copying from a window needs.
pub const PROT_READ: u8 = 1;
/// What copying to a window needs.
pub const PROT_WRITE: u8 = 2;

/// Where windows of an endpoint's peer are: on one connection, whose end is the end of its copies for the node.
pub struct Lease {
    leases: Leases,
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
struct Copying<'a, C: Connection> {
    lease: &'a Lease,
    connection: &'a C,
    generation: u32,
}

impl Lease {
    /// Of a connection that has none yet.
    pub fn new(connection: &impl Connection) -> Result<Self> {
        let (_, file) = connection.ask(Call::Leases)?;
        let leases = Leases::map(file.ok_or(NONSENSE)?.as_fd()).map_err(|_| libc::ENOMEM)?;
        Ok(Self {
            leases,
            known: RwLock::default(),
        })
    }

    /// Where it counts: address and bytes of a mapping.
    pub fn range(&self) -> (usize, usize) {
        self.leases.range()
    }

    /// Makes a copy from or to these bytes of the peer's windows, if they are leased, or can be.
    pub fn copy<C: Connection>(
        &self,
        connection: &C,
        remote: i64,
        len: u64,
        prot: u8,
        copy: impl FnOnce(&[Segment]) -> Result,
    ) -> Option<Result> {
        for _ in 0..ASKED_MAX {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let generation = known.generation;
            let copying = Copying::begin(self, connection, generation);
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
            self.ask(connection, missing).ok()?;
        }
        None
    }

    fn ask(&self, connection: &impl Connection, remote: i64) -> Result {
        let (
            Answer::Lease {
                generation,
                offset,
                prot,
                segments,
            },
            _,
        ) = connection.ask(Call::Lease(remote))?
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

impl<'a, C: Connection> Copying<'a, C> {
    fn begin(lease: &'a Lease, connection: &'a C, generation: u32) -> Self {
        lease.leases.enter();
        Self {
            lease,
            connection,
            generation,
        }
    }
}

impl<C: Connection> Drop for Copying<'_, C> {
    fn drop(&mut self) {
        if self.lease.leases.leave(self.generation) {
            self.connection.tell(Call::Leased);
        }
    }
}
