//! What the buffer managers do that their machines say. Each is a process of its own; a front in it copies what writers and
//! readers give and take.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use snaprig_ppmr::{
    Buffers, Source, Target, Times, faults,
    message::{Remote, ToSource, ToTarget, decode, encode},
    source, target,
    target::StreamId,
};

use super::{
    Canary,
    invariants::{BOUNDED, RECYCLED},
    net::Said,
    rdma::{CHUNK_BYTES, POOL, Transfer, in_pool},
    world::{Event, SOURCE, TARGET, Who, World},
};
use crate::stage::{Effect, System as _};

/// The manager of a source, while its process lives.
pub struct Sender {
    /// Of which attempt of its tree.
    pub attempt: u64,
    pub machine: Option<Source>,
    pub wire: Option<u64>,
    pub pool: Vec<u8>,
    /// Memory that the target may reach for, by key and address, and for which chunk.
    promised: BTreeMap<(u32, u64), (u32, u64)>,
    /// Chunks that writers fill, and whose they are.
    filled: BTreeMap<u32, u32>,
    /// Answers that were made up by a planted bug, and are still to come.
    made_up: BTreeSet<(u32, u64)>,
}

impl Sender {
    pub fn new(attempt: u64, chunks: u32) -> Self {
        Self {
            attempt,
            machine: None,
            wire: None,
            pool: vec![0; (chunks * CHUNK_BYTES) as usize],
            promised: BTreeMap::new(),
            filled: BTreeMap::new(),
            made_up: BTreeSet::new(),
        }
    }
}

/// The manager of the target, while its process lives.
pub struct Receiver {
    pub machine: Target,
    pub pool: Vec<u8>,
    /// Chunks that are being pulled, over which connections, and those that readers have, with how much of each.
    coming: BTreeMap<u32, u64>,
    lent: BTreeMap<StreamId, VecDeque<(u32, u32)>>,
    /// Parts that wait until their turn comes, in a driver that is planted to be so.
    held: Vec<target::Output>,
}

impl Receiver {
    fn has_lent(&self, slot: u32) -> bool {
        let mut all = self.lent.values().flatten();
        all.any(|(lent, _)| *lent == slot)
    }

    /// A reader is done with the front of what it has.
    fn gives_back(&mut self, stream: StreamId, mut bytes: u32) {
        let Some(lent) = self.lent.get_mut(&stream) else {
            return;
        };
        while let Some((_, left)) = lent.front_mut() {
            let now = bytes.min(*left);
            *left -= now;
            bytes -= now;
            if *left > 0 {
                return;
            }
            lent.pop_front();
        }
        self.lent.remove(&stream);
    }
}

/// The manager of the target, and what there is of both kinds.
pub struct Managers {
    pub receiver: Option<Receiver>,
    /// Chunks of each sender's pool, and of the receiver's.
    pub chunks: [u32; 2],
    pub streams_max: u32,
}

/// Shorter than what the deciding machines wait for, so that it is the managers' that pass.
const TIMES: Times = Times {
    open_ns: 2_000_000_000,
    alive_ns: 1_000_000_000,
    silence_ns: 5_000_000_000,
    stall_ns: 10_000_000_000,
};

fn buffers(chunks: u32) -> Buffers {
    Buffers {
        pool_bytes: u64::from(chunks * CHUNK_BYTES),
        chunk_bytes: CHUNK_BYTES,
    }
}

