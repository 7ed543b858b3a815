//! A source at work: writers fill chunks, which go to the target.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    io::{self, Write},
    sync::Arc,
    thread,
    time::Instant,
};

use snaprig_image::Filled;
use snaprig_peers::{Address, Token};

use super::{
    After, Shared, Since, State,
    agree::{Side, Ways},
    connection::{Connection, Node, Piece},
    door, failed,
    lent::{Kept, Lent},
    lock,
    memory::Memory,
    transport::{Port, Transport},
    waiting::Waiting,
};
use crate::{
    Buffers, Digest, Failure, Mode, Ns, Source, Times,
    message::{Remote, ToSource, ToTarget},
    source::{Config, Input, Output},
};

/// What a source is to move, and how.
#[derive(Clone, Debug, Default)]
pub struct Moves {
    /// Its pool.
    pub buffers: Buffers,
    /// Which way chunks go.
    pub mode: Mode,
    /// How long anything may take.
    pub times: Times,
    /// The processes.
    pub ranks: Vec<u32>,
    /// How chunks may go.
    pub transport: Transport,
    /// By which port, if by RDMA.
    pub port: Port,
    /// How much memory can be lent ([`SourceNode::lend`]).
    pub lent_bytes: usize,
}

/// A source, connected to its target.
#[derive(Clone, Debug)]
pub struct SourceNode(Arc<Shared<Sending>>);

#[derive(Debug)]
struct Sending {
    machine: Source,
    peer: Peer,
    /// What the machine is told next, under the same lock.
    next: VecDeque<Input>,
    /// What writers that wait are given.
    given: BTreeMap<u32, Result<Room, Failure>>,
    over: BTreeMap<u32, Result<(), Failure>>,
    /// What is on its way that was lent, by the process and the chunk that would have it.
    lent: BTreeMap<(u32, u32), OnLoan>,
    waiting: Waiting<u32>,
    is_over: bool,
}

/// Who is at the other end.
#[derive(Debug)]
enum Peer {
    /// A target.
    Target(Connection),
    /// Nobody: what would go there is forgotten.
    Nobody,
    /// It is to end, or has ended.
    Gone,
}

/// Memory of a writer's that is on its way.
#[derive(Debug)]
struct OnLoan {
    address: u64,
    bytes: u32,
    kept: Kept,
}

#[derive(Clone, Copy, Debug)]
struct Room {
    slot: u32,
    at: u32,
    bytes: u32,
}

impl SourceNode {
    /// Connects to a target that has the same token, and begins. An error of kind `PermissionDenied`: it has another one.
    pub fn connect(target: &Address, token: &Token, moves: Moves) -> io::Result<Self> {
        let (mode, transport, port) = (moves.mode, moves.transport, moves.port.clone());
        let shared = shared(moves)?;
        let memory = &shared.memory;
        let ways = Ways::new(transport, &port, memory, &[Side::Source(mode)])?;
        let link = door::connect(target, token, &ways, mode)?;
        {
            // What its threads hear is told when it is there.
            let mut state = lock(&shared.state);
            let threads = Threads(shared.clone());
            let is_readable = mode == Mode::Pull;
            state.peer = Peer::Target(Connection::run(link, memory, is_readable, threads)?);
        }
        Ok(Self::begin(shared))
    }

    /// A source without a target, for whoever measures what it costs alone: chunks are free again as soon as they are full,
    /// and a stream is whole at its end.
    pub fn alone(moves: Moves) -> io::Result<Self> {
        let mode = Mode::Pull;
        let shared = shared(Moves { mode, ..moves })?;
        lock(&shared.state).peer = Peer::Nobody;
        Ok(Self::begin(shared))
    }

    fn begin(shared: Arc<Shared<Sending>>) -> Self {
        shared.tell(Input::Tick);
        let ticking = shared.clone();
        thread::spawn(move || ticking.tick());
        Self(shared)
    }

    /// How chunks go; none: the target is gone.
    pub fn transport(&self) -> Option<Transport> {
        match &lock(&self.0.state).peer {
            Peer::Target(connection) => Some(connection.transport()),
            _ => None,
        }
    }

    /// Where a process's image is to be written, front to back.
    pub fn writer(&self, rank: u32) -> Writer {
        Writer {
            shared: self.0.clone(),
            rank,
            room: None,
            filled: 0,
            digest: Digest::default(),
            is_ended: false,
        }
    }

    /// Memory for writers to fill ([`Writer::write_lent`]); an error of kind `OutOfMemory`: [no more](Moves::lent_bytes) can be
    /// lent.
    pub fn lend(&self, bytes: usize) -> io::Result<Lent> {
        Lent::new(&self.0.memory, bytes)
    }

    /// Waits until some of what a process has lent is given back; false: it has lent nothing.
    pub fn settle(&self, rank: u32) -> bool {
        let mut state = lock(&self.0.state);
        let count = |state: &Sending| state.lent_by(rank).count();
        let before = count(&state);
        while count(&state) == before && before > 0 {
            state = self.0.wait(state, rank);
        }
        before > 0
    }

