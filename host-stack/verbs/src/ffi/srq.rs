//! Shared receive queues.

use std::{
    ffi::c_int,
    mem::zeroed,
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use snaprig_hca::control::{Reply, Request};
use snaprig_verbs_abi::*;

use super::{COND, Context, MUTEX, Table, cq::Cq, done, memory::Xrcd, null, wait_until};
use crate::client::FabricError;

#[repr(C)]
pub(crate) struct Srq {
    srq: ibv_srq,
    pub place: u32,
    pub events_given: AtomicU32,
    xrc: bool,
}

impl Srq {
    /// # Safety
    /// `srq` came from `ibv_create_srq` or `create_srq_ex`, and is not destroyed while the result
    /// is used.
    pub unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: the caller says that `srq` is a queue of this library; those are boxes of an
        // `Srq`, which is `repr(C)` and begins with the C structure, so that the pointer is that of
        // the whole. The box lives until `ibv_destroy_srq`.
        unsafe { &*srq.cast::<Self>() }
    }
}

pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: ibv_create_srq(3) has the program pass a domain of this library that is alive, and
    // attributes that this call alone uses meanwhile.
    unsafe { create(pd, (*attr).srq_context, &mut (*attr).attr, None) }
}

unsafe fn create(
    pd: *mut ibv_pd,
    user: *mut std::ffi::c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(u32, u32)>,
) -> *mut ibv_srq {
    // SAFETY: the callers pass a domain of this library that is alive, whose context is thus open.
    // `ibv_srq` is of integers, pointers, a mutex and a condition, all of which have a value of
    // zeroes.
    unsafe {
        let context = Context::of((*pd).context);
        let request = Request::CreateSrq {
            pd: (*pd).handle,
            slots: attr.max_wr,
            sges: attr.max_sge,
            limit: 0,
            xrc,
        };
        let (place, slots) = match context.fabric.request(context.number, request) {
            Ok(Reply::Queue(place, slots)) => (place, slots),
            Ok(_) => return null(libc::EIO),
            Err(error) => return null(error.errno()),
        };
        attr.max_wr = slots;
        let mut srq: ibv_srq = zeroed();
        srq.context = (*pd).context;
        srq.srq_context = user;
        srq.pd = pd;
        srq.handle = place;
        srq.mutex = MUTEX;
        srq.cond = COND;
        let srq = Box::into_raw(Box::new(Srq {
            srq,
            place,
            events_given: AtomicU32::new(0),
            xrc: xrc.is_some(),
        }));
        context.register(Table::Srq, place, srq.expose_provenance());
        srq.cast()
    }
}

pub(super) unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: ibv_create_srq_ex(3) has the program pass attributes that this call alone uses
    // meanwhile; the objects that its mask says it has are of this library and alive.
    unsafe {
        let attr = &mut *attr;
        let has = |bit: u32| attr.comp_mask & bit != 0;
        let known = IBV_SRQ_INIT_ATTR_RESERVED - 1;
        if attr.comp_mask & !known != 0 || !has(IBV_SRQ_INIT_ATTR_PD) {
            return null(libc::EINVAL);
        }
        let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) {
            attr.srq_type
        } else {
            IBV_SRQT_BASIC
        };
        match kind {
            IBV_SRQT_BASIC => create(attr.pd, attr.srq_context, &mut attr.attr, None),
            IBV_SRQT_XRC if has(IBV_SRQ_INIT_ATTR_XRCD) && has(IBV_SRQ_INIT_ATTR_CQ) => {
                let domain = (*attr.xrcd.cast::<Xrcd>()).number;
                let cq = Cq::of(attr.cq).place;
                create(
                    attr.pd,
                    attr.srq_context,
                    &mut attr.attr,
                    Some((domain, cq)),
                )
            }
            IBV_SRQT_XRC => null(libc::EINVAL),
            _ => null(libc::EOPNOTSUPP),
        }
    }
}

pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: ibv_get_srq_num(3) has the program pass a queue of this library that it has not
    // destroyed, and a place for one number, which is written and not read.
    unsafe {
        let ours = Srq::of(srq);
        if !ours.xrc {
            return libc::EOPNOTSUPP;
        }
        *number = ours.place;
    }
    0
}

pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return libc::EINVAL;
    }
    // SAFETY: ibv_modify_srq(3) has the program pass a queue that it has not destroyed, whose
    // context is thus open, and attributes that it can read.
    unsafe {
        let context = Context::of((*srq).context);
        let request = Request::ModifySrq {
            srq: Srq::of(srq).place,
            slots: (mask & IBV_SRQ_MAX_WR != 0).then_some((*attr).max_wr),
            limit: (mask & IBV_SRQ_LIMIT != 0).then_some((*attr).srq_limit),
        };
        done(context.fabric.request(context.number, request))
    }
}

pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: ibv_query_srq(3) has the program pass a queue that it has not destroyed, whose
    // context is thus open, and a place for the attributes, which is written.
    unsafe {
        let context = Context::of((*srq).context);
        let Some(entry) = context.fabric.memory.srq(Srq::of(srq).place) else {
            return libc::EINVAL;
        };
        *attr = ibv_srq_attr {
            max_wr: entry.queue.slots.get(),
            max_sge: entry.queue.sges.get(),
            srq_limit: entry.limit.get(),
        };
    }
    0
}

pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: ibv_destroy_srq(3) has the program pass a queue of this library and give it up. The
    // mutex and the condition are in its box, and the box is freed once, after all events are
    // acknowledged. Its context is closed after it.
    unsafe {
        let (ours, context) = (Srq::of(srq), Context::of((*srq).context));
        let request = Request::DestroySrq { srq: ours.place };
        if let Err(error @ FabricError::Refused(_)) =
            context.fabric.request(context.number, request)
        {
            return error.errno();
        }
        context.forget(Table::Srq, ours.place);
        wait_until(&raw mut (*srq).mutex, &raw mut (*srq).cond, || {
            (&raw const (*srq).events_completed).read_volatile()
                == ours.events_given.load(Ordering::Acquire)
        });
        drop(Box::from_raw(srq.cast::<Srq>()));
    }
    0
}

/// The queue that a pointer names; none for a null pointer.
pub(super) unsafe fn place(srq: *mut ibv_srq) -> Option<u32> {
    // SAFETY: the callers pass null, which is not followed, or a queue of this library that is
    // alive.
    (!ptr::eq(srq, ptr::null())).then(|| unsafe { Srq::of(srq).place })
}
