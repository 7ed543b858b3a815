//! The buffer manager of the node that processes come to: pulls chunks from sources or has them put, holds them in their
//! places, gives them to the processes' readers, and recycles them (the paper's section IV, steps 3 and 4).
//!
//! A reader asks for bytes ([`Input::Want`]), is lent what of a chunk it has not read ([`Output::Part`]), and says how much
//! of that it is done with ([`Input::Took`]). When all has been read it is told so ([`Output::Drained`]), and says what
//! checksum that had ([`Input::Checked`]). Only then is the stream whole: no process may run before.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

pub use crate::events::target::{Config, Input, Output, StreamId};
use crate::{
    Failure, Mode, Nonsense, Ns, OptionsError, Refusal,
    clock::Clock,
    message::{Open, RANKS_MAX, Remote, ToSource, ToTarget, VERSION},
    options::CHUNKS_MAX,
    pool::Pool,
    streams::read::{Announced, Given, Reader, Stream},
};

/// Connections at one time; more are closed.
const CONNECTIONS_MAX: usize = RANKS_MAX;

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Its source is to say what is to come.
    Opening,
    Moving,
    /// It is to end.
    Closing,
    /// It has ended; its readers have parts of chunks still.
    Closed,
}

/// A connection.
#[derive(Debug)]
struct Connection {
    state: State,
    clock: Clock,
    mode: Mode,
    chunk_bytes: u32,
    /// Chunks of its source: all, and those that were announced and not answered.
    chunks: u32,
    unanswered: u32,
}

/// The machine of a target.
#[derive(Debug)]
pub struct Target {
    config: Config,
    now: Ns,
    pool: Pool,
    connections: BTreeMap<u64, Connection>,
    streams: BTreeMap<StreamId, Stream>,
    /// Chunks that are being pulled: whose, and where in its stream.
    pulls: BTreeMap<u32, (StreamId, u64)>,
    /// Whose chunk was placed last.
    turn: StreamId,
    out: Vec<Output>,
}

impl Target {
    /// A target that waits for sources.
    pub fn new(config: Config, now: Ns) -> Result<Self, OptionsError> {
        let chunks = config.buffers.chunks_for(config.streams_max as usize)?;
        let end = config.pool.address.checked_add(config.buffers.pool_bytes);
        end.ok_or(OptionsError::Address)?;
        Ok(Self {
            config,
            now,
            pool: Pool::new(chunks, config.streams_max),
            connections: BTreeMap::new(),
            streams: BTreeMap::new(),
            pulls: BTreeMap::new(),
            turn: StreamId {
                connection: 0,
                rank: 0,
            },
            out: Vec::new(),
        })
    }

    /// When [`Input::Tick`] is due, if nothing happens before.
    pub fn deadline(&self) -> Option<Ns> {
        let all = self.connections.values();
        let waiting = all.filter(|one| matches!(one.state, State::Opening | State::Moving));
        waiting.map(|one| one.clock.deadline(self.now)).min()
    }

    /// How many bytes of a connection's streams have been read, for whoever shows progress.
    pub fn read_bytes(&self, connection: u64) -> u64 {
        self.of(connection).map(|(_, one)| one.read_bytes()).sum()
    }

    /// How many chunks of the pool are in use, for whoever checks that memory is bounded.
    pub fn used_chunks(&self) -> u32 {
        self.streams.values().map(Stream::chunks).sum()
    }

    /// What the machine would do next depends on this, and on nothing else but numbers and times.
    pub fn hash_state(&self, hash: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        for connection in self.connections.values() {
            (connection.state, connection.unanswered).hash(hash);
        }
        self.streams
            .values()
            .for_each(|stream| stream.hash_state(hash));
    }

