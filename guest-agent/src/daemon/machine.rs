//! The COI daemon's protocol: whose processes there are, and Snapify's coordination of host process
//! and offload process (paper section 4.1, figure 3; the messages are in [`snaprig_offload_wire::snapify`]).
//!
//! ```text
//!  process:    (Spawn) -> Starting --Hello Started--> Running --Exited--> cleaned up -> gone
//!              (Restore) -> Returning --Hello Restarted--> Running
//!  Snapify on  Running:  Pause, Copy: Signalled --Hello Signalled--> Open --Resume, either side gone--> none
//!  a flush:    Hello Flush --> what the process wrote is on its way (Drain) --> Flush to its owner
//!              <-- Flushed
//! ```
//!
//! Connections of host processes and pipes to offload processes have numbers of the driver's
//! choosing.
//!
//! What must stay true: a process lives as long as the connection that it was created (or adopted)
//! on; every request gets exactly one reply, unless its connection is gone; a capture that ends the
//! process is answered when nothing of the process is left, because its successor may come with
//! the same id; a process that is restored and that nobody adopts is ended.
//!
//! A restore begins when nothing is left of processes whose hosts are gone: the one that comes back may be one of them,
//! with its id and its files.
//!
//! A paused process stays paused for as long as its own daemon's connection lasts, whatever becomes of attempts to restore
//! it elsewhere: otherwise it and its successor would both go on.

mod flush;
mod snapify;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{Hash, Hasher},
    mem::discriminant,
};

use snaprig_offload_wire::{
    coi::{Exit, FromDaemon, Program, ToDaemon},
    snapify::{Hello, Purpose, Reply, Request},
};

/// A connection of a host process.
pub type Conn = u64;
/// A connection of an offload process.
pub type Pipe = u64;
/// A process of this card.
pub type Pid = i32;

/// Processes that say hello before anybody knows of them: more than this is no accident.
const UNCLAIMED_MAX: usize = 256;
/// No such process (errno(3)).
const ESRCH: i32 = 3;
/// It is being done already.
const EBUSY: i32 = 16;
/// The request makes no sense now.
const EINVAL: i32 = 22;

/// Why something could not be done, for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// A Linux error number, or 0.
    pub errno: i32,
    /// What went wrong.
    pub why: String,
}

fn failure(errno: i32, why: impl Into<String>) -> Failure {
    let why = why.into();
    Failure { errno, why }
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A host process says this on its connection.
    Host(Conn, ToDaemon),
    /// The same, on a connection that carries Snapify's requests.
    Request(Conn, Request),
    /// It is gone.
    HostGone(Conn),
    /// [`Output::Spawn`] is done: the process and the path of its program.
    Spawned(Conn, Result<(Pid, String), Failure>),
    /// [`Output::Restore`] is done.
    Restored(Conn, Result<Pid, Failure>),
    /// [`Output::Preload`] is done.
    Preloaded(Conn, Result<(), Failure>),
    /// An offload process connects.
    Hello(Pipe, Hello),
    /// It answers.
    Reply(Pipe, Reply),
    /// It is gone.
    PipeGone(Pipe),
    /// A child has ended.
    Exited(Pid, Exit),
    /// [`Output::Examine`] is done.
    Examined(Pid, Failure),
    /// [`Output::Drain`] is done.
    Drained(Pipe),
    /// [`Output::CleanUp`] is done.
    CleanedUp(Pid),
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Take the program's bytes off the connection and start it; true: with its stdio on the
    /// connection. Then [`Input::Spawned`].
    Spawn(Conn, Program, bool),
    /// Bring a process back. Then [`Input::Restored`].
    Restore(Conn, Request),
    /// Read an image, and keep it for as long as the connection lasts. Then [`Input::Preloaded`].
    Preload(Conn, Request),
    /// To a host process.
    Tell(Conn, FromDaemon),
    /// To a host process, on a connection that carries Snapify's requests.
    Answer(Conn, Reply),
    /// End a host process's connection.
    HangUp(Conn),
    /// To an offload process.
    Ask(Pipe, Request),
    /// End an offload process's connection: if it is paused, it goes on.
    Drop(Pipe),
    /// To an offload process that waits for a flush.
    Say(Pipe, Reply),
    /// Bytes for a native program's standard input; none at its end.
    Stdin(Pid, Vec<u8>),
    /// What the process writes goes to this connection from now on.
    Proxy(Conn, Pid),
    /// All that the process wrote until now is to be on its way to its owner. Then [`Input::Drained`].
    Drain(Pipe, Pid),
    /// Find out why a program ended before it could be reached. Then [`Input::Examined`].
    Examine(Pid, Exit),
    /// Make the process connect: [`snaprig_offload_wire::snapify::SIGNAL`].
    Signal(Pid),
    /// End the process: SIGKILL.
    Kill(Pid),
    /// Nothing of the process may be left: its files, its output. Then [`Input::CleanedUp`].
    CleanUp(Pid),
}

