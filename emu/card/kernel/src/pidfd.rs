//! Descriptors of processes: pidfd_open(2), pidfd_send_signal(2), waitid(P_PIDFD).

use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    call::Call,
    errno::Errno,
    file::{Description, File, PollMask},
    fs::Open,
    state::lock,
    wait::{Channel, Stop, SysResult},
};

/// `PIDFD_NONBLOCK`.
const NONBLOCK: i32 = libc::O_NONBLOCK;

/// Whether a process has ended: what is left of it for those who hold its descriptor.
#[derive(Default)]
pub struct Ending {
    has_ended: AtomicBool,
    channel: Channel,
}

impl Ending {
    /// The process has ended; the channel is to be woken.
    pub fn announce(&self) -> Channel {
        self.has_ended.store(true, Ordering::Relaxed);
        self.channel
    }
}

/// A descriptor of a process.
pub struct PidFd {
    pid: i32,
    ending: Arc<Ending>,
}

impl PidFd {
    /// Of a process.
    pub fn new(pid: i32, ending: &Arc<Ending>) -> Arc<Self> {
        Arc::new(Self {
            pid,
            ending: ending.clone(),
        })
    }

    /// The id of its process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Of a process that has ended, in a restored process.
    pub fn ended() -> Arc<Self> {
        let ending = Arc::new(Ending::default());
        ending.announce();
        Arc::new(Self { pid: 0, ending })
    }
}

impl File for PidFd {
    fn poll(&self) -> PollMask {
        match self.ending.has_ended.load(Ordering::Relaxed) {
            true => libc::POLLIN,
            false => 0,
        }
    }

    fn channels(&self) -> Vec<Channel> {
        vec![self.ending.channel]
    }

    fn describe(&self) -> Description {
        Description::Process
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

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
        // Another process may have its id by now.
        let process = self.state.processes.get(&file.pid);
        let is_there = process.is_some_and(|process| Arc::ptr_eq(&process.ending, &file.ending));
        Ok((if is_there { file.pid } else { 0 }, open.nonblock()))
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