    /// Something has happened. To be called again at [`Self::deadline`], if nothing happens before.
    pub fn handle(&mut self, input: Input, now: Ns) -> Vec<Output> {
        self.now = self.now.max(now);
        match input {
            Input::Connected { connection } => self.connected(connection),
            Input::Message {
                connection,
                message,
            } => self.heard(connection, message),
            Input::Garbled { connection } => {
                self.disconnect(connection, Nonsense::Message.into());
            }
            Input::Closed { connection } => self.closed(connection),
            Input::Pulled { slot, is_done } => self.pulled(slot, is_done),
            Input::Want { stream } => self.want(stream),
            Input::Took { stream, bytes } => self.took(stream, bytes),
            Input::Checked { stream, checksum } => self.checked(stream, checksum),
            Input::ReaderGone { stream } => self.reader_gone(stream),
            Input::Tick => self.tick(),
        }
        self.place_chunks();
        std::mem::take(&mut self.out)
    }

    fn connected(&mut self, connection: u64) {
        if self.connections.len() >= CONNECTIONS_MAX {
            let failure = Refusal::Memory { streams: 0 }.into();
            return self.out.push(Output::Disconnect {
                connection,
                failure,
            });
        }
        let new = Connection {
            state: State::Opening,
            clock: Clock::new(self.config.times, self.now),
            mode: Mode::Pull,
            chunk_bytes: 0,
            chunks: 0,
            unanswered: 0,
        };
        self.connections.entry(connection).or_insert(new);
    }

    fn heard(&mut self, connection: u64, message: ToTarget) {
        let Some(own) = self.connections.get_mut(&connection) else {
            return;
        };
        own.clock.heard(self.now);
        let id = |rank| StreamId { connection, rank };
        let result = match (own.state, message) {
            (State::Closing | State::Closed, _) => Ok(()),
            (State::Opening, ToTarget::Open(open)) => {
                self.open(connection, &open);
                Ok(())
            }
            (
                State::Moving,
                ToTarget::Full {
                    rank,
                    offset,
                    bytes,
                    remote,
                },
            ) => {
                let chunk = Announced {
                    offset,
                    bytes,
                    remote,
                };
                self.announced(id(rank), chunk)
            }
            (State::Moving, ToTarget::Written { rank, offset }) => self.written(id(rank), offset),
            (
                State::Moving,
                ToTarget::End {
                    rank,
                    bytes,
                    checksum,
                },
            ) => self.ended(id(rank), bytes, checksum),
            (State::Moving, ToTarget::Fail { rank, failure }) => self.failed(id(rank), failure),
            (State::Moving, ToTarget::Alive) => Ok(()),
            _ => Err(Nonsense::Now),
        };
        if let Err(nonsense) = result {
            self.disconnect(connection, nonsense.into());
        }
    }

    /// A source says what is to come. It is taken if there is a chunk for each of its streams.
    fn open(&mut self, connection: u64, open: &Open) {
        if let Err(refusal) = self.check(open) {
            let message = ToSource::Refused(refusal);
            self.say(connection, message);
            return self.disconnect(connection, refusal.into());
        }
        if let Some(own) = self.connections.get_mut(&connection) {
            own.state = State::Moving;
            own.clock.opened();
            (own.mode, own.chunk_bytes, own.chunks) = (open.mode, open.chunk_bytes, open.chunks);
        }
        self.say(connection, ToSource::Opened);
        for &rank in &open.ranks {
            let stream = StreamId { connection, rank };
            self.streams.insert(stream, Stream::new());
            self.out.push(Output::Begin { stream });
        }
    }

    fn check(&self, open: &Open) -> Result<(), Refusal> {
        let (version, chunk_bytes) = (VERSION, self.config.buffers.chunk_bytes);
        let streams = self.config.streams_max - self.streams.len() as u32;
        let mut ranks = open.ranks.clone();
        ranks.sort_unstable();
        let is_twice = ranks.windows(2).any(|two| two[0] == two[1]);
        let has_chunks = (1..=CHUNKS_MAX).contains(&open.chunks);
        match () {
            () if open.version != version => Err(Refusal::Version { version }),
            () if !(1..=chunk_bytes).contains(&open.chunk_bytes) => {
                Err(Refusal::ChunkBytes { chunk_bytes })
            }
            () if ranks.is_empty() || is_twice || !has_chunks => Err(Refusal::Invalid),
            () if ranks.len() > streams as usize => Err(Refusal::Memory { streams }),
            () => Ok(()),
        }
    }

