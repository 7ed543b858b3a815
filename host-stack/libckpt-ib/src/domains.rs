//! Thread domains, and parent domains: protection domains that say how what is made in them is used (ibv_alloc_parent_domain(3)).

use std::ffi::{c_int, c_void};

use snaprig_verbs_abi::*;

use crate::{
    objects::{Context, Pd, Shadow, Td, table},
    real::{null, real},
    state::lock,
};

/// Makes a thread domain below.
///
/// # Safety
/// The context is one of the libibverbs below, and open.
pub unsafe fn alloc_td_below(context: *mut ibv_context) -> *mut ibv_td {
    let mut attr = ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: the caller says that it is open.
    unsafe {
        match (*table(context)).alloc_td {
            Some(alloc) => alloc(context, &mut attr),
            None => null(libc::EOPNOTSUPP),
        }
    }
}

/// Gives a thread domain below back.
///
/// # Safety
/// It is alive, and nobody uses it any more.
pub unsafe fn dealloc_td_below(td: *mut ibv_td) -> c_int {
    // SAFETY: the caller says so.
    unsafe {
        match (*table((*td).context)).dealloc_td {
            Some(dealloc) => dealloc(td),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Makes below what a domain stands for: a domain, or a parent of one.
///
/// # Safety
/// What it names is alive below.
pub unsafe fn alloc_below(pd: &mut Pd) -> *mut ibv_pd {
    let ours: *mut Pd = pd;
    // SAFETY: the caller says so.
    unsafe {
        let context = Context::of(pd.pd.context).real;
        let Some(attr) = &pd.parent else {
            return real().map_or_else(|| null(libc::ENOSYS), |real| (real.ibv_alloc_pd)(context));
        };
        let mut below = *attr;
        below.pd = Pd::of(attr.pd).real;
        if let Some(td) = attr.td.as_mut() {
            below.td = Td::of(td).real;
        }
        if attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0 {
            below.comp_mask |= IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
            below.alloc = Some(allocate);
            below.free = Some(free);
            below.pd_context = ours.cast();
        }
        match (*table(context)).alloc_parent_domain {
            Some(alloc) => alloc(context, &mut below),
            None => null(libc::EOPNOTSUPP),
        }
    }
}

/// The domain that a parent domain is over, and its context for allocators.
unsafe fn parent<'a>(ours: *mut c_void) -> Option<(*mut ibv_pd, &'a ibv_parent_domain_init_attr)> {
    // SAFETY: the libibverbs below passes what `alloc_below` gave it: a box that lives as long as the domain below.
    let ours = unsafe { &mut *ours.cast::<Pd>() };
    let pointer = ours.pointer();
    ours.parent.as_ref().map(|attr| (pointer, attr))
}

/// What the program has its allocator called with.
fn context_of(attr: &ibv_parent_domain_init_attr) -> *mut c_void {
    match attr.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT {
        0 => std::ptr::null_mut(),
        _ => attr.pd_context,
    }
}

in_tables! {
    fn allocate(_pd: *mut ibv_pd, ours: *mut c_void, size: usize, alignment: usize, kind: u64) -> *mut c_void {
        match parent(ours).and_then(|(pd, attr)| Some((pd, attr, attr.alloc?))) {
            Some((pd, attr, alloc)) => alloc(pd, context_of(attr), size, alignment, kind),
            None => IBV_ALLOCATOR_USE_DEFAULT,
        }
    }

    fn free(_pd: *mut ibv_pd, ours: *mut c_void, memory: *mut c_void, kind: u64) {
        if let Some((pd, attr)) = parent(ours) && let Some(free) = attr.free {
            free(pd, context_of(attr), memory, kind);
        }
    }

    fn alloc_td(context: *mut ibv_context, attr: *mut ibv_td_init_attr) -> *mut ibv_td {
        if (*attr).comp_mask != 0 {
            return null(libc::EOPNOTSUPP);
        }
        let state = &mut *lock();
        let below = alloc_td_below(Context::of(context).real);
        if below.is_null() {
            return below;
        }
        let td = Box::into_raw(Box::new(Td { td: ibv_td { context }, real: below }));
        state.things.tds.insert(td);
        (*td).pointer()
    }

    fn dealloc_td(td: *mut ibv_td) -> c_int {
        let state = &mut *lock();
        let ours: *mut Td = Td::of(td);
        let done = dealloc_td_below((*ours).real);
        if done == 0 {
            state.things.tds.remove(&ours);
            drop(Box::from_raw(ours));
        }
        done
    }

    fn alloc_parent_domain(context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr) -> *mut ibv_pd {
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
        if (*attr).comp_mask & !known != 0 || (*attr).pd.is_null() {
            return null(libc::EINVAL);
        }
        let mut own = *attr;
        // What the mask does not name may be anything.
        if own.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS == 0 {
            (own.alloc, own.free) = (None, None);
        }
        let state = &mut *lock();
        let domain = Pd::of(own.pd).domain;
        let pd = Box::into_raw(Box::new(Pd {
            pd: ibv_pd { context, handle: (*own.pd).handle },
            real: std::ptr::null_mut(),
            domain,
            scratch: None,
            parent: Some(own),
        }));
        (*pd).real = alloc_below(&mut *pd);
        if (*pd).real.is_null() {
            drop(Box::from_raw(pd));
            return std::ptr::null_mut();
        }
        (*pd).pd.handle = (*(*pd).real).handle;
        state.things.pds.insert(pd);
        (*pd).pointer()
    }
}
