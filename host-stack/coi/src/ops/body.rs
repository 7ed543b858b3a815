//! What a buffer is made of: memory of the host that is a window of each process's connection, the
//! windows of the processes, and RMA between them (paper section 2).
//!
//! What must stay true: the host's windows and the cards' are those of the connections of now; a
//! transfer is inside the region [`Region::Rdma`] of its process for as long as it lasts.

use std::{
    ops::Range,
    sync::{Arc, Mutex, Weak},
};

use snaprig_scif::client::{Endpoint, ScifError, SharedMemory};
use snaprig_wire::coi::{Answer, Command};

use super::{Foreign, addresses::Address, forget};
use crate::{
    CoiError, Process,
    machine::Region,
    process::{Inner, lock, next_id},
};

const READ_WRITE: u8 = 3;

/// Memory of a buffer, on the host and on cards.
pub(crate) struct Body {
    pub id: u64,
    bytes: u64,
    place: Where,
    /// The host's copy; or, if that is the caller's memory, what bytes pass through.
    memory: SharedMemory,
    /// Memory of the caller's that is the host's copy (COIBufferCreateFromMemory).
    user: Option<Foreign>,
    homes: Vec<Home>,
}

/// Where it is in processes.
enum Where {
    /// Where the host has put it: in all at the same place.
    Ours(Address),
    /// In memory of the process's own.
    Theirs(u64),
}

/// A process that the buffer is in.
struct Home {
    id: u64,
    process: Weak<Inner>,
    windows: Mutex<Windows>,
}

/// Offsets of a buffer's windows. They change on restore (section 4.3).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Windows {
    /// The host's.
    pub own: i64,
    /// The card's.
    pub card: i64,
}

impl Drop for Body {
    fn drop(&mut self) {
        forget(self.id);
    }
}

impl Body {
    /// Makes a buffer in all of these processes.
    pub fn create(
        processes: &[Process],
        bytes: u64,
        at_its_address: bool,
        user: Option<Foreign>,
        sink_memory: Option<u64>,
    ) -> Result<Arc<Self>, CoiError> {
        let out_of_memory = || CoiError::NoMemory("a buffer");
        let len = usize::try_from(bytes).map_err(|_| out_of_memory())?;
        let place = match sink_memory {
            Some(address) => Where::Theirs(address),
            None => Where::Ours(Address::take(bytes).ok_or_else(out_of_memory)?),
        };
        let fixed = match &place {
            Where::Ours(address) if at_its_address => Some(address.get() as usize),
            _ => None,
        };
        let memory = SharedMemory::placed(len, fixed).map_err(|_| out_of_memory())?;
        let home = |process: &Process| Home {
            id: process.id(),
            process: Arc::downgrade(&process.0),
            windows: Mutex::default(),
        };
        let body = Arc::new(Self {
            id: next_id(),
            bytes,
            place,
            memory,
            user,
            homes: processes.iter().map(home).collect(),
        });
        for (index, process) in processes.iter().enumerate() {
            if let Err(error) = body.move_in(process, &body.homes[index]) {
                body.leave();
                return Err(error);
            }
        }
        Ok(body)
    }

    fn move_in(self: &Arc<Self>, process: &Process, home: &Home) -> Result<(), CoiError> {
        let _pass = process.0.enter(Region::Lifecycle)?;
        let id = self.id;
        let (command, len) = match &self.place {
            Where::Ours(address) => {
                let (len, address) = (self.memory.len() as u64, Some(address.get()));
                (Command::CreateBuffer { id, len, address }, len)
            }
            Where::Theirs(address) => {
                let (len, address) = (self.bytes, *address);
                (Command::AdoptBuffer { id, address, len }, len)
            }
        };
        let card = match process.0.command(command)? {
            Answer::Window(window) if window.id == id && window.len == len => window.offset,
            _ => return Err(process.0.protocol("create buffer")),
        };
        // From here on a restore finds it; it cannot come before the pass is given back.
        lock(&process.0.buffers).insert(id, self.clone());
        let own = self.register(&process.0.dma())?;
        *lock(&home.windows) = Windows { own, card };
        Ok(())
    }

