//! Job control: processes that stop and go on, their groups and sessions (credentials(7), setpgid(2),
//! setsid(2)).

mod calls;
pub mod control;

use serde::{Deserialize, Serialize};

const CLD_STOPPED: i32 = 5;
const CLD_CONTINUED: i32 = 6;

/// What job control knows of a process.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Job {
    /// The signal that has stopped it.
    pub stopped: Option<i32>,
    /// What its parent may learn by wait(2).
    pub news: Option<StateChange>,
    /// All of its threads have stopped, and its parent has been told.
    is_told: bool,
}

/// What wait(2) says of a child that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateChange {
    /// It has stopped, by this signal.
    Stopped(i32),
    /// It goes on.
    Continued,
}

impl StateChange {
    /// As wait(2) reports it.
    pub fn wait_status(self) -> i32 {
        match self {
            Self::Stopped(signal) => signal << 8 | 0x7f,
            Self::Continued => 0xffff,
        }
    }

    /// `si_code` and `si_status`.
    pub fn code(self) -> (i32, i32) {
        match self {
            Self::Stopped(signal) => (CLD_STOPPED, signal),
            Self::Continued => (CLD_CONTINUED, libc::SIGCONT),
        }
    }
}
