//! The device and a hostile host: whatever the host does, the device neither panics nor hangs, copies
//! nothing outside of what it was given, and works after a reset or for the next host.

use std::{os::fd::AsFd, sync::mpsc, time::Duration};

use proptest::prelude::*;
use snaprig_pci::{
    host::{DeviceError as HostError, HostDevice},
    vfio_user_client::VfioUserClient,
};
use snaprig_wire::{
    pci::{BAR_APERTURE, BAR_MMIO},
    ring::HEADER_BYTES,
};

use super::{
    tests::{BYTES, Bench},
    *,
};

/// Host memory: what is mapped is [`MAPPED`] of it; the rest must never change.
const HOST_BYTES: u64 = 32 * PAGE;
const MAPPED: std::ops::Range<u64> = 8 * PAGE..24 * PAGE;
const CANARY: u8 = 0xc5;
/// Where a well-behaved host maps its memory, out of the hostile one's reach.
const GOOD_IOVA: u64 = 1 << 38;

#[derive(Clone, Debug)]
enum Op {
    Read(u32, u64, usize),
    Write(u32, u64, Vec<u8>),
    /// A channel's register.
    Dma(usize, u64, u32),
    /// Descriptors into a channel's own ring, from this slot on.
    Descriptors(usize, u64, Vec<[u8; DESCRIPTOR_BYTES]>),
    /// A channel is pointed to its own ring and started.
    Start(usize, u32),
    /// A word in the header of one of the SCIF rings.
    RingHeader(bool, u64, u64),
    Map(u64, u64, u64),
    Unmap(u64, u64),
    Reset,
}

fn offset() -> impl Strategy<Value = u64> {
    let special = [
        bar4::SPAD0,
        bar4::SICR0,
        bar4::SICE0,
        bar4::SICC0,
        bar4::RGCR,
        bar4::SDBIC0,
        bar4::DCR,
        bar4::SMPT00,
        0,
        0x800,
        BYTES,
        u64::MAX,
    ];
    prop_oneof![
        any::<u64>(),
        0..bar4::DMA + 0x400,
        (prop::sample::select(special.to_vec()), -8..72i64)
            .prop_map(|(base, by)| base.wrapping_add_signed(by)),
    ]
}

/// DMA addresses: the ends of card memory and of windows, and anything.
fn address() -> impl Strategy<Value = u64> {
    let bases = vec![
        0,
        BYTES,
        HOST_BASE,
        HOST_BASE + 16 * PAGE,
        2 * HOST_BASE - 1,
    ];
    prop_oneof![
        1 => 0..2 * HOST_BASE,
        8 => 0..BYTES - (1 << 20),
        1 => HOST_BASE..HOST_BASE + 40 * PAGE,
        8 => HOST_BASE..HOST_BASE + 14 * PAGE,
        2 => (prop::sample::select(bases), -4097..4097i64)
            .prop_map(|(base, by)| base.saturating_add_signed(by).min(2 * HOST_BASE - 1)),
    ]
}

fn descriptor() -> impl Strategy<Value = [u8; DESCRIPTOR_BYTES]> {
    let len = prop_oneof![1 => 1..=1u32 << 20, 6 => 1..8192u32, 1 => Just(1 << 20)];
    let good = (address(), address(), len, any::<bool>()).prop_map(|(src, dst, len, interrupt)| {
        Descriptor {
            src,
            dst,
            len,
            interrupt,
        }
        .encode()
    });
    prop_oneof![20 => good, 1 => any::<[u8; DESCRIPTOR_BYTES]>()]
}

