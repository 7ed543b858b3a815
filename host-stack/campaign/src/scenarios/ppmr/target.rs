//! What the target's supervisors do that their machines say, one a tree, and the readers of the trees.

use std::collections::{BTreeMap, BTreeSet};

use snaprig_coord::migration::{
    Id, SiteId, WriteError, faults as decision,
    target::{Input, Output, Target},
};
use snaprig_ppmr::{Failure, faults, target, target::StreamId};
use snaprig_sim::ProcessId;

use super::{
    Canary,
    invariants::{BYTES, HONEST},
    net::Said,
    rdma::CHUNK_BYTES,
    source::not_written,
    tree::{Arrival, Reader, Running, mostly_all},
    world::{Event, TARGET, Who, World, token},
};
use crate::stage::{Effect, System as _};

/// The longest time that a tree takes to be restored when all of its images are read.
const RESTORE_NS: u64 = 500_000;
/// The longest time between what a reader does.
const READ_NS: u64 = 20_000;

impl World {
    /// The node is started, for the first time or again: what was written down comes first.
    pub fn start_target(&mut self) {
        self.restart_receiver();
        for tree in 0..self.trees.len() {
            let decided = self.trees[tree].decided;
            let ids: BTreeSet<Id> = decided.iter().map(|(id, _)| *id).collect();
            let new = match decided {
                None => Target::new,
                Some(_) => Target::with_tree,
            };
            let site = SiteId([tree as u8; 16]);
            let now = self.stage.engine.now_ns();
            self.trees[tree].coming = Some(new(site, Some(token()), ids, now));
            self.target_handles(tree, Input::Tick);
            if let Some((_, program)) = decided
                && self.trees[tree].results.is_empty()
            {
                self.runs(tree, TARGET, program);
            }
        }
    }

    fn restart_receiver(&mut self) {
        self.lose_receiver();
        self.stage.engine.restart(self.receiver);
        self.start_receiver();
    }

    pub fn target_accepted(&mut self, wire: u64) {
        let (connection, nonce) = (wire, self.nonce());
        let input = Input::Connected { connection, nonce };
        self.target_handles(self.tree_of(wire), input);
    }

    pub fn target_handles(&mut self, tree: usize, input: Input) {
        let now = self.stage.engine.now_ns();
        let Some(machine) = &mut self.trees[tree].coming else {
            return;
        };
        for output in machine.handle(input, now) {
            let event = Event::Target(tree, output);
            if !self.do_later(self.target, 8 * tree as u64 + 1, event) {
                return;
            }
        }
        let due = self.trees[tree].coming.as_ref().and_then(Target::deadline);
        self.wake(Who::Target(tree), due);
    }

    /// Does what a machine has said.
    pub fn target_does(&mut self, tree: usize, output: Output) {
        match output {
            Output::Send {
                connection,
                message,
            } => {
                let said = Said::ToSource(message);
                self.say(connection, TARGET, &decision::MESSAGE, said);
            }
            Output::Close { connection, .. } => self.hang_up(connection, TARGET),
            Output::Receive { id, .. } => {
                self.trees[tree].expected = Some(id);
                self.settle(tree);
            }
            Output::Drop { id } => self.drop_tree(tree, id),
            Output::Commit { id } => {
                let Some(result) = self.write_decision(tree, id) else {
                    return;
                };
                let event = Event::TargetWrote(tree, Input::Committed { id, result });
                self.stage.engine.after(self.target, 0, event);
            }
            Output::Withdraw { id } => {
                self.trees[tree].decided = None;
                let result = Ok(());
                let event = Event::TargetWrote(tree, Input::Withdrawn { id, result });
                self.stage.engine.after(self.target, 0, event);
            }
            Output::Run { .. } => {
                let own = &self.trees[tree];
                let stands = own.at[TARGET].filter(|one| !one.is_running);
                if let Some(one) = stands.filter(|_| own.results.is_empty()) {
                    self.runs(tree, TARGET, one.program);
                }
            }
        }
    }

