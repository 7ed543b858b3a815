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
//! module is held while a callback runs or a copy is submitted.

mod channel;
mod function;

use std::{
    collections::BTreeMap,
    io,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use rustix::event::{EventfdFlags, eventfd};
use snaprig_dma::{Copy, Engine, EngineError, RegionError, RegionId};
use snaprig_wire::{
    bar4::{self, cause, spad},
    dma::{DESCRIPTOR_BYTES, Descriptor, HOST_BASE},
    ring::{RING_BYTES, Ring},
    scif,
};

use self::channel::Channel;
use crate::memory::{CardMemory, PAGE};

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

/// The card's PCI function.
pub struct Device {
    memory: Arc<CardMemory>,
    engine: Engine,
    card: RegionId,
    windows: Mutex<BTreeMap<u64, Window>>,
    channels: [Mutex<Channel>; bar4::HOST_DMA_CHANNELS],
    next_card_channel: AtomicUsize,
    interrupts: Mutex<Interrupts>,
    spads: Mutex<[u32; bar4::SPAD_COUNT as usize]>,
    doorbells: Mutex<[Option<Arc<Doorbell>>; bar4::SDBIC_COUNT as usize]>,
    connected: AtomicBool,
    stop: OwnedFd,
}

/// Host memory at one address.
struct Window {
    len: u64,
    region: RegionId,
}

#[derive(Default)]
struct Interrupts {
    cause: u32,
    enabled: u32,
    event: Option<OwnedFd>,
}

impl Interrupts {
    fn signal(&self, causes: u32) {
        if let Some(event) = &self.event
            && causes & self.enabled != 0
        {
            // Non-blocking; full means that a signal waits already.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
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
            channels: Default::default(),
            next_card_channel: AtomicUsize::new(0),
            interrupts: Mutex::default(),
            spads: Mutex::new(spads),
            doorbells: Mutex::default(),
            connected: AtomicBool::new(false),
            stop,
        }))
    }

    /// Serves the function over vfio-user until [`Device::stop`]. A client may connect after
    /// another has left.
    pub fn serve(self: &Arc<Self>, socket: &Path) -> Result<JoinHandle<()>, DeviceError> {
        let clone = |fd: io::Result<OwnedFd>| fd.map_err(|e| io_error("duplicating", e));
        let aperture = clone(self.memory.memfd().try_clone_to_owned())?;
        let stop = clone(self.stop.try_clone())?;
        let aperture = (aperture, self.memory.bytes());
        let port = Arc::new(function::Port(self.clone()));
        snaprig_pci::server::serve(socket, aperture, port, stop)
            .map_err(|e| io_error("serving the vfio-user socket", e))
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

    /// The ring that the host writes.
    pub fn ring_to_card(&self) -> Ring<'_> {
        self.ring(spad::RING_TO_CARD)
    }

    /// The ring that the card writes.
    pub fn ring_to_host(&self) -> Ring<'_> {
        self.ring(spad::RING_TO_HOST)
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

    /// Raises interrupt causes ([`cause`]).
    pub fn raise(&self, causes: u32) {
        let mut interrupts = lock(&self.interrupts);
        interrupts.cause |= causes;
        interrupts.signal(causes);
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
        let card_channels = bar4::DMA_CHANNELS - bar4::HOST_DMA_CHANNELS;
        let turn = self.next_card_channel.fetch_add(1, Ordering::Relaxed) % card_channels;
        let resolved: Result<Vec<_>, _> = copies.iter().map(|d| self.resolve(d)).collect();
        let (good, bad) = match resolved {
            Ok(good) => (good, None),
            Err(errno) => (Vec::new(), Some(errno)),
        };
        let finish = move |result: Result<(), snaprig_dma::CopyError>| {
            done(match bad {
                Some(errno) => Err(errno),
                None => result.map_err(|e| e.errno),
            });
        };
        let queue = bar4::HOST_DMA_CHANNELS + turn;
        self.engine.submit(queue, &good, Box::new(finish));
    }

    /// Where a descriptor's ranges are. The engine checks card addresses against the region.
    fn resolve(&self, descriptor: &Descriptor) -> Result<Copy, i32> {
        let len = u64::from(descriptor.len);
        Ok(Copy {
            src: self.locate(descriptor.src, len)?,
            dst: self.locate(descriptor.dst, len)?,
            len,
        })
    }

    fn locate(&self, address: u64, len: u64) -> Result<(RegionId, u64), i32> {
        let Some(iova) = address.checked_sub(HOST_BASE) else {
            let inside = self.memory.contains(address, len);
            return inside.then_some((self.card, address)).ok_or(libc::EFAULT);
        };
        let windows = lock(&self.windows);
        let (start, window) = windows.range(..=iova).next_back().ok_or(libc::EFAULT)?;
        let at = iova - start;
        let inside = at.checked_add(len).is_some_and(|end| end <= window.len);
        inside.then_some((window.region, at)).ok_or(libc::EFAULT)
    }
}

