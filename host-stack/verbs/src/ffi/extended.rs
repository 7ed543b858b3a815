//! Posting, the extended way: ibv_wr_post(3). And binding of windows.
//!
//! Between start and complete, requests are kept here; complete posts them all, or none. A request
//! is begun by its opcode; what is set after that belongs to it.

use std::ffi::{c_int, c_void};

use snaprig_hca::{
    Opcode, SendFlags,
    post::{Data, PostError},
    queue::{Destination, Send, Sge},
};
use snaprig_verbs_abi::*;

use super::{
    Context,
    address::Ah,
    post::{bytes, entries, errno},
    qp::Qp,
};

/// A request that is being built.
struct Built {
    send: Send,
    list: Vec<Sge>,
    inline: Vec<u8>,
}

/// Requests between start and complete.
#[derive(Default)]
pub(crate) struct Building {
    requests: Vec<Built>,
    failed: c_int,
}

/// What each transport can be asked for.
pub(super) fn supported(transport: ibv_qp_type, operations: u64) -> bool {
    let sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let writes = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    let windows = IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;
    let reliable = IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_SEND_WITH_INV;
    let known = match transport {
        IBV_QPT_RC | IBV_QPT_XRC_SEND => sends | writes | windows | reliable,
        IBV_QPT_UC => sends | writes | windows,
        IBV_QPT_UD => sends,
        _ => 0,
    };
    operations & !known == 0
}

/// Fills the table in.
pub(super) fn fill(qp: &mut ibv_qp_ex) {
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

/// # Safety
/// `qp` came from `ibv_create_qp`, `create_qp_ex` or `open_qp` and is not destroyed. As
/// ibv_wr_post(3) asks, one thread alone calls this, from `ibv_wr_start` to `ibv_wr_complete`, and
/// it does not keep the result beyond one call.
unsafe fn building<'a>(qp: *mut ibv_qp_ex) -> &'a mut Building {
    // SAFETY: the caller says that the queue pair is alive and that no other thread builds requests
    // for it, so that this is the only reference into its cell.
    unsafe { &mut *Qp::of(qp.cast()).building.get() }
}

/// Begins a request.
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: Opcode, set: impl FnOnce(&mut Send)) {
    // SAFETY: the callers pass on the queue pair of an ibv_wr_ call, for which `building` may be
    // called; `set` does not touch the queue pair, and the reference to the cell ends with the
    // statement.
    unsafe {
        let mut send = Send::new(
            (*qp).wr_id,
            opcode,
            SendFlags::from_bits_truncate((*qp).wr_flags) - SendFlags::INLINE,
        );
        set(&mut send);
        let built = Built {
            send,
            list: Vec::new(),
            inline: Vec::new(),
        };
        building(qp).requests.push(built);
    }
}

/// Changes the request that was begun last.
unsafe fn last(qp: *mut ibv_qp_ex, set: impl FnOnce(&mut Built)) {
    // SAFETY: the callers pass on the queue pair of an ibv_wr_ call, for which `building` may be
    // called; `set` does not touch the queue pair.
    let building = unsafe { building(qp) };
    match building.requests.last_mut() {
        Some(built) => set(built),
        None => building.failed = libc::EINVAL,
    }
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    key: u32,
    address: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive; that is what `begin` asks for.
    unsafe {
        begin(qp, Opcode::CompareSwap, |send| {
            (send.remote_key, send.remote_address) = (key, address);
            (send.compare_add, send.swap) = (compare, swap);
        });
    }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, key: u32, address: u64, add: u64) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive; that is what `begin` asks for.
    unsafe {
        begin(qp, Opcode::FetchAdd, |send| {
            (send.remote_key, send.remote_address, send.compare_add) = (key, address, add);
        });
    }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    _window: *mut ibv_mw,
    key: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive, with an `info` that it can read during the call.
    unsafe {
        begin(qp, Opcode::BindWindow, |send| {
            bind_request(send, key, &*info)
        })
    };
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, key: u32) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive; that is what `begin` asks for.
    unsafe { begin(qp, Opcode::LocalInvalidate, |send| send.immediate = key) };
}

macro_rules! rdma {
    ($($name:ident = $opcode:ident;)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, key: u32, address: u64) {
            // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a
            // queue pair that is alive; that is what `begin` asks for.
            unsafe {
                begin(qp, Opcode::$opcode, |send| {
                    (send.remote_key, send.remote_address) = (key, address);
                });
            }
        })*
    };
}