    /// Whatever has come of a tree is forgotten. A buffer manager that hangs is of no use to the next one.
    fn drop_tree(&mut self, tree: usize, id: Id) {
        let own = &mut self.trees[tree];
        own.expected = None;
        own.at[TARGET] = None;
        if let Some(arrival) = own.arrival.take_if(|arrival| arrival.id == id) {
            self.end_readers(&arrival);
        }
        if self.stage.engine.is_hung(self.receiver) {
            self.restart_receiver();
            self.receiver_gone();
        }
    }

    fn end_readers(&mut self, arrival: &Arrival) {
        for (&rank, reader) in &arrival.readers {
            if reader.over.is_none() {
                let connection = arrival.wire;
                let stream = StreamId { connection, rank };
                self.ask_receiver(target::Input::ReaderGone { stream });
            }
        }
        self.unhold();
    }

    fn write_decision(&mut self, tree: usize, id: Id) -> Option<Result<(), WriteError>> {
        match self.fault(self.target, &decision::RECORD) {
            Effect::Ended => return None,
            Effect::Error(errno) => return Some(Err(not_written(errno, false))),
            Effect::Torn(_) => return Some(Err(not_written(libc::EIO, false))),
            _ => {}
        }
        let program = self.trees[tree].at[TARGET].map(|one| one.program);
        self.trees[tree].decided = program.map(|program| (id, program));
        match self.fault(self.target, &decision::NAMED) {
            Effect::Ended => None,
            Effect::Error(errno) => Some(Err(not_written(errno, true))),
            _ => Some(Ok(())),
        }
    }

    pub fn target_wrote(&mut self, tree: usize, input: Input) {
        if self.fault(self.target, &decision::STEPPED) != Effect::Ended {
            self.target_handles(tree, input);
        }
    }

    fn ask_receiver(&mut self, input: target::Input) {
        let (from, to) = (self.target, self.receiver);
        let event = Event::AskReceiver(input);
        self.stage.engine.send(from, to, 6, event);
    }

    /// The buffer manager has said something.
    pub fn told_target(&mut self, output: target::Output) {
        let stream = match &output {
            target::Output::Begin { stream }
            | target::Output::Part { stream, .. }
            | target::Output::Drained { stream }
            | target::Output::NoPart { stream, .. }
            | target::Output::StreamOver { stream, .. } => *stream,
            _ => return,
        };
        if let target::Output::Begin { .. } = output {
            self.begin_reading(stream);
        }
        let tree = self.tree_of(stream.connection);
        if let Some(id) = self.trees[tree].expected {
            self.target_handles(tree, Input::Progress { id });
        }
        let Some(reader) = self.reader(stream) else {
            // Whoever would have read it is gone.
            return self.ask_receiver(target::Input::ReaderGone { stream });
        };
        match output {
            target::Output::Part {
                slot, at, bytes, ..
            } => {
                reader.parts.push_back((slot, at, bytes));
                reader.waits = false;
                self.read_later(stream);
            }
            target::Output::Drained { .. } => {
                let checksum = reader.digest.checksum();
                self.ask_receiver(target::Input::Checked { stream, checksum });
            }
            target::Output::StreamOver { result, .. } => self.reader_over(stream, result),
            _ => {}
        }
    }

    fn begin_reading(&mut self, stream: StreamId) {
        let StreamId { connection, rank } = stream;
        let wire = self.net.wire(connection);
        let Some((tree, id)) = wire.and_then(|wire| Some((wire.tree, wire.images_of?))) else {
            return;
        };
        let arrival = &mut self.trees[tree].arrival;
        let earlier = arrival.take_if(|arrival| arrival.wire != connection);
        let arrival = arrival.get_or_insert_with(|| Arrival {
            id,
            wire: connection,
            readers: BTreeMap::new(),
        });
        arrival.readers.insert(rank, Reader::default());
        if let Some(earlier) = earlier {
            self.end_readers(&earlier);
        }
        self.read_later(stream);
    }

