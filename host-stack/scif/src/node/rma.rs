//! Copies between windows. A job lasts from the check of both sides to the end of the copy, whoever
//! makes it.
//!
//! What must stay true: a card's copy is under way until its job has ended, whether a call waits for it or not. Fences,
//! windows that are taken back, and the end of the connection wait for such jobs.

use snaprig_wire::{
    dma::{Descriptor, LEN_MAX},
    scif::{Extent, PAGE},
};

use super::{
    EndpointId, JobId, Local, Node, Output, PROT_READ, PROT_WRITE, Recall, RequestId, Value,
    fence::MARK_MASK,
    window::{cut, slice},
};

/// Most copies of an endpoint that are under way and that no call waits for; the next call waits for its own.
const STARTED_MAX: usize = 64;
/// A cache line.
const LINE: u64 = 64;

/// What is wanted of a copy ([`super::Op::Rma`]).
pub(super) struct CopyOptions {
    pub(super) write: bool,
    pub(super) ordered: bool,
    pub(super) sync: bool,
}

/// What each side must allow.
fn prots(write: bool) -> (u8, u8) {
    match write {
        true => (PROT_READ, PROT_WRITE),
        false => (PROT_WRITE, PROT_READ),
    }
}

impl Node {
    pub(super) fn rma(
        &mut self,
        request: RequestId,
        id: EndpointId,
        local: &Local,
        len: u64,
        remote: i64,
        how: CopyOptions,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.connected(id)?;
        if len == 0 {
            return Err(libc::EINVAL);
        }
        let write = how.write;
        let (local_prot, remote_prot) = prots(write);
        let here = match local {
            Local::Window(offset) => slice(&endpoint.windows, *offset, len, local_prot)?,
            Local::Memory { extents, skip } => cut(extents, *skip, len).ok_or(libc::EFAULT)?,
        };
        let there = slice(&endpoint.peer_windows, remote, len, remote_prot)?;
        let mut copies = match write {
            true => pair(&here, &there),
            false => pair(&there, &here),
        };
        if how.ordered {
            split_last_line(&mut copies);
        }
        let peer = endpoint.peer.node;
        // Memory that is not registered is the program's again when the call ends.
        let is_registered = matches!(local, Local::Window(_));
        let waits = how.sync || !is_registered || endpoint.jobs.len() >= STARTED_MAX;
        let job = self.start_job(id, waits.then_some(request))?;
        self.out(Output::Copy {
            job,
            peer,
            copies,
            waits,
        });
        Ok((!waits).then_some(Value::Unit))
    }

    pub(super) fn plan(
        &mut self,
        id: EndpointId,
        local: Option<i64>,
        len: u64,
        remote: i64,
        write: bool,
    ) -> Result<Option<Value>, i32> {
        let endpoint = self.connected(id)?;
        if len == 0 {
            return Err(libc::EINVAL);
        }
        let (local_prot, remote_prot) = prots(write);
        if let Some(local) = local {
            slice(&endpoint.windows, local, len, local_prot)?;
        }
        let extents = slice(&endpoint.peer_windows, remote, len, remote_prot)?;
        let job = self.start_job(id, None)?;
        Ok(Some(Value::Plan { job, extents }))
    }

    pub(super) fn lease(&mut self, id: EndpointId, remote: i64) -> Result<Option<Value>, i32> {
        let endpoint = self.connected(id)?;
        if endpoint.recalled.is_some() {
            return Err(libc::EAGAIN);
        }
        let before = endpoint.peer_windows.range(..=remote).next_back();
        let (start, window) = before.ok_or(libc::ENXIO)?;
        let skip = remote.wrapping_sub(*start).cast_unsigned() / PAGE * PAGE;
        let len = window.len.checked_sub(skip).filter(|len| *len > 0);
        let (offset, prot) = (start.saturating_add_unsigned(skip), window.prot);
        let len = len.ok_or(libc::ENXIO)?;
        let extents = slice(&endpoint.peer_windows, offset, len, 0)?;
        endpoint.leased = true;
        Ok(Some(Value::Leased {
            offset,
            prot,
            extents,
        }))
    }

    /// Copies under leases become a job, which is under way until the driver says that they have ended.
    pub(super) fn recall(&mut self, id: EndpointId, revoke: bool) {
        let Some(endpoint) = self.endpoints.get_mut(&id).filter(|e| e.leased) else {
            return;
        };
        endpoint.leased = !revoke;
        if endpoint.recalled.is_some() {
            // Nothing has been leased since, but what was asked for may be less.
            let same = self
                .recalls
                .iter_mut()
                .filter(|recall| recall.endpoint == id);
            same.for_each(|recall| recall.revoke |= revoke);
            return;
        }
        let job = self.add_job(id, None);
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.recalled = Some(job);
        }
        self.recalls.push_back(Recall {
            job,
            endpoint: id,
            revoke,
        });
    }

    fn start_job(&mut self, id: EndpointId, request: Option<RequestId>) -> Result<JobId, i32> {
        self.endpoint(id)?;
        Ok(self.add_job(id, request))
    }

    fn add_job(&mut self, id: EndpointId, request: Option<RequestId>) -> JobId {
        let job = self.next_job;
        self.next_job += 1;
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.started = endpoint.started.wrapping_add(1) & MARK_MASK;
            endpoint.jobs.insert(job, endpoint.started);
            self.jobs.insert(job, (request, id));
        }
        job
    }

    pub(super) fn copy_done(&mut self, job: JobId, result: Result<(), i32>) {
        let Some((request, id)) = self.jobs.remove(&job) else {
            return;
        };
        if let Some(request) = request {
            self.done(request, result.map(|()| Value::Unit));
        }
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.jobs.remove(&job);
            endpoint.recalled = endpoint.recalled.filter(|recalled| *recalled != job);
        }
        self.serve_fences(id);
        self.try_finish_close(id);
    }
}

/// Makes the last cache line of the source a copy of its own: they are made one after the other.
fn split_last_line(copies: &mut Vec<Descriptor>) {
    let Some(copy) = copies.last_mut() else {
        return;
    };
    let end = copy.src + u64::from(copy.len);
    let first = ((end - 1) / LINE * LINE).saturating_sub(copy.src);
    if first > 0 {
        let last = Descriptor {
            src: copy.src + first,
            dst: copy.dst + first,
            len: copy.len - first as u32,
            interrupt: false,
        };
        copy.len = first as u32;
        copies.push(last);
    }
}

/// Copies that move one list of extents to another of the same length.
fn pair(from: &[Extent], to: &[Extent]) -> Vec<Descriptor> {
    let (mut copies, mut i, mut j) = (Vec::new(), 0, 0);
    let (mut from_done, mut to_done) = (0, 0);
    while let (Some(src), Some(dst)) = (from.get(i), to.get(j)) {
        let len = (src.len - from_done).min(dst.len - to_done).min(LEN_MAX);
        copies.push(Descriptor {
            src: src.address + from_done,
            dst: dst.address + to_done,
            len: len as u32,
            interrupt: false,
        });
        from_done += len;
        to_done += len;
        if from_done == src.len {
            (i, from_done) = (i + 1, 0);
        }
        if to_done == dst.len {
            (j, to_done) = (j + 1, 0);
        }
    }
    copies
}
