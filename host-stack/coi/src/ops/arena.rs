//! Memory that buffers are in: memory of the host that is a window of each process's connection, the
//! windows of the processes, and RMA between them, or between these and the caller's memory (paper
//! section 2). A large buffer has one to itself, small ones share one ([`super::slots`]).
//!
//! What must stay true: the host's windows and the cards' are those of the connections of now; a
//! transfer is inside the region [`Region::Rdma`] of its process for as long as it lasts.

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex, Weak},
};

use snaprig_offload_wire::coi::{Answer, Command};
use snaprig_scif::client::{Endpoint, ScifError, SharedMemory};

use super::{Foreign, addresses::Address, evict, ranges::Ranges};
use crate::{
    CoiError, Process, descriptors,
    gate::Gate,
    machine::Region,
    process::{Inner, lock, next_id},
};

const READ_WRITE: u8 = 3;

/// How memory is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Where the host puts it, there; here anywhere.
    Anywhere,
    /// The same, on whole huge pages.
    Huge,
    /// At one address there and here.
    AlsoHere,
}

/// What becomes of a card that has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It is an error.
    Find,
    /// Other processes may leave it ([`crate::gate`]).
    Ask,
    /// What is idle is moved to the host, if that is enough ([`evict`]); else the same.
    Make,
}

pub(super) const HUGE_PAGE: u64 = 2 << 20;
const PAGE: u64 = 4096;

impl Kind {
    /// What the addresses of its buffers are multiples of.
    pub fn align(self) -> u64 {
        match self {
            Self::Huge => HUGE_PAGE,
            Self::Anywhere | Self::AlsoHere => PAGE,
        }
    }
}

/// Memory of buffers, on the host and on cards.
pub(crate) struct Arena {
    pub id: u64,
    bytes: u64,
    place: Where,
    memory: SharedMemory,
    homes: Vec<Home>,
}

/// Where it is in processes.
enum Where {
    /// Where the host has put it: in all at the same place.
    Ours(Address),
    /// In memory of the process's own.
    Theirs(u64),
}

/// A process that it is in.
struct Home {
    id: u64,
    process: Weak<Inner>,
    windows: Mutex<Windows>,
    written: Mutex<Ranges>,
}

/// Offsets of its windows. They change on restore (section 4.3).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Windows {
    /// The host's.
    pub own: i64,
    /// The card's.
    pub card: i64,
}

impl Arena {
    /// Makes memory in all of these processes, zero at first.
    pub fn create(
        processes: &[Process],
        bytes: u64,
        kind: Kind,
        room: Room,
    ) -> Result<Arc<Self>, CoiError> {
        let address = Address::take(bytes, kind.align()).ok_or(CoiError::NoMemory("a buffer"))?;
        let fixed = (kind == Kind::AlsoHere).then(|| address.get() as usize);
        Self::make(processes, bytes, Where::Ours(address), fixed, room)
    }

    /// Takes memory of a process's own.
    pub fn adopt(process: &Process, bytes: u64, address: u64) -> Result<Arc<Self>, CoiError> {
        let processes = std::slice::from_ref(process);
        Self::make(processes, bytes, Where::Theirs(address), None, Room::Find)
    }

    fn make(
        processes: &[Process],
        bytes: u64,
        place: Where,
        fixed: Option<usize>,
        room: Room,
    ) -> Result<Arc<Self>, CoiError> {
        let out_of_memory = || CoiError::NoMemory("a buffer");
        let len = usize::try_from(bytes).map_err(|_| out_of_memory())?;
        let memory =
            descriptors::with_room(|| SharedMemory::placed(len, fixed), io::Error::raw_os_error);
        let home = |process: &Process| Home {
            id: process.id(),
            process: Arc::downgrade(&process.0),
            windows: Mutex::default(),
            written: Mutex::default(),
        };
        let arena = Arc::new(Self {
            id: next_id(),
            bytes,
            place,
            memory: memory.map_err(|_| out_of_memory())?,
            homes: processes.iter().map(home).collect(),
        });
        for process in processes {
            if let Err(error) = arena.enter(&process.0, room) {
                arena.leave();
                return Err(error);
            }
        }
        Ok(arena)
    }

    /// How large it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A page that is a process's in name.
    #[cfg(test)]
    pub fn without_card(process: &Process) -> Arc<Self> {
        Arc::new(Self {
            id: next_id(),
            bytes: PAGE,
            place: Where::Theirs(0),
            memory: SharedMemory::placed(PAGE as usize, None).expect("a page"),
            homes: vec![Home {
                id: process.id(),
                process: Arc::downgrade(&process.0),
                windows: Mutex::default(),
                written: Mutex::default(),
            }],
        })
    }

    /// A process gets memory for it, zero at first. If it has too little, what is idle there may have to
    /// make room, and then other processes.
    pub fn enter(self: &Arc<Self>, process: &Arc<Inner>, room: Room) -> Result<(), CoiError> {
        let make_room = || room == Room::Make && evict::make_room(process, self.bytes);
        let mut gate = Gate::new(Some(process.id), self.bytes);
        loop {
            // Whoever waited here may have moved meanwhile.
            let engine = &process.place().engine;
            // What is idle here leaves before others do.
            if gate.is_closed(engine) && make_room() {
                continue;
            }
            if room != Room::Find {
                gate.open(engine, "a buffer")?;
            }
            match self.move_in(process) {
                Err(error) if error.is_out_of_memory() && (make_room() || gate.is_open()) => {}
                entered => return entered,
            }
        }
    }

