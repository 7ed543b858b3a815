//! The COI daemon: one a card. It starts, watches and ends offload processes for host processes,
//! and coordinates Snapify's pause (paper sections 2 and 4.1). What it does when is in
//! [`machine`]; this is its driver.
//!
//! | module | what it is |
//! |---|---|
//! | [`machine`] | the protocol |
//! | `control` | starting programs, and what is left of them |
//! | `native` | stdio of programs that know nothing of COI |
//! | `proxy` | what offload processes write, on its way to their hosts |
//! | `snapify` | bringing a process back |
//!
//! One thread reads each connection, one waits for the ends of all children. Messages are sent
//! with the machine locked, so that their order is the machine's; what takes long is done by the
//! thread whose input asked for it.

mod control;
pub mod machine;
mod native;
mod proxy;
mod snapify;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::Shutdown,
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use snaprig_offload_wire::{
    coi::{CardInfo, Exit, FromDaemon, LIBRARIES, ToDaemon},
    snapify::{Hello, Request, SIGNAL, SOCKET},
    snapify_io,
};
use snaprig_wire::{checkpoint, scif::port};

use self::{
    control::Remains,
    machine::{Conn, Failure, Input, Machine, Output, Pid, Pipe},
    native::Native,
};
use crate::{frames, processors::Counts, scif::Endpoint, spawn::Spawn, urgency::be_urgent};

const SNAPIFY_IOD: &str = "/bin/snapify_iod";
/// Where the daemon says that it listens.
const STATE: &str = "/dev/card/state";

/// What the daemon's threads share.
#[derive(Default)]
pub struct Daemon {
    inner: Mutex<Inner>,
    /// A child was started: there is somebody to wait for.
    started: Condvar,
}

#[derive(Default)]
struct Inner {
    machine: Machine,
    conns: BTreeMap<Conn, Arc<Endpoint>>,
    pipes: BTreeMap<Pipe, UnixStream>,
    natives: BTreeMap<Pid, Native>,
    /// Of offload processes.
    remains: BTreeMap<Pid, Remains>,
    /// The checkpoint service, with what connections have had it read.
    preloaded: BTreeMap<Conn, File>,
    next: u64,
    children_started: u64,
}

/// Runs for ever.
pub fn main() -> io::Result<()> {
    be_urgent();
    let daemon = Arc::new(Daemon::default());
    // A loader does not look again where there was nothing at its process's start.
    fs::create_dir_all(LIBRARIES)?;
    let local = UnixListener::bind(SOCKET)?;
    let taking = daemon.clone();
    std::thread::spawn(move || taking.take_processes(&local));
    let programs = UnixListener::bind(snapify_io::SOCKET)?;
    let nodes = listen(port::SNAPIFY_IO)?;
    let reaping = daemon.clone();
    std::thread::spawn(move || {
        // It starts meanwhile: who connects to it waits in the backlog.
        if let Err(error) = start_snapify_iod(&programs, &nodes) {
            eprintln!("coi_daemon: {SNAPIFY_IOD}: {error}");
        }
        drop((programs, nodes));
        reaping.reap();
    });
    let listener = listen(port::COI_DAEMON)?;
    if Path::new(STATE).exists() {
        fs::write(STATE, "online")?;
    }
    loop {
        let (host, _) = listener.accept()?;
        let daemon = daemon.clone();
        std::thread::spawn(move || daemon.serve_host(host));
    }
}

/// What the card's kernel says of it.
fn card_info() -> CardInfo {
    // SAFETY: the structure has numbers alone, for which zero is a value.
    let mut system: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: sysinfo(2) fills the whole structure, which is a variable of this function. It fails for nothing else.
    unsafe { libc::sysinfo(&raw mut system) };
    let unit = u64::from(system.mem_unit.max(1));
    let Counts { cores, threads } = Counts::of_card();
    CardInfo {
        cores,
        threads,
        memory_bytes: system.totalram * unit,
        free_bytes: system.freeram * unit,
    }
}

/// Other nodes may connect from now on.
fn listen(port: u16) -> io::Result<Endpoint> {
    let listener = Endpoint::open()?;
    listener.bind(port)?;
    listener.listen(64)?;
    Ok(listener)
}

