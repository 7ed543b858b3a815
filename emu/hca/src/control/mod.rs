//! The control plane: who owns what, and how it is made, changed and taken away.
//!
//! ```text
//!   process --Request--> Control::handle --> tables and rings of device memory --Reply--> process
//!   process dies -------> Control::gone  --> its things go; its peers' queue pairs fail
//! ```
//!
//! One `Control` per fabric, in the control daemon (or in a test). Data never passes here. Errors
//! are errno values, as the verbs return them.
//!
//! What must stay true: what a process names must be its own, or the answer is EINVAL; nothing is
//! freed while something refers to it (EBUSY); what a dead process had is all given back.

pub mod attributes;
mod heap;
mod keys;
mod qps;
mod queues;
mod setup;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Hca, Host, Memory, model::Model, port::Gid};
use heap::Heap;

pub use qps::{destination_lid, find_port};
pub use setup::{FIRST_LID, Fabric, HcaSetup, guid};

/// An errno value.
pub type Errno = i32;

/// Errno values that the control plane answers with (errno(3)).
#[allow(missing_docs)]
pub mod errno {
    pub const ENOENT: i32 = 2;
    pub const ENOMEM: i32 = 12;
    pub const EBUSY: i32 = 16;
    pub const EINVAL: i32 = 22;
    pub const ENOSPC: i32 = 28;
    pub const EOPNOTSUPP: i32 = 95;
}

/// Limits of a queue pair (`struct ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Requests of the send queue.
    pub send_slots: u32,
    /// Requests of the receive queue.
    pub receive_slots: u32,
    /// Scatter/gather entries of a send.
    pub send_sges: u32,
    /// Scatter/gather entries of a receive.
    pub receive_sges: u32,
    /// Bytes of inline data.
    pub inline_bytes: u32,
}

/// Attributes of a queue pair (`struct ibv_qp_attr`); a mask says which count.
#[allow(missing_docs)] // ibv_modify_qp(3) documents them
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpAttributes {
    pub state: u32,
    pub cur_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp: u32,
    pub access: u32,
    pub address: Address,
    pub pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_number: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}

/// An address (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// LID; 0 with a global route: found by GID.
    pub lid: u16,
    /// Service level.
    pub service_level: u8,
    /// Low bits of one's own LID.
    pub path_bits: u8,
    /// Port, from 1.
    pub port_number: u8,
    /// One's own GID index and the other's GID, if there is a global route.
    pub global: Option<(u8, Gid)>,
}

/// What a process asks for.
#[allow(missing_docs)] // fields are those of the things they make
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A protection domain of an HCA.
    AllocPd {
        hca: u32,
    },
    FreePd {
        pd: u32,
    },
    /// A memory region; `start` is its first address for work requests, `address` in memory.
    RegisterMr {
        pd: u32,
        start: u64,
        address: u64,
        length: u64,
        access: u32,
        pooled: bool,
    },
    /// A region of nothing.
    NullMr {
        pd: u32,
    },
    /// Changes what is given.
    ReregisterMr {
        key: u32,
        pd: Option<u32>,
        access: Option<u32>,
        range: Option<(u64, u64, bool)>,
    },
    DeregisterMr {
        key: u32,
    },
    AllocMw {
        pd: u32,
        kind: u32,
    },
    FreeMw {
        key: u32,
    },
    CreateCq {
        hca: u32,
        entries: u32,
        channel: Option<u32>,
        /// Whether completions are to say when they were made.
        stamps: bool,
    },
    ResizeCq {
        cq: u32,
        entries: u32,
    },
    DestroyCq {
        cq: u32,
    },
    CreateSrq {
        pd: u32,
        slots: u32,
        sges: u32,
        limit: u32,
        xrc: Option<(u32, u32)>,
    },
    ModifySrq {
        srq: u32,
        slots: Option<u32>,
        limit: Option<u32>,
    },
    DestroySrq {
        srq: u32,
    },
    CreateQp {
        pd: u32,
        transport: u32,
        send_cq: u32,
        recv_cq: u32,
        srq: Option<u32>,
        xrc_domain: Option<u32>,
        signals_all: bool,
        capabilities: Capabilities,
    },
    ModifyQp {
        qp: u32,
        mask: u32,
        attributes: QpAttributes,
    },
    DestroyQp {
        qp: u32,
    },
    AttachMulticast {
        qp: u32,
        gid: Gid,
        lid: u16,
    },
    DetachMulticast {
        qp: u32,
        gid: Gid,
        lid: u16,
    },
    /// A domain of extended reliable connections; processes that name the same file share it.
    OpenXrcd {
        hca: u32,
        file: Option<(u64, u64)>,
    },
    CloseXrcd {
        xrcd: u32,
    },
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// The number or place of what was made.
    Made(u32),
    /// A queue's place and how much it holds.
    Queue(u32, u32),
    /// A queue pair's place, its number and its limits.
    Qp(u32, u32, Capabilities),
}

