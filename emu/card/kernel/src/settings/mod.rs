//! What prctl(2), personality(2) and arch_prctl(2) set and tell.

mod calls;

use serde::{Deserialize, Serialize};

/// Nanoseconds by which timers may be late (prctl(2), PR_SET_TIMERSLACK).
const SLACK_NANOS: u64 = 50_000;

/// What prctl(2) and personality(2) have set for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Sent to it when its parent ends; 0: none.
    pub death_signal: i32,
    /// It adopts its descendants' orphans.
    pub is_subreaper: bool,
    /// What it has registered for with membarrier(2): as it is told, and what may be used, shifted by
    /// 16 bits.
    pub barriers: i32,
    is_dumpable: bool,
    no_new_privileges: bool,
    no_huge_pages: bool,
    slack_nanos: u64,
    personality: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            death_signal: 0,
            is_subreaper: false,
            barriers: 0,
            is_dumpable: true,
            no_new_privileges: false,
            no_huge_pages: false,
            slack_nanos: SLACK_NANOS,
            personality: 0,
        }
    }
}

impl Settings {
    /// A child's (prctl(2) says of each setting whether children have it).
    pub fn of_child(self) -> Self {
        Self {
            death_signal: 0,
            is_subreaper: false,
            ..self
        }
    }

    /// After execve(2).
    pub fn of_program(self) -> Self {
        Self {
            is_dumpable: true,
            barriers: 0,
            ..self
        }
    }
}