/// Starts the Snapify-IO daemon: what programs and other nodes connect to are its standard input and output.
fn start_snapify_iod(programs: &UnixListener, nodes: &Endpoint) -> io::Result<()> {
    let spawn = Spawn {
        path: SNAPIFY_IOD,
        argv: &["snapify_iod".into()],
        env: &[],
        stdio: [Some(programs.as_fd()), Some(nodes.as_file().as_fd()), None],
        own_group: false,
    };
    spawn.start().map(|_| ())
}

impl Daemon {
    /// Reads one host process's connection to its end.
    fn serve_host(self: &Arc<Self>, host: Endpoint) {
        let host = Arc::new(host);
        let conn = {
            let mut inner = self.lock();
            let conn = inner.number();
            inner.conns.insert(conn, host.clone());
            conn
        };
        let mut snapify = false;
        loop {
            let input = match snapify {
                true => frames::receive(&host).map(|request| Input::Request(conn, request)),
                false => frames::receive(&host).map(|message| Input::Host(conn, message)),
            };
            let Ok(input) = input else { break };
            if let Input::Host(_, ToDaemon::Info) = input {
                // The next receive finds out if the host is gone.
                let _ = frames::send(&host, &FromDaemon::Info(card_info()));
                continue;
            }
            snapify |= matches!(input, Input::Host(_, ToDaemon::Snapify));
            self.handle(input);
            let mut inner = self.lock();
            if !inner.conns.contains_key(&conn) {
                // It was hung up.
                inner.preloaded.remove(&conn);
                return;
            }
        }
        self.handle(Input::HostGone(conn));
        let mut inner = self.lock();
        inner.conns.remove(&conn);
        inner.preloaded.remove(&conn);
    }

