//! Timers that send signals: alarm(2), setitimer(2) with ITIMER_REAL, timer_create(2).
//!
//! One host thread sleeps until the earliest of all timers is due; it is started with the first
//! timer, and sleeps without end while none is armed. Times are of `CLOCK_MONOTONIC`; in an image
//! they are what is left.

mod calls;
mod expire;

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{clock::monotonic, signals::is_signal};

use crate::signal::Info;

/// `si_code` of a POSIX timer.
const SI_TIMER: i32 = -2;
const SIGEV_SIGNAL: u32 = 0;
const SIGEV_NONE: u32 = 1;
const SIGEV_THREAD_ID: u32 = 4;
/// Timers of one process (Linux: RLIMIT_SIGPENDING).
const TIMERS_MAX: usize = 1024;

/// When a timer expires next, and then how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Armed {
    due: Duration,
    /// Zero: once.
    interval: Duration,
}

impl Armed {
    /// Expirations up to `now`; what remains of it.
    fn expire(self, now: Duration) -> (u64, Option<Self>) {
        if self.due > now {
            return (0, Some(self));
        }
        if self.interval.is_zero() {
            return (1, None);
        }
        let late = (now - self.due).as_nanos() / self.interval.as_nanos();
        let times = u64::try_from(late).unwrap_or(u64::MAX - 1) + 1;
        let missed = u32::try_from(times).unwrap_or(u32::MAX);
        let due = self
            .due
            .saturating_add(self.interval.saturating_mul(missed));
        let interval = self.interval;
        (times, Some(Self { due, interval }))
    }
}

/// Whom a POSIX timer tells: nobody, or a thread or the process with a signal and a value.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Notify {
    signal: i32,
    thread: Option<i32>,
    value: i64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Timer {
    clock: i32,
    notify: Option<Notify>,
    armed: Option<Armed>,
    /// Expirations that the last signal does not stand for.
    overrun: i32,
}

/// The timers of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Timers {
    /// ITIMER_REAL, which is also alarm(2).
    real: Option<Armed>,
    posix: BTreeMap<i32, Timer>,
    next_id: i32,
}

impl Timers {
    /// Whether timers of an image may run.
    pub fn is_sound(&self) -> bool {
        let mut notified = self.posix.values().filter_map(|timer| timer.notify);
        self.posix.len() <= TIMERS_MAX && notified.all(|notify| is_signal(notify.signal))
    }

    /// For an image: what is left.
    pub fn left(&self) -> Self {
        self.shifted(|due| due.saturating_sub(monotonic()))
    }

    /// From an image.
    pub fn rearmed(&self) -> Self {
        self.shifted(|left| monotonic().saturating_add(left))
    }

    fn shifted(&self, shift: impl Fn(Duration) -> Duration) -> Self {
        let mut all = self.clone();
        let armed = all.posix.values_mut().map(|timer| &mut timer.armed);
        for armed in armed.chain([&mut all.real]).flatten() {
            armed.due = shift(armed.due);
        }
        all
    }

    /// execve(2) keeps the alarm and deletes what timer_create(2) has made.
    pub fn become_program(&mut self) {
        self.posix.clear();
        self.next_id = 0;
    }

    /// Whether any is armed.
    pub fn is_armed(&self) -> bool {
        self.next().is_some()
    }

    fn next(&self) -> Option<Duration> {
        let posix = self.posix.values().filter_map(|timer| timer.armed);
        posix.chain(self.real).map(|armed| armed.due).min()
    }

    /// The signals that are due.
    fn expire(&mut self, now: Duration) -> Vec<(Option<i32>, Info)> {
        let mut signals = Vec::new();
        if let Some(armed) = self.real {
            let (times, rest) = armed.expire(now);
            self.real = rest;
            if times > 0 {
                signals.push((None, Info::kernel(libc::SIGALRM)));
            }
        }
        for (id, timer) in &mut self.posix {
            let Some(armed) = timer.armed else { continue };
            let (times, rest) = armed.expire(now);
            timer.armed = rest;
            if times > 0
                && let Some(notify) = timer.notify
            {
                timer.overrun = i32::try_from(times - 1).unwrap_or(i32::MAX);
                let info = Info {
                    signal: notify.signal,
                    code: SI_TIMER,
                    pid: *id,
                    uid: timer.overrun as u32,
                    value: notify.value,
                    address: 0,
                };
                signals.push((notify.thread, info));
            }
        }
        signals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expirations_are_counted_and_the_next_one_keeps_the_beat() {
        let ms = Duration::from_millis;
        let once = Armed {
            due: ms(10),
            interval: Duration::ZERO,
        };
        assert_eq!(once.expire(ms(9)), (0, Some(once)));
        assert_eq!(once.expire(ms(10)), (1, None));
        let often = Armed {
            due: ms(10),
            interval: ms(4),
        };
        let next = Armed {
            due: ms(22),
            interval: ms(4),
        };
        assert_eq!(often.expire(ms(19)), (3, Some(next)));
    }
}
