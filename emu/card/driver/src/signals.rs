//! Sets of signals (signal(7)), as calls and files have them.

use serde::{Deserialize, Serialize};

/// The last signal.
pub const SIGNALS: i32 = 64;
/// Bytes of a signal set, as calls are told them.
pub const SIGSET_BYTES: u64 = 8;

/// A set of signals, bit `n - 1` for signal `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SigSet(pub u64);

impl SigSet {
    /// Whether `signal` is in it.
    pub fn has(self, signal: i32) -> bool {
        self.0 & bit(signal) != 0
    }

    /// Without SIGKILL and SIGSTOP, which nobody can block.
    pub fn blockable(self) -> Self {
        Self(self.0 & !(bit(libc::SIGKILL) | bit(libc::SIGSTOP)))
    }
}

/// Whether there is such a signal.
pub fn is_signal(signal: i32) -> bool {
    (1..=SIGNALS).contains(&signal)
}

/// The bit of a signal in a set.
pub fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}
