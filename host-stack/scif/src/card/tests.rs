//! The driver on a card of its own, and hosts that come, go and misbehave.

use std::{
    sync::{
        Weak,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use snaprig_card_driver::{
    device::{Pinned, UserMemory, WakeTarget},
    errno::Errno,
    file::{Cx, File},
    wait::{Channel, Stop, SysResult},
};
use snaprig_card_memory::CardMemory;
use snaprig_pci::{host::HostDevice, vfio_user_client::VfioUserClient};
use snaprig_wire::{
    bar4,
    pci::BAR_MMIO,
    scif::{Body, Extent, Message, PAGE, PortId, Way},
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// A program's memory, from address 0 on. Pinning takes frames of the card.
struct Memory {
    bytes: Vec<u8>,
    card: Arc<CardMemory>,
}

impl Memory {
    fn at(&mut self, address: u64, len: usize) -> Result<&mut [u8], Errno> {
        let end = address as usize + len;
        self.bytes
            .get_mut(address as usize..end)
            .ok_or(Errno::EFAULT)
    }
}

impl UserMemory for Memory {
    fn maps(&self) -> String {
        String::new()
    }

    fn read(&mut self, address: u64, to: &mut [u8]) -> Result<(), Errno> {
        to.copy_from_slice(self.at(address, to.len())?);
        Ok(())
    }

    fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Errno> {
        self.at(address, from.len())?.copy_from_slice(from);
        Ok(())
    }

    fn writable(&mut self, address: u64, len: usize) -> usize {
        len.min(self.bytes.len().saturating_sub(address as usize))
    }

    fn pin(&mut self, _: u64, len: u64, _: bool) -> Result<Pinned, Errno> {
        struct Frames(Arc<CardMemory>, u64, u64);
        impl Drop for Frames {
            fn drop(&mut self) {
                (0..self.2).for_each(|page| self.0.put(self.1 + page * PAGE));
            }
        }
        let pages = len / PAGE;
        let at = self
            .card
            .alloc_run(pages as usize, 1)
            .ok_or(Errno::ENOMEM)?;
        Ok(Pinned {
            extents: vec![(at, len)],
            guard: Arc::new(Frames(self.card.clone(), at, pages)),
        })
    }
}

struct Woken(Mutex<Sender<Channel>>);

impl WakeTarget for Woken {
    fn wake(&self, channel: Channel) {
        // Nobody listens once the test is over.
        let _ = lock(&self.0).send(channel);
    }
}

/// A card with a driver and one program, which runs on the test's thread.
struct Card {
    device: Arc<Device>,
    driver: Arc<Driver>,
    scif: ScifDevice,
    memory: Memory,
    waker: Waker,
    woken: Receiver<Channel>,
    _target: Arc<Woken>,
    server: Option<JoinHandle<()>>,
    directory: tempfile::TempDir,
}

impl Card {
    fn new() -> Self {
        let memory = Arc::new(CardMemory::new(16 << 20).unwrap());
        let device = Device::new(memory.clone(), 1, 4).unwrap();
        let (send, woken) = channel();
        let target = Arc::new(Woken(Mutex::new(send)));
        let weak: Weak<Woken> = Arc::downgrade(&target);
        let waker = Waker::new(weak);
        let driver = Driver::new(device.clone(), 1, waker.clone());
        let directory = tempfile::tempdir().unwrap();
        let server = device.serve(&directory.path().join("card")).unwrap();
        Self {
            device,
            scif: ScifDevice(driver.clone()),
            driver,
            memory: Memory {
                bytes: vec![0; 1 << 20],
                card: memory,
            },
            waker,
            woken,
            _target: target,
            server: Some(server),
            directory,
        }
    }

    fn host(&self) -> VfioUserClient {
        VfioUserClient::connect(&self.directory.path().join("card")).unwrap()
    }

    fn with<T>(&mut self, f: impl FnOnce(&ScifDevice, &mut Cx) -> T) -> T {
        let mut cx = Cx {
            tid: 1,
            pid: 1,
            identity: Default::default(),
            memory: &mut self.memory,
            wake: &mut |_| {},
            waker: &self.waker,
            nonblock: false,
            append: false,
            now: Duration::ZERO,
        };
        f(&self.scif, &mut cx)
    }

    fn open(&mut self) -> Arc<dyn File> {
        self.with(|scif, cx| scif.open(cx, libc::O_RDWR)).unwrap()
    }

    /// One attempt of a call.
    fn once(&mut self, file: &Arc<dyn File>, request: u32, argument: u64) -> SysResult<i64> {
        self.with(|_, cx| file.ioctl(cx, request, argument))
    }

    /// A call, as often as it takes.
    fn call(&mut self, file: &Arc<dyn File>, request: u32, argument: u64) -> Result<i64, Errno> {
        loop {
            match self.once(file, request, argument) {
                Ok(value) => return Ok(value),
                Err(Stop::Errno(errno)) => return Err(errno),
                Err(Stop::Wait(_)) => drop(self.woken.recv_timeout(PATIENCE).expect("a wake")),
            }
        }
    }

    /// A call with an argument in memory.
    fn ask(&mut self, file: &Arc<dyn File>, request: u32, words: &[u64]) -> Result<i64, Errno> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.write(0, &bytes).unwrap();
        self.call(file, request, 0)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.device.stop();
        self.server.take().unwrap().join().unwrap();
    }
}

fn ring(host: &VfioUserClient) {
    let bell = bar4::SDBIC0 + 4 * DOORBELL_SCIF;
    host.write32(BAR_MMIO, bell, 1).unwrap();
    // Writes are posted; a read is answered after them.
    host.read32(BAR_MMIO, bar4::SICR0).unwrap();
}

/// The host's end of the link.
#[derive(Default)]
struct Host {
    link: Link,
    /// Sealed, and the ring was full.
    waiting: Option<Vec<u8>>,
}

impl Host {
    /// Puts the message into the ring, if there is room.
    fn put(&mut self, device: &Device, message: &Message) -> bool {
        let link = &mut self.link;
        let record = self.waiting.take().unwrap_or_else(|| link.seal(message));
        let put = device.ring_to_card().push(&record).is_ok();
        self.waiting = (!put).then_some(record);
        put
    }
}

fn message(body: Body) -> Message {
    let (host, card) = (
        PortId {
            node: HOST,
            port: 1,
        },
        PortId { node: 1, port: 2 },
    );
    Message {
        from: host,
        to: card,
        connection: 1,
        body,
    }
}

#[test]
fn a_host_that_never_stops_writing_holds_nobody_up() {
    let mut card = Card::new();
    // Looking through these takes so long that the writer, whatever else the machine does, keeps up.
    let _others: Vec<_> = (0..3000).map(|_| card.open()).collect();
    let (host, over) = (card.host(), Arc::new(AtomicBool::new(false)));
    let (device, stop) = (card.device.clone(), over.clone());
    let (send, writing) = channel();
    let writer = std::thread::spawn(move || {
        let (message, mut is_full) = (message(Body::Closed), false);
        let mut host = Host::default();
        while !stop.load(Ordering::Relaxed) {
            if !host.put(&device, &message) && !is_full {
                is_full = true;
                send.send(()).unwrap();
            }
        }
    });
    writing.recv_timeout(PATIENCE).unwrap();
    let (send, answered) = channel();
    let ringer = std::thread::spawn(move || {
        ring(&host);
        send.send(()).unwrap();
    });
    let file = card.open();
    assert_eq!(card.call(&file, ioctl::BIND, 0), Ok(0));
    let result = answered.recv_timeout(PATIENCE);
    over.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    ringer.join().unwrap();
    assert_eq!(result, Ok(()));
}

#[test]
fn a_host_that_does_not_read_is_not_read_from_and_no_message_is_lost() {
    let card = Card::new();
    let host = card.host();
    let question = message(Body::Connect(Way::Nodes));
    let (mut asked, mut told) = (0, 0);
    let (mut writer, mut reader) = (Host::default(), Link::default());
    let mut refused = |told: &mut u32| {
        while let Some(record) = card.device.ring_to_host().pop().unwrap() {
            let answer = reader.open(&record).unwrap().unwrap();
            assert_eq!(answer.body, Body::Refused);
            *told += 1;
        }
    };
    // Until the rings and the outbox are full.
    while writer.put(&card.device, &question) {
        asked += 1;
        while writer.put(&card.device, &question) {
            asked += 1;
        }
        ring(&host);
        assert!(card.driver.lock().outbox.len() <= OUTBOX_MAX);
    }
    while told < asked {
        let before = told;
        refused(&mut told);
        assert!(told > before, "{told} of {asked}");
        ring(&host);
    }
    refused(&mut told);
    assert_eq!(told, asked);
}

#[test]
fn connections_end_with_the_host_and_the_next_one_finds_a_clean_card() {
    let mut card = Card::new();
    let listener = card.open();
    card.ask(&listener, ioctl::BIND, &[2]).unwrap();
    card.call(&listener, ioctl::LISTEN, 4).unwrap();
    let early = card.open();
    let host_port = u64::from(HOST) << 32 | 7 << 48;
    let alone = card.ask(&early, ioctl::CONNECT, &[host_port]);
    assert_eq!(alone, Err(Errno::ENODEV), "there is no host yet");
    let mut host = card.host();
    for leaves in [true, false, true, false] {
        // One connection is accepted, one asks to be, and one of the card's own is not answered.
        let mut writer = Host::default();
        for _ in 0..2 {
            assert!(writer.put(&card.device, &message(Body::Connect(Way::Nodes))));
        }
        ring(&host);
        card.ask(&listener, ioctl::ACCEPT, &[ioctl::BLOCK as u64, 0])
            .unwrap();
        let (mut endpoint, file) = ([0; 8], card.open());
        card.memory.read(8, &mut endpoint).unwrap();
        card.ask(&file, ioctl::ACCEPT_CLAIM, &[u64::from_le_bytes(endpoint)])
            .unwrap();
        let free = card.memory.card.free_bytes();
        let window = [0, 4 * PAGE, 0, 3, 0];
        card.ask(&file, ioctl::REGISTER, &window).unwrap();
        assert_eq!(card.memory.card.free_bytes(), free - 4 * PAGE);
        let connecting = card.open();
        card.memory.write(0, &host_port.to_le_bytes()).unwrap();
        let attempt = card.once(&connecting, ioctl::CONNECT, 0);
        assert!(matches!(attempt, Err(Stop::Wait(_))));

        if leaves {
            drop(host);
            host = card.host();
        } else {
            host.write32(BAR_MMIO, bar4::RGCR, bar4::RGCR_RESET)
                .unwrap();
        }
        // The reply is sent after the old host was detached, or the reset is done.
        host.read32(BAR_MMIO, bar4::SICR0).unwrap();
        assert_eq!(card.device.ring_to_host().pop(), Ok(None));
        let reset = Err(Errno::ECONNRESET);
        assert_eq!(card.call(&connecting, ioctl::CONNECT, 0), reset);
        let bytes = [0x1000, 1 | (ioctl::BLOCK as u64) << 32, 0];
        assert_eq!(card.ask(&file, ioctl::RECV, &bytes), reset);
        assert_eq!(card.ask(&file, ioctl::SEND, &bytes), reset);
        assert_eq!(file.poll(), libc::POLLOUT | libc::POLLHUP);
        assert_eq!(card.memory.card.free_bytes(), free);
        let nobody = card.ask(&listener, ioctl::ACCEPT, &[0, 0]);
        assert_eq!(nobody, Err(Errno::EAGAIN));
        assert_eq!(card.driver.lock().node.nodes(), [HOST, 1]);
    }
}

/// What another card says of its memory means nothing here: the numbers are those of own memory too.
#[test]
fn the_memory_of_another_card_is_out_of_reach() {
    let mut card = Card::new();
    let host = card.host();
    let listener = card.open();
    card.ask(&listener, ioctl::BIND, &[2]).unwrap();
    card.call(&listener, ioctl::LISTEN, 4).unwrap();
    let window = Body::Window {
        offset: 0,
        prot: 3,
        more: false,
        extents: vec![Extent {
            address: 8 << 20,
            len: PAGE,
        }],
    };
    let accept = [ioctl::BLOCK as u64, 0];
    let (mut endpoint, file) = ([0; 8], card.open());
    let mut writer = Host::default();
    let from = PortId { node: 2, port: 1 };
    let to = PortId { node: 1, port: 2 };
    for body in [Body::Connect(Way::Nodes), window] {
        let connection = 1;
        let question = Message {
            from,
            to,
            connection,
            body: body.clone(),
        };
        assert!(writer.put(&card.device, &question));
        ring(&host);
        if body == Body::Connect(Way::Nodes) {
            card.ask(&listener, ioctl::ACCEPT, &accept).unwrap();
            card.memory.read(8, &mut endpoint).unwrap();
            card.ask(&file, ioctl::ACCEPT_CLAIM, &[u64::from_le_bytes(endpoint)])
                .unwrap();
        }
    }
    card.memory.card.write(8 << 20, b"mine");
    let copy = card.ask(&file, ioctl::VWRITE_TO, &[0, PAGE, 0, 0x1000, 0]);
    assert_eq!(copy, Err(Errno::EOPNOTSUPP));
    let mut bytes = [0; 4];
    card.memory.card.read(8 << 20, &mut bytes);
    assert_eq!(&bytes, b"mine");
}

#[test]
fn bytes_that_have_no_place_stay_with_the_endpoint() {
    let mut card = Card::new();
    let _host = card.host();
    // A connection within the card: both ends are the program's.
    let (listener, sender, receiver) = (card.open(), card.open(), card.open());
    card.ask(&listener, ioctl::BIND, &[2]).unwrap();
    card.call(&listener, ioctl::LISTEN, 4).unwrap();
    let own_port: u64 = 1 << 32 | 2 << 48;
    card.memory.write(0, &own_port.to_le_bytes()).unwrap();
    card.once(&sender, ioctl::CONNECT, 0).unwrap_err();
    let accept = [ioctl::BLOCK as u64, 0];
    card.ask(&listener, ioctl::ACCEPT, &accept).unwrap();
    let mut endpoint = [0; 8];
    card.memory.read(8, &mut endpoint).unwrap();
    let endpoint = u64::from_le_bytes(endpoint);
    card.ask(&receiver, ioctl::ACCEPT_CLAIM, &[endpoint])
        .unwrap();
    card.ask(&sender, ioctl::CONNECT, &[own_port]).unwrap();

    let end = card.memory.bytes.len() as u64;
    let part = |at: u64, len: u64| [at, len | (ioctl::BLOCK as u64) << 32, 0];
    card.memory.write(0x100, b"01234").unwrap();
    card.ask(&sender, ioctl::SEND, &part(0x100, 5)).unwrap();
    let bad = card.ask(&receiver, ioctl::RECV, &part(end, 100));
    assert_eq!(bad, Err(Errno::EFAULT));
    card.ask(&receiver, ioctl::RECV, &part(end - 3, 100))
        .unwrap();
    card.ask(&receiver, ioctl::RECV, &part(0x200, 100)).unwrap();
    assert_eq!(card.memory.bytes[end as usize - 3..], *b"012");
    assert_eq!(card.memory.bytes[0x200..0x203], *b"34\0");
    assert_eq!(card.memory.bytes[16..20], 2_u32.to_le_bytes());
}

#[test]
fn a_sign_of_life_is_answered_with_one() {
    let card = Card::new();
    let (host, mut link) = (card.host(), Link::default());
    for _ in 0..3 {
        card.device.ring_to_card().push(&link.alive()).unwrap();
        ring(&host);
        let answer = card.device.ring_to_host().pop().unwrap();
        assert_eq!(link.open(&answer.unwrap()), Ok(None));
    }
}

#[test]
fn a_link_that_cannot_be_believed_ends_every_connection_and_the_card_says_so() {
    let mut card = Card::new();
    let (host, mut writer) = (card.host(), Host::default());
    let connecting = card.open();
    let host_port = u64::from(HOST) << 32 | 7 << 48;
    card.memory.write(0, &host_port.to_le_bytes()).unwrap();
    let attempt = card.once(&connecting, ioctl::CONNECT, 0);
    assert!(matches!(attempt, Err(Stop::Wait(_))));
    let question = message(Body::Connect(Way::Nodes));
    let lost = writer.link.seal(&question);
    drop(lost);
    assert!(writer.put(&card.device, &question));
    ring(&host);
    let reset = Err(Errno::ECONNRESET);
    assert_eq!(card.call(&connecting, ioctl::CONNECT, 0), reset);
    let state = host.read32(BAR_MMIO, bar4::SPAD0 + 4 * spad::STATE);
    assert_eq!(state.unwrap(), spad::STATE_CRASHED);
}