#[derive(Debug)]
struct Pd {
    process: u32,
    hca: u32,
    users: u32,
}

#[derive(Debug)]
struct Xrcd {
    hca: u32,
    file: Option<(u64, u64)>,
    openers: Vec<u32>,
    users: u32,
}

/// Places of a table: which are in use, and how often each was.
#[derive(Debug, Default)]
struct Table {
    used: BTreeSet<u32>,
    freed: Vec<u32>,
    next: u32,
    generations: BTreeMap<u32, u32>,
}

impl Table {
    /// Takes a place below `count`, and says for which time.
    fn take(&mut self, count: u32) -> Option<(u32, u32)> {
        // Fresh places first: a number comes again as late as possible.
        let place = if self.next < count {
            self.next += 1;
            self.next - 1
        } else {
            (!self.freed.is_empty()).then(|| self.freed.remove(0))?
        };
        self.used.insert(place);
        let generation = self.generations.entry(place).or_insert(0);
        *generation += 1;
        Some((place, *generation))
    }

    fn give(&mut self, place: u32) {
        if self.used.remove(&place) {
            self.freed.push(place);
        }
    }
}

/// The control plane of one fabric.
#[derive(Debug)]
pub struct Control {
    models: Vec<Model>,
    heap: Heap,
    pds: BTreeMap<u32, Pd>,
    next_pd: u32,
    xrcds: BTreeMap<u32, Xrcd>,
    next_xrcd: u32,
    keys: Table,
    qps: Table,
    cqs: Table,
    srqs: Table,
    /// Of the completion queue that was made last.
    cq_serial: u32,
    /// How many queue pairs and shared queues complete to each completion queue.
    cq_users: BTreeMap<u32, u32>,
    /// How many queue pairs receive from each shared queue.
    srq_users: BTreeMap<u32, u32>,
    /// Rings: place and bytes, by what they belong to.
    rings: BTreeMap<Ring, (u64, u64)>,
    /// A queue pair, and the group it joined.
    memberships: BTreeSet<(u32, Gid)>,
    processes: BTreeSet<u32>,
}

/// What a ring belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ring {
    Cq(u32),
    Srq(u32),
    Send(u32),
    Receive(u32),
    Borrowed(u32),
}

impl Control {
    /// Does what a process asks for.
    pub fn handle<H: Host>(
        &mut self,
        hca: &Hca<'_, H>,
        process: u32,
        request: &Request,
    ) -> Result<Reply, Errno> {
        use Request::*;
        let memory = hca.memory;
        match *request {
            AllocPd { hca } => self.alloc_pd(process, hca),
            FreePd { pd } => self.free_pd(process, pd),
            RegisterMr {
                pd,
                start,
                address,
                length,
                access,
                pooled,
            } => self.register(
                memory,
                process,
                pd,
                (start, address, length),
                access,
                pooled,
            ),
            NullMr { pd } => self.null_region(memory, process, pd),
            ReregisterMr {
                key,
                pd,
                access,
                range,
            } => self.reregister(memory, process, key, pd, access, range),
            DeregisterMr { key } => self.deregister(memory, process, key),
            AllocMw { pd, kind } => self.alloc_window(memory, process, pd, kind),
            FreeMw { key } => self.free_window(hca, process, key),
            CreateCq {
                hca,
                entries,
                channel,
                stamps,
            } => self.create_cq(memory, process, hca, entries, channel, stamps),
            ResizeCq { cq, entries } => self.resize_cq(hca, process, cq, entries),
            DestroyCq { cq } => self.destroy_cq(memory, process, cq),
            CreateSrq {
                pd,
                slots,
                sges,
                limit,
                xrc,
            } => self.create_srq(memory, process, pd, (slots, sges, limit), xrc),
            ModifySrq { srq, slots, limit } => self.modify_srq(hca, process, srq, slots, limit),
            DestroySrq { srq } => self.destroy_srq(memory, process, srq),
            CreateQp { .. } => self.create_qp(memory, process, request),
            ModifyQp {
                qp,
                mask,
                ref attributes,
            } => self.modify_qp(hca, process, qp, mask, attributes),
            DestroyQp { qp } => self.destroy_qp(hca, process, qp),
            AttachMulticast { qp, gid, lid } => self.attach(memory, process, qp, gid, lid),
            DetachMulticast { qp, gid, lid } => self.detach(memory, process, qp, gid, lid),
            OpenXrcd { hca, file } => self.open_xrcd(process, hca, file),
            CloseXrcd { xrcd } => self.close_xrcd(process, xrcd),
        }
    }

