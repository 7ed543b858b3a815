//! The calls on an endpoint: what is asked of the node for each ioctl, and what goes back into the program's
//! memory.

use std::mem::offset_of;

use snaprig_card_driver::{
    device::Pinned,
    errno::Errno,
    file::Cx,
    wait::{Stop, SysResult},
};
use snaprig_wire::scif::{
    Extent, PAGE, PortId, WINDOW_BYTES,
    ioctl::{
        Accept, BLOCK, Connect, Copy, FENCE_INIT_PEER, FENCE_INIT_SELF, FenceMark, FenceSignal,
        MAP_FIXED, Message, NodeIds, PROT, RMA_FLAGS, RMA_ORDERED, RMA_SYNC, Register,
        SIGNAL_LOCAL, SIGNAL_REMOTE, Unregister,
    },
};

use super::{file::ScifFile, lock};
use crate::node::{Input, Local, Op, Value};

/// Most bytes of one send or receive; programs see a short count.
pub(super) const TRANSFER_MAX: usize = 256 << 10;

impl ScifFile {
    pub(super) fn bind(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let port = u64::from_le_bytes(read(cx, argument)?);
        let port = u16::try_from(port).map_err(|_| Errno::EINVAL)?;
        // Everybody on a card is root, so the privileged ports are free to all.
        match self.request(cx, |_, _| Ok(Op::Bind(port)))? {
            Value::Port(port) => cx.memory.write(argument, &u64::from(port).to_le_bytes())?,
            _ => return Err(Errno::EPROTO.into()),
        }
        Ok(0)
    }

    pub(super) fn connect(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let asked = Connect::decode(&read(cx, argument)?);
        let peer = PortId {
            node: asked.peer_node,
            port: asked.peer_port,
        };
        let op = match cx.nonblock {
            true => Op::ConnectAsync(peer),
            false => Op::Connect(peer),
        };
        match self.request(cx, |_, _| Ok(op))? {
            Value::Port(port) => {
                let node = self.driver.lock().id;
                put(
                    cx,
                    argument,
                    offset_of!(Connect, own_node),
                    &node.to_le_bytes(),
                )?;
                put(
                    cx,
                    argument,
                    offset_of!(Connect, own_port),
                    &port.to_le_bytes(),
                )?;
            }
            _ => return Err(Errno::EPROTO.into()),
        }
        Ok(0)
    }

    pub(super) fn accept(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let asked = Accept::decode(&read(cx, argument)?);
        let wait = blocks(asked.flags)?;
        let op = if wait { Op::Accept } else { Op::TryAccept };
        match self.request(cx, |_, _| Ok(op))? {
            Value::Accepted { endpoint, peer } => {
                lock(&self.accepted).push(endpoint);
                let PortId { node, port } = peer;
                put(
                    cx,
                    argument,
                    offset_of!(Accept, peer_node),
                    &node.to_le_bytes(),
                )?;
                put(
                    cx,
                    argument,
                    offset_of!(Accept, peer_port),
                    &port.to_le_bytes(),
                )?;
                put(
                    cx,
                    argument,
                    offset_of!(Accept, endpoint),
                    &endpoint.to_le_bytes(),
                )?;
                Ok(0)
            }
            _ => Err(Errno::EPROTO.into()),
        }
    }

