//! Protection domains, memory regions and windows, thread domains, XRC domains.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use snaprig_hca::control::{Reply, Request};
use snaprig_verbs_abi::*;

use super::{Context, done, null, set_errno};
use crate::client::FabricError;
use snaprig_pages::pool::PoolError;

/// A protection domain, or a parent domain over one.
#[repr(C)]
pub(crate) struct Pd {
    pd: ibv_pd,
    /// The domain that this is a parent of.
    over: *mut Pd,
    /// Parent domains over this one, and address handles of it.
    users: AtomicU32,
}

/// Something of this domain is made, or destroyed.
///
/// # Safety
/// `pd` came from `ibv_alloc_pd` or `alloc_parent_domain`, and is not freed meanwhile.
pub(super) unsafe fn use_pd(pd: *mut ibv_pd, by: i32) {
    // SAFETY: the caller says that `pd` is a domain of this library that is alive: a box of a `Pd`,
    // which begins with the C structure. The count is atomic, so that threads may share it.
    let users = unsafe { &(*pd.cast::<Pd>()).users };
    users.fetch_add(by as u32, Ordering::AcqRel);
}

#[repr(C)]
struct Mr {
    mr: ibv_mr,
    /// The pages are in the pool.
    pooled: bool,
}

#[repr(C)]
pub(crate) struct Xrcd {
    xrcd: ibv_xrcd,
    pub number: u32,
}

/// The number that a `Made` brings.
pub(super) fn made(reply: Result<Reply, FabricError>) -> Result<u32, c_int> {
    match reply {
        Ok(Reply::Made(number)) => Ok(number),
        Ok(_) => Err(libc::EIO),
        Err(error) => Err(error.errno()),
    }
}

pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: ibv_alloc_pd(3) has the program pass a context that `ibv_open_device` returned and
    // that it has not closed.
    let ours = unsafe { Context::of(context) };
    match made(
        ours.fabric
            .request(ours.number, Request::AllocPd { hca: ours.hca }),
    ) {
        Ok(handle) => new_pd(context, handle, ptr::null_mut()),
        Err(errno) => null(errno),
    }
}

fn new_pd(context: *mut ibv_context, handle: u32, over: *mut Pd) -> *mut ibv_pd {
    Box::into_raw(Box::new(Pd {
        pd: ibv_pd { context, handle },
        over,
        users: AtomicU32::new(0),
    }))
    .cast()
}

pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: ibv_dealloc_pd(3) has the program pass a domain of this library, a box of a `Pd`, and
    // give it up: the box is freed once, and only if it has no users. `over` is null or a domain
    // that counts this one among its users, and so is alive; the context is open.
    unsafe {
        let ours = &*pd.cast::<Pd>();
        if ours.users.load(Ordering::Acquire) > 0 {
            return libc::EBUSY;
        }
        if !ours.over.is_null() {
            (*ours.over).users.fetch_sub(1, Ordering::AcqRel);
        } else {
            let context = Context::of((*pd).context);
            let freed = context
                .fabric
                .request(context.number, Request::FreePd { pd: (*pd).handle });
            if let Err(error @ FabricError::Refused(_)) = freed {
                return error.errno();
            }
        }
        drop(Box::from_raw(pd.cast::<Pd>()));
    }
    0
}

pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: ibv_alloc_parent_domain(3) has the program pass attributes that it can read, and in
    // them a domain of this library, a box of a `Pd` that is alive; the domain that this one is
    // over, if any, counts it as a user, and so is alive, too.
    unsafe {
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if (*attr).comp_mask & !known != 0 || (*attr).pd.is_null() {
            return null(libc::EINVAL);
        }
        let mut over = (*attr).pd.cast::<Pd>();
        if !(*over).over.is_null() {
            over = (*over).over;
        }
        (*over).users.fetch_add(1, Ordering::AcqRel);
        new_pd(context, (*over).pd.handle, over)
    }
}

pub(super) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: ibv_alloc_td(3) has the program pass attributes that it can read.
    if unsafe { (*attr).comp_mask } != 0 {
        return null(libc::EOPNOTSUPP);
    }
    Box::into_raw(Box::new(ibv_td { context }))
}

pub(super) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: ibv_dealloc_td(3) has the program pass what `alloc_td` returned, the pointer of a
    // box, and give it up: the box is freed once.
    drop(unsafe { Box::from_raw(td) });
    0
}

pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_mr(3) has the program pass a domain of this library that is alive, which is
    // all that the function called asks for: the range itself is checked, and is not touched here.
    unsafe { ibv_reg_mr_iova2(pd, address, length, address.addr() as u64, access as u32) }
}

pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_mr_iova(3) has the program pass a domain of this library that is alive, which
    // is all that the function called asks for: the range itself is checked, and is not touched
    // here.
    unsafe { ibv_reg_mr_iova2(pd, address, length, iova, access as u32) }
}

/// Access flags that no model has: on-demand paging.
const UNSUPPORTED: u32 = IBV_ACCESS_ON_DEMAND;

pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: ibv_reg_mr_iova2(3) has the program pass a domain of this library that it has not
    // freed, whose context is thus open.
    let context = unsafe { Context::of((*pd).context) };
    if access & UNSUPPORTED != 0 {
        return null(libc::EOPNOTSUPP);
    }
    if length == 0 {
        return null(libc::EINVAL);
    }
    let at = address.expose_provenance() as u64;
    let pooled = match register(context, at, length as u64, access) {
        Ok(pooled) => pooled,
        Err(errno) => return null(errno),
    };
    let request = Request::RegisterMr {
        // SAFETY: the program passes a domain of this library that it has not freed, and its handle
        // is never changed.
        pd: unsafe { (*pd).handle },
        start: iova,
        address: at,
        length: length as u64,
        access,
        pooled,
    };
    match made(context.fabric.request(context.number, request)) {
        Ok(key) => new_mr(pd, address, length, key, pooled),
        Err(errno) => {
            if pooled {
                context.fabric.deregister(at, length as u64);
            }
            null(errno)
        }
    }
}

/// Makes the pages reachable.
fn register(context: &Context, address: u64, length: u64, access: u32) -> Result<bool, c_int> {
    let writes =
        access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    context
        .fabric
        .register(address, length, writes)
        .map_err(|error| match error {
            PoolError::Fault => libc::EFAULT,
            PoolError::Io(error) => error.raw_os_error().unwrap_or(libc::ENOMEM),
        })
}

fn new_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    key: u32,
    pooled: bool,
) -> *mut ibv_mr {
    Box::into_raw(Box::new(Mr {
        mr: ibv_mr {
            // SAFETY: the callers pass the domain that the program registers in, which is of this
            // library and not freed, and whose context is never changed.
            context: unsafe { (*pd).context },
            pd,
            addr: address,
            length,
            handle: key,
            lkey: key,
            rkey: key,
        },
        pooled,
    }))
    .cast()
}

pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: ibv_dereg_mr(3) has the program pass a region of this library, a box of an `Mr` that
    // begins with the C structure, and give it up: the box is freed once, and not used after that.
    // Its context is open.
    unsafe {
        let ours = &*mr.cast::<Mr>();
        let context = Context::of((*mr).context);
        let key = (*mr).handle;
        let freed = context
            .fabric
            .request(context.number, Request::DeregisterMr { key });
        if let Err(error @ FabricError::Refused(_)) = freed {
            return error.errno();
        }
        if ours.pooled {
            let address = (*mr).addr.addr() as u64;
            context.fabric.deregister(address, (*mr).length as u64);
        }
        drop(Box::from_raw(mr.cast::<Mr>()));
    }
    0
}

pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let fail = |errno, code| {
        set_errno(errno);
        code
    };
    let has = |flag: c_int| flags & flag != 0;
    // SAFETY: ibv_rereg_mr(3) has the program pass a region of this library that is alive, whose
    // context is thus open, and which this call alone uses meanwhile; and a domain that is alive if
    // the flags say that it changes, which is read only then.
    unsafe {
        if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 || flags == 0 {
            return fail(libc::EINVAL, IBV_REREG_MR_ERR_INPUT);
        }
        if has(IBV_REREG_MR_CHANGE_PD) && pd.is_null() {
            return fail(libc::EINVAL, IBV_REREG_MR_ERR_INPUT);
        }
        let moves = has(IBV_REREG_MR_CHANGE_TRANSLATION);
        if moves && (address.is_null() || length == 0)
            || has(IBV_REREG_MR_CHANGE_ACCESS) && access < 0
        {
            return fail(libc::EINVAL, IBV_REREG_MR_ERR_INPUT);
        }
        let context = Context::of((*mr).context);
        let at = address.expose_provenance() as u64;
        let range = if moves {
            match register(context, at, length as u64, access as u32) {
                Ok(pooled) => Some((at, length as u64, pooled)),
                Err(errno) => return fail(errno, IBV_REREG_MR_ERR_DONT_FORK_NEW),
            }
        } else {
            None
        };
        let request = Request::ReregisterMr {
            key: (*mr).handle,
            pd: has(IBV_REREG_MR_CHANGE_PD).then(|| (*pd).handle),
            access: has(IBV_REREG_MR_CHANGE_ACCESS).then_some(access as u32),
            range,
        };
        if let Err(error) = context.fabric.request(context.number, request) {
            if let Some((at, length, true)) = range {
                context.fabric.deregister(at, length);
            }
            return fail(error.errno(), IBV_REREG_MR_ERR_CMD);
        }
        if has(IBV_REREG_MR_CHANGE_PD) {
            (*mr).pd = pd;
        }
        if let Some((_, _, pooled)) = range {
            let ours = mr.cast::<Mr>();
            if (*ours).pooled {
                context
                    .fabric
                    .deregister((*mr).addr.addr() as u64, (*mr).length as u64);
            }
            (*ours).pooled = pooled;
            (*mr).addr = address;
            (*mr).length = length;
        }
    }
    0
}

pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    // SAFETY: ibv_alloc_null_mr(3) has the program pass a domain of this library that it has not
    // freed, whose context is thus open.
    let (context, handle) = unsafe { (Context::of((*pd).context), (*pd).handle) };
    match made(
        context
            .fabric
            .request(context.number, Request::NullMr { pd: handle }),
    ) {
        Ok(key) => new_mr(pd, ptr::null_mut(), 0, key, false),
        Err(errno) => null(errno),
    }
}

pub(super) unsafe extern "C" fn advise_mr(
    _pd: *mut ibv_pd,
    _advice: ibv_advise_mr_advice,
    _flags: u32,
    _list: *mut ibv_sge,
    _count: u32,
) -> c_int {
    // Advice on pages that are not there: no model has such regions.
    libc::EOPNOTSUPP
}

pub extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    null(libc::EOPNOTSUPP)
}

pub extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    null(libc::EOPNOTSUPP)
}

pub extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

pub extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    null(libc::EOPNOTSUPP)
}

pub extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

pub extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    null(libc::EOPNOTSUPP)
}

pub extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    // SAFETY: ibv_alloc_mw(3) has the program pass a domain of this library that it has not freed;
    // its context and handle are never changed.
    let (context, handle) = unsafe { ((*pd).context, (*pd).handle) };
    // SAFETY: the context is that of a domain that is alive, and a context is open for as long as
    // it has domains.
    let ours = unsafe { Context::of(context) };
    let request = Request::AllocMw { pd: handle, kind };
    match made(ours.fabric.request(ours.number, request)) {
        Ok(key) => Box::into_raw(Box::new(ibv_mw {
            context,
            pd,
            rkey: key,
            handle: key,
            r#type: kind,
        })),
        Err(errno) => null(errno),
    }
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: ibv_dealloc_mw(3) has the program pass what `alloc_mw` returned, the pointer of a
    // box, and give it up: the box is freed once, and not used after that. Its context is open.
    unsafe {
        let context = Context::of((*mw).context);
        let key = (*mw).handle;
        let freed = context
            .fabric
            .request(context.number, Request::FreeMw { key });
        if let Err(error @ FabricError::Refused(_)) = freed {
            return error.errno();
        }
        drop(Box::from_raw(mw));
    }
    0
}

pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: ibv_open_xrcd(3) has the program pass an open context, and attributes that it can
    // read. fstat(2) checks the descriptor and writes to `stat`, which is on this stack, and of
    // integers, so that zeroes are a value of it.
    unsafe {
        let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if (*attr).comp_mask & needed != needed {
            return null(libc::EINVAL);
        }
        let file = match (*attr).fd {
            -1 => None,
            fd => {
                let mut stat: libc::stat = std::mem::zeroed();
                if libc::fstat(fd, &mut stat) < 0 {
                    return ptr::null_mut();
                }
                Some((stat.st_dev, stat.st_ino))
            }
        };
        let ours = Context::of(context);
        match made(ours.fabric.request(
            ours.number,
            Request::OpenXrcd {
                hca: ours.hca,
                file,
            },
        )) {
            Ok(number) => {
                let xrcd = ibv_xrcd { context };
                Box::into_raw(Box::new(Xrcd { xrcd, number })).cast()
            }
            Err(errno) => null(errno),
        }
    }
}

pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: ibv_close_xrcd(3) has the program pass what `open_xrcd` returned, a box of an `Xrcd`
    // that begins with the C structure, and give it up if the answer is 0: the box is freed once,
    // and only then. Its context is open.
    unsafe {
        let context = Context::of((*xrcd).context);
        let number = (*xrcd.cast::<Xrcd>()).number;
        let closed = done(
            context
                .fabric
                .request(context.number, Request::CloseXrcd { xrcd: number }),
        );
        if closed == 0 {
            drop(Box::from_raw(xrcd.cast::<Xrcd>()));
        }
        closed
    }
}
