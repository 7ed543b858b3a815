//! Shared receive queues.

use std::{ffi::c_int, mem::zeroed, ptr};

use snaprig_ckpt_ib::{process, receives::Receives};
use snaprig_verbs_abi::*;

use crate::{
    objects::{Context, Pd, Shadow, Srq, is_ours, wait_until},
    real::{Real, null, real},
    state::{lock, set},
};

/// Makes a queue below; `user` is what events bring.
///
/// # Safety
/// The domain is one of the libibverbs below, and alive.
pub unsafe fn create_below(
    real: &Real,
    pd: *mut ibv_pd,
    user: *mut Srq,
    attr: ibv_srq_attr,
) -> (*mut ibv_srq, ibv_srq_attr) {
    let mut init = ibv_srq_init_attr {
        srq_context: user.cast(),
        attr,
    };
    // SAFETY: the caller says that the domain is alive.
    let below = unsafe { (real.ibv_create_srq)(pd, &mut init) };
    (below, init.attr)
}

unsafe fn create(
    pd: *mut ibv_pd,
    user: *mut std::ffi::c_void,
    attr: &mut ibv_srq_attr,
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
        }));
        let (below, granted) = create_below(real, Pd::of(pd).real, srq, *attr);
        if below.is_null() {
            drop(Box::from_raw(srq));
            return ptr::null_mut();
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
        ours.pointer()
    }
}

exported! {
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
        if !is_ours((*pd).context) {
            return real().map_or(ptr::null_mut(), |real| (real.ibv_create_srq)(pd, attr));
        }
        create(pd, (*attr).srq_context, &mut (*attr).attr)
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
            let done = (real.ibv_destroy_srq)((*ours).real);
            if done != 0 {
                return done;
            }
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
        let is_basic = !has(IBV_SRQ_INIT_ATTR_TYPE) || attr.srq_type == IBV_SRQT_BASIC;
        if !has(IBV_SRQ_INIT_ATTR_PD) || !is_basic {
            return null(if is_basic { libc::EINVAL } else { libc::EOPNOTSUPP });
        }
        create(attr.pd, attr.srq_context, &mut attr.attr)
    }
}
