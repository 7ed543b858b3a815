//! The buffer manager of the node that processes leave: gives their writers room, has full chunks pulled by the target or
//! puts them there, and recycles them (the paper's section IV, steps 2 and 3).
//!
//! A writer asks for room ([`Input::Want`]), is given some ([`Output::Room`]), and fills it: a front of files copies into the
//! room what it is given ([`Input::Wrote`]); a front that has the bytes in registered memory of its own says where
//! ([`Input::Lent`]), and has that memory again when the chunk would be free ([`Output::GiveBack`]).

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

pub use crate::events::source::{Config, Input, Output};
use crate::{
    Failure, Mode, Nonsense, Ns, OptionsError,
    clock::Clock,
    message::{Open, Remote, ToSource, ToTarget, VERSION},
    pool::Pool,
    streams::written::{At, Room, Stream, Writer},
};

/// Where the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    /// The target is to say whether it takes what is to come. Chunks are announced meanwhile.
    Opening,
    Moving,
    /// The connection is to end.
    Closing,
    Over,
}

/// The machine of a source.
#[derive(Debug)]
pub struct Source {
    config: Config,
    now: Ns,
    state: State,
    clock: Clock,
    pool: Pool,
    streams: BTreeMap<u32, Stream>,
    /// Chunks that are being put: whose, and where in its stream.
    puts: BTreeMap<u32, (u32, u64)>,
    /// Who was given room last.
    turn: u32,
    out: Vec<Output>,
}

impl Source {
    /// A migration that begins, over a connection that there is. [`Input::Tick`] has it begin.
    pub fn new(config: Config, now: Ns) -> Result<Self, OptionsError> {
        let chunks = config.buffers.chunks_for(config.ranks.len())?;
        let end = config.pool.address.checked_add(config.buffers.pool_bytes);
        end.ok_or(OptionsError::Address)?;
        let mut streams = BTreeMap::new();
        for &rank in &config.ranks {
            if streams.insert(rank, Stream::new()).is_some() {
                return Err(OptionsError::Rank { rank });
            }
        }
        let open = Open {
            version: VERSION,
            mode: config.mode,
            chunk_bytes: config.buffers.chunk_bytes,
            chunks,
            ranks: config.ranks.clone(),
        };
        Ok(Self {
            now,
            state: State::Opening,
            clock: Clock::new(config.times, now),
            pool: Pool::new(chunks, streams.len() as u32),
            streams,
            puts: BTreeMap::new(),
            turn: 0,
            out: vec![Output::Send(ToTarget::Open(open))],
            config,
        })
    }

    /// When [`Input::Tick`] is due, if nothing happens before.
    pub fn deadline(&self) -> Option<Ns> {
        let waits = matches!(self.state, State::Opening | State::Moving);
        waits.then(|| self.clock.deadline(self.now))
    }

