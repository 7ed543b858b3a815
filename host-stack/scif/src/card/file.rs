//! An open endpoint: the ioctls of `scif_ioctl.h`.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use snaprig_card::kernel::{
    device::Pinned,
    errno::Errno,
    file::{Cx, Description, File, PollMask},
    wait::{Channel, Stop, SysResult},
};
use snaprig_wire::scif::{Extent, PAGE, PortId, QUEUE_BYTES};

use super::{Driver, Inner, PATH, lock};
use crate::node::{EndpointId, Input, Local, Op, RequestId, Value};

/// Most bytes of one send or receive; programs see a short count.
pub(super) const TRANSFER_MAX: usize = 256 << 10;

pub(super) const SCIF_BIND: u32 = 0xc008_7301;
pub(super) const SCIF_LISTEN: u32 = 0x4004_7302;
pub(super) const SCIF_CONNECT: u32 = 0xc008_7303;
pub(super) const SCIF_ACCEPTREQ: u32 = 0xc010_7304;
pub(super) const SCIF_ACCEPTREG: u32 = 0xc008_7305;
pub(super) const SCIF_SEND: u32 = 0xc018_7306;
pub(super) const SCIF_RECV: u32 = 0xc018_7307;
pub(super) const SCIF_REG: u32 = 0xc028_7308;
pub(super) const SCIF_UNREG: u32 = 0xc010_7309;
pub(super) const SCIF_READFROM: u32 = 0xc028_730a;
pub(super) const SCIF_WRITETO: u32 = 0xc028_730b;
pub(super) const SCIF_VREADFROM: u32 = 0xc028_730c;
pub(super) const SCIF_VWRITETO: u32 = 0xc028_730d;
pub(super) const SCIF_GET_NODEIDS: u32 = 0xc018_730e;

pub(super) const SCIF_FENCE_MARK: u32 = 0xc010_730f;
pub(super) const SCIF_FENCE_WAIT: u32 = 0xc004_7310;
pub(super) const SCIF_FENCE_SIGNAL: u32 = 0xc028_7311;

pub(super) const SCIF_MAP_FIXED: i32 = 0x10;
pub(super) const BLOCK: i32 = 1;
/// `SCIF_RMA_*`: USECPU, USECACHE, SYNC, ORDERED. A copy of the engine's is all of them but the first.
pub(super) const RMA_FLAGS: i32 = 0xf;
pub(super) const FENCE_INIT_SELF: i32 = 1;
pub(super) const FENCE_INIT_PEER: i32 = 2;
pub(super) const SIGNAL_LOCAL: i32 = 0x10;
pub(super) const SIGNAL_REMOTE: i32 = 0x20;
/// `SCIF_PROT_READ | SCIF_PROT_WRITE`.
pub(super) const PROT: i32 = 3;

/// An open endpoint; `None` stands where one was before a restore.
pub(super) struct ScifFile {
    driver: Arc<Driver>,
    endpoint: Mutex<Option<EndpointId>>,
    flags: i32,
    pub(super) channel: Channel,
    /// What each thread has asked and not been told.
    pending: Mutex<BTreeMap<i32, RequestId>>,
    /// Pages of each thread's RMA of unregistered memory.
    unregistered: Mutex<BTreeMap<i32, Pinned>>,
    /// Endpoints that were accepted and not yet claimed by SCIF_ACCEPTREG.
    accepted: Mutex<Vec<EndpointId>>,
}

impl ScifFile {
    pub(super) fn new(driver: &Arc<Driver>, endpoint: Option<EndpointId>, flags: i32) -> Arc<Self> {
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
        let Some(result) = result else {
            lock(&self.pending).insert(cx.tid, request);
            return Err(Stop::wait(self.channel));
        };
        lock(&self.pending).remove(&cx.tid);
        Ok(result.map_err(Errno)?)
    }

    fn bind(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let port = u64::from_le_bytes(read(cx, argument)?);
        let port = u16::try_from(port).map_err(|_| Errno::EINVAL)?;
        // Everybody on a card is root, so the privileged ports are free to all.
        match self.request(cx, |_, _| Ok(Op::Bind(port)))? {
            Value::Port(port) => cx.memory.write(argument, &u64::from(port).to_le_bytes())?,
            _ => return Err(Errno::EPROTO.into()),
        }
        Ok(0)
    }

