//! What a buffer is made of: a place in memory of the host's and of processes ([`super::arena`]), and
//! memory of the caller's that may be the host's copy of it.

use std::{ops::Range, sync::Arc};

use super::{
    BufferOptions, Foreign,
    arena::{Arena, HUGE_PAGE, Kind},
    forget,
    slots::{self, Slot},
};
use crate::{
    CoiError, Process,
    process::{lock, next_id},
};

/// Memory of a buffer, on the host and on cards.
pub(crate) struct Body {
    pub id: u64,
    bytes: u64,
    /// The host's copy is there; or, if that is the caller's memory, what bytes pass through.
    slot: Slot,
    /// Memory of the caller's that is the host's copy (COIBufferCreateFromMemory).
    user: Option<Foreign>,
}

impl Drop for Body {
    fn drop(&mut self) {
        forget(self.id);
        // Of its process nobody is left, or it was never made.
        self.slot.give_back();
    }
}

impl Body {
    /// Makes a buffer in all of these processes.
    pub fn create(processes: &[Process], options: &BufferOptions) -> Result<Arc<Self>, CoiError> {
        let bytes = options.bytes;
        let slot = match options.sink_memory {
            Some(address) => {
                let arena = Arena::adopt(&processes[0], bytes, address)?;
                Slot::whole(arena, bytes)
            }
            None => {
                let kind = match (options.same_address_as_source, options.huge) {
                    (true, _) => Kind::AlsoHere,
                    // Less is not worth one.
                    (_, true) if bytes >= HUGE_PAGE => Kind::Huge,
                    _ => Kind::Anywhere,
                };
                let slot = Slot::take(processes, bytes, kind);
                match slot {
                    Err(error) if error.is_out_of_memory() && slots::give_up_spares(processes) => {
                        Slot::take(processes, bytes, kind)?
                    }
                    slot => slot?,
                }
            }
        };
        let body = Arc::new(Self {
            id: next_id(),
            bytes,
            slot,
            user: options.memory,
        });
        if !body.slot.fresh {
            body.clear();
        }
        // It is there until it is destroyed, even if nobody has a handle of it.
        for process in body.slot.arena.processes() {
            lock(&process.buffers).insert(body.id, body.clone());
        }
        Ok(body)
    }

    /// All of this memory.
    #[cfg(test)]
    pub fn in_arena(arena: Arc<Arena>) -> Arc<Self> {
        let bytes = arena.memory().len() as u64;
        Arc::new(Self {
            id: next_id(),
            bytes,
            slot: Slot::whole(arena, bytes),
            user: None,
        })
    }

    /// Takes it away wherever it is: nobody uses it any more.
    pub fn leave(&self) {
        for process in self.slot.arena.processes() {
            lock(&process.buffers).remove(&self.id);
        }
        self.slot.give_back();
    }

    /// Whether it is zero wherever it is.
    pub fn is_fresh(&self) -> bool {
        self.slot.fresh
    }

    /// Its memory in a process, if that could be taken away for a time.
    pub fn evictable(&self) -> Option<&Arc<Arena>> {
        self.slot.is_whole().then_some(&self.slot.arena)
    }

    /// Where it is in processes.
    pub fn sink_address(&self) -> u64 {
        self.slot.arena.address() + self.slot.at
    }

    /// Bytes of it.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    pub fn is_in(&self, process: u64) -> bool {
        self.slot.arena.is_in(process)
    }

    pub fn first_process(&self) -> Option<u64> {
        self.slot.arena.first_process()
    }

    /// Its memory, and which part of that a range is.
    pub fn place(&self, range: &Range<u64>) -> (&Arc<Arena>, Range<u64>) {
        let at = self.slot.at;
        (&self.slot.arena, at + range.start..at + range.end)
    }

    /// Which part of its memory is its alone.
    pub fn pages(&self) -> Range<u64> {
        self.slot.pages()
    }

    fn clear(&self) {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        for at in (0..self.bytes).step_by(ZEROS.len()) {
            let bytes = (self.bytes - at).min(ZEROS.len() as u64);
            self.write_own(at, &ZEROS[..bytes as usize]);
        }
    }

    fn own_memory(&self, at: u64) -> *mut u8 {
        let memory = self.slot.arena.memory();
        memory.as_ptr().wrapping_add((self.slot.at + at) as usize)
    }

    fn write_own(&self, at: u64, bytes: &[u8]) {
        let memory = self.slot.arena.memory();
        memory.write((self.slot.at + at) as usize, bytes);
    }

    fn read_own(&self, at: u64, bytes: &mut [u8]) {
        let memory = self.slot.arena.memory();
        memory.read((self.slot.at + at) as usize, bytes);
    }

    /// Where the host sees a byte of it.
    pub fn pointer(&self, at: u64) -> *mut u8 {
        match self.user {
            // Its bytes beyond the end of the caller's memory are nobody's.
            Some(user) => user.pointer().wrapping_add(at as usize),
            None => self.own_memory(at),
        }
    }

    /// The caller's memory to the host's copy, or (`staged`) to what bytes pass through.
    pub fn put(&self, at: u64, from: Foreign, staged: bool) {
        match self.user.filter(|_| !staged) {
            Some(user) => from.copy_to(user.part(at, from.len())),
            None => from.read(|bytes| self.write_own(at, bytes)),
        }
    }

    /// The way back.
    pub fn take(&self, at: u64, to: Foreign, staged: bool) {
        match self.user.filter(|_| !staged) {
            Some(user) => user.part(at, to.len()).copy_to(to),
            None => to.write(|bytes| self.read_own(at, bytes)),
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
                    self.own_memory(range.start),
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

    /// Before RMA of a range from the host: the caller's memory to what bytes pass through.
    pub fn load(&self, range: &Range<u64>, staged: bool) {
        if let Some(user) = self.user.filter(|_| !staged) {
            let from = user.part(range.start, range.end - range.start);
            from.read(|bytes| self.write_own(range.start, bytes));
        }
    }

    /// The way back, after RMA.
    pub fn unload(&self, range: &Range<u64>, staged: bool) {
        if let Some(user) = self.user.filter(|_| !staged) {
            let to = user.part(range.start, range.end - range.start);
            to.write(|bytes| self.read_own(range.start, bytes));
        }
    }

    /// Memory of the caller's to a process, or the way back, past the host's copy. False: that cannot be, for now.
    pub fn copy_directly(
        &self,
        process: u64,
        at: u64,
        memory: Foreign,
        write: bool,
    ) -> Result<bool, CoiError> {
        let (arena, place) = self.place(&(at..at + memory.len()));
        arena.copy(process, &place, memory, write)
    }

    /// RMA of a range from the host to a process.
    pub fn send(&self, process: u64, range: &Range<u64>, staged: bool) -> Result<(), CoiError> {
        self.load(range, staged);
        let (arena, range) = self.place(range);
        arena.transfer(process, &range, true)
    }

    /// RMA of a range from a process to the host.
    pub fn fetch(&self, process: u64, range: &Range<u64>, staged: bool) -> Result<(), CoiError> {
        let (arena, place) = self.place(range);
        arena.transfer(process, &place, false)?;
        self.unload(range, staged);
        Ok(())
    }
}
