//! Posting, the extended way (ibv_wr_post(3)): requests are kept from start to complete, which posts them all in the plain way.

use std::{
    ffi::{c_int, c_void},
    mem::zeroed,
    ptr,
};

use snaprig_ckpt_ib::ring::Ring;
use snaprig_verbs_abi::*;

use crate::{
    below::inline_list,
    objects::{Qp, Shadow},
    post::post_chain,
    state::{List, lock},
};

/// A request that is being built.
struct Built {
    wr: ibv_send_wr,
    list: List,
    inline: Vec<u8>,
}

/// Requests between start and complete.
#[derive(Default)]
pub struct Building {
    requests: Ring<Built>,
    failed: c_int,
}

impl Building {
    /// None is left, and none has failed.
    fn clear(&mut self) {
        self.requests.skip(self.requests.len());
        self.failed = 0;
    }
}

/// Fills the table in.
pub fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_bind_mw = Some(wr_bind_mw);
    qp.wr_local_inv = Some(wr_local_inv);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_send_inv = Some(wr_send_inv);
    qp.wr_send_tso = Some(wr_send_tso);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_atomic_write = Some(wr_atomic_write);
}

/// Requests of a queue pair that are being built.
///
/// # Safety
/// The queue pair is the program's, and alive; from start to complete one thread alone calls this: ibv_wr_post(3).
unsafe fn building<'a>(qp: *mut ibv_qp_ex) -> &'a mut Building {
    // SAFETY: the caller says so.
    unsafe { &mut Qp::of(qp.cast()).building }
}

/// Begins a request.
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode, set: impl FnOnce(&mut ibv_send_wr)) {
    // SAFETY: the callers pass on the queue pair of an ibv_wr_ call. A request is of numbers and pointers.
    unsafe {
        let mut wr: ibv_send_wr = zeroed();
        wr.wr_id = (*qp).wr_id;
        wr.opcode = opcode;
        wr.send_flags = (*qp).wr_flags & !IBV_SEND_INLINE;
        set(&mut wr);
        let place = building(qp).requests.push();
        match place {
            // The lists of an earlier one keep their memory.
            Some(built) => {
                built.wr = wr;
                built.list.clear();
                built.inline.clear();
            }
            None => {
                *place = Some(Built {
                    wr,
                    list: List::new(),
                    inline: Vec::new(),
                });
            }
        }
    }
}

/// Changes the request that was begun last.
unsafe fn last(qp: *mut ibv_qp_ex, set: impl FnOnce(&mut Built)) {
    // SAFETY: the callers pass on the queue pair of an ibv_wr_ call.
    let building = unsafe { building(qp) };
    let index = building.requests.len().checked_sub(1);
    match index.and_then(|index| building.requests.get_mut(index)) {
        Some(built) => set(built),
        None => building.failed = libc::EINVAL,
    }
}

fn rdma(key: u32, address: u64) -> ibv_send_wr_wr {
    ibv_send_wr_wr {
        rdma: ibv_send_wr_rdma {
            remote_addr: address,
            rkey: key,
        },
    }
}

