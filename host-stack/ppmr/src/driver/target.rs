//! A target at work: sources connect to it, and what they send is there to be read, process by process.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Instant,
};

use rustix::net::{Shutdown, shutdown};
use snaprig_peers::{Address, Token};

use super::{
    After, Shared, Since, State,
    agree::{Side, Ways},
    common::{CommonPool, Part},
    connection::{Connection, Link, Node, Piece},
    door::Door,
    failed, lock,
    memory::Memory,
    transport::{Port, Transport},
    waiting::Waiting,
};
use crate::{
    Buffers, Digest, Failure, Mode, Ns, Target, Times,
    message::{ToSource, ToTarget},
    target::{Config, Input, Output, StreamId},
};

/// How much a target takes at one time.
#[derive(Clone, Debug)]
pub struct Takes {
    /// Its pool.
    pub buffers: Buffers,
    /// Processes that may be on their way at one time, of all sources.
    pub streams_max: u32,
    /// How long anything may take.
    pub times: Times,
    /// How chunks may go.
    pub transport: Transport,
    /// By which port, if by RDMA.
    pub port: Port,
    /// Its pool, if another process reads what comes: of these buffers, for as many processes.
    pub pool: Option<CommonPool>,
}

impl Default for Takes {
    /// As many processes as the paper has on a node (section V-A).
    fn default() -> Self {
        Self {
            buffers: Buffers::default(),
            streams_max: 8,
            times: Times::default(),
            transport: Transport::default(),
            port: Port::default(),
            pool: None,
        }
    }
}

/// A target, which listens until it is dropped.
#[derive(Debug)]
pub struct TargetNode {
    shared: Arc<Shared<Taking>>,
    address: Address,
    listening: OwnedFd,
    /// None: it has ended.
    serves: Mutex<Option<thread::JoinHandle<()>>>,
    begun: Mutex<Receiver<StreamId>>,
}

#[derive(Debug)]
struct Taking {
    memory: Arc<Memory>,
    machine: Target,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    given: BTreeMap<StreamId, Given>,
    over: BTreeMap<StreamId, Result<(), Failure>>,
    waiting: Waiting<StreamId>,
    /// None: no more are waited for.
    begin: Option<Sender<StreamId>>,
    is_over: bool,
}

#[derive(Clone, Copy, Debug)]
enum Given {
    Part(Part),
    Drained,
    Failed(Failure),
}

impl TargetNode {
    /// Listens at this address, for sources that have the same token.
    pub fn listen(address: &Address, token: &Token, takes: Takes) -> io::Result<Self> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let chunks = takes.buffers.chunks_for(takes.streams_max as usize);
        let chunks = chunks.map_err(invalid)?;
        let memory = match takes.pool {
            Some(CommonPool(memory)) => memory,
            None => Arc::new(Memory::new(&takes.buffers, chunks)?),
        };
        let config = Config {
            buffers: takes.buffers,
            pool: memory.remote(),
            streams_max: takes.streams_max,
            times: takes.times,
        };
        let since = Since(Instant::now());
        let machine = Target::new(config, since.now()).map_err(invalid)?;
        let sides = [Mode::Pull, Mode::Push].map(Side::Target);
        let ways = Ways::new(takes.transport, &takes.port, &memory, &sides)?;
        let door = Door::open(address, token, ways)?;
        let (address, listening) = (door.address()?, door.listening()?);
        let (begin, begins) = channel();
        let taking = Taking {
            memory: memory.clone(),
            machine,
            connections: BTreeMap::new(),
            next: 0,
            given: BTreeMap::new(),
            over: BTreeMap::new(),
            waiting: Waiting::default(),
            begin: Some(begin),
            is_over: false,
        };
        let shared = Arc::new(Shared::new(memory, since, taking));
        let (waits, connects) = (shared.clone(), shared.clone());
        let serves = thread::spawn(move || {
            let is_over = || lock(&waits.state).is_over();
            door.serve(is_over, move |link| connects.connect(link));
        });
        let ticking = shared.clone();
        thread::spawn(move || ticking.tick());
        Ok(Self {
            shared,
            address,
            listening,
            serves: Mutex::new(Some(serves)),
            begun: Mutex::new(begins),
        })
    }

    /// Where it listens: with the port that the kernel chose, if that was left to it.
    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// Waits for a process that is to come: its image, to be read front to back. None: it was stopped.
    pub fn next_reader(&self) -> Option<Reader> {
        let stream = lock(&self.begun).recv().ok()?;
        Some(Reader::new(self.shared.clone(), stream))
    }

    /// Ends all that is on its way, and listens no longer: as if it was dropped, for those who wait for it.
    pub fn stop(&self) {
        let after = {
            let mut state = lock(&self.shared.state);
            if state.is_over {
                return;
            }
            state.is_over = true;
            state.begin = None;
            self.shared.ticks.notify_all();
            After {
                gone: std::mem::take(&mut state.connections)
                    .into_values()
                    .collect(),
                woken: state.waiting.take_all(),
                ..After::default()
            }
        };
        after.finish();
        // Who waits for sources looks, and takes the name of a Unix socket away.
        if shutdown(&self.listening, Shutdown::Both).is_ok()
            && let Some(serves) = lock(&self.serves).take()
        {
            let _ = serves.join();
        }
    }
}