    /// Takes it away wherever it is: nobody uses it any more.
    pub fn leave(&self) {
        for home in &self.homes {
            let Some(process) = home.process.upgrade() else {
                continue;
            };
            let Ok(_pass) = process.enter(Region::Lifecycle) else {
                continue;
            };
            if lock(&process.buffers).remove(&self.id).is_none() {
                continue;
            }
            // A process or card that is gone has it no more.
            let _ = process.command(Command::DestroyBuffer { id: self.id });
            let own = lock(&home.windows).own;
            let _ = process.dma().unregister(own, self.memory.len() as u64);
        }
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

    pub fn sink_address(&self) -> u64 {
        match &self.place {
            Where::Ours(address) => address.get(),
            Where::Theirs(address) => *address,
        }
    }

    pub fn is_in(&self, process: u64) -> bool {
        self.homes.iter().any(|home| home.id == process)
    }

    pub fn first_process(&self) -> Option<u64> {
        self.homes.first().map(|home| home.id)
    }

    /// Where the host sees a byte of it.
    pub fn pointer(&self, at: u64) -> *mut u8 {
        match self.user {
            // Its bytes beyond the end of the caller's memory are nobody's.
            Some(user) => user.pointer().wrapping_add(at as usize),
            None => self.memory.as_ptr().wrapping_add(at as usize),
        }
    }

    /// The caller's memory to the host's copy, or (`staged`) to what bytes pass through.
    pub fn put(&self, at: u64, from: Foreign, staged: bool) {
        match self.user.filter(|_| !staged) {
            Some(user) => from.copy_to(user.part(at, from.len())),
            None => from.read(|bytes| self.memory.write(at as usize, bytes)),
        }
    }

    /// The way back.
    pub fn take(&self, at: u64, to: Foreign, staged: bool) {
        match self.user.filter(|_| !staged) {
            Some(user) => user.part(at, to.len()).copy_to(to),
            None => to.write(|bytes| self.memory.read(at as usize, bytes)),
        }
    }

    /// The host's copy of it, or what passes through, as memory.
    fn seen(&self, range: &Range<u64>, staged: bool) -> Foreign {
        match self.user.filter(|_| !staged) {
            Some(user) => user.part(range.start, range.end - range.start),
            // SAFETY: the range is inside the buffer, and the mapping lives as long as `self`, which
            // outlives the copy that this is for.
            None => unsafe {
                Foreign::new(
                    self.memory.as_ptr().wrapping_add(range.start as usize),
                    (range.end - range.start) as usize,
                )
            },
        }
    }

    /// The host's copy of a range to that of another buffer.
    pub fn copy(
        &self,
        range: &Range<u64>,
        staged: bool,
        into: &Self,
        into_at: u64,
        into_staged: bool,
    ) {
        let to = into_at..into_at + (range.end - range.start);
        self.seen(range, staged)
            .copy_to(into.seen(&to, into_staged));
    }

    /// RMA of a range from the host to a process.
    pub fn send(&self, process: u64, range: &Range<u64>, staged: bool) -> Result<(), CoiError> {
        if let Some(user) = self.user.filter(|_| !staged) {
            let from = user.part(range.start, range.end - range.start);
            from.read(|bytes| self.memory.write(range.start as usize, bytes));
        }
        self.transfer(process, range, true)
    }

    /// RMA of a range from a process to the host.
    pub fn fetch(&self, process: u64, range: &Range<u64>, staged: bool) -> Result<(), CoiError> {
        self.transfer(process, range, false)?;
        if let Some(user) = self.user.filter(|_| !staged) {
            let to = user.part(range.start, range.end - range.start);
            to.write(|bytes| self.memory.read(range.start as usize, bytes));
        }
        Ok(())
    }

    fn transfer(&self, process: u64, range: &Range<u64>, write: bool) -> Result<(), CoiError> {
        let home = self.homes.iter().find(|home| home.id == process);
        let home = home.ok_or_else(|| CoiError::Missing("the buffer is not there".into()))?;
        let gone = || CoiError::InvalidHandle("the process was destroyed".into());
        let process = home.process.upgrade().ok_or_else(gone)?;
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
        done.map_err(|error| match error.errno {
            libc::ECONNRESET | libc::ENODEV | libc::EIO => process.broken(),
            _ => error.into(),
        })
    }
}