    /// A chunk of the source's is full.
    fn announced(&mut self, id: StreamId, chunk: Announced) -> Result<(), Nonsense> {
        let own = self.connections.get_mut(&id.connection);
        let own = own.ok_or(Nonsense::Now)?;
        let stream = self.streams.get_mut(&id).ok_or(Nonsense::Rank)?;
        if !(1..=own.chunk_bytes).contains(&chunk.bytes) {
            return Err(Nonsense::Length);
        }
        if own.unanswered >= own.chunks {
            return Err(Nonsense::Chunks);
        }
        stream.announce(chunk)?;
        own.clock.moved(self.now);
        own.unanswered += 1;
        if stream.over.is_some() {
            self.answer(id, chunk.offset);
        }
        Ok(())
    }

    /// This side does not reach for a chunk of the source's any more.
    fn answer(&mut self, id: StreamId, offset: u64) {
        let StreamId { connection, rank } = id;
        self.answered(connection);
        self.say(connection, ToSource::Done { rank, offset });
    }

    fn answered(&mut self, connection: u64) {
        if let Some(own) = self.connections.get_mut(&connection) {
            own.unanswered = own.unanswered.saturating_sub(1);
            own.clock.moved(self.now);
        }
    }

    /// A chunk was put where it had been placed.
    fn written(&mut self, id: StreamId, offset: u64) -> Result<(), Nonsense> {
        let own = self.connections.get(&id.connection);
        if own.is_none_or(|own| own.mode != Mode::Push) {
            return Err(Nonsense::Now);
        }
        let stream = self.streams.get_mut(&id).ok_or(Nonsense::Rank)?;
        stream.came(offset, &mut self.pool)?;
        self.answered(id.connection);
        self.feed(id);
        Ok(())
    }

    /// A chunk was pulled. If it could not be, the queue pair is in error, and no other one can be.
    fn pulled(&mut self, slot: u32, is_done: bool) {
        let Some((id, offset)) = self.pulls.remove(&slot) else {
            return;
        };
        if let Some(stream) = self.streams.get_mut(&id) {
            let came = stream.came(offset, &mut self.pool);
            debug_assert_eq!(came, Ok(()), "it was pulled once");
        }
        match is_done {
            true => {
                self.answer(id, offset);
                self.feed(id);
            }
            false => self.disconnect(id.connection, Failure::Transfer),
        }
    }

    fn ended(&mut self, id: StreamId, bytes: u64, checksum: u64) -> Result<(), Nonsense> {
        let stream = self.streams.get_mut(&id).ok_or(Nonsense::Rank)?;
        stream.ended(bytes, checksum)?;
        self.moved(id.connection);
        self.feed(id);
        Ok(())
    }

    /// A stream has failed at the source.
    fn failed(&mut self, id: StreamId, failure: Failure) -> Result<(), Nonsense> {
        if !self.streams.contains_key(&id) {
            return Err(Nonsense::Rank);
        }
        self.over(id, failure);
        Ok(())
    }

    fn want(&mut self, id: StreamId) {
        let Some(own) = self.streams.get_mut(&id) else {
            return;
        };
        match (own.over, own.reader) {
            (Some(Err(failure)), _) => {
                let stream = id;
                self.out.push(Output::NoPart { stream, failure });
            }
            (None, Reader::Away) => {
                own.reader = Reader::Waits;
                self.feed(id);
            }
            // It waits, or has read all.
            _ => {
                let (stream, failure) = (id, Failure::Reader);
                self.out.push(Output::NoPart { stream, failure });
                self.fail(id, failure);
            }
        }
    }

