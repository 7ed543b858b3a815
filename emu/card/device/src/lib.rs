//! The card's side of its PCI function: registers, interrupts, doorbells, DMA, host memory.
//!
//! ```text
//! vfio-user thread --BAR4 write--> registers --DHPR--> channel --copies--> engine --done--> cause
//!                  --doorbell----> the card's drivers
//! card's drivers   --raise-------> SICR0, and the host's eventfd if SICE0 enables it
//! ```
//!
//! What must stay true: the host is hostile. Whatever it writes to registers, rings and
//! descriptors, copies touch only card memory and memory that it mapped itself, and no lock of this
//! module is held while a callback runs or a copy is submitted. After a reset, and when a host is
//! gone, none of its DMA goes on, no cause of it is raised, and the SCIF rings are empty.

mod channel;
mod function;
#[cfg(test)]
mod hostile;
mod interrupts;
mod smpt;
#[cfg(test)]
mod tests;
mod vector;

use std::{
    collections::BTreeMap,
    io,
    ops::Deref,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use snaprig_card_memory::{CardMemory, PAGE, shown::Shown};
use snaprig_dma::{Copy, Engine, EngineError, RegionError, RegionId};
use snaprig_pci::server::Function;
pub use snaprig_pci::server::Listener;
use snaprig_wire::{
    bar4::{self, cause, spad},
    dma::{DESCRIPTOR_BYTES, Descriptor, HOST_BASE, error},
    ring::{HEADER_BYTES, RING_BYTES, Ring},
    scif,
};

use self::{channel::Channel, interrupts::Interrupts, smpt::Smpt};

/// Descriptors in each of the host's rings: one page.
const DMA_RING_LEN: u64 = PAGE / DESCRIPTOR_BYTES as u64;

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Card memory has no room for the rings.
    #[error("card memory is too small for the device's rings; configure at least 4 MiB")]
    Memory,
    /// No copy engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Card memory cannot be copied from and to.
    #[error("card memory: {0}")]
    Region(#[from] RegionError),
    /// The host's kernel refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was done.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

/// Called when the host rings a doorbell.
pub type Doorbell = Box<dyn Fn() + Send + Sync>;

/// Told true when a host has come, and false when it is gone or resets the card.
pub type HostWatch = Box<dyn Fn(bool) + Send + Sync>;

/// The card's PCI function.
pub struct Device {
    memory: Arc<CardMemory>,
    engine: Engine,
    card: RegionId,
    windows: Mutex<BTreeMap<u64, Window>>,
    smpt: Mutex<Smpt>,
    channels: [Mutex<Channel>; bar4::HOST_DMA_CHANNELS],
    /// Notified when a batch of the channel is over.
    idle: [Condvar; bar4::HOST_DMA_CHANNELS],
    next_card_channel: AtomicUsize,
    interrupts: Mutex<Interrupts>,
    spads: Mutex<[u32; bar4::SPAD_COUNT as usize]>,
    doorbells: Mutex<[Option<Arc<Doorbell>>; bar4::SDBIC_COUNT as usize]>,
    connected: AtomicBool,
    host_watch: Mutex<Option<Arc<HostWatch>>>,
    /// Held while the card writes its ring, so that a reset empties it between two records.
    to_host: Mutex<()>,
    stop: OwnedFd,
}

/// Host memory at one address.
struct Window {
    len: u64,
    region: RegionId,
    /// Where the card's programs have it, if one has.
    shown: Weak<Shown>,
}

/// The ring from the card to the host, held.
pub struct ToHost<'a> {
    ring: Ring<'a>,
    _held: MutexGuard<'a, ()>,
}

impl<'a> Deref for ToHost<'a> {
    type Target = Ring<'a>;

    fn deref(&self) -> &Ring<'a> {
        &self.ring
    }
}

impl Device {
    /// A device for this memory. Allocates the rings and fills the scratchpads.
    pub fn new(memory: Arc<CardMemory>, node: u16, cores: usize) -> Result<Arc<Self>, DeviceError> {
        let ring_pages = RING_BYTES / PAGE as usize;
        let run = |pages| memory.alloc_run(pages, 1).ok_or(DeviceError::Memory);
        let (to_card, to_host) = (run(ring_pages)?, run(ring_pages)?);
        let dma_rings = run(bar4::HOST_DMA_CHANNELS)?;
        let engine = Engine::new(bar4::DMA_CHANNELS)?;
        let fd = memory.memfd().try_clone_to_owned();
        let fd = fd.map_err(|e| io_error("duplicating card memory", e))?;
        let card = engine.add_region(fd, 0, memory.bytes())?;
        let mut spads = [0; bar4::SPAD_COUNT as usize];
        let pages = |bytes: u64| (bytes / PAGE) as u32;
        for (index, value) in [
            (spad::STATE, spad::STATE_BOOTING),
            (spad::NODE, node.into()),
            (spad::MEMORY_PAGES, pages(memory.bytes())),
            (spad::RING_TO_CARD, pages(to_card)),
            (spad::RING_TO_HOST, pages(to_host)),
            (spad::RING_PAGES, ring_pages as u32),
            (spad::DMA_RINGS, pages(dma_rings)),
            (spad::DMA_RING_LEN, DMA_RING_LEN as u32),
            (spad::SCIF_VERSION, scif::VERSION),
            (spad::CORES, cores as u32),
        ] {
            spads[index as usize] = value;
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC);
        let stop = stop.map_err(|e| io_error("creating an eventfd", e.into()))?;
        Ok(Arc::new(Self {
            memory,
            engine,
            card,
            windows: Mutex::default(),
            smpt: Mutex::default(),
            channels: Default::default(),
            idle: Default::default(),
            next_card_channel: AtomicUsize::new(0),
            interrupts: Mutex::default(),
            spads: Mutex::new(spads),
            doorbells: Mutex::default(),
            connected: AtomicBool::new(false),
            host_watch: Mutex::default(),
            to_host: Mutex::default(),
            stop,
        }))
    }

