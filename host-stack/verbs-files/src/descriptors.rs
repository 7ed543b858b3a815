//! Which descriptors are the connection manager's: one bit for each, read without a lock.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicU64, Ordering},
};

/// Descriptors that fit; a program that has more gets EMFILE for the connection manager's.
const FDS_MAX: usize = 1 << 16;

static OURS: [AtomicU64; FDS_MAX / 64] = [const { AtomicU64::new(0) }; FDS_MAX / 64];

fn place(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Is it ours?
#[inline]
pub fn is_ours(fd: c_int) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// From now on it is; if there is room.
pub fn add(fd: c_int) -> bool {
    place(fd)
        .map(|(word, bit)| word.fetch_or(bit, Ordering::Relaxed))
        .is_some()
}

/// No more; tells if it was.
pub fn remove(fd: c_int) -> bool {
    place(fd).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
}
