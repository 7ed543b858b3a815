//! A card's PCI function and a hostile driver: whatever the driver does, the device neither panics nor
//! hangs, copies nothing outside of what it was given, and works after a reset or for the next host.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Mutex, PoisonError},
};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use snaprig_card_device::Device;
use snaprig_card_memory::{CardMemory, PAGE};
use snaprig_pci::{
    config::{ConfigSpace, MSIX_PBA, MSIX_TABLE},
    host::{DeviceError, HostDevice, Mapping},
    server::Function,
};
use snaprig_wire::{
    bar4::{self, cause, spad},
    dma::{self, DESCRIPTOR_BYTES, Descriptor, HOST_BASE, LINE_BYTES},
    pci::{BAR_APERTURE, BAR_MMIO},
    ring::HEADER_BYTES,
};

use crate::bytes::Bytes;

/// Memory of the card.
pub const CARD_BYTES: u64 = 8 << 20;
const DMA_RING_LEN: u64 = PAGE / DESCRIPTOR_BYTES as u64;
/// Host memory: what is mapped is [`MAPPED`] of it; the rest must never change.
const HOST_BYTES: u64 = 32 * PAGE;
const MAPPED: std::ops::Range<u64> = 8 * PAGE..24 * PAGE;
const CANARY: u8 = 0xc5;
/// Where a well-behaved host maps its memory, out of the hostile one's reach.
const GOOD_IOVA: u64 = 1 << 38;
/// The dword of the vector's table entry that holds its mask bit.
const MSIX_CONTROL: u64 = MSIX_TABLE as u64 + 12;
const MSIX_PENDING: u64 = MSIX_PBA as u64;
/// The dword of configuration space whose bit 30 masks all vectors.
const MSIX_CAPABILITY: u64 = 0x40;
/// What a driver does at most in one run.
const OPS_MAX: usize = 100;

/// How a host reaches the device.
pub trait Reach {
    /// The host that is there.
    fn host(&self) -> &dyn HostDevice;
    /// This host goes, another comes.
    fn next(&mut self);
}

/// The function itself, in this process.
pub struct Local {
    function: Arc<dyn Function>,
    config: Mutex<ConfigSpace>,
}

impl Local {
    /// A host is there.
    pub fn new(function: Arc<dyn Function>) -> Self {
        function.attach();
        let config = Mutex::new(ConfigSpace::new(CARD_BYTES));
        Self { function, config }
    }

    fn config<T>(&self, access: impl FnOnce(&mut ConfigSpace) -> T) -> T {
        access(&mut self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.function.detach();
    }
}

impl Reach for Local {
    fn host(&self) -> &dyn HostDevice {
        self
    }

    fn next(&mut self) {
        self.config(|config| *config = ConfigSpace::new(CARD_BYTES));
        self.function.detach();
        self.function.attach();
    }
}

fn answer(result: Result<(), i32>) -> Result<(), DeviceError> {
    result.map_err(|errno| DeviceError::Refused {
        what: "do that",
        errno,
    })
}

impl HostDevice for Local {
    fn config_read(&self, offset: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        self.config(|config| config.read(offset, to));
        Ok(())
    }

    fn config_write(&self, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        let is_masked = self.config(|config| {
            config.write(offset, from);
            config.masks_vectors()
        });
        self.function.mask_vectors(is_masked);
        Ok(())
    }

    fn bar_read(&self, bar: u32, offset: u64, to: &mut [u8]) -> Result<(), DeviceError> {
        answer(self.function.bar_read(bar, offset, to))
    }

    fn bar_write(&self, bar: u32, offset: u64, from: &[u8]) -> Result<(), DeviceError> {
        answer(self.function.bar_write(bar, offset, from))
    }

    fn map_bar(&self, bar: u32) -> Result<Mapping, DeviceError> {
        Err(DeviceError::Map {
            bar,
            why: "it is this process's own",
        })
    }

