//! Timers, on the clocks of their tree: an image has what is left of each when [`Clocks`] are read, all at one moment.
//!
//! What must stay true: a timer goes off when the tree's clock gets there, however long a checkpoint and a restart take.

use crate::{calls::clock, state::Tree};

/// A second, in nanoseconds.
pub const SECOND_NANOS: u64 = 1_000_000_000;

/// Microseconds of a second.
pub const MICROS: u64 = 1_000_000;

/// What the clocks of a tree show at one moment, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// CLOCK_MONOTONIC.
    pub monotonic: u64,
    /// CLOCK_BOOTTIME.
    pub boottime: u64,
}

impl Clocks {
    /// Those of this process.
    pub fn now() -> Self {
        Self {
            monotonic: clock(libc::CLOCK_MONOTONIC),
            boottime: clock(libc::CLOCK_BOOTTIME),
        }
    }

    /// Those of a tree when it stood still.
    pub fn of(tree: &Tree) -> Self {
        Self {
            monotonic: tree.monotonic_nanos,
            boottime: tree.boottime_nanos,
        }
    }

    /// What a clock shows that goes on where it stood when a tree is restarted; no other does.
    pub fn show(&self, clock: libc::clockid_t) -> Option<u64> {
        match clock {
            libc::CLOCK_MONOTONIC => Some(self.monotonic),
            libc::CLOCK_BOOTTIME | libc::CLOCK_BOOTTIME_ALARM => Some(self.boottime),
            _ => None,
        }
    }

    /// What was left, nanoseconds, when these were read, of what had `left_nanos` left when `later` were.
    pub fn left(&self, clock: libc::clockid_t, left_nanos: u64, later: &Self) -> u64 {
        let since = self.show(clock).zip(later.show(clock));
        let since = since.map_or(0, |(then, now)| now.saturating_sub(then));
        left_nanos.saturating_add(since)
    }
}

/// Seconds, and parts of which a second has as many as `parts`, in nanoseconds: as many as fit.
pub fn nanos([seconds, part]: [u64; 2], parts: u64) -> u64 {
    let seconds = seconds.saturating_mul(SECOND_NANOS);
    seconds.saturating_add(part.saturating_mul(SECOND_NANOS / parts))
}

/// Nanoseconds as seconds, and parts of which a second has as many as `parts`; what is more than nothing stays so.
pub fn split(nanos: u64, parts: u64) -> [u64; 2] {
    let parts_nanos = SECOND_NANOS / parts;
    let nanos = nanos.div_ceil(parts_nanos).saturating_mul(parts_nanos);
    [nanos / SECOND_NANOS, nanos % SECOND_NANOS / parts_nanos]
}

/// A timer's interval and rest, seconds and parts of them each, with another rest for one that runs: nanoseconds.
pub fn with_left(mut setting: [u64; 4], parts: u64, change: impl FnOnce(u64) -> u64) -> [u64; 4] {
    let left = nanos([setting[2], setting[3]], parts);
    if left > 0 {
        setting[2..].copy_from_slice(&split(change(left), parts));
    }
    setting
}

/// How often a timer has gone off since, and when it will next: 0 when never again.
pub fn gone_off(deadline: u64, interval: u64, now: u64) -> (u64, u64) {
    match now.checked_sub(deadline) {
        None => (0, deadline),
        Some(_) if interval == 0 => (1, 0),
        Some(late) => {
            let times = (late / interval).saturating_add(1);
            (
                times,
                deadline.saturating_add(times.saturating_mul(interval)),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_counted_from_one_moment() {
        let clocks = |monotonic, boottime| Clocks {
            monotonic,
            boottime,
        };
        let (then, later) = (clocks(100, 500), clocks(130, 580));
        assert_eq!(then.left(libc::CLOCK_MONOTONIC, 7, &later), 37);
        assert_eq!(then.left(libc::CLOCK_BOOTTIME_ALARM, 7, &later), 87);
        assert_eq!(then.left(libc::CLOCK_REALTIME, 7, &later), 7);
        assert_eq!(then.left(libc::CLOCK_PROCESS_CPUTIME_ID, 7, &later), 7);
    }

    #[test]
    fn a_timer_that_is_late_keeps_step() {
        assert_eq!(gone_off(100, 20, 99), (0, 100));
        assert_eq!(gone_off(100, 20, 100), (1, 120));
        assert_eq!(gone_off(100, 20, 145), (3, 160));
        assert_eq!(gone_off(100, 0, 145), (1, 0));
        assert_eq!(gone_off(0, 1, u64::MAX).1, u64::MAX);
    }

    #[test]
    fn a_timer_that_does_not_run_stays_so() {
        let later = |left| left + 1;
        let stopped = [1, 2, 0, 0];
        assert_eq!(with_left(stopped, MICROS, later), stopped);
        assert_eq!(with_left([1, 2, 3, 4], SECOND_NANOS, later), [1, 2, 3, 5]);
    }

    #[test]
    fn a_part_of_a_part_is_one() {
        assert_eq!(split(1, 1_000_000), [0, 1]);
        assert_eq!(split(0, 1_000_000), [0, 0]);
        assert_eq!(split(1_999_999_999, 1_000_000), [2, 0]);
        assert_eq!(nanos([1, 5], 1_000_000), 1_000_005_000);
        assert_eq!(split(nanos([3, 7], SECOND_NANOS), SECOND_NANOS), [3, 7]);
    }
}
