//! What moves: a tree of processes, with a program that counts, an image of each process, whoever writes it and reads it.

use std::collections::{BTreeMap, VecDeque};

use snaprig_coord::migration::{Id, Record, Source, Target};
use snaprig_ppmr::{Digest, Failure, message::Remote};
use snaprig_sim::{ProcessId, Random};

use super::{Parameters, managers::Sender};
pub use crate::scenarios::migration::program::{Program, Tree as Running};

/// The bytes of a program in the image of its tree's first process.
const PROGRAM_BYTES: usize = 16;

/// A tree, at both of its sides.
pub struct Tree {
    /// Its node, and the buffer manager there.
    pub source: ProcessId,
    pub sender: ProcessId,
    /// Where it is: at the source, at the target.
    pub at: [Option<Running>; 2],
    /// How often it was started, in whatever place.
    pub lives: u64,
    pub results: Vec<u64>,
    pub orders: u16,
    /// The source's supervisor: the migration that is under way, which one that is, its connection, and the record on the disk.
    pub leaving: Option<Source>,
    pub id: Id,
    pub wire: Option<u64>,
    pub record: Option<Record>,
    pub writing: Option<Writing>,
    /// The source's buffer manager, while it lives.
    pub manager: Option<Sender>,
    /// The target's supervisor, and what it has on its disk.
    pub coming: Option<Target>,
    pub decided: Option<(Id, Program)>,
    /// The migration whose image the supervisor waits for, and the one whose streams come.
    pub expected: Option<Id>,
    pub arrival: Option<Arrival>,
    /// What was written in each migration.
    pub written: BTreeMap<Id, Vec<Vec<u8>>>,
}

/// Images that are being written.
pub struct Writing {
    /// Which one, of all that there ever were of this tree.
    pub attempt: u64,
    pub id: Id,
    pub writers: Vec<Writer>,
}

/// Who writes the image of a process.
#[derive(Debug, Default)]
pub struct Writer {
    pub image: Vec<u8>,
    pub written: usize,
    /// It gives its own memory, instead of copying from there.
    pub lends: bool,
    /// Chunk, place and length of its room.
    pub room: Option<(u32, u32, u32)>,
    /// Memory that is lent, by the numbers of the rooms that were left empty for it.
    pub lent: BTreeMap<u32, Remote>,
    pub has_ended: bool,
    pub over: Option<Result<(), Failure>>,
}

/// Streams that come to the target.
pub struct Arrival {
    pub id: Id,
    pub wire: u64,
    pub readers: BTreeMap<u32, Reader>,
}

/// Who reads the image of a process.
#[derive(Debug, Default)]
pub struct Reader {
    pub read: Vec<u8>,
    pub digest: Digest,
    /// Chunks, places and lengths of what it has, in order.
    pub parts: VecDeque<(u32, u32, u32)>,
    pub waits: bool,
    /// It is slow, and others are under way.
    pub is_held: bool,
    pub over: Option<Result<(), Failure>>,
}

impl Arrival {
    /// Why it will never be whole, if that is so.
    pub fn failure(&self) -> Option<Failure> {
        let mut all = self.readers.values();
        all.find_map(|reader| reader.over.and_then(Result::err))
    }

    /// Whether so many processes have come.
    pub fn is_whole(&self, processes: u16) -> bool {
        let mut all = self.readers.values();
        self.readers.len() == usize::from(processes)
            && all.all(|reader| reader.over == Some(Ok(())))
    }

    /// The program of it.
    pub fn program(&self) -> Option<Program> {
        let bytes = &self.readers.get(&0)?.read;
        let (done, value) = bytes.get(..PROGRAM_BYTES)?.split_at(8);
        Some(Program {
            done: u64::from_le_bytes(done.try_into().ok()?),
            value: u64::from_le_bytes(value.try_into().ok()?),
        })
    }
}

/// How much is written or read at once where there is so much: mostly all of it.
pub fn mostly_all(of: u32, random: &mut Random) -> u32 {
    match random.one_in(4) {
        true => 1 + random.below(of.max(1).into()) as u32,
        false => of,
    }
}

/// The images of a tree's processes.
pub fn images(program: &Program, processes: u16, bytes: u16, random: &mut Random) -> Vec<Vec<u8>> {
    let image = |rank| {
        let mut image = Vec::new();
        if rank == 0 {
            image.extend_from_slice(&program.done.to_le_bytes());
            image.extend_from_slice(&program.value.to_le_bytes());
        }
        let more = random.below(u64::from(bytes) + 1);
        image.extend((0..more).map(|_| random.number() as u8));
        image
    };
    (0..processes).map(image).collect()
}

impl Tree {
    /// A tree that is nowhere yet.
    pub fn new(source: ProcessId, sender: ProcessId, parameters: &Parameters) -> Self {
        Self {
            source,
            sender,
            at: [None; 2],
            lives: 0,
            results: Vec::new(),
            orders: parameters.orders,
            leaving: None,
            id: Id([0; 16]),
            wire: None,
            record: None,
            writing: None,
            manager: None,
            coming: None,
            decided: None,
            expected: None,
            arrival: None,
            written: BTreeMap::new(),
        }
    }
}