    /// Serves the function over vfio-user until [`Device::stop`]. A client may connect after
    /// another has left.
    pub fn serve(self: &Arc<Self>, socket: &Path) -> Result<JoinHandle<()>, DeviceError> {
        let listener = Listener::bind(socket);
        self.serve_on(listener.map_err(|e| io_error("making the vfio-user socket", e))?)
    }

    /// The same at a socket that was made before.
    pub fn serve_on(self: &Arc<Self>, listener: Listener) -> Result<JoinHandle<()>, DeviceError> {
        let clone = |fd: io::Result<OwnedFd>| fd.map_err(|e| io_error("duplicating", e));
        let aperture = clone(self.memory.memfd().try_clone_to_owned())?;
        let stop = clone(self.stop.try_clone())?;
        let aperture = (aperture, self.memory.bytes());
        snaprig_pci::server::serve(listener, aperture, self.function(), stop)
            .map_err(|e| io_error("serving the vfio-user socket", e))
    }

    /// The function itself, for whoever serves it another way.
    pub fn function(self: &Arc<Self>) -> Arc<dyn Function> {
        Arc::new(function::Port(self.clone()))
    }

    /// Ends the thread of [`Device::serve`], which removes the socket.
    pub fn stop(&self) {
        // Fails only when 2^64 - 2 requests wait already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    /// Card memory.
    pub fn memory(&self) -> &Arc<CardMemory> {
        &self.memory
    }

    /// The ring that the host writes. To be read on the vfio-user thread only, that is, when the
    /// doorbell rings: a reset, which empties it, is on that thread too.
    pub fn ring_to_card(&self) -> Ring<'_> {
        self.ring(spad::RING_TO_CARD)
    }

