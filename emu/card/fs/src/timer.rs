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
    file::{Cx, Description, File, PollMask},
    wait::{Channel, Stop, SysResult, Wait},
};

use super::{FsCall, Open, pipe::mask};

/// A timer that is read as a count of its expirations.
pub struct Timer {
    clock: i32,
    state: Mutex<State>,
    channel: Channel,
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
    fn setting(&self) -> (Duration, Duration) {
        let (state, now) = (self.lock(), monotonic());
        match state.upcoming(now) {
            Some(next) => (state.interval, next.saturating_sub(now)),
            None => (state.interval, Duration::ZERO),
        }
    }

    fn set(&self, first: Duration, interval: Duration, absolute: bool) {
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

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let int = |i: usize| a[i] as i32;
    Some(match number as i64 {
        libc::SYS_timerfd_create => create(call, int(0), int(1)),
        libc::SYS_timerfd_settime => set_time(call, int(0), int(1), a[2], a[3]),
        libc::SYS_timerfd_gettime => with(call, int(0), |call, timer| {
            write_setting(call, a[1], timer.setting())
        }),
        _ => return None,
    })
}

fn create(call: &mut FsCall, clock: i32, flags: i32) -> SysResult {
    let known = matches!(
        clock,
        libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC | libc::CLOCK_BOOTTIME
    );
    if !known || flags & !(libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let timer = Timer::new(clock, None, Duration::ZERO, 0);
    let open = Open::new(timer, libc::O_RDWR | flags & libc::TFD_NONBLOCK);
    call.insert(open, flags & libc::TFD_CLOEXEC != 0)
}

fn set_time(call: &mut FsCall, fd: i32, flags: i32, new: u64, old: u64) -> SysResult {
    if flags & !(libc::TFD_TIMER_ABSTIME | libc::TFD_TIMER_CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let interval = read_time(call, new)?;
    let first = read_time(call, new.wrapping_add(16))?;
    with(call, fd, |call, timer| {
        let before = timer.setting();
        timer.set(first, interval, flags & libc::TFD_TIMER_ABSTIME != 0);
        (call.cx.wake)(timer.channel);
        match old {
            0 => Ok(0),
            _ => write_setting(call, old, before),
        }
    })
}

fn with(call: &mut FsCall, fd: i32, f: impl FnOnce(&mut FsCall, &Timer) -> SysResult) -> SysResult {
    let open = call.files.get(fd)?;
    let timer = open.file.as_any().downcast_ref::<Timer>();
    f(call, timer.ok_or(Errno::EINVAL)?)
}

/// `struct timespec`.
fn read_time(call: &mut FsCall, at: u64) -> Result<Duration, Errno> {
    let mut bytes = [0; 16];
    call.cx.memory.read(at, &mut bytes)?;
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let (seconds, nanos) = (word(0), word(8));
    if seconds > i64::MAX as u64 || nanos >= 1_000_000_000 {
        return Err(Errno::EINVAL);
    }
    Ok(Duration::new(seconds, nanos as u32))
}

/// `struct itimerspec`: interval, then time left.
fn write_setting(call: &mut FsCall, to: u64, setting: (Duration, Duration)) -> SysResult {
    let words = [setting.0, setting.1].map(|time| [time.as_secs(), time.subsec_nanos().into()]);
    let bytes = words
        .as_flattened()
        .iter()
        .flat_map(|word: &u64| word.to_le_bytes());
    call.cx.memory.write(to, &bytes.collect::<Vec<_>>())?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_kit::{Kit, error, is_wait};

    const MS: u64 = 1_000_000;

    fn timer(kit: &mut Kit, flags: i32) -> u64 {
        let clock = libc::CLOCK_MONOTONIC as u64;
        kit.call(libc::SYS_timerfd_create, &[clock, flags as u64])
            .unwrap()
    }

    fn set(kit: &mut Kit, fd: u64, flags: i32, interval: Duration, first: Duration) -> SysResult {
        for (at, time) in [(0x500, interval), (0x510, first)] {
            kit.put_words(at, &[time.as_secs(), time.subsec_nanos().into()]);
        }
        kit.call(libc::SYS_timerfd_settime, &[fd, flags as u64, 0x500, 0])
    }

    fn count(kit: &mut Kit, fd: u64) -> u64 {
        assert_eq!(kit.call(libc::SYS_read, &[fd, 0x600, 8]), Ok(8));
        u64::from_le_bytes(kit.bytes(0x600, 8).try_into().unwrap())
    }

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

    #[test]
    fn a_timer_is_waited_for_until_it_expires() {
        let mut kit = Kit::new();
        let fd = timer(&mut kit, 0);
        assert_eq!(
            set(&mut kit, fd, 0, Duration::ZERO, Duration::from_secs(1000)),
            Ok(0)
        );
        let Err(Stop::Wait(wait)) = kit.call(libc::SYS_read, &[fd, 0x600, 8]) else {
            panic!("it has not expired");
        };
        let left = wait.deadline.unwrap() - monotonic();
        assert!(left > Duration::from_secs(990) && left <= Duration::from_secs(1000));
        // So does poll(2), whatever its own timeout.
        kit.put(0x700, &[fd as u8, 0, 0, 0, 1, 0, 0, 0]);
        let Err(Stop::Wait(polled)) = kit.call(libc::SYS_poll, &[0x700, 1, u64::MAX]) else {
            panic!("it has not expired");
        };
        assert_eq!(polled.deadline, wait.deadline);
        kit.deadline = None;
        kit.call(libc::SYS_timerfd_gettime, &[fd, 0x520]).unwrap();
        let word = |at| u64::from_le_bytes(kit.bytes(at, 8).try_into().unwrap());
        assert_eq!((word(0x520), word(0x528)), (0, 0));
        assert!((990..1000).contains(&word(0x530)));
    }

    #[test]
    fn an_absolute_time_in_the_past_has_expired_and_disarming_forgets_it() {
        let mut kit = Kit::new();
        let fd = timer(&mut kit, libc::TFD_NONBLOCK);
        let again = error(Errno::EAGAIN);
        let ago = monotonic() - Duration::from_nanos(95 * MS);
        let (absolute, interval) = (libc::TFD_TIMER_ABSTIME, Duration::from_millis(10));
        assert_eq!(set(&mut kit, fd, absolute, interval, ago), Ok(0));
        assert!(count(&mut kit, fd) >= 10);
        assert_eq!(set(&mut kit, fd, absolute, Duration::ZERO, ago), Ok(0));
        assert_eq!(count(&mut kit, fd), 1);
        assert_eq!(kit.call(libc::SYS_read, &[fd, 0x600, 8]), again);
        set(&mut kit, fd, absolute, Duration::ZERO, ago).unwrap();
        set(&mut kit, fd, 0, Duration::ZERO, Duration::ZERO).unwrap();
        assert_eq!(kit.call(libc::SYS_read, &[fd, 0x600, 8]), again);
    }

    #[test]
    fn each_expiration_is_an_edge() {
        let mut kit = Kit::new();
        let fd = timer(&mut kit, 0);
        let set_of = kit.call(libc::SYS_epoll_create1, &[0]).unwrap();
        kit.put(0x900, &(libc::EPOLLIN | libc::EPOLLET).to_le_bytes());
        kit.call(libc::SYS_epoll_ctl, &[set_of, 1, fd, 0x900])
            .unwrap();
        let ago = monotonic() - Duration::from_millis(1);
        for _ in 0..2 {
            set(&mut kit, fd, libc::TFD_TIMER_ABSTIME, Duration::ZERO, ago).unwrap();
            let ready = [set_of, 0xa00, 8, 0];
            assert_eq!(kit.call(libc::SYS_epoll_wait, &ready), Ok(1));
            assert_eq!(kit.call(libc::SYS_epoll_wait, &ready), Ok(0));
        }
        let hour = Duration::from_secs(3600);
        set(&mut kit, fd, 0, Duration::ZERO, hour).unwrap();
        let waits = kit.call(libc::SYS_epoll_wait, &[set_of, 0xa00, 8, u64::MAX]);
        assert!(is_wait(&waits));
        assert!(matches!(
            waits,
            Err(Stop::Wait(Wait {
                deadline: Some(_),
                ..
            }))
        ));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let mut kit = Kit::new();
        let invalid = error(Errno::EINVAL);
        assert_eq!(kit.call(libc::SYS_timerfd_create, &[99, 0]), invalid);
        assert_eq!(kit.call(libc::SYS_timerfd_create, &[1, 1]), invalid);
        assert_eq!(set(&mut kit, 0, 0, Duration::ZERO, Duration::ZERO), invalid);
        let fd = timer(&mut kit, 0);
        kit.put_words(0x500, &[0, 0, 0, 1_000_000_000]);
        assert_eq!(
            kit.call(libc::SYS_timerfd_settime, &[fd, 0, 0x500, 0]),
            invalid
        );
        assert_eq!(kit.call(libc::SYS_read, &[fd, 0x600, 7]), invalid);
    }
}
