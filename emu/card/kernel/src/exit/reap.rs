//! How a parent hears of its children: wait4(2), waitid(2).

use std::time::Duration;

use snaprig_card_driver::{
    errno::Errno,
    wait::{Stop, SysResult},
};

use crate::{
    call::Call,
    jobs::StateChange,
    sched,
    state::{ExitStatus, Process},
};

/// Options of both calls (wait(2)); the last three choose children by how they were cloned.
const COMMON: i32 = libc::WNOHANG | libc::__WNOTHREAD | libc::__WCLONE | libc::__WALL;

/// What there is to say of a child.
#[derive(Clone, Copy)]
enum Change {
    Ended(ExitStatus),
    Lives(StateChange),
}

impl Change {
    fn wait_status(self) -> i32 {
        match self {
            Self::Ended(status) => status.wait_status(),
            Self::Lives(news) => news.wait_status(),
        }
    }

    fn code(self) -> (i32, i32) {
        match self {
            Self::Ended(status) => status.code(),
            Self::Lives(news) => news.code(),
        }
    }
}

/// Which children.
#[derive(Clone, Copy)]
enum Selection {
    Any,
    Process(i32),
    Group(i32),
}

impl Selection {
    fn has(self, process: &Process) -> bool {
        match self {
            Self::Any => true,
            Self::Process(pid) => process.pid == pid,
            Self::Group(group) => process.group.0 == group,
        }
    }
}

impl Call<'_> {
    /// wait4(2).
    pub fn wait4(&mut self, pid: i32, status: u64, options: i32, usage: u64) -> SysResult {
        if options & !(COMMON | libc::WUNTRACED | libc::WCONTINUED) != 0 {
            return Err(Errno::EINVAL.into());
        }
        let which = match pid {
            i32::MIN => return Err(Errno::ESRCH.into()),
            -1 => Selection::Any,
            0 => Selection::Group(self.process().group.0),
            1.. => Selection::Process(pid),
            _ => Selection::Group(-pid),
        };
        let Some((child, change)) = self.find_child(which, options | libc::WEXITED)? else {
            return Ok(0);
        };
        let ran = self.take_change(child, change);
        if status != 0 {
            self.write(status, &change.wait_status().to_le_bytes())?;
        }
        if usage != 0 {
            self.write(usage, &sched::usage(ran))?;
        }
        Ok(child as u64)
    }

    /// waitid(2). Whatever comes of it is told at `info`, be it that there is nothing to tell.
    pub fn waitid(&mut self, kind: u32, id: i32, info: u64, options: i32, usage: u64) -> SysResult {
        let found = match self.waitid_for(kind, id, options) {
            Err(Stop::Wait(wait)) => return Err(Stop::Wait(wait)),
            found => found,
        };
        let mut bytes = [0; 28];
        if let Ok(Some((child, change))) = found {
            let told = self
                .state
                .process(child)
                .child_info(libc::SIGCHLD, change.code());
            bytes.copy_from_slice(&told.siginfo()[..28]);
            let ran = match options & libc::WNOWAIT {
                0 => self.take_change(child, change),
                _ => self.ran(child),
            };
            if usage != 0 {
                self.write(usage, &sched::usage(ran))?;
            }
        }
        if info != 0 {
            // The field between code and identity is padding.
            self.write(info, &bytes[..12])?;
            self.write(info.wrapping_add(16), &bytes[16..])?;
        }
        found.map(|_| 0)
    }

    fn waitid_for(
        &mut self,
        kind: u32,
        id: i32,
        mut options: i32,
    ) -> Result<Option<(i32, Change)>, Stop> {
        let changes = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED;
        if options & !(COMMON | libc::WNOWAIT | changes) != 0 || options & changes == 0 {
            return Err(Errno::EINVAL.into());
        }
        let mut is_nonblocking = false;
        let which = match kind {
            libc::P_ALL => Selection::Any,
            libc::P_PID if id > 0 => Selection::Process(id),
            libc::P_PGID if id == 0 => Selection::Group(self.process().group.0),
            libc::P_PGID if id > 0 => Selection::Group(id),
            libc::P_PIDFD if id >= 0 => {
                let pid;
                (pid, is_nonblocking) = self.process_of(id)?;
                Selection::Process(pid)
            }
            _ => return Err(Errno::EINVAL.into()),
        };
        if is_nonblocking {
            options |= libc::WNOHANG;
        }
        match self.find_child(which, options)? {
            None if is_nonblocking => Err(Errno::EAGAIN.into()),
            found => Ok(found),
        }
    }

    fn ran(&mut self, child: i32) -> Duration {
        let child = self.state.process(child);
        child.ran.saturating_add(child.children_ran)
    }

    /// The change has been told. An ended child is gone for good; its processor time, which is
    /// returned, counts for its parent now.
    fn take_change(&mut self, child: i32, change: Change) -> Duration {
        let ran = self.ran(child);
        match change {
            Change::Lives(_) => self.state.process(child).job.news = None,
            Change::Ended(_) => {
                self.state.processes.remove(&child);
                let process = self.process();
                process.children_ran = process.children_ran.saturating_add(ran);
            }
        }
        ran
    }

    fn find_child(
        &mut self,
        which: Selection,
        options: i32,
    ) -> Result<Option<(i32, Change)>, Stop> {
        let me = self.pid;
        // Children that were cloned without SIGCHLD are apart (wait(2), __WCLONE).
        let is_wanted = |process: &&Process| {
            let is_clone = process.exit_signal != libc::SIGCHLD;
            let kind = options & libc::__WALL != 0 || is_clone == (options & libc::__WCLONE != 0);
            process.parent == me && kind && which.has(process)
        };
        let mut any = false;
        for process in self.state.processes.values().filter(is_wanted) {
            let ended = process.exit.filter(|_| process.threads.is_empty());
            if let Some(status) = ended {
                if options & libc::WEXITED != 0 {
                    return Ok(Some((process.pid, Change::Ended(status))));
                }
                // Of one that has ended there is nothing else to wait for.
                continue;
            }
            any = true;
            let option = match process.job.news {
                Some(StateChange::Stopped(_)) => libc::WSTOPPED,
                Some(StateChange::Continued) => libc::WCONTINUED,
                None => 0,
            };
            if let Some(news) = process.job.news.filter(|_| options & option != 0) {
                return Ok(Some((process.pid, Change::Lives(news))));
            }
        }
        match (any, options & libc::WNOHANG != 0) {
            (false, _) => Err(Errno::ECHILD.into()),
            (true, true) => Ok(None),
            (true, false) => Err(Stop::wait(self.process().children)),
        }
    }
}
