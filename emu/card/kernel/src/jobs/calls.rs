//! setpgid(2), setsid(2) and their like.

use snaprig_card_driver::{
    errno::Errno,
    wait::{Stop, SysResult},
};

use super::control::members;
use crate::call::Call;

impl Call<'_> {
    /// getpgid(2) and getsid(2): a process's group and session.
    pub fn group_of(&mut self, pid: i32) -> Result<(i32, i32), Stop> {
        let pid = if pid == 0 { self.pid } else { pid };
        Ok(self.state.processes.get(&pid).ok_or(Errno::ESRCH)?.group)
    }

    /// setpgid(2).
    pub fn setpgid(&mut self, pid: i32, group: i32) -> SysResult {
        let me = self.pid;
        let pid = if pid == 0 { me } else { pid };
        let group = if group == 0 { pid } else { group };
        if group < 0 {
            return Err(Errno::EINVAL.into());
        }
        let Some(process) = self.state.processes.get(&pid) else {
            // A thread that leads no process.
            return Err(match self.state.threads.contains_key(&pid) {
                true => Errno::EINVAL,
                false => Errno::ESRCH,
            }
            .into());
        };
        let session = self.state.processes[&me].group.1;
        if process.parent == me {
            if process.group.1 != session {
                return Err(Errno::EPERM.into());
            }
            if process.has_executed {
                return Err(Errno::EACCES.into());
            }
        } else if pid != me {
            return Err(Errno::ESRCH.into());
        }
        let mut others = self.state.processes.values();
        let exists = group == pid || others.any(|other| other.group == (group, session));
        if process.group.1 == pid || !exists {
            return Err(Errno::EPERM.into());
        }
        self.state.process(pid).group.0 = group;
        Ok(0)
    }

    /// setsid(2).
    pub fn setsid(&mut self) -> SysResult {
        let pid = self.pid;
        if !members(self.state, pid).is_empty() {
            return Err(Errno::EPERM.into());
        }
        self.process().group = (pid, pid);
        Ok(pid as u64)
    }
}
