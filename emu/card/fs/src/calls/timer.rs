//! Calls on timers: timerfd_create(2) and its like.

use std::time::Duration;

use snaprig_card_driver::{errno::Errno, wait::SysResult};

use crate::{call::FsCall, files::timer::Timer, table::Open};

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
    use snaprig_card_driver::{
        clock::monotonic,
        wait::{Stop, Wait},
    };

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
