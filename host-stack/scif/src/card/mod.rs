//! SCIF on a card: the character device of [`ioctl`], as the `mic` driver had it.
//!
//! An ioctl posts its request once, under the calling thread's id, and waits for the file's
//! channel; when it runs again it picks the result up. So a thread that is captured in the middle
//! simply makes its call again, on an endpoint that then says ECONNRESET.
//!
//! What must stay true: the driver's lock is never held while the kernel's is being taken: wakes
//! from outside are collected and done after it is released. A host that never stops writing gets
//! one batch of messages between any two turns of the card's programs.

mod calls;
mod file;
mod lanes;
mod mapped;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use snaprig_card_device::Device;
use snaprig_card_driver::{
    device::{CharDevice, Pinned, Waker},
    file::{Cx, File},
    wait::{Channel, SysResult},
};
use snaprig_scif_lanes::lanes::{Lanes, spin_micros};
use snaprig_wire::{
    bar4::{DOORBELL_SCIF, cause, spad},
    dma::HOST_BASE,
    ring::{RING_BYTES, RingError},
    scif::{HOST, NodeId, ioctl},
};

use self::file::ScifFile;
use crate::{
    link::{Broken, Link},
    node::{BackingId, EndpointId, Input, MappingId, Node, Output, RequestId, Value},
};

#[cfg(test)]
mod tests;

/// Path of the device.
pub const PATH: &str = ioctl::DEVICE;
/// Messages from the host that are handled in one turn.
const BATCH: usize = 64;
/// Records that wait for room in the ring to the host; while there are more, nothing is read.
const OUTBOX_MAX: usize = 4096;

/// Copies for which nobody waits are made at once up to this length: they take no longer than to queue them does.
const SHORT_BYTES: u64 = 64 << 10;

/// The driver: one a card.
pub struct Driver {
    device: Arc<Device>,
    waker: Waker,
    /// Held while waiting for `inner`: who waits is next, even if the last owner comes right back.
    turn: Mutex<()>,
    inner: Mutex<Inner>,
    /// Mappings that have ended, which the node has not been told of.
    unmapped: Mutex<Vec<MappingId>>,
}

struct Inner {
    node: Node,
    id: NodeId,
    next: u64,
    results: BTreeMap<RequestId, Result<Value, i32>>,
    channels: BTreeMap<EndpointId, Channel>,
    owners: BTreeMap<RequestId, EndpointId>,
    pins: BTreeMap<BackingId, Pinned>,
    /// Lanes of connections, as far as they were looked at.
    lanes: BTreeMap<EndpointId, Arc<Lanes>>,
    link: Link,
    outbox: VecDeque<Vec<u8>>,
    /// Channels to wake once the lock is released.
    wakes: Vec<Channel>,
}

impl Driver {
    /// The driver of card `node`, serving its rings from now on; to be made before the device is
    /// served.
    pub fn new(device: Arc<Device>, node: NodeId, waker: Waker) -> Arc<Self> {
        // Before there is a sandbox.
        spin_micros();
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
                lanes: BTreeMap::new(),
                link: Link::default(),
                outbox: VecDeque::new(),
                wakes: Vec::new(),
            }),
            unmapped: Mutex::default(),
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

    fn lock(self: &Arc<Self>) -> MutexGuard<'_, Inner> {
        let turn = lock(&self.turn);
        let mut inner = lock(&self.inner);
        drop(turn);
        self.tell_unmapped(&mut inner);
        inner
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
                // What programs of this card say to each other does not leave it.
                Ok(Some(message)) if message.from.node == inner.id => {
                    self.give_up(inner, Broken::Nonsense);
                    return 0;
                }
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
                // The host says where another card's windows are for this one's engine. As they were, they
                // would be taken for this one's own.
                Output::Copy {
                    job, peer, copies, ..
                } if ![HOST, inner.id].contains(&peer)
                    && copies.iter().any(|copy| copy.src.max(copy.dst) < HOST_BASE) =>
                {
                    let refused = Err(libc::EOPNOTSUPP);
                    inner.node.handle(Input::CopyDone(job, refused));
                }
                Output::Copy {
                    job,
                    peer,
                    copies,
                    waits,
                } => {
                    let driver = Arc::downgrade(self);
                    let is_here = [HOST, inner.id].contains(&peer);
                    // The memory of a card that is gone is, too, before this one is told.
                    let told = move |errno| match errno {
                        libc::EFAULT if !is_here => libc::ECONNRESET,
                        errno => errno,
                    };
                    let bytes: u64 = copies.iter().map(|copy| u64::from(copy.len)).sum();
                    if (waits || bytes <= SHORT_BYTES)
                        && let Some(result) = self.device.dma_now(&copies)
                    {
                        inner
                            .node
                            .handle(Input::CopyDone(job, result.map_err(told)));
                        continue;
                    }
                    let done = move |result: Result<(), i32>| {
                        let result = result.map_err(told);
                        if let Some(driver) = driver.upgrade() {
                            let mut inner = driver.lock();
                            driver.step(&mut inner, Input::CopyDone(job, result));
                            driver.flush(&mut inner);
                            driver.wake(inner);
                        }
                    };
                    self.device.dma(copies, Box::new(done));
                }
                Output::Poke { address, bytes, .. } => self.device.poke(address, &bytes),
                Output::Release(backing) => {
                    inner.pins.remove(&backing);
                }
                Output::Lay(endpoint) => {
                    let laid = inner.lay(&self.device);
                    inner.node.handle(Input::Laid(endpoint, laid));
                }
                Output::Ring(endpoint, _) => {
                    inner.wakes.extend(inner.channels.get(&endpoint));
                }
                Output::Changed(endpoint) => {
                    inner.end_lanes(endpoint);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
