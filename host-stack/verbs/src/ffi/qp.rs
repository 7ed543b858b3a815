//! Queue pairs: made, changed, asked.

use std::{
    cell::UnsafeCell,
    ffi::c_int,
    mem::zeroed,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use snaprig_hca::{
    State,
    control::{Capabilities, QpAttributes, Reply, Request},
    port::load_gid,
};
use snaprig_verbs_abi::*;

use super::{
    COND, Context, MUTEX, Table, address,
    cq::{self, Cq},
    extended::{self, Building},
    memory::Xrcd,
    null, srq, wait_until,
};
use crate::client::FabricError;

/// A queue pair; a plain one is the beginning of an extended one.
#[repr(C)]
pub(crate) struct Qp {
    ex: ibv_qp_ex,
    pub place: u32,
    pub events_given: AtomicU32,
    capabilities: Capabilities,
    signals_all: bool,
    extended: bool,
    /// Opened by [`open_qp`]: another handle of a queue pair that somebody else made.
    shared: bool,
    /// Requests between `ibv_wr_start` and `ibv_wr_complete`.
    pub building: UnsafeCell<Building>,
}

impl Qp {
    /// # Safety
    /// `qp` came from `ibv_create_qp`, `create_qp_ex` or `open_qp`, and is not destroyed while the
    /// result is used.
    pub unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: the caller says that `qp` is a queue pair of this library; those are boxes of a
        // `Qp`, which is `repr(C)` and begins with the C structure, so that the pointer is that of
        // the whole. The box lives until `ibv_destroy_qp`.
        unsafe { &*qp.cast::<Self>() }
    }
}

pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: ibv_create_qp(3) has the program pass a domain of this library that is alive, and
    // attributes that are its own to change. The extended structure begins as the plain one, so
    // that one fits in the other; its other members are integers and pointers, of which zeroes are
    // a value, and are not read, as their mask is 0.
    unsafe {
        let mut full: ibv_qp_init_attr_ex = zeroed();
        ptr::copy_nonoverlapping(attr, (&raw mut full).cast(), 1);
        full.pd = pd;
        let qp = create((*pd).context, &mut full);
        if !qp.is_null() {
            (*attr).cap = full.cap;
        }
        qp
    }
}

pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: ibv_create_qp_ex(3) has the program pass an open context, and attributes that this
    // call alone uses meanwhile; the objects that its mask says it has are of this library and
    // alive.
    unsafe {
        let attr = &mut *attr;
        let has = |bit: u32| attr.comp_mask & bit != 0;
        let known = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let flagged = has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0;
        if attr.comp_mask & !known != 0 || flagged {
            return null(libc::EOPNOTSUPP);
        }
        let receives = attr.qp_type == IBV_QPT_XRC_RECV;
        if receives && !has(IBV_QP_INIT_ATTR_XRCD) || !receives && !has(IBV_QP_INIT_ATTR_PD) {
            return null(libc::EINVAL);
        }
        if has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
            && !extended::supported(attr.qp_type, attr.send_ops_flags)
        {
            return null(libc::EOPNOTSUPP);
        }
        create(context, attr)
    }
}

unsafe fn create(context: *mut ibv_context, attr: &mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    // SAFETY: the callers pass an open context, and attributes in which every object that the mask
    // or a pointer that is not null names is of this library and alive: a `Cq`, an `Xrcd`, a `Pd`,
    // a queue. `ibv_qp_ex` is of integers, pointers and optional functions, so that zeroes are a
    // value of it.
    unsafe {
        let ours = Context::of(context);
        let receives = attr.qp_type == IBV_QPT_XRC_RECV;
        if !receives
            && (attr.send_cq.is_null()
                || attr.recv_cq.is_null() && attr.qp_type != IBV_QPT_XRC_SEND)
        {
            return null(libc::EINVAL);
        }
        let cq = |cq: *mut ibv_cq| if cq.is_null() { 0 } else { Cq::of(cq).place };
        let recv_cq = if attr.recv_cq.is_null() {
            attr.send_cq
        } else {
            attr.recv_cq
        };
        let xrcd = (attr.comp_mask & IBV_QP_INIT_ATTR_XRCD != 0 && receives)
            .then(|| (*attr.xrcd.cast::<Xrcd>()).number);
        let request = Request::CreateQp {
            pd: if attr.pd.is_null() || receives {
                0
            } else {
                (*attr.pd).handle
            },
            transport: attr.qp_type,
            send_cq: cq(attr.send_cq),
            recv_cq: cq(recv_cq),
            srq: srq::place(attr.srq).filter(|_| !receives),
            xrc_domain: xrcd,
            signals_all: attr.sq_sig_all != 0,
            capabilities: Capabilities {
                send_slots: attr.cap.max_send_wr,
                receive_slots: attr.cap.max_recv_wr,
                send_sges: attr.cap.max_send_sge,
                receive_sges: attr.cap.max_recv_sge,
                inline_bytes: attr.cap.max_inline_data,
            },
        };
        let (place, number, granted) = match ours.fabric.request(ours.number, request) {
            Ok(Reply::Qp(place, number, granted)) => (place, number, granted),
            Ok(_) => return null(libc::EIO),
            Err(error) => return null(error.errno()),
        };
        attr.cap = c_capabilities(&granted);
        let mut ex: ibv_qp_ex = zeroed();
        extended::fill(&mut ex);
        let base = &mut ex.qp_base;
        base.context = context;
        base.qp_context = attr.qp_context;
        base.pd = attr.pd;
        base.send_cq = attr.send_cq;
        base.recv_cq = attr.recv_cq;
        base.srq = attr.srq;
        base.handle = place;
        base.qp_num = number;
        base.state = IBV_QPS_RESET;
        base.qp_type = attr.qp_type;
        base.mutex = MUTEX;
        base.cond = COND;
        let qp = Box::into_raw(Box::new(Qp {
            ex,
            place,
            events_given: AtomicU32::new(0),
            capabilities: granted,
            signals_all: attr.sq_sig_all != 0,
            extended: attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0,
            shared: false,
            building: UnsafeCell::default(),
        }));
        ours.register(Table::Qp, place, qp.expose_provenance());
        qp.cast()
    }
}