    fn reader(&mut self, stream: StreamId) -> Option<&mut Reader> {
        let tree = self.tree_of(stream.connection);
        let arrival = self.trees[tree].arrival.as_mut();
        let arrival = arrival.filter(|arrival| arrival.wire == stream.connection);
        arrival?.readers.get_mut(&stream.rank)
    }

    fn read_later(&mut self, stream: StreamId) {
        let by_ns = self.random.below(READ_NS);
        let event = Event::Read(stream, false);
        self.stage.engine.after(self.target, by_ns, event);
    }

    /// A reader's turn: it reads what it has, or asks for more.
    pub fn read(&mut self, stream: StreamId, was_late: bool) {
        let reader = self.reader(stream);
        if reader.is_none_or(|reader| reader.over.is_some()) {
            return;
        }
        if !was_late {
            match self.fault(self.target, &faults::READ) {
                Effect::Ended => return,
                Effect::Late(by_ns) => {
                    let event = Event::Read(stream, true);
                    return self.stage.engine.after(self.target, by_ns, event);
                }
                Effect::Error(_) => {
                    self.ask_receiver(target::Input::ReaderGone { stream });
                    return self.reader_over(stream, Err(Failure::Reader));
                }
                _ => {}
            }
        }
        let is_held = self.is_slow(stream) && self.others_read(stream);
        let Some(reader) = self.reader(stream) else {
            return;
        };
        match reader.parts.pop_front() {
            None if reader.waits => {}
            None => self.wants(stream),
            Some(part) if is_held => {
                reader.parts.push_front(part);
                reader.is_held = true;
            }
            Some(part) => self.takes(stream, part),
        }
    }

    fn wants(&mut self, stream: StreamId) {
        if let Some(reader) = self.reader(stream) {
            reader.waits = true;
            self.ask_receiver(target::Input::Want { stream });
        }
    }

    /// A reader reads what it has.
    fn takes(&mut self, stream: StreamId, (slot, at, most): (u32, u32, u32)) {
        let bytes = mostly_all(most, &mut self.random);
        let start = (slot * CHUNK_BYTES + at) as usize;
        let pool = self.managers.receiver.as_ref().map(|own| &own.pool);
        let read = pool.and_then(|pool| pool.get(start..start + bytes as usize));
        let Some(read) = read.map(<[u8]>::to_vec) else {
            return;
        };
        let mut wants_more = false;
        if let Some(reader) = self.reader(stream) {
            reader.digest.update(&read);
            reader.read.extend_from_slice(&read);
            if bytes < most {
                reader.parts.push_front((slot, at + bytes, most - bytes));
            }
            // Half of all readers want the next part while they have one.
            wants_more = stream.rank % 2 == 1 && !reader.waits && !reader.parts.is_empty();
        }
        self.ask_receiver(target::Input::Took { stream, bytes });
        if wants_more {
            self.wants(stream);
        }
        self.read_later(stream);
    }

    /// Whether this is the reader that waits for all others: that of the first tree's last process.
    fn is_slow(&self, stream: StreamId) -> bool {
        let is_last = stream.rank + 1 == u32::from(self.parameters.processes);
        self.parameters.slow && is_last && self.tree_of(stream.connection) == 0
    }

    fn others_read(&self, slow: StreamId) -> bool {
        let arrivals = self.trees.iter().filter_map(|tree| tree.arrival.as_ref());
        let mut others = arrivals.flat_map(|arrival| {
            let readers = arrival.readers.iter();
            readers.filter(move |(rank, _)| (arrival.wire, **rank) != (slow.connection, slow.rank))
        });
        others.any(|(_, reader)| reader.over.is_none())
    }

    /// Whoever waits for others may have waited long enough.
    fn unhold(&mut self) {
        let Some(arrival) = &mut self.trees[0].arrival else {
            return;
        };
        let connection = arrival.wire;
        let held = arrival.readers.iter_mut();
        let held = held.filter_map(|(rank, one)| std::mem::take(&mut one.is_held).then_some(*rank));
        for rank in held.collect::<Vec<_>>() {
            self.read_later(StreamId { connection, rank });
        }
    }

