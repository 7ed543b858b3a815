//! Copies of a program of the host between memory of its own and its peer's windows, on its own processor: for a card, between
//! the program and card memory, which it has mapped.
//!
//! | module | what it is |
//! |---|---|
//! | [`lease`] | where the peer's windows are, for as long as that is known |
//! | [`peers`] | the memory that they are in |
//! | `stream` | the copying itself |
//!
//! What must stay true: what is copied counts as under way for the node, by a lease or a plan, from before the first byte until after
//! the last.

pub mod lease;
pub mod peers;
mod stream;

use std::{
    os::fd::OwnedFd,
    ptr,
    sync::atomic::{Ordering, fence},
};

use snaprig_dma::region::transfer;

use self::peers::{Peers, Place};
use crate::host::protocol::{Answer, Call, Segment};

/// A cache line.
const LINE: u64 = 64;
/// The answer is not one to the call: node and program are of different versions.
const NONSENSE: i32 = libc::EPROTO;

/// A result, or an errno.
type Result<T = ()> = std::result::Result<T, i32>;

/// A connection to the node, of an endpoint.
pub trait Connection {
    /// A call, its answer, and the descriptor that comes with that.
    fn ask(&self, call: Call) -> Result<(Answer, Option<OwnedFd>)>;
    /// A call that is not answered. A node that is gone need not know.
    fn tell(&self, call: Call);
}

/// Copies between the peer's memory and this side's, or (`write`) the other way. `local` says where this side is from so many
/// bytes on, and how many are there in a row. `ordered`: the last cache line of what is copied is seen last.
///
/// # Safety
/// What `local` gives has as many bytes as it says, which may be read, or if this does not `write`, written, until this returns.
pub unsafe fn copy<K>(
    peers: &Peers<K>,
    segments: &[Segment],
    local: impl Fn(u64) -> Option<(*mut u8, u64)>,
    write: bool,
    ordered: bool,
) -> Result {
    let total: u64 = segments.iter().map(|segment| segment.len).sum();
    let mut moved = 0;
    for segment in segments {
        let mut segment = *segment;
        while segment.len > 0 {
            let (there, there_len) = peers.at(segment).ok_or(libc::ENOMEM)?;
            let (here, here_len) = local(moved).ok_or(libc::ENXIO)?;
            let part = segment.len.min(there_len).min(here_len);
            let from = match write {
                true => here.addr() as u64,
                false => there.number(),
            };
            let end = from + part;
            let last = match ordered && moved + part == total {
                true => part - ((end - 1) / LINE * LINE).saturating_sub(from).min(part),
                false => 0,
            };
            // SAFETY: the caller says that so many bytes are at `here`; `there` has as many, as `peers` says.
            unsafe { copy_part(there, here, (part - last) as usize, last as usize, write) }?;
            moved += part;
            segment.offset += part;
            segment.len -= part;
        }
    }
    fence(Ordering::SeqCst);
    Ok(())
}

/// `first` bytes, and then `last`.
///
/// # Safety
/// `first` and `last` bytes are both at `there` and at `here`.
unsafe fn copy_part(
    there: Place<'_>,
    here: *mut u8,
    first: usize,
    last: usize,
    write: bool,
) -> Result {
    let there = match there {
        Place::Mapped(there) => there,
        Place::File(file, at) => {
            let rest = here.wrapping_add(first);
            // SAFETY: the caller says that `here` has both numbers of bytes. They go through read(2) and write(2), by which the
            // kernel looks at every address again, and fails with EFAULT.
            return unsafe {
                transfer(file, at, here, first, write)
                    .and_then(|()| transfer(file, at + first as u64, rest, last, write))
            };
        }
    };
    let (from, to) = if write { (here, there) } else { (there, here) };
    // SAFETY: the caller says that both have so many bytes. Others may write to either at any time; then the bytes are the old or
    // the new ones.
    unsafe {
        stream::copy(from, to, first);
        if last > 0 {
            fence(Ordering::SeqCst);
            ptr::copy(from.add(first), to.add(first), last);
        }
    }
    Ok(())
}