rdma! {
    wr_rdma_read = Read;
    wr_rdma_write = Write;
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut ibv_qp_ex, key: u32, address: u64, immediate: u32) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive; that is what `begin` asks for.
    unsafe {
        begin(qp, Opcode::WriteImm, |send| {
            (send.remote_key, send.remote_address, send.immediate) = (key, address, immediate);
        });
    }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive; that is what `begin` asks for.
    unsafe { begin(qp, Opcode::Send, |_| {}) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive; that is what `begin` asks for.
    unsafe { begin(qp, Opcode::SendImm, |send| send.immediate = immediate) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, key: u32) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive; that is what `begin` asks for.
    unsafe { begin(qp, Opcode::SendInvalidate, |send| send.immediate = key) };
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _bytes: u16, _mss: u16) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive, so that `building` may be called. The header is not read: no model cuts
    // segments.
    unsafe { building(qp).failed = libc::EOPNOTSUPP };
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    _key: u32,
    _address: u64,
    _data: *const c_void,
) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive, so that `building` may be called. The value is not read: no model has atomic
    // writes.
    unsafe { building(qp).failed = libc::EOPNOTSUPP };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32, qkey: u32) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive, with a handle that `ibv_create_ah` returned and that is not destroyed: a box
    // of an `Ah`, which begins with the C structure.
    unsafe {
        let to = Destination {
            qp: number,
            qkey,
            ..(*ah.cast::<Ah>()).to
        };
        last(qp, |built| built.send.to = to);
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, number: u32) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive; that is what `last` asks for.
    unsafe { last(qp, |built| built.send.srq = number) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive, with `length` bytes that it can read during the call: they are copied now.
    unsafe {
        let data = bytes(address.cast(), length);
        last(qp, |built| {
            built.inline.extend_from_slice(data);
            built.send.flags |= SendFlags::INLINE;
        });
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    for index in 0..count {
        // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue
        // pair that is alive, with a list of `count` buffers, and `index` is less than that; each
        // has as many readable bytes as it says.
        unsafe {
            let part = &*list.add(index);
            wr_set_inline_data(qp, part.addr, part.length);
        }
    }
    if count == 0 {
        // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue
        // pair that is alive; that is what `last` asks for.
        unsafe { last(qp, |built| built.send.flags |= SendFlags::INLINE) };
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, key: u32, address: u64, length: u32) {
    let sge = Sge {
        address,
        length,
        key,
    };
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive; that is what `last` asks for.
    unsafe { last(qp, |built| built.list = vec![sge]) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: ibv_wr_post(3) has one thread call this, between start and complete, for a queue pair
    // that is alive, with a list of `count` entries that it can read during the call: they are
    // copied now.
    unsafe {
        match entries(list, count) {
            Some(list) => last(qp, |built| built.list = list.to_vec()),
            None => building(qp).failed = libc::EINVAL,
        }
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: ibv_wr_start(3) has the program pass a queue pair that is alive, and no other thread
    // builds requests for it from here on until it completes or aborts.
    let building = unsafe { building(qp) };
    building.requests.clear();
    building.failed = 0;
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: ibv_wr_complete(3) is called by the one thread that called the start, for a queue
    // pair that is alive and whose context is thus open; no other thread builds requests for it.
    unsafe {
        let ours = Qp::of(qp.cast());
        let context = Context::of((*qp).qp_base.context);
        let building = building(qp);
        if building.failed != 0 {
            return building.failed;
        }
        let hca = context.fabric.hca();
        let sending = match hca.sending(ours.place) {
            Ok(sending) => sending,
            Err(error) => return errno(error),
        };
        let alone = building.requests.len() == 1;
        for built in &building.requests {
            let piece = [&built.inline[..]];
            let data = if built.send.flags.contains(SendFlags::INLINE) {
                Data::Inline(&piece)
            } else {
                Data::List(&built.list)
            };
            let added = if alone {
                sending.send(&built.send, data)
            } else {
                sending.add(&built.send, data)
            };
            if let Err(error) = added {
                // Dropped without a commit: none of them is posted.
                return errno(error);
            }
        }
        building.requests.clear();
        sending.commit();
    }
    0
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: ibv_wr_abort(3) is called by the one thread that called the start, for a queue pair
    // that is alive; no other thread builds requests for it.
    unsafe { building(qp).requests.clear() };
}

/// A bind of the window whose new key is `key`. The length has 64 bits, which the fields of a key
/// and of immediate data hold.
pub(super) fn bind_request(send: &mut Send, key: u32, info: &ibv_mw_bind_info) {
    // SAFETY: ibv_bind_mw(3) has the program pass a region of this library that is not
    // deregistered, or null for a length of 0, which `as_ref` answers with none.
    let region = unsafe { info.mr.as_ref() }.map_or(0, |region| region.rkey);
    send.compare_add = u64::from(key) | u64::from(region) << 32;
    send.swap = info.mw_access_flags.into();
    send.remote_address = info.addr;
    send.remote_key = info.length as u32;
    send.immediate = (info.length >> 32) as u32;
}

/// Binds a window of type 1: it gets a new key.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    window: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: ibv_bind_mw(3) has the program pass a queue pair and a window that are alive, whose
    // context is thus open, and a request that it can read during the call. The window's key is
    // changed by its program's own calls alone.
    unsafe {
        let (ours, context) = (Qp::of(qp), Context::of((*qp).context));
        let info = &(*bind).bind_info;
        let zero_based = info.mw_access_flags & IBV_ACCESS_ZERO_BASED != 0;
        let other_pd = !info.mr.is_null() && (*info.mr).pd != (*window).pd;
        if (*window).r#type != IBV_MW_TYPE_1 || zero_based || other_pd {
            return libc::EINVAL;
        }
        let key = (*window).rkey & !0xff | (*window).rkey.wrapping_add(1) & 0xff;
        let mut send = Send::new(
            (*bind).wr_id,
            Opcode::BindWindow,
            SendFlags::from_bits_truncate((*bind).send_flags),
        );
        bind_request(&mut send, key, info);
        let posted: Result<(), PostError> =
            context
                .fabric
                .hca()
                .post_send(ours.place, &send, Data::EMPTY);
        match posted {
            Ok(()) => {
                (*window).rkey = key;
                0
            }
            Err(error) => errno(error),
        }
    }
}
