//! Drives the machine of a target: who connects, what is said, and the clock. What the machine has done to trees is left
//! to whoever has them ([`Endpoint::next_work`]).
//!
//! What must stay true: what the machine says is done in its order; a peer that is slow keeps nobody waiting.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snaprig_ckpt_image::store::Arrival;
use snaprig_coord::{
    Ns,
    migration::{
        Id, LINGER_NS, SILENCE_NS, SiteId, Target as Machine,
        message::{ToSource, ToTarget},
        target::{Input, Output},
    },
};
use snaprig_peers::{
    Listener, Stream,
    connection::{Connection, End},
    token::random,
};
use snaprig_resources::{
    error::{Error, Result},
    event::{Event, Reporter},
};
use snaprig_tracee::faults::reached;

use super::{MESSAGE_MAX, Target, faults, record};

/// Where a target is asked.
pub struct Endpoint {
    machine: Machine,
    at: Target,
    /// Migrations whose sources may still ask.
    arrivals: Vec<Arrival>,
    listener: Option<Listener>,
    connections: BTreeMap<u64, Connection>,
    /// Of the last connection.
    number: u64,
    outputs: VecDeque<Output>,
    /// The source has said that the tree goes on there.
    is_abandoned: bool,
    start: Instant,
    reporter: Reporter,
}

impl Endpoint {
    /// Waits for a tree; it answers for those that have come before.
    pub fn new(
        site: SiteId,
        at: &Target,
        arrivals: Vec<Arrival>,
        reporter: &Reporter,
    ) -> Result<Self> {
        Self::with(Machine::new, site, at, arrivals, reporter)
    }

    /// Answers for the trees that have come, of which one is here.
    pub fn with_tree(
        site: SiteId,
        at: &Target,
        arrivals: Vec<Arrival>,
        reporter: &Reporter,
    ) -> Result<Self> {
        Self::with(Machine::with_tree, site, at, arrivals, reporter)
    }

    fn with(
        machine: impl FnOnce(SiteId, Option<snaprig_peers::Token>, BTreeSet<Id>, Ns) -> Machine,
        site: SiteId,
        at: &Target,
        arrivals: Vec<Arrival>,
        reporter: &Reporter,
    ) -> Result<Self> {
        let committed = arrivals.iter().map(|arrival| Id(arrival.migration));
        let mut endpoint = Self {
            machine: machine(site, at.token()?, committed.collect(), 0),
            at: at.clone(),
            arrivals,
            listener: None,
            connections: BTreeMap::new(),
            number: 0,
            outputs: VecDeque::new(),
            is_abandoned: false,
            start: Instant::now(),
            reporter: reporter.clone(),
        };
        endpoint.listen()?;
        Ok(endpoint)
    }

    /// Listens, from now on.
    pub fn listen(&mut self) -> Result<()> {
        let bound = Listener::bind(self.at.address()).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let failed = |source| Error::io(format!("listening at {}", self.at), source);
        self.listener = Some(bound.map_err(failed)?);
        Ok(())
    }

    /// Does not listen any more: whoever else is made of this process does.
    pub fn stop_listening(&mut self) {
        self.listener = None;
    }

    /// The migrations that a checkpoint of its tree is to name.
    pub fn arrivals(&self) -> Vec<Arrival> {
        let awaited = |arrival: &&Arrival| self.machine.is_awaited_by(Id(arrival.migration));
        self.arrivals.iter().filter(awaited).cloned().collect()
    }

    /// A migration that is about to be decided.
    pub fn add_arrival(&mut self, id: Id) -> Vec<Arrival> {
        let new = record::arrival(id, &self.at);
        let named = [self.arrivals(), vec![new.clone()]].concat();
        self.arrivals.push(new);
        named
    }

    /// Whether somebody may still ask.
    pub fn is_awaited(&self) -> bool {
        self.machine.is_awaited()
    }

    /// What to wait for, besides the deadline.
    pub fn descriptors(&self) -> Vec<PollFd<'_>> {
        let listener = self.listener.as_ref().map(|listener| listener.as_fd());
        let listener = listener.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let connections = self.connections.values().map(|connection| {
            let events = match connection.is_writing() {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            PollFd::from_borrowed_fd(connection.as_fd(), events)
        });
        listener.into_iter().chain(connections).collect()
    }

    /// How long until [`Endpoint::go_on`] is due.
    pub fn left(&self) -> Option<Duration> {
        let due = self.machine.deadline()?;
        Some(Duration::from_nanos(due.saturating_sub(self.now())))
    }

    fn now(&self) -> Ns {
        self.start.elapsed().as_nanos() as Ns
    }

