//! Fences: marks of RMA that is under way, waits for them, and signals after them.
//!
//! ```text
//! INIT_SELF                              INIT_PEER
//!   mark: how many were started            Fence(Mark)    -----> Fenced(Ok(mark))
//!   wait: until those have ended           Fence(Wait)    -----> .. Fenced(Ok(0)) when they have
//!   signal: then, into the own window;     Fence(Signal)  -----> Fenced(Ok(0)) at once
//!           Poke for the peer's            <----- Poke, when they have
//! ```
//!
//! What must stay true: each side writes into its own windows only, when it is told to, and after
//! the RMA that was marked.

use snaprig_wire::scif::{Body, Fence};

use super::{EndpointId, Node, Output, PROT_WRITE, RequestId, Value, window::slice};

/// Marks of this side have these bits.
pub(super) const MARK_MASK: i32 = 0x3fff_ffff;
/// A mark of the peer's RMA.
const MARK_PEER: i32 = 0x4000_0000;
/// Most that waits on one connection.
const WAITING_MAX: usize = 4096;
/// A signal writes so many bytes.
const SIGNAL_BYTES: u64 = 8;

/// What happens when all RMA up to a mark has ended.
pub(super) struct Waiting {
    mark: i32,
    then: AfterFence,
}

pub(super) enum AfterFence {
    Done(RequestId),
    Fenced(u64),
    Signal {
        local: Option<(i64, u64)>,
        remote: Option<(i64, u64)>,
    },
    /// Tell the peer that its windows are not used any more.
    Unwindowed(i64, u64),
    /// The own windows of this range go.
    Retire {
        offset: i64,
        len: u64,
        held: bool,
        request: Option<RequestId>,
    },
}

impl Waiting {
    pub(super) fn is_for(&self, request: RequestId) -> bool {
        matches!(self.then, AfterFence::Done(other) if other == request)
    }

    /// A request that must be told of the endpoint's end.
    pub(super) fn request(&self) -> Option<RequestId> {
        match self.then {
            AfterFence::Done(request) => Some(request),
            AfterFence::Retire { request, .. } => request,
            _ => None,
        }
    }
}

impl Node {
    pub(super) fn fence_mark(
        &mut self,
        request: RequestId,
        id: EndpointId,
        peer: bool,
    ) -> Result<Option<Value>, i32> {
        self.connected(id)?;
        if !peer {
            self.recall(id, false);
            return Ok(Some(Value::Mark(self.connected(id)?.started)));
        }
        self.ask_peer(request, id, Fence::Mark)
    }

    pub(super) fn fence_wait(
        &mut self,
        request: RequestId,
        id: EndpointId,
        mark: i32,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.connected(id)?;
        if mark & MARK_PEER != 0 && mark > 0 {
            return self.ask_peer(request, id, Fence::Wait(mark & MARK_MASK));
        }
        if !(0..=endpoint.started).contains(&mark) {
            return Err(libc::EINVAL);
        }
        self.after(id, mark, AfterFence::Done(request))?;
        Ok(None)
    }

    pub(super) fn fence_signal(
        &mut self,
        request: RequestId,
        id: EndpointId,
        local: Option<(i64, u64)>,
        remote: Option<(i64, u64)>,
        peer: bool,
    ) -> Result<Option<Value>, i32> {
        self.check_signal(id, local, remote)?;
        if peer {
            // As the peer sees it.
            let (local, remote) = (remote, local);
            return self.ask_peer(request, id, Fence::Signal { local, remote });
        }
        self.recall(id, false);
        let mark = self.connected(id)?.started;
        self.after(id, mark, AfterFence::Signal { local, remote })?;
        Ok(Some(Value::Unit))
    }

    fn check_signal(
        &mut self,
        id: EndpointId,
        local: Option<(i64, u64)>,
        remote: Option<(i64, u64)>,
    ) -> Result<(), i32> {
        let endpoint = self.connected(id)?;
        let sides = [(local, &endpoint.windows), (remote, &endpoint.peer_windows)];
        for (offset, windows) in sides {
            if let Some((offset, _)) = offset {
                if offset % 4 != 0 {
                    return Err(libc::EINVAL);
                }
                slice(windows, offset, SIGNAL_BYTES, PROT_WRITE)?;
            }
        }
        Ok(())
    }