    fn connect(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let bytes: [u8; 8] = read(cx, argument)?;
        let peer = port_id(&bytes[4..]);
        let op = match cx.nonblock {
            true => Op::ConnectAsync(peer),
            false => Op::Connect(peer),
        };
        match self.request(cx, |_, _| Ok(op))? {
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
        let wait = blocks(int(&bytes[..4]))?;
        let op = if wait { Op::Accept } else { Op::TryAccept };
        match self.request(cx, |_, _| Ok(op))? {
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
        let (address, len, block) = message(cx, argument)?;
        let count = match len {
            0 => 0,
            _ => match self.request(cx, |_, cx| {
                // What does not fit now is not looked at.
                let most = if block { len } else { len.min(QUEUE_BYTES) };
                let mut data = vec![0; most];
                cx.memory.read(address, &mut data)?;
                Ok(Op::Write { data, block })
            })? {
                Value::Count(count) => count,
                _ => return Err(Errno::EPROTO.into()),
            },
        };
        cx.memory
            .write(argument + 16, &(count as u32).to_le_bytes())?;
        Ok(0)
    }

    fn receive(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let (address, len, block) = message(cx, argument)?;
        let bytes = match len {
            0 => Vec::new(),
            _ => match self.request(cx, |_, cx| {
                // What has been received cannot be put back: no more than there is good memory for.
                match cx.memory.writable(address, len.min(QUEUE_BYTES)) {
                    0 => Err(Errno::EFAULT),
                    max => Ok(Op::Read { max, block }),
                }
            })? {
                Value::Bytes(bytes) => bytes,
                _ => return Err(Errno::EPROTO.into()),
            },
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
        let flags = int(&bytes[28..32]);
        let fixed = flags & SCIF_MAP_FIXED != 0;
        let value = self.request(cx, |inner, cx| {
            let aligned = (address | len | offset as u64).is_multiple_of(PAGE);
            let known = flags & !SCIF_MAP_FIXED == 0 && prot & !PROT == 0 && prot != 0;
            if !known || len == 0 || !aligned && (fixed || !(address | len).is_multiple_of(PAGE)) {
                return Err(Errno::EINVAL);
            }
            if offset < 0 {
                return Err(Errno::EINVAL);
            }
            // Before anything is pinned.
            let endpoint = self.endpoint()?;
            inner.node.check_connected(endpoint).map_err(Errno)?;
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
        self.request(cx, |_, _| Ok(Op::Unregister { offset, len }))?;
        Ok(0)
    }

    fn copy(&self, cx: &mut Cx, argument: u64, write: bool, windows: bool) -> SysResult<i64> {
        let bytes: [u8; 40] = read(cx, argument)?;
        let (local, len) = (long(&bytes[..8]) as i64, long(&bytes[8..16]));
        let (remote, address) = (long(&bytes[16..24]) as i64, long(&bytes[24..32]));
        let flags = int(&bytes[32..36]);
        let result = self.request(cx, |inner, cx| {
            let endpoint = self.endpoint()?;
            inner.node.check_connected(endpoint).map_err(Errno)?;
            if flags & !RMA_FLAGS != 0 {
                return Err(Errno::EINVAL);
            }
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

    fn fence_mark(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let bytes: [u8; 16] = read(cx, argument)?;
        let peer = fence_side(int(&bytes[..4]), 0);
        let value = self.request(cx, |inner, _| {
            inner
                .node
                .check_connected(self.endpoint()?)
                .map_err(Errno)?;
            Ok(Op::FenceMark { peer: peer? })
        })?;
        match value {
            Value::Mark(mark) => cx.memory.write(long(&bytes[8..]), &mark.to_le_bytes())?,
            _ => return Err(Errno::EPROTO.into()),
        }
        Ok(0)
    }

    fn fence_signal(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let bytes: [u8; 40] = read(cx, argument)?;
        let flags = int(&bytes[32..36]);
        let side = |bit, bytes: &[u8]| {
            let (offset, value) = (long(&bytes[..8]) as i64, long(&bytes[8..16]));
            (flags & bit != 0).then_some((offset, value))
        };
        let local = side(SIGNAL_LOCAL, &bytes[..16]);
        let remote = side(SIGNAL_REMOTE, &bytes[16..32]);
        let peer = fence_side(flags, SIGNAL_LOCAL | SIGNAL_REMOTE);
        self.request(cx, |inner, _| {
            inner
                .node
                .check_connected(self.endpoint()?)
                .map_err(Errno)?;
            Ok(Op::FenceSignal {
                local,
                remote,
                peer: peer?,
            })
        })?;
        Ok(0)
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
                self.request(cx, |_, _| Ok(Op::Listen(backlog))).map(|_| 0)
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
            SCIF_FENCE_MARK => self.fence_mark(cx, argument),
            SCIF_FENCE_WAIT => {
                let mark = argument as i32;
                self.request(cx, |_, _| Ok(Op::FenceWait(mark))).map(|_| 0)
            }
            SCIF_FENCE_SIGNAL => self.fence_signal(cx, argument),
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

fn read<const N: usize>(cx: &mut Cx, at: u64) -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    cx.memory.read(at, &mut bytes)?;
    Ok(bytes)
}

/// Whether a call is to wait: the one flag that it may have.
fn blocks(flags: i32) -> Result<bool, Errno> {
    match flags {
        0 => Ok(false),
        BLOCK => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

/// Whether a fence is for what the peer started. `signals`: flags one of which it must have, too.
fn fence_side(flags: i32, signals: i32) -> Result<bool, Errno> {
    if flags & !(FENCE_INIT_SELF | FENCE_INIT_PEER | signals) != 0
        || signals != 0 && flags & signals == 0
    {
        return Err(Errno::EINVAL);
    }
    match flags & (FENCE_INIT_SELF | FENCE_INIT_PEER) {
        FENCE_INIT_SELF => Ok(false),
        FENCE_INIT_PEER => Ok(true),
        _ => Err(Errno::EINVAL),
    }
}

/// `struct scifioctl_msg`: address, length (bounded), whether to wait.
fn message(cx: &mut Cx, at: u64) -> Result<(u64, usize, bool), Errno> {
    let bytes: [u8; 24] = read(cx, at)?;
    let len = usize::try_from(int(&bytes[8..12])).map_err(|_| Errno::EINVAL)?;
    Ok((
        long(&bytes[..8]),
        len.min(TRANSFER_MAX),
        blocks(int(&bytes[12..16]))?,
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