    fn dma_map(
        &self,
        iova: u64,
        len: u64,
        fd: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<(), DeviceError> {
        let fd = fd.try_clone_to_owned().expect("a descriptor");
        answer(self.function.dma_map(iova, len, fd, offset))
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), DeviceError> {
        answer(self.function.dma_unmap(iova, len))
    }

    fn set_vector(&self, vector: u32, event: BorrowedFd<'_>) -> Result<(), DeviceError> {
        let event = event.try_clone_to_owned().expect("a descriptor");
        self.function.set_vector(vector, Some(event));
        Ok(())
    }

    fn reset(&self) -> Result<(), DeviceError> {
        self.config(|config| *config = ConfigSpace::new(CARD_BYTES));
        self.function.reset();
        Ok(())
    }

    fn hang_up(&self) -> Option<PollFd<'_>> {
        None
    }

    fn close(&self) {}
}

/// A driver that does what bytes say to a device in this process.
pub fn driver(bytes: &[u8]) {
    let memory = Arc::new(CardMemory::new(CARD_BYTES).expect("memory"));
    let device = Device::new(memory, 1, 1).expect("a device");
    let link = Local::new(device.function());
    Hostile::new(device, link).run(bytes);
}

/// A ring of descriptors: what points a channel to it, and where it is.
struct Ring<'a> {
    lo: u32,
    hi: u32,
    memory: &'a CardMemory,
    at: u64,
}

impl Ring<'_> {
    fn put(&self, slot: u64, descriptor: &[u8; DESCRIPTOR_BYTES]) {
        let at = self.at + slot * DESCRIPTOR_BYTES as u64;
        self.memory.write(at, descriptor);
    }
}

/// A device, a host of it, and the host's memory.
pub struct Hostile<L> {
    device: Arc<Device>,
    link: L,
    memory: CardMemory,
}

impl<L: Reach> Hostile<L> {
    /// A host that has done nothing yet.
    pub fn new(device: Arc<Device>, link: L) -> Self {
        let memory = CardMemory::new(HOST_BYTES).expect("memory");
        memory.write(0, &[CANARY; HOST_BYTES as usize]);
        Self {
            device,
            link,
            memory,
        }
    }

