//! Shared memory that goes along with a tree that moves on its machine.
//!
//! It is the same memory before and after, whoever else has it: peers that write to it by RDMA, and other trees. Until the move is
//! decided, whoever restores the tree only maps it.

use std::{collections::BTreeMap, fs::File, os::fd::OwnedFd};

use super::{shared::SharedObject, unlinked};
use crate::state::Tree;

/// Descriptors of it, by space. What is not among them is saved: huge pages are counted by what images have, and what was opened
/// with flags of names is not what it looks like.
pub fn find(tree: &Tree, met: &[SharedObject]) -> BTreeMap<u32, OwnedFd> {
    let by_name = unlinked::by_name(tree);
    let all = (0..).zip(tree.shared.iter().zip(met));
    let may =
        all.filter(|(number, (shared, _))| shared.huge_bytes == 0 && !by_name.contains_key(number));
    may.filter_map(|(_, (shared, object))| Some((shared.space, open(object)?)))
        .collect()
}

/// Through who has it open, or maps it (proc_pid_map_files(5): who has CAP_CHECKPOINT_RESTORE).
fn open(object: &SharedObject) -> Option<OwnedFd> {
    let opened = object.open.iter();
    let opened = opened.map(|(pid, fd)| format!("/proc/{pid}/fd/{fd}"));
    let mapped = object.mapped.iter().map(|it| {
        let end = it.start + (it.part.end - it.part.start);
        format!("/proc/{}/map_files/{:x}-{end:x}", it.pid, it.start)
    });
    let mut files = opened.chain(mapped);
    files
        .find_map(|path| File::options().read(true).write(true).open(path).ok())
        .map(OwnedFd::from)
}
