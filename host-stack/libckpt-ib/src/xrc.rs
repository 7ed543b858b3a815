//! XRC: domains that processes share through a file, shared receive queues that have numbers, queue pairs that receive for all of
//! a domain.
//!
//! The number of a shared receive queue is a name, as a queue pair's is: peers say it in their requests. A domain's file stays open
//! here for as long as the domain does, so that a restarted process has it, of one inode for all who share it, even if the
//! program has closed and removed it.

use std::{
    ffi::c_int,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    ptr,
};

use snaprig_ckpt_ib::{Below, serve::settle};
use snaprig_verbs_abi::*;

use crate::{
    objects::{Context, Qp, Shadow, Xrcd, table},
    qp,
    real::{null, real},
    state::{State, Things, lock},
};

/// Opens a domain below.
///
/// # Safety
/// The context is one of the libibverbs below, and open.
pub unsafe fn open_below(context: *mut ibv_context, file: Option<&OwnedFd>) -> *mut ibv_xrcd {
    let mut attr = ibv_xrcd_init_attr {
        comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        fd: file.map_or(-1, AsRawFd::as_raw_fd),
        // Whoever shares it may be first.
        oflags: libc::O_CREAT,
    };
    // SAFETY: the caller says that the context is open.
    unsafe {
        match (*table(context)).open_xrcd {
            Some(open) => open(context, &mut attr),
            None => null(libc::EOPNOTSUPP),
        }
    }
}

/// Closes what is below a domain.
///
/// # Safety
/// It is alive, and so is what is below it.
pub unsafe fn close_below(xrcd: &Xrcd) -> c_int {
    // SAFETY: the caller says so.
    unsafe {
        match (*table((*xrcd.real).context)).close_xrcd {
            Some(close) => close(xrcd.real),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// The number of a shared receive queue of XRC below.
///
/// # Safety
/// It is one of the libibverbs below, and alive.
pub unsafe fn number_below(srq: *mut ibv_srq) -> u32 {
    let mut number = 0;
    // SAFETY: the caller says that it is alive.
    unsafe {
        if let Some(get) = (*table((*srq).context)).get_srq_num {
            get(srq, &mut number);
        }
    }
    number
}

/// Opens the queue pair below for which another handle stands.
///
/// # Safety
/// The handle is alive, and its domain is open below.
pub unsafe fn open_qp_below(things: &Things, qp: &mut Qp) -> *mut ibv_qp {
    let user: *mut Qp = qp;
    let base = &qp.ex.qp_base;
    let Some(xrcd) = qp.opened else {
        return null(libc::EINVAL);
    };
    // SAFETY: the caller says so.
    unsafe {
        let context = Context::of(base.context);
        let mut attr = ibv_qp_open_attr {
            comp_mask: IBV_QP_OPEN_ATTR_NUM
                | IBV_QP_OPEN_ATTR_XRCD
                | IBV_QP_OPEN_ATTR_CONTEXT
                | IBV_QP_OPEN_ATTR_TYPE,
            qp_num: things.names.queue_pair(qp.name()).number,
            xrcd: (*xrcd).real,
            qp_context: user.cast(),
            qp_type: base.qp_type,
        };
        match (*context.real_verbs()).open_qp {
            Some(open) => open(context.real, &mut attr),
            None => null(libc::EOPNOTSUPP),
        }
    }
}

/// What a completion queue has below is put by.
///
/// # Safety
/// Whoever calls has the lock.
pub unsafe fn put_by(state: &mut State, cq: u32) {
    let State { process, things } = state;
    while let Some(came) = things.poll(cq) {
        settle(process, things, cq, came);
    }
}

/// Messages that came by a queue pair that receives for XRC are put by, before it is reset or gone and others are counted.
///
/// # Safety
/// Whoever calls has the lock.
pub unsafe fn put_by_all(state: &mut State, qp: &Qp) {
    if qp.ex.qp_base.qp_type != IBV_QPT_XRC_RECV {
        return;
    }
    let srqs = state.things.srqs.iter().filter(|srq| !srq.is_null());
    // SAFETY: what is in the table is alive, and so is its completion queue.
    let cqs = srqs.filter_map(|srq| unsafe { (**srq).xrc.map(|xrc| (*xrc.cq).place) });
    for cq in cqs.collect::<Vec<_>>() {
        // SAFETY: the lock is held.
        unsafe { put_by(state, cq) };
    }
}

in_tables! {
    fn open_xrcd(context: *mut ibv_context, attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd {
        let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if (*attr).comp_mask & needed != needed {
            return null(libc::EINVAL);
        }
        let file = match (*attr).fd {
            fd if fd < 0 => None,
            fd => match BorrowedFd::borrow_raw(fd).try_clone_to_owned() {
                Ok(file) => Some(file),
                Err(error) => return null(error.raw_os_error().unwrap_or(libc::EBADF)),
            },
        };
        let state = &mut *lock();
        let below = Context::of(context).real;
        // Its own flags: it may ask to be the first.
        let below = match (*table(below)).open_xrcd {
            Some(open) => open(below, attr),
            None => null(libc::EOPNOTSUPP),
        };
        if below.is_null() {
            return ptr::null_mut();
        }
        let xrcd = Box::into_raw(Box::new(Xrcd {
            xrcd: ibv_xrcd { context },
            real: below,
            file,
        }));
        state.things.xrcds.insert(xrcd);
        (*xrcd).pointer()
    }

    fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
        let state = &mut *lock();
        let ours: *mut Xrcd = Xrcd::of(xrcd);
        let done = close_below(&*ours);
        if done == 0 {
            state.things.xrcds.remove(&ours);
            drop(Box::from_raw(ours));
        }
        done
    }

    fn open_qp(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
        let attr = &*attr;
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        if attr.comp_mask & needed != needed || real().is_none() {
            return null(libc::EINVAL);
        }
        let state = &mut *lock();
        let qp = qp::new(false);
        let ours = &mut *qp;
        ours.opened = Some(Xrcd::of(attr.xrcd));
        // It is in no table.
        ours.place = u32::MAX;
        let base = &mut ours.ex.qp_base;
        base.context = context;
        if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            base.qp_context = attr.qp_context;
        }
        base.qp_num = attr.qp_num;
        base.qp_type = attr.qp_type;
        ours.real = open_qp_below(&state.things, ours);
        if ours.real.is_null() {
            drop(Box::from_raw(qp));
            return ptr::null_mut();
        }
        ours.ex.qp_base.handle = (*ours.real).handle;
        state.things.opened.push(qp);
        ours.pointer()
    }
}
