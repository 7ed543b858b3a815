//! Descriptors of processes: pidfd_open(2), pidfd_send_signal(2), waitid(P_PIDFD).

use std::sync::Arc;

use snaprig_card_driver::{
    errno::Errno,
    wait::{Stop, SysResult},
};
use snaprig_card_fs::{Open, files::pidfd::PidFd};

use crate::{call::Call, state::lock};

/// `PIDFD_NONBLOCK`.
const NONBLOCK: i32 = libc::O_NONBLOCK;

impl Call<'_> {
    /// pidfd_open(2).
    pub fn pidfd_open(&mut self, pid: i32, flags: i32) -> SysResult {
        if flags & !NONBLOCK != 0 || pid <= 0 {
            return Err(Errno::EINVAL.into());
        }
        let process = self.state.processes.get(&pid).ok_or(Errno::ESRCH)?;
        let file = PidFd::new(pid, &process.ending);
        self.insert_pidfd(file, flags)
    }

    /// A new descriptor of a process; it closes on exec.
    pub fn insert_pidfd(&mut self, file: Arc<PidFd>, flags: i32) -> SysResult {
        let limit = self.process().limits.nofile();
        let files = self.process().files.clone();
        let open = Open::new(file, libc::O_RDWR | flags);
        let fd = lock(&files).insert(open, true, 0, limit)?;
        Ok(fd as u64)
    }

    /// The process of a descriptor, 0 if it is gone, and whether a wait for it does not wait.
    pub fn process_of(&mut self, fd: i32) -> Result<(i32, bool), Stop> {
        let files = self.process().files.clone();
        let open = lock(&files).get(fd)?;
        let file = open.file.as_any().downcast_ref::<PidFd>();
        let file = file.ok_or(Errno::EBADF)?;
        let process = self.state.processes.get(&file.pid());
        let is_there = process.is_some_and(|process| file.is_of(&process.ending));
        Ok((if is_there { file.pid() } else { 0 }, open.nonblock()))
    }

    /// pidfd_send_signal(2).
    pub fn pidfd_send_signal(&mut self, fd: i32, signal: i32, at: u64, flags: u32) -> SysResult {
        if flags != 0 {
            return Err(Errno::EINVAL.into());
        }
        let (pid, _) = self.process_of(fd)?;
        if at == 0 {
            // 0 would be the caller's group.
            return match pid {
                0 => Err(Errno::ESRCH.into()),
                pid => self.kill(pid, signal),
            };
        }
        let info = self.read_siginfo(signal, at)?;
        if self.read_u32(at)? as i32 != signal {
            return Err(Errno::EINVAL.into());
        }
        self.check_forged(&info, pid == self.pid)?;
        self.send_to(&[pid], None, info)
    }
}
