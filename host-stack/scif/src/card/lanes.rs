//! Lanes on a card: memory for them, and what is done for who does not reach it: who polls, who sleeps, and who makes the
//! calls of the driver instead of using them himself (a child of fork(2), which does not have the mapping).
//!
//! What must stay true: the driver looks at a connection's lanes for no longer than its file is open, so that what is the
//! peer's is not used when the peer has heard of the end.

use std::{ptr::NonNull, sync::Arc};

use snaprig_card_device::Device;
use snaprig_card_driver::{
    device::{DeviceMemory, Pinned},
    errno::Errno,
    file::Cx,
    wait::{Stop, SysResult},
};
use snaprig_card_memory::{memory::CardMemory, shown::Shown};
use snaprig_scif_lanes::lanes::{Lanes, Over, RING_BYTES};
use snaprig_wire::{
    dma::HOST_BASE,
    scif::{
        Bell, Extent, LANES_BYTES, PAGE,
        ioctl::{self, Message},
    },
};

use super::{Driver, Inner, calls::read, file::ScifFile};
use crate::node::{BackingId, EndpointId, Op};

const PAGES: u64 = LANES_BYTES / PAGE;
/// A card that has less than that left lays no lanes: programs need it more.
const LEFT_BYTES: u64 = 32 * LANES_BYTES;

/// Frames of this card.
struct Run {
    memory: Arc<CardMemory>,
    address: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.memory.put_run(self.address, PAGES);
    }
}

/// An end of a connection's lanes.
pub(super) struct End {
    lanes: Arc<Lanes>,
    side: usize,
}

impl Inner {
    /// Memory of this card for lanes of a new connection.
    pub(super) fn lay(&mut self, device: &Device) -> Option<(Extent, BackingId)> {
        let memory = device.memory();
        if memory.free_bytes() < LEFT_BYTES {
            return None;
        }
        let address = memory.alloc_run(PAGES as usize, 1)?;
        let run = Arc::new(Run {
            memory: memory.clone(),
            address,
        });
        own(memory, address, run.clone()).begin();
        self.next += 1;
        let pinned = Pinned {
            extents: vec![(address, LANES_BYTES)],
            guard: run,
        };
        self.pins.insert(self.next, pinned);
        let len = LANES_BYTES;
        Some((Extent { address, len }, self.next))
    }

    /// The lanes of an endpoint, if its bytes go by them.
    fn lanes(&mut self, device: &Device, endpoint: EndpointId) -> Result<Option<End>, Errno> {
        let Some(laid) = self.node.lanes(endpoint) else {
            return Ok(None);
        };
        let side = usize::from(laid.side);
        if let Some(lanes) = self.lanes.get(&endpoint) {
            let lanes = lanes.clone();
            return Ok(Some(End { lanes, side }));
        }
        let Extent { address, len } = laid.extent;
        let memory = device.memory();
        let lanes = match address {
            ..HOST_BASE if memory.contains(address, len) => {
                memory.get_run(address, PAGES);
                let run = Run {
                    memory: memory.clone(),
                    address,
                };
                own(memory, address, run)
            }
            ..HOST_BASE => return Err(Errno::ECONNRESET),
            _ => others(device, address)?,
        };
        let lanes = Arc::new(lanes);
        self.lanes.insert(endpoint, lanes.clone());
        self.end_lanes(endpoint);
        Ok(Some(End { lanes, side }))
    }

    /// Says in the lanes of an endpoint that the peer is gone, if it is.
    pub(super) fn end_lanes(&self, endpoint: EndpointId) {
        let over = self.node.poll(endpoint) & (libc::POLLHUP | libc::POLLNVAL) != 0;
        let (lanes, laid) = (self.lanes.get(&endpoint), self.node.lanes(endpoint));
        if let (true, Some(lanes), Some(laid)) = (over, lanes, laid) {
            lanes.end(laid.side.into());
        }
    }

    /// What poll(2) says.
    pub(super) fn mask(&mut self, device: &Device, endpoint: EndpointId) -> i16 {
        let mask = self.node.poll(endpoint);
        match self.lanes(device, endpoint) {
            Ok(Some(end)) if mask & libc::POLLNVAL == 0 => {
                mask & !(libc::POLLIN | libc::POLLOUT) | end.lanes.mask(end.side)
            }
            _ => mask,
        }
    }
}

/// Lanes in this card's memory, which `guard` keeps there.
fn own(memory: &CardMemory, address: u64, guard: impl Send + Sync + 'static) -> Lanes {
    // SAFETY: the callers have found the frames, whole pages, inside of card memory, which is mapped as long as the
    // `CardMemory` that the guard has lives; programs of the card, and others, change them at any time, so nobody makes
    // references into them.
    unsafe { Lanes::at(memory.host_base().add(address as usize), guard) }
}

/// Lanes in the memory of another card.
fn others(device: &Device, address: u64) -> Result<Lanes, Errno> {
    let (at, shown) = show(device, address)?;
    let found = device.memory().outside().memory(at, LANES_BYTES);
    let (memory, skip) = found.ok_or(Errno::ECONNRESET)?;
    let base: NonNull<u8> = memory.base();
    // SAFETY: `Outside::memory` has found so many bytes there, and they stay mapped as long as `memory` lives; as above,
    // nobody makes references into them.
    Ok(unsafe { Lanes::at(base.add(skip as usize), (memory, shown)) })
}