    /// The ring that the card writes. To be let go of at once.
    pub fn ring_to_host(&self) -> ToHost<'_> {
        ToHost {
            ring: self.ring(spad::RING_TO_HOST),
            _held: lock(&self.to_host),
        }
    }

    /// What a host left in the rings is not for the next one, and its indices may be impossible.
    fn empty_rings(&self) {
        let _held = lock(&self.to_host);
        for index in [spad::RING_TO_CARD, spad::RING_TO_HOST] {
            let ring = u64::from(lock(&self.spads)[index as usize]) * PAGE;
            let header = (0..HEADER_BYTES as u64).step_by(8);
            header.for_each(|word| self.memory.store(ring + word, 0));
        }
    }

    fn ring(&self, index: u64) -> Ring<'_> {
        let page = lock(&self.spads)[index as usize];
        // SAFETY: `new` allocated `RING_BYTES` at this page, never gives them back, and the host
        // cannot write the scratchpads; card memory is page-aligned and lives as long as `self`.
        unsafe {
            let base = self.memory.host_base().add(page as usize * PAGE as usize);
            Ring::new(base.as_ptr())
        }
    }

    /// Calls `f` on the vfio-user thread whenever the host rings doorbell `index` (0 to 3).
    pub fn on_doorbell(&self, index: u64, f: Doorbell) {
        lock(&self.doorbells)[index as usize] = Some(Arc::new(f));
    }

    /// Calls `f` on the vfio-user thread whenever a host comes or goes; to be set before
    /// [`Device::serve`]. A reset by a host that stays is both. When a host goes its DMA is over, and
    /// what the driver has written to the ring, up to the end of the call, is thrown away after it.
    pub fn on_host(&self, f: HostWatch) {
        *lock(&self.host_watch) = Some(Arc::new(f));
    }

    fn tell_host(&self, there: bool) {
        let watch = lock(&self.host_watch).clone();
        watch.iter().for_each(|watch| watch(there));
    }

    /// Raises interrupt causes ([`cause`]).
    pub fn raise(&self, causes: u32) {
        lock(&self.interrupts).raise(causes);
    }

    /// Publishes the card's state and tells the host.
    pub fn set_state(&self, state: u32) {
        lock(&self.spads)[spad::STATE as usize] = state;
        self.raise(cause::STATE);
    }

    /// Whether a host is there.
    pub fn host_connected(&self) -> bool {
        self.connected.load(Ordering::Acquire)
    }

    /// Copies on a channel of the card's, one after the other. `done` gets an errno and runs on
    /// the engine's thread, never on the caller's.
    pub fn dma(&self, copies: Vec<Descriptor>, done: Box<dyn FnOnce(Result<(), i32>) + Send>) {
        let resolved: Result<Vec<_>, _> = copies.iter().map(|d| self.resolve(d)).collect();
        let (good, bad) = match resolved {
            Ok(good) => (good, None),
            Err(_) => (Vec::new(), Some(libc::EFAULT)),
        };
        let finish = move |result: Result<(), snaprig_dma::CopyError>| {
            done(match bad {
                Some(errno) => Err(errno),
                None => result.map_err(|e| e.errno),
            });
        };
        self.engine
            .submit(self.card_channel(), &good, Box::new(finish));
    }

    /// The same at once, on the calling thread, if that is sooner than [`Device::dma`].
    pub fn dma_now(&self, copies: &[Descriptor]) -> Option<Result<(), i32>> {
        let resolved: Result<Vec<_>, _> = copies.iter().map(|d| self.resolve(d)).collect();
        let Ok(good) = resolved else {
            return Some(Err(libc::EFAULT));
        };
        let result = self.engine.try_now(self.card_channel(), &good)?;
        Some(result.map_err(|e| e.errno))
    }

    /// The next one of the card's own channels.
    fn card_channel(&self) -> usize {
        let card_channels = bar4::DMA_CHANNELS - bar4::HOST_DMA_CHANNELS;
        let turn = self.next_card_channel.fetch_add(1, Ordering::Relaxed) % card_channels;
        bar4::HOST_DMA_CHANNELS + turn
    }

    /// Writes into card memory what follows on DMA that has ended. Nothing, if it is not all there.
    pub fn poke(&self, address: u64, bytes: &[u8]) {
        if self.memory.contains(address, bytes.len() as u64) {
            std::sync::atomic::fence(Ordering::SeqCst);
            self.memory.write(address, bytes);
        }
    }

    /// Where a descriptor's ranges are, or which of them is nowhere ([`error`]).
    fn resolve(&self, descriptor: &Descriptor) -> Result<Copy, u32> {
        let len = u64::from(descriptor.len);
        if len == 0 {
            let nowhere = (self.card, 0);
            return Ok(Copy {
                src: nowhere,
                dst: nowhere,
                len,
            });
        }
        Ok(Copy {
            src: self.locate(descriptor.src, len).ok_or(error::SOURCE)?,
            dst: self.locate(descriptor.dst, len).ok_or(error::DESTINATION)?,
            len,
        })
    }

    /// Where the card's programs may have the host's memory at a DMA address mapped: the address of its
    /// first page, for as long as what comes with it lives, even if the host takes the memory back. `ENOMEM` for memory
    /// of a file that may become shorter.
    pub fn show(&self, address: u64, len: u64) -> Result<(u64, Arc<Shown>), i32> {
        let system = address.checked_sub(HOST_BASE).ok_or(libc::ENXIO)?;
        if len == 0 || !(address | len).is_multiple_of(PAGE) {
            return Err(libc::EINVAL);
        }
        let iova = lock(&self.smpt).translate(system, len).ok_or(libc::ENXIO)?;
        let mut windows = lock(&self.windows);
        let window = windows.range_mut(..=iova).next_back();
        let (start, window) = window.ok_or(libc::ENXIO)?;
        let shown = match window.shown.upgrade() {
            Some(shown) => shown,
            None => {
                let memory = self.engine.memory(window.region);
                let memory = memory.ok_or(libc::ENOMEM).inspect_err(|_| {
                    tracing::warn!("memory that may become less cannot be shown to programs");
                })?;
                let shown = Shown::new(&self.memory, &memory).map_err(|error| {
                    tracing::warn!(%error, "a peer's memory cannot be shown to programs");
                    libc::ENOMEM
                })?;
                let shown = Arc::new(shown);
                window.shown = Arc::downgrade(&shown);
                shown
            }
        };
        let at = shown.address(iova - start, len).ok_or(libc::ENXIO)?;
        Ok((at, shown))
    }

    fn locate(&self, address: u64, len: u64) -> Option<(RegionId, u64)> {
        let Some(system) = address.checked_sub(HOST_BASE) else {
            let inside = self.memory.contains(address, len);
            return inside.then_some((self.card, address));
        };
        let iova = lock(&self.smpt).translate(system, len)?;
        let windows = lock(&self.windows);
        let (start, window) = windows.range(..=iova).next_back()?;
        let at = iova - start;
        let inside = at.checked_add(len).is_some_and(|end| end <= window.len);
        inside.then_some((window.region, at))
    }
}

/// Raises the soft limit of descriptors to the hard one (getrlimit(2), RLIMIT_NOFILE): every window
/// of the host's takes a descriptor of the card's process.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    Ok(setrlimit(Resource::Nofile, limit)?)
}

fn io_error(what: &'static str, source: io::Error) -> DeviceError {
    DeviceError::Io { what, source }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no state is left half-changed")
}
