//! Copies between the own memory and the peer's, on the caller's thread. Where the peer's is, is leased
//! (`lease`); what does not fit a lease is planned by the node, which checks the ranges and says how a copy that
//! cannot be made fails. While a copy is under way it counts as DMA that is.

use std::{
    collections::BTreeMap,
    os::fd::RawFd,
    ptr,
    sync::atomic::{Ordering, fence},
};

use snaprig_dma::region::transfer;
use snaprig_scif::host::protocol::{Answer, Call, Segment};

use super::{
    NONSENSE,
    endpoint::{Endpoint, ask, tell},
    find,
    memory::{self, PeerMemory},
    stream,
};
use crate::ffi::Result;

/// What copying from and to a window needs.
const PROT_READ: u8 = 1;
const PROT_WRITE: u8 = 2;
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
    let lease = endpoint.lease().filter(|_| len > 0)?;
    let windows = endpoint.windows();
    if !local.is_allowed(&windows, len, local_prot) {
        return None;
    }
    lease.copy(remote, len, remote_prot, |segments| {
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
            let (here, here_len) = at.at(windows).ok_or(libc::ENXIO)?;
            let part = segment.len.min(there_len).min(here_len);
            let from = if write {
                here.addr() as u64
            } else {
                there.number()
            };
            let end = from + part;
            let last = match ordered && moved + part == total {
                true => part - ((end - 1) / LINE * LINE).saturating_sub(from).min(part),
                false => 0,
            };
            let first = (part - last) as usize;
            let there = match there {
                PeerMemory::Mapped(there) => there,
                PeerMemory::File(file, at) => {
                    let rest = here.wrapping_add(first);
                    // SAFETY: `here` has `part` bytes on this side, for which the program's memory
                    // was checked or which the library has mapped itself, and `first` and `last`
                    // add up to them. They go through read(2) and write(2), by which the kernel
                    // looks at every address again, and fails with EFAULT.
                    unsafe {
                        transfer(file, at, here, first, write)?;
                        transfer(file, at + first as u64, rest, last as usize, write)?;
                    }
                    moved += part;
                    segment.offset += part;
                    segment.len -= part;
                    continue;
                }
            };
            let (from, to) = if write { (here, there) } else { (there, here) };
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
