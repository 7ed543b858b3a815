//! Which descriptors are a library's own: one bit for each, read without a lock.

use std::{
    ffi::c_int,
    sync::atomic::{AtomicU64, Ordering},
};

/// Descriptors that fit.
const FDS_MAX: usize = 1 << 16;

/// A set of descriptors.
#[derive(Debug)]
pub struct Descriptors([AtomicU64; FDS_MAX / 64]);

impl Default for Descriptors {
    fn default() -> Self {
        Self::new()
    }
}

impl Descriptors {
    /// None.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; FDS_MAX / 64])
    }

    fn place(&self, fd: c_int) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }

    /// Is it one of them?
    #[inline]
    pub fn has(&self, fd: c_int) -> bool {
        self.place(fd)
            .is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// From now on it is; if there is room.
    pub fn add(&self, fd: c_int) -> bool {
        self.place(fd)
            .map(|(word, bit)| word.fetch_or(bit, Ordering::Relaxed))
            .is_some()
    }

    /// No more; tells if it was.
    pub fn remove(&self, fd: c_int) -> bool {
        self.place(fd)
            .is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = c_int> + '_ {
        (0..FDS_MAX as c_int).filter(|fd| self.has(*fd))
    }

    /// None is any more.
    pub fn clear(&self) {
        for word in &self.0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}
