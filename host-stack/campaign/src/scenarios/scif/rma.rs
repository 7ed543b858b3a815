//! RMA and signals that nodes want done: they must be what programs have asked for, and when.
//!
//! A DMA engine makes the copies of a job in their order, but the parts of each in any, and jobs of one connection
//! overtake each other. What dies in the middle leaves any part of it written.

use snaprig_scif::{
    faults,
    node::{Input, JobId},
};
use snaprig_sim::Random;
use snaprig_wire::{
    dma::Descriptor,
    scif::{HOST, NodeId},
};

use super::{
    calls::{Caller, Job, PendingCall, Request},
    run::{Event, World},
};
use crate::{
    links::Network as _,
    scenario::invariant,
    stage::{Effect, System as _},
};

/// Slowest DMA, beside the engine's own draw.
const COPY_NS: [u64; 4] = [0, 5_000, 20_000, 60_000];

/// Most parts of a copy.
const PARTS_MAX: u64 = 4;

/// Parts of a copy, in any order.
fn parts(copy: &Descriptor, random: &mut Random) -> Vec<Descriptor> {
    let count = 1 + random.below(PARTS_MAX.min(copy.len.into())) as u32;
    let len = copy.len.div_ceil(count).max(1);
    let part = |at: u32| Descriptor {
        src: copy.src + u64::from(at),
        dst: copy.dst + u64::from(at),
        len: len.min(copy.len - at),
        interrupt: false,
    };
    let mut left: Vec<_> = (0..copy.len).step_by(len as usize).map(part).collect();
    let mut parts = Vec::with_capacity(left.len());
    while !left.is_empty() {
        parts.push(left.swap_remove(random.below(left.len() as u64) as usize));
    }
    parts
}

impl World {
    /// A node wants something copied: it must be what its program asked for.
    pub fn begin_copy(&mut self, node: NodeId, job: JobId, peer: NodeId, copies: Vec<Descriptor>) {
        let asked = self.current.and_then(|request| self.asked.get(&request));
        let Some(PendingCall {
            who: Caller::Side(side, _),
            what: Request::Rma(rma),
            ..
        }) = asked
        else {
            return self.violation(invariant::RDMA, "RMA for which nobody has asked");
        };
        let (number, side, rma) = (*side, &self.sides[*side], *rma);
        let here = match (rma.local, rma.memory) {
            (Some(offset), _) => self.memory.range(&side.windows, offset, rma.len),
            (None, memory) => memory
                .and_then(|id| self.memory.part(id, 0, rma.len))
                .map(|part| vec![part]),
        };
        let there = side.peer.and_then(|peer| {
            let windows = &self.sides[peer].windows;
            self.memory.range(windows, rma.remote, rma.len)
        });
        let mut is_doomed = false;
        let (from, to) = match (here, there, rma.write) {
            (Some(here), Some(there), true) => (here, there),
            (Some(here), Some(there), false) => (there, here),
            // One side has heard that the link is down, and the other one has not.
            _ if self.is_disturbed(node) || self.is_disturbed(peer) => {
                is_doomed = true;
                (Vec::new(), Vec::new())
            }
            _ => {
                let how = format!("{rma:?} with windows that are not there");
                return self.violation(invariant::RDMA, how);
            }
        };
        if !is_doomed && let Err(how) = self.memory.check(&copies, &from, &to, rma.ordered) {
            self.violation(invariant::RDMA, how);
        }
        let mut random = Random::new(self.net.stage.engine.now_ns(), "parts of RMA");
        let job_of = Job {
            side: number,
            peer,
            awaited: self.current.filter(|_| rma.is_awaited()),
            copies: copies
                .iter()
                .flat_map(|copy| parts(copy, &mut random))
                .collect(),
            from,
            to,
            is_doomed,
            memory: rma.memory,
        };
        self.jobs.insert((node, job), job_of);
        self.copy_later(node, job);
    }

    /// The next part of a job takes its time.
    fn copy_later(&mut self, node: NodeId, job: JobId) {
        let left = self
            .jobs
            .get(&(node, job))
            .map_or(0, |job| job.copies.len());
        let by_ns = COPY_NS[(job as usize + left) % COPY_NS.len()];
        let own = self.process_of(node);
        self.net
            .stage
            .engine
            .after(own, by_ns, Event::Copy(node, job));
    }

    /// A part of a job is copied, now.
    pub fn copy(&mut self, node: NodeId, job: JobId) {
        let own = self.process_of(node);
        let effect = self.fault(own, &faults::COPY);
        if effect == Effect::Ended {
            return;
        }
        let Some(peer) = self.jobs.get(&(node, job)).map(|job| job.peer) else {
            return;
        };
        for card in [node, peer] {
            if self.is_held(node, card, job) {
                return;
            }
        }
        let is_lost = |card: NodeId| {
            !self.net.stage.engine.is_alive(self.process_of(card))
                || card != HOST && self.net.link(card).is_down()
        };
        let is_out_of_reach = node != peer && [node, peer].into_iter().any(is_lost);
        let Some(of) = self.jobs.get_mut(&(node, job)) else {
            return;
        };
        let part = of.copies.pop_front();
        let flip = match effect {
            Effect::Corrupt(bit) => Some(bit),
            _ => None,
        };
        let result = match effect {
            _ if of.is_doomed
                || is_out_of_reach
                || self.memory.is_lost(&of.from)
                || self.memory.is_lost(&of.to) =>
            {
                Err(libc::EIO)
            }
            Effect::Error(errno) => {
                self.injected.insert(errno);
                Err(errno)
            }
            _ => {
                let is_over = of.copies.is_empty();
                let copied = part.map(|part| self.memory.copy(&part, &of.from, &of.to, flip));
                if let Some(Err(how)) = copied {
                    self.violation(invariant::RDMA, how);
                }
                if !is_over {
                    return self.copy_later(node, job);
                }
                self.copies += 1;
                Ok(())
            }
        };
        self.node_hears(node, Input::CopyDone(job, result));
        self.pump(node);
    }

    /// A job has ended: memory that is no window is free again.
    pub fn end_copy(&mut self, node: NodeId, job: JobId) {
        let job = self.jobs.remove(&(node, job));
        if let Some(backing) = job.and_then(|job| job.memory) {
            self.memory.release(backing);
        }
    }
    /// A node writes a signal into a window of its own.
    pub fn poke(&mut self, node: NodeId, address: u64, bytes: &[u8]) {
        let Ok(value) = bytes.try_into().map(u64::from_le_bytes) else {
            return self.violation(invariant::RDMA, "a signal in pieces");
        };
        let Some(signal) = self.signals.remove(&(node, value)) else {
            let how = format!("signal {value} on node {node} comes again, or was not asked for");
            return self.violation(invariant::RDMA, how);
        };
        if let Some(job) = signal.jobs.iter().find(|job| self.jobs.contains_key(job)) {
            let how = format!("signal {value} comes, and {job:?} is under way");
            self.violation(invariant::RDMA, how);
        }
        let windows = &self.sides[signal.side].windows;
        let parts = self
            .memory
            .range(windows, signal.offset, bytes.len() as u64);
        let written = self.memory.poke(&parts.unwrap_or_default(), address, bytes);
        if let Err(how) = written {
            self.violation(invariant::RDMA, how);
        }
    }

    /// RMA that a side has under way.
    pub fn under_way(&self, side: usize) -> Vec<(NodeId, JobId)> {
        let jobs = self.jobs.iter().filter(|(_, job)| job.side == side);
        jobs.map(|(id, _)| *id).collect()
    }
}