/// What a connection of a host process is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Its program is being started.
    Creating {
        native: bool,
        proxy: bool,
        gone: bool,
    },
    /// It owns this process.
    Owner(Pid),
    /// It carries Snapify's requests.
    Snapify { pending: bool },
    /// A restore that it asked for is under way.
    Restoring { proxy: bool, gone: bool },
}

#[derive(Debug, Default)]
struct Process {
    native: bool,
    /// What it writes goes to its owner.
    proxy: bool,
    /// Where its program is.
    path: String,
    owner: Option<Conn>,
    /// It has said hello since it was started or restored.
    reached: bool,
    /// Who pauses it, or is about to.
    snapify: Option<Conn>,
    /// What it is asked as soon as it connects.
    first: Option<Request>,
    /// The paper's pipe, from the first request to resume.
    pipe: Option<Pipe>,
    /// A reply that waits until nothing of the process is left.
    held: Option<Reply>,
    killed: bool,
    ended: Option<Exit>,
    cleaned_up: bool,
}

impl Process {
    /// Nobody has it any more: it is ending, or has ended.
    fn abandoned(&self) -> bool {
        self.owner.is_none() && (self.killed || self.ended.is_some())
    }
}

/// The machine: [`Machine::handle`] everything that happens, then [`Machine::poll_output`].
#[derive(Debug, Default)]
pub struct Machine {
    roles: BTreeMap<Conn, Role>,
    processes: BTreeMap<Pid, Process>,
    /// Processes that said hello, or ended, before their start was reported.
    early_hellos: BTreeMap<Pid, (Pipe, Purpose)>,
    early_ends: BTreeMap<Pid, Exit>,
    /// Processes that wait for a flush.
    flushing: BTreeMap<Pipe, Pid>,
    /// Restores that have not begun.
    restores: VecDeque<(Conn, Request)>,
    outputs: VecDeque<Output>,
}

impl Machine {
    /// Takes into a hash what decides what it does next, but for numbers and times: to count the
    /// states that an exhaustive search has seen.
    pub fn hash_state(&self, hash: &mut impl Hasher) {
        for role in self.roles.values() {
            discriminant(role).hash(hash);
        }
        for process in self.processes.values() {
            (
                process.owner.is_some(),
                process.reached,
                process.snapify.is_some(),
            )
                .hash(hash);
            (process.pipe.is_some(), process.held.is_some()).hash(hash);
            (process.killed, process.ended.is_some(), process.cleaned_up).hash(hash);
        }
        (
            self.early_hellos.len(),
            self.early_ends.len(),
            self.restores.len(),
        )
            .hash(hash);
    }