    fn move_in(self: &Arc<Self>, process: &Arc<Inner>) -> Result<(), CoiError> {
        let home = self.home(process.id)?;
        let _pass = process.enter(Region::Lifecycle)?;
        let id = self.id;
        let (command, len) = match &self.place {
            Where::Ours(address) => {
                let (len, address) = (self.memory.len() as u64, Some(address.get()));
                (Command::CreateMemory { id, len, address }, len)
            }
            Where::Theirs(address) => {
                let (len, address) = (self.bytes, *address);
                (Command::AdoptMemory { id, address, len }, len)
            }
        };
        let card = match process.command(command)? {
            Answer::Window(window) if window.id == id && window.len == len => window.offset,
            _ => return Err(process.protocol("create memory")),
        };
        // From here on a restore finds it; it cannot come before the pass is given back.
        lock(&process.arenas).insert(id, self.clone());
        let own = self.register(&process.dma())?;
        *lock(&home.windows) = Windows { own, card };
        Ok(())
    }

    /// Takes it away wherever it is: nobody uses it any more.
    pub fn leave(&self) {
        self.processes().for_each(|process| self.move_out(&process));
    }

    /// Takes it away from a process.
    pub fn move_out(&self, process: &Arc<Inner>) {
        let (Ok(home), Ok(_pass)) = (self.home(process.id), process.enter(Region::Lifecycle))
        else {
            return;
        };
        if lock(&process.arenas).remove(&self.id).is_none() {
            return;
        }
        // A process or card that is gone has it no more.
        let _ = process.command(Command::DestroyMemory { id: self.id });
        let own = lock(&home.windows).own;
        let _ = process.dma().unregister(own, self.memory.len() as u64);
    }

    fn home(&self, process: u64) -> Result<&Home, CoiError> {
        let home = self.homes.iter().find(|home| home.id == process);
        home.ok_or_else(|| CoiError::Missing("the buffer is not there".into()))
    }

    /// A process that it is in, if that is still there.
    pub fn process(&self, process: u64) -> Result<Arc<Inner>, CoiError> {
        let gone = || CoiError::InvalidHandle("the process was destroyed".into());
        self.home(process)?.process.upgrade().ok_or_else(gone)
    }

    /// Registers the host's memory on a new connection.
    pub fn register(&self, dma: &Endpoint) -> Result<i64, ScifError> {
        dma.register(&self.memory, 0, self.memory.len(), None, READ_WRITE)
    }

    /// New windows in a process; what they were before.
    pub fn replace_windows(&self, process: u64, windows: Windows) -> Option<Windows> {
        let home = self.homes.iter().find(|home| home.id == process)?;
        Some(std::mem::replace(&mut *lock(&home.windows), windows))
    }

    /// Where it begins in processes.
    pub fn address(&self) -> u64 {
        match &self.place {
            Where::Ours(address) => address.get(),
            Where::Theirs(address) => *address,
        }
    }

    /// Whether the host has made it, and may take it away and make it again.
    pub fn is_ours(&self) -> bool {
        matches!(self.place, Where::Ours(_))
    }

    /// The host's part of it.
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    pub fn is_in(&self, process: u64) -> bool {
        self.homes.iter().any(|home| home.id == process)
    }

    /// The processes that it is in, as long as they are there.
    pub fn processes(&self) -> impl Iterator<Item = Arc<Inner>> {
        self.homes.iter().filter_map(|home| home.process.upgrade())
    }

    pub fn first_process(&self) -> Option<u64> {
        self.homes.first().map(|home| home.id)
    }

    /// RMA of a range, to a process or from it.
    pub fn transfer(&self, process: u64, range: &Range<u64>, write: bool) -> Result<(), CoiError> {
        let home = self.home(process)?;
        let process = self.process(process)?;
        // Case 2: a snapshot waits for a transfer, a transfer waits for a snapshot.
        let _pass = process.enter(Region::Rdma)?;
        let Windows { own, card } = *lock(&home.windows);
        let (own, card) = (own + range.start as i64, card + range.start as i64);
        let len = range.end - range.start;
        let dma = process.dma();
        let done = match write {
            true => dma.writeto(own, len, card),
            false => dma.readfrom(own, len, card),
        };
        if write {
            home.wrote(range);
        }
        done.map_err(|error| match error.errno {
            libc::ECONNRESET | libc::ENODEV | libc::EIO => process.broken(),
            _ => error.into(),
        })
    }

    /// The same between the caller's memory and a process. False: it has to be a transfer, which also says what is wrong.
    pub fn copy(
        &self,
        process: u64,
        range: &Range<u64>,
        memory: Foreign,
        write: bool,
    ) -> Result<bool, CoiError> {
        let home = self.home(process)?;
        let process = self.process(process)?;
        // As for a transfer.
        let _pass = process.enter(Region::Rdma)?;
        let card = lock(&home.windows).card + range.start as i64;
        let len = memory.len().min(range.end - range.start);
        // SAFETY: whoever made `memory` has promised that so many bytes may be used until the operation is complete.
        let copied = unsafe { process.dma().copy(memory.pointer(), len, card, write) };
        if write {
            home.wrote(range);
        }
        Ok(copied)
    }

    /// What was written to it in a process since somebody asked last, as far as that was within the memory.
    pub fn written(&self, process: u64) -> Vec<Range<u64>> {
        let home = self.homes.iter().find(|home| home.id == process);
        let written = home.map(|home| std::mem::take(&mut *lock(&home.written)));
        written.map_or_else(Vec::new, Ranges::into_all)
    }
}

impl Home {
    /// A range has been written to: told when that is over, because who asks before it is may look before it is, too. It
    /// counts from the beginning: memory may be made, and written to, while the first image is.
    fn wrote(&self, range: &Range<u64>) {
        lock(&self.written).add(range.clone());
    }
}
