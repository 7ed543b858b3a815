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
                (process.snapify, process.held) = (None, None);
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
        }
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
            native: false,
            proxy,
            path: String::new(),
            owner: None,
            reached: false,
            snapify: Some(conn),
            pipe: None,
            held: None,
            ended: None,
            cleaned_up: false,
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
                return self.put(Output::Restore(conn, request));
            }
            Request::Pause { pid } => self.pause(conn, *pid),
            Request::Drain { pid, .. }
            | Request::Capture { pid, .. }
            | Request::Resume { pid }
            | Request::End { pid } => self.relay(conn, *pid, request.clone()),
        };
        if let Err(failure) = result {
            self.refuse(conn, failure);
        }
    }

    fn pause(&mut self, conn: Conn, pid: Pid) -> Result<(), Failure> {
        let process = self
            .processes
            .get_mut(&pid)
            .filter(|process| process.ended.is_none() && !process.native && process.reached)
            .ok_or(failure(ESRCH, "there is no such offload process"))?;
        if process.snapify.is_some() {
            return Err(failure(EBUSY, "the process is paused already"));
        }
        process.snapify = Some(conn);
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
