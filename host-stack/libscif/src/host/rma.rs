//! Copies between the own memory and the peer's, on the caller's thread. Where the peer's is, is leased
//! (`lease`); what does not fit a lease is planned by the node, which checks the ranges and says how a copy that
//! cannot be made fails. While a copy is under way it counts as DMA that is.

use std::{collections::BTreeMap, os::fd::RawFd, ptr};

use snaprig_scif::{
    copying::{
        self,
        lease::{PROT_READ, PROT_WRITE},
        peers,
    },
    host::protocol::{Answer, Call, Segment},
};

use super::{
    NONSENSE,
    endpoint::{Endpoint, ask, tell},
    find,
    lease::PEERS,
    memory,
};
use crate::ffi::Result;

/// This side of a copy.
#[derive(Clone, Copy)]
pub(crate) enum Local {
    /// An offset in the own windows.
    Window(i64),
    /// An address.
    Memory(usize),
}

impl Local {
    fn skip(self, bytes: u64) -> Self {
        match self {
            Self::Window(offset) => Self::Window(offset.saturating_add_unsigned(bytes)),
            Self::Memory(address) => Self::Memory(address + bytes as usize),
        }
    }

    fn at(self, windows: &Windows) -> Option<(*mut u8, u64)> {
        match self {
            Self::Window(offset) => {
                let (start, memory) = windows.range(..=offset).next_back()?;
                memory.at((offset - start).cast_unsigned())
            }
            Self::Memory(address) => Some((ptr::with_exposed_provenance_mut(address), u64::MAX)),
        }
    }

    /// Whether all of it may be used so, as far as is known here.
    fn is_allowed(self, windows: &Windows, len: u64, prot: u8) -> bool {
        let Self::Window(offset) = self else {
            return true;
        };
        let mut at = offset;
        let mut left = len;
        while left > 0 {
            let window = windows.range(..=at).next_back();
            let allowed = window
                .and_then(|(start, memory)| memory.allowed((at - start).cast_unsigned(), prot));
            let Some(allowed) = allowed else {
                return false;
            };
            let part = allowed.min(left);
            at = at.saturating_add_unsigned(part);
            left -= part;
        }
        true
    }
}

/// The own windows, by offset.
pub(super) type Windows = BTreeMap<i64, memory::Shared>;

pub(crate) fn copy(
    epd: RawFd,
    local: Local,
    len: u64,
    remote: i64,
    write: bool,
    ordered: bool,
) -> Result {
    let endpoint = find(epd)?;
    if let Some(result) = copy_leased(&endpoint, local, len, remote, write, ordered) {
        return result;
    }
    let mut moved = 0;
    let mut checked = false;
    while moved < len || len == 0 {
        let at = local.skip(moved);
        let plan = Call::Plan {
            local: match at {
                Local::Window(offset) => Some(offset),
                Local::Memory(_) => None,
            },
            len: len - moved,
            remote: remote.saturating_add_unsigned(moved),
            write,
        };
        let channel = endpoint.take_channel()?;
        let (job, segments) = match ask(&channel, plan, None, false) {
            Ok((Answer::Plan { job, segments }, _)) => (job, segments),
            other => {
                endpoint.put_channel(channel);
                return match (other, local) {
                    // Memory that cannot be mapped: the node copies.
                    (Err(libc::EOPNOTSUPP), Local::Window(local)) => {
                        let call = Call::Rma {
                            local,
                            len,
                            remote,
                            write,
                        };
                        endpoint.call(call).map(drop)
                    }
                    (Err(errno), _) => Err(errno),
                    (Ok(_), _) => Err(NONSENSE),
                };
            }
        };
        let part: u64 = segments.iter().map(|segment| segment.len).sum();
        let mut result = Ok(());
        if let (Local::Memory(address), false) = (local, checked) {
            result = memory::check(address, len as usize, !write);
            checked = true;
        }
        if result.is_ok() {
            let is_last = moved + part >= len;
            let ordered = ordered && is_last;
            result = copy_segments(
                &endpoint,
                &endpoint.windows(),
                at,
                &segments,
                write,
                ordered,
            );
        }
        let told = tell(&channel, Call::PlanDone(job), None);
        endpoint.put_channel(channel);
        result.and(told)?;
        if part == 0 {
            return Err(NONSENSE);
        }
        moved += part;
    }
    Ok(())
}

/// The copy, if it can be made without the node; it tells what is wrong with others.
fn copy_leased(
    endpoint: &Endpoint,
    local: Local,
    len: u64,
    remote: i64,
    write: bool,
    ordered: bool,
) -> Option<Result> {
    let (local_prot, remote_prot) = match write {
        true => (PROT_READ, PROT_WRITE),
        false => (PROT_WRITE, PROT_READ),
    };
    let leased = endpoint.leased().filter(|_| len > 0)?;
    let windows = endpoint.windows();
    if !local.is_allowed(&windows, len, local_prot) {
        return None;
    }
    let channel = &leased.channel;
    leased
        .lease
        .copy(channel, remote, len, remote_prot, |segments| {
            if let Local::Memory(address) = local {
                memory::check(address, len as usize, !write)?;
            }
            copy_segments(endpoint, &windows, local, segments, write, ordered)
        })
}

fn copy_segments(
    endpoint: &Endpoint,
    windows: &Windows,
    local: Local,
    segments: &[Segment],
    write: bool,
    ordered: bool,
) -> Result {
    let peers = peers::with(&PEERS, endpoint, segments)?;
    let here = |moved| local.skip(moved).at(windows);
    // SAFETY: this side's memory was checked, or is mapped by the library as long as `windows` is locked.
    unsafe { copying::copy(&peers, segments, here, write, ordered) }
}