    /// Waits for something, but no longer than this.
    pub fn wait(&self, most: Option<Duration>) -> Result<()> {
        let left = self.left().into_iter().chain(most).min();
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut self.descriptors(), left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::io("poll", error)),
        }
    }

    /// Hears what there is, without waiting.
    pub fn go_on(&mut self) {
        self.accept();
        for number in self.connections.keys().copied().collect::<Vec<_>>() {
            self.hear(number);
        }
        self.handle(Input::Tick);
    }

    /// Something has happened.
    pub fn handle(&mut self, input: Input) {
        let now = self.now();
        self.outputs.extend(self.machine.handle(input, now));
    }

    /// The next thing that is to be done to a tree, after all that is to be said before it.
    pub fn next_work(&mut self) -> Option<Output> {
        while let Some(output) = self.outputs.pop_front() {
            match output {
                Output::Send {
                    connection,
                    message,
                } => self.send(connection, &message),
                Output::Close { connection, why } => {
                    self.close(connection);
                    if let Some(why) = why {
                        let source = io::Error::other(why);
                        self.reporter.tell(Event::ConnectionRefused { source });
                    }
                }
                work => return Some(work),
            }
        }
        None
    }

    /// Answers for a tree that was given up, for as long as its source, if it lives, may take to ask.
    pub fn linger_after_giving_up(&mut self) -> Result<()> {
        self.linger(|endpoint| !endpoint.is_abandoned)
    }

    /// Answers for trees that have been here, for as long as somebody may ask.
    pub fn linger_after_the_end(&mut self) -> Result<()> {
        self.linger(Self::is_awaited)
    }

    fn linger(&mut self, is_needed: impl Fn(&Self) -> bool) -> Result<()> {
        let until = Instant::now() + Duration::from_nanos(LINGER_NS);
        loop {
            while let Some(work) = self.next_work() {
                if let Output::Receive { id, .. } = work {
                    let result =
                        Err("this target takes no more programs; start another one".into());
                    self.handle(Input::Restored { id, result });
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !is_needed(self) {
                return Ok(());
            }
            self.wait(Some(left))?;
            self.go_on();
        }
    }

    fn accept(&mut self) {
        while let Some(Ok(stream)) = self.listener.as_ref().map(Listener::accept) {
            if let Err(source) = self.take_in(stream) {
                self.reporter.tell(Event::ConnectionRefused { source });
            }
        }
    }

    fn take_in(&mut self, stream: Stream) -> io::Result<()> {
        stream.check_user()?;
        let nonce = random()?;
        self.number += 1;
        let connection = self.number;
        self.put_back(connection, stream)?;
        self.handle(Input::Connected { connection, nonce });
        Ok(())
    }

    fn put_back(&mut self, connection: u64, stream: Stream) -> io::Result<()> {
        let made = Connection::new(stream, MESSAGE_MAX, MESSAGE_MAX)?;
        self.connections.insert(connection, made);
        Ok(())
    }

    fn hear(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let mut over = connection.flush().is_err() || connection.read().is_err();
        loop {
            let Some(connection) = self.connections.get_mut(&number) else {
                return;
            };
            match connection.next_message::<ToTarget>() {
                Ok(Some(message)) => {
                    let is_begin = matches!(message, ToTarget::Begin { .. });
                    match message {
                        ToTarget::Go { .. } => reached(&faults::DECIDING),
                        ToTarget::Abandon { .. } => self.is_abandoned = true,
                        _ => {}
                    }
                    let connection = number;
                    self.handle(Input::Message {
                        connection,
                        message,
                    });
                    if is_begin {
                        // What follows is no message.
                        return;
                    }
                }
                Ok(None) => break,
                Err(End::Closed(_) | End::Nonsense(_)) => {
                    over = true;
                    break;
                }
            }
        }
        if over {
            self.close(number);
            self.handle(Input::Closed { connection: number });
        }
    }

    fn send(&mut self, number: u64, message: &ToSource) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if connection.send(message).is_err() {
            self.close(number);
            self.handle(Input::Closed { connection: number });
        }
        match message {
            ToSource::Ready { .. } => reached(&faults::READY),
            ToSource::Running { .. } => reached(&faults::ANSWERED),
            _ => {}
        }
    }

    /// Other processes may have the connection, too: it ends for all of them.
    fn close(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            // It may have ended already.
            let _ = connection.shut();
        }
    }

    /// Reads what follows on a connection that is no message.
    pub fn read_from<T>(
        &mut self,
        number: u64,
        read: impl FnOnce(&mut dyn io::Read) -> Result<T>,
    ) -> Result<T> {
        let failed = |source| Error::io("the connection of a migration", source);
        let connection = self.connections.remove(&number);
        let connection = connection.ok_or_else(|| failed(io::ErrorKind::NotConnected.into()))?;
        let (stream, read_ahead) = connection.into_parts().map_err(failed)?;
        let silence_max = Duration::from_nanos(SILENCE_NS);
        stream.set_silence_max(silence_max).map_err(failed)?;
        let mut from = io::Read::chain(&read_ahead[..], &stream);
        let result = read(&mut from);
        self.put_back(number, stream).map_err(failed)?;
        result
    }
}
