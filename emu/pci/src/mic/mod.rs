//! The host's driver of the card.
//!
//! ```text
//! interrupt thread: poll(eventfd, hang-up, stop)
//!   eventfd  -> a look at the ring, read SICR0, write SICC0, then look: DMA tails -> done; SCIF, STATE -> Event
//!   hang-up  -> every pending DMA fails, Event::Dead, thread ends
//! ```
//!
//! What must stay true: causes are cleared before what they announce is looked at (once more), so that none is
//! lost; no lock is held while a callback runs; after death every call fails at once.

mod addresses;
mod channel;

use std::{
    collections::BTreeMap,
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use snaprig_wire::{
    bar4::{self, cause, spad},
    dma::{DESCRIPTOR_BYTES, Descriptor, HOST_BASE, LEN_MAX},
    pci,
    ring::{RING_BYTES, Ring},
    scif,
};

use self::{addresses::free_range, channel::Channel};
use crate::host::{DeviceError, HostDevice, Mapping};

const PAGE: u64 = 4096;
/// Most descriptors in a ring that the driver will use.
const RING_LEN_MAX: u32 = 4096;
/// [`bar4::DCR`] with all of the host's channels enabled.
const CHANNELS: u32 = 0b1010_1010;

/// What the card tells the host's software.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The ring from the card has something.
    Scif,
    /// The card's state ([`spad`]) changed.
    State(u32),
    /// The card is gone, and why. The last event.
    Dead(String),
}

/// Receives [`Event`]s on the interrupt thread.
pub type OnEvent = Box<dyn Fn(Event) + Send + Sync>;
/// Told once how a [`Mic::dma`] went, on the interrupt thread.
pub type DmaDone = Box<dyn FnOnce(Result<(), DmaError>) + Send>;

