//! x86-64 page tables in card memory: the truth of what a process's addresses mean, walked by the
//! virtual CPUs of `kvm` and consulted by `ptrace`.
//!
//! What must stay true: the tables own the frames of the tables, never the frames they map. Taking
//! an entry away does not free its frame: the caller flushes first, then puts it back. Entries
//! above [`USER_END`] are the platform's and are left alone.

use std::sync::Arc;

use crate::{
    memory::{CardMemory, PAGE},
    platform::USER_END,
};

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
/// Set by the processor; preset, so that it need not be.
const ACCESSED_DIRTY: u64 = 1 << 5 | 1 << 6;
/// A bit that the processor ignores: the entry keeps a frame though it is not present (PROT_NONE).
const HELD: u64 = 1 << 9;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const ENTRIES: u64 = 512;

/// What a mapping allows. Reading is always allowed but for `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Writing.
    pub write: bool,
    /// Executing.
    pub execute: bool,
    /// Nothing at all (PROT_NONE): the entry keeps its frame and is not present.
    pub none: bool,
}

impl Access {
    /// Whether an access of this kind goes through.
    pub fn allows(self, write: bool, execute: bool) -> bool {
        !self.none && (!write || self.write) && (!execute || self.execute)
    }
}

/// The card has no frame left for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no card memory left for page tables")]
pub struct OutOfMemory;

/// The page tables of one address space.
pub struct PageTables {
    memory: Arc<CardMemory>,
    root: u64,
}

impl PageTables {
    /// Empty tables.
    pub fn new(memory: Arc<CardMemory>) -> Option<Self> {
        let root = memory.alloc()?;
        Some(Self { memory, root })
    }

    /// Card-physical address of the top table.
    pub fn root(&self) -> u64 {
        self.root
    }

    /// Maps the page at `va` to `frame`.
    pub fn map(&self, va: u64, frame: u64, access: Access) -> Result<(), OutOfMemory> {
        assert!(va < USER_END && va.is_multiple_of(PAGE) && frame.is_multiple_of(PAGE));
        let table = self.table(va)?;
        self.memory.store(slot(table, va, 0), frame | bits(access));
        Ok(())
    }

    /// The frame at `va` and what may be done with it.
    pub fn get(&self, va: u64) -> Option<(u64, Access)> {
        lookup(&self.memory, self.root, va)
    }

    /// Changes what is allowed at `va`; false if nothing is mapped there.
    pub fn protect(&self, va: u64, access: Access) -> bool {
        match (self.leaf(va), self.get(va)) {
            (Some(slot), Some((frame, _))) => {
                self.memory.store(slot, frame | bits(access));
                true
            }
            _ => false,
        }
    }

    /// Takes the page at `va` out and returns its frame.
    pub fn unmap(&self, va: u64) -> Option<u64> {
        let (frame, _) = self.get(va)?;
        self.memory.store(self.leaf(va)?, 0);
        Some(frame)
    }

    /// Every mapped page in `start..end`, in order: address, frame, access.
    pub fn mapped(&self, start: u64, end: u64) -> Vec<(u64, u64, Access)> {
        let (mut found, mut va) = (Vec::new(), start);
        while va < end {
            match self.last_table(va) {
                Some(table) => {
                    let stop = end.min((va | (PAGE * ENTRIES - 1)) + 1);
                    while va < stop {
                        let entry = self.memory.load(slot(table, va, 0));
                        if entry & (PRESENT | HELD) != 0 {
                            found.push((va, entry & ADDRESS, access(entry)));
                        }
                        va += PAGE;
                    }
                }
                None => va = (va | (PAGE * ENTRIES - 1)) + 1,
            }
        }
        found
    }

    fn leaf(&self, va: u64) -> Option<u64> {
        self.last_table(va).map(|table| slot(table, va, 0))
    }

    fn last_table(&self, va: u64) -> Option<u64> {
        last_table(&self.memory, self.root, va)
    }

    fn table(&self, va: u64) -> Result<u64, OutOfMemory> {
        let mut table = self.root;
        for level in (1..=3).rev() {
            let slot = slot(table, va, level);
            let mut entry = self.memory.load(slot);
            if entry & PRESENT == 0 {
                let next = self.memory.alloc().ok_or(OutOfMemory)?;
                entry = next | PRESENT | WRITE | USER | ACCESSED_DIRTY;
                self.memory.store(slot, entry);
            }
            table = entry & ADDRESS;
        }
        Ok(table)
    }

    fn free(&self, table: u64, level: u32, entries: u64) {
        if level > 0 {
            for index in 0..entries {
                let entry = self.memory.load(table + index * 8);
                if entry & PRESENT != 0 {
                    self.free(entry & ADDRESS, level - 1, ENTRIES);
                }
            }
        }
        self.memory.put(table);
    }
}

impl Drop for PageTables {
    fn drop(&mut self) {
        self.free(self.root, 3, USER_END >> 39);
    }
}

/// The frame at `va` in the tables at `root`, and what may be done with it.
pub fn lookup(memory: &CardMemory, root: u64, va: u64) -> Option<(u64, Access)> {
    let entry = memory.load(slot(last_table(memory, root, va)?, va, 0));
    (entry & (PRESENT | HELD) != 0).then(|| (entry & ADDRESS, access(entry)))
}

fn last_table(memory: &CardMemory, root: u64, va: u64) -> Option<u64> {
    if va >= USER_END {
        return None;
    }
    let mut table = root;
    for level in (1..=3).rev() {
        let entry = memory.load(slot(table, va, level));
        if entry & PRESENT == 0 {
            return None;
        }
        table = entry & ADDRESS;
    }
    Some(table)
}

/// Address of the entry for `va` in `table`, at `level` (0 is the last).
fn slot(table: u64, va: u64, level: u32) -> u64 {
    table + (va >> (12 + 9 * level) & (ENTRIES - 1)) * 8
}

fn bits(access: Access) -> u64 {
    if access.none {
        return HELD;
    }
    let write = if access.write { WRITE } else { 0 };
    let no_execute = if access.execute { 0 } else { NO_EXECUTE };
    PRESENT | USER | ACCESSED_DIRTY | write | no_execute
}

fn access(entry: u64) -> Access {
    let none = entry & PRESENT == 0;
    Access {
        write: !none && entry & WRITE != 0,
        execute: !none && entry & NO_EXECUTE == 0,
        none,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_map_protect_and_go_and_the_tables_are_given_back() {
        let memory = Arc::new(CardMemory::new(64 * PAGE).unwrap());
        let free = memory.free_bytes();
        let tables = PageTables::new(memory.clone()).unwrap();
        let write = Access {
            write: true,
            ..Access::default()
        };
        let none = Access {
            none: true,
            ..Access::default()
        };
        for va in [0x40_0000, 0x40_1000, USER_END - PAGE] {
            tables.map(va, 0x5000, write).unwrap();
            assert_eq!(tables.get(va), Some((0x5000, write)));
        }
        assert!(tables.protect(0x40_0000, none));
        assert_eq!(tables.get(0x40_0000), Some((0x5000, none)));
        assert_eq!(tables.mapped(0, USER_END).len(), 3);
        assert_eq!(tables.unmap(0x40_1000), Some(0x5000));
        assert_eq!(tables.get(0x40_1000), None);
        assert_eq!(tables.get(USER_END), None);
        drop(tables);
        assert_eq!(memory.free_bytes(), free);
    }
}
