//! The device and an ordinary host.

use super::*;
use snaprig_pci::{host::HostDevice, vfio_user_client::VfioUserClient};
use snaprig_wire::pci::BAR_MMIO;
use std::{os::fd::AsFd, sync::mpsc};

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
        let ring = self.ring(c);
        for (i, d) in descriptors.iter().enumerate() {
            self.device.memory.write(ring + i as u64 * 16, &d.encode());
        }
        self.write(bar4::dma_register(c, bar4::DCAR), 0);
        self.write(bar4::dma_register(c, bar4::DRAR_LO), ring as u32);
        let hi = (DMA_RING_LEN as u32) << 4 | (ring >> 32) as u32;
        self.write(bar4::dma_register(c, bar4::DRAR_HI), hi);
        self.write(bar4::dma_register(c, bar4::DCAR), 1);
        self.write(bar4::dma_register(c, bar4::DHPR), descriptors.len() as u32);
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