fn op() -> impl Strategy<Value = Op> {
    let bar = prop_oneof![Just(BAR_APERTURE), Just(BAR_MMIO), any::<u32>()];
    let width = prop_oneof![Just(1), Just(2), Just(4), Just(8), 0..70_000usize];
    let bytes = prop_oneof![
        any::<[u8; 4]>().prop_map(Vec::from),
        prop::collection::vec(any::<u8>(), 0..16),
    ];
    let channel = 0..bar4::DMA_CHANNELS;
    let register = prop_oneof![
        (0..16u64).prop_map(|r| r * 4),
        Just(bar4::DHPR),
        Just(bar4::DCAR)
    ];
    let value = prop_oneof![1 => any::<u32>(), 1 => 0..300u32, 4 => 0..20u32];
    let pages = || (0..40u64).prop_map(|p| p * PAGE);
    let host_channel = 0..bar4::HOST_DMA_CHANNELS;
    let slot = prop_oneof![4 => Just(0), 1 => 0..DMA_RING_LEN];
    let list = prop::collection::vec(descriptor(), 1..80);
    prop_oneof![
        2 => (bar.clone(), offset(), width).prop_map(|(b, o, w)| Op::Read(b, o, w)),
        2 => (bar, offset(), bytes).prop_map(|(b, o, v)| Op::Write(b, o, v)),
        2 => (channel, register, value.clone()).prop_map(|(c, r, v)| Op::Dma(c, r, v)),
        4 => (host_channel.clone(), slot, list).prop_map(|(c, s, d)| Op::Descriptors(c, s, d)),
        4 => (host_channel, value).prop_map(|(c, head)| Op::Start(c, head)),
        1 => (any::<bool>(), 0..HEADER_BYTES as u64 / 8, any::<u64>())
            .prop_map(|(ring, word, value)| Op::RingHeader(ring, word * 8, value)),
        2 => (pages(), pages(), pages()).prop_map(|(iova, offset, len)| Op::Map(iova, offset, len)),
        1 => (pages(), pages()).prop_map(|(iova, len)| Op::Unmap(iova, len)),
        1 => Just(Op::Reset),
    ]
}

/// The bench, with the host's memory.
struct Hostile {
    bench: Bench,
    memory: CardMemory,
}

impl Hostile {
    fn new() -> Self {
        let memory = CardMemory::new(HOST_BYTES).unwrap();
        memory.write(0, &[CANARY; HOST_BYTES as usize]);
        Self {
            bench: Bench::new(),
            memory,
        }
    }

    /// Does it; refusals are fine, a device that is gone is not.
    fn apply(&self, op: Op) -> Result<(), HostError> {
        let (host, card) = (self.bench.host(), &self.bench.device.memory);
        let done = match op {
            Op::Read(bar, offset, width) => host.bar_read(bar, offset, &mut vec![0; width]),
            Op::Write(bar, offset, bytes) => host.bar_write(bar, offset, &bytes),
            Op::Dma(channel, register, value) => {
                host.write32(BAR_MMIO, bar4::dma_register(channel, register), value)
            }
            Op::Descriptors(channel, slot, list) => {
                let ring = self.bench.ring(channel);
                for (i, bytes) in (slot..DMA_RING_LEN).zip(list) {
                    card.write(ring + i * DESCRIPTOR_BYTES as u64, &bytes);
                }
                Ok(())
            }
            Op::Start(channel, head) => {
                self.bench.start(channel, &[]);
                host.write32(BAR_MMIO, bar4::dma_register(channel, bar4::DHPR), head)
            }
            Op::RingHeader(to_host, word, value) => {
                let page = [spad::RING_TO_CARD, spad::RING_TO_HOST][usize::from(to_host)];
                let page = u64::from(self.bench.read(bar4::SPAD0 + 4 * page));
                card.store(page * PAGE + word, value);
                // What the card's driver would do now.
                let _ = self.bench.device.ring_to_host().push(&[1; 100]);
                let _ = self.bench.device.ring_to_card().pop();
                Ok(())
            }
            Op::Map(iova, offset, len) => {
                let offset = MAPPED.start + offset % (MAPPED.end - MAPPED.start);
                let len = len.min(MAPPED.end - offset);
                host.dma_map(iova, len, self.memory.memfd(), offset)
            }
            Op::Unmap(iova, len) => host.dma_unmap(iova, len),
            Op::Reset => host.reset(),
        };
        match done {
            Err(HostError::Refused { .. }) => Ok(()),
            other => other,
        }
    }

