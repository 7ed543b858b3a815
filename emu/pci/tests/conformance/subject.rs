//! A device under test.

use std::{
    any::Any,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snaprig_pci::host::HostDevice;

use crate::{served, vfio};

/// How long is for ever, in seconds.
const HANG: i64 = 60;

/// How to make a kind of device do what a test wants. What it cannot do is `None`.
pub struct Kind {
    pub name: &'static str,
    /// Vendor and device, as in configuration space.
    pub id: u32,
    /// A BAR that it has.
    pub bar: u32,
    pub register: Option<Register>,
    /// A BAR that is memory.
    pub memory: Option<u32>,
    pub interrupts: Option<Interrupts>,
    /// The BAR with the MSI-X table, if that is in its first page.
    pub msix_table: Option<u32>,
    pub copy: Option<Copy>,
}

/// The longest copy, in bytes. (QEMU's edu has a buffer of a page, and does not let it be filled.)
pub const COPY_MAX: u64 = 2048;

/// Copies from one DMA address to another, at most [`COPY_MAX`] bytes; returns when that is over.
pub type Copy = fn(&dyn HostDevice, u64, u64, u64);

/// A register that keeps what is written.
pub struct Register {
    pub bar: u32,
    pub offset: u64,
    pub reads_as: fn(u32) -> u32,
    /// What a reset makes of it; `None`: nothing.
    pub after_reset: Option<u32>,
}

pub struct Interrupts {
    pub vectors: u32,
    pub raise: fn(&dyn HostDevice, u32),
    /// Clears the cause.
    pub clear: fn(&dyn HostDevice),
}

pub struct Subject {
    pub kind: &'static Kind,
    pub device: Arc<dyn HostDevice>,
    pub remove: Box<dyn Fn() -> Box<dyn Any>>,
}

impl Subject {
    /// Begins to take the device away from whoever has it. It is there again, or nothing is left of
    /// it, when the result was dropped.
    pub fn take_away(&self) -> Box<dyn Any> {
        (self.remove)()
    }
}

/// Held by every test: VFIO gives a device to one user at a time.
pub fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test on the device that vfio-user serves.
pub fn served(test: fn(&Subject)) {
    let _one = one_at_a_time();
    test(&served::subject());
}

/// Runs a test on every device that is reached over VFIO, opened anew.
pub fn named(test: fn(&Subject)) {
    let _one = one_at_a_time();
    for subject in vfio::addresses().into_iter().map(vfio::subject) {
        println!("on {}", subject.kind.name);
        test(&subject);
    }
}

/// Whether `fd` has such events; waits for them, or looks once.
pub fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags, wait: bool) -> bool {
    poll_one(PollFd::from_borrowed_fd(fd, flags), wait)
}

/// The same, of what is to be polled.
pub fn poll_one(what: PollFd<'_>, wait: bool) -> bool {
    let timeout = Timespec {
        tv_sec: if wait { HANG } else { 0 },
        tv_nsec: 0,
    };
    poll(&mut [what], Some(&timeout)).unwrap() == 1
}
