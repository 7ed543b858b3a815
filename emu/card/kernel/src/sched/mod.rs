//! Scheduling and processor time (sched(7), getrusage(2)). Policies, priorities and nice values are remembered and told; who
//! gets a core before others ([`crate::cores`]) depends on nothing but whether they say that it is urgent.

mod calls;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{errno::Errno, wait::SysResult};

/// Ticks a second of times(2).
const TICKS: u128 = 100;
/// Bytes of a set of cores: more than any card has.
pub const SET_BYTES: usize = 64;

/// The cores that a thread wants to run on; none: all.
pub type Affinity = Option<[u8; SET_BYTES]>;

/// SCHED_DEADLINE and SCHED_EXT, which nothing here may have.
const SCHED_DEADLINE: i32 = 6;
const SCHED_EXT: i32 = 7;
/// Bytes of the first `struct sched_attr`, and of the last one that is known.
const ATTR_BYTES: u64 = 48;
const ATTR_BYTES_NOW: usize = 56;
const FLAG_RESET_ON_FORK: u64 = 1;

/// How a thread was told that it is scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    policy: i32,
    priority: i32,
    nice: i32,
    reset_on_fork: bool,
}

impl Policy {
    /// Whether it goes before others: as the card's daemons do.
    pub fn is_urgent(self) -> bool {
        self.nice < 0 || matches!(self.policy, libc::SCHED_FIFO | libc::SCHED_RR)
    }

    /// A child's (sched(7), SCHED_RESET_ON_FORK).
    pub fn of_child(self) -> Self {
        let is_real_time = matches!(self.policy, libc::SCHED_FIFO | libc::SCHED_RR);
        match self.reset_on_fork {
            false => self,
            true if is_real_time => Self::default(),
            true => Self {
                nice: self.nice.max(0),
                reset_on_fork: false,
                ..self
            },
        }
    }
}

/// The lowest or highest priority of a policy: 0 unless it is a real-time one.
pub fn priority_range(policy: i32, real_time: u64) -> SysResult {
    match policy {
        libc::SCHED_FIFO | libc::SCHED_RR => Ok(real_time),
        libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE | SCHED_DEADLINE | SCHED_EXT => {
            Ok(0)
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

impl Policy {
    /// EINVAL unless there is such a policy, with such a priority.
    fn checked(self) -> Result<Self, Errno> {
        let fits = match self.policy {
            libc::SCHED_FIFO | libc::SCHED_RR => (1..=99).contains(&self.priority),
            libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE => self.priority == 0,
            _ => false,
        };
        fits.then_some(self).ok_or(Errno::EINVAL)
    }
}

/// In ticks of times(2).
pub fn ticks(time: Duration) -> u64 {
    (time.as_micros() * TICKS / 1_000_000) as u64
}

/// `struct rusage`.
pub fn usage(time: Duration) -> [u8; size_of::<libc::rusage>()] {
    let mut bytes = [0; size_of::<libc::rusage>()];
    bytes[..8].copy_from_slice(&time.as_secs().to_le_bytes());
    bytes[8..16].copy_from_slice(&u64::from(time.subsec_micros()).to_le_bytes());
    bytes
}
