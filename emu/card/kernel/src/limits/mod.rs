//! Resource limits (getrlimit(2)). That of descriptors is kept; the others are remembered, and told to
//! whoever asks: a card has its memory and cores for a few programs.

mod calls;

use serde::{Deserialize, Serialize};
use snaprig_card_driver::errno::Errno;

/// Descriptors of a process that has not asked for more, and the most that one may have: what Linux
/// has for those that nobody gives others (INR_OPEN_CUR, INR_OPEN_MAX).
const NOFILE: u64 = 1024;
const NOFILE_MAX: u64 = 4096;
/// The first stack's size, which is also that of threads' stacks.
const STACK_BYTES: u64 = 8 << 20;
/// What Linux says of locked memory, and does not hold root to (MLOCK_LIMIT).
const MEMLOCK_BYTES: u64 = 8 << 20;
/// `RLIM_NLIMITS`.
const COUNT: usize = 16;

/// The limits of a process: soft and hard, by `RLIMIT_*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits([(u64, u64); COUNT]);

impl Default for Limits {
    fn default() -> Self {
        let mut limits = [(libc::RLIM_INFINITY, libc::RLIM_INFINITY); COUNT];
        limits[libc::RLIMIT_STACK as usize].0 = STACK_BYTES;
        limits[libc::RLIMIT_NOFILE as usize] = (NOFILE, NOFILE_MAX);
        limits[libc::RLIMIT_MEMLOCK as usize] = (MEMLOCK_BYTES, MEMLOCK_BYTES);
        limits[libc::RLIMIT_CORE as usize] = (0, 0);
        Self(limits)
    }
}

impl Limits {
    /// Descriptors that the process may have.
    pub fn nofile(&self) -> usize {
        self.0[libc::RLIMIT_NOFILE as usize].0.min(NOFILE_MAX) as usize
    }

    fn set(&mut self, resource: usize, (soft, hard): (u64, u64)) -> Result<(), Errno> {
        if soft > hard {
            return Err(Errno::EINVAL);
        }
        // Root may raise a hard limit, but not this one (fs.nr_open).
        if resource == libc::RLIMIT_NOFILE as usize && hard > NOFILE_MAX {
            return Err(Errno::EPERM);
        }
        self.0[resource] = (soft, hard);
        Ok(())
    }
}