    /// This file, freshly opened, becomes the endpoint that another one accepted.
    pub(super) fn claim(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
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

    pub(super) fn send(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let (address, len, block) = message(cx, argument)?;
        let count = match (len, self.lanes()?) {
            (0, _) => 0,
            (_, Some(end)) => self.put(cx, &end, (address, len, block))?,
            _ => match self.request(cx, |_, cx| {
                // What does not fit now is not looked at.
                let most = if block { len } else { len.min(WINDOW_BYTES) };
                let mut data = vec![0; most];
                cx.memory.read(address, &mut data)?;
                Ok(Op::Write { data, block })
            })? {
                Value::Count(count) => count,
                _ => return Err(Errno::EPROTO.into()),
            },
        };
        let count = (count as u32).to_le_bytes();
        put(cx, argument, offset_of!(Message, out_len), &count)?;
        Ok(0)
    }

    pub(super) fn receive(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let (address, len, block) = message(cx, argument)?;
        let count = match (len, self.lanes()?) {
            (0, _) => 0,
            (_, Some(end)) => self.take(cx, &end, (address, len, block))?,
            _ => match self.request(cx, |_, cx| {
                // What has been received cannot be put back: no more than there is good memory for.
                match cx.memory.writable(address, len.min(WINDOW_BYTES)) {
                    0 => Err(Errno::EFAULT),
                    max => Ok(Op::Read { max, block }),
                }
            })? {
                Value::Bytes(bytes) => {
                    cx.memory.write(address, &bytes)?;
                    bytes.len()
                }
                _ => return Err(Errno::EPROTO.into()),
            },
        };
        let count = (count as u32).to_le_bytes();
        put(cx, argument, offset_of!(Message, out_len), &count)?;
        Ok(0)
    }

    pub(super) fn register(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let Register {
            address,
            len,
            offset,
            prot,
            flags,
            ..
        } = Register::decode(&read(cx, argument)?);
        let fixed = flags & MAP_FIXED != 0;
        let value = self.request(cx, |inner, cx| {
            let aligned = (address | len | offset as u64).is_multiple_of(PAGE);
            let known = flags & !MAP_FIXED == 0 && prot & !PROT == 0 && prot != 0;
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
            Value::Offset(offset) => {
                let at = offset_of!(Register, out_offset);
                put(cx, argument, at, &offset.to_le_bytes())?;
            }
            _ => return Err(Errno::EPROTO.into()),
        }
        Ok(0)
    }

    pub(super) fn unregister(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let Unregister { offset, len } = Unregister::decode(&read(cx, argument)?);
        self.request(cx, |_, _| Ok(Op::Unregister { offset, len }))?;
        Ok(0)
    }

    pub(super) fn copy(
        &self,
        cx: &mut Cx,
        argument: u64,
        write: bool,
        windows: bool,
    ) -> SysResult<i64> {
        let Copy {
            local,
            len,
            remote,
            address,
            flags,
        } = Copy::decode(&read(cx, argument)?);
        let (ordered, sync) = (flags & RMA_ORDERED != 0, flags & RMA_SYNC != 0);
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
                    ordered,
                    sync,
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
                ordered,
                sync,
            })
        });
        if !matches!(result, Err(Stop::Wait(_))) {
            lock(&self.unregistered).remove(&cx.tid);
        }
        result.map(|_| 0)
    }

    pub(super) fn fence_mark(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let asked = FenceMark::decode(&read(cx, argument)?);
        let peer = fence_side(asked.flags, 0);
        let value = self.request(cx, |inner, _| {
            inner
                .node
                .check_connected(self.endpoint()?)
                .map_err(Errno)?;
            Ok(Op::FenceMark { peer: peer? })
        })?;
        match value {
            Value::Mark(mark) => cx.memory.write(asked.mark, &mark.to_le_bytes())?,
            _ => return Err(Errno::EPROTO.into()),
        }
        Ok(0)
    }

    pub(super) fn fence_signal(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let asked = FenceSignal::decode(&read(cx, argument)?);
        let flags = asked.flags;
        let side = |bit, offset, value| (flags & bit != 0).then_some((offset, value));
        let local = side(SIGNAL_LOCAL, asked.local, asked.local_value);
        let remote = side(SIGNAL_REMOTE, asked.remote, asked.remote_value);
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

    pub(super) fn node_ids(&self, cx: &mut Cx, argument: u64) -> SysResult<i64> {
        let asked = NodeIds::decode(&read(cx, argument)?);
        let inner = self.driver.lock();
        let nodes = inner.node.nodes();
        let room = usize::try_from(asked.len).map_err(|_| Errno::EINVAL)?;
        let list: Vec<u8> = nodes
            .iter()
            .take(room)
            .flat_map(|node| node.to_le_bytes())
            .collect();
        cx.memory.write(asked.nodes, &list)?;
        cx.memory.write(asked.own, &inner.id.to_le_bytes())?;
        let count = (nodes.len() as u32).to_le_bytes();
        put(cx, argument, offset_of!(NodeIds, len), &count)?;
        Ok(0)
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

pub(super) fn read<const N: usize>(cx: &mut Cx, at: u64) -> Result<[u8; N], Errno> {
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

/// Address, length (bounded), whether to wait.
fn message(cx: &mut Cx, at: u64) -> Result<(u64, usize, bool), Errno> {
    let asked = Message::decode(&read(cx, at)?);
    let len = usize::try_from(asked.len).map_err(|_| Errno::EINVAL)?;
    Ok((asked.address, len.min(TRANSFER_MAX), blocks(asked.flags)?))
}

/// Writes a field of an argument.
fn put(cx: &mut Cx, argument: u64, field: usize, bytes: &[u8]) -> Result<(), Errno> {
    let at = argument.checked_add(field as u64).ok_or(Errno::EFAULT)?;
    cx.memory.write(at, bytes)
}
