//! Timers that send signals: alarm(2), setitimer(2) with ITIMER_REAL, timer_create(2).
//!
//! One host thread sleeps until the earliest of all timers is due; it is started with the first
//! timer, and sleeps without end while none is armed. Times are of `CLOCK_MONOTONIC`; in an image
//! they are what is left.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{
    clock::{card_clock, is_clock, monotonic},
    errno::Errno,
    signals::is_signal,
    wait::SysResult,
};

use super::{
    Kernel,
    call::Call,
    signal::{self, Info},
    state::State,
};

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

impl Kernel {
    /// A timer was armed: the host thread looks at it.
    pub(super) fn timer_armed(self: &Arc<Self>, state: &mut State) {
        if state.has_timer_thread {
            return self.timers.notify_all();
        }
        let kernel = self.clone();
        let thread = std::thread::Builder::new()
            .name("timers".into())
            .spawn(move || kernel.run_timers());
        match thread {
            Ok(handle) => {
                state.has_timer_thread = true;
                state.handles.push(handle);
            }
            Err(error) => tracing::error!(%error, "no host thread for timers"),
        }
    }

    /// Sends what is due, until the kernel is shut down.
    fn run_timers(&self) {
        let mut state = self.lock();
        while !state.is_over {
            let time = monotonic();
            let pids: Vec<_> = state.processes.keys().copied().collect();
            for pid in pids {
                for (thread, info) in state.process(pid).timers.expire(time) {
                    // A queue that is full, or a thread that has ended, loses the signal, as on
                    // Linux.
                    let _ = signal::send(&mut state, pid, thread, info);
                }
            }
            let running = state.processes.values().filter(|one| one.exit.is_none());
            let next = running.filter_map(|process| process.timers.next()).min();
            state = match next {
                None => self
                    .timers
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let left = next.saturating_sub(monotonic());
                    let waited = self.timers.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

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