    /// Waits until a process's stream is at the target and was read there, or has failed.
    pub fn wait(&self, rank: u32) -> Result<(), Failure> {
        let mut state = lock(&self.0.state);
        loop {
            match state.over.get(&rank) {
                Some(result) => return *result,
                None if state.is_over => return Err(Failure::Lost),
                None => state = self.0.wait(state, rank),
            }
        }
    }

    /// Nobody wants it any more.
    pub fn cancel(&self) {
        self.0.tell(Input::Cancel);
    }
}

/// What the threads of a source share, before it has a target.
fn shared(moves: Moves) -> io::Result<Arc<Shared<Sending>>> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let chunks = moves.buffers.chunks_for(moves.ranks.len());
    let chunks = chunks.map_err(invalid)?;
    let memory = Arc::new(Memory::lending(&moves.buffers, chunks, moves.lent_bytes)?);
    let config = Config {
        buffers: moves.buffers,
        pool: memory.remote(),
        mode: moves.mode,
        times: moves.times,
        ranks: moves.ranks,
    };
    let since = Since(Instant::now());
    let sending = Sending {
        machine: Source::new(config, since.now()).map_err(invalid)?,
        peer: Peer::Gone,
        next: VecDeque::new(),
        given: BTreeMap::new(),
        over: BTreeMap::new(),
        lent: BTreeMap::new(),
        waiting: Waiting::default(),
        is_over: false,
    };
    Ok(Arc::new(Shared::new(memory, since, sending)))
}

impl State for Sending {
    type Input = Input;
    type Stream = u32;
    const TICK: Input = Input::Tick;

    fn deadline(&self) -> Option<Ns> {
        self.machine.deadline()
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn handle(&mut self, input: Input, now: Ns) -> After {
        let mut after = After::default();
        self.next.push_back(input);
        while let Some(input) = self.next.pop_front() {
            for output in self.machine.handle(input, now) {
                self.obey(output, &mut after);
            }
        }
        after
    }

    fn waiting(&mut self) -> &mut Waiting<u32> {
        &mut self.waiting
    }
}

impl Sending {
    fn obey(&mut self, output: Output, after: &mut After) {
        match output {
            Output::Send(message) => self.say(&message, after),
            Output::Room {
                rank,
                slot,
                at,
                bytes,
            } => self.give(rank, Ok(Room { slot, at, bytes }), after),
            Output::NoRoom { rank, failure } => self.give(rank, Err(failure), after),
            Output::GiveBack { rank, slot } => {
                if let Some(own) = self.lent.remove(&(rank, slot)) {
                    if let Peer::Target(connection) = &self.peer {
                        connection.lend(own.address, None);
                    }
                    after.given_back.push(own.kept);
                    after.woken.extend(self.waiting.take(&rank));
                }
            }
            Output::Put {
                slot,
                lent,
                bytes,
                to,
            } => {
                let address = to.address;
                if let Peer::Target(connection) = &self.peer {
                    connection.put(Piece {
                        slot,
                        lent: lent.map(|at| at.address),
                        address,
                        bytes,
                    });
                }
            }
            Output::StreamOver { rank, result } => {
                self.over.insert(rank, result);
                after.woken.extend(self.waiting.take(&rank));
            }
            Output::Disconnect => self.disconnect(after),
            Output::Over => {
                self.disconnect(after);
                self.is_over = true;
                let lent = std::mem::take(&mut self.lent).into_values();
                after.given_back.extend(lent.map(|own| own.kept));
                after.woken.extend(self.waiting.take_all());
            }
        }
    }

    /// What a process has on loan.
    fn lent_by(&self, rank: u32) -> impl Iterator<Item = &OnLoan> {
        self.lent
            .range((rank, 0)..=(rank, u32::MAX))
            .map(|(_, own)| own)
    }

    fn give(&mut self, rank: u32, room: Result<Room, Failure>, after: &mut After) {
        self.given.insert(rank, room);
        after.woken.extend(self.waiting.take(&rank));
    }

    fn say(&mut self, message: &ToTarget, after: &mut After) {
        match &self.peer {
            Peer::Target(connection) => after.said(connection.say(message)),
            Peer::Nobody => self.next.extend(answer(message).map(Input::Message)),
            Peer::Gone => {}
        }
    }

    fn disconnect(&mut self, after: &mut After) {
        match std::mem::replace(&mut self.peer, Peer::Gone) {
            Peer::Target(connection) => after.gone.push(connection),
            Peer::Nobody => self.next.push_back(Input::Closed),
            Peer::Gone => {}
        }
    }
}

/// What a target says that keeps nothing.
fn answer(message: &ToTarget) -> Option<ToSource> {
    match *message {
        ToTarget::Open(_) => Some(ToSource::Opened),
        ToTarget::Full { rank, offset, .. } => Some(ToSource::Done { rank, offset }),
        ToTarget::End { rank, .. } => Some(ToSource::Whole { rank }),
        ToTarget::Alive => Some(ToSource::Alive),
        ToTarget::Written { .. } | ToTarget::Fail { .. } => None,
    }
}

/// What the connection's threads tell.
struct Threads(Arc<Shared<Sending>>);

impl Node for Threads {
    type Message = ToSource;