fn c_capabilities(from: &Capabilities) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: from.send_slots,
        max_recv_wr: from.receive_slots,
        max_send_sge: from.send_sges,
        max_recv_sge: from.receive_sges,
        max_inline_data: from.inline_bytes,
    }
}

/// Opens an XRC receive queue pair that another process made.
pub(super) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: ibv_open_qp(3) has the program pass an open context, and attributes that it can read;
    // the domain that its mask says it has is a box of an `Xrcd` that is alive. `ibv_qp_ex` is of
    // integers, pointers and optional functions, so that zeroes are a value of it.
    unsafe {
        let attr = &*attr;
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        if attr.comp_mask & needed != needed || attr.qp_type != IBV_QPT_XRC_RECV {
            return null(libc::EINVAL);
        }
        let ours = Context::of(context);
        let domain = (*attr.xrcd.cast::<Xrcd>()).number;
        let there = ours.fabric.memory.qp_numbered(attr.qp_num, ours.hca);
        let Some((place, _)) = there.filter(|(_, qp)| qp.xrc_domain.get() == domain + 1) else {
            return null(libc::EINVAL);
        };
        let mut ex: ibv_qp_ex = zeroed();
        let base = &mut ex.qp_base;
        base.context = context;
        if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            base.qp_context = attr.qp_context;
        }
        base.handle = place;
        base.qp_num = attr.qp_num;
        base.qp_type = attr.qp_type;
        base.mutex = MUTEX;
        base.cond = COND;
        Box::into_raw(Box::new(Qp {
            ex,
            place,
            events_given: AtomicU32::new(0),
            capabilities: Capabilities::default(),
            signals_all: false,
            extended: false,
            shared: true,
            building: UnsafeCell::default(),
        }))
        .cast()
    }
}

pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: ibv_qp_to_qp_ex(3) has the program pass a queue pair of this library that it has not
    // destroyed.
    if unsafe { Qp::of(qp).extended } {
        qp.cast()
    } else {
        ptr::null_mut()
    }
}

/// Bytes of an MTU's number.
pub(super) fn mtu_bytes(mtu: ibv_mtu) -> u32 {
    if (IBV_MTU_256..=IBV_MTU_4096).contains(&mtu) {
        128 << mtu
    } else {
        0
    }
}

pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: ibv_modify_qp(3) has the program pass a queue pair that it has not destroyed, whose
    // context is thus open, and attributes that it can read. They are of integers and bytes, of
    // which every value is one, set or not.
    unsafe {
        let (ours, context, attr) = (Qp::of(qp), Context::of((*qp).context), &*attr);
        let attributes = QpAttributes {
            state: attr.qp_state,
            cur_state: attr.cur_qp_state,
            path_mtu: mtu_bytes(attr.path_mtu),
            path_mig_state: attr.path_mig_state,
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qp: attr.dest_qp_num,
            access: attr.qp_access_flags & 0x3f,
            address: address::address(&attr.ah_attr),
            pkey_index: attr.pkey_index,
            en_sqd_async_notify: attr.en_sqd_async_notify != 0,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port_number: attr.port_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
        };
        let request = Request::ModifyQp {
            qp: ours.place,
            mask: mask as u32,
            attributes,
        };
        if let Err(error) = context.fabric.request(context.number, request) {
            return error.errno();
        }
        if mask & IBV_QP_STATE != 0 {
            (*qp).state = attr.qp_state;
            if attr.qp_state == IBV_QPS_RESET {
                clean(qp);
            }
        }
    }
    0
}