    /// A process arrives: its slot. `id` is not 0, and no other process's ever.
    pub fn join(&mut self, memory: &Memory, id: u32, pid: u32) -> Option<u32> {
        let header = memory.header();
        let slot = header.processes.iter().position(|slot| slot.get() == 0)?;
        header.pids[slot].set(pid);
        header.processes[slot].set(id);
        self.processes.insert(slot as u32);
        Some(slot as u32)
    }

    /// A process is gone: what it had goes, and the connections of its peers fail.
    ///
    /// The places of the queue pairs that were connected to its own, or that are to be flushed: they
    /// want attention.
    pub fn gone<H: Host>(&mut self, hca: &Hca<'_, H>, process: u32) -> Vec<u32> {
        let memory = hca.memory;
        self.processes.remove(&process);
        self.break_locks(hca, process);
        let owned = |used: &BTreeSet<u32>, owner: &dyn Fn(u32) -> Option<u32>| -> Vec<u32> {
            let mine = used.iter().filter(|place| owner(**place) == Some(process));
            mine.copied().collect()
        };
        let qps = owned(&self.qps.used, &|place| {
            Some(memory.qp(place)?.process.get())
        });
        let mut peers = Vec::new();
        for qp in qps {
            peers.extend(self.connected_to(memory, qp));
            let _ = self.destroy_qp(hca, process, qp);
        }
        // What it failed, and did not live to flush.
        let failed = |place: &&u32| memory.qp(**place).is_some_and(|qp| qp.flushes.get() != 0);
        peers.extend(self.qps.used.iter().filter(failed));
        for srq in owned(&self.srqs.used, &|place| {
            Some(memory.srq(place)?.process.get())
        }) {
            let _ = self.destroy_srq(memory, process, srq);
        }
        for cq in owned(&self.cqs.used, &|place| {
            Some(memory.cq(place)?.process.get())
        }) {
            let _ = self.destroy_cq(memory, process, cq);
        }
        for key in owned(&self.keys.used, &|place| {
            Some(memory.key(place)?.process.get())
        }) {
            self.drop_key(hca, key);
        }
        self.pds.retain(|_, pd| pd.process != process);
        for xrcd in self.xrcds.values_mut() {
            xrcd.openers.retain(|opener| *opener != process);
        }
        self.xrcds
            .retain(|_, xrcd| !xrcd.openers.is_empty() || xrcd.users > 0);
        if let Some(slot) = memory.header().processes.get(process as usize) {
            slot.set(0);
        }
        peers
    }