in_tables! {
    fn wr_atomic_cmp_swp(qp: *mut ibv_qp_ex, key: u32, address: u64, compare: u64, swap: u64) {
        begin(qp, IBV_WR_ATOMIC_CMP_AND_SWP, |wr| {
            wr.wr.atomic = ibv_send_wr_atomic {
                remote_addr: address,
                compare_add: compare,
                swap,
                rkey: key,
            };
        });
    }

    fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, key: u32, address: u64, add: u64) {
        begin(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, |wr| {
            wr.wr.atomic = ibv_send_wr_atomic {
                remote_addr: address,
                compare_add: add,
                swap: 0,
                rkey: key,
            };
        });
    }

    fn wr_bind_mw(qp: *mut ibv_qp_ex, window: *mut ibv_mw, key: u32, info: *const ibv_mw_bind_info) {
        begin(qp, IBV_WR_BIND_MW, |wr| {
            wr.op.bind_mw = ibv_send_wr_bind_mw { mw: window, rkey: key, bind_info: *info };
        });
    }

    fn wr_local_inv(qp: *mut ibv_qp_ex, key: u32) {
        begin(qp, IBV_WR_LOCAL_INV, |wr| wr.imm.invalidate_rkey = key);
    }

    fn wr_rdma_read(qp: *mut ibv_qp_ex, key: u32, address: u64) {
        begin(qp, IBV_WR_RDMA_READ, |wr| wr.wr = rdma(key, address));
    }

    fn wr_rdma_write(qp: *mut ibv_qp_ex, key: u32, address: u64) {
        begin(qp, IBV_WR_RDMA_WRITE, |wr| wr.wr = rdma(key, address));
    }

    fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, key: u32, address: u64, immediate: u32) {
        begin(qp, IBV_WR_RDMA_WRITE_WITH_IMM, |wr| {
            wr.wr = rdma(key, address);
            wr.imm.imm_data = immediate;
        });
    }

    fn wr_send(qp: *mut ibv_qp_ex) {
        begin(qp, IBV_WR_SEND, |_| {});
    }

    fn wr_send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
        begin(qp, IBV_WR_SEND_WITH_IMM, |wr| wr.imm.imm_data = immediate);
    }

    fn wr_send_inv(qp: *mut ibv_qp_ex, key: u32) {
        begin(qp, IBV_WR_SEND_WITH_INV, |wr| wr.imm.invalidate_rkey = key);
    }

    fn wr_send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _bytes: u16, _mss: u16) {
        building(qp).failed = libc::EOPNOTSUPP;
    }

    fn wr_atomic_write(qp: *mut ibv_qp_ex, _key: u32, _address: u64, _data: *const c_void) {
        building(qp).failed = libc::EOPNOTSUPP;
    }

    fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32, qkey: u32) {
        let ud = ibv_send_wr_ud {
            ah,
            remote_qpn: number,
            remote_qkey: qkey,
        };
        last(qp, |built| built.wr.wr.ud = ud);
    }

    fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, number: u32) {
        last(qp, |built| built.wr.qp_type.xrc.remote_srqn = number);
    }

    fn wr_set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
        let part = ibv_data_buf {
            addr: address,
            length,
        };
        wr_set_inline_data_list(qp, 1, &part);
    }

    fn wr_set_inline_data_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
        last(qp, |built| built.wr.send_flags |= IBV_SEND_INLINE);
        for index in 0..count {
            let part = &*list.add(index);
            if part.length > 0 {
                let data = std::slice::from_raw_parts(part.addr.cast::<u8>(), part.length);
                last(qp, |built| built.inline.extend_from_slice(data));
            }
        }
    }

    fn wr_set_sge(qp: *mut ibv_qp_ex, key: u32, address: u64, length: u32) {
        let sge = ibv_sge {
            addr: address,
            length,
            lkey: key,
        };
        wr_set_sge_list(qp, 1, &sge);
    }

    fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
        let list = match count {
            0 => &[],
            _ => std::slice::from_raw_parts(list, count),
        };
        last(qp, |built| {
            built.list.clear();
            built.list.extend_from_slice(list);
        });
    }

    fn wr_start(qp: *mut ibv_qp_ex) {
        building(qp).clear();
    }

    fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
        let state = &mut *lock();
        let ours = Qp::of(qp.cast());
        let mut built = std::mem::take(&mut ours.building);
        let mut failed = built.failed;
        if failed == 0 {
            let mut next = ptr::null_mut();
            for index in (0..built.requests.len()).rev() {
                let Some(one) = built.requests.get_mut(index) else {
                    break;
                };
                if one.wr.send_flags & IBV_SEND_INLINE != 0 {
                    one.list = inline_list(&one.inline);
                }
                one.wr.sg_list = one.list.as_mut_ptr();
                one.wr.num_sge = one.list.len() as c_int;
                one.wr.next = next;
                next = &raw mut one.wr;
            }
            (_, failed) = post_chain(state, ours, next);
        }
        built.clear();
        ours.building = built;
        failed
    }

    fn wr_abort(qp: *mut ibv_qp_ex) {
        building(qp).clear();
    }
}
