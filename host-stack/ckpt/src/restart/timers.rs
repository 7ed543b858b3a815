//! POSIX timers (timer_create(2)), with the numbers that they had.

use snaprig_resources::{
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
    /// Makes the timers of a process and sets them; its threads are there.
    pub fn make_timers(&self) -> Result<()> {
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
            self.make_timer(timer, takes_numbers)?;
        }
        if takes_numbers {
            self.make("timers", &[restore(0)])?;
        }
        Ok(())
    }

    fn make_timer(&self, timer: &PosixTimer, takes_numbers: bool) -> Result<()> {
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
        let setting = data.put_words(&timer.setting);
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
        let set = call(libc::SYS_timer_settime, [timer.id as u64, 0, setting, 0]);
        self.make("timers", &[set])
    }
}