impl Drop for TargetNode {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared<Taking> {
    fn connect(self: &Arc<Self>, link: Link) {
        // What its threads hear is told when it is there.
        let mut state = lock(&self.state);
        if state.is_over {
            return;
        }
        state.next += 1;
        let connection = state.next;
        let threads = Threads {
            shared: self.clone(),
            connection,
        };
        let running = Connection::run(link, &self.memory, false, threads);
        if let Ok(running) = running {
            state.connections.insert(connection, running);
            self.tell_locked(state, Input::Connected { connection });
        }
    }
}

impl State for Taking {
    type Input = Input;
    type Stream = StreamId;
    const TICK: Input = Input::Tick;

    fn deadline(&self) -> Option<Ns> {
        self.machine.deadline()
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn handle(&mut self, input: Input, now: Ns) -> After {
        let mut after = After::default();
        for output in self.machine.handle(input, now) {
            match output {
                Output::Send {
                    connection,
                    message,
                } => self.say(connection, &message, &mut after),
                Output::Begin { stream } => {
                    let _ = self.begin.as_ref().map(|begin| begin.send(stream));
                }
                Output::Pull {
                    connection,
                    slot,
                    bytes,
                    from,
                } => {
                    let address = from.address;
                    if let Some(own) = self.connections.get(&connection) {
                        own.pull(Piece {
                            slot,
                            lent: None,
                            address,
                            bytes,
                        });
                    }
                }
                Output::Part {
                    stream,
                    slot,
                    at,
                    bytes,
                } => {
                    let part = Given::Part(Part { slot, at, bytes });
                    self.give(stream, part, &mut after);
                }
                Output::Drained { stream } => {
                    self.give(stream, Given::Drained, &mut after);
                }
                Output::NoPart { stream, failure } => {
                    self.give(stream, Given::Failed(failure), &mut after);
                }
                Output::StreamOver { stream, result } => {
                    self.over.insert(stream, result);
                    after.woken.extend(self.waiting.take(&stream));
                }
                Output::Disconnect { connection, .. } | Output::Over { connection } => {
                    after.gone.extend(self.connections.remove(&connection));
                }
            }
        }
        after
    }

    fn waiting(&mut self) -> &mut Waiting<StreamId> {
        &mut self.waiting
    }
}

impl Taking {
    fn give(&mut self, stream: StreamId, given: Given, after: &mut After) {
        self.given.insert(stream, given);
        after.woken.extend(self.waiting.take(&stream));
    }

    fn say(&self, connection: u64, message: &ToSource, after: &mut After) {
        let Some(own) = self.connections.get(&connection) else {
            return;
        };
        if let ToSource::Place { remote, .. } = message
            && let Some(slot) = self.memory.slot_at(remote.address, 0)
        {
            own.expect(slot);
        }
        after.said(own.say(message));
    }
}

/// What a connection's threads tell.
struct Threads {
    shared: Arc<Shared<Taking>>,
    connection: u64,
}

impl Node for Threads {
    type Message = ToTarget;

    fn heard(&self, message: Option<ToTarget>) {
        let connection = self.connection;
        self.shared.tell(match message {
            Some(message) => Input::Message {
                connection,
                message,
            },
            None => Input::Garbled { connection },
        });
    }

    fn moved(&self, slot: u32, is_done: bool) {
        self.shared.tell(Input::Pulled { slot, is_done });
    }

    fn lost(&self) {
        let gone = lock(&self.shared.state)
            .connections
            .remove(&self.connection);
        drop(gone);
    }