fn io_error(what: &'static str, source: io::Error) -> DeviceError {
    DeviceError::Io { what, source }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no state is left half-changed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use snaprig_pci::{host::HostDevice, vfio_user_client::VfioUserClient};
    use snaprig_wire::pci::BAR_MMIO;
    use std::{os::fd::AsFd, sync::mpsc};

    const BYTES: u64 = 16 << 20;

    /// A served device and a client of it.
    struct Bench {
        device: Arc<Device>,
        host: Option<VfioUserClient>,
        socket: std::path::PathBuf,
        server: Option<JoinHandle<()>>,
        _directory: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let socket = directory.path().join("card");
            let memory = Arc::new(CardMemory::new(BYTES).unwrap());
            let device = Device::new(memory, 1, 4).unwrap();
            let server = device.serve(&socket).unwrap();
            Self {
                host: Some(VfioUserClient::connect(&socket).unwrap()),
                device,
                socket,
                server: Some(server),
                _directory: directory,
            }
        }

        fn host(&self) -> &VfioUserClient {
            self.host.as_ref().unwrap()
        }

        fn write(&self, register: u64, value: u32) {
            self.host().write32(BAR_MMIO, register, value).unwrap();
        }

        fn read(&self, register: u64) -> u32 {
            self.host().read32(BAR_MMIO, register).unwrap()
        }

        /// Runs descriptors on channel `c` of the host's and waits for its interrupt.
        fn run(&self, c: usize, descriptors: &[Descriptor]) {
            let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            self.host().set_vector(0, event.as_fd()).unwrap();
            self.write(bar4::SICE0, cause::DMA0 << c);
            let ring = u64::from(self.read(bar4::SPAD0 + 4 * spad::DMA_RINGS)) * PAGE;
            let ring = ring + c as u64 * PAGE;
            for (i, d) in descriptors.iter().enumerate() {
                self.device.memory.write(ring + i as u64 * 16, &d.encode());
            }
            self.write(bar4::dma_register(c, bar4::DCAR), 0);
            self.write(bar4::dma_register(c, bar4::DRAR_LO), ring as u32);
            let hi = (DMA_RING_LEN as u32) << 4 | (ring >> 32) as u32;
            self.write(bar4::dma_register(c, bar4::DRAR_HI), hi);
            self.write(bar4::dma_register(c, bar4::DCAR), 1);
            self.write(bar4::dma_register(c, bar4::DHPR), descriptors.len() as u32);
            wait(&event);
            assert_eq!(self.read(bar4::SICR0), cause::DMA0 << c);
            self.write(bar4::SICC0, u32::MAX);
        }
    }

    /// Waits for a signal; the server made the eventfd non-blocking.
    fn wait(event: &OwnedFd) {
        use rustix::event::{PollFd, PollFlags, poll};
        poll(&mut [PollFd::new(event, PollFlags::IN)], None).unwrap();
        rustix::io::read(event, &mut [0; 8]).unwrap();
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            self.host = None;
            self.device.stop();
            self.server.take().unwrap().join().unwrap();
            assert!(!self.socket.exists());
        }
    }

    #[test]
    fn scratchpads_doorbells_and_interrupts_work_and_a_second_client_may_come() {
        let mut bench = Bench::new();
        let (send, rung) = mpsc::channel();
        let ring: Doorbell = Box::new(move || send.send(()).unwrap());
        bench.device.on_doorbell(bar4::DOORBELL_SCIF, ring);
        for _ in 0..2 {
            assert_eq!(bench.read(bar4::SPAD0 + 4 * spad::NODE), 1);
            bench.write(bar4::SDBIC0, 1);
            rung.recv().unwrap();
            let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            bench.host().set_vector(0, event.as_fd()).unwrap();
            bench.write(bar4::SICE0, cause::STATE);
            assert_eq!(bench.read(bar4::SICE0), cause::STATE);
            bench.device.set_state(spad::STATE_ONLINE);
            wait(&event);
            assert_eq!(bench.read(bar4::SICR0), cause::STATE);
            assert!(bench.device.host_connected());
            bench.host = None;
            bench.host = Some(VfioUserClient::connect(&bench.socket).unwrap());
        }
    }

    #[test]
    fn dma_copies_both_ways_at_any_alignment_and_names_the_bad_descriptor() {
        let bench = Bench::new();
        let memfd = CardMemory::new(BYTES).unwrap();
        bench
            .host()
            .dma_map(4096, 8 << 20, memfd.memfd(), 4096)
            .unwrap();
        let card = bench.device.memory.alloc_run(512, 1).unwrap();
        for len in [1u32, 4097, 1 << 20] {
            let bytes: Vec<u8> = (0..len).map(|i| ((i * 31) >> 3) as u8).collect();
            memfd.write(5001, &bytes);
            let copy = |src, dst| Descriptor {
                src,
                dst,
                len,
                interrupt: true,
            };
            bench.run(1, &[copy(HOST_BASE + 5001, card + 3)]);
            bench.run(2, &[copy(card + 3, HOST_BASE + (4 << 20) + 1)]);
            let mut back = vec![0; len as usize];
            memfd.read((4 << 20) + 1, &mut back);
            assert!(back == bytes, "{len}");
        }
        let good = Descriptor {
            src: card,
            dst: card + 64,
            len: 8,
            interrupt: false,
        };
        let bad = Descriptor {
            dst: HOST_BASE + (9 << 20),
            ..good
        };
        bench.run(3, &[good, bad, good]);
        let register = |r| bench.read(bar4::dma_register(3, r));
        assert_eq!((register(bar4::DSTAT), register(bar4::DCHERR)), (1, 1));
        assert_eq!(register(bar4::DCHERRMSK), libc::EFAULT as u32);
        bench.host().dma_unmap(4096, 8 << 20).unwrap();
    }

    #[test]
    fn the_hosts_driver_copies_fails_one_job_and_notices_the_end() {
        use snaprig_pci::mic::{DmaError, Event, Mic};
        let mut bench = Bench::new();
        bench.host = None;
        let (send, events) = mpsc::channel();
        let client = Arc::new(VfioUserClient::connect(&bench.socket).unwrap());
        let on_event = Box::new(move |event| send.send(event).unwrap());
        let mic = Mic::open(client, on_event).unwrap();
        bench.device.set_state(spad::STATE_ONLINE);
        mic.wait_online(std::time::Duration::from_secs(60)).unwrap();
        assert_eq!(events.recv().unwrap(), Event::State(spad::STATE_ONLINE));
        let host = CardMemory::new(BYTES).unwrap();
        host.write(7, &[42; 600]);
        let window = mic.map(host.memfd(), 0, BYTES).unwrap();
        let card = bench.device.memory.alloc_run(1, 1).unwrap();
        let (send, results) = mpsc::channel();
        let start = |copies| {
            let send = send.clone();
            mic.dma(copies, Box::new(move |r| send.send(r).unwrap()))
                .unwrap();
            results.recv().unwrap()
        };
        let copy = |src, dst| Descriptor {
            src,
            dst,
            len: 1,
            interrupt: false,
        };
        let many = (0..600).map(|i| copy(window + 7 + i, card + i)).collect();
        assert_eq!(start(many), Ok(()));
        let mut bytes = [0; 600];
        bench.device.memory.read(card, &mut bytes);
        assert_eq!(bytes, [42; 600]);
        for _ in 0..bar4::HOST_DMA_CHANNELS {
            let errno = libc::EFAULT;
            let bad = vec![copy(card, card + 1), copy(window + BYTES, card)];
            assert_eq!(start(bad), Err(DmaError::Copy { index: 1, errno }));
            assert_eq!(start(vec![copy(card, card + 1)]), Ok(()));
        }
        mic.unmap(window).unwrap();
        bench.device.stop();
        assert!(matches!(events.recv().unwrap(), Event::Dead(_)));
        assert!(mic.is_dead() && mic.doorbell().is_err());
    }
}
