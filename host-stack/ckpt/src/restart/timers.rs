//! Timers of a process: those of timer_create(2), with the numbers that they had, and of setitimer(2).

use snaprig_resources::{
    clocks::{self, Clocks, MICROS, SECOND_NANOS},
    error::{Error, Result},
    growing::Data,
    opened::damaged,
    state::PosixTimer,
};
use snaprig_tracee::remote::{self, call, result};

use super::rebuilding::Rebuilding;
/// linux/prctl.h, since 6.15: timer_create(2) takes the number that it is given.
const PR_TIMER_CREATE_RESTORE_IDS: u64 = 77;
/// Where the kernel gives numbers out one after the other, so many are tried.
const NUMBERS_MAX: i32 = 1 << 14;

impl Rebuilding<'_> {
    /// Makes the timers of a process and sets them; its threads are there. `then`: what the tree's clocks showed, if they
    /// go on from there.
    pub fn make_timers(&self, then: Option<Clocks>) -> Result<()> {
        let mut timers = self.body.posix_timers.clone();
        if timers.is_empty() {
            return Ok(());
        }
        timers.sort_unstable_by_key(|timer| timer.id);
        let restore = |on: u64| call(libc::SYS_prctl, [PR_TIMER_CREATE_RESTORE_IDS, on, 0, 0, 0]);
        let mut remote = self.remote()?;
        let takes = remote.calls(self.stub, self.process.pid, &[restore(1)])?;
        let takes_numbers = takes == [0];
        for timer in &timers {
            self.make_timer(timer, takes_numbers, then)?;
        }
        if takes_numbers {
            self.make("timers", &[restore(0)])?;
        }
        Ok(())
    }

    fn make_timer(
        &self,
        timer: &PosixTimer,
        takes_numbers: bool,
        then: Option<Clocks>,
    ) -> Result<()> {
        if timer.id < 0 || (!takes_numbers && timer.id >= NUMBERS_MAX) {
            return Err(damaged("a timer with a number that cannot be had"));
        }
        let pid = self.process.pid;
        let mut data = Data::at(remote::data(self.stub));
        // struct sigevent: value, signal and kind, thread.
        let kind = timer.signal as u32 as u64 | (timer.notify as u64) << 32;
        let event = [timer.value, kind, timer.thread as u32 as u64, 0, 0, 0, 0, 0];
        let event = data.put_words(&event);
        let number = data.put(&timer.id.to_ne_bytes());
        let (setting, flags) = match then.and_then(|then| then.show(timer.clock)) {
            Some(then) => {
                // When it goes off, instead of what is left of it.
                let deadline = |left| then.saturating_add(left);
                let setting = clocks::with_left(timer.setting, SECOND_NANOS, deadline);
                (setting, libc::TIMER_ABSTIME)
            }
            None => (timer.setting, 0),
        };
        let setting = data.put_words(&setting);
        data.write(pid)?;
        let create = call(libc::SYS_timer_create, [timer.clock as u64, event, number]);
        loop {
            let created = self.remote()?.calls(self.stub, pid, &[create])?[0];
            result(created).map_err(|source| Error::Process {
                pid,
                what: format!("timer {}", timer.id),
                source,
            })?;
            let mut made = [0; 4];
            snaprig_tracee::memory::read(pid, number, &mut made)?;
            let made = i32::from_ne_bytes(made);
            if made == timer.id {
                break;
            }
            let delete = call(libc::SYS_timer_delete, [made as u64]);
            self.make("a timer that is one too many", &[delete])?;
            if made > timer.id {
                return Err(damaged("timers with the same number"));
            }
        }
        let number = timer.id as u64;
        let set = call(libc::SYS_timer_settime, [number, flags as u64, setting, 0]);
        self.make("timers", &[set])
    }
}

/// What is left by now of the timer of setitimer(2) that counts real time; it takes no other setting. Whose time has come
/// goes off at once.
pub fn left_by_now(setting: [u64; 4], then: Clocks) -> [u64; 4] {
    let gone_by = Clocks::now().monotonic.saturating_sub(then.monotonic);
    clocks::with_left(setting, MICROS, |left| left.saturating_sub(gone_by).max(1))
}
