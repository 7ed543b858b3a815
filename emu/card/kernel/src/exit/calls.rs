//! exit(2), exit_group(2).

use snaprig_card_driver::wait::SysResult;

use crate::{call::Call, state::ExitStatus};

impl Call<'_> {
    /// exit(2): this thread only.
    pub fn exit(&mut self, code: i32) -> SysResult {
        if self.process().threads.len() == 1 {
            return self.exit_group(code);
        }
        self.thread().must_end = true;
        Ok(0)
    }

    /// exit_group(2).
    pub fn exit_group(&mut self, code: i32) -> SysResult {
        self.end_held()?;
        self.state
            .end_process(self.pid, ExitStatus::Exited(code & 0xff));
        Ok(0)
    }
}
