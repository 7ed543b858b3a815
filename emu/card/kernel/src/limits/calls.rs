//! prlimit(2).

use snaprig_card_driver::{errno::Errno, wait::SysResult};

use crate::call::Call;

impl Call<'_> {
    /// prlimit(2); `pid` 0 is the caller.
    pub fn prlimit(&mut self, pid: i32, resource: i32, new: u64, old: u64) -> SysResult {
        let pid = if pid == 0 { self.pid } else { pid };
        let resource = usize::try_from(resource).map_err(|_| Errno::EINVAL)?;
        let process = self.state.processes.get(&pid).ok_or(Errno::ESRCH)?;
        let (soft, hard) = *process.limits.0.get(resource).ok_or(Errno::EINVAL)?;
        if new != 0 {
            let [soft, hard] = self.read_words(new)?;
            self.state.process(pid).limits.set(resource, (soft, hard))?;
        }
        if old != 0 {
            self.write_words(old, &[soft, hard])?;
        }
        Ok(0)
    }
}
