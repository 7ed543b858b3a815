//! What a program has posted and seen, and where its data is. All of it is in its process, so a checkpoint has it.

use snaprig_ckpt_ib::{
    Completion, Name,
    completions::SUCCESS,
    sends::{Kind, Posted},
};
use snaprig_hca::{Opcode, Transport, types::completed};
use snaprig_sim::Random;

use super::super::verbs::{
    GRH_BYTES,
    work::{Connection, LONGEST, Message, Work},
};

/// A wr_id with this bit is a receive's.
pub const RECEIVE: u64 = 1 << 32;
/// Of messages whose data a receive has, their number is in the immediate data, too.
const NUMBERED: u32 = 0xab00_0000;
/// Where what is lent begins: behind all that programs use.
pub const LENT_AT: u64 = 4 << 20;

/// One end of a connection, as everybody knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Which {
    pub connection: usize,
    pub side: usize,
}

impl Which {
    pub fn peer(self) -> Self {
        Self {
            side: 1 - self.side,
            ..self
        }
    }
}

/// Where a message's data is at its sender, and where it goes to.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub local: u64,
    pub remote: u64,
}

/// Where everything is, drawn before the run.
#[derive(Debug)]
pub struct Layout {
    pub work: Work,
    /// By connection, side and message.
    places: Vec<[Vec<Place>; 2]>,
    /// Counters of atomics, by connection: each is its side's, and the peer adds to it.
    counters: Vec<[u64; 2]>,
    /// Receives, by connection and side.
    receives: Vec<[Vec<u64>; 2]>,
    /// How much of each process's memory is used.
    pub used: Vec<u64>,
    /// Connections that are made when they are first needed, and not when all begin.
    pub is_late: Vec<bool>,
    /// Connections of XRC: each side has a queue pair that sends, and one by which messages come to the process's shared queue.
    pub is_xrc: Vec<bool>,
}

impl Layout {
    pub fn new(mut work: Work, processes: usize, random: &mut Random, xrc: &mut Random) -> Self {
        // A receive that is posted late is no error here.
        for connection in &mut work.connections {
            connection.link.rnr_retry = 7;
        }
        let mut used = vec![0; processes];
        let mut take = |process: u32, bytes: u32| {
            let used: &mut u64 = &mut used[process as usize];
            let at = *used;
            *used += u64::from(bytes).next_multiple_of(8).max(8);
            at
        };
        let mut places = Vec::new();
        let mut counters = Vec::new();
        let mut receives = Vec::new();
        for connection in &work.connections {
            let counter = connection.processes.map(|process| take(process, 8));
            counters.push(counter);
            places.push([0, 1].map(|side| {
                let (me, peer) = (connection.processes[side], connection.processes[1 - side]);
                let messages = connection.messages[side].iter();
                let place = |message: &Message| Place {
                    local: take(me, message.length),
                    remote: match message.opcode {
                        Opcode::FetchAdd => counter[1 - side],
                        _ => take(peer, message.length),
                    },
                };
                messages.map(place).collect()
            }));
            receives.push([0, 1].map(|side| {
                let sent = connection.messages[1 - side].iter();
                let taking = sent.filter(|message| message.takes_receive());
                let me = connection.processes[side];
                taking.map(|_| take(me, LONGEST + GRH_BYTES)).collect()
            }));
        }
        let is_late = work.connections.iter().map(|_| random.one_in(4)).collect();
        let connections = work.connections.iter();
        let is_xrc = connections
            .map(|one| xrc.one_in(3) && one.transport == Transport::Rc && !one.shared)
            .collect();
        Self {
            is_late,
            is_xrc,
            work,
            places,
            counters,
            receives,
            used,
        }
    }

    pub fn connection(&self, which: Which) -> &Connection {
        &self.work.connections[which.connection]
    }

    pub fn transport(&self, which: Which) -> Transport {
        self.connection(which).transport
    }

    pub fn is_xrc(&self, which: Which) -> bool {
        self.is_xrc[which.connection]
    }

    /// What its queue pair is that sends, and the one that receives, if that is another one.
    pub fn transports(&self, which: Which) -> (Transport, Option<Transport>) {
        match self.is_xrc(which) {
            true => (Transport::XrcSend, Some(Transport::XrcReceive)),
            false => (self.transport(which), None),
        }
    }

    pub fn process(&self, which: Which) -> usize {
        self.connection(which).processes[which.side] as usize
    }