/// Takes what a queue pair completed out of its completion queues.
///
/// # Safety
/// `qp` came from `ibv_create_qp`, `create_qp_ex` or `open_qp`, and neither it nor its completion
/// queues are destroyed meanwhile.
unsafe fn clean(qp: *mut ibv_qp) {
    // SAFETY: the caller says that the queue pair is alive, and with it its completion queues,
    // which are each null or of this library.
    unsafe {
        cq::clean((*qp).send_cq, (*qp).qp_num);
        if (*qp).recv_cq != (*qp).send_cq {
            cq::clean((*qp).recv_cq, (*qp).qp_num);
        }
    }
}

pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: ibv_query_qp(3) has the program pass a queue pair that it has not destroyed, whose
    // context is thus open, and places for both structures, which are written.
    unsafe {
        let (ours, context) = (Qp::of(qp), Context::of((*qp).context));
        let Some(entry) = context.fabric.memory.qp(ours.place) else {
            return libc::EINVAL;
        };
        let state = entry.state();
        let attr = &mut *attr;
        ptr::write_bytes(attr, 0, 1);
        attr.qp_state = state as ibv_qp_state;
        attr.cur_qp_state = attr.qp_state;
        attr.path_mtu = entry.path_mtu.get().max(256).ilog2() - 7;
        attr.path_mig_state = IBV_MIG_MIGRATED;
        attr.qkey = entry.qkey.get();
        attr.rq_psn = entry.responder.psn.get();
        attr.sq_psn = entry.requester.psn.get();
        attr.dest_qp_num = entry.dest_qp.get();
        attr.qp_access_flags = entry.access.get();
        attr.cap = c_capabilities(&ours.capabilities);
        attr.pkey_index = entry.pkey_index.get() as u16;
        attr.sq_draining =
            u8::from(state == State::Sqd && context.fabric.hca().outstanding(entry) > 0);
        attr.max_rd_atomic = entry.max_rd_atomic.get() as u8;
        attr.max_dest_rd_atomic = entry.max_dest_rd_atomic.get() as u8;
        attr.min_rnr_timer = entry.min_rnr_timer.get() as u8;
        attr.port_num = entry.port_number.get() as u8;
        attr.timeout = entry.timeout.get() as u8;
        attr.retry_cnt = entry.retry_cnt.get() as u8;
        attr.rnr_retry = entry.rnr_retry.get() as u8;
        attr.ah_attr.dlid = entry.dest_lid.get() as u16;
        attr.ah_attr.sl = entry.service_level.get() as u8;
        attr.ah_attr.src_path_bits = entry.path_bits.get() as u8;
        attr.ah_attr.port_num = attr.port_num;
        if let Some(index) = entry.sgid.get().checked_sub(1) {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.sgid_index = index as u8;
            attr.ah_attr.grh.hop_limit = 64;
            attr.ah_attr.grh.dgid.raw = load_gid(&entry.dest_gid);
        }
        *init = ibv_qp_init_attr {
            qp_context: (*qp).qp_context,
            send_cq: (*qp).send_cq,
            recv_cq: (*qp).recv_cq,
            srq: (*qp).srq,
            cap: attr.cap,
            qp_type: (*qp).qp_type,
            sq_sig_all: ours.signals_all.into(),
        };
        (*qp).state = attr.qp_state;
    }
    0
}

pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: ibv_destroy_qp(3) has the program pass a queue pair of this library and give it up.
    // The mutex and the condition are in its box, and the box is freed once, after all events are
    // acknowledged. Its completion queues and its context are destroyed after it.
    unsafe {
        let (ours, context) = (Qp::of(qp), Context::of((*qp).context));
        if !ours.shared {
            let request = Request::DestroyQp { qp: ours.place };
            if let Err(error @ FabricError::Refused(_)) =
                context.fabric.request(context.number, request)
            {
                return error.errno();
            }
            context.forget(Table::Qp, ours.place);
            clean(qp);
        }
        wait_until(&raw mut (*qp).mutex, &raw mut (*qp).cond, || {
            (&raw const (*qp).events_completed).read_volatile()
                == ours.events_given.load(Ordering::Acquire)
        });
        drop(Box::from_raw(qp.cast::<Qp>()));
    }
    0
}

pub extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    flags: u32,
) -> c_int {
    // A copy's last bytes are stored last, nothing more is promised.
    let _ = flags;
    0
}

pub unsafe extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: ibv_query_ece(3) has the program pass a place for the answer, which is written and
    // not read. A device without enhancements says so with zeroes.
    unsafe {
        *ece = ibv_ece {
            vendor_id: 0,
            options: 0,
            comp_mask: 0,
        }
    };
    libc::EOPNOTSUPP
}

pub unsafe extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: ibv_set_ece(3) has the program pass a structure that it can read.
    if unsafe { (*ece).vendor_id } == 0 {
        0
    } else {
        libc::EOPNOTSUPP
    }
}
