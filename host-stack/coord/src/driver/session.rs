//! A member's machine over a socket, in a thread of its own: pings go, and the coordinator's end is
//! noticed, whatever the agent is doing.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use snaprig_peers::{
    connection::{Connection, End},
    token::random,
};

use super::{clock::Clock, locator::Locator};
use crate::{
    Ns,
    member::{Config, Event, Input, Machine, Output},
    message::{Answer, Call, CallError, MESSAGE_MAX, STRANGER_MAX, ToMember},
    phase::Phase,
};

/// How long what was said last may take to leave.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

pub(super) type CallResult = Result<Answer, CallError>;
/// Who is told what comes of a call, on the session's thread.
pub(super) type Reply = Box<dyn FnOnce(CallResult) + Send>;

/// What the agent wants.
pub(super) enum Command {
    Call {
        id: u64,
        call: Call,
        reply: Reply,
    },
    Done {
        round: u64,
        phase: Phase,
        result: Result<String, String>,
    },
    GetsOn {
        round: u64,
        phase: Phase,
    },
    Rename(String),
    Leave,
}

pub(super) struct Session {
    locator: Locator,
    machine: Machine,
    connection: Option<Connection>,
    commands: mpsc::Receiver<Command>,
    /// A byte comes with each command; it ends with the last sender.
    woken: UnixStream,
    waiting: BTreeMap<u64, Reply>,
    events: mpsc::Sender<Event>,
    /// Counts events (eventfd(2)).
    ready: Arc<OwnedFd>,
    /// Held whenever this thread does anything but wait in the kernel.
    gate: Arc<Mutex<()>>,
    clock: Clock,
}

impl Session {
    pub(super) fn new(
        locator: Locator,
        config: Config,
        commands: mpsc::Receiver<Command>,
        woken: UnixStream,
        events: mpsc::Sender<Event>,
        ready: Arc<OwnedFd>,
        gate: Arc<Mutex<()>>,
    ) -> io::Result<Self> {
        woken.set_nonblocking(true)?;
        Ok(Self {
            locator,
            machine: Machine::new(config, 0),
            connection: None,
            commands,
            woken,
            waiting: BTreeMap::new(),
            events,
            ready,
            gate,
            clock: Clock::new(),
        })
    }

    fn now(&self) -> Ns {
        self.clock.now()
    }

    /// Until nobody gives commands any more.
    pub(super) fn run(mut self) {
        let gate = self.gate.clone();
        let close = || gate.lock().unwrap_or_else(PoisonError::into_inner);
        let mut working = close();
        self.handle(Input::Tick);
        loop {
            self.wait(working);
            working = close();
            let mut bytes = [0; 64];
            let is_over = matches!(self.woken.read(&mut bytes), Ok(0));
            while let Ok(command) = self.commands.try_recv() {
                self.command(command);
            }
            if is_over {
                return;
            }
            self.receive();
            let now = self.now();
            if self.machine.deadline().is_some_and(|due| due <= now) {
                self.handle(Input::Tick);
            }
        }
    }

    /// Nothing is locked or allocated meanwhile.
    fn wait(&mut self, working: MutexGuard<'_, ()>) {
        let due = self.machine.deadline();
        let woken = || PollFd::new(&self.woken, PollFlags::IN);
        let (mut fds, mut count) = ([woken(), woken()], 1);
        if let Some(connection) = &self.connection {
            let writes = match connection.is_writing() {
                true => PollFlags::OUT,
                false => PollFlags::empty(),
            };
            fds[1] = PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN | writes);
            count = 2;
        }
        drop(working);
        // EINTR: there is nothing to do, and the next round waits again.
        let _ = self.clock.poll(&mut fds[..count], due);
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Call { id, call, reply } => {
                self.waiting.insert(id, reply);
                self.handle(Input::Call { id, call });
            }
            Command::Done {
                round,
                phase,
                result,
            } => self.handle(Input::Done {
                round,
                phase,
                result,
            }),
            Command::GetsOn { round, phase } => self.handle(Input::GetsOn { round, phase }),
            Command::Rename(name) => self.handle(Input::Renamed { name }),
            Command::Leave => self.handle(Input::Leave),
        }
    }

    fn receive(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let flushed = connection.flush();
        let mut end = connection.read().err();
        loop {
            // A message may have ended the connection.
            let Some(connection) = &mut self.connection else {
                return;
            };
            match connection.next_message::<ToMember>() {
                Ok(Some(message)) => {
                    if matches!(message, ToMember::Challenge { .. }) {
                        // It proves itself with that; if it does not, the machine hangs up.
                        connection.set_incoming_max(MESSAGE_MAX);
                    }
                    self.handle(Input::Message(message));
                }
                Ok(None) => break,
                Err(nonsense) => {
                    end = Some(nonsense);
                    break;
                }
            }
        }
        let unsent = flushed.err().map(|error| End::Closed(error.to_string()));
        if let Some(End::Closed(why) | End::Nonsense(why)) = end.or(unsent) {
            self.connection = None;
            self.handle(Input::Closed { why });
        }
    }

    fn handle(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for output in self.machine.handle(input, self.now()) {
                inputs.extend(self.act(output));
            }
        }
    }

    /// Does it; what comes of it, if that is of interest.
    fn act(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Connect => return Some(self.connect()),
            Output::Send(message) => {
                let connection = self.connection.as_mut()?;
                if let Err(error) = connection.send(&message) {
                    self.connection = None;
                    let why = error.to_string();
                    return Some(Input::Closed { why });
                }
            }
            Output::Close => self.farewell(),
            Output::Answer { id, result } => {
                if let Some(reply) = self.waiting.remove(&id) {
                    reply(result);
                }
            }
            Output::Event(event) => {
                // Nobody may be interested.
                let _ = self.events.send(event);
                let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
            }
        }
        None
    }

    fn connect(&mut self) -> Input {
        let connected = self.locator.connect().and_then(|stream| {
            let connection = Connection::new(stream, STRANGER_MAX, MESSAGE_MAX)?;
            Ok((connection, random()?))
        });
        match connected {
            Ok((connection, nonce)) => {
                self.connection = Some(connection);
                Input::Connected { nonce }
            }
            Err(error) => Input::Closed {
                why: error.to_string(),
            },
        }
    }

    /// What was said last leaves, if the peer takes it.
    fn farewell(&mut self) {
        let Some(mut connection) = self.connection.take() else {
            return;
        };
        let until = Instant::now() + FAREWELL_MAX;
        while connection.flush().is_ok() && connection.is_writing() && Instant::now() < until {
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: 100_000_000,
            };
            let mut fds = [PollFd::new(&connection, PollFlags::OUT)];
            let _ = poll(&mut fds, Some(&timeout));
        }
    }
}