impl World {
    /// A sender is to connect.
    pub fn launch(&mut self, tree: usize) {
        let process = self.trees[tree].sender;
        let late_ns = match self.fault(process, &faults::CONNECT) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            Effect::Error(errno) => {
                let why = format!("the buffer manager cannot connect: errno {errno}");
                return self.tell_source(tree, Event::NoSender(tree, self.attempt(tree), why));
            }
            _ => 0,
        };
        let id = self.trees[tree].writing.as_ref().map(|writing| writing.id);
        let wire = self.net.new_wire(tree, id);
        if let Some(sender) = &mut self.trees[tree].manager {
            sender.wire = Some(wire);
        }
        self.stage.engine.after(process, late_ns, Event::Dial(wire));
    }

    /// A sender has connected: its machine begins.
    pub fn sender_connected(&mut self, tree: usize) {
        let ranks = (0..u32::from(self.parameters.processes)).collect();
        let config = source::Config {
            buffers: buffers(self.managers.chunks[SOURCE]),
            pool: POOL,
            mode: self.parameters.mode,
            times: TIMES,
            ranks,
        };
        let machine = Source::new(config, self.stage.engine.now_ns());
        if let Some(sender) = &mut self.trees[tree].manager {
            sender.machine = machine.ok();
        }
        self.sender_handles(tree, source::Input::Tick);
        let ready = Event::SenderReady(tree, self.attempt(tree));
        self.tell_source(tree, ready);
    }

    /// The attempt that a tree's manager is for.
    pub fn attempt(&self, tree: usize) -> u64 {
        let manager = self.trees[tree].manager.as_ref();
        manager.map_or(0, |manager| manager.attempt)
    }

    /// Something for the node of a tree, from its buffer manager.
    fn tell_source(&mut self, tree: usize, event: Event) {
        let (source, sender) = (self.trees[tree].source, self.trees[tree].sender);
        let lane = 8 * tree as u64 + 4;
        self.stage.engine.send(sender, source, lane, event);
    }

    pub fn sender_handles(&mut self, tree: usize, input: source::Input) {
        let now = self.stage.engine.now_ns();
        let Some(own) = &mut self.trees[tree].manager else {
            return;
        };
        if let source::Input::Wrote { rank, .. }
        | source::Input::Lent { rank, .. }
        | source::Input::WriterGone { rank } = &input
        {
            own.filled.retain(|_, of| of != rank);
        }
        let Some(machine) = &mut own.machine else {
            return;
        };
        let outputs = machine.handle(input, now);
        let used = machine.used_chunks();
        if used > self.managers.chunks[SOURCE] {
            self.violation(self.trees[tree].sender, BOUNDED, format!("{used} chunks"));
        }
        for output in outputs {
            // It may stop in the middle of it.
            if self.stage.engine.is_alive(self.trees[tree].sender) {
                self.sender_does(tree, output);
            }
        }
        let manager = self.trees[tree].manager.as_ref();
        let due = manager.and_then(|own| own.machine.as_ref()?.deadline());
        self.wake(Who::Sender(tree), due);
    }

    fn sender_does(&mut self, tree: usize, output: source::Output) {
        let canary = self.canary;
        let Some(sender) = &mut self.trees[tree].manager else {
            return;
        };
        let Some(wire) = sender.wire else {
            return;
        };
        match output {
            source::Output::Send(message) => {
                let full = match &message {
                    ToTarget::Full {
                        rank,
                        offset,
                        remote,
                        ..
                    } => Some((*rank, *offset, *remote)),
                    _ => None,
                };
                if let Some((rank, offset, Remote { address, rkey })) = full {
                    sender.promised.insert((rkey, address), (rank, offset));
                }
                let said = Said::Bytes(encode(&message));
                self.say(wire, SOURCE, &faults::MESSAGE, said);
                if let (Some((rank, offset, _)), Some(Canary::RecycledEarly)) = (full, canary) {
                    self.make_up_done(tree, rank, offset);
                }
            }
            source::Output::Put {
                slot,
                lent,
                bytes,
                to,
            } => {
                self.begin_transfer(Transfer::Put {
                    wire,
                    slot,
                    bytes,
                    from: lent.unwrap_or(in_pool(slot)),
                    to,
                });
                if canary == Some(Canary::RecycledEarly) {
                    let is_done = true;
                    self.sender_handles(tree, source::Input::Put { slot, is_done });
                }
            }
            source::Output::Disconnect => {
                self.hang_up(wire, SOURCE);
                let process = self.trees[tree].sender;
                let event = Event::Closed(wire, SOURCE);
                self.stage.engine.after(process, 0, event);
            }
            other => {
                if let source::Output::Room { slot, rank, .. } = other {
                    let before = sender.filled.insert(slot, rank);
                    self.check_reuse(tree, in_pool(slot));
                    if before.is_some() {
                        let what = format!("chunk {slot} has two writers");
                        self.violation(self.trees[tree].sender, RECYCLED, what);
                    }
                }
                let told = Event::Told(tree, self.attempt(tree), other);
                self.tell_source(tree, told);
            }
        }
    }

    /// A planted bug: the target is taken to be done with a chunk as soon as it is told of it.
    fn make_up_done(&mut self, tree: usize, rank: u32, offset: u64) {
        let opened = self.parameters.mode == snaprig_ppmr::Mode::Pull;
        let Some(sender) = self.trees[tree].manager.as_mut().filter(|_| opened) else {
            return;
        };
        sender.made_up.insert((rank, offset));
        let done = Event::MadeUp(tree, sender.attempt, rank, offset);
        let process = self.trees[tree].sender;
        self.stage.engine.after(process, 0, done);
    }

    /// The made-up answer comes.
    pub fn made_up(&mut self, tree: usize, rank: u32, offset: u64) {
        let done = ToSource::Done { rank, offset };
        self.sender_handles(tree, source::Input::Message(done));
    }

    /// Memory is somebody's again: nobody may reach for it.
    pub fn check_reuse(&mut self, tree: usize, memory: Remote) {
        let manager = self.trees[tree].manager.as_ref();
        let promised = manager.and_then(|own| own.promised.get(&(memory.rkey, memory.address)));
        if let Some((rank, offset)) = promised.filter(|_| !self.has_corrupted) {
            let what = format!("the chunk of rank {rank} at {offset} can still be reached");
            self.violation(self.trees[tree].sender, RECYCLED, what);
        }
    }

    /// Nobody reaches for this memory of a source any more.
    pub fn no_promise(&mut self, wire: u64, memory: Remote) {
        let tree = self.tree_of(wire);
        if let Some(sender) = &mut self.trees[tree].manager {
            sender.promised.remove(&(memory.rkey, memory.address));
        }
    }

    /// Bytes came for a sender.
    pub fn sender_heard(&mut self, tree: usize, bytes: &[u8]) {
        let Some(sender) = &mut self.trees[tree].manager else {
            return;
        };
        let input = match decode(bytes) {
            Ok(ToSource::Done { rank, offset }) => {
                let of = (rank, offset);
                sender.promised.retain(|_, promised| *promised != of);
                if sender.made_up.remove(&of) {
                    return;
                }
                source::Input::Message(ToSource::Done { rank, offset })
            }
            Ok(message) => source::Input::Message(message),
            Err(_) => source::Input::Garbled,
        };
        self.sender_handles(tree, input);
    }

    /// The connection of a sender is gone, and nobody reaches for anything over it.
    pub fn sender_closed(&mut self, tree: usize) {
        if let Some(sender) = &mut self.trees[tree].manager {
            sender.promised.clear();
        }
        if self.trees[tree]
            .manager
            .as_ref()
            .is_some_and(|own| own.machine.is_none())
        {
            let why = "nobody listens for images".to_string();
            let event = Event::NoSender(tree, self.attempt(tree), why);
            return self.tell_source(tree, event);
        }
        self.sender_handles(tree, source::Input::Closed);
    }

    /// The target's buffer manager starts, with nothing.
    pub fn start_receiver(&mut self) {
        let chunks = self.managers.chunks[TARGET];
        let config = target::Config {
            buffers: buffers(chunks),
            pool: POOL,
            streams_max: self.managers.streams_max,
            times: TIMES,
        };
        let machine = Target::new(config, self.stage.engine.now_ns());
        self.managers.receiver = machine.ok().map(|machine| Receiver {
            machine,
            pool: vec![0; (chunks * CHUNK_BYTES) as usize],
            coming: BTreeMap::new(),
            lent: BTreeMap::new(),
            held: Vec::new(),
        });
    }

    pub fn receiver_handles(&mut self, input: target::Input) {
        let now = self.stage.engine.now_ns();
        let Some(own) = &mut self.managers.receiver else {
            return;
        };
        match &input {
            target::Input::Pulled { slot, .. } => {
                own.coming.remove(slot);
            }
            target::Input::Took { stream, bytes } => own.gives_back(*stream, *bytes),
            target::Input::ReaderGone { stream } => {
                own.lent.remove(stream);
            }
            target::Input::Closed { connection } => own.coming.retain(|_, of| of != connection),
            _ => {}
        }
        let outputs = own.machine.handle(input, now);
        let used = own.machine.used_chunks();
        if used > self.managers.chunks[TARGET] {
            self.violation(self.receiver, BOUNDED, format!("{used} chunks"));
        }
        for output in outputs {
            if self.stage.engine.is_alive(self.receiver) {
                self.receiver_does(output);
            }
        }
        self.release_held();
        let own = self.managers.receiver.as_ref();
        let due = own.and_then(|own| own.machine.deadline());
        self.wake(Who::Receiver, due);
    }

    fn receiver_does(&mut self, output: target::Output) {
        let Some(own) = &mut self.managers.receiver else {
            return;
        };
        match output {
            target::Output::Send {
                connection,
                message,
            } => {
                let said = Said::Bytes(encode(&message));
                self.say(connection, TARGET, &faults::MESSAGE, said);
            }
            target::Output::Pull {
                connection,
                slot,
                bytes,
                from,
            } => {
                let is_taken = own.has_lent(slot);
                if own.coming.insert(slot, connection).is_some() || is_taken {
                    let what = format!("chunk {slot} of the target is pulled into, and is in use");
                    self.violation(self.receiver, RECYCLED, what);
                }
                self.begin_transfer(Transfer::Pull {
                    wire: connection,
                    slot,
                    bytes,
                    from,
                });
            }
            target::Output::Disconnect { connection, .. } => {
                self.hang_up(connection, TARGET);
                let event = Event::Closed(connection, TARGET);
                self.stage.engine.after(self.receiver, 0, event);
            }
            target::Output::Part {
                stream,
                slot,
                bytes,
                ..
            } => {
                let one_by_one = self.canary == Some(Canary::HeadOfLine);
                if one_by_one && !own.lent.is_empty() {
                    return own.held.push(output);
                }
                own.lent.entry(stream).or_default().push_back((slot, bytes));
                self.tell_target(output);
            }
            other => {
                if let target::Output::StreamOver { stream: over, .. } = &other {
                    let is_its = |one: &target::Output| matches!(one, target::Output::Part { stream, .. } if stream == over);
                    own.held.retain(|held| !is_its(held));
                }
                self.tell_target(other);
            }
        }
    }

    /// A driver that serves one reader after the other serves the next one.
    fn release_held(&mut self) {
        if let Some(own) = &mut self.managers.receiver
            && own.lent.is_empty()
            && !own.held.is_empty()
        {
            let next = own.held.remove(0);
            self.receiver_does(next);
        }
    }

    /// Something for the supervisors and readers of the target's node, from its buffer manager.
    fn tell_target(&mut self, output: target::Output) {
        let (from, to) = (self.receiver, self.target);
        let event = Event::ToldTarget(output);
        self.stage.engine.send(from, to, 5, event);
    }

    /// Bytes came for the receiver.
    pub fn receiver_heard(&mut self, connection: u64, bytes: &[u8]) {
        self.receiver_handles(match decode(bytes) {
            Ok(message) => target::Input::Message {
                connection,
                message,
            },
            Err(_) => target::Input::Garbled { connection },
        });
    }
}
