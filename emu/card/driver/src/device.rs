//! What a driver outside this crate (SCIF's is one) needs to appear as a character device.
//!
//! The kernel calls the device under the kernel lock; the device calls back through [`Waker`],
//! which takes that lock. Therefore: a device never holds a lock of its own, that its methods
//! also take, while it calls [`Waker::wake`].

use std::sync::{Arc, Weak};

use super::{
    errno::Errno,
    file::{Cx, File},
    wait::{Channel, SysResult},
};

/// A character device: a name in /dev that can be opened.
pub trait CharDevice: Send + Sync {
    /// open(2). `flags` are the call's `O_*` flags.
    fn open(&self, cx: &mut Cx, flags: i32) -> SysResult<Arc<dyn File>>;

    /// open(2) in a restored process: a descriptor that stands where an open one stood
    /// ([`super::file::Description::Device`]). Its calls fail as if the peer had gone.
    fn open_disconnected(&self, flags: i32) -> Arc<dyn File>;

    /// Its device number (makedev(3)).
    fn number(&self) -> u64 {
        0
    }
}

/// A process's memory, as system calls reach it. Bad addresses are `EFAULT`; pages that are not
/// there yet are faulted in.
pub trait UserMemory {
    /// Copies out of the process.
    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Errno>;
    /// Copies into the process.
    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Errno>;
    /// How many of `len` bytes can be copied into the process: those up to the first bad address.
    /// To be asked for before something is taken that cannot be put back.
    fn writable(&mut self, address: u64, len: usize) -> usize;
    /// Faults in `len` bytes from page-aligned `address` (writable if `write`), keeps their frames
    /// until every clone of the pin is dropped, and says where they are in card memory.
    fn pin(&mut self, address: u64, len: u64, write: bool) -> Result<Pinned, Errno>;
    /// /proc/self/maps: what is mapped where (proc(5)).
    fn maps(&self) -> String;
}

/// Pages that stay where they are in card memory while this lives: a registered window. They
/// survive `munmap` and the end of the process, as pinned pages do.
#[derive(Clone)]
pub struct Pinned {
    /// Card-physical runs, in the order of the addresses: (address, bytes).
    pub extents: Vec<(u64, u64)>,
    /// Gives the frames back when the last clone is dropped.
    pub guard: Arc<dyn Send + Sync + std::any::Any>,
}

/// What a program has mapped of a device (mmap(2)): pages of card memory, or of a peer's
/// ([`outside`](snaprig_card_memory::outside)).
pub struct DeviceMemory {
    /// Where each run begins in the mapping, in order, and its address.
    runs: Vec<(u64, u64)>,
    bytes: u64,
    is_left_empty: bool,
    /// The device is told of the end of the mapping by the end of this.
    _guard: Arc<dyn Send + Sync + std::any::Any>,
}

impl DeviceMemory {
    /// Whole pages, one run after the other: (address, bytes). They stay until `guard` is dropped.
    pub fn new(
        extents: impl IntoIterator<Item = (u64, u64)>,
        guard: Arc<dyn Send + Sync + std::any::Any>,
    ) -> Self {
        let (mut runs, mut bytes) = (Vec::new(), 0);
        for (address, len) in extents {
            runs.push((bytes, address));
            bytes += len;
        }
        Self {
            runs,
            bytes,
            is_left_empty: false,
            _guard: guard,
        }
    }

    /// A process that was captured with it finds zeros there, and not that it is gone.
    pub fn left_empty(mut self) -> Self {
        self.is_left_empty = true;
        self
    }

    /// Whether it was asked for that.
    pub fn is_left_empty(&self) -> bool {
        self.is_left_empty
    }

    /// The page at `at` bytes into the mapping.
    pub fn frame(&self, at: u64) -> Option<u64> {
        let behind = self.runs.partition_point(|(start, _)| *start <= at);
        let (start, address) = self.runs.get(behind.checked_sub(1)?)?;
        (at < self.bytes).then_some(address + (at - start))
    }
}

/// Wakes guest threads from outside the kernel, from any thread.
#[derive(Clone)]
pub struct Waker(Weak<dyn WakeTarget>);

/// Implemented by the kernel.
pub trait WakeTarget: Send + Sync {
    /// Every thread that waits for `channel` tries its call again.
    fn wake(&self, channel: Channel);
}

impl Waker {
    /// A waker for this kernel.
    pub fn new(target: Weak<dyn WakeTarget>) -> Self {
        Self(target)
    }

    /// Every thread that waits for `channel` tries its call again. Takes the kernel lock.
    pub fn wake(&self, channel: Channel) {
        if let Some(kernel) = self.0.upgrade() {
            kernel.wake(channel);
        }
    }
}