    fn ask_peer(
        &mut self,
        request: RequestId,
        id: EndpointId,
        fence: Fence,
    ) -> Result<Option<Value>, i32> {
        let number = self.next_job;
        self.next_job += 1;
        self.connected(id)?.asked.insert(number, request);
        self.tell(id, Body::Fence(number, fence));
        Ok(None)
    }

    /// The peer asks for a fence over RMA of this side.
    pub(super) fn fence(&mut self, id: EndpointId, number: u64, fence: Fence) {
        if !matches!(fence, Fence::Wait(_)) {
            self.recall(id, false);
        }
        let Some(endpoint) = self.endpoints.get(&id) else {
            return;
        };
        let started = endpoint.started;
        let answer = match fence {
            // For whoever asks it is the peer that is gone.
            _ if endpoint.closed => Some(Err(libc::ECONNRESET)),
            Fence::Mark => Some(Ok(started)),
            Fence::Wait(mark) if !(0..=started).contains(&mark) => Some(Err(libc::EINVAL)),
            Fence::Wait(mark) => self
                .after(id, mark, AfterFence::Fenced(number))
                .err()
                .map(Err),
            Fence::Signal { local, remote } => {
                let then = AfterFence::Signal { local, remote };
                let checked = self.check_signal(id, local, remote);
                Some(
                    checked
                        .and_then(|()| self.after(id, started, then))
                        .map(|()| 0),
                )
            }
        };
        if let Some(answer) = answer {
            self.tell(id, Body::Fenced(number, answer));
        }
    }

    /// The peer's answer.
    pub(super) fn fenced(&mut self, id: EndpointId, number: u64, result: Result<i32, i32>) {
        if self.answered(id, number) {
            return;
        }
        let endpoint = self.endpoints.get_mut(&id);
        let Some(request) = endpoint.and_then(|e| e.asked.remove(&number)) else {
            return;
        };
        // The mark of a request that asked for none is of no use, and does no harm.
        let result = result.map(|mark| Value::Mark(mark & MARK_MASK | MARK_PEER));
        self.done(request, result.map_err(|errno| errno.clamp(1, 4095)));
    }

    /// Does it when all RMA up to `mark` has ended, perhaps now.
    pub(super) fn after(&mut self, id: EndpointId, mark: i32, then: AfterFence) -> Result<(), i32> {
        let endpoint = self.endpoints.get_mut(&id).ok_or(libc::EBADF)?;
        if endpoint.waiting.len() >= WAITING_MAX {
            return Err(libc::ENOMEM);
        }
        endpoint.waiting.push(Waiting { mark, then });
        self.serve_fences(id);
        Ok(())
    }

    /// Does what has waited long enough.
    pub(super) fn serve_fences(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get_mut(&id) else {
            return;
        };
        // Jobs end in any order, but are started in this one.
        let oldest = endpoint.jobs.values().min().copied();
        let is_over = |w: &Waiting| oldest.is_none_or(|oldest| w.mark < oldest);
        let (over, waiting) = std::mem::take(&mut endpoint.waiting)
            .into_iter()
            .partition(is_over);
        endpoint.waiting = waiting;
        for Waiting { then, .. } in over {
            match then {
                AfterFence::Done(request) => self.done(request, Ok(Value::Unit)),
                AfterFence::Fenced(number) => self.tell(id, Body::Fenced(number, Ok(0))),
                AfterFence::Signal { local, remote } => {
                    if let Some((offset, value)) = local {
                        self.poke(id, offset, value);
                    }
                    if let Some((offset, value)) = remote {
                        self.tell(id, Body::Poke { offset, value });
                    }
                }
                AfterFence::Unwindowed(offset, len) => self.unwindow_answer(id, offset, len),
                AfterFence::Retire {
                    offset,
                    len,
                    held,
                    request,
                } => self.retire(id, offset, len, held, request),
            }
        }
    }

    /// A signal into a window of this side. One that is gone by now gets none.
    pub(super) fn poke(&mut self, id: EndpointId, offset: i64, value: u64) {
        let Some(endpoint) = self.endpoints.get(&id) else {
            return;
        };
        let peer = endpoint.peer.node;
        let Ok(extents) = slice(&endpoint.windows, offset, SIGNAL_BYTES, PROT_WRITE) else {
            return;
        };
        let bytes = value.to_le_bytes();
        let mut rest = bytes.as_slice();
        for extent in extents {
            let (now, later) = rest.split_at(rest.len().min(extent.len as usize));
            self.out(Output::Poke {
                peer,
                address: extent.address,
                bytes: now.to_vec(),
            });
            rest = later;
        }
    }
}