fn show(device: &Device, address: u64) -> Result<(u64, Arc<Shown>), Errno> {
    device
        .show(address, LANES_BYTES)
        .map_err(|_| Errno::ECONNRESET)
}

impl Driver {
    /// Lanes that are in this card's memory, for a program of it.
    pub(super) fn own_pages(&self, extents: &[Extent]) -> DeviceMemory {
        let memory = self.device.memory();
        let runs: Vec<_> = extents
            .iter()
            .map(|extent| {
                memory.get_run(extent.address, PAGES);
                Run {
                    memory: memory.clone(),
                    address: extent.address,
                }
            })
            .collect();
        let pages = extents.iter().map(|extent| (extent.address, extent.len));
        DeviceMemory::new(pages, Arc::new(runs))
    }
}

impl ScifFile {
    /// The lanes of this connection, if its bytes go by them.
    pub(super) fn lanes(&self) -> Result<Option<End>, Errno> {
        let endpoint = self.endpoint()?;
        self.driver.lock().lanes(&self.driver.device, endpoint)
    }

    /// The program says that its peer may go on.
    pub(super) fn ring(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let bell = match argument as i32 {
            ioctl::RING_READABLE => Bell::Readable,
            ioctl::RING_WRITABLE => Bell::Writable,
            ioctl::RING_OWN => {
                (cx.wake)(self.channel);
                return Ok(0);
            }
            _ => return Err(Errno::EINVAL.into()),
        };
        self.request(cx, |_, _| Ok(Op::Ring(bell))).map(|_| 0)
    }

    /// Until the lanes have what the program waits for, or end.
    pub(super) fn wait(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let asked = Message::decode(&read(cx, argument)?);
        // Of what is to be read or written its first byte: the copy finds the rest.
        let first = usize::from(asked.len > 0);
        match asked.flags as i16 {
            libc::POLLIN if cx.memory.writable(asked.address, first) < first => {
                return Err(Errno::EFAULT.into());
            }
            libc::POLLIN => {}
            libc::POLLOUT => cx.memory.read(asked.address, &mut [0; 1][..first])?,
            _ => return Err(Errno::EINVAL.into()),
        }
        let endpoint = self.endpoint()?;
        let mut inner = self.driver.lock();
        if inner.node.lanes(endpoint).is_none() {
            return Err(Errno::ENOTCONN.into());
        }
        let mask = inner.mask(&self.driver.device, endpoint);
        match mask & (asked.flags as i16 | libc::POLLHUP | libc::POLLNVAL) {
            0 => Err(Stop::wait(self.channel)),
            _ => Ok(0),
        }
    }

    /// Sends for a program that does not use the lanes itself.
    pub(super) fn put(
        &self,
        cx: &mut Cx,
        end: &End,
        (address, len, block): (u64, usize, bool),
    ) -> SysResult<usize> {
        let mut bytes = vec![0; len.min(RING_BYTES as usize)];
        cx.memory.read(address, &mut bytes)?;
        let (mut rings, wake) = (false, &mut *cx.wake);
        let sent = end
            .lanes
            .send_some(end.side, &bytes, || wake(self.channel), &mut rings);
        if rings {
            self.tell_peer(cx, end, Bell::Readable)?;
        }
        match sent.map_err(|Over| Errno::ECONNRESET)? {
            // Who makes room from now on rings.
            0 if block => Err(Stop::wait(self.channel)),
            sent => Ok(sent),
        }
    }

    /// Receives for a program that does not use the lanes itself.
    pub(super) fn take(
        &self,
        cx: &mut Cx,
        end: &End,
        (address, len, block): (u64, usize, bool),
    ) -> SysResult<usize> {
        // What has been received cannot be put back.
        let len = match cx.memory.writable(address, len) {
            0 => return Err(Errno::EFAULT.into()),
            len => len,
        };
        let (mut rings, wake) = (false, &mut *cx.wake);
        let mut wakes = || wake(self.channel);
        let received = end
            .lanes
            .receive_some(end.side, (len, block), &mut wakes, &mut rings);
        if rings {
            self.tell_peer(cx, end, Bell::Writable)?;
        }
        let bytes = received.map_err(|Over| Errno::ECONNRESET)?;
        if bytes.is_empty() && block {
            // Who puts bytes from now on rings.
            return Err(Stop::wait(self.channel));
        }
        cx.memory.write(address, &bytes)?;
        Ok(bytes.len())
    }

    /// Rings for a program of the peer's node.
    fn tell_peer(&self, cx: &mut Cx, end: &End, bell: Bell) -> SysResult<()> {
        match bell {
            Bell::Readable => end.lanes.lane(end.side).readable().ring(),
            Bell::Writable => end.lanes.lane(end.side + 1).writable().ring(),
        }
        self.request(cx, |_, _| Ok(Op::Ring(bell))).map(drop)
    }
}