    /// Does what the bytes say, and sees that the device is as good as new after it.
    pub fn run(&mut self, bytes: &[u8]) {
        let mut bytes = Bytes(bytes);
        let last = bytes.below(3);
        let len = MAPPED.end - MAPPED.start;
        self.link
            .host()
            .dma_map(0, len, self.memory.memfd(), MAPPED.start)
            .expect("a window");
        for _ in 0..OPS_MAX {
            if bytes.is_empty() {
                break;
            }
            match self.step(&mut bytes) {
                // Refusals are fine, a device that is gone is not.
                Ok(()) | Err(DeviceError::Refused { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        match last {
            0 => self.write(bar4::RGCR, bar4::RGCR_RESET),
            1 => self.link.host().reset().expect("a reset"),
            _ => self.link.next(),
        }
        self.works();
        assert!(self.canaries_live(), "a copy went outside");
    }

    fn write(&self, register: u64, value: u32) {
        let host = self.link.host();
        host.write32(BAR_MMIO, register, value).expect("a register");
    }

    fn read(&self, register: u64) -> u32 {
        let host = self.link.host();
        host.read32(BAR_MMIO, register).expect("a register")
    }

    /// The ring in card memory that is meant for channel `c`.
    fn card_ring(&self, c: usize) -> Ring<'_> {
        let at = u64::from(self.read(bar4::SPAD0 + 4 * spad::DMA_RINGS)) * PAGE + c as u64 * PAGE;
        Ring {
            lo: at as u32,
            hi: (DMA_RING_LEN as u32) << 4 | (at >> 32) as u32,
            memory: self.device.memory(),
            at,
        }
    }

    /// A ring in a page of [`MAPPED`], which is mapped at `start` bytes into the windows.
    fn host_ring(&self, start: u64, page: u64) -> Ring<'_> {
        let system = start + page * PAGE;
        let window = (system >> bar4::SMPT_SHIFT) as u32;
        Ring {
            lo: system as u32,
            hi: (DMA_RING_LEN as u32) << 4
                | bar4::DRAR_SYSTEM
                | window << 21
                | (system >> 32 & 3) as u32,
            memory: &self.memory,
            at: MAPPED.start + page * PAGE,
        }
    }

    /// Points channel `c` to a ring and starts it.
    fn start(&self, c: usize, ring: &Ring<'_>, head: u32) {
        let others = self.read(bar4::DCR) & !(2 << (2 * c));
        self.write(bar4::DCR, others);
        self.write(bar4::dma_register(c, bar4::DRAR_LO), ring.lo);
        self.write(bar4::dma_register(c, bar4::DRAR_HI), ring.hi);
        self.write(bar4::DCR, others | 2 << (2 * c));
        self.write(bar4::dma_register(c, bar4::DHPR), head);
    }

    fn step(&self, bytes: &mut Bytes<'_>) -> Result<(), DeviceError> {
        let (host, card) = (self.link.host(), self.device.memory());
        let channel = |bytes: &mut Bytes<'_>| bytes.below(bar4::HOST_DMA_CHANNELS as u64) as usize;
        let bar = |bytes: &mut Bytes<'_>| match bytes.below(3) {
            0 => BAR_MMIO,
            1 => BAR_APERTURE,
            _ => bytes.u32(),
        };
        let page = |bytes: &mut Bytes<'_>| bytes.below(40) * PAGE;
        let ring = |bytes: &mut Bytes<'_>, channel| match bytes.below(2) {
            0 => self.card_ring(channel),
            _ => {
                let pages = (MAPPED.end - MAPPED.start) / PAGE;
                self.host_ring(window(bytes) << bar4::SMPT_SHIFT, bytes.below(pages))
            }
        };
        match bytes.below(13) {
            0 => {
                let width = match bytes.below(5) {
                    0 => u64::from(bytes.u16()),
                    width => 1 << (width - 1),
                };
                host.bar_read(bar(bytes), offset(bytes), &mut vec![0; width as usize])
            }
            1 => {
                let (bar, offset) = (bar(bytes), offset(bytes));
                let len = bytes.one_of(&[4, 4, 1, 2, 8, 16]);
                host.bar_write(bar, offset, &bytes.some(len))
            }
            2 => {
                let channel = bytes.below(bar4::DMA_CHANNELS as u64) as usize;
                let register = match bytes.below(3) {
                    0 => bytes.below(16) * 4,
                    1 => bar4::DHPR,
                    _ => bytes.one_of(&[bar4::DCAR, bar4::DCHERRMSK, bar4::DRAR_LO, bar4::DRAR_HI]),
                };
                host.write32(
                    BAR_MMIO,
                    bar4::dma_register(channel, register),
                    value(bytes),
                )
            }
            3 | 4 => {
                let channel = channel(bytes);
                let ring = ring(bytes, channel);
                let slot = bytes.one_of(&[0, 0, 0, 1, 63, DMA_RING_LEN - 1]);
                for slot in slot..(slot + bytes.below(80)).min(DMA_RING_LEN) {
                    ring.put(slot, &descriptor(bytes));
                }
                Ok(())
            }
            5 => {
                let channel = channel(bytes);
                self.start(channel, &ring(bytes, channel), value(bytes));
                Ok(())
            }
            6 => {
                let ring = bytes.one_of(&[spad::RING_TO_CARD, spad::RING_TO_HOST]);
                let page = u64::from(self.read(bar4::SPAD0 + 4 * ring));
                let word = bytes.below(HEADER_BYTES as u64 / 8) * 8;
                card.store(page * PAGE + word, bytes.u64());
                // What the card's driver would do now.
                let _ = self.device.ring_to_host().push(&[1; 100]);
                let _ = self.device.ring_to_card().pop();
                Ok(())
            }
            7 => {
                let (iova, offset) = (
                    page(bytes),
                    MAPPED.start + page(bytes) % (MAPPED.end - MAPPED.start),
                );
                let len = page(bytes).min(MAPPED.end - offset);
                host.dma_map(iova, len, self.memory.memfd(), offset)
            }
            8 => host.dma_unmap(page(bytes), page(bytes)),
            9 => {
                let page = bytes.one_of(&[0, 0, 1, 16, (1 << 30) - 1]);
                let register = bar4::SMPT00 + 4 * window(bytes);
                host.write32(BAR_MMIO, register, page << 2 | u32::from(bytes.u8()) & 3)
            }
            10 => match bytes.below(4) {
                0 => {
                    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
                    host.set_vector(0, event.expect("an eventfd").as_fd())
                }
                1 => host.config_write(MSIX_CAPABILITY, &(bytes.u32() ^ 1 << 30).to_le_bytes()),
                2 => host.write32(BAR_MMIO, MSIX_CONTROL, value(bytes)),
                _ => host.read32(BAR_MMIO, MSIX_PENDING).map(drop),
            },
            11 => {
                self.write(bar4::SICE0, value(bytes));
                self.device.set_state(bytes.below(4) as u32);
                Ok(())
            }
            _ => host.reset(),
        }
    }

