//! What an image says of a tree of processes, but for its pages.
//!
//! Processes may share memory, descriptors, working directories and signal actions (clone(2)): an image
//! has a list of each, and a process says which it has.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use snaprig_card_driver::{clock, signals::SigSet};
use snaprig_card_fs::{
    FsImage, Vfs,
    image::{
        FilesImage,
        stored::{FileRef, Storing},
    },
};
use snaprig_card_memory::{PAGE, USER_END};
use snaprig_card_platform::{Regs, xstate};

use crate::{
    credentials::Credentials,
    jobs::Job,
    limits::Limits,
    mm::{AddressSpace, Area, Backing, Traits},
    rseq::Rseq,
    sched::Policy,
    settings::Settings,
    signal::{Actions, AltStack, Pending},
    state::{ExitStatus, Process, Thread},
    timers::Timers,
};

/// `syscall` is two bytes long.
const SYSCALL_BYTES: u64 = 2;

/// A process with all its descendants.
#[derive(Debug, Serialize, Deserialize)]
pub struct TreeImage {
    /// The one that was captured is the first.
    pub processes: Vec<ProcessImage>,
    /// Address spaces.
    pub spaces: Vec<SpaceImage>,
    /// Working directories.
    pub contexts: Vec<FsImage>,
    /// What signals do.
    pub actions: Vec<Actions>,
    /// What is open.
    pub files: FilesImage,
    /// Bytes of pages that follow, at most.
    pub page_bytes: u64,
    /// The pages are not of one moment: an image that builds on this one has those that have changed.
    pub live: bool,
}

/// A process.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProcessImage {
    pub pid: i32,
    pub parent: i32,
    /// Process group and session.
    pub group: (i32, i32),
    pub exe: String,
    pub argv: Vec<Vec<u8>>,
    /// Which of the spaces, tables of descriptors, working directories and signal actions.
    pub space: u32,
    pub table: u32,
    pub context: u32,
    pub actions: u32,
    pub pending: Pending,
    pub timers: Timers,
    pub limits: Limits,
    pub credentials: Credentials,
    pub settings: Settings,
    pub job: Job,
    pub has_executed: bool,
    pub ran: Duration,
    pub children_ran: Duration,
    pub is_released: bool,
    pub exit_signal: i32,
    /// How it has ended, if it has.
    pub exit: Option<ExitStatus>,
    pub threads: Vec<ThreadImage>,
}

/// A thread.
#[derive(Debug, Serialize, Deserialize)]
pub struct ThreadImage {
    pub tid: i32,
    pub name: String,
    pub regs: Regs,
    pub xstate: Vec<u8>,
    pub mask: SigSet,
    pub pending: Pending,
    pub alt_stack: AltStack,
    pub clear_child_tid: u64,
    pub robust_list: u64,
    /// The end of its timed wait, as time left.
    pub deadline: Option<Duration>,
    pub ran: Duration,
    /// The cores that it wants. Another card may have fewer: then it wants all of them.
    pub affinity: Option<Vec<u8>>,
    pub policy: Policy,
    pub rseq: Rseq,
    /// The vfork(2) child that it waits for.
    pub vfork_child: Option<i32>,
}

/// An address space.
#[derive(Debug, Serialize, Deserialize)]
pub struct SpaceImage {
    pub brk: (u64, u64),
    pub areas: Vec<AreaImage>,
}

/// A range of addresses.
#[derive(Debug, Serialize, Deserialize)]
pub struct AreaImage {
    pub start: u64,
    pub end: u64,
    pub prot: i32,
    pub shared: bool,
    pub traits: Traits,
    /// File and offset. What is shared and has none was of a device, whose end a restored process does
    /// not have: touching it is SIGBUS, as calls on its descriptors are ECONNRESET.
    pub file: Option<(FileRef, u64)>,
}

impl ProcessImage {
    /// What is a process's own; what it may share, and its threads, are still to be said.
    pub fn of(process: &Process) -> Self {
        Self {
            pid: process.pid,
            parent: process.parent,
            group: process.group,
            exe: process.exe.clone(),
            argv: process.argv.clone(),
            space: 0,
            table: 0,
            context: 0,
            actions: 0,
            pending: process.pending.clone(),
            timers: process.timers.left(),
            limits: process.limits.clone(),
            credentials: process.credentials.clone(),
            settings: process.settings,
            job: process.job,
            has_executed: process.has_executed,
            ran: process.ran,
            children_ran: process.children_ran,
            is_released: process.is_released,
            exit_signal: process.exit_signal,
            exit: process.exit,
            threads: Vec::new(),
        }
    }
}

impl SpaceImage {
    /// What is mapped where, but for pages.
    pub fn of(mm: &AddressSpace, vfs: &Vfs, storing: &mut Storing) -> Self {
        let area = |(start, area): (u64, &Area)| AreaImage {
            start,
            end: area.end,
            prot: area.prot,
            shared: match &area.backing {
                Backing::Device { memory, .. } => !memory.is_left_empty(),
                _ => area.shared,
            },
            traits: area.traits,
            file: match &area.backing {
                // What is shared and of no file is gone.
                Backing::Anonymous | Backing::Device { .. } | Backing::Gone => None,
                Backing::File {
                    inode,
                    path,
                    offset,
                } => {
                    // The card's clock is the card's.
                    let is_shared = area.shared && path != clock::PATH;
                    let file = storing.refer_mapped(vfs, inode, path, is_shared);
                    Some((file, *offset))
                }
            },
        };
        Self {
            brk: mm.brk,
            areas: mm.areas().map(area).collect(),
        }
    }

    /// Whether no address in it is out of user space, nor an offset out of a file.
    pub fn is_sound(&self) -> bool {
        let area_is_sound = |area: &AreaImage| {
            let offset = area.file.as_ref().map_or(0, |(_, offset)| *offset);
            (area.start | area.end).is_multiple_of(PAGE)
                && area.end <= USER_END
                && offset.is_multiple_of(PAGE)
                && offset <= i64::MAX as u64 - USER_END
        };
        self.brk.0 <= self.brk.1 && self.brk.1 <= USER_END && self.areas.iter().all(area_is_sound)
    }
}

impl ThreadImage {
    /// Whether a thread may start like this. (A running one may not be: user space has wrfsbase.)
    pub fn is_sound(&self) -> bool {
        xstate::check(&self.xstate).is_ok()
            && self.pending.is_sound()
            && self.regs.rip < USER_END
            && self.regs.fs_base < USER_END
            && self.regs.gs_base < USER_END
    }
}

/// Registers with which a thread that is stopped in a call makes it again, or returns from it if
/// it has already been woken or has moved some bytes, which are not to be moved twice.
pub fn restartable(thread: &Thread, woken: bool) -> Regs {
    match thread.call {
        None => thread.regs,
        Some(_) if woken => Regs {
            rax: 0,
            ..thread.regs
        },
        Some(_) if thread.progress > 0 => Regs {
            rax: thread.progress as u64,
            ..thread.regs
        },
        Some(number) => Regs {
            rax: number,
            rip: thread.regs.rip - SYSCALL_BYTES,
            ..thread.regs
        },
    }
}