    /// The registers are as after power-on, and two channels at once copy both ways.
    fn works(&self) {
        let bench = &self.bench;
        for c in 0..bar4::HOST_DMA_CHANNELS {
            for register in [
                bar4::DCAR,
                bar4::DHPR,
                bar4::DTPR,
                bar4::DCHERR,
                bar4::DCHERRMSK,
            ] {
                assert_eq!(bench.read(bar4::dma_register(c, register)), 0);
            }
        }
        assert_eq!((bench.read(bar4::SICR0), bench.read(bar4::SICE0)), (0, 0));
        let device = &bench.device;
        assert_eq!(device.ring_to_card().pop(), Ok(None));
        assert_eq!(device.ring_to_host().pop(), Ok(None));
        device.ring_to_host().push(b"record").unwrap();
        assert_eq!(device.ring_to_host().pop(), Ok(Some(b"record".to_vec())));

        let bytes: Vec<u8> = (0..8 * PAGE).map(|i| ((i * 31) >> 3) as u8).collect();
        self.memory.write(MAPPED.start, &bytes);
        let window = HOST_BASE + GOOD_IOVA;
        let card = device.memory.alloc_run(8, 1).unwrap();
        let copy = |src, dst| Descriptor {
            src,
            dst,
            len: 4 * PAGE as u32,
            interrupt: true,
        };
        let half = 4 * PAGE;
        bench.run(&[
            (0, &[copy(window, card), copy(card, window + 8 * PAGE)]),
            (
                1,
                &[
                    copy(window + half, card + half),
                    copy(card + half, window + 12 * PAGE),
                ],
            ),
        ]);
        let mut back = vec![0; bytes.len()];
        self.memory.read(MAPPED.start + 8 * PAGE, &mut back);
        assert!(back == bytes);
        (0..8).for_each(|page| device.memory.put(card + page * PAGE));
    }

    fn map_good(&self) {
        let len = MAPPED.end - MAPPED.start;
        let host = self.bench.host();
        host.dma_map(GOOD_IOVA, len, self.memory.memfd(), MAPPED.start)
            .unwrap();
    }