    /// The registers are as after power-on, two channels at once copy both ways, one with its ring in card
    /// memory and one in the host's, and a masked interrupt waits.
    fn works(&self) {
        for c in 0..bar4::HOST_DMA_CHANNELS {
            for register in [
                bar4::DCAR,
                bar4::DHPR,
                bar4::DTPR,
                bar4::DCHERR,
                bar4::DCHERRMSK,
            ] {
                assert_eq!(self.read(bar4::dma_register(c, register)), 0);
            }
        }
        for register in [bar4::SICR0, bar4::SICE0, MSIX_CONTROL, MSIX_PENDING] {
            assert_eq!(self.read(register), 0);
        }
        for n in 0..bar4::SMPT_COUNT {
            assert_eq!(self.read(bar4::SMPT00 + 4 * n), (n as u32) << 2);
        }
        let device = &self.device;
        assert_eq!(device.ring_to_card().pop(), Ok(None));
        assert_eq!(device.ring_to_host().pop(), Ok(None));
        device.ring_to_host().push(b"record").expect("room");
        assert_eq!(device.ring_to_host().pop(), Ok(Some(b"record".to_vec())));

        let host = self.link.host();
        let len = MAPPED.end - MAPPED.start;
        host.dma_map(GOOD_IOVA, len, self.memory.memfd(), MAPPED.start)
            .expect("a window");
        let bytes: Vec<u8> = (0..6 * PAGE).map(|i| ((i * 31) >> 3) as u8).collect();
        self.memory.write(MAPPED.start, &bytes);
        let window = HOST_BASE + GOOD_IOVA;
        let card = device.memory().alloc_run(6, 1).expect("card memory");
        let half = 3 * PAGE;
        let copy = |src, dst| Descriptor {
            src,
            dst,
            len: half as u32,
            interrupt: true,
        };
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        host.set_vector(0, event.as_fd()).expect("a vector");
        let causes = cause::DMA0 | cause::DMA0 << 1;
        self.write(bar4::SICE0, causes);
        let there = window + 8 * PAGE;
        let rings = [self.card_ring(0), self.host_ring(GOOD_IOVA, 15)];
        for (c, ring) in rings.iter().enumerate() {
            let at = c as u64 * half;
            ring.put(0, &copy(window + at, card + at).encode());
            ring.put(1, &copy(card + at, there + at).encode());
            self.start(c, ring, 2);
        }
        let minute = Timespec {
            tv_sec: 60,
            tv_nsec: 0,
        };
        let wait = || {
            let ready = poll(&mut [PollFd::new(&event, PollFlags::IN)], Some(&minute));
            assert_eq!(ready, Ok(1), "no interrupt");
            rustix::io::read(&event, &mut [0; 8]).expect("a signal");
        };
        while self.read(bar4::SICR0) != causes {
            wait();
        }
        let mut back = vec![0; bytes.len()];
        self.memory.read(MAPPED.start + 8 * PAGE, &mut back);
        assert!(back == bytes, "the device copies something else");
        self.write(MSIX_CONTROL, 1);
        self.write(bar4::SICE0, cause::STATE);
        // Writes are posted, and what the card does overtakes them.
        assert_eq!(self.read(MSIX_CONTROL), 1);
        assert_eq!(self.read(MSIX_PENDING), 0);
        device.set_state(spad::STATE_ONLINE);
        assert_eq!(self.read(MSIX_PENDING), 1);
        self.write(MSIX_CONTROL, 0);
        wait();
        assert_eq!(self.read(MSIX_PENDING), 0);
        (0..6).for_each(|page| device.memory().put(card + page * PAGE));
    }

