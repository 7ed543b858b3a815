//! The libibverbs below, as the machines need it.

use std::{mem::zeroed, ptr};

use smallvec::SmallVec;
use snaprig_ckpt_ib::{
    Below, Completion,
    completions::SUCCESS,
    cookie::{Cookie, Queue},
    process::Came,
};
use snaprig_verbs_abi::*;

use crate::{
    cq::poll_any,
    memory::scratch_of,
    objects::{Context, Pd, Scratch, Shadow},
    post::{Into, post_one, receive_below, store},
    real::real,
    state::{Receive, Request, Things, completion, get},
};

/// Bytes of the global route header before a datagram (ibv_post_recv(3)).
const GRH_BYTES: u64 = 40;

fn failed(what: &str, errno: i32) -> String {
    let error = std::io::Error::from_raw_os_error(errno);
    format!("{what}: {error}")
}

impl Things {
    /// A receive queue below, its context and its domain.
    fn queue(&self, queue: Queue) -> Option<(Into, *mut ibv_context, *mut ibv_pd)> {
        // SAFETY: what is in the tables is alive.
        unsafe {
            match queue {
                Queue::Sends(place) | Queue::Receives(place) => {
                    let qp = &*get(&self.qps, place)?;
                    let base = &qp.ex.qp_base;
                    Some((Into::Own(qp.real), base.context, base.pd))
                }
                Queue::Shared(place) => {
                    let srq = &*get(&self.srqs, place)?;
                    Some((Into::Shared(srq.real), srq.srq.context, srq.srq.pd))
                }
            }
        }
    }
}

impl Below<Request, Receive> for Things {
    fn poll(&mut self, place: u32) -> Option<(Came, Completion)> {
        let cq = get(&self.cqs, place)?;
        loop {
            // SAFETY: what is in the table is alive; a completion is of numbers.
            let (mut wc, time_ns) = unsafe {
                let mut wc: ibv_wc = zeroed();
                let time_ns = poll_any(&*cq, &mut wc)?;
                (wc, time_ns)
            };
            if let Some(came) = self.came(place, &mut wc) {
                return Some((came, completion(&wc, time_ns)));
            }
        }
    }

    fn go_on(&mut self, place: u32) -> Result<(), String> {
        let (Some(qp), Some(real)) = (get(&self.qps, place), real()) else {
            return Ok(());
        };
        // SAFETY: what is in the table is alive; attributes are of numbers.
        let done = unsafe {
            let below = (*qp).real;
            let (mut attr, mut init) = (zeroed::<ibv_qp_attr>(), zeroed::<ibv_qp_init_attr>());
            if (real.ibv_query_qp)(below, &mut attr, IBV_QP_STATE, &mut init) != 0
                || attr.qp_state != IBV_QPS_SQD
            {
                return Ok(());
            }
            attr = zeroed();
            attr.qp_state = IBV_QPS_RTS;
            (real.ibv_modify_qp)(below, &mut attr, IBV_QP_STATE)
        };
        match done {
            0 => Ok(()),
            errno => Err(failed("its send queue does not go on", errno)),
        }
    }

    fn mark(&mut self, place: u32, like: &Request, cookie: Cookie) -> Result<Request, String> {
        let Some(qp) = get(&self.qps, place) else {
            return Err("it is gone".into());
        };
        let mut wr = like.wr;
        wr.send_flags = IBV_SEND_SIGNALED;
        let mut list = Receive::new();
        // SAFETY: what is in the table is alive. The member of the union is the one of the opcode.
        let done = unsafe {
            let qp = &*qp;
            if let IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD = wr.opcode {
                wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
                wr.wr.atomic.compare_add = 0;
                list.push(scratch_of(qp.ex.qp_base.pd)?);
            }
            let peer = self.peers.get(place as usize).copied().flatten();
            let mut real = wr;
            self.make_real(qp, peer, cookie, &mut real);
            real.sg_list = list.as_mut_ptr();
            real.num_sge = list.len() as i32;
            post_one(qp.real, &mut real)
        };
        match done {
            0 => Ok(Request::new(wr, list)),
            errno => Err(failed(
                "a mark behind its last requests is not taken",
                errno,
            )),
        }
    }

    fn lend(&mut self, queue: Queue, bytes: u64, cookie: Cookie) -> Result<bool, String> {
        let Some((into, _, pd)) = self.queue(queue) else {
            return Err("it is gone".into());
        };
        let bytes = bytes + GRH_BYTES;
        // SAFETY: domain and queue are alive as long as what is in the tables.
        unsafe {
            let scratch = Scratch::new(Pd::of(pd).real, bytes)?;
            let done = receive_below(into, &mut [scratch.element(bytes as u32)], cookie);
            match done {
                0 => {
                    self.lent.insert(cookie.bits(), scratch);
                    Ok(true)
                }
                libc::ENOMEM => {
                    scratch.free();
                    Ok(false)
                }
                errno => {
                    scratch.free();
                    Err(failed("a receive for what comes is not taken", errno))
                }
            }
        }
    }

    fn lent(&mut self, cookie: Cookie, completion: &Completion) -> Vec<u8> {
        let Some(scratch) = self.lent.remove(&cookie.bits()) else {
            return Vec::new();
        };
        let words = scratch.free();
        let has_data = completion.status == SUCCESS && completion.opcode == IBV_WC_RECV;
        let length = if has_data {
            completion.length as usize
        } else {
            0
        };
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
        bytes.take(length).collect()
    }

    fn fill(&mut self, receive: &Receive, mut data: &[u8]) {
        for sge in receive {
            let (part, rest) = data.split_at(data.len().min(sge.length as usize));
            // SAFETY: the program has posted this memory for what comes, and registered it, so that it is there.
            unsafe { store(sge.addr, part) };
            data = rest;
        }
    }

    fn receive(&mut self, receive: &Receive, cookie: Cookie) -> Result<bool, String> {
        let Some((into, context, _)) = self.queue(cookie.queue) else {
            return Err("it is gone".into());
        };
        // SAFETY: what is in the tables is alive.
        let done = unsafe {
            let mut list: Receive = self.real_list(Context::of(context), receive);
            receive_below(into, &mut list, cookie)
        };
        match done {
            0 => Ok(true),
            libc::ENOMEM => Ok(false),
            errno => Err(failed("a receive is not taken", errno)),
        }
    }
}

/// What a request says of its data, where that has been taken: `inline` is where it is now.
pub fn inline_list(inline: &[u8]) -> Receive {
    let at = match inline.is_empty() {
        true => ptr::null(),
        false => inline.as_ptr(),
    };
    SmallVec::from_slice(&[ibv_sge {
        addr: at.expose_provenance() as u64,
        length: inline.len() as u32,
        lkey: 0,
    }])
}