/// Why the driver did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum MicError {
    /// The card is gone.
    #[error("the card is gone; restart it")]
    Dead,
    /// The card did not come up in time.
    #[error("the card is not online; look at its log")]
    NotOnline,
    /// A scratchpad or register holds what no card of ours writes.
    #[error("the card's {0} makes no sense; do its version and the host's match?")]
    Nonsense(&'static str),
    /// Bad argument.
    #[error("{0}")]
    Invalid(&'static str),
    /// No DMA addresses left.
    #[error("no DMA addresses left; unregister some memory")]
    NoAddresses,
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The host's kernel refused a descriptor or a thread.
    #[error("starting the card's driver: {0}")]
    Start(#[from] std::io::Error),
}

/// Why a DMA failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DmaError {
    /// A copy failed; those before it are done.
    #[error("copy {index} failed, for {why:#x} (a bit of DCHERR)")]
    Copy {
        /// Which of the call's copies.
        index: usize,
        /// Why ([`snaprig_wire::dma::error`]).
        why: u32,
    },
    /// The card is gone.
    #[error("the card is gone")]
    Dead,
}

/// A card, driven.
pub struct Mic {
    inner: Arc<Inner>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    device: Arc<dyn HostDevice>,
    aperture: Mapping,
    node: u16,
    rings: [u64; 2],
    dma_rings: u64,
    ring_len: u32,
    channels: [Mutex<Channel>; bar4::HOST_DMA_CHANNELS],
    turn: AtomicUsize,
    dma_ranges: Vec<RangeInclusive<u64>>,
    windows: Mutex<BTreeMap<u64, u64>>,
    state: Mutex<u32>,
    changed: Condvar,
    dead: AtomicBool,
    events: OnEvent,
    interrupt: OwnedFd,
}

impl Mic {
    /// Drives a card. Starts the interrupt thread; waits for nothing.
    pub fn open(device: Arc<dyn HostDevice>, events: OnEvent) -> Result<Arc<Self>, MicError> {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = event().map_err(std::io::Error::from)?;
        let interrupt = event().map_err(std::io::Error::from)?;
        let inner = Arc::new(Inner::probe(device, events, interrupt)?);
        inner.enable()?;
        let (seen, wake) = (inner.clone(), stop.try_clone()?);
        let thread = std::thread::Builder::new()
            .name(format!("mic{}", inner.node))
            .spawn(move || seen.run(&wake))?;
        Ok(Arc::new(Self {
            inner,
            stop,
            thread: Some(thread),
        }))
    }

    /// Waits until the card's programs run.
    pub fn wait_online(&self, deadline: Duration) -> Result<(), MicError> {
        let inner = &self.inner;
        let waiting = |state: &mut u32| !self.is_dead() && *state == spad::STATE_BOOTING;
        let state = lock(&inner.state);
        let waited = inner.changed.wait_timeout_while(state, deadline, waiting);
        let (state, _) = waited.expect("no state is left half-changed");
        match *state {
            _ if self.is_dead() => Err(MicError::Dead),
            spad::STATE_ONLINE => Ok(()),
            _ => Err(MicError::NotOnline),
        }
    }

    /// The card's state ([`spad`]), as far as it was announced.
    pub fn state(&self) -> u32 {
        *lock(&self.inner.state)
    }

    /// The card's SCIF node.
    pub fn node(&self) -> u16 {
        self.inner.node
    }

    /// Card memory.
    pub fn memory_bytes(&self) -> u64 {
        self.inner.aperture.bytes()
    }

    /// Card memory as a file, and where in it it begins, if the device has it so.
    pub fn memory_file(&self) -> Option<(OwnedFd, u64)> {
        self.inner.device.bar_file(pci::BAR_APERTURE)
    }

    /// Whether the card is gone.
    pub fn is_dead(&self) -> bool {
        self.inner.dead.load(Ordering::Acquire)
    }

    /// The ring that the host writes.
    pub fn ring_to_card(&self) -> Ring<'_> {
        self.inner.ring(0)
    }

    /// The ring that the card writes.
    pub fn ring_to_host(&self) -> Ring<'_> {
        self.inner.ring(1)
    }

    /// Lets go of the card, which notices: it is dead from now on, and its last event follows.
    pub fn close(&self) {
        // Fails only when a request waits already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    /// Tells the card to look at its ring.
    pub fn doorbell(&self) -> Result<(), MicError> {
        self.inner.write(bar4::SDBIC0 + 4 * bar4::DOORBELL_SCIF, 1)
    }

    /// Lets the card reach part of a sealed memfd; all in multiples of 4 KiB. The DMA address.
    pub fn map(&self, fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<u64, MicError> {
        if len == 0 || !(offset | len).is_multiple_of(PAGE) {
            return Err(MicError::Invalid("DMA memory comes in pages of 4 KiB"));
        }
        let mut windows = lock(&self.inner.windows);
        let iova = free_range(&windows, &self.inner.dma_ranges, len);
        let iova = iova.ok_or(MicError::NoAddresses)?;
        self.inner.device.dma_map(iova, len, fd, offset)?;
        windows.insert(iova, len);
        Ok(HOST_BASE + iova)
    }

    /// Takes memory of [`Mic::map`] away; on return the card no longer uses it.
    pub fn unmap(&self, address: u64) -> Result<(), MicError> {
        let unknown = MicError::Invalid("nothing is mapped at this DMA address");
        let mut windows = lock(&self.inner.windows);
        let iova = address.checked_sub(HOST_BASE);
        let Some((iova, len)) = iova.and_then(|i| windows.remove_entry(&i)) else {
            return Err(unknown);
        };
        Ok(self.inner.device.dma_unmap(iova, len)?)
    }

    /// Copies, one after the other, on one of the host's channels.
    pub fn dma(&self, copies: Vec<Descriptor>, done: DmaDone) -> Result<(), MicError> {
        let good = |d: &Descriptor| {
            d.src.max(d.dst) < 2 * HOST_BASE && (1..=LEN_MAX).contains(&u64::from(d.len))
        };
        if copies.is_empty() || !copies.iter().all(good) {
            return Err(MicError::Invalid("a descriptor is out of range"));
        }
        let turn = self.inner.turn.fetch_add(1, Ordering::Relaxed) % bar4::HOST_DMA_CHANNELS;
        let mut channel = lock(&self.inner.channels[turn]);
        if channel.dead {
            return Err(MicError::Dead);
        }
        channel.push(copies, done);
        self.inner.issue(turn, &mut channel);
        Ok(())
    }
}

impl Drop for Mic {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // The last owner may be a callback; a thread cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                thread.join().expect("the interrupt thread does not panic");
            }
        }
    }
}

