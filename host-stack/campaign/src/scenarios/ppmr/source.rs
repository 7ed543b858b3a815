//! What a source's supervisor does that its machine says, and the writers of its tree.

use snaprig_coord::migration::{
    Id, Record, WriteError, faults as decision,
    source::{Config, Input, Outcome, Output, Source},
};
use snaprig_ppmr::{Digest, Failure, faults, source};

use super::{
    net::Said,
    rdma::{CHUNK_BYTES, in_image},
    tree::{Program, Writer, Writing, images, mostly_all},
    world::{Event, SOURCE, Who, World, token},
};
use crate::stage::{Effect, System as _};

/// The longest time between what a writer does.
const WRITE_NS: u64 = 20_000;
/// Of writers, one in so many gives its own memory.
const LENDS_ONE_IN: u64 = 3;

impl World {
    /// Somebody wants a tree to move.
    pub fn order(&mut self, tree: usize) {
        let own = &self.trees[tree];
        let runs = own.at[SOURCE].is_some_and(|one| one.is_running);
        if own.leaving.is_none() && runs && self.stage.engine.is_alive(own.source) {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&self.random.number().to_le_bytes());
            let now = self.stage.engine.now_ns();
            self.trees[tree].id = Id(id);
            self.trees[tree].leaving = Some(Source::new(config(Id(id)), now));
            self.source_handles(tree, Input::Tick);
        }
    }

    /// The supervisor is started again: what it has written down comes first.
    pub fn start_source(&mut self, tree: usize) {
        match self.trees[tree].record {
            Some(Record::Gone(_)) => {}
            Some(Record::Going(id, site)) => {
                let now = self.stage.engine.now_ns();
                self.trees[tree].leaving = Some(Source::resumed(config(id), site, now));
                self.source_handles(tree, Input::Tick);
            }
            None => self.restart_tree(tree),
        }
    }

    /// The tree runs from the checkpoint that it had at first, unless it has come to its end.
    fn restart_tree(&mut self, tree: usize) {
        if self.trees[tree].results.is_empty() {
            self.runs(tree, SOURCE, Program::default());
            self.order_later(tree);
        }
    }

    pub fn source_handles(&mut self, tree: usize, input: Input) {
        let now = self.stage.engine.now_ns();
        let process = self.trees[tree].source;
        let Some(machine) = &mut self.trees[tree].leaving else {
            return;
        };
        for output in machine.handle(input, now) {
            let event = Event::Source(tree, output);
            if !self.do_later(process, 8 * tree as u64, event) {
                return;
            }
        }
        let due = self.trees[tree].leaving.as_ref().and_then(Source::deadline);
        self.wake(Who::Source(tree), due);
    }

    /// A supervisor does something, soon or late, after what it was told before; whether it lives to do it.
    pub fn do_later(&mut self, process: snaprig_sim::ProcessId, lane: u64, event: Event) -> bool {
        let late_ns = match self.fault(process, &decision::STEP) {
            Effect::Ended => return false,
            Effect::Late(by_ns) => by_ns,
            _ => 0,
        };
        let engine = &mut self.stage.engine;
        engine.send_late(process, process, lane, late_ns, event);
        true
    }

    fn connect(&mut self, tree: usize) {
        let process = self.trees[tree].source;
        let late_ns = match self.fault(process, &decision::CONNECT) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            Effect::Error(errno) => {
                let why = format!("errno {errno}");
                return self.source_handles(tree, Input::Closed { why });
            }
            _ => 0,
        };
        let wire = self.net.new_wire(tree, None);
        self.trees[tree].wire = Some(wire);
        self.stage.engine.after(process, late_ns, Event::Dial(wire));
    }

    pub fn source_connected(&mut self, tree: usize) {
        let nonce = self.nonce();
        self.source_handles(tree, Input::Connected { nonce });
    }

    pub fn nonce(&mut self) -> [u8; 32] {
        let mut nonce = [0; 32];
        nonce[..8].copy_from_slice(&self.random.number().to_le_bytes());
        nonce
    }

    pub fn source_closed(&mut self, tree: usize, wire: u64) {
        if self.trees[tree].wire == Some(wire) {
            self.trees[tree].wire = None;
            let why = "the connection has ended".into();
            self.source_handles(tree, Input::Closed { why });
        }
    }

    /// Does what its machine has said.
    pub fn source_does(&mut self, tree: usize, output: Output) {
        match output {
            Output::Connect => self.connect(tree),
            Output::Send(message) => {
                if let Some(wire) = self.trees[tree].wire {
                    self.say(wire, SOURCE, &decision::MESSAGE, Said::ToTarget(message));
                }
            }
            Output::Close => {
                if let Some(wire) = self.trees[tree].wire.take() {
                    self.hang_up(wire, SOURCE);
                }
            }
            Output::Copy => self.suspend_and_write(tree),
            Output::StopCopying => self.ask(tree, source::Input::Cancel),
            Output::Write(record) => {
                let Some(result) = self.write_record(tree, record) else {
                    return;
                };
                let event = Event::SourceWrote(tree, result);
                let process = self.trees[tree].source;
                self.stage.engine.after(process, 0, event);
            }
            Output::Erase => self.trees[tree].record = None,
            Output::LetGo => self.let_go(tree),
            Output::End => self.trees[tree].at[SOURCE] = None,
            Output::Over(outcome) => {
                self.trees[tree].leaving = None;
                if let Outcome::Stays { why } = outcome {
                    self.stayed(tree, why);
                }
            }
        }
    }

    /// A move has failed. That the target has too little memory, or the program had ended, is not for want of others.
    fn stayed(&mut self, tree: usize, why: String) {
        let lacks = self.parameters.lacking > 0 && why.contains("has memory for");
        if !lacks && self.trees[tree].results.is_empty() {
            self.end.failed.push(why);
        }
        // A buffer manager that hangs is of no use to the next one.
        let sender = self.trees[tree].sender;
        if self.stage.engine.is_hung(sender) {
            self.lose_sender(tree);
        }
        self.order_later(tree);
    }

    fn write_record(&mut self, tree: usize, record: Record) -> Option<Result<(), WriteError>> {
        let process = self.trees[tree].source;
        match self.fault(process, &decision::RECORD) {
            Effect::Ended => return None,
            Effect::Error(errno) => return Some(Err(not_written(errno, false))),
            Effect::Torn(_) => return Some(Err(not_written(libc::EIO, false))),
            _ => self.trees[tree].record = Some(record),
        }
        match self.fault(process, &decision::NAMED) {
            Effect::Ended => None,
            Effect::Error(errno) => Some(Err(not_written(errno, true))),
            _ => Some(Ok(())),
        }
    }

    pub fn source_wrote(&mut self, tree: usize, result: Result<(), WriteError>) {
        if self.fault(self.trees[tree].source, &decision::STEPPED) != Effect::Ended {
            self.source_handles(tree, Input::Written(result));
        }
    }

    /// The tree runs here: as it stands, or from its checkpoint.
    fn let_go(&mut self, tree: usize) {
        match self.trees[tree].at[SOURCE] {
            Some(one) if one.is_running => {}
            Some(one) => self.runs(tree, SOURCE, one.program),
            None => self.restart_tree(tree),
        }
    }

    /// The paper's steps 1 and 2: the tree stands still, and a buffer manager of its own is started, which connects.
    fn suspend_and_write(&mut self, tree: usize) {
        let Some(own) = &mut self.trees[tree].at[SOURCE] else {
            let why = "the program has ended".into();
            return self.source_handles(tree, Input::Copied(Err(why)));
        };
        own.is_running = false;
        let (program, id) = (own.program, self.trees[tree].id);
        let (processes, bytes) = (self.parameters.processes, self.parameters.bytes);
        let images = images(&program, processes, bytes, &mut self.random);
        self.trees[tree].written.insert(id, images.clone());
        self.attempts += 1;
        let attempt = self.attempts;
        let writers = images.into_iter().map(|image| Writer {
            image,
            lends: self.random.one_in(LENDS_ONE_IN),
            ..Writer::default()
        });
        self.trees[tree].writing = Some(Writing {
            attempt,
            id,
            writers: writers.collect(),
        });
        self.lose_sender(tree);
        let sender = self.trees[tree].sender;
        self.stage.engine.restart(sender);
        let chunks = self.managers.chunks[SOURCE];
        self.trees[tree].manager = Some(super::managers::Sender::new(attempt, chunks));
        self.stage.engine.after(sender, 0, Event::Launch(tree));
    }

    fn is_writing(&self, tree: usize, attempt: u64) -> bool {
        let writing = self.trees[tree].writing.as_ref();
        writing.is_some_and(|one| one.attempt == attempt)
    }

    /// The buffer manager has connected: writers begin.
    pub fn sender_ready(&mut self, tree: usize, attempt: u64) {
        if self.is_writing(tree, attempt) {
            for rank in 0..usize::from(self.parameters.processes) {
                self.write_later(tree, rank);
            }
        }
    }

    /// There is no buffer manager, for some reason.
    pub fn no_sender(&mut self, tree: usize, attempt: u64, why: String) {
        if self.is_writing(tree, attempt) {
            self.trees[tree].writing = None;
            self.source_handles(tree, Input::Copied(Err(why)));
        }
    }

    fn write_later(&mut self, tree: usize, rank: usize) {
        let Some(attempt) = self.trees[tree].writing.as_ref().map(|one| one.attempt) else {
            return;
        };
        let by_ns = self.random.below(WRITE_NS);
        let event = Event::Write(tree, attempt, rank, false);
        let process = self.trees[tree].source;
        self.stage.engine.after(process, by_ns, event);
    }

    /// Something for the buffer manager.
    fn ask(&mut self, tree: usize, input: source::Input) {
        let own = &self.trees[tree];
        if let Some(writing) = &own.writing {
            let event = Event::Ask(tree, writing.attempt, input);
            let (from, to, lane) = (own.source, own.sender, 8 * tree as u64 + 3);
            self.stage.engine.send(from, to, lane, event);
        }
    }

    /// A writer's turn: it asks for room, fills it, or says that this was all.
    pub fn write(&mut self, tree: usize, attempt: u64, rank: usize, was_late: bool) {
        let writing = self.trees[tree].writing.as_ref();
        let writing = writing.filter(|one| one.attempt == attempt);
        let writer = writing.and_then(|one| one.writers.get(rank));
        if writer.is_none_or(|writer| writer.over.is_some() || writer.has_ended) {
            return;
        }
        let process = self.trees[tree].source;
        if !was_late {
            match self.fault(process, &faults::WRITE) {
                Effect::Ended => return,
                Effect::Late(by_ns) => {
                    let event = Event::Write(tree, attempt, rank, true);
                    return self.stage.engine.after(process, by_ns, event);
                }
                Effect::Error(_) => return self.writer_dies(tree, rank),
                _ => {}
            }
        }
        if let Some(input) = self.writes(tree, rank) {
            self.ask(tree, input);
        }
    }

    fn writer_dies(&mut self, tree: usize, rank: usize) {
        if let Some(writing) = &mut self.trees[tree].writing {
            writing.writers[rank].over = Some(Err(Failure::Writer));
        }
        let rank = rank as u32;
        self.ask(tree, source::Input::WriterGone { rank });
    }

    /// What a writer says to the buffer manager.
    fn writes(&mut self, tree: usize, rank: usize) -> Option<source::Input> {
        let own = &mut self.trees[tree];
        let writer = own.writing.as_mut()?.writers.get_mut(rank)?;
        let left = writer.image.len() - writer.written;
        let number = rank as u32;
        let Some((slot, at, most)) = writer.room.take() else {
            if left > 0 && self.random.below(4) == 0 {
                self.write_later(tree, rank);
                return Some(source::Input::Flush { rank: number });
            }
            if left > 0 {
                return Some(source::Input::Want { rank: number });
            }
            writer.has_ended = true;
            let mut digest = Digest::default();
            digest.update(&writer.image);
            let checksum = digest.checksum();
            return Some(source::Input::End {
                rank: number,
                checksum,
            });
        };
        let bytes = left.min(mostly_all(most, &mut self.random) as usize);
        let from = writer.written;
        writer.written += bytes;
        let input = match writer.lends {
            true => {
                let place = in_image(rank, from);
                writer.lent.insert(slot, place);
                source::Input::Lent {
                    rank: number,
                    at: place,
                    bytes: bytes as u32,
                }
            }
            false => {
                let start = (slot * CHUNK_BYTES + at) as usize;
                // Without a buffer manager, nobody is there to notice.
                let pool = &mut own.manager.as_mut()?.pool;
                let room = pool.get_mut(start..start + bytes)?;
                room.copy_from_slice(&writer.image[from..from + bytes]);
                source::Input::Wrote {
                    rank: number,
                    bytes: bytes as u32,
                }
            }
        };
        self.write_later(tree, rank);
        Some(input)
    }

    /// The buffer manager has said something.
    pub fn told(&mut self, tree: usize, attempt: u64, output: source::Output) {
        if !self.is_writing(tree, attempt) {
            return;
        }
        self.source_handles(tree, Input::Progress);
        match output {
            source::Output::Room {
                rank,
                slot,
                at,
                bytes,
            } => self.has_room(tree, rank, (slot, at, bytes)),
            source::Output::GiveBack { rank, slot } => self.has_memory_back(tree, rank, slot),
            source::Output::StreamOver { rank, result } => self.stream_over(tree, rank, result),
            _ => {}
        }
    }

    fn writer(&mut self, tree: usize, rank: u32) -> Option<&mut Writer> {
        let writing = self.trees[tree].writing.as_mut();
        writing?.writers.get_mut(rank as usize)
    }

    fn has_room(&mut self, tree: usize, rank: u32, room: (u32, u32, u32)) {
        if let Some(writer) = self.writer(tree, rank) {
            writer.room = Some(room);
            self.write_later(tree, rank as usize);
        }
    }

    fn has_memory_back(&mut self, tree: usize, rank: u32, slot: u32) {
        let writer = self.writer(tree, rank);
        if let Some(memory) = writer.and_then(|writer| writer.lent.remove(&slot)) {
            self.check_reuse(tree, memory);
        }
    }

    fn stream_over(&mut self, tree: usize, rank: u32, result: Result<(), Failure>) {
        self.check_honest(self.trees[tree].source, result);
        if let Some(writer) = self.writer(tree, rank) {
            // What it has of the pool, it touches no more.
            let fills = writer.room.take().is_some();
            writer.over = Some(result);
            if fills {
                self.ask(tree, source::Input::WriterGone { rank });
            }
        }
        let Some(writing) = &self.trees[tree].writing else {
            return;
        };
        let mut all = writing.writers.iter();
        let result = match result {
            Err(failure) => Err(failure.to_string()),
            Ok(()) if all.all(|writer| writer.over == Some(Ok(()))) => Ok(()),
            Ok(()) => return,
        };
        self.source_handles(tree, Input::Copied(result));
    }
}

fn config(id: Id) -> Config {
    Config {
        id,
        token: Some(token()),
        command: vec!["count".into()],
    }
}

/// Why a record may not be on the disk.
pub fn not_written(errno: i32, in_doubt: bool) -> WriteError {
    WriteError {
        why: format!("errno {errno}"),
        in_doubt,
    }
}
