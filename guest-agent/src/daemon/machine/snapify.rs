//! Snapify's coordination of host process and offload process: whose request goes where, and what
//! becomes of paused processes.

use snaprig_offload_wire::snapify::{Reply, Request};

use super::{
    Conn, EBUSY, EINVAL, ESRCH, Failure, Machine, Output, Pid, Pipe, Process, Role, failure,
};

impl Machine {
    /// Whoever paused processes over this connection is gone: they go on, but for those that came
    /// back from a snapshot and that nobody owns.
    pub(super) fn let_go(&mut self, conn: Conn) {
        let mine: Vec<_> = self
            .processes
            .iter_mut()
            .filter(|(_, process)| process.snapify == Some(conn))
            .map(|(pid, process)| {
                (process.snapify, process.held, process.first) = (None, None, None);
                (*pid, process.pipe.take(), process.owner)
            })
            .collect();
        for (pid, pipe, owner) in mine {
            if let Some(pipe) = pipe {
                self.put(Output::Drop(pipe));
            }
            if owner.is_none() {
                self.kill(pid);
            }
            // Its pipe may have been all that there was left of it.
            self.bury(pid);
        }
    }

    /// Restores begin when nothing is left of processes whose hosts are gone.
    pub(super) fn begin_restores(&mut self) {
        let leaving = |role: &Role| {
            matches!(
                role,
                Role::Creating { gone: true, .. } | Role::Restoring { gone: true, .. }
            )
        };
        if self.roles.values().any(leaving) || self.processes.values().any(Process::abandoned) {
            return;
        }
        let begun = std::mem::take(&mut self.restores).into_iter();
        self.outputs
            .extend(begun.map(|(conn, request)| Output::Restore(conn, request)));
    }

    /// A restore that has not begun does not take place. False: it has begun.
    pub(super) fn forget_restore(&mut self, conn: Conn) -> bool {
        let waiting = self.restores.len();
        self.restores.retain(|(other, _)| *other != conn);
        self.restores.len() < waiting
    }

    pub(super) fn restored(&mut self, conn: Conn, result: Result<Pid, Failure>) {
        let Some(Role::Restoring { proxy, gone }) = self.roles.remove(&conn) else {
            return;
        };
        if !gone {
            self.roles.insert(conn, Role::Snapify { pending: true });
        }
        let pid = match result {
            Ok(pid) => pid,
            Err(failure) => return self.refuse(conn, failure),
        };
        let process = Process {
            proxy,
            snapify: Some(conn),
            ..Process::default()
        };
        self.processes.insert(pid, process);
        if gone {
            self.let_go(conn);
        }
        self.catch_up(pid);
    }

    pub(super) fn request(&mut self, conn: Conn, request: Request) {
        match self.roles.get_mut(&conn) {
            Some(Role::Snapify { pending }) if !*pending => *pending = true,
            // Two requests at once, or no right to make one.
            _ => {
                self.put(Output::HangUp(conn));
                return self.host_gone(conn);
            }
        }
        let result = match &request {
            Request::Restore { proxy, .. } => {
                let (proxy, gone) = (*proxy, false);
                self.roles.insert(conn, Role::Restoring { proxy, gone });
                return self.restores.push_back((conn, request));
            }
            Request::Preload { .. } => return self.put(Output::Preload(conn, request)),
            Request::Pause { pid } | Request::Copy { pid, .. } => {
                self.begin(conn, *pid, request.clone())
            }
            Request::Drain { pid, .. }
            | Request::Capture { pid, .. }
            | Request::Resume { pid }
            | Request::End { pid } => self.relay(conn, *pid, request.clone()),
        };
        if let Err(failure) = result {
            self.refuse(conn, failure);
        }
    }

    /// What a process that works is asked.
    fn begin(&mut self, conn: Conn, pid: Pid, request: Request) -> Result<(), Failure> {
        let process = self
            .processes
            .get_mut(&pid)
            .filter(|process| process.ended.is_none() && !process.native && process.reached)
            .ok_or(failure(ESRCH, "there is no such offload process"))?;
        match (process.snapify, process.pipe) {
            (Some(asking), Some(_)) if asking == conn => return self.relay(conn, pid, request),
            (Some(_), _) => return Err(failure(EBUSY, "the process is paused already")),
            (None, _) => {}
        }
        (process.snapify, process.first) = (Some(conn), Some(request));
        self.put(Output::Signal(pid));
        Ok(())
    }

    fn relay(&mut self, conn: Conn, pid: Pid, request: Request) -> Result<(), Failure> {
        let process = self.processes.get_mut(&pid);
        let process = process.filter(|process| process.snapify == Some(conn));
        let paused = process.and_then(|process| process.pipe.map(|pipe| (process, pipe)));
        let (process, pipe) = paused.ok_or(failure(EINVAL, "the process is not paused"))?;
        process.held = matches!(request, Request::End { .. }).then_some(Reply::Ended);
        self.put(Output::Ask(pipe, request));
        Ok(())
    }

    pub(super) fn reply(&mut self, pipe: Pipe, reply: Reply) {
        let found = self
            .processes
            .iter_mut()
            .find(|(_, process)| process.pipe == Some(pipe));
        let Some((&pid, process)) = found else { return };
        let Some(conn) = process.snapify else { return };
        // It was to end, and says why it does not.
        process.held = None;
        if reply == Reply::Resumed {
            (process.snapify, process.pipe) = (None, None);
            let orphan = process.owner.is_none();
            self.put(Output::Drop(pipe));
            if orphan {
                self.kill(pid);
            }
        }
        self.answer(conn, reply);
    }

    /// Answers the request under way on a connection, if there is one and somebody to answer to.
    pub(super) fn answer(&mut self, conn: Conn, reply: Reply) {
        if let Some(Role::Snapify { pending }) = self.roles.get_mut(&conn)
            && std::mem::take(pending)
        {
            self.put(Output::Answer(conn, reply));
        }
    }

    pub(super) fn refuse(&mut self, conn: Conn, Failure { errno, why }: Failure) {
        let step = "on the card".into();
        self.answer(conn, Reply::Failed { step, errno, why });
    }
}