    /// How many bytes have been written, and how many of them the target has, for whoever shows progress.
    pub fn progress_bytes(&self) -> (u64, u64) {
        let all = self.streams.values();
        let both = all.map(|stream| (stream.bytes, stream.moved_bytes()));
        both.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// How many chunks of the pool are in use, for whoever checks that memory is bounded.
    pub fn used_chunks(&self) -> u32 {
        self.streams.values().map(Stream::chunks).sum()
    }

    /// What the machine would do next depends on this, and on nothing else but numbers and times.
    pub fn hash_state(&self, hash: &mut impl std::hash::Hasher) {
        use std::hash::Hash;
        self.state.hash(hash);
        self.streams
            .values()
            .for_each(|stream| stream.hash_state(hash));
    }

    /// Something has happened. To be called again at [`Self::deadline`], if nothing happens before.
    pub fn handle(&mut self, input: Input, now: Ns) -> Vec<Output> {
        self.now = self.now.max(now);
        match input {
            Input::Want { rank } => self.want(rank),
            Input::Wrote { rank, bytes } => self.wrote(rank, bytes),
            Input::Lent { rank, at, bytes } => self.lent(rank, at, bytes),
            Input::Flush { rank } => self.flush(rank),
            Input::End { rank, checksum } => self.end(rank, checksum),
            Input::WriterGone { rank } => self.writer_gone(rank),
            Input::Message(message) => self.heard(message),
            Input::Garbled => self.disconnect(Nonsense::Message.into()),
            Input::Put { slot, is_done } => self.put(slot, is_done),
            Input::Closed => self.closed(),
            Input::Cancel => self.cancel(),
            Input::Tick => self.tick(),
        }
        self.give_rooms();
        self.finish();
        std::mem::take(&mut self.out)
    }

    fn want(&mut self, rank: u32) {
        let Some(stream) = self.streams.get_mut(&rank) else {
            return;
        };
        match (stream.over, stream.writer) {
            (Some(Err(failure)), _) => self.out.push(Output::NoRoom { rank, failure }),
            (None, Writer::Away) => stream.writer = Writer::Waits,
            // It has room, or has said that it needs none.
            _ => self.refuse_room(rank),
        }
    }

    fn refuse_room(&mut self, rank: u32) {
        let failure = Failure::Writer;
        self.out.push(Output::NoRoom { rank, failure });
        self.fail(rank, failure);
    }

    fn wrote(&mut self, rank: u32, bytes: u32) {
        let chunk_bytes = self.config.buffers.chunk_bytes;
        self.filled(rank, bytes, |stream| stream.wrote(bytes, chunk_bytes));
    }

    fn lent(&mut self, rank: u32, at: Remote, bytes: u32) {
        let chunk_bytes = self.config.buffers.chunk_bytes;
        self.filled(rank, bytes, |stream| stream.lent(at, bytes, chunk_bytes));
    }

    /// A writer has filled its room, which is to be noted so.
    fn filled(&mut self, rank: u32, bytes: u32, note: impl FnOnce(&mut Stream) -> bool) {
        let Some(stream) = self.streams.get_mut(&rank) else {
            return;
        };
        if stream.over.is_some() {
            return self.leave_room(rank);
        }
        match note(stream) {
            true if bytes > 0 => {
                self.clock.moved(self.now);
                self.announce(rank);
            }
            true => {}
            false => self.fail(rank, Failure::Writer),
        }
    }

    /// The writer of a stream that has failed fills its room no more.
    fn leave_room(&mut self, rank: u32) {
        if let Some(stream) = self.streams.get_mut(&rank)
            && stream.writer == Writer::Fills
        {
            stream.writer = Writer::Away;
            stream.drop_room(&mut self.pool);
        }
    }

    fn flush(&mut self, rank: u32) {
        let Some(stream) = self.streams.get_mut(&rank) else {
            return;
        };
        if stream.over.is_none() && !stream.flush() {
            return self.fail(rank, Failure::Writer);
        }
        self.announce(rank);
    }

    fn end(&mut self, rank: u32, checksum: u64) {
        let Some(stream) = self.streams.get_mut(&rank) else {
            return;
        };
        if stream.over.is_some() {
            return;
        }
        if !stream.ended(checksum) {
            return self.fail(rank, Failure::Writer);
        }
        stream.drop_room(&mut self.pool);
        self.clock.moved(self.now);
        self.announce(rank);
    }

    fn writer_gone(&mut self, rank: u32) {
        let Some(stream) = self.streams.get_mut(&rank) else {
            return;
        };
        match stream.writer {
            // It has done its work.
            Writer::Ended(_) => {}
            _ if stream.over.is_some() => self.leave_room(rank),
            _ => {
                stream.writer = Writer::Away;
                self.fail(rank, Failure::Writer);
            }
        }
    }

    /// The target is told of chunks that are full, and of the end of a stream.
    fn announce(&mut self, rank: u32) {
        let (chunk_bytes, pool) = (self.config.buffers.chunk_bytes, self.config.pool);
        let Some(stream) = self.streams.get_mut(&rank) else {
            return;
        };
        let mut said = Vec::new();
        while let Some((offset, chunk)) = stream.announce() {
            let in_pool = Remote {
                address: pool.address + u64::from(chunk.slot) * u64::from(chunk_bytes),
                rkey: pool.rkey,
            };
            said.push(ToTarget::Full {
                rank,
                offset,
                bytes: chunk.bytes,
                remote: chunk.lent.unwrap_or(in_pool),
            });
        }
        let bytes = stream.bytes;
        said.extend(stream.say_end().map(|checksum| ToTarget::End {
            rank,
            bytes,
            checksum,
        }));
        said.into_iter().for_each(|message| self.say(message));
    }

    fn heard(&mut self, message: ToSource) {
        self.clock.heard(self.now);
        let result = match (self.state, message) {
            (State::Closing | State::Over, _) => Ok(()),
            (State::Opening, ToSource::Opened) => {
                self.state = State::Moving;
                self.clock.opened();
                Ok(())
            }
            (State::Opening, ToSource::Refused(refusal)) => {
                self.disconnect(refusal.into());
                Ok(())
            }
            (State::Moving, ToSource::Done { rank, offset }) => {
                self.recycle(rank, offset, At::Announced)
            }
            (
                State::Moving,
                ToSource::Place {
                    rank,
                    offset,
                    remote,
                },
            ) => self.place(rank, offset, remote),
            (State::Moving, ToSource::Whole { rank }) => self.whole(rank),
            (State::Moving, ToSource::Fail { rank, failure }) => self.failed(rank, failure),
            (State::Moving, ToSource::Alive) => Ok(()),
            _ => Err(Nonsense::Now),
        };
        if let Err(nonsense) = result {
            self.disconnect(nonsense.into());
        }
    }

    /// Nobody reaches for a chunk any more.
    fn recycle(&mut self, rank: u32, offset: u64, at: At) -> Result<(), Nonsense> {
        let stream = self.streams.get_mut(&rank).ok_or(Nonsense::Rank)?;
        let lent = stream.recycle(offset, at, &mut self.pool)?;
        self.out
            .extend(lent.map(|slot| Output::GiveBack { rank, slot }));
        self.clock.moved(self.now);
        Ok(())
    }

    /// The target has room for a chunk.
    fn place(&mut self, rank: u32, offset: u64, to: Remote) -> Result<(), Nonsense> {
        if self.config.mode != Mode::Push {
            return Err(Nonsense::Now);
        }
        let stream = self.streams.get_mut(&rank).ok_or(Nonsense::Rank)?;
        let chunk = stream.put(offset)?;
        self.puts.insert(chunk.slot, (rank, offset));
        self.out.push(Output::Put {
            slot: chunk.slot,
            lent: chunk.lent,
            bytes: chunk.bytes,
            to,
        });
        Ok(())
    }

    /// A chunk is where the target has placed it. If it could not be put there, the queue pair is in error, and no other one
    /// can be.
    fn put(&mut self, slot: u32, is_done: bool) {
        let Some((rank, offset)) = self.puts.remove(&slot) else {
            return;
        };
        if !is_done {
            return self.disconnect(Failure::Transfer);
        }
        self.say(ToTarget::Written { rank, offset });
        let recycled = self.recycle(rank, offset, At::Put);
        debug_assert_eq!(recycled, Ok(()), "it was put");
    }

    fn whole(&mut self, rank: u32) -> Result<(), Nonsense> {
        let stream = self.streams.get_mut(&rank).ok_or(Nonsense::Rank)?;
        match stream.over {
            // It was given up here meanwhile.
            Some(Err(_)) => return Ok(()),
            None if stream.may_be_whole() => {}
            _ => return Err(Nonsense::Now),
        }
        self.clock.moved(self.now);
        stream.over = Some(Ok(()));
        let result = Ok(());
        self.out.push(Output::StreamOver { rank, result });
        Ok(())
    }

    /// A stream has failed at the target.
    fn failed(&mut self, rank: u32, failure: Failure) -> Result<(), Nonsense> {
        let stream = self.streams.get(&rank).ok_or(Nonsense::Rank)?;
        if stream.over == Some(Ok(())) {
            return Err(Nonsense::Now);
        }
        self.over(rank, failure);
        Ok(())
    }

    /// A stream fails here, and the target is told.
    fn fail(&mut self, rank: u32, failure: Failure) {
        if self.over(rank, failure) {
            self.say(ToTarget::Fail { rank, failure });
        }
    }

    /// A stream has failed; whether it was not over before.
    fn over(&mut self, rank: u32, failure: Failure) -> bool {
        let stream = self.streams.get_mut(&rank);
        let Some(stream) = stream.filter(|stream| stream.over.is_none()) else {
            return false;
        };
        let result = Err(failure);
        stream.over = Some(result);
        if stream.writer == Writer::Waits {
            stream.writer = Writer::Away;
            self.out.push(Output::NoRoom { rank, failure });
        }
        stream.drop_room(&mut self.pool);
        self.out.push(Output::StreamOver { rank, result });
        true
    }

    fn over_all(&mut self, failure: Failure) {
        for rank in self.config.ranks.clone() {
            self.over(rank, failure);
        }
    }

    fn cancel(&mut self) {
        for rank in self.config.ranks.clone() {
            self.fail(rank, Failure::Cancelled);
        }
    }

    /// The connection is of no use any more.
    fn disconnect(&mut self, failure: Failure) {
        if matches!(self.state, State::Opening | State::Moving) {
            self.state = State::Closing;
            self.over_all(failure);
            self.out.push(Output::Disconnect);
        }
    }

    fn closed(&mut self) {
        if self.state == State::Over {
            return;
        }
        self.state = State::Over;
        self.over_all(Failure::Lost);
        self.puts.clear();
        for (&rank, stream) in &mut self.streams {
            let lent = stream.forget_chunks().into_iter();
            self.out
                .extend(lent.map(|slot| Output::GiveBack { rank, slot }));
        }
        self.out.push(Output::Over);
    }

    fn tick(&mut self) {
        if self.deadline().is_none_or(|due| self.now < due) {
            return;
        }
        if let Some(failure) = self.clock.failure(self.now) {
            return self.disconnect(failure);
        }
        if self.clock.is_stalled(self.now) {
            let all = self.streams.iter();
            let stalled = all.filter(|(_, stream)| stream.waits_for_writer());
            for rank in stalled.map(|(rank, _)| *rank).collect::<Vec<_>>() {
                self.fail(rank, Failure::WriterStalled);
            }
        }
        if self.clock.is_quiet(self.now) {
            self.say(ToTarget::Alive);
        }
    }

    /// Writers that wait are given room, one after the other, whoever is next first.
    fn give_rooms(&mut self) {
        if !matches!(self.state, State::Opening | State::Moving) {
            return;
        }
        let waits = |(rank, stream): (&u32, &Stream)| {
            let waits = stream.writer == Writer::Waits && stream.over.is_none();
            waits.then_some(*rank)
        };
        let later = self.streams.range((Excluded(self.turn), Unbounded));
        let waiting = later.chain(self.streams.range(..=self.turn));
        for rank in waiting.filter_map(waits).collect::<Vec<_>>() {
            let Some(stream) = self.streams.get_mut(&rank) else {
                continue;
            };
            let room = stream.room(&mut self.pool, self.config.buffers.chunk_bytes);
            if let Some(Room { slot, at, bytes }) = room {
                self.turn = rank;
                self.out.push(Output::Room {
                    rank,
                    slot,
                    at,
                    bytes,
                });
            }
        }
    }

    /// When all streams are over, and the target reaches for nothing any more, so is the connection.
    fn finish(&mut self) {
        let mut all = self.streams.values();
        if self.state == State::Moving
            && all.all(|stream| stream.over.is_some() && stream.is_recycled())
        {
            self.state = State::Closing;
            self.out.push(Output::Disconnect);
        }
    }

    fn say(&mut self, message: ToTarget) {
        if matches!(self.state, State::Opening | State::Moving) {
            self.clock.said(self.now);
            self.out.push(Output::Send(message));
        }
    }
}
