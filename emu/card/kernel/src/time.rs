//! Clocks and sleeping.

use std::time::Duration;

use snaprig_card_driver::{
    clock::{card_clock, is_clock, monotonic},
    device::UserMemory,
    errno::Errno,
    wait::{Stop, SysResult, Wait},
};

use crate::{
    call::Call,
    state::{State, lock},
};

/// A sleep that a signal interrupts says how long it would have gone on (nanosleep(2)).
pub fn tell_time_left(state: &mut State, tid: i32, number: u64) {
    let thread = state.thread(tid);
    let (regs, pid) = (thread.regs, thread.pid);
    let to = match number as i64 {
        libc::SYS_nanosleep => regs.rsi,
        libc::SYS_clock_nanosleep if regs.rsi as i32 & libc::TIMER_ABSTIME == 0 => regs.r10,
        _ => return,
    };
    let Some(deadline) = thread.deadline.filter(|_| to != 0) else {
        return;
    };
    let left = deadline.saturating_sub(monotonic());
    let words = [left.as_secs(), left.subsec_nanos().into()];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    // The call has failed already; a bad address changes nothing.
    let _ = lock(&state.process(pid).mm).write(to, &bytes);
}

impl Call<'_> {
    /// clock_gettime(2).
    pub fn clock_gettime(&mut self, clock: i32, to: u64) -> SysResult {
        let time = match clock {
            libc::CLOCK_PROCESS_CPUTIME_ID => self.process_time(),
            libc::CLOCK_THREAD_CPUTIME_ID => self.thread().ran,
            0..=9 | 11 => card_clock(clock),
            _ => return Err(Errno::EINVAL.into()),
        };
        self.write_words(to, &[time.as_secs(), time.subsec_nanos().into()])?;
        Ok(0)
    }

    /// clock_getres(2).
    pub fn clock_getres(&mut self, clock: i32, to: u64) -> SysResult {
        if !is_clock(clock) {
            return Err(Errno::EINVAL.into());
        }
        if to != 0 {
            self.write_words(to, &[0, 1])?;
        }
        Ok(0)
    }

    /// gettimeofday(2).
    pub fn gettimeofday(&mut self, to: u64) -> SysResult {
        if to != 0 {
            let time = card_clock(libc::CLOCK_REALTIME);
            self.write_words(to, &[time.as_secs(), time.subsec_micros().into()])?;
        }
        Ok(0)
    }

    /// time(2).
    pub fn time(&mut self, to: u64) -> SysResult {
        let seconds = card_clock(libc::CLOCK_REALTIME).as_secs();
        if to != 0 {
            self.write_words(to, &[seconds])?;
        }
        Ok(seconds)
    }

    /// nanosleep(2), and clock_nanosleep(2) with its clock and flags.
    pub fn nanosleep(&mut self, clock: i32, flags: i32, time: u64) -> SysResult {
        if !is_clock(clock) {
            return Err(Errno::EINVAL.into());
        }
        if matches!(
            clock,
            libc::CLOCK_THREAD_CPUTIME_ID
                | libc::CLOCK_MONOTONIC_RAW
                | libc::CLOCK_REALTIME_COARSE
                | libc::CLOCK_MONOTONIC_COARSE
        ) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let realtime = clock == libc::CLOCK_REALTIME;
        let deadline = match flags & libc::TIMER_ABSTIME != 0 {
            true => self.absolute_deadline(time, realtime)?,
            false => self.relative_deadline(time)?,
        };
        match deadline {
            None => Err(Errno::EFAULT.into()),
            Some(deadline) if deadline <= monotonic() => Ok(0),
            deadline => Err(Stop::Wait(Wait {
                channels: Vec::new(),
                deadline,
            })),
        }
    }

    /// The end of a relative timeout at address `timeout` (0: none). It counts from the call's
    /// first attempt.
    pub fn relative_deadline(&mut self, timeout: u64) -> Result<Option<Duration>, Stop> {
        if timeout == 0 {
            return Ok(None);
        }
        if self.thread().deadline.is_none() {
            let end = monotonic().saturating_add(self.read_timespec(timeout)?);
            self.thread().deadline = Some(end);
        }
        Ok(self.thread().deadline)
    }

    /// The end of an absolute timeout, as `CLOCK_MONOTONIC`.
    pub fn absolute_deadline(
        &mut self,
        timeout: u64,
        realtime: bool,
    ) -> Result<Option<Duration>, Stop> {
        if timeout == 0 {
            return Ok(None);
        }
        let at = self.read_timespec(timeout)?;
        if !realtime {
            return Ok(Some(at));
        }
        Ok(Some(monotonic().saturating_add(
            at.saturating_sub(card_clock(libc::CLOCK_REALTIME)),
        )))
    }

    fn read_timespec(&mut self, at: u64) -> Result<Duration, Stop> {
        let [seconds, nanos] = self.read_words(at)?;
        if seconds > i64::MAX as u64 || nanos >= 1_000_000_000 {
            return Err(Errno::EINVAL.into());
        }
        Ok(Duration::new(seconds, nanos as u32))
    }
}