    /// What is in use, by kind, if anything is.
    pub fn in_use(&self) -> Vec<(&'static str, usize)> {
        let users = |users: &BTreeMap<u32, u32>| users.values().filter(|n| **n > 0).count();
        let counts = [
            ("protection domains", self.pds.len()),
            ("domains", self.xrcds.len()),
            ("keys", self.keys.used.len()),
            ("queue pairs", self.qps.used.len()),
            ("completion queues", self.cqs.used.len()),
            ("shared queues", self.srqs.used.len()),
            ("users of completion queues", users(&self.cq_users)),
            ("users of shared queues", users(&self.srq_users)),
            ("rings", self.rings.len()),
            ("taken ranges", usize::from(!self.heap.is_whole())),
            ("memberships", self.memberships.len()),
        ];
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Takes the locks away that a dead process held, and finishes its steps.
    fn break_locks<H: Host>(&self, hca: &Hca<'_, H>, process: u32) {
        let memory = hca.memory;
        for cq in self.cqs.used.iter().filter_map(|place| memory.cq(*place)) {
            cq.lock.break_of(process);
        }
        hca.mend_all(process);
        for qp in self.qps.used.iter().filter_map(|place| memory.qp(*place)) {
            qp.post_lock.break_of(process);
        }
        for srq in self.srqs.used.iter().filter_map(|place| memory.srq(*place)) {
            srq.post_lock.break_of(process);
            srq.take_lock.break_of(process);
        }
    }

    fn model(&self, hca: u32) -> Result<&Model, Errno> {
        self.models.get(hca as usize).ok_or(errno::EINVAL)
    }

    fn alloc_pd(&mut self, process: u32, hca: u32) -> Result<Reply, Errno> {
        let limit = self.model(hca)?.pds as usize;
        if self.pds.values().filter(|pd| pd.hca == hca).count() >= limit {
            return Err(errno::ENOMEM);
        }
        self.next_pd += 1;
        let pd = Pd {
            process,
            hca,
            users: 0,
        };
        self.pds.insert(self.next_pd, pd);
        Ok(Reply::Made(self.next_pd))
    }

    fn free_pd(&mut self, process: u32, pd: u32) -> Result<Reply, Errno> {
        if self.pd(process, pd)?.users > 0 {
            return Err(errno::EBUSY);
        }
        self.pds.remove(&pd);
        Ok(Reply::Done)
    }

    fn pd(&mut self, process: u32, pd: u32) -> Result<&mut Pd, Errno> {
        let pd = self.pds.get_mut(&pd).ok_or(errno::EINVAL)?;
        if pd.process == process {
            Ok(pd)
        } else {
            Err(errno::EINVAL)
        }
    }

    fn leave_pd(&mut self, pd: u32) {
        if let Some(pd) = self.pds.get_mut(&pd) {
            pd.users = pd.users.saturating_sub(1);
        }
    }

    fn open_xrcd(
        &mut self,
        process: u32,
        hca: u32,
        file: Option<(u64, u64)>,
    ) -> Result<Reply, Errno> {
        self.model(hca)?;
        let there = self
            .xrcds
            .iter_mut()
            .find(|(_, xrcd)| file.is_some() && xrcd.file == file && xrcd.hca == hca);
        if let Some((number, xrcd)) = there {
            xrcd.openers.push(process);
            return Ok(Reply::Made(*number));
        }
        self.next_xrcd += 1;
        let xrcd = Xrcd {
            hca,
            file,
            openers: vec![process],
            users: 0,
        };
        self.xrcds.insert(self.next_xrcd, xrcd);
        Ok(Reply::Made(self.next_xrcd))
    }

    fn close_xrcd(&mut self, process: u32, number: u32) -> Result<Reply, Errno> {
        let xrcd = self.xrcds.get_mut(&number).ok_or(errno::EINVAL)?;
        let at = xrcd.openers.iter().position(|opener| *opener == process);
        let at = at.ok_or(errno::EINVAL)?;
        if xrcd.openers.len() == 1 && xrcd.users > 0 {
            return Err(errno::EBUSY);
        }
        xrcd.openers.swap_remove(at);
        if xrcd.openers.is_empty() {
            self.xrcds.remove(&number);
        }
        Ok(Reply::Done)
    }

    /// One user less of a domain, which goes with the last if nobody has it open.
    fn leave_xrcd(&mut self, number: u32) {
        if let Some(xrcd) = self.xrcds.get_mut(&number) {
            xrcd.users = xrcd.users.saturating_sub(1);
            if xrcd.users == 0 && xrcd.openers.is_empty() {
                self.xrcds.remove(&number);
            }
        }
    }

    fn xrcd(&mut self, process: u32, number: u32) -> Result<&mut Xrcd, Errno> {
        let xrcd = self.xrcds.get_mut(&number).ok_or(errno::EINVAL)?;
        if xrcd.openers.contains(&process) {
            Ok(xrcd)
        } else {
            Err(errno::EINVAL)
        }
    }
}
