//! Memory of peers in a traced process, which has no descriptor of it.
//!
//! ```text
//! tracer: name into the stub page --> openat --> mmap --> close --> name out of the stub page
//! ```
//!
//! The name is that of the VMM's own descriptor, in /proc. What must stay true: before and after, the process
//! has card memory and nothing else; only one of its tasks is at it at a time, since descriptors and stub
//! are all its tasks'.

use std::os::fd::AsRawFd;

use snaprig_card_memory::CardMemory;

use super::{
    stub::{self, NAME, NAME_BYTES},
    task::Task,
};
use crate::PlatformError;

/// The lowest descriptor, which is free.
pub const PEER_FD: i32 = 0;
pub const OPEN_FLAGS: i32 = libc::O_RDWR | libc::O_CLOEXEC;

/// Maps `len` bytes at `first`: those at `address`, which are all of one range.
pub fn map(
    task: &Task,
    memory: &CardMemory,
    first: u64,
    len: u64,
    prot: u64,
    address: u64,
) -> Result<(), PlatformError> {
    // It may be gone already: the tables have been written by somebody else.
    let Some((shared, at)) = memory.outside().memory(address, len) else {
        return Err(PlatformError::Guest(format!("no memory at {address:#x}")));
    };
    let (file, start) = shared.file();
    let name = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut bytes = [0; NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    task.poke(NAME, &bytes)?;
    let opened = task.call(
        stub::CALL,
        libc::SYS_openat,
        [libc::AT_FDCWD as u64, NAME, OPEN_FLAGS as u64, 0, 0, 0],
    );
    task.poke(NAME, &[0; NAME_BYTES])?;
    let fd = opened?;
    if fd != PEER_FD as u64 {
        return Err(PlatformError::Guest(format!("a traced process has {fd}")));
    }
    let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
    let mapped = task.call(
        stub::CALL,
        libc::SYS_mmap,
        [first, len, prot, flags, fd, start + at],
    );
    task.call(stub::CALL, libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
    mapped.map(drop)
}
