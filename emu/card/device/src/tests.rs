//! The device and an ordinary host.

use std::{os::fd::AsFd, sync::mpsc};

use snaprig_pci::{
    config::{MSIX_PBA, MSIX_TABLE},
    host::HostDevice,
    vfio_user_client::VfioUserClient,
};
use snaprig_wire::{dma, pci::BAR_MMIO};

use super::*;

pub(super) const BYTES: u64 = 16 << 20;

/// A served device and a client of it.
pub(super) struct Bench {
    pub(super) device: Arc<Device>,
    pub(super) host: Option<VfioUserClient>,
    pub(super) socket: std::path::PathBuf,
    server: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Bench {
    pub(super) fn new() -> Self {
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

    pub(super) fn host(&self) -> &VfioUserClient {
        self.host.as_ref().unwrap()
    }

    pub(super) fn write(&self, register: u64, value: u32) {
        self.host().write32(BAR_MMIO, register, value).unwrap();
    }

    pub(super) fn read(&self, register: u64) -> u32 {
        self.host().read32(BAR_MMIO, register).unwrap()
    }

    /// The page of descriptors that is meant for channel `c`.
    pub(super) fn ring(&self, c: usize) -> u64 {
        u64::from(self.read(bar4::SPAD0 + 4 * spad::DMA_RINGS)) * PAGE + c as u64 * PAGE
    }

    /// Puts descriptors into channel `c`'s ring and starts it.
    pub(super) fn start(&self, c: usize, descriptors: &[Descriptor]) {
        let bytes: Vec<_> = descriptors.iter().map(Descriptor::encode).collect();
        self.start_raw(c, &bytes);
    }

    pub(super) fn start_raw(&self, c: usize, descriptors: &[[u8; DESCRIPTOR_BYTES]]) {
        let ring = self.ring(c);
        for (i, bytes) in descriptors.iter().enumerate() {
            self.device.memory.write(ring + i as u64 * 16, bytes);
        }
        let hi = (DMA_RING_LEN as u32) << 4 | (ring >> 32) as u32;
        self.start_ring(c, (ring as u32, hi), descriptors.len() as u32);
    }

    /// Points channel `c` to a ring and starts it.
    pub(super) fn start_ring(&self, c: usize, (lo, hi): (u32, u32), head: u32) {
        let others = self.read(bar4::DCR) & !(2 << (2 * c));
        self.write(bar4::DCR, others);
        self.write(bar4::dma_register(c, bar4::DRAR_LO), lo);
        self.write(bar4::dma_register(c, bar4::DRAR_HI), hi);
        self.write(bar4::DCR, others | 2 << (2 * c));
        self.write(bar4::dma_register(c, bar4::DHPR), head);
    }

    /// Runs each list of descriptors on its channel, all at once, and waits for their interrupts.
    pub(super) fn run(&self, lists: &[(usize, &[Descriptor])]) {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        self.host().set_vector(0, event.as_fd()).unwrap();
        let causes = lists.iter().fold(0, |set, (c, _)| set | cause::DMA0 << c);
        self.write(bar4::SICE0, causes);
        lists.iter().for_each(|(c, list)| self.start(*c, list));
        while self.read(bar4::SICR0) != causes {
            wait(&event);
        }
        self.write(bar4::SICC0, u32::MAX);
    }
}

/// Waits for a signal; the server made the eventfd non-blocking.
fn wait(event: &OwnedFd) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let minute = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let ready = poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&minute));
    assert_eq!(ready, Ok(1), "no interrupt");
    rustix::io::read(event, &mut [0; 8]).unwrap();
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.host = None;
        self.device.stop();
        self.server.take().unwrap().join().unwrap();
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
        bench.run(&[(1, &[copy(HOST_BASE + 5001, card + 3)])]);
        bench.run(&[(2, &[copy(card + 3, HOST_BASE + (4 << 20) + 1)])]);
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
    bench.run(&[(3, &[good, bad, good])]);
    let register = |r| bench.read(bar4::dma_register(3, r));
    assert_eq!(register(bar4::DSTAT), 1 | bar4::DSTAT_QUIET);
    assert_eq!(
        (register(bar4::DTPR), register(bar4::DCHERR)),
        (1, error::DESTINATION)
    );
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
        let why = error::SOURCE;
        let bad = vec![copy(card, card + 1), copy(window + BYTES, card)];
        assert_eq!(start(bad), Err(DmaError::Copy { index: 1, why }));
        assert_eq!(start(vec![copy(card, card + 1)]), Ok(()));
    }
    mic.unmap(window).unwrap();
    bench.device.stop();
    assert!(matches!(events.recv().unwrap(), Event::Dead(_)));
    assert!(mic.is_dead() && mic.doorbell().is_err());
}

