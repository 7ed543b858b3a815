//! scif_mmap and scif_munmap: the peer's windows in the program's own address space.
//!
//! What must stay true: the node knows of a mapping until it is unmapped, or the process ends; until
//! then the peer's pages are not used for anything else, even if the endpoint is closed.
//!
//! A mapping ends with munmap(2), exec and the program, and a child has none of it. In a process that is restored it is
//! gone, as its connections are: touching it is SIGBUS. It outlives the peer's connection, program and card: what was there
//! last can still be read.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ffi::c_void,
    os::fd::{OwnedFd, RawFd},
    sync::{Arc, Mutex},
};

use rustix::{
    io::Errno,
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap},
    net::{RecvFlags, Shutdown, recv, shutdown},
};
use snaprig_scif::{
    copying::peers,
    host::protocol::{Answer, Call},
};

use super::{NONSENSE, find, lock, memory};
use crate::ffi::Result;

/// Where something is mapped: its end, and what keeps it at the node.
static MAPPED: Mutex<BTreeMap<usize, (usize, Arc<Holder>)>> = Mutex::new(BTreeMap::new());

/// Keeps a mapping at the node.
struct Holder {
    socket: OwnedFd,
    process: u32,
}

impl Holder {
    fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            process: std::process::id(),
        }
    }
}

impl Drop for Holder {
    /// Tells the node, and waits until it knows: what the program does next comes after that.
    fn drop(&mut self) {
        // A child of fork(2) has none of its parent's mappings.
        if self.process == std::process::id() {
            let _ = shutdown(&self.socket, Shutdown::Write);
            let mut byte = [0];
            while recv(&self.socket, &mut byte[..], RecvFlags::empty()) == Err(Errno::INTR) {}
        }
    }
}

/// # Safety
/// As for mmap(2): if it is `fixed`, nobody uses what is mapped at `addr`, `len` bytes of it, for
/// it is replaced.
pub(crate) unsafe fn map(
    addr: *mut c_void,
    len: usize,
    prot: u8,
    fixed: bool,
    epd: RawFd,
    offset: i64,
) -> Result<*mut c_void> {
    let endpoint = find(epd)?;
    if offset < 0 {
        super::connected(epd)?;
        return Err(libc::ENXIO);
    }
    let call = Call::Map {
        offset,
        len: len as u64,
        prot,
    };
    let (segments, holder) = match endpoint.call_with(call, None, false)? {
        (Answer::Mapped(segments), Some(socket)) => (segments, Arc::new(Holder::new(socket))),
        (Answer::Mapped(_), None) => return Err(libc::EMFILE),
        _ => return Err(NONSENSE),
    };
    // All files first: what is mapped now goes only if all can be mapped.
    let mut files = BTreeMap::new();
    for segment in &segments {
        if let Entry::Vacant(entry) = files.entry(segment.memory) {
            entry.insert(peers::file(&*endpoint, segment.memory)?.0);
        }
    }
    let flags = match fixed {
        true => MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
        false => MapFlags::PRIVATE | MapFlags::NORESERVE,
    };
    // SAFETY: the caller says that nobody uses what a fixed mapping replaces; else the kernel
    // chooses a place where nothing is.
    let base = unsafe { mmap_anonymous(addr, len, ProtFlags::empty(), flags) };
    let base = base.map_err(|e| e.raw_os_error())?;
    unmapped(base.addr(), len);
    let prot = ProtFlags::from_bits_truncate(prot.into());
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    let mut at = 0;
    for segment in &segments {
        let bytes = segment.len as usize;
        let file = &files[&segment.memory];
        // SAFETY: the node tells as many bytes as it was asked to map, so that `place` and what
        // follows it are within the `len` bytes that were reserved above, which nobody else knows
        // of yet and which this replaces.
        let mapped = unsafe {
            let place = base.byte_add(at);
            mmap(place, bytes, prot, flags, file, segment.offset)
        };
        if let Err(error) = mapped {
            // SAFETY: these are the `len` bytes that were reserved above; nobody else knows of them
            // yet.
            let _ = unsafe { munmap(base, len) };
            return Err(error.raw_os_error());
        }
        at += bytes;
    }
    // SAFETY: the advice is on the `len` bytes that were mapped above, and takes them away from
    // children only, for none may have them (scif_mmap of the driver): in this process nothing
    // changes.
    let _ = unsafe { madvise(base, len, Advice::LinuxDontFork) };
    memory::claim(base.addr(), len);
    lock(&MAPPED).insert(base.addr(), (base.addr() + len, holder));
    Ok(base)
}

/// Nothing of ours is mapped there any more.
pub(crate) fn unmapped(start: usize, len: usize) {
    let end = start.saturating_add(len);
    let mut mapped = lock(&MAPPED);
    let touched: Vec<_> = mapped
        .range(..end)
        .filter(|(_, (ends, _))| *ends > start)
        .map(|(at, _)| *at)
        .collect();
    if touched.is_empty() {
        return;
    }
    let mut gone = Vec::new();
    for at in touched {
        if let Some((ends, holder)) = mapped.remove(&at) {
            if at < start {
                mapped.insert(at, (start, holder.clone()));
            }
            if ends > end {
                mapped.insert(end, (ends, holder.clone()));
            }
            gone.push(holder);
        }
    }
    drop(mapped);
    drop(gone);
    memory::disclaim(start, end - start);
}