    fn canaries_live(&self) -> bool {
        let mut bytes = vec![0; HOST_BYTES as usize];
        self.memory.read(0, &mut bytes);
        let (before, after) = (
            &bytes[..MAPPED.start as usize],
            &bytes[MAPPED.end as usize..],
        );
        before.iter().chain(after).all(|byte| *byte == CANARY)
    }
}

fn offset(bytes: &mut Bytes<'_>) -> u64 {
    let special = [
        bar4::SPAD0,
        bar4::SICR0,
        bar4::SICE0,
        bar4::SICC0,
        bar4::RGCR,
        bar4::SDBIC0,
        bar4::DCR,
        bar4::SMPT00,
        bar4::DMA,
        CARD_BYTES,
        u64::MAX,
    ];
    match bytes.below(3) {
        0 => bytes.one_of(&special).wrapping_add(bytes.below(20) * 4),
        1 => bytes
            .one_of(&special)
            .wrapping_sub(8)
            .wrapping_add(bytes.below(80)),
        _ => bytes.u64(),
    }
}

fn value(bytes: &mut Bytes<'_>) -> u32 {
    match bytes.below(4) {
        0 => bytes.u32(),
        _ => bytes.below(300) as u32,
    }
}

/// DMA addresses: the ends of card memory and of windows, and anything.
fn address(bytes: &mut Bytes<'_>) -> u64 {
    // Above the rings, whose descriptors a copy may overwrite otherwise.
    let card = CARD_BYTES - (4 << 20) + u64::from(bytes.u16()) * 32;
    match bytes.below(8) {
        0 => bytes.u64() % (2 * HOST_BASE),
        1 => {
            let bases = [
                0,
                CARD_BYTES,
                HOST_BASE,
                HOST_BASE + 16 * PAGE,
                2 * HOST_BASE - 1,
            ];
            let base = bytes.one_of(&bases);
            base.saturating_sub(4097)
                .saturating_add(bytes.below(8195))
                .min(2 * HOST_BASE - 1)
        }
        2..5 => HOST_BASE + (window(bytes) << bar4::SMPT_SHIFT) + u64::from(bytes.u16()),
        _ => card,
    }
}

/// One of the windows to host memory, most often one that shows something.
fn window(bytes: &mut Bytes<'_>) -> u64 {
    bytes.one_of(&[0, 0, 0, 1, 16, bar4::SMPT_COUNT - 1])
}

fn descriptor(bytes: &mut Bytes<'_>) -> [u8; DESCRIPTOR_BYTES] {
    let kind = bytes.u8();
    let interrupt = kind & 128 != 0;
    let copy = |bytes: &mut Bytes<'_>, len| {
        let (src, dst) = (address(bytes), address(bytes));
        Descriptor {
            src,
            dst,
            len,
            interrupt,
        }
        .encode()
    };
    let lines = |address| address & !(LINE_BYTES - 1);
    match kind % 16 {
        0 => copy(bytes, 1 << 20),
        1 => {
            let len = 1 + bytes.u32() % (1 << 20);
            copy(bytes, len)
        }
        2..7 => {
            let len = 1 + bytes.below(8192) as u32;
            copy(bytes, len)
        }
        7..10 => {
            let (src, dst) = (lines(address(bytes)), lines(address(bytes)));
            dma::copy_lines(src, dst, bytes.below(130), interrupt)
        }
        10 => dma::status(bytes.u64(), address(bytes) & !7, interrupt),
        11 => dma::general(bytes.u32(), address(bytes) & !3),
        12 => dma::nop(),
        // Almost right.
        13 => {
            let mut descriptor = dma::status(bytes.u64(), address(bytes), interrupt);
            descriptor[bytes.below(DESCRIPTOR_BYTES as u64) as usize] ^= 1 << bytes.below(8);
            descriptor
        }
        _ => bytes.array(),
    }
}