    /// Takes the connections of offload processes, for ever.
    fn take_processes(self: &Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let daemon = self.clone();
            std::thread::spawn(move || daemon.serve_process(stream));
        }
    }

    /// Reads one offload process's connection to its end.
    fn serve_process(self: &Arc<Self>, mut stream: UnixStream) {
        let (Ok(hello), Ok(writer)) = (frames::read::<Hello>(&mut stream), stream.try_clone())
        else {
            return;
        };
        let pipe = {
            let mut inner = self.lock();
            let pipe = inner.number();
            inner.pipes.insert(pipe, writer);
            pipe
        };
        self.handle(Input::Hello(pipe, hello));
        while let Ok(reply) = frames::read(&mut stream) {
            self.handle(Input::Reply(pipe, reply));
        }
        self.handle(Input::PipeGone(pipe));
        self.lock().pipes.remove(&pipe);
    }

    /// Collects the ends of all children, for ever.
    fn reap(self: &Arc<Self>) {
        loop {
            let seen = self.lock().children_started;
            let mut status = 0;
            // SAFETY: waitpid(2) writes an int, which is a variable of this function.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, 0) };
            if pid > 0 {
                let exit = match libc::WIFSIGNALED(status) {
                    true => Exit::Signal(libc::WTERMSIG(status)),
                    false => Exit::Code(libc::WEXITSTATUS(status)),
                };
                self.handle(Input::Exited(pid, exit));
                continue;
            }
            // No child now: wait until there is one.
            let mut inner = self.lock();
            while inner.children_started == seen {
                inner = self
                    .started
                    .wait(inner)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// There is a new child.
    fn child_started(&self) {
        self.lock().children_started += 1;
        self.started.notify_all();
    }

    /// Tells the machine what happened, and does what it says.
    fn handle(self: &Arc<Self>, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut later = Vec::new();
            let mut inner = self.lock();
            inner.machine.handle(input);
            while let Some(output) = inner.machine.poll_output() {
                later.extend(inner.send(output));
            }
            drop(inner);
            inputs.extend(later.into_iter().filter_map(|output| self.perform(output)));
        }
    }

    /// Does what takes its time.
    fn perform(self: &Arc<Self>, output: Output) -> Option<Input> {
        match output {
            Output::Spawn(conn, program, native) => {
                let host = self.lock().conns.get(&conn).cloned()?;
                let started = match native {
                    true => native::start(self, &host, &program),
                    false => control::start(self, &host, &program),
                };
                let started = started.map_err(|error| control::describe(&program, &error));
                Some(Input::Spawned(conn, started))
            }
            Output::Restore(conn, request) => {
                let preloaded = self.lock().preloaded.remove(&conn);
                let restored = snapify::restore(self, preloaded, &request);
                Some(Input::Restored(conn, restored))
            }
            Output::Preload(conn, request) => {
                let preloaded = self.preload(conn, &request);
                Some(Input::Preloaded(conn, preloaded))
            }
            Output::Stdin(pid, bytes) => {
                let stdin = self.lock().natives.get(&pid).map(Native::stdin)?;
                stdin.write(&bytes);
                None
            }
            Output::Proxy(conn, pid) => {
                let inner = self.lock();
                let proxy = inner.remains.get(&pid)?.proxy.clone()?;
                let host = inner.conns.get(&conn).cloned()?;
                drop(inner);
                proxy.start(&host);
                None
            }
            Output::Drain(pipe, pid) => {
                let proxy = self.lock().remains.get(&pid)?.proxy.clone();
                // It may take as long as the host likes.
                self.do_aside(move |_| {
                    if let Some(proxy) = proxy {
                        proxy.drain();
                    }
                    Input::Drained(pipe)
                });
                None
            }
            Output::Examine(pid, exit) => {
                self.do_aside(move |daemon| {
                    let program = daemon.lock().remains.get(&pid).map(Remains::program);
                    Input::Examined(pid, control::examine(program, exit))
                });
                None
            }
            Output::CleanUp(pid) => {
                // A program's last output may take as long as the host likes.
                self.do_aside(move |daemon| {
                    let mut inner = daemon.lock();
                    let native = inner.natives.remove(&pid);
                    let remains = inner.remains.remove(&pid);
                    drop(inner);
                    control::clean_up(pid, native, remains);
                    Input::CleanedUp(pid)
                });
                None
            }
            _ => None,
        }
    }

    /// Reads an image of a chain, and has what was read as long as its connection lasts.
    fn preload(&self, conn: Conn, request: &Request) -> Result<(), Failure> {
        let earlier = self.lock().preloaded.remove(&conn);
        let service = earlier.map_or_else(snapify::service, Ok);
        let service = service.map_err(|error| snapify::describe(checkpoint::PATH, &error))?;
        snapify::preload(&service, request)?;
        self.lock().preloaded.insert(conn, service);
        Ok(())
    }

    /// Does something on a thread of its own, and says that it is done.
    fn do_aside(self: &Arc<Self>, what: impl FnOnce(&Arc<Self>) -> Input + Send + 'static) {
        let daemon = self.clone();
        std::thread::spawn(move || {
            let input = what(&daemon);
            daemon.handle(input);
        });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Sends what is to be sent; gives back what is not. Who cannot be reached is gone, and the
    /// thread that reads that connection says so.
    fn send(&mut self, output: Output) -> Option<Output> {
        match output {
            Output::Tell(conn, message) => {
                let host = self.conns.get(&conn);
                let _ = host.map(|host| frames::send(host, &message));
            }
            Output::Answer(conn, reply) => {
                let host = self.conns.get(&conn);
                let _ = host.map(|host| frames::send(host, &reply));
            }
            Output::HangUp(conn) => drop(self.conns.remove(&conn)),
            Output::Ask(pipe, request) => {
                let stream = self.pipes.get_mut(&pipe);
                let _ = stream.map(|stream| frames::write(stream, &request));
            }
            Output::Say(pipe, reply) => {
                let stream = self.pipes.get_mut(&pipe);
                let _ = stream.map(|stream| frames::write(stream, &reply));
            }
            Output::Drop(pipe) => {
                let stream = self.pipes.remove(&pipe);
                let _ = stream.map(|stream| stream.shutdown(Shutdown::Both));
            }
            Output::Signal(pid) => kill(pid, SIGNAL),
            Output::Kill(pid) => kill(pid, libc::SIGKILL),
            other => return Some(other),
        }
        None
    }
}

/// Sends a signal to a process or, by a negative number, to a group.
fn kill(pid: Pid, signal: i32) {
    // SAFETY: kill(2) takes numbers alone and no address, so the kernel reads and writes no memory of this process. A
    // process that is gone already is what was wanted.
    unsafe { libc::kill(pid, signal) };
}