    /// The next thing to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes note of what happened.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Host(conn, message) => self.host(conn, message),
            Input::Request(conn, request) => self.request(conn, request),
            Input::HostGone(conn) => self.host_gone(conn),
            Input::Spawned(conn, result) => self.spawned(conn, result),
            Input::Restored(conn, result) => self.restored(conn, result),
            Input::Preloaded(conn, Ok(())) => self.answer(conn, Reply::Preloaded),
            Input::Preloaded(conn, Err(failure)) => self.refuse(conn, failure),
            Input::Hello(pipe, hello) => self.hello(pipe, hello.pid, hello.why),
            Input::Reply(pipe, reply) => self.reply(pipe, reply),
            Input::PipeGone(pipe) => self.pipe_gone(pipe),
            Input::Exited(pid, exit) => self.exited(pid, exit),
            Input::Examined(pid, failure) => self.examined(pid, failure),
            Input::Drained(pipe) => self.drained(pipe),
            Input::CleanedUp(pid) => self.cleaned_up(pid),
        }
        self.begin_restores();
    }

    fn put(&mut self, output: Output) {
        self.outputs.push_back(output);
    }

    fn host(&mut self, conn: Conn, message: ToDaemon) {
        match (self.roles.get(&conn).copied(), message) {
            (None, ToDaemon::Create(program)) => self.create(conn, program, false),
            (None, ToDaemon::Native(program)) => self.create(conn, program, true),
            (None, ToDaemon::Snapify) => {
                self.roles.insert(conn, Role::Snapify { pending: false });
            }
            (None, ToDaemon::Adopt { pid }) => match self.processes.get_mut(&pid) {
                Some(process) if process.owner.is_none() && process.ended.is_none() => {
                    process.owner = Some(conn);
                    let proxy = process.proxy;
                    self.roles.insert(conn, Role::Owner(pid));
                    self.put(Output::Tell(conn, FromDaemon::Adopted));
                    if proxy {
                        self.put(Output::Proxy(conn, pid));
                    }
                }
                _ => self.put(Output::HangUp(conn)),
            },
            (Some(Role::Owner(pid)), ToDaemon::Destroy) => self.kill(pid),
            (Some(Role::Owner(pid)), ToDaemon::Stdin(bytes)) if self.is_native(pid) => {
                self.put(Output::Stdin(pid, bytes));
            }
            (Some(Role::Owner(pid)), ToDaemon::Flushed(pipe)) => self.written(pid, pipe),
            // Whatever else it says makes no sense, and it is not heard any more.
            _ => {
                self.put(Output::HangUp(conn));
                self.host_gone(conn);
            }
        }
    }

    fn is_native(&self, pid: Pid) -> bool {
        self.processes
            .get(&pid)
            .is_some_and(|process| process.native)
    }

    fn create(&mut self, conn: Conn, program: Program, native: bool) {
        let (proxy, gone) = (program.proxy, false);
        let role = Role::Creating {
            native,
            proxy,
            gone,
        };
        self.roles.insert(conn, role);
        self.put(Output::Spawn(conn, program, native));
    }

    fn host_gone(&mut self, conn: Conn) {
        if self.forget_restore(conn) {
            self.roles.remove(&conn);
        }
        match self.roles.get_mut(&conn) {
            None => {}
            Some(Role::Creating { gone, .. } | Role::Restoring { gone, .. }) => *gone = true,
            Some(Role::Owner(pid)) => {
                let pid = *pid;
                self.roles.remove(&conn);
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.owner = None;
                }
                self.kill(pid);
            }
            Some(Role::Snapify { .. }) => {
                self.roles.remove(&conn);
                self.let_go(conn);
            }
        }
    }

    fn kill(&mut self, pid: Pid) {
        let process = self.processes.get_mut(&pid);
        if let Some(process) = process.filter(|process| process.ended.is_none()) {
            process.killed = true;
            self.put(Output::Kill(pid));
        }
    }

    fn spawned(&mut self, conn: Conn, result: Result<(Pid, String), Failure>) {
        let Some(Role::Creating {
            native,
            proxy,
            gone,
        }) = self.roles.remove(&conn)
        else {
            return;
        };
        let (pid, path) = match result {
            Ok(started) => started,
            Err(Failure { errno, why }) => {
                return self.put(Output::Tell(conn, FromDaemon::Failed { errno, why }));
            }
        };
        let process = Process {
            native,
            proxy,
            path,
            owner: Some(conn),
            reached: native,
            ..Process::default()
        };
        self.roles.insert(conn, Role::Owner(pid));
        self.processes.insert(pid, process);
        if gone {
            self.host_gone(conn);
        }
        self.catch_up(pid);
    }

    /// What a process did before its start was reported.
    fn catch_up(&mut self, pid: Pid) {
        if let Some((pipe, why)) = self.early_hellos.remove(&pid) {
            self.hello(pipe, pid, why);
        }
        if let Some(exit) = self.early_ends.remove(&pid) {
            self.exited(pid, exit);
        }
    }

    fn hello(&mut self, pipe: Pipe, pid: Pid, why: Purpose) {
        if why == Purpose::Flush {
            return self.flush(pipe, pid);
        }
        let Some(process) = self.processes.get_mut(&pid) else {
            if self.early_hellos.len() < UNCLAIMED_MAX {
                self.early_hellos.insert(pid, (pipe, why));
            } else {
                self.put(Output::Drop(pipe));
            }
            return;
        };
        match (why, process.owner, process.snapify) {
            (Purpose::Started { port }, Some(conn), _) if !process.reached => {
                process.reached = true;
                let path = process.path.clone();
                self.put(Output::Tell(conn, FromDaemon::Created { pid, port, path }));
                self.put(Output::Drop(pipe));
            }
            (Purpose::Signalled, _, Some(_)) if process.pipe.is_none() => {
                process.pipe = Some(pipe);
                let first = process.first.take();
                self.put(Output::Ask(pipe, first.unwrap_or(Request::Pause { pid })));
            }
            (Purpose::Restarted { port }, _, Some(conn)) if !process.reached => {
                (process.reached, process.pipe) = (true, Some(pipe));
                self.answer(conn, Reply::Restored { pid, port });
            }
            // Whoever asked for it is gone.
            _ => self.put(Output::Drop(pipe)),
        }
    }

    fn pipe_gone(&mut self, pipe: Pipe) {
        self.flushing.remove(&pipe);
        // Whoever has started says so and hangs up: that is all it has to say.
        self.early_hellos
            .retain(|_, (other, why)| *other != pipe || matches!(why, Purpose::Started { .. }));
        let found = self
            .processes
            .iter_mut()
            .find(|(_, process)| process.pipe == Some(pipe));
        let Some((&pid, process)) = found else { return };
        process.pipe = None;
        // With a reply held it is on its way out, as it was told.
        if process.held.is_none()
            && let Some(conn) = process.snapify.take()
        {
            self.refuse(conn, failure(0, "the offload process broke off"));
        }
        self.bury(pid);
    }

    fn exited(&mut self, pid: Pid, exit: Exit) {
        let Some(process) = self.processes.get_mut(&pid) else {
            if self.early_ends.len() < UNCLAIMED_MAX {
                self.early_ends.insert(pid, exit);
            }
            return;
        };
        process.ended = Some(exit);
        let unreached = !process.reached && process.owner.is_some();
        // What it said at last may still be in its pipe.
        let asked = match process.pipe {
            Some(_) => None,
            None if process.held.is_some() => None,
            None => process.snapify.take(),
        };
        if let Some(conn) = asked {
            self.refuse(conn, failure(0, format!("the process ended: {exit:?}")));
        }
        self.put(match unreached {
            true => Output::Examine(pid, exit),
            false => Output::CleanUp(pid),
        });
    }

    /// It is known why a program could not be reached.
    fn examined(&mut self, pid: Pid, Failure { errno, why }: Failure) {
        let Some(process) = self.processes.get(&pid) else {
            return;
        };
        if let Some(conn) = process.owner {
            self.put(Output::Tell(conn, FromDaemon::Failed { errno, why }));
        }
        self.put(Output::CleanUp(pid));
    }

    fn cleaned_up(&mut self, pid: Pid) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.cleaned_up = true;
            self.bury(pid);
        }
    }

    /// Nothing of the process is left, and it has said its last: its id is free.
    fn bury(&mut self, pid: Pid) {
        let over = |process: &Process| {
            process.ended.is_some() && process.cleaned_up && process.pipe.is_none()
        };
        if !self.processes.get(&pid).is_some_and(over) {
            return;
        }
        let Some(process) = self.processes.remove(&pid) else {
            return;
        };
        // Paper, section 3, distributed states: nobody is to take it for dead.
        let is_elsewhere = process.held == Some(Reply::Ended);
        if let (Some(conn), Some(reply)) = (process.snapify, process.held) {
            self.answer(conn, reply);
        }
        if let (Some(conn), Some(exit)) = (process.owner, process.ended) {
            let told = match is_elsewhere {
                true => FromDaemon::SwappedOut,
                false => FromDaemon::Exited(exit),
            };
            self.put(Output::Tell(conn, told));
            // It owns nothing any more; the next process with this id is somebody else's.
            self.roles.remove(&conn);
        }
    }
}