impl Inner {
    /// Reads and checks what the card says of itself.
    fn probe(
        device: Arc<dyn HostDevice>,
        events: OnEvent,
        interrupt: OwnedFd,
    ) -> Result<Self, MicError> {
        let aperture = device.map_bar(pci::BAR_APERTURE)?;
        let spad = |index| device.read32(pci::BAR_MMIO, bar4::SPAD0 + 4 * index);
        let area = |page: u32, bytes: u64| {
            let at = u64::from(page) * PAGE;
            let inside = page != 0 && aperture.pointer(at, bytes).is_some();
            inside
                .then_some(at)
                .ok_or(MicError::Nonsense("ring address"))
        };
        if spad(spad::SCIF_VERSION)? != scif::VERSION {
            return Err(MicError::Nonsense("SCIF version"));
        }
        if u64::from(spad(spad::RING_PAGES)?) * PAGE != RING_BYTES as u64 {
            return Err(MicError::Nonsense("ring size"));
        }
        let ring_len = spad(spad::DMA_RING_LEN)?;
        if !(2..=RING_LEN_MAX).contains(&ring_len) {
            return Err(MicError::Nonsense("descriptor ring size"));
        }
        let ring_bytes = u64::from(ring_len) * DESCRIPTOR_BYTES as u64;
        let dma_bytes = ring_bytes * bar4::HOST_DMA_CHANNELS as u64;
        let node = u16::try_from(spad(spad::NODE)?).map_err(|_| MicError::Nonsense("node"))?;
        Ok(Self {
            node,
            rings: [
                area(spad(spad::RING_TO_CARD)?, RING_BYTES as u64)?,
                area(spad(spad::RING_TO_HOST)?, RING_BYTES as u64)?,
            ],
            dma_rings: area(spad(spad::DMA_RINGS)?, dma_bytes)?,
            ring_len,
            channels: std::array::from_fn(|_| Mutex::new(Channel::new(ring_len))),
            turn: AtomicUsize::new(0),
            dma_ranges: device.dma_ranges(),
            windows: Mutex::default(),
            state: Mutex::new(spad::STATE_BOOTING),
            changed: Condvar::new(),
            dead: AtomicBool::new(false),
            events,
            interrupt,
            aperture,
            device,
        })
    }

    fn enable(&self) -> Result<(), MicError> {
        self.device
            .set_vector(pci::VECTOR, self.interrupt.as_fd())?;
        let channels = (cause::DMA0 << bar4::HOST_DMA_CHANNELS) - cause::DMA0;
        self.write(bar4::SICE0, cause::SCIF | cause::STATE | channels)?;
        (0..bar4::HOST_DMA_CHANNELS).try_for_each(|index| self.start_channel(index))?;
        // Read after interrupts are on: a change from here on is announced.
        *lock(&self.state) = self.read(bar4::SPAD0 + 4 * spad::STATE)?;
        Ok(())
    }

    fn start_channel(&self, index: usize) -> Result<(), MicError> {
        let ring = self.slot(index, 0);
        let register = |r| bar4::dma_register(index, r);
        self.write(bar4::DCR, CHANNELS & !(2 << (2 * index)))?;
        self.write(register(bar4::DRAR_LO), ring as u32)?;
        let hi = self.ring_len << 4 | (ring >> 32) as u32 & 0xf;
        self.write(register(bar4::DRAR_HI), hi)?;
        self.write(bar4::DCR, CHANNELS)
    }

    fn slot(&self, channel: usize, slot: u32) -> u64 {
        let index = channel as u64 * u64::from(self.ring_len) + u64::from(slot);
        self.dma_rings + index * DESCRIPTOR_BYTES as u64
    }

