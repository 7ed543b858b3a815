//! What fdinfo says of a timerfd (proc_pid_fdinfo(5)).

use std::{
    mem::MaybeUninit,
    os::fd::{AsRawFd, OwnedFd},
};

use crate::{
    calls::check,
    clocks::{self, Clocks},
    descriptor::{FoundDescriptor, Info},
    error::{Error, Result},
    state::Kind,
};

/// A number without a prefix.
pub fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// A timerfd. One that has expired, and is to again, stands still until somebody reads it or asks for its time
/// (timerfd_gettime(2)): then it knows how often it has expired by now, and runs on. What is left of it is counted from
/// `then`.
pub fn timer(seen: &FoundDescriptor, copy: &OwnedFd, then: Clocks) -> Result<Option<Kind>> {
    let mut left = MaybeUninit::<libc::itimerspec>::uninit();
    // SAFETY: timerfd_gettime(2) writes the whole structure, or fails.
    let left = unsafe {
        let asked = check(libc::timerfd_gettime(copy.as_raw_fd(), left.as_mut_ptr()));
        asked.map_err(|source| Error::io("timerfd_gettime", source))?;
        left.assume_init().it_value
    };
    let mut kind = described(&FoundDescriptor::look(seen.pid, seen.fd)?.info);
    let now = Clocks::now();
    let Some(Kind::Timer { clock, setting, .. }) = &mut kind else {
        return Ok(None);
    };
    if (left.tv_sec, left.tv_nsec) != (0, 0) && setting[2..] == [0, 0] {
        // It has expired since: the next time is an interval away.
        setting.copy_within(..2, 2);
    }
    *setting = clocks::with_left(*setting, clocks::SECOND_NANOS, |left| {
        then.left(*clock, left, &now)
    });
    Ok(kind)
}

/// `clockid: 1`, `ticks: 0`, `settime flags: 01`, `it_value: (0, 49406829)`, `it_interval: (1, 0)`.
fn described(info: &Info) -> Option<Kind> {
    let pair = |key| -> Option<[u64; 2]> {
        let text: &str = info.get(key)?;
        let (seconds, nanos) = text.trim_matches(['(', ')']).split_once(", ")?;
        Some([seconds.parse().ok()?, nanos.parse().ok()?])
    };
    let ([value, value_nanos], [interval, interval_nanos]) =
        (pair("it_value")?, pair("it_interval")?);
    let clock = info.number("clockid")? as i32;
    let settings = i32::from_str_radix(info.get("settime flags")?, 8).ok()?;
    let mut setting = [interval, interval_nanos, value, value_nanos];
    let is_of_day = [libc::CLOCK_REALTIME, libc::CLOCK_REALTIME_ALARM].contains(&clock);
    if is_of_day && settings & libc::TFD_TIMER_ABSTIME != 0 && setting[2..] != [0, 0] {
        let now = crate::calls::clock(libc::CLOCK_REALTIME);
        let at = now + value * 1_000_000_000 + value_nanos;
        (setting[2], setting[3]) = (at / 1_000_000_000, at % 1_000_000_000);
    }
    Some(Kind::Timer {
        clock,
        settings,
        ticks: info.number("ticks")?,
        setting,
    })
}
