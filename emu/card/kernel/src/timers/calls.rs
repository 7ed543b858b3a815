//! alarm(2), setitimer(2), timer_create(2) and their like.

use std::time::Duration;

use snaprig_card_driver::{
    clock::{card_clock, is_clock, monotonic},
    errno::Errno,
    wait::SysResult,
};

use super::{Armed, Notify, SIGEV_NONE, SIGEV_SIGNAL, SIGEV_THREAD_ID, TIMERS_MAX, Timer};
use crate::call::Call;

impl Call<'_> {
    /// alarm(2): the seconds that were left of the last one.
    pub fn alarm(&mut self, seconds: u32) -> SysResult {
        let value = Duration::from_secs(seconds.into());
        let old = self.set_real(value, Duration::ZERO);
        let left = old.map_or(Duration::ZERO, |(left, _)| left);
        // Less than a second that is left is a second.
        Ok(left.as_secs() + u64::from(left.subsec_nanos() > 0))
    }

    /// setitimer(2). Of CPU time there are no timers.
    pub fn setitimer(&mut self, which: i32, new: u64, old: u64) -> SysResult {
        if which != libc::ITIMER_REAL {
            return Err(Errno::EINVAL.into());
        }
        let words = match new {
            0 => [0; 4],
            new => self.read_words(new)?,
        };
        let interval = duration(words[0], words[1], 1_000_000, 1000)?;
        let value = duration(words[2], words[3], 1_000_000, 1000)?;
        let was = self.set_real(value, interval);
        self.put_itimer(old, was)
    }

    /// getitimer(2).
    pub fn getitimer(&mut self, which: i32, to: u64) -> SysResult {
        if which != libc::ITIMER_REAL {
            return Err(Errno::EINVAL.into());
        }
        if to == 0 {
            return Err(Errno::EFAULT.into());
        }
        let is = self.process().timers.real.map(left_of);
        self.put_itimer(to, is)
    }

    fn put_itimer(&mut self, to: u64, timer: Option<(Duration, Duration)>) -> SysResult {
        if to != 0 {
            let (left, interval) = timer.unwrap_or_default();
            let micros = |time: Duration| [time.as_secs(), time.subsec_micros().into()];
            let words = [micros(interval), micros(left)].concat();
            self.write_words(to, &words)?;
        }
        Ok(0)
    }

    /// Arms ITIMER_REAL, or disarms it; what was left of it.
    fn set_real(&mut self, value: Duration, interval: Duration) -> Option<(Duration, Duration)> {
        let old = self.process().timers.real.map(left_of);
        self.process().timers.real = (!value.is_zero()).then(|| Armed {
            due: monotonic().saturating_add(value),
            interval,
        });
        self.kernel.clone().timer_armed(self.state);
        old
    }

    /// timer_create(2).
    pub fn timer_create(&mut self, clock: i32, event: u64, to: u64) -> SysResult {
        let event: Option<[u64; 3]> = match event {
            0 => None,
            event => Some(self.read_words(event)?),
        };
        if !is_clock(clock) {
            return Err(Errno::EINVAL.into());
        }
        let has_timers = matches!(
            clock,
            libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC | libc::CLOCK_BOOTTIME | libc::CLOCK_TAI
        );
        if !has_timers {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let timers = &mut self.process().timers;
        if timers.posix.len() >= TIMERS_MAX {
            return Err(Errno::EAGAIN.into());
        }
        // Ids are not used again soon, even one of a timer that is not made after all.
        let next = timers.next_id;
        let id = (next..=i32::MAX).find(|id| !timers.posix.contains_key(id));
        let id = id.ok_or(Errno::EAGAIN)?;
        timers.next_id = id.wrapping_add(1).max(0);
        let notify = match event {
            None => Some(Notify {
                signal: libc::SIGALRM,
                thread: None,
                value: id.into(),
            }),
            Some(event) => self.notify_of(event)?,
        };
        self.write(to, &id.to_le_bytes())?;
        let timer = Timer {
            clock,
            notify,
            armed: None,
            overrun: 0,
        };
        self.process().timers.posix.insert(id, timer);
        Ok(0)
    }

    /// `struct sigevent` (sigevent(3type)).
    fn notify_of(&mut self, event: [u64; 3]) -> Result<Option<Notify>, Errno> {
        let [value, signal_and_kind, thread] = event;
        let (signal, kind) = (signal_and_kind as i32, (signal_and_kind >> 32) as u32);
        let thread = match kind {
            SIGEV_NONE => return Ok(None),
            SIGEV_SIGNAL => None,
            SIGEV_THREAD_ID => Some(thread as i32),
            _ => return Err(Errno::EINVAL),
        };
        let mut is_ours = |tid| self.process().threads.contains(&tid);
        if !(1..=64).contains(&signal) || thread.is_some_and(|tid| !is_ours(tid)) {
            return Err(Errno::EINVAL);
        }
        let value = value as i64;
        Ok(Some(Notify {
            signal,
            thread,
            value,
        }))
    }

    fn timer(&mut self, id: i32) -> Result<&mut Timer, Errno> {
        let timers = &mut self.process().timers.posix;
        timers.get_mut(&id).ok_or(Errno::EINVAL)
    }

    /// timer_settime(2).
    pub fn timer_settime(&mut self, id: i32, flags: i32, new: u64, old: u64) -> SysResult {
        let words: [u64; 4] = self.read_words(new)?;
        let interval = duration(words[0], words[1], 1_000_000_000, 1)?;
        let value = duration(words[2], words[3], 1_000_000_000, 1)?;
        let timer = self.timer(id)?;
        let was = timer.armed.map(left_of);
        let due = match flags & libc::TIMER_ABSTIME != 0 {
            false => monotonic().saturating_add(value),
            true => monotonic().saturating_add(value.saturating_sub(card_clock(timer.clock))),
        };
        timer.armed = (!value.is_zero()).then_some(Armed { due, interval });
        timer.overrun = 0;
        self.kernel.clone().timer_armed(self.state);
        self.put_timerspec(old, was)
    }

    /// timer_gettime(2).
    pub fn timer_gettime(&mut self, id: i32, to: u64) -> SysResult {
        let is = self.timer(id)?.armed.map(left_of);
        self.put_timerspec(to, is)
    }

    fn put_timerspec(&mut self, to: u64, timer: Option<(Duration, Duration)>) -> SysResult {
        if to != 0 {
            let (left, interval) = timer.unwrap_or_default();
            let nanos = |time: Duration| [time.as_secs(), time.subsec_nanos().into()];
            self.write_words(to, &[nanos(interval), nanos(left)].concat())?;
        }
        Ok(0)
    }

    /// timer_getoverrun(2).
    pub fn timer_getoverrun(&mut self, id: i32) -> SysResult {
        Ok(self.timer(id)?.overrun as u64)
    }

    /// timer_delete(2).
    pub fn timer_delete(&mut self, id: i32) -> SysResult {
        let timers = &mut self.process().timers.posix;
        timers.remove(&id).map(|_| 0).ok_or(Errno::EINVAL.into())
    }
}

/// What is left of a timer, never nothing while it is armed; and its interval.
fn left_of(armed: Armed) -> (Duration, Duration) {
    let left = armed.due.saturating_sub(monotonic());
    (left.max(Duration::from_nanos(1000)), armed.interval)
}

/// Seconds and parts of one, `unit` of which are a second, and each `nanos` nanoseconds.
fn duration(seconds: u64, parts: u64, unit: u64, nanos: u32) -> Result<Duration, Errno> {
    match i64::try_from(seconds) {
        Ok(_) if parts < unit => Ok(Duration::new(seconds, parts as u32 * nanos)),
        _ => Err(Errno::EINVAL),
    }
}
