//! COIProcessProxyFlush: a process waits until its owner has written what it wrote.

use snaprig_offload_wire::{coi::FromDaemon, snapify::Reply};

use super::{Machine, Output, Pid, Pipe};

impl Machine {
    /// A process waits until what it wrote is written.
    pub(super) fn flush(&mut self, pipe: Pipe, pid: Pid) {
        match self.processes.get(&pid) {
            Some(process) if process.proxy => {
                self.flushing.insert(pipe, pid);
                self.put(Output::Drain(pipe, pid));
            }
            Some(_) => self.flushed(pipe),
            None => self.put(Output::Drop(pipe)),
        }
    }

    /// What the process wrote is on its way: its owner is asked to say when it is written.
    pub(super) fn drained(&mut self, pipe: Pipe) {
        let Some(pid) = self.flushing.get(&pipe) else {
            return;
        };
        match self.processes.get(pid).and_then(|process| process.owner) {
            Some(conn) => self.put(Output::Tell(conn, FromDaemon::Flush(pipe))),
            None => {
                self.flushing.remove(&pipe);
                self.put(Output::Drop(pipe));
            }
        }
    }

    /// An owner says that it is written. The process may be gone meanwhile.
    pub(super) fn written(&mut self, pid: Pid, pipe: Pipe) {
        if self.flushing.get(&pipe) == Some(&pid) {
            self.flushed(pipe);
        }
    }

    fn flushed(&mut self, pipe: Pipe) {
        self.flushing.remove(&pipe);
        self.put(Output::Say(pipe, Reply::Flushed));
        self.put(Output::Drop(pipe));
    }
}