    pub fn messages(&self, which: Which) -> &[Message] {
        &self.connection(which).messages[which.side]
    }

    pub fn place(&self, which: Which, message: usize) -> Place {
        self.places[which.connection][which.side][message]
    }

    pub fn counter(&self, which: Which) -> u64 {
        self.counters[which.connection][which.side]
    }

    pub fn receives(&self, which: Which) -> &[u64] {
        &self.receives[which.connection][which.side]
    }

    /// The ends that a process has.
    pub fn ends_of(&self, process: usize) -> Vec<Which> {
        let connections = 0..self.work.connections.len();
        let all = connections.flat_map(|connection| [0, 1].map(|side| Which { connection, side }));
        all.filter(|which| self.process(*which) == process)
            .collect()
    }

    /// The data of a message.
    pub fn data(&self, which: Which, message: usize) -> Vec<u8> {
        let pattern = which.connection * 97 + which.side * 31 + message * 7;
        let length = self.messages(which)[message].length as usize;
        super::super::verbs::data_of(pattern as u8, length)
    }

    /// The messages that take receives, in order.
    pub fn taking(&self, which: Which) -> Vec<usize> {
        let numbered = self.messages(which).iter().enumerate();
        let taking = numbered.filter(|(_, message)| message.takes_receive());
        taking.map(|(number, _)| number).collect()
    }
}

/// Immediate data of a message.
pub fn immediate(message: usize) -> u32 {
    NUMBERED | message as u32
}

/// A message that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Had {
    pub wr_id: u64,
    pub opcode: u32,
    pub length: u32,
    pub immediate: u32,
    /// What was in its receive when its completion came.
    pub data: Vec<u8>,
}

/// One end of a connection, as its program has it.
#[derive(Clone, Debug)]
pub struct End {
    pub which: Which,
    /// The place of its queue pair.
    pub qp: u32,
    pub name: Name,
    /// The same of the queue pair that receives, which is another one for XRC.
    pub by: u32,
    pub by_name: Name,
    /// Messages posted.
    pub sent: usize,
    /// Receives posted.
    pub posted: usize,
    /// Completions of its requests: message, and status.
    pub done: Vec<(u64, u32)>,
    pub had: Vec<Had>,
    /// Receives that were flushed.
    pub flushed: Vec<u64>,
    /// How often each of the peer's writes was found in memory.
    pub found: Vec<u8>,
    /// What atomics and reads brought.
    pub brought: Vec<(usize, Vec<u8>)>,
}

/// A program.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub ends: Vec<End>,
    /// Receives posted to its shared queue: whose they were thought for, and which of those.
    pub shared: Vec<(Which, usize)>,
    /// What it has done of the plan's tasks.
    pub done: Vec<bool>,
    /// Regions that it has registered: their keys.
    pub keys: Vec<u32>,
    /// The port that it believes it is at.
    pub port: u64,
}

impl Program {
    pub fn end(&mut self, which: Which) -> &mut End {
        let mut ends = self.ends.iter_mut();
        ends.find(|end| end.which == which).expect("it is made")
    }

    /// The end whose queue pair has this number.
    pub fn end_of(&mut self, number: u32) -> Option<&mut End> {
        let mut ends = self.ends.iter_mut();
        ends.find(|end| end.name.number == number || end.by_name.number == number)
    }
}

/// What it takes to post a message again, with virtual names.
#[derive(Clone, Debug)]
pub struct Request {
    pub which: Which,
    pub message: usize,
    pub opcode: Opcode,
    pub length: u32,
    /// Address at the peer, as its region has it.
    pub remote: u64,
    pub remote_key: u32,
    pub to: Name,
    /// The number of the shared receive queue of XRC that it goes to.
    pub shared: Option<u32>,
    /// Inline data: the program may change its buffer at once.
    pub inline: Option<Vec<u8>>,
    pub fenced: bool,
    pub local: u64,
}

/// What is logged of a message.
pub fn posted(message: &Message, request: Request) -> Posted<Request> {
    Posted {
        wr_id: Some(request.message as u64),
        kind: match message.takes_receive() {
            true => request.shared.map_or(Kind::Message, Kind::Behind),
            false => Kind::Silent,
        },
        signaled: message.signaled,
        length: message.length.into(),
        request,
    }
}

/// Whether a completion is of a receive.
pub fn is_receive(completion: &Completion) -> bool {
    match completion.status {
        SUCCESS => completion.opcode >= completed::RECEIVE,
        _ => completion.wr_id & RECEIVE != 0,
    }
}
