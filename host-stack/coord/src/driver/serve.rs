//! The coordinator's machine over sockets, in one thread.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::Arc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags};

use snaprig_peers::{
    Listener,
    connection::{Connection, End},
    token::random,
};

use super::{
    clock::Clock,
    disk::{Disk, Work},
};
use crate::{
    Ns,
    coordinator::{Config, ConnectionId, Input, Machine, Output, PEERS_MAX, STRANGERS_MAX},
    message::{MESSAGE_MAX, STRANGER_MAX, ToMember},
    phase::Order,
};

/// Most connections: more than the machine takes, so that it can say no.
const CONNECTIONS_MAX: usize = PEERS_MAX + STRANGERS_MAX;
/// How long one that nobody needs waits for the next who does.
const LINGER: Duration = Duration::from_secs(10);

/// What a coordinator keeps on a disk, one thing after the other.
pub trait Keeper: Send + Sync {
    /// These are the job's members from now on: a coordinator that takes over starts with them
    /// ([`Config::members`]).
    fn members(&self, members: &[String]) -> io::Result<()>;

    /// All members have written, and it is on the disk: makes that a checkpoint, at once and for
    /// good. When it fails, there is none, and members remove what they have written: on an error
    /// after the rename, the name has to go again. Of a move, that it is decided is to be found by its members.
    fn commit(
        &self,
        round: u64,
        order: &Order,
        reports: &BTreeMap<String, String>,
    ) -> Result<(), String>;
}

/// A coordinator that runs in a thread, until it is stopped or dropped.
#[derive(Debug)]
pub struct Coordinator {
    wake: UnixStream,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Coordinator {
    /// Starts it.
    pub fn start(listener: Listener, config: Config, keeper: Arc<dyn Keeper>) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        let server = Server::new(listener, config, keeper, woken, false)?;
        let thread = thread::Builder::new().name("coordinator".into());
        Ok(Self {
            wake,
            thread: Some(thread.spawn(move || server.run())?),
        })
    }

    /// Serves in this thread, until there has been no member and no peer for a while.
    pub fn serve(listener: Listener, config: Config, keeper: Arc<dyn Keeper>) -> io::Result<()> {
        // Nobody has the other end: it is kept, so that it does not end.
        let (_wake, woken) = UnixStream::pair()?;
        Server::new(listener, config, keeper, woken, true)?.run()
    }

    /// Stops it. Its peers see their connections end.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let _ = self.wake.shutdown(std::net::Shutdown::Both);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the coordinator's thread panicked")),
            None => Ok(()),
        }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

struct Server {
    listener: Listener,
    machine: Machine,
    connections: BTreeMap<ConnectionId, Connection>,
    next: ConnectionId,
    /// Ends when it is to stop.
    woken: UnixStream,
    disk: Disk,
    /// A byte comes when the disk has done something.
    kept: UnixStream,
    clock: Clock,
    /// Ends when nobody has been there for a while.
    until_idle: bool,
    /// Since when nobody is there.
    idle: Option<Instant>,
}

impl Server {
    fn new(
        listener: Listener,
        config: Config,
        keeper: Arc<dyn Keeper>,
        woken: UnixStream,
        until_idle: bool,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (kept, waker) = UnixStream::pair()?;
        for socket in [&woken, &kept, &waker] {
            socket.set_nonblocking(true)?;
        }
        Ok(Self {
            listener,
            machine: Machine::new(config, 0),
            connections: BTreeMap::new(),
            next: 1,
            woken,
            disk: Disk::start(keeper, waker)?,
            kept,
            clock: Clock::new(),
            until_idle,
            idle: None,
        })
    }