    fn closed(&self) {
        let connection = self.connection;
        lock(&self.shared.state).connections.remove(&connection);
        self.shared.tell(Input::Closed { connection });
    }
}

/// The image of a process, as it comes: to be [read](Read), or, in a [common pool](Takes::pool), by another process, which is
/// told of [parts](Reader::next_part). Its end is the end of the image only if all of it has come as it was written; a reader
/// that is dropped before has its stream fail.
#[derive(Debug)]
pub struct Reader {
    shared: Arc<Shared<Taking>>,
    stream: StreamId,
    /// What is left of the part at hand.
    part: Option<Part>,
    /// Bytes of that part that are read.
    read: u32,
    digest: Digest,
    is_whole: bool,
}

/// Says that parts are done with.
#[derive(Clone, Debug)]
pub struct GivesBack {
    shared: Arc<Shared<Taking>>,
    stream: StreamId,
}

impl GivesBack {
    /// So many bytes, from the first one on that was not given back yet.
    pub fn took(&self, bytes: u32) {
        let stream = self.stream;
        self.shared.tell(Input::Took { stream, bytes });
    }
}

impl Reader {
    fn new(shared: Arc<Shared<Taking>>, stream: StreamId) -> Self {
        Self {
            shared,
            stream,
            part: None,
            read: 0,
            digest: Digest::default(),
            is_whole: false,
        }
    }

    /// Whose it is.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// How its chunks go; none: its source is gone.
    pub fn transport(&self) -> Option<Transport> {
        let state = lock(&self.shared.state);
        let connection = state.connections.get(&self.stream.connection);
        connection.map(Connection::transport)
    }

    /// What it has read or let go by ([`Self::take_unread`]), and will, has this checksum.
    pub fn vouch(&mut self, digest: Digest) {
        self.digest = digest;
    }

    /// Lets the next part go by: a pipeline is measured without its readers. How much it was; 0 at the end. Whoever does so
    /// says what it would have read ([`Self::vouch`]).
    pub fn take_unread(&mut self) -> io::Result<u32> {
        let Some(part) = self.part_or_end()? else {
            return Ok(0);
        };
        self.gives_back()
            .took(std::mem::take(&mut self.read) + part.bytes);
        Ok(part.bytes)
    }

    /// By what another thread gives back the parts that this one is given.
    pub fn gives_back(&self) -> GivesBack {
        GivesBack {
            shared: self.shared.clone(),
            stream: self.stream,
        }
    }

    /// What is left of the part at hand, or the next one; none: that was all, and it is what was written.
    fn part_or_end(&mut self) -> io::Result<Option<Part>> {
        if self.is_whole {
            return Ok(None);
        }
        let part = match self.part.take() {
            Some(part) => Some(part),
            None => self.next_part()?,
        };
        if part.is_none() {
            self.check(self.digest.checksum())?;
        }
        Ok(part)
    }

    /// Waits for the next part, whether or not those before are [given back](GivesBack::took); none: they are, and that was
    /// all, if it has [this checksum](Self::check).
    pub fn next_part(&mut self) -> io::Result<Option<Part>> {
        let stream = self.stream;
        self.shared.tell(Input::Want { stream });
        let mut state = lock(&self.shared.state);
        let given = loop {
            match (state.given.remove(&stream), state.over.get(&stream)) {
                (Some(given), _) => break given,
                // It failed before it was read, and may be forgotten by now.
                (None, Some(Err(failure))) => break Given::Failed(*failure),
                (None, _) if state.is_over => break Given::Failed(Failure::Lost),
                (None, _) => state = self.shared.wait(state, stream),
            }
        };
        drop(state);
        match given {
            Given::Part(part) => Ok(Some(part)),
            Given::Drained => Ok(None),
            Given::Failed(failure) => Err(failed(failure)),
        }
    }

    /// All of it is read, and has this [checksum](Digest): whether that is the writer's.
    pub fn check(&mut self, checksum: u64) -> io::Result<()> {
        let stream = self.stream;
        self.shared.tell(Input::Checked { stream, checksum });
        let mut state = lock(&self.shared.state);
        let result = loop {
            match state.over.remove(&stream) {
                Some(result) => break result,
                None if state.is_over => break Err(Failure::Lost),
                None => state = self.shared.wait(state, stream),
            }
        };
        self.is_whole = result.is_ok();
        result.map_err(failed)
    }
}

impl Read for Reader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        let Some(part) = self.part_or_end()? else {
            return Ok(0);
        };
        let pool = CommonPool(self.shared.memory.clone());
        let (count, rest) = pool.copy(part, to)?;
        self.digest.update(&to[..count]);
        self.read += count as u32;
        self.part = rest;
        if rest.is_none() {
            self.gives_back().took(std::mem::take(&mut self.read));
        }
        Ok(count)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let stream = self.stream;
        if !self.is_whole {
            self.shared.tell(Input::ReaderGone { stream });
        }
        let mut state = lock(&self.shared.state);
        state.given.remove(&stream);
        state.over.remove(&stream);
    }
}
