//! Copies between the own memory and the peer's, on the caller's thread: the node checks the ranges
//! and says where the peer's are; while a copy is under way it counts as DMA that is.

use std::{
    os::fd::RawFd,
    ptr,
    sync::atomic::{Ordering, fence},
};

use snaprig_scif::host::protocol::{Answer, Call, Segment};

use super::{
    NONSENSE,
    endpoint::{Endpoint, ask, tell},
    find, memory, stream,
};
use crate::ffi::Result;

/// A cache line.
const LINE: u64 = 64;

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

    fn at(self, endpoint: &Endpoint) -> Option<(*mut u8, u64)> {
        match self {
            Self::Window(offset) => endpoint.window_at(offset),
            Self::Memory(address) => Some((ptr::with_exposed_provenance_mut(address), u64::MAX)),
        }
    }
}

pub(crate) fn copy(
    epd: RawFd,
    local: Local,
    len: u64,
    remote: i64,
    write: bool,
    ordered: bool,
) -> Result {
    let endpoint = find(epd)?;
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
            result = copy_segments(&endpoint, at, &segments, write, ordered && is_last);
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

fn copy_segments(
    endpoint: &Endpoint,
    local: Local,
    segments: &[Segment],
    write: bool,
    ordered: bool,
) -> Result {
    let peers = memory::peers(endpoint, segments)?;
    let peers = peers.as_ref().ok_or(libc::ENOMEM)?;
    let total: u64 = segments.iter().map(|segment| segment.len).sum();
    // With SCIF_RMA_ORDERED, the source's last cache line is seen last.
    let mut moved = 0;
    for segment in segments {
        let mut segment = *segment;
        while segment.len > 0 {
            let at = local.skip(moved);
            let (there, there_len) = peers.at(segment).ok_or(libc::ENOMEM)?;
            let (here, here_len) = at.at(endpoint).ok_or(libc::ENXIO)?;
            let part = segment.len.min(there_len).min(here_len);
            let (from, to) = if write { (here, there) } else { (there, here) };
            let end = from.addr() as u64 + part;
            let last = match ordered && moved + part == total {
                true => {
                    part - ((end - 1) / LINE * LINE)
                        .saturating_sub(from.addr() as u64)
                        .min(part)
                }
                false => 0,
            };
            let first = (part - last) as usize;
            // SAFETY: both are mapped for `part` bytes: the peer's as long as `peers` is locked, this
            // side's because it was checked or is mapped by the library. Others may write to either at
            // any time; then the bytes are the old or the new ones.
            unsafe {
                stream::copy(from, to, first);
                if last > 0 {
                    fence(Ordering::SeqCst);
                    ptr::copy(from.add(first), to.add(first), last as usize);
                }
            }
            moved += part;
            segment.offset += part;
            segment.len -= part;
        }
    }
    fence(Ordering::SeqCst);
    Ok(())
}