    fn heard(&self, message: Option<ToSource>) {
        self.0.tell(message.map_or(Input::Garbled, Input::Message));
    }

    fn moved(&self, slot: u32, is_done: bool) {
        self.0.tell(Input::Put { slot, is_done });
    }

    fn lost(&self) {
        let gone = std::mem::replace(&mut lock(&self.0.state).peer, Peer::Gone);
        if let Peer::Target(connection) = gone {
            connection.hear_out();
        }
    }

    fn closed(&self) {
        self.0.tell(Input::Closed);
    }
}

/// Where a process's image is written. Without [`Writer::end`] its stream fails.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared<Sending>>,
    rank: u32,
    room: Option<Room>,
    /// Bytes of the room that are written.
    filled: u32,
    digest: Digest,
    is_ended: bool,
}

impl Writer {
    /// What it has written, and will, has this checksum.
    pub fn vouch(&mut self, digest: Digest) {
        self.digest = digest;
    }

    /// All of it is written.
    pub fn end(mut self) {
        self.give();
        self.is_ended = true;
        let (rank, checksum) = (self.rank, self.digest.checksum());
        self.shared.tell(Input::End { rank, checksum });
    }

    /// Writes memory that its source has [lent](SourceNode::lend), without copying it: it is dropped when nobody reads it any
    /// more. Other memory is copied.
    pub fn write_lent(&mut self, filled: Filled) -> io::Result<()> {
        let memory: &dyn Any = filled.memory();
        let lent = memory.downcast_ref::<Lent>();
        let Some(start) = lent.and_then(|lent| lent.address_in(&self.shared.memory)) else {
            self.write_all(&filled)?;
            return self.flush();
        };
        self.flush()?;
        self.digest.update(&filled);
        let all = start + filled.range().start as u64..start + filled.range().end as u64;
        let kept = Kept::new(filled);
        let mut address = all.start;
        while address < all.end {
            let room = self.room()?;
            let left = u32::try_from(all.end - address).unwrap_or(u32::MAX);
            let bytes = left.min(room.bytes);
            self.lend(
                room,
                OnLoan {
                    address,
                    bytes,
                    kept: kept.clone(),
                },
            )?;
            address += u64::from(bytes);
        }
        Ok(())
    }

    /// A piece goes on its way, instead of a chunk.
    fn lend(&mut self, room: Room, own: OnLoan) -> io::Result<()> {
        self.room = None;
        let rank = self.rank;
        let at = Remote {
            address: own.address,
            ..self.shared.memory.remote()
        };
        let bytes = own.bytes;
        let mut state = lock(&self.shared.state);
        if let Some(Err(failure)) = state.over.get(&rank) {
            return Err(failed(*failure));
        }
        if let Peer::Target(connection) = &state.peer {
            connection.lend(own.address, Some(bytes));
        }
        state.lent.insert((rank, room.slot), own);
        let input = Input::Lent { rank, at, bytes };
        self.shared.tell_locked(state, input);
        Ok(())
    }

    /// Gives room as it is, no more than this: a pipeline is measured without its writers. How much it was. The checksum of the
    /// stream knows nothing of it.
    pub fn give_unwritten(&mut self, most: u32) -> io::Result<u32> {
        let room = self.room()?;
        let bytes = most.min(room.bytes - self.filled);
        self.filled += bytes;
        if bytes > 0 {
            self.give();
        }
        Ok(bytes)
    }

    /// What is in the room goes on its way.
    fn give(&mut self) {
        if self.room.take().is_some() {
            let (rank, bytes) = (self.rank, std::mem::take(&mut self.filled));
            self.shared.tell(Input::Wrote { rank, bytes });
        }
    }

    fn room(&mut self) -> io::Result<Room> {
        if let Some(room) = self.room {
            return Ok(room);
        }
        let rank = self.rank;
        self.shared.tell(Input::Want { rank });
        let mut state = lock(&self.shared.state);
        let room = loop {
            match state.given.remove(&rank) {
                Some(room) => break room.map_err(failed)?,
                None if state.is_over => return Err(failed(Failure::Lost)),
                None => state = self.shared.wait(state, rank),
            }
        };
        self.room = Some(room);
        Ok(room)
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let room = self.room()?;
        let count = bytes.len().min((room.bytes - self.filled) as usize);
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let at = room.at + self.filled;
        let to = self.shared.memory.part(room.slot, at, count as u32);
        to.ok_or_else(broken)?.copy_from(&bytes[..count]);
        self.digest.update(&bytes[..count]);
        self.filled += count as u32;
        if self.filled == room.bytes {
            self.give();
        }
        Ok(count)
    }

    /// What is written goes on its way, in a chunk that may not be full.
    fn flush(&mut self) -> io::Result<()> {
        self.give();
        let rank = self.rank;
        self.shared.tell(Input::Flush { rank });
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.is_ended {
            let rank = self.rank;
            self.shared.tell(Input::WriterGone { rank });
        }
    }
}
