//! An open endpoint: what each thread has asked of it.

use std::{
    any::Any,
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use snaprig_card_driver::{
    device::{DeviceMemory, Pinned},
    errno::Errno,
    file::{Cx, Description, File, PollMask},
    wait::{Channel, Stop, SysResult},
};
use snaprig_wire::scif::{LANES_BYTES, ioctl};

use super::{Driver, Inner, PATH, lock};
use crate::node::{EndpointId, Input, Op, RequestId, Value};

/// An open endpoint; `None` stands where one was before a restore.
pub(super) struct ScifFile {
    pub(super) driver: Arc<Driver>,
    pub(super) endpoint: Mutex<Option<EndpointId>>,
    flags: i32,
    pub(super) channel: Channel,
    /// What each thread has asked and not been told.
    pending: Mutex<BTreeMap<i32, RequestId>>,
    /// Pages of each thread's RMA of unregistered memory.
    pub(super) unregistered: Mutex<BTreeMap<i32, Pinned>>,
    /// Endpoints that were accepted and not yet claimed ([`ioctl::ACCEPT_CLAIM`]).
    pub(super) accepted: Mutex<Vec<EndpointId>>,
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

    pub(super) fn endpoint(&self) -> Result<EndpointId, Errno> {
        lock(&self.endpoint).ok_or(Errno::ECONNRESET)
    }

    /// Posts the request at the first attempt; later ones find it pending.
    pub(super) fn request(
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
}

impl File for ScifFile {
    fn ioctl(&self, cx: &mut Cx, request: u32, argument: u64) -> SysResult<i64> {
        match request {
            ioctl::BIND => self.bind(cx, argument),
            ioctl::LISTEN => {
                let backlog = usize::try_from(argument as i32).unwrap_or(0);
                self.request(cx, |_, _| Ok(Op::Listen(backlog))).map(|_| 0)
            }
            ioctl::CONNECT => self.connect(cx, argument),
            ioctl::ACCEPT => self.accept(cx, argument),
            ioctl::ACCEPT_CLAIM => self.claim(cx, argument),
            ioctl::SEND => self.send(cx, argument),
            ioctl::RECV => self.receive(cx, argument),
            ioctl::REGISTER => self.register(cx, argument),
            ioctl::UNREGISTER => self.unregister(cx, argument),
            ioctl::READ_FROM => self.copy(cx, argument, false, true),
            ioctl::WRITE_TO => self.copy(cx, argument, true, true),
            ioctl::VREAD_FROM => self.copy(cx, argument, false, false),
            ioctl::VWRITE_TO => self.copy(cx, argument, true, false),
            ioctl::FENCE_MARK => self.fence_mark(cx, argument),
            ioctl::FENCE_WAIT => {
                let mark = argument as i32;
                self.request(cx, |_, _| Ok(Op::FenceWait(mark))).map(|_| 0)
            }
            ioctl::FENCE_SIGNAL => self.fence_signal(cx, argument),
            ioctl::NODE_IDS => self.node_ids(cx, argument),
            ioctl::WILLING => self.request(cx, |_, _| Ok(Op::Willing)).map(|_| 0),
            ioctl::RING => self.ring(cx, argument),
            ioctl::WAIT => self.wait(cx, argument),
            _ => Err(Errno::ENOTTY.into()),
        }
    }

    fn map(&self, cx: &mut Cx, offset: u64, len: u64, prot: i32) -> SysResult<DeviceMemory> {
        match offset {
            ioctl::LANES if len == LANES_BYTES => Ok(self.map_lanes(cx)?.left_empty()),
            ioctl::LANES => Err(Errno::EINVAL.into()),
            _ => self.map_window(cx, offset, len, prot),
        }
    }

    fn poll(&self) -> PollMask {
        match self.endpoint() {
            Ok(endpoint) => self.driver.lock().mask(&self.driver.device, endpoint),
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
            inner.lanes.remove(&endpoint);
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
