//! How system calls reach a process's memory.

use std::{ops::Range, sync::Arc};

use snaprig_card_driver::{
    device::{Pinned, UserMemory},
    errno::Errno,
};
use snaprig_card_memory::{CardMemory, PAGE};

use super::{
    AddressSpace,
    area::{Area, Backing},
    layout,
    share::RESERVED_PART,
};

/// Most bytes of one `pin`.
const PIN_MAX_BYTES: u64 = 1 << 34;

impl AddressSpace {
    /// Puts contents at `va`, inside of one page of an area, whatever the area allows (exec).
    pub fn fill(&self, va: u64, bytes: &[u8]) -> Result<(), Errno> {
        let page = va & !(PAGE - 1);
        let (start, area) = self.area(page).ok_or(Errno::EFAULT)?;
        self.fill_page(start, area, page, va - page, bytes)
    }

    pub(super) fn fill_page(
        &self,
        start: u64,
        area: &Area,
        page: u64,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        assert!(at + bytes.len() as u64 <= PAGE);
        if self.tables.get(page).is_none() {
            self.page_in(start, area, page).map_err(|_| Errno::ENOMEM)?;
        }
        if self.is_copied(page) {
            self.unshare(start, area, page).map_err(|_| Errno::ENOMEM)?;
        }
        let (frame, _) = self.tables.get(page).ok_or(Errno::EFAULT)?;
        self.memory.write(frame + at, bytes);
        Ok(())
    }

    fn for_each_page(
        &self,
        address: u64,
        len: usize,
        write: bool,
        mut visit: impl FnMut(u64, Range<usize>),
    ) -> Result<(), Errno> {
        let mut done = 0;
        while done < len {
            let va = address.checked_add(done as u64).ok_or(Errno::EFAULT)?;
            let frame = self.frame(va, write)?;
            let in_page = (PAGE - va % PAGE) as usize;
            let part = in_page.min(len - done);
            visit(frame + va % PAGE, done..done + part);
            done += part;
        }
        Ok(())
    }
}

impl AddressSpace {
    /// Pages that are not there, or not the space's own.
    fn pin_pages(&self, pin: &mut Pin, range: Range<u64>, write: bool) -> Result<(), Errno> {
        for va in range.step_by(PAGE as usize) {
            // What is made for others to use is not all that there is: who runs needs page tables.
            let is_scarce = self.memory.free_bytes() < self.memory.bytes() / RESERVED_PART;
            if is_scarce && self.tables.get(va).is_none() {
                return Err(Errno::ENOMEM);
            }
            pin.add(self.own_frame(va, write)?, PAGE)?;
        }
        Ok(())
    }
}

impl UserMemory for AddressSpace {
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Errno> {
        let memory = self.memory.clone();
        self.for_each_page(address, to.len(), false, |at, part| {
            memory.read(at, &mut to[part])
        })
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Errno> {
        let memory = self.memory.clone();
        self.for_each_page(address, from.len(), true, |at, part| {
            memory.write(at, &from[part])
        })
    }

    fn writable(&mut self, address: u64, len: usize) -> usize {
        let mut good = 0;
        // A bad address only ends the count.
        let _ = self.for_each_page(address, len, true, |_, part| good = part.end);
        good
    }

    fn pin(&mut self, address: u64, len: u64, write: bool) -> Result<Pinned, Errno> {
        if !address.is_multiple_of(PAGE) || len == 0 || len > PIN_MAX_BYTES {
            return Err(Errno::EINVAL);
        }
        let mut pin = Pin {
            memory: self.memory.clone(),
            extents: Vec::new(),
        };
        let end = address.checked_add(len.next_multiple_of(PAGE));
        let end = end.ok_or(Errno::EFAULT)?;
        self.enter_shared(address, end, write);
        let mut there = Vec::new();
        self.tables
            .extents(address, end, |va, frame, pages, access| {
                // What is not the space's own may be another frame, once it is.
                if access.allows(write, false) && !access.copied {
                    there.push((va, frame, pages * PAGE));
                }
            });
        let mut at = address;
        for (va, frame, bytes) in there {
            self.pin_pages(&mut pin, at..va, write)?;
            pin.add(frame, bytes)?;
            at = va + bytes;
        }
        self.pin_pages(&mut pin, at..end, write)?;
        Ok(Pinned {
            extents: pin.extents.clone(),
            guard: Arc::new(pin),
        })
    }

    fn maps(&self) -> String {
        let flag = |area: &Area, bit, letter| if area.prot & bit != 0 { letter } else { '-' };
        self.areas
            .iter()
            .map(|(start, area)| {
                let (offset, path) = match &area.backing {
                    Backing::File { path, offset, .. } | Backing::Device { path, offset, .. } => {
                        (*offset, path.as_str())
                    }
                    Backing::Anonymous if *start == self.brk.0 => (0, "[heap]"),
                    Backing::Anonymous if *start == layout::VDSO_BASE => (0, "[vdso]"),
                    Backing::Anonymous | Backing::Gone => (0, ""),
                };
                let line = format!(
                    "{start:08x}-{:08x} {}{}{}{} {offset:08x} 00:01 0 {path}",
                    area.end,
                    flag(area, libc::PROT_READ, 'r'),
                    flag(area, libc::PROT_WRITE, 'w'),
                    flag(area, libc::PROT_EXEC, 'x'),
                    if area.shared { 's' } else { 'p' },
                );
                format!("{}\n", line.trim_end())
            })
            .collect()
    }
}

/// Uses of frames that outlive the mappings they were found through.
struct Pin {
    memory: Arc<CardMemory>,
    /// Frames that are neighbours, in the order of their addresses: from where on, bytes.
    extents: Vec<(u64, u64)>,
}

impl Pin {
    /// The frames from `frame` on have one more use.
    fn add(&mut self, frame: u64, bytes: u64) -> Result<(), Errno> {
        if !self.memory.contains(frame, bytes) {
            return Err(Errno::EFAULT);
        }
        self.memory.get_run(frame, bytes / PAGE);
        match self.extents.last_mut() {
            Some((start, len)) if *start + *len == frame => *len += bytes,
            _ => self.extents.push((frame, bytes)),
        }
        Ok(())
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        for (start, bytes) in &self.extents {
            // Nobody saw who wrote to them.
            for frame in (*start..start + bytes).step_by(PAGE as usize) {
                self.memory.dirty().mark(frame);
            }
            self.memory.put_run(*start, bytes / PAGE);
        }
    }
}