#[test]
fn every_type_of_descriptor_runs_in_order_and_a_status_says_how_far() {
    let bench = Bench::new();
    let card = bench.device.memory.alloc_run(1, 1).unwrap();
    let word = |at: u64| {
        let mut bytes = [0; 8];
        bench.device.memory.read(card + at, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    bench.device.memory.write(card, &[1; 64]);
    bench.start_raw(
        0,
        &[
            dma::nop(),
            dma::copy_lines(card, card + 64, 1, false),
            dma::general(0x0202_0202, card + 64),
            dma::copy_lines(card + 64, card + 128, 1, false),
            dma::status(0x0303, card + 256, true),
        ],
    );
    while bench.read(bar4::SICR0) & cause::DMA0 == 0 {}
    assert_eq!(word(128), 0x0101_0101_0202_0202);
    assert_eq!((word(136), word(256)), (0x0101_0101_0101_0101, 0x0303));
    let register = |r| bench.read(bar4::dma_register(0, r));
    assert_eq!((register(bar4::DSTAT), register(bar4::DCHERR)), (5, 0));
}

#[test]
fn a_bad_descriptor_halts_its_channel_alone_with_its_index_and_the_cause() {
    let bench = Bench::new();
    let card = bench.device.memory.alloc_run(1, 1).unwrap();
    let status = |value| dma::status(value, card + 8, false);
    let nowhere = HOST_BASE + (1 << 30);
    for (bad, why) in [
        ([0xff; DESCRIPTOR_BYTES], error::TYPE),
        (dma::copy_lines(card, card + 64, 0, false), error::LENGTH),
        (dma::copy_lines(card + 8, card, 1, false), error::ALIGNMENT),
        (dma::copy_lines(BYTES - 64, card, 2, false), error::SOURCE),
        (dma::copy_lines(card, nowhere, 1, false), error::DESTINATION),
        (dma::status(1, BYTES, false), error::DESTINATION),
    ] {
        bench.start_raw(1, &[status(7), bad, status(8)]);
        let register = |r| bench.read(bar4::dma_register(1, r));
        while register(bar4::DCHERR) == 0 {}
        assert_eq!((register(bar4::DTPR), register(bar4::DCHERR)), (1, why));
        assert_eq!(bench.read(bar4::SICR0), cause::DMA0 << 1);
        let mut done = [0];
        bench.device.memory.read(card + 8, &mut done);
        assert_eq!(done, [7], "what comes after it does not run");
        bench.write(bar4::SICR0, u32::MAX);
        // The other channels go on.
        bench.start_raw(2, &[dma::status(9, card + 16, true)]);
        while bench.read(bar4::SICR0) != cause::DMA0 << 2 {}
        bench.write(bar4::SICC0, u32::MAX);
    }
    let ring = bench.ring(1) as u32;
    for (lo, hi) in [
        (ring, 1 << 4),
        (ring + 16, 16 << 4),
        (0, 16 << 4 | 0xf),
        (ring, 4 << 4),
    ] {
        bench.start_ring(1, (lo, hi), 5);
        let register = bar4::dma_register(1, bar4::DCHERR);
        while bench.read(register) == 0 {}
        assert_eq!(bench.read(register), error::RING);
    }
}

/// As Linux's former driver does it: the ring is in host memory, and a window is moved to where the
/// host's addresses are.
#[test]
fn windows_move_and_rings_may_be_in_host_memory() {
    const IOVA: u64 = 0x7fff << bar4::SMPT_SHIFT;
    let bench = Bench::new();
    let host = CardMemory::new(BYTES).unwrap();
    bench.host().dma_map(IOVA, BYTES, host.memfd(), 0).unwrap();
    let window = HOST_BASE + (31 << bar4::SMPT_SHIFT);
    assert_eq!(bench.read(bar4::SMPT00 + 4 * 31), 31 << 2);
    bench.write(bar4::SMPT00 + 4 * 31, 0x7fff << 2);
    host.write(0, &[5; 128]);
    for (slot, descriptor) in [
        dma::copy_lines(window, window + 8192, 2, false),
        dma::status(6, window + 8200, true),
    ]
    .iter()
    .enumerate()
    {
        host.write(4096 + 16 * slot as u64, descriptor);
    }
    let hi = 64 << 4 | bar4::DRAR_SYSTEM | 31 << 21;
    bench.start_ring(3, (4096, hi), 2);
    while bench.read(bar4::SICR0) & cause::DMA0 << 3 == 0 {}
    let mut bytes = [0; 16];
    host.read(8192, &mut bytes);
    assert_eq!(bytes, [5, 5, 5, 5, 5, 5, 5, 5, 6, 0, 0, 0, 0, 0, 0, 0]);
    // Unmapped, it is gone: for the ring, too.
    bench.host().dma_unmap(IOVA, BYTES).unwrap();
    bench.write(bar4::dma_register(3, bar4::DHPR), 3);
    while bench.read(bar4::dma_register(3, bar4::DCHERR)) == 0 {}
    bench.host().reset().unwrap();
    assert_eq!(bench.read(bar4::SMPT00 + 4 * 31), 31 << 2);
}

#[test]
fn a_masked_vector_is_pending_and_fires_once_when_it_is_unmasked() {
    const CONTROL: u64 = MSIX_TABLE as u64 + 12;
    const PENDING: u64 = MSIX_PBA as u64;
    /// Message control of the MSI-X capability, at 0x40; its mask bit is the 30th of the dword.
    const CAPABILITY: u64 = 0x40;
    let bench = Bench::new();
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    bench.host().set_vector(0, event.as_fd()).unwrap();
    bench.write(bar4::SICE0, cause::STATE);
    let function_mask = |bits: u32| {
        let bytes = bits.to_le_bytes();
        bench.host().config_write(CAPABILITY, &bytes).unwrap();
    };
    let quiet = || rustix::io::read(&event, &mut [0; 8]) == Err(rustix::io::Errno::AGAIN);
    let masks: [&dyn Fn(bool); 2] = [&|masked| bench.write(CONTROL, masked.into()), &|masked| {
        function_mask(u32::from(masked) << 30)
    }];
    for mask in masks {
        mask(true);
        assert_eq!(bench.read(PENDING), 0);
        bench.device.set_state(spad::STATE_ONLINE);
        bench.device.set_state(spad::STATE_ONLINE);
        assert_eq!(
            (bench.read(PENDING), bench.read(bar4::SICR0)),
            (1, cause::STATE)
        );
        assert!(quiet());
        mask(false);
        assert_eq!(bench.read(PENDING), 0);
        wait(&event);
        assert!(quiet());
        bench.write(bar4::SICC0, u32::MAX);
        // The write is posted, and the next cause does not come by the same way.
        assert_eq!(bench.read(bar4::SICR0), 0);
    }
    // The host closes its eventfd: ours is a duplicate, and goes with the next one.
    drop(event);
    bench.device.set_state(spad::STATE_ONLINE);
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    bench.host().set_vector(0, event.as_fd()).unwrap();
    wait(&event);
}