    /// A reader that waits is given what there is.
    fn feed(&mut self, id: StreamId) {
        let stream = self.streams.get_mut(&id);
        let waiting = stream.filter(|own| own.reader == Reader::Waits && own.over.is_none());
        let stream = id;
        let output = match waiting.and_then(Stream::give) {
            None => return,
            Some(Given::Drained) => Output::Drained { stream },
            Some(Given::Part { slot, at, bytes }) => Output::Part {
                stream,
                slot,
                at,
                bytes,
            },
        };
        self.out.push(output);
    }

    fn took(&mut self, id: StreamId, bytes: u32) {
        let Some(own) = self.streams.get_mut(&id) else {
            return;
        };
        match own.took(bytes, &mut self.pool) {
            true if bytes > 0 => self.moved(id.connection),
            true => {}
            false => self.fail(id, Failure::Reader),
        }
        // It may wait already, to hear that this was all.
        self.feed(id);
        self.forget(id.connection);
    }

    /// A reader has read all.
    fn checked(&mut self, id: StreamId, checksum: u64) {
        let Some(own) = self.streams.get_mut(&id) else {
            return;
        };
        match own.over {
            Some(_) => {}
            None if own.reader != Reader::Drained => self.fail(id, Failure::Reader),
            None if !own.is_checksum(checksum) => self.fail(id, Failure::Checksum),
            None => {
                let (stream, result) = (id, Ok(()));
                own.over = Some(result);
                self.out.push(Output::StreamOver { stream, result });
                self.moved(id.connection);
                self.say(id.connection, ToSource::Whole { rank: id.rank });
            }
        }
    }

    fn reader_gone(&mut self, id: StreamId) {
        let Some(own) = self.streams.get_mut(&id) else {
            return;
        };
        own.reader_gone(&mut self.pool);
        match own.over {
            Some(_) => self.forget(id.connection),
            None => self.fail(id, Failure::Reader),
        }
    }

    /// A stream fails here, and the source is told.
    fn fail(&mut self, id: StreamId, failure: Failure) {
        if self.over(id, failure) {
            let rank = id.rank;
            self.say(id.connection, ToSource::Fail { rank, failure });
        }
    }

    /// A stream has failed; whether it was not over before.
    fn over(&mut self, id: StreamId, failure: Failure) -> bool {
        let own = self.streams.get_mut(&id);
        let Some(own) = own.filter(|own| own.over.is_none()) else {
            return false;
        };
        let (stream, result, waits) = (id, Err(failure), own.reader == Reader::Waits);
        let unwanted = own.fail(failure, &mut self.pool);
        if waits {
            self.out.push(Output::NoPart { stream, failure });
        }
        self.out.push(Output::StreamOver { stream, result });
        for chunk in unwanted {
            self.answer(id, chunk.offset);
        }
        true
    }

    /// A connection is of no use any more.
    fn disconnect(&mut self, connection: u64, failure: Failure) {
        let Some(own) = self.connections.get_mut(&connection) else {
            return;
        };
        if !matches!(own.state, State::Opening | State::Moving) {
            return;
        }
        own.state = State::Closing;
        self.over_all(connection, failure);
        self.out.push(Output::Disconnect {
            connection,
            failure,
        });
    }

    fn over_all(&mut self, connection: u64, failure: Failure) {
        for id in self.ids_of(connection) {
            self.over(id, failure);
        }
    }