    fn next_host(&mut self) {
        self.bench.host = None;
        self.bench.host = Some(VfioUserClient::connect(&self.bench.socket).unwrap());
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

proptest! {
    #[test]
    fn a_hostile_host_breaks_nothing(ops in prop::collection::vec(op(), 1..60), last in 0..3) {
        let mut hostile = Hostile::new();
        hostile.apply(Op::Map(0, 0, HOST_BYTES)).unwrap();
        for op in ops {
            let what = format!("{op:?}");
            hostile.apply(op).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
        match last {
            0 => hostile.bench.write(bar4::RGCR, bar4::RGCR_RESET),
            1 => hostile.bench.host().reset().unwrap(),
            _ => hostile.next_host(),
        }
        hostile.map_good();
        hostile.works();
        prop_assert!(hostile.canaries_live());
    }
}

/// Copies of 1 MiB within card memory, a batch of them.
fn long_copies() -> Vec<Descriptor> {
    let copy = Descriptor {
        src: BYTES - (2 << 20),
        dst: BYTES - (1 << 20),
        len: 1 << 20,
        interrupt: false,
    };
    vec![copy; 64]
}

#[test]
fn a_new_host_finds_a_clean_device_and_the_old_ones_dma_over() {
    let mut hostile = Hostile::new();
    for round in 0..8 {
        for c in 0..bar4::HOST_DMA_CHANNELS {
            hostile.bench.start(c, &long_copies());
        }
        for ring in [false, true] {
            hostile.apply(Op::RingHeader(ring, 0, u64::MAX)).unwrap();
        }
        match round % 2 {
            0 => hostile.next_host(),
            _ => hostile.bench.host().reset().unwrap(),
        }
        // The reply to this is sent after the old host was detached.
        hostile.bench.read(bar4::SICR0);
        let channels = &hostile.bench.device.channels;
        assert!(channels.iter().all(|c| !lock(c).running()));
        hostile.next_host();
        hostile.map_good();
        hostile.works();
    }
    assert!(hostile.canaries_live());
}

/// The host shares the eventfd's file description, so it may make it blocking, and full, at any time.
#[test]
fn a_full_blocking_eventfd_does_not_hold_the_card_up() {
    use rustix::fs::{OFlags, fcntl_setfl};
    let bench = Bench::new();
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    bench.host().set_vector(0, event.as_fd()).unwrap();
    bench.write(bar4::SICE0, cause::STATE);
    assert_eq!(bench.read(bar4::SICE0), cause::STATE);
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fcntl_setfl(&event, OFlags::empty()).unwrap();
    let (device, (send, raised)) = (bench.device.clone(), mpsc::channel());
    let card = std::thread::spawn(move || {
        device.set_state(spad::STATE_ONLINE);
        send.send(()).unwrap();
    });
    let raised = raised.recv_timeout(Duration::from_secs(20));
    // Whoever is held up goes on now.
    rustix::io::read(&event, &mut [0; 8]).unwrap();
    card.join().unwrap();
    assert_eq!(raised, Ok(()));
    assert_eq!(bench.read(bar4::SICR0), cause::STATE);
}

/// One client at a time: the second waits until the first is gone, and finds nothing of it. One that
/// only connects, or says half of something, holds nobody up once it leaves.
#[test]
fn a_second_client_waits_for_the_first_and_half_a_message_hurts_nobody() {
    use std::{io::Write, os::unix::net::UnixStream};
    let mut hostile = Hostile::new();
    hostile.bench.start(0, &long_copies());
    let mut silent = UnixStream::connect(&hostile.bench.socket).unwrap();
    silent.write_all(&[0, 0, 1]).unwrap();
    let socket = hostile.bench.socket.clone();
    let (send, connected) = mpsc::channel();
    let second = std::thread::spawn(move || {
        let client = VfioUserClient::connect(&socket).unwrap();
        send.send(()).unwrap();
        client
    });
    // The first is still served, as if nobody waited.
    assert_eq!(hostile.bench.read(bar4::SPAD0 + 4 * spad::NODE), 1);
    assert!(connected.try_recv().is_err());
    drop(silent);
    hostile.bench.host = None;
    hostile.bench.host = Some(second.join().unwrap());
    hostile.map_good();
    hostile.works();
}

/// Resets in a row, by both ways, with transfers between host and card under way.
#[test]
fn a_storm_of_resets_in_mid_transfer_leaves_a_device_that_works() {
    let hostile = Hostile::new();
    hostile.map_good();
    let copy = |src, dst| Descriptor {
        src,
        dst,
        len: 16 * PAGE as u32,
        interrupt: true,
    };
    let (window, card) = (HOST_BASE + GOOD_IOVA, BYTES - (1 << 20));
    let transfers = [copy(window, card), copy(card, window)].repeat(30);
    let bench = &hostile.bench;
    for round in 0..100 {
        for c in 0..bar4::HOST_DMA_CHANNELS {
            bench.start(c, &transfers);
        }
        match round % 2 {
            0 => bench.write(bar4::RGCR, bar4::RGCR_RESET),
            _ => bench.host().reset().unwrap(),
        }
        // The reply comes after the reset: nothing of before it goes on, or is announced.
        assert_eq!(bench.read(bar4::SICR0), 0);
        assert!(bench.device.channels.iter().all(|c| !lock(c).running()));
    }
    hostile.works();
    assert!(hostile.canaries_live());
}