    /// Issues what fits. If the card is gone, the interrupt thread fails the jobs.
    fn issue(&self, index: usize, channel: &mut Channel) {
        let head = channel.issue(|slot, bytes| {
            let inside = self.aperture.write(self.slot(index, slot), &bytes);
            assert!(inside, "the rings were checked to be in the aperture");
        });
        let _ = self.write(bar4::dma_register(index, bar4::DHPR), head);
    }

    fn run(&self, stop: &OwnedFd) {
        let why = loop {
            let stopped = || PollFd::new(stop, PollFlags::IN);
            let mut ready = [
                PollFd::new(&self.interrupt, PollFlags::IN),
                self.device.hang_up().unwrap_or_else(stopped),
                stopped(),
            ];
            if poll(&mut ready, None).is_err() {
                continue;
            }
            if !ready[2].revents().is_empty() {
                break "its driver was closed".to_owned();
            }
            if !ready[1].revents().is_empty() {
                break "it hung up".to_owned();
            }
            let _ = rustix::io::read(&self.interrupt, &mut [0; 8]);
            if let Err(e) = self.interrupted() {
                break e.to_string();
            }
        };
        self.die(why);
    }

    fn interrupted(&self) -> Result<(), MicError> {
        // Each register is a round trip to the card; its ring is here, and who waits for it need not wait for those.
        if !self.ring(1).is_empty() {
            (self.events)(Event::Scif);
        }
        let causes = self.read(bar4::SICR0)?;
        self.write(bar4::SICC0, causes)?;
        // Writes are posted. Reading back makes sure that the causes are cleared before we look:
        // a later clear could take away the announcement of what came after we looked.
        self.read(bar4::SICR0)?;
        self.device.unmask()?;
        for index in 0..bar4::HOST_DMA_CHANNELS {
            if causes & cause::DMA0 << index != 0 {
                self.look_at_channel(index)?;
            }
        }
        if causes & cause::STATE != 0 {
            let state = self.read(bar4::SPAD0 + 4 * spad::STATE)?;
            *lock(&self.state) = state;
            self.changed.notify_all();
            (self.events)(Event::State(state));
        }
        if causes & cause::SCIF != 0 {
            (self.events)(Event::Scif);
        }
        Ok(())
    }

    fn look_at_channel(&self, index: usize) -> Result<(), MicError> {
        let register = |r| self.read(bar4::dma_register(index, r));
        // Each register is a round trip to the card: the error is asked for only if there is one.
        let status = register(bar4::DSTAT)?;
        let why = match status & bar4::DSTAT_QUIET {
            0 => 0,
            // The tail has stood still since.
            _ => register(bar4::DCHERR)?,
        };
        let tail = status & bar4::DSTAT_TAIL;
        let mut channel = lock(&self.channels[index]);
        let over = channel.completed(tail);
        let over = over.ok_or(MicError::Nonsense("DMA tail"))?;
        let mut failed = None;
        if why != 0 {
            failed = channel.halted(why);
            self.start_channel(index)?;
        }
        self.issue(index, &mut channel);
        drop(channel);
        over.into_iter().for_each(|done| done(Ok(())));
        if let Some((done, error)) = failed {
            done(Err(error));
        }
        Ok(())
    }

    fn die(&self, why: String) {
        self.device.close();
        self.dead.store(true, Ordering::Release);
        drop(lock(&self.state));
        self.changed.notify_all();
        for channel in &self.channels {
            let jobs = lock(channel).kill();
            jobs.into_iter().for_each(|done| done(Err(DmaError::Dead)));
        }
        (self.events)(Event::Dead(why));
    }

    fn ring(&self, index: usize) -> Ring<'_> {
        let base = self.aperture.pointer(self.rings[index], RING_BYTES as u64);
        let base = base.expect("checked by probe");
        // SAFETY: page-aligned and inside the mapping, which lives as long as `self`; the driver
        // accesses it through rings only.
        unsafe { Ring::new(base.as_ptr()) }
    }

    fn read(&self, register: u64) -> Result<u32, MicError> {
        Ok(self.device.read32(pci::BAR_MMIO, register)?)
    }

    fn write(&self, register: u64, value: u32) -> Result<(), MicError> {
        Ok(self.device.write32(pci::BAR_MMIO, register, value)?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no state is left half-changed")
}