    fn closed(&mut self, connection: u64) {
        let Some(own) = self.connections.get_mut(&connection) else {
            return;
        };
        own.state = State::Closed;
        self.over_all(connection, Failure::Lost);
        self.pulls.retain(|_, (id, _)| id.connection != connection);
        for id in self.ids_of(connection) {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.cut_off(&mut self.pool);
            }
        }
        self.forget(connection);
    }

    /// A connection that has ended is forgotten when its readers have let go of everything.
    fn forget(&mut self, connection: u64) {
        let own = self.connections.get(&connection);
        let is_closed = own.is_some_and(|own| own.state == State::Closed);
        if !is_closed || !self.of(connection).all(|(_, one)| one.has_nothing()) {
            return;
        }
        self.connections.remove(&connection);
        for id in self.ids_of(connection) {
            self.streams.remove(&id);
        }
        self.out.push(Output::Over { connection });
    }

    fn tick(&mut self) {
        for connection in self.connections.keys().copied().collect::<Vec<_>>() {
            self.tick_of(connection);
        }
    }

    fn tick_of(&mut self, connection: u64) {
        let Some(own) = self.connections.get(&connection) else {
            return;
        };
        let (clock, now) = (own.clock, self.now);
        if let Some(failure) = clock.failure(now) {
            return self.disconnect(connection, failure);
        }
        if clock.is_stalled(now) {
            let stalled = self
                .of(connection)
                .filter(|(_, one)| one.waits_for_reader());
            for id in stalled.map(|(id, _)| id).collect::<Vec<_>>() {
                self.fail(id, Failure::ReaderStalled);
            }
        }
        if clock.is_quiet(now) {
            self.say(connection, ToSource::Alive);
        }
    }

    /// Chunks of the sources' get chunks of the pool, one a stream and round, whoever is next first.
    fn place_chunks(&mut self) {
        loop {
            let later = self.streams.range((Excluded(self.turn), Unbounded));
            let all = later.chain(self.streams.range(..=self.turn));
            let ids: Vec<_> = all
                .filter(|(_, one)| one.can_place(&self.pool))
                .map(|(id, _)| *id)
                .collect();
            if ids.is_empty() {
                return;
            }
            ids.into_iter().for_each(|id| self.place(id));
        }
    }

    fn place(&mut self, id: StreamId) {
        let StreamId { connection, rank } = id;
        let Some(own) = self.streams.get_mut(&id) else {
            return;
        };
        let Some((chunk, slot)) = own.place(&mut self.pool) else {
            return;
        };
        self.turn = id;
        let mode = self.connections.get(&connection).map(|one| one.mode);
        if mode == Some(Mode::Push) {
            let offset = chunk.offset;
            let (chunk_bytes, pool) = (self.config.buffers.chunk_bytes, self.config.pool);
            let remote = Remote {
                address: pool.address + u64::from(slot) * u64::from(chunk_bytes),
                rkey: pool.rkey,
            };
            let message = ToSource::Place {
                rank,
                offset,
                remote,
            };
            return self.say(connection, message);
        }
        self.pulls.insert(slot, (id, chunk.offset));
        self.out.push(Output::Pull {
            connection,
            slot,
            bytes: chunk.bytes,
            from: chunk.remote,
        });
    }

    fn moved(&mut self, connection: u64) {
        if let Some(own) = self.connections.get_mut(&connection) {
            own.clock.moved(self.now);
        }
    }

    /// The streams of a connection.
    fn of(&self, connection: u64) -> impl Iterator<Item = (StreamId, &Stream)> {
        let id = |rank| StreamId { connection, rank };
        let all = self.streams.range(id(0)..=id(u32::MAX));
        all.map(|(id, stream)| (*id, stream))
    }

    fn ids_of(&self, connection: u64) -> Vec<StreamId> {
        self.of(connection).map(|(id, _)| id).collect()
    }

    /// Says something over a connection that is not to end.
    fn say(&mut self, connection: u64, message: ToSource) {
        let Some(own) = self.connections.get_mut(&connection) else {
            return;
        };
        if matches!(own.state, State::Opening | State::Moving) {
            own.clock.said(self.now);
            self.out.push(Output::Send {
                connection,
                message,
            });
        }
    }
}