    fn now(&self) -> Ns {
        self.clock.now()
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            if self.is_over() {
                return Ok(());
            }
            let ready = self.wait()?;
            if ready.stop {
                return Ok(());
            }
            for connection in ready.connections {
                self.serve_one(connection);
            }
            if ready.listener {
                self.accept();
            }
            let mut bytes = [0; 64];
            let _ = self.kept.read(&mut bytes);
            while let Some(input) = self.disk.done() {
                self.handle(input);
            }
            let now = self.now();
            if self.machine.deadline().is_some_and(|due| due <= now) {
                self.handle(Input::Tick);
            }
        }
    }

    /// Whether nobody has been there for a while, and that ends it.
    fn is_over(&mut self) -> bool {
        let is_idle = self.until_idle && self.machine.is_idle();
        self.idle = is_idle.then(|| self.idle.unwrap_or_else(Instant::now));
        self.idle.is_some_and(|since| since.elapsed() >= LINGER)
    }

    fn wait(&mut self) -> io::Result<Ready> {
        let linger = self.idle.map(|since| {
            let left = LINGER.saturating_sub(since.elapsed());
            self.now() + left.as_nanos() as Ns
        });
        let due = self.machine.deadline().into_iter().chain(linger).min();
        let listens = match self.connections.len() < CONNECTIONS_MAX {
            true => PollFlags::IN,
            false => PollFlags::empty(),
        };
        let mut fds = vec![
            PollFd::new(&self.woken, PollFlags::IN),
            PollFd::new(&self.listener, listens),
            PollFd::new(&self.kept, PollFlags::IN),
        ];
        for connection in self.connections.values() {
            let writes = match connection.is_writing() {
                true => PollFlags::OUT,
                false => PollFlags::empty(),
            };
            let fd = connection.as_fd();
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN | writes));
        }
        match self.clock.poll(&mut fds, due) {
            Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
            other => other?,
        };
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let connections = self.connections.keys().zip(&fds[3..]);
        let connections = connections.filter(|(_, fd)| is_ready(fd));
        Ok(Ready {
            stop: is_ready(&fds[0]),
            listener: is_ready(&fds[1]),
            connections: connections.map(|(id, _)| *id).collect(),
        })
    }

    fn accept(&mut self) {
        while self.connections.len() < CONNECTIONS_MAX {
            let stream = match self.listener.accept() {
                Ok(stream) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return tracing::warn!(%error, "a peer could not be taken"),
            };
            let nonce = match random() {
                Ok(nonce) => nonce,
                Err(error) => return tracing::warn!(%error, "there is no nonce for a peer"),
            };
            let connection = self.next;
            self.next += 1;
            match Connection::new(stream, STRANGER_MAX, MESSAGE_MAX) {
                Ok(stream) => self.connections.insert(connection, stream),
                Err(error) => return tracing::warn!(%error, "a peer could not be taken"),
            };
            self.handle(Input::Connected { connection, nonce });
        }
    }

    /// Reads and writes what can be.
    fn serve_one(&mut self, connection: ConnectionId) {
        let Some(at) = self.connections.get_mut(&connection) else {
            return;
        };
        // A connection that cannot be written to cannot be read from for long.
        let _ = at.flush();
        let end = at.read().err();
        loop {
            // A message may have ended the connection.
            let Some(at) = self.connections.get_mut(&connection) else {
                return;
            };
            match at.next_message() {
                Ok(Some(message)) => self.handle(Input::Message {
                    connection,
                    message,
                }),
                Ok(None) => break,
                Err(end) => return self.end(connection, end),
            }
        }
        if let Some(end) = end {
            self.end(connection, end);
        }
    }

    fn end(&mut self, connection: ConnectionId, end: End) {
        match end {
            End::Closed(_) => {
                self.connections.remove(&connection);
                self.handle(Input::Gone { connection });
            }
            End::Nonsense(what) => self.handle(Input::Nonsense { connection, what }),
        }
    }

    fn handle(&mut self, input: Input) {
        for output in self.machine.handle(input, self.now()) {
            self.act(output);
        }
    }

    fn act(&mut self, output: Output) {
        match output {
            Output::Send {
                connection,
                message,
            } => {
                let Some(at) = self.connections.get_mut(&connection) else {
                    return;
                };
                if message == ToMember::Welcome {
                    at.set_incoming_max(MESSAGE_MAX);
                }
                if let Err(error) = at.send(&message) {
                    tracing::warn!(%error, connection, "a peer could not be sent to");
                    // The machine hears of it by and by, as of any other end.
                    let _ = at.shut();
                }
            }
            Output::Disconnect { connection, why } => {
                tracing::info!(connection, why, "a peer is turned away");
                self.connections.remove(&connection);
            }
            Output::Members(members) => self.disk.keep(Work::Members(members)),
            Output::Commit {
                round,
                order,
                reports,
            } => self.disk.keep(Work::Commit {
                round,
                order,
                reports,
            }),
        }
    }
}

#[derive(Default)]
struct Ready {
    stop: bool,
    listener: bool,
    connections: Vec<ConnectionId>,
}
