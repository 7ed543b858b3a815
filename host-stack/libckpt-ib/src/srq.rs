//! Shared receive queues.

use std::{ffi::c_int, mem::zeroed, ptr};

use snaprig_ckpt_ib::{Name, behind::Behind, process, receives::Receives};
use snaprig_verbs_abi::*;

use crate::{
    objects::{Context, Cq, Pd, Shadow, Srq, XrcSrq, Xrcd, is_ours, table, wait_until},
    real::{Real, errno, null, real},
    state::{lock, set},
    xrc,
};

/// How often a queue is made again until its number is nobody's.
const NUMBERS_TRIED_MAX: usize = 1 << 12;

/// Makes a queue below; `user` is what events bring.
///
/// # Safety
/// The domain is one of the libibverbs below, and alive; so is what stands below for the objects of XRC.
pub unsafe fn create_below(
    real: &Real,
    pd: *mut ibv_pd,
    user: *mut Srq,
    attr: ibv_srq_attr,
    of_xrc: Option<XrcSrq>,
) -> (*mut ibv_srq, ibv_srq_attr) {
    // SAFETY: the caller says that everything is alive.
    unsafe {
        let Some(XrcSrq { xrcd, cq, .. }) = of_xrc else {
            let mut init = ibv_srq_init_attr {
                srq_context: user.cast(),
                attr,
            };
            let below = (real.ibv_create_srq)(pd, &mut init);
            return (below, init.attr);
        };
        let mut init: ibv_srq_init_attr_ex = zeroed();
        init.srq_context = user.cast();
        init.attr = attr;
        init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ;
        init.srq_type = IBV_SRQT_XRC;
        (init.pd, init.xrcd, init.cq) = (pd, (*xrcd).real, (*cq).real);
        let below = match (*table((*pd).context)).create_srq_ex {
            Some(create) => create((*pd).context, &mut init),
            None => null(libc::EOPNOTSUPP),
        };
        (below, init.attr)
    }
}

unsafe fn create(
    pd: *mut ibv_pd,
    user: *mut std::ffi::c_void,
    attr: &mut ibv_srq_attr,
    mut of_xrc: Option<XrcSrq>,
) -> *mut ibv_srq {
    let Some(real) = real() else {
        return null(libc::ENOSYS);
    };
    let state = &mut *lock();
    // SAFETY: the callers pass a domain of ours that is alive. The box is this function's until it returns. A queue is of
    // numbers and pointers, a mutex and a condition.
    unsafe {
        let srq = Box::into_raw(Box::new(Srq {
            srq: zeroed(),
            real: ptr::null_mut(),
            place: 0,
            attr: *attr,
            events_given: 0,
            xrc: None,
        }));
        let port = Context::of((*pd).context).port();
        let mut in_vain = Vec::new();
        let (below, granted) = loop {
            let (below, granted) = create_below(real, Pd::of(pd).real, srq, *attr, of_xrc);
            let number = match of_xrc.is_some() && !below.is_null() {
                true => xrc::number_below(below),
                false => break (below, granted),
            };
            let is_given = state.things.names.is_shared_given(port, number);
            if !is_given || in_vain.len() == NUMBERS_TRIED_MAX {
                of_xrc = of_xrc.map(|of_xrc| XrcSrq { number, ..of_xrc });
                break (below, granted);
            }
            in_vain.push(below);
        };
        for other in in_vain {
            (real.ibv_destroy_srq)(other);
        }
        if below.is_null() {
            let why = errno();
            drop(Box::from_raw(srq));
            return null(why);
        }
        *attr = granted;
        let ours = &mut *srq;
        ours.real = below;
        ours.attr = granted;
        ours.srq.context = (*pd).context;
        ours.srq.srq_context = user;
        ours.srq.pd = pd;
        ours.srq.handle = (*below).handle;
        ours.srq.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        ours.srq.cond = libc::PTHREAD_COND_INITIALIZER;
        ours.place = process::put(&mut state.process.shared, Receives::default());
        set(&mut state.things.srqs, ours.place, srq);
        ours.xrc = of_xrc;
        if let Some(XrcSrq { number, .. }) = of_xrc {
            let behind = Behind::new(Name { port, number });
            state.process.behind.insert(ours.place, behind);
        }
        ours.pointer()
    }
}

exported! {
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
        if !is_ours((*pd).context) {
            return real().map_or(ptr::null_mut(), |real| (real.ibv_create_srq)(pd, attr));
        }
        create(pd, (*attr).srq_context, &mut (*attr).attr, None)
    }

    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*srq).context) {
            return (real.ibv_modify_srq)(srq, attr, mask);
        }
        let _state = lock();
        let ours = Srq::of(srq);
        let done = (real.ibv_modify_srq)(ours.real, attr, mask);
        if done == 0 && mask & IBV_SRQ_MAX_WR != 0 {
            ours.attr.max_wr = (*attr).max_wr;
        }
        done
    }

    fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*srq).context) {
            return (real.ibv_query_srq)(srq, attr);
        }
        let _state = lock();
        (real.ibv_query_srq)(Srq::of(srq).real, attr)
    }

    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*srq).context) {
            return (real.ibv_destroy_srq)(srq);
        }
        let ours: *mut Srq = Srq::of(srq);
        {
            let state = &mut *lock();
            if let Some(of_xrc) = (*ours).xrc {
                // Those of its messages that have come are still to be polled.
                xrc::put_by(state, (*of_xrc.cq).place);
            }
            let done = (real.ibv_destroy_srq)((*ours).real);
            if done != 0 {
                return done;
            }
            state.process.behind.remove(&(*ours).place);
            (*ours).real = ptr::null_mut();
            state.process.shared[(*ours).place as usize] = None;
            set(&mut state.things.srqs, (*ours).place, ptr::null_mut());
            let is_about = |event: &ibv_async_event| {
                matches!(event.event_type, IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED)
                    && event.element.srq == srq
            };
            Context::of((*srq).context).pending.retain(|event| !is_about(event));
        }
        wait_until(&raw mut (*srq).mutex, &raw mut (*srq).cond, || {
            (&raw const (*srq).events_completed).read_volatile()
                == (&raw const (*ours).events_given).read_volatile()
        });
        drop(Box::from_raw(ours));
        0
    }
}

in_tables! {
    fn create_srq_ex(_context: *mut ibv_context, attr: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq {
        let attr = &mut *attr;
        let has = |bit: u32| attr.comp_mask & bit != 0;
        if !has(IBV_SRQ_INIT_ATTR_PD) {
            return null(libc::EINVAL);
        }
        let kind = if has(IBV_SRQ_INIT_ATTR_TYPE) { attr.srq_type } else { IBV_SRQT_BASIC };
        let of_xrc = match kind {
            IBV_SRQT_BASIC => None,
            IBV_SRQT_XRC if has(IBV_SRQ_INIT_ATTR_XRCD) && has(IBV_SRQ_INIT_ATTR_CQ) => Some(XrcSrq {
                number: 0,
                xrcd: Xrcd::of(attr.xrcd),
                cq: Cq::of(attr.cq),
            }),
            IBV_SRQT_XRC => return null(libc::EINVAL),
            _ => return null(libc::EOPNOTSUPP),
        };
        create(attr.pd, attr.srq_context, &mut attr.attr, of_xrc)
    }

    fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
        match Srq::of(srq).xrc {
            Some(of_xrc) => {
                *number = of_xrc.number;
                0
            }
            None => libc::EOPNOTSUPP,
        }
    }
}
