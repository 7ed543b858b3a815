//! SCIF on a card: the character device `/dev/mic/scif`, with the ioctls of the `mic` driver
//! (Linux uapi `scif_ioctl.h`).
//!
//! An ioctl posts its request once, under the calling thread's id, and waits for the file's
//! channel; when it runs again it picks the result up. So a thread that is captured in the middle
//! simply makes its call again, on an endpoint that then says ECONNRESET.
//!
//! What must stay true: the driver's lock is never held while the kernel's is being taken: wakes
//! from outside are collected and done after it is released. A host that never stops writing gets
//! one batch of messages between any two turns of the card's programs.

use std::{
    any::Any,
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use snaprig_card::{
    device::Device,
    kernel::{
        device::{CharDevice, Pinned, Waker},
        errno::Errno,
        file::{Cx, Description, File, PollMask},
        wait::{Channel, Stop, SysResult},
    },
};
use snaprig_wire::{
    bar4::{DOORBELL_SCIF, cause, spad},
    ring::{RING_BYTES, RingError},
    scif::{Extent, HOST, NodeId, PAGE, PortId, QUEUE_BYTES},
};

use crate::{
    link::{Broken, Link},
    node::{BackingId, EndpointId, Input, Local, Node, Op, Output, RequestId, Value},
};

#[cfg(test)]
mod tests;

/// Path of the device.
pub const PATH: &str = "/dev/mic/scif";
/// Most bytes of one send or receive; programs see a short count.
const TRANSFER_MAX: usize = 256 << 10;
/// Messages from the host that are handled in one turn.
const BATCH: usize = 64;
/// Records that wait for room in the ring to the host; while there are more, nothing is read.
const OUTBOX_MAX: usize = 4096;

const SCIF_BIND: u32 = 0xc008_7301;
const SCIF_LISTEN: u32 = 0x4004_7302;
const SCIF_CONNECT: u32 = 0xc008_7303;
const SCIF_ACCEPTREQ: u32 = 0xc010_7304;
const SCIF_ACCEPTREG: u32 = 0xc008_7305;
const SCIF_SEND: u32 = 0xc018_7306;
const SCIF_RECV: u32 = 0xc018_7307;
const SCIF_REG: u32 = 0xc028_7308;
const SCIF_UNREG: u32 = 0xc010_7309;
const SCIF_READFROM: u32 = 0xc028_730a;
const SCIF_WRITETO: u32 = 0xc028_730b;
const SCIF_VREADFROM: u32 = 0xc028_730c;
const SCIF_VWRITETO: u32 = 0xc028_730d;
const SCIF_GET_NODEIDS: u32 = 0xc018_730e;

const SCIF_MAP_FIXED: i32 = 0x10;
const BLOCK: i32 = 1;

/// The driver: one a card.
pub struct Driver {
    device: Arc<Device>,
    waker: Waker,
    /// Held while waiting for `inner`: who waits is next, even if the last owner comes right back.
    turn: Mutex<()>,
    inner: Mutex<Inner>,
}

struct Inner {
    node: Node,
    id: NodeId,
    next: u64,
    results: BTreeMap<RequestId, Result<Value, i32>>,
    channels: BTreeMap<EndpointId, Channel>,
    owners: BTreeMap<RequestId, EndpointId>,
    pins: BTreeMap<BackingId, Pinned>,
    link: Link,
    outbox: VecDeque<Vec<u8>>,
    /// Channels to wake once the lock is released.
    wakes: Vec<Channel>,
}

impl Driver {
    /// The driver of card `node`, serving its rings from now on; to be made before the device is
    /// served.
    pub fn new(device: Arc<Device>, node: NodeId, waker: Waker) -> Arc<Self> {
        let driver = Arc::new(Self {
            device: device.clone(),
            waker,
            turn: Mutex::default(),
            inner: Mutex::new(Inner {
                node: Node::new(node),
                id: node,
                next: 1,
                results: BTreeMap::new(),
                channels: BTreeMap::new(),
                owners: BTreeMap::new(),
                pins: BTreeMap::new(),
                link: Link::default(),
                outbox: VecDeque::new(),
                wakes: Vec::new(),
            }),
        });
        let weak = Arc::downgrade(&driver);
        device.on_doorbell(
            DOORBELL_SCIF,
            Box::new(move || {
                if let Some(driver) = weak.upgrade() {
                    driver.drain();
                }
            }),
        );
        let weak = Arc::downgrade(&driver);
        device.on_host(Box::new(move |there| {
            if let Some(driver) = weak.upgrade() {
                driver.host(there);
            }
        }));
        driver
    }

    /// The host has come, or is gone: then its connections are reset, and nothing that is for it
    /// reaches the next one.
    fn host(self: &Arc<Self>, there: bool) {
        let mut inner = self.lock();
        if there {
            inner.link = Link::default();
            self.step(&mut inner, Input::PeerUp(HOST));
        } else {
            self.step(&mut inner, Input::PeerDown(HOST));
            inner.outbox.clear();
        }
        self.wake(inner);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        let _turn = lock(&self.turn);
        lock(&self.inner)
    }

    /// Takes out of the ring from the host what was in it when the doorbell rang: at most as much as
    /// it holds. What comes later is followed by a doorbell of its own.
    fn drain(self: &Arc<Self>) {
        let mut left = RING_BYTES;
        while left > 0 {
            let mut inner = self.lock();
            // The host may have made room.
            self.flush(&mut inner);
            left = self.drain_batch(&mut inner, left);
            self.flush(&mut inner);
            self.wake(inner);
        }
    }

    /// One turn's messages. What is left of `left` bytes, or nothing if there is nothing to read.
    fn drain_batch(self: &Arc<Self>, inner: &mut Inner, mut left: usize) -> usize {
        for _ in 0..BATCH {
            // A host that does not read is not answered. Once it reads it rings again.
            if inner.outbox.len() >= OUTBOX_MAX {
                return 0;
            }
            let opened = match self.device.ring_to_card().pop() {
                Ok(Some(record)) => {
                    // With its length, which even an empty one has.
                    left = left.saturating_sub(4 + record.len());
                    inner.link.open(&record)
                }
                Ok(None) => return 0,
                Err(_) => Err(Broken::Ring),
            };
            match opened {
                Ok(Some(message)) => self.step(inner, Input::Message(message)),
                // A sign of life is answered with one: what is lost on either way is noticed.
                Ok(None) => {
                    let record = inner.link.alive();
                    inner.outbox.push_back(record);
                }
                Err(Broken::Already) => return 0,
                Err(why) => {
                    self.give_up(inner, why);
                    return 0;
                }
            }
        }
        left
    }

    /// The link to the host cannot be believed: the host is gone for this card, and told so.
    fn give_up(self: &Arc<Self>, inner: &mut Inner, why: Broken) {
        tracing::error!(%why, "the host is out of reach");
        self.step(inner, Input::PeerDown(HOST));
        inner.outbox.clear();
        self.device.set_state(spad::STATE_CRASHED);
    }

    /// One input, and everything that follows from it.
    fn step(self: &Arc<Self>, inner: &mut Inner, input: Input) {
        inner.node.handle(input);
        while let Some(output) = inner.node.poll_output() {
            match output {
                Output::Done(request, result) => {
                    if let Some(endpoint) = inner.owners.remove(&request) {
                        inner.results.insert(request, result);
                        inner.wakes.extend(inner.channels.get(&endpoint));
                    }
                }
                Output::Send(_, message) => {
                    let record = inner.link.seal(&message);
                    inner.outbox.push_back(record);
                }
                // The addresses of another card's windows would be taken for this one's.
                Output::Copy { job, peer, .. } if ![HOST, inner.id].contains(&peer) => {
                    let refused = Err(libc::EOPNOTSUPP);
                    inner.node.handle(Input::CopyDone(job, refused));
                }
                Output::Copy { job, copies, .. } => {
                    let driver = Arc::downgrade(self);
                    let done = move |result| {
                        if let Some(driver) = driver.upgrade() {
                            let mut inner = driver.lock();
                            driver.step(&mut inner, Input::CopyDone(job, result));
                            driver.flush(&mut inner);
                            driver.wake(inner);
                        }
                    };
                    self.device.dma(copies, Box::new(done));
                }
                Output::Release(backing) => {
                    inner.pins.remove(&backing);
                }
                Output::Changed(endpoint) => {
                    inner.wakes.extend(inner.channels.get(&endpoint));
                }
            }
        }
    }

    fn flush(self: &Arc<Self>, inner: &mut Inner) {
        let mut any = false;
        while let Some(record) = inner.outbox.front() {
            match self.device.ring_to_host().push(record) {
                Ok(()) => {
                    inner.outbox.pop_front();
                    any = true;
                }
                // The host rings the doorbell when it has made room.
                Err(RingError::Full) => break,
                Err(_) => return self.give_up(inner, Broken::Ring),
            }
        }
        if any {
            self.device.raise(cause::SCIF);
        }
    }

    fn wake(&self, mut inner: MutexGuard<'_, Inner>) {
        let wakes = std::mem::take(&mut inner.wakes);
        drop(inner);
        for channel in wakes {
            self.waker.wake(channel);
        }
    }
}

/// The device as the kernel sees it.
pub struct ScifDevice(pub Arc<Driver>);

impl CharDevice for ScifDevice {
    fn open(&self, _cx: &mut Cx, flags: i32) -> SysResult<Arc<dyn File>> {
        let mut inner = self.0.lock();
        inner.next += 1;
        let endpoint = inner.next;
        self.0.step(&mut inner, Input::Open(endpoint));
        let file = ScifFile::new(&self.0, Some(endpoint), flags);
        inner.channels.insert(endpoint, file.channel);
        Ok(file)
    }

    fn open_disconnected(&self, flags: i32) -> Arc<dyn File> {
        ScifFile::new(&self.0, None, flags)
    }
}

/// An open endpoint; `None` stands where one was before a restore.
struct ScifFile {
    driver: Arc<Driver>,
    endpoint: Mutex<Option<EndpointId>>,
    flags: i32,
    channel: Channel,
    /// What each thread has asked and not been told.
    pending: Mutex<BTreeMap<i32, RequestId>>,
    /// Pages of each thread's RMA of unregistered memory.
    unregistered: Mutex<BTreeMap<i32, Pinned>>,
    /// Endpoints that were accepted and not yet claimed by SCIF_ACCEPTREG.
    accepted: Mutex<Vec<EndpointId>>,
}

impl ScifFile {
    fn new(driver: &Arc<Driver>, endpoint: Option<EndpointId>, flags: i32) -> Arc<Self> {
        Arc::new(Self {
            driver: driver.clone(),
            endpoint: Mutex::new(endpoint),
            flags,
            channel: Channel::new(),
            pending: Mutex::default(),
            unregistered: Mutex::default(),
            accepted: Mutex::default(),
        })
    }

    fn endpoint(&self) -> Result<EndpointId, Errno> {
        lock(&self.endpoint).ok_or(Errno::ECONNRESET)
    }

    /// Posts the request at the first attempt; later ones find it pending.
    fn request(
        &self,
        cx: &mut Cx,
        wait: bool,
        op: impl FnOnce(&mut Inner, &mut Cx) -> Result<Op, Errno>,
    ) -> SysResult<Value> {
        let endpoint = self.endpoint()?;
        let mut inner = self.driver.lock();
        let known = lock(&self.pending).get(&cx.tid).copied();
        let request = match known {
            Some(request) => request,
            None => {
                let op = op(&mut inner, cx)?;
                inner.next += 1;
                let request = inner.next;
                inner.owners.insert(request, endpoint);
                self.driver
                    .step(&mut inner, Input::Request(request, endpoint, op));
                self.driver.flush(&mut inner);
                request
            }
        };
        for channel in std::mem::take(&mut inner.wakes) {
            (cx.wake)(channel);
        }
        let result = inner.results.remove(&request);
        if result.is_none() && wait && !cx.nonblock {
            lock(&self.pending).insert(cx.tid, request);
            return Err(Stop::wait(self.channel));
        }
        lock(&self.pending).remove(&cx.tid);
        match result {
            Some(result) => Ok(result.map_err(Errno)?),
            None => {
                inner.owners.remove(&request);
                self.driver.step(&mut inner, Input::Cancel(request));
                Err(Errno::EAGAIN.into())
            }
        }
    }

    fn bind(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let port = u64::from_le_bytes(read(cx, argument)?);
        let port = u16::try_from(port).map_err(|_| Errno::EINVAL)?;
        // Everybody on a card is root, so the privileged ports are free to all.
        match self.request(cx, true, |_, _| Ok(Op::Bind(port)))? {
            Value::Port(port) => cx.memory.write(argument, &u64::from(port).to_le_bytes())?,
            _ => return Err(Errno::EPROTO.into()),
        }
        Ok(0)
    }

    fn connect(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let bytes: [u8; 8] = read(cx, argument)?;
        let peer = port_id(&bytes[4..]);
        match self.request(cx, true, |_, _| Ok(Op::Connect(peer)))? {
            Value::Port(port) => {
                let own = PortId {
                    node: self.driver.lock().id,
                    port,
                };
                cx.memory.write(argument, &port_bytes(own))?;
            }
            _ => return Err(Errno::EPROTO.into()),
        }
        Ok(0)
    }

    fn accept(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let bytes: [u8; 16] = read(cx, argument)?;
        let flags = int(&bytes[..4]);
        match self.request(cx, flags & BLOCK != 0, |_, _| Ok(Op::Accept))? {
            Value::Accepted { endpoint, peer } => {
                lock(&self.accepted).push(endpoint);
                cx.memory.write(argument + 4, &port_bytes(peer))?;
                cx.memory.write(argument + 8, &endpoint.to_le_bytes())?;
                Ok(0)
            }
            _ => Err(Errno::EPROTO.into()),
        }
    }

    /// This file, freshly opened, becomes the endpoint that another one accepted.
    fn claim(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let claimed = u64::from_le_bytes(read(cx, argument)?);
        let mut inner = self.driver.lock();
        // One whose peer is gone by now is claimed all the same, and says ECONNRESET.
        let unknown = inner.node.poll(claimed) == libc::POLLNVAL;
        if inner.channels.contains_key(&claimed) || unknown {
            return Err(Errno::EINVAL.into());
        }
        let unused = lock(&self.endpoint).replace(claimed);
        if let Some(unused) = unused {
            inner.channels.remove(&unused);
            self.driver.step(&mut inner, Input::Close(unused));
        }
        inner.channels.insert(claimed, self.channel);
        Ok(0)
    }

    fn send(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let (address, len, flags) = message(cx, argument)?;
        let result = self.request(cx, flags & BLOCK != 0, |_, cx| {
            let mut data = vec![0; len];
            cx.memory.read(address, &mut data)?;
            Ok(Op::Send(data))
        });
        let sent = match result {
            Ok(_) => len,
            Err(Stop::Errno(Errno::EAGAIN)) if flags & BLOCK == 0 => 0,
            Err(other) => return Err(other),
        };
        cx.memory
            .write(argument + 16, &(sent as u32).to_le_bytes())?;
        Ok(0)
    }

    fn receive(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let (address, len, flags) = message(cx, argument)?;
        let result = self.request(cx, flags & BLOCK != 0, |_, cx| {
            // What has been received cannot be put back: no more than there is good memory for.
            match cx.memory.writable(address, len.min(QUEUE_BYTES)) {
                0 if len > 0 => Err(Errno::EFAULT),
                room => Ok(Op::Recv(room)),
            }
        });
        let bytes = match result {
            Ok(Value::Bytes(bytes)) => bytes,
            Ok(_) => return Err(Errno::EPROTO.into()),
            Err(Stop::Errno(Errno::EAGAIN)) if flags & BLOCK == 0 => Vec::new(),
            Err(other) => return Err(other),
        };
        cx.memory.write(address, &bytes)?;
        cx.memory
            .write(argument + 16, &(bytes.len() as u32).to_le_bytes())?;
        Ok(0)
    }

    fn register(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let bytes: [u8; 40] = read(cx, argument)?;
        let (address, len) = (long(&bytes[..8]), long(&bytes[8..16]));
        let (offset, prot) = (long(&bytes[16..24]) as i64, int(&bytes[24..28]));
        let fixed = int(&bytes[28..32]) & SCIF_MAP_FIXED != 0;
        let value = self.request(cx, true, |inner, cx| {
            if len % PAGE != 0 {
                return Err(Errno::EINVAL);
            }
            let pinned = cx.memory.pin(address, len, prot & 2 != 0)?;
            let extents = extents(&pinned);
            inner.next += 1;
            let backing = inner.next;
            inner.pins.insert(backing, pinned);
            let offset = fixed.then_some(offset);
            Ok(Op::Register {
                extents,
                offset,
                prot: prot as u8,
                backing,
            })
        })?;
        match value {
            Value::Offset(offset) => cx.memory.write(argument + 32, &offset.to_le_bytes())?,
            _ => return Err(Errno::EPROTO.into()),
        }
        Ok(0)
    }

    fn unregister(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let bytes: [u8; 16] = read(cx, argument)?;
        let (offset, len) = (long(&bytes[..8]) as i64, long(&bytes[8..]));
        self.request(cx, true, |_, _| Ok(Op::Unregister { offset, len }))?;
        Ok(0)
    }

    fn copy(&self, cx: &mut Cx, argument: u64, write: bool, windows: bool) -> SysResult<i64> {
        let bytes: [u8; 40] = read(cx, argument)?;
        let (local, len) = (long(&bytes[..8]) as i64, long(&bytes[8..16]));
        let (remote, address) = (long(&bytes[16..24]) as i64, long(&bytes[24..32]));
        let result = self.request(cx, true, |_, cx| {
            if windows {
                return Ok(Op::Rma {
                    local: Local::Window(local),
                    len,
                    remote,
                    write,
                });
            }
            if len == 0 {
                return Err(Errno::EINVAL);
            }
            let start = address & !(PAGE - 1);
            let end = address
                .checked_add(len)
                .and_then(|end| end.checked_next_multiple_of(PAGE));
            let end = end.ok_or(Errno::EFAULT)?;
            let pinned = cx.memory.pin(start, end - start, !write)?;
            let local = Local::Memory {
                extents: extents(&pinned),
                skip: address - start,
            };
            // Pinned until the call ends. If it is interrupted the copy may still be running, and
            // the pages wait for the thread's next call, or for the end of the endpoint.
            lock(&self.unregistered).insert(cx.tid, pinned);
            Ok(Op::Rma {
                local,
                len,
                remote,
                write,
            })
        });
        if !matches!(result, Err(Stop::Wait(_))) {
            lock(&self.unregistered).remove(&cx.tid);
        }
        result.map(|_| 0)
    }

    fn node_ids(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let bytes: [u8; 24] = read(cx, argument)?;
        let inner = self.driver.lock();
        let nodes = inner.node.nodes();
        let room = usize::try_from(int(&bytes[16..20])).map_err(|_| Errno::EINVAL)?;
        let list: Vec<u8> = nodes
            .iter()
            .take(room)
            .flat_map(|node| node.to_le_bytes())
            .collect();
        cx.memory.write(long(&bytes[..8]), &list)?;
        cx.memory
            .write(long(&bytes[8..16]), &inner.id.to_le_bytes())?;
        cx.memory
            .write(argument + 16, &(nodes.len() as u32).to_le_bytes())?;
        Ok(0)
    }
}

impl File for ScifFile {
    fn ioctl(&self, cx: &mut Cx, request: u32, argument: u64) -> SysResult<i64> {
        match request {
            SCIF_BIND => self.bind(cx, argument),
            SCIF_LISTEN => {
                let backlog = usize::try_from(argument as i32).unwrap_or(0);
                self.request(cx, true, |_, _| Ok(Op::Listen(backlog)))
                    .map(|_| 0)
            }
            SCIF_CONNECT => self.connect(cx, argument),
            SCIF_ACCEPTREQ => self.accept(cx, argument),
            SCIF_ACCEPTREG => self.claim(cx, argument),
            SCIF_SEND => self.send(cx, argument),
            SCIF_RECV => self.receive(cx, argument),
            SCIF_REG => self.register(cx, argument),
            SCIF_UNREG => self.unregister(cx, argument),
            SCIF_READFROM => self.copy(cx, argument, false, true),
            SCIF_WRITETO => self.copy(cx, argument, true, true),
            SCIF_VREADFROM => self.copy(cx, argument, false, false),
            SCIF_VWRITETO => self.copy(cx, argument, true, false),
            SCIF_GET_NODEIDS => self.node_ids(cx, argument),
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn poll(&self) -> PollMask {
        match self.endpoint() {
            Ok(endpoint) => self.driver.lock().node.poll(endpoint),
            Err(_) => libc::POLLHUP | libc::POLLIN,
        }
    }

    fn channels(&self) -> Vec<Channel> {
        vec![self.channel]
    }

    fn abandon(&self, tid: i32) {
        let mut pending = lock(&self.pending);
        let mut inner = self.driver.lock();
        let Some(request) = pending.get(&tid).copied() else {
            return;
        };
        // One that has just completed is kept: the call that is made again finds it.
        if !inner.results.contains_key(&request) {
            pending.remove(&tid);
            inner.owners.remove(&request);
            self.driver.step(&mut inner, Input::Cancel(request));
        }
    }

    fn release(&self, wake: &mut dyn FnMut(Channel)) {
        let mut inner = self.driver.lock();
        let unclaimed = std::mem::take(&mut *lock(&self.accepted));
        let unclaimed = unclaimed
            .into_iter()
            .filter(|id| !inner.channels.contains_key(id));
        let mut closing: Vec<EndpointId> = unclaimed.collect();
        closing.extend(lock(&self.endpoint).take());
        for endpoint in closing {
            inner.channels.remove(&endpoint);
            self.driver.step(&mut inner, Input::Close(endpoint));
        }
        self.driver.flush(&mut inner);
        for channel in std::mem::take(&mut inner.wakes) {
            wake(channel);
        }
    }

    fn describe(&self) -> Description {
        Description::Device {
            path: PATH.into(),
            flags: self.flags,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn extents(pinned: &Pinned) -> Vec<Extent> {
    pinned
        .extents
        .iter()
        .map(|(address, len)| Extent {
            address: *address,
            len: *len,
        })
        .collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<const N: usize>(cx: &mut Cx, at: u64) -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    cx.memory.read(at, &mut bytes)?;
    Ok(bytes)
}

/// `struct scifioctl_msg`: address, length (bounded), flags.
fn message(cx: &mut Cx, at: u64) -> Result<(u64, usize, i32), Errno> {
    let bytes: [u8; 24] = read(cx, at)?;
    let len = usize::try_from(int(&bytes[8..12])).map_err(|_| Errno::EINVAL)?;
    Ok((
        long(&bytes[..8]),
        len.min(TRANSFER_MAX),
        int(&bytes[12..16]),
    ))
}

fn long(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

fn int(bytes: &[u8]) -> i32 {
    i32::from_le_bytes(bytes.try_into().expect("4 bytes"))
}

/// `struct scif_port_id`.
fn port_id(bytes: &[u8]) -> PortId {
    PortId {
        node: u16::from_le_bytes([bytes[0], bytes[1]]),
        port: u16::from_le_bytes([bytes[2], bytes[3]]),
    }
}

fn port_bytes(id: PortId) -> [u8; 4] {
    let ([a, b], [c, d]) = (id.node.to_le_bytes(), id.port.to_le_bytes());
    [a, b, c, d]
}