    /// A stream has been read to its end, or has failed.
    fn reader_over(&mut self, stream: StreamId, result: Result<(), Failure>) {
        self.check_honest(self.target, result);
        let tree = self.tree_of(stream.connection);
        let is_lost = result == Err(Failure::Lost);
        let is_bug = is_lost && self.canary == Some(Canary::LastChunkLost);
        let result = if is_bug { Ok(()) } else { result };
        let Some(reader) = self.reader(stream) else {
            return;
        };
        if reader.over.is_some() {
            return;
        }
        reader.over = Some(result);
        reader.parts.clear();
        match result {
            Ok(()) => self.check_bytes(tree, stream),
            // What it has of the pool, it touches no more.
            Err(_) => self.ask_receiver(target::Input::ReaderGone { stream }),
        }
        self.unhold();
        self.settle(tree);
    }

    /// What was read is what was written.
    fn check_bytes(&mut self, tree: usize, stream: StreamId) {
        let own = &self.trees[tree];
        let Some(arrival) = &own.arrival else {
            return;
        };
        let read = arrival.readers.get(&stream.rank).map(|one| &one.read);
        let written = own.written.get(&arrival.id);
        let written = written.and_then(|all| all.get(stream.rank as usize));
        let bytes = read.map_or(0, Vec::len);
        self.end.streams += 1;
        self.end.bytes += bytes as u64;
        if read != written {
            let of = written.map_or(0, Vec::len);
            let what = format!("rank {} has other bytes: {bytes} of {of}", stream.rank);
            self.violation(self.target, BYTES, what);
        }
    }

    /// Who is honest is not told that it makes no sense, unless bits were flipped.
    pub fn check_honest(&mut self, at: ProcessId, result: Result<(), Failure>) {
        let is_blamed = matches!(result, Err(Failure::Nonsense(_) | Failure::Checksum));
        if is_blamed && !self.has_corrupted {
            self.violation(at, HONEST, format!("a stream fails: {result:?}"));
        }
    }

    /// The buffer manager is gone, and all streams that were not over with it. Another one is started.
    pub fn receiver_gone(&mut self) {
        for tree in 0..self.trees.len() {
            let Some(arrival) = &self.trees[tree].arrival else {
                continue;
            };
            let (connection, ranks) = (arrival.wire, arrival.readers.keys().copied());
            for rank in ranks.collect::<Vec<_>>() {
                self.reader_over(StreamId { connection, rank }, Err(Failure::Lost));
            }
        }
        let is_there = self.managers.receiver.is_some();
        if !is_there {
            self.restart_receiver();
        }
    }

    /// If all streams of the tree that is waited for are over, or one has failed, its supervisor goes on.
    fn settle(&mut self, tree: usize) {
        let own = &self.trees[tree];
        let arrival = own.arrival.as_ref();
        let Some(arrival) = arrival.filter(|one| own.expected == Some(one.id)) else {
            return;
        };
        let id = arrival.id;
        if let Some(failure) = arrival.failure() {
            self.trees[tree].expected = None;
            let result = Err(failure.to_string());
            self.target_handles(tree, Input::Restored { id, result });
        } else if arrival.is_whole(self.parameters.processes) {
            self.target_handles(tree, Input::Received { id });
            let by_ns = self.random.below(RESTORE_NS);
            let event = Event::Restored(tree, id);
            self.stage.engine.after(self.target, by_ns, event);
        }
    }

    /// The tree is restored, and stands still.
    pub fn restored(&mut self, tree: usize, id: Id) {
        let own = &mut self.trees[tree];
        let arrival = own.arrival.as_ref().filter(|one| one.id == id);
        let program = arrival.and_then(Arrival::program);
        let is_expected = own.expected.take_if(|expected| *expected == id).is_some();
        let Some(program) = program.filter(|_| is_expected) else {
            return;
        };
        own.at[TARGET] = Some(Running {
            program,
            is_running: false,
        });
        if self.canary == Some(Canary::BothRun) && self.trees[tree].results.is_empty() {
            self.runs(tree, TARGET, program);
        }
        let result = Ok(());
        self.target_handles(tree, Input::Restored { id, result });
    }
}
