//! timerfd_create(2).
//!
//! A timer is no thread: it knows when it expires next, and how often it has expired is a matter of
//! looking at the clock. Who waits for it waits until then ([`File::deadline`]).

use std::{
    any::Any,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use snaprig_card_driver::{
    clock::{card_clock, monotonic},
    errno::Errno,
    file::{Cx, Description, File, PollMask, mask},
    wait::{Channel, Stop, SysResult, Wait},
};

/// A timer that is read as a count of its expirations.
pub struct Timer {
    clock: i32,
    state: Mutex<State>,
    /// Woken when it is set.
    pub channel: Channel,
}

#[derive(Default)]
struct State {
    /// The first expiration that has not been read, on `CLOCK_MONOTONIC`; `None`: disarmed.
    next: Option<Duration>,
    /// Between expirations; zero: there is one only.
    interval: Duration,
    /// Expirations before `next` that have not been read (of a captured timer).
    missed: u64,
    /// Expirations that count no more: read, or of an earlier setting.
    past: u64,
}

impl State {
    /// Expirations from `next` on.
    fn since_next(&self, now: Duration) -> u64 {
        let Some(late) = self.next.and_then(|next| now.checked_sub(next)) else {
            return 0;
        };
        let more = late.as_nanos().checked_div(self.interval.as_nanos());
        1 + more.map_or(0, |more| u64::try_from(more).unwrap_or(u64::MAX - 1))
    }

    fn expirations(&self, now: Duration) -> u64 {
        self.missed.saturating_add(self.since_next(now))
    }

    /// The first expiration after `now`.
    fn upcoming(&self, now: Duration) -> Option<Duration> {
        let next = self.next?;
        match self.since_next(now) {
            0 => Some(next),
            _ if self.interval.is_zero() => None,
            count => {
                let full = u128::from(count - 1) * self.interval.as_nanos();
                let full = Duration::from_nanos(u64::try_from(full).unwrap_or(u64::MAX));
                Some(next.saturating_add(full).saturating_add(self.interval))
            }
        }
    }

    /// All expirations up to `now` count no more.
    fn take(&mut self, now: Duration) -> u64 {
        let count = self.expirations(now);
        self.next = self.upcoming(now);
        self.missed = 0;
        self.past = self.past.saturating_add(count);
        count
    }
}

impl Timer {
    /// A timer that expires after `left` and then every `interval`, and has expired `missed` times.
    pub fn new(clock: i32, left: Option<Duration>, interval: Duration, missed: u64) -> Arc<Self> {
        let state = State {
            next: left.map(|left| monotonic().saturating_add(left)),
            interval,
            missed,
            past: 0,
        };
        Arc::new(Self {
            clock,
            state: Mutex::new(state),
            channel: Channel::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Interval and time left; none: disarmed.
    pub fn setting(&self) -> (Duration, Duration) {
        let (state, now) = (self.lock(), monotonic());
        match state.upcoming(now) {
            Some(next) => (state.interval, next.saturating_sub(now)),
            None => (state.interval, Duration::ZERO),
        }
    }

    /// Sets it (timerfd_settime(2)).
    pub fn set(&self, first: Duration, interval: Duration, absolute: bool) {
        let now = monotonic();
        let mut state = self.lock();
        state.take(now);
        state.interval = interval;
        state.next = match (first.is_zero(), absolute) {
            (true, _) => None,
            (false, false) => Some(now.saturating_add(first)),
            (false, true) => {
                let clock = card_clock(self.clock);
                let ahead = now.saturating_add(first.saturating_sub(clock));
                Some(ahead.saturating_sub(clock.saturating_sub(first)))
            }
        };
    }
}

impl File for Timer {
    fn read(&self, cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        if max < 8 {
            return Err(Errno::EINVAL.into());
        }
        let mut state = self.lock();
        match state.take(monotonic()) {
            0 if cx.nonblock => Err(Errno::EAGAIN.into()),
            0 => Err(Stop::Wait(Wait {
                channels: vec![self.channel],
                deadline: state.next,
            })),
            count => Ok(count.to_le_bytes().to_vec()),
        }
    }

    fn poll(&self) -> PollMask {
        mask(self.lock().expirations(monotonic()) > 0, libc::POLLIN)
    }

    fn edges(&self, _events: PollMask) -> u64 {
        let state = self.lock();
        state.past.saturating_add(state.expirations(monotonic()))
    }

    fn channels(&self) -> Vec<Channel> {
        vec![self.channel]
    }

    fn deadline(&self) -> Option<Duration> {
        self.lock().upcoming(monotonic())
    }

    fn describe(&self) -> Description {
        let (state, now) = (self.lock(), monotonic());
        Description::Timer {
            clock: self.clock,
            left: state.upcoming(now).map(|next| next.saturating_sub(now)),
            interval: state.interval,
            missed: state.expirations(now),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expirations_are_counted_and_the_next_one_is_known() {
        let (start, interval) = (Duration::from_secs(100), Duration::from_secs(10));
        let mut state = State {
            next: Some(start),
            interval,
            ..State::default()
        };
        let at = |seconds| Duration::from_secs(seconds);
        assert_eq!(
            (state.expirations(at(99)), state.upcoming(at(99))),
            (0, Some(start))
        );
        assert_eq!(
            (state.expirations(at(100)), state.upcoming(at(100))),
            (1, Some(at(110)))
        );
        assert_eq!(
            (state.expirations(at(125)), state.upcoming(at(125))),
            (3, Some(at(130)))
        );
        assert_eq!(
            (state.take(at(125)), state.take(at(125)), state.next),
            (3, 0, Some(at(130)))
        );
        state.interval = Duration::ZERO;
        assert_eq!((state.take(at(999)), state.next), (1, None));
        // The largest of everything.
        let mut state = State {
            next: Some(Duration::ZERO),
            interval: Duration::from_nanos(1),
            missed: u64::MAX,
            past: u64::MAX,
        };
        assert_eq!(state.take(Duration::MAX), u64::MAX);
        state.interval = Duration::MAX;
        state.next = Some(Duration::ZERO);
        assert_eq!(state.upcoming(at(1)), Some(Duration::MAX));
    }
}
