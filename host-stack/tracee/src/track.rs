//! Which pages a process writes to: write protection by userfaultfd(2) in its asynchronous mode
//! (Documentation/admin-guide/mm/userfaultfd.rst), whose faults the kernel resolves by itself. What was written to is
//! read from pagemap, and protected again ([`crate::pagemap`]).
//!
//! ```text
//! process, held:  userfaultfd() --> supervisor: registers each area      ([`crate::userfault`])
//! ```
//! Only private anonymous memory is tracked. Of shared memory, and of files, pages can be written to that nobody's page
//! table tells of: by write(2), or by a process that has ended since; so they are saved whole.
//!
//! What must stay true: an area is registered whole, while its process is held: else it would be divided, and mremap(2)
//! is not for several areas. An area that is not tracked, for whatever reason, says so
//! ([`Pagemap::is_tracked`](crate::pagemap::Pagemap::is_tracked)), and is saved whole. What the kernel takes an area's
//! tracking away for (a fork's child, mremap(2), exec) therefore needs no notice. It may leave the marks of protected
//! pages there, though: an area that mremap(2) joins to one that it moves is not tracked any more either, but its marks
//! stay, also of pages that are written to from then on. So what is registered begins without any: in an address space
//! where something has been tracked before, they are taken away.

use std::{collections::HashMap, io, ops::Range};

use libc::pid_t;
use snaprig_userfault::{
    Mode, Userfault,
    features::{NOTE_WRITES, PROTECT_UNPOPULATED},
};

use crate::{error::Result, freeze::HeldProcess, userfault::userfault_of};

/// The userfaultfds of a tree.
#[derive(Debug, Default)]
pub struct Tracking {
    of: HashMap<pid_t, Userfault>,
    /// This kernel cannot do it.
    is_off: bool,
    /// Why, until somebody has asked.
    reason: Option<io::Error>,
}

impl Tracking {
    /// Whether it can be done at all, as far as is known.
    pub fn is_possible(&self) -> bool {
        !self.is_off
    }

    /// Why it cannot be done, once it has been tried: it is said once.
    pub fn take_reason(&mut self) -> Option<io::Error> {
        self.reason.take()
    }

    /// Tracks writes to areas of a process that is held, which are not tracked yet; those that cannot be are left as they
    /// are. All of their pages are as if they had been written to.
    pub fn start(&mut self, process: &mut HeldProcess, areas: &[Range<u64>]) -> Result<()> {
        let left = match self.of.get(&process.pid) {
            Some(userfault) => still_to_do(areas, |area| begin_anew(userfault, area)),
            None => areas,
        };
        if left.is_empty() || self.is_off {
            return Ok(());
        }
        // The first, or one of another program: the process has called exec(2), or its number is another's now.
        self.of.remove(&process.pid);
        match userfault_of(process, PROTECT_UNPOPULATED | NOTE_WRITES)? {
            Ok(userfault) => {
                still_to_do(left, |area| userfault.register(area, Mode::WriteProtect));
                self.of.insert(process.pid, userfault);
            }
            Err(error) => self.refuse(error),
        }
        Ok(())
    }

    fn refuse(&mut self, error: io::Error) {
        // A process may have no number for a descriptor left; next time it may.
        if [Some(libc::EMFILE), Some(libc::ENFILE)].contains(&error.raw_os_error()) {
            return;
        }
        self.is_off = true;
        self.reason = Some(error);
    }

    /// Keeps only what belongs to these processes.
    pub fn retain(&mut self, alive: &[pid_t]) {
        self.of.retain(|pid, _| alive.contains(pid));
    }
}

/// Registers areas; those from the first on that it fails for because the address space is no more.
fn still_to_do(
    areas: &[Range<u64>],
    register: impl Fn(&Range<u64>) -> io::Result<()>,
) -> &[Range<u64>] {
    for (index, area) in areas.iter().enumerate() {
        let registered = register(area);
        let is_gone = |error: io::Error| {
            [Some(libc::ENOMEM), Some(libc::ESRCH)].contains(&error.raw_os_error())
        };
        if registered.is_err_and(is_gone) {
            return &areas[index..];
        }
    }
    &[]
}

/// Registers what may have marks.
fn begin_anew(userfault: &Userfault, area: &Range<u64>) -> io::Result<()> {
    userfault.register(area, Mode::WriteProtect)?;
    let unprotected = userfault.unprotect(area);
    if unprotected.is_err() {
        // Marks that may be wrong are worse than none.
        userfault.unregister(area)?;
    }
    unprotected
}
