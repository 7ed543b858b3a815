//! Protection domains and memory regions.

use std::{
    ffi::{c_int, c_uint, c_void},
    ptr,
};

use snaprig_ckpt_ib::names::Domain;
use snaprig_verbs_abi::*;

use crate::{
    objects::{Context, Mr, Pd, Scratch, Shadow, is_ours, table},
    real::{Real, errno, null, real},
    state::{Things, lock},
};

/// Words of what a mark fetches.
const SCRATCH_WORDS: usize = 8;
/// How often memory is registered again until its key is nobody's.
const KEYS_TRIED_MAX: usize = 1 << 12;

/// A number that no other domain of a job has.
pub fn new_domain() -> Domain {
    let mut bytes = [0; 8];
    // It is there since Linux 3.17, and does not fail for so few bytes.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    Domain(u64::from_ne_bytes(bytes))
}

impl Scratch {
    /// Memory of ours that is registered in a domain below.
    ///
    /// # Safety
    /// The domain is one of the libibverbs below, and alive.
    pub unsafe fn new(pd: *mut ibv_pd, bytes: u64) -> Result<Self, String> {
        let mut memory = vec![0u64; (bytes as usize).div_ceil(8).max(1)].into_boxed_slice();
        let Some(real) = real() else {
            return Err("there is no libibverbs".into());
        };
        let access = IBV_ACCESS_LOCAL_WRITE as c_int;
        // SAFETY: the memory is ours, and stays where it is until it is freed by `free`.
        let mr =
            unsafe { (real.ibv_reg_mr)(pd, memory.as_mut_ptr().cast(), memory.len() * 8, access) };
        if mr.is_null() {
            let error = std::io::Error::from_raw_os_error(errno());
            return Err(format!(
                "memory of {bytes} bytes cannot be registered: {error}"
            ));
        }
        Ok(Self {
            bytes: memory,
            real: mr,
        })
    }

    /// As an element of a list.
    pub fn element(&self, bytes: u32) -> ibv_sge {
        ibv_sge {
            addr: self.bytes.as_ptr().expose_provenance() as u64,
            length: bytes,
            // SAFETY: it is registered until `free`.
            lkey: unsafe { (*self.real).lkey },
        }
    }

    /// It is not needed any more.
    pub fn free(self) -> Box<[u64]> {
        if let Some(real) = real() {
            // SAFETY: it was registered in `new`, and nobody posts it any more.
            unsafe { (real.ibv_dereg_mr)(self.real) };
        }
        self.bytes
    }
}

/// What to register.
#[derive(Clone, Copy)]
pub struct Range {
    pub address: *mut c_void,
    pub length: usize,
    pub iova: u64,
    pub access: u32,
    /// A region of nothing, which reads as zeroes (ibv_alloc_null_mr(3)).
    pub is_null: bool,
}

/// Registers memory below.
///
/// # Safety
/// The domain is one of the libibverbs below, and alive.
pub unsafe fn register(real: &Real, pd: *mut ibv_pd, range: &Range) -> *mut ibv_mr {
    let Range {
        address,
        length,
        iova,
        access,
        is_null,
    } = *range;
    // SAFETY: the caller says that the domain is alive; the range is checked, not touched. What libraries of old know is asked
    // for in the way of old: ibv_reg_mr(3).
    unsafe {
        if is_null {
            let context = (*pd).context;
            return match (*table(context)).alloc_null_mr {
                Some(alloc) => alloc(pd),
                None => null(libc::EOPNOTSUPP),
            };
        }
        match address.addr() as u64 == iova && access & IBV_ACCESS_OPTIONAL_RANGE == 0 {
            true => (real.ibv_reg_mr)(pd, address, length, access as c_int),
            false => (real.ibv_reg_mr_iova2)(pd, address, length, iova, access),
        }
    }
}

impl Things {
    /// Registers memory under keys that are nobody's: those that are given already are asked for again.
    ///
    /// # Safety
    /// The domain is one of the program's, and alive.
    unsafe fn register_new(&self, pd: *mut ibv_pd, range: &Range) -> *mut ibv_mr {
        let Some(real) = real() else {
            return null(libc::ENOSYS);
        };
        let mut in_vain = Vec::new();
        // SAFETY: domain and context are alive.
        let made = unsafe {
            let context = Context::of((*pd).context);
            loop {
                let mr = register(real, Pd::of(pd).real, range);
                let is_given = !mr.is_null()
                    && self.restarts > 0
                    && (self.names.is_key_given(context.port(), (*mr).rkey)
                        || context.local_keys.contains_key(&(*mr).lkey));
                if !is_given || in_vain.len() == KEYS_TRIED_MAX {
                    break mr;
                }
                in_vain.push(mr);
            }
        };
        for mr in in_vain {
            // SAFETY: it was registered above, and nobody has it.
            unsafe { (real.ibv_dereg_mr)(mr) };
        }
        made
    }

    unsafe fn new_mr(&mut self, pd: *mut ibv_pd, range: &Range) -> *mut ibv_mr {
        // SAFETY: the callers pass a domain of the program's; the region below lives as long as ours.
        unsafe {
            let below = self.register_new(pd, range);
            if below.is_null() {
                return below;
            }
            let mr = ibv_mr {
                context: (*pd).context,
                pd,
                ..ptr::read(below)
            };
            let mr = Box::into_raw(Box::new(Mr {
                mr,
                real: below,
                stand_in: None,
                iova: range.iova,
                access: range.access,
                is_null: range.is_null,
            }));
            self.mrs.insert(mr);
            (*mr).pointer()
        }
    }
}

exported! {
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
        let Some(real) = real() else {
            return null(libc::ENOSYS);
        };
        if !is_ours(context) {
            return (real.ibv_alloc_pd)(context);
        }
        let state = &mut *lock();
        let below = (real.ibv_alloc_pd)(Context::of(context).real);
        if below.is_null() {
            return below;
        }
        let pd = Box::into_raw(Box::new(Pd {
            pd: ibv_pd {
                context,
                handle: (*below).handle,
            },
            real: below,
            domain: new_domain(),
            scratch: None,
            parent: None,
        }));
        state.things.pds.insert(pd);
        (*pd).pointer()
    }

    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*pd).context) {
            return (real.ibv_dealloc_pd)(pd);
        }
        let state = &mut *lock();
        let ours: *mut Pd = Pd::of(pd);
        if let Some(scratch) = (*ours).scratch.take() {
            scratch.free();
        }
        let done = (real.ibv_dealloc_pd)((*ours).real);
        if done == 0 {
            state.things.pds.remove(&ours);
            drop(Box::from_raw(ours));
        }
        done
    }

    fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
        null(libc::EOPNOTSUPP)
    }

    fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
        null(libc::EOPNOTSUPP)
    }

    fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
        null(libc::EOPNOTSUPP)
    }

    fn ibv_reg_dmabuf_mr(
        pd: *mut ibv_pd,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> *mut ibv_mr {
        match real() {
            Some(real) if !is_ours((*pd).context) => {
                (real.ibv_reg_dmabuf_mr)(pd, offset, length, iova, fd, access)
            }
            // Another device's memory is no part of a checkpoint.
            _ => null(libc::EOPNOTSUPP),
        }
    }

    fn ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr {
        if !is_ours((*pd).context) {
            return real().map_or(ptr::null_mut(), |real| (real.ibv_reg_mr)(pd, address, length, access));
        }
        let (iova, access) = (address.addr() as u64, access as u32);
        lock().things.new_mr(pd, &Range { address, length, iova, access, is_null: false })
    }

    fn ibv_reg_mr_iova(
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> *mut ibv_mr {
        if !is_ours((*pd).context) {
            return real().map_or(ptr::null_mut(), |real| {
                (real.ibv_reg_mr_iova)(pd, address, length, iova, access)
            });
        }
        let access = access as u32;
        lock().things.new_mr(pd, &Range { address, length, iova, access, is_null: false })
    }

    fn ibv_reg_mr_iova2(
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr {
        if !is_ours((*pd).context) {
            return real().map_or(ptr::null_mut(), |real| {
                (real.ibv_reg_mr_iova2)(pd, address, length, iova, access)
            });
        }
        lock().things.new_mr(pd, &Range { address, length, iova, access, is_null: false })
    }

    fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: usize,
        access: c_int,
    ) -> c_int {
        let Some(real) = real() else {
            return -1;
        };
        if !is_ours((*mr).context) {
            return (real.ibv_rereg_mr)(mr, flags, pd, address, length, access);
        }
        let _state = lock();
        let ours = Mr::of(mr);
        let changes = |flag| flags & flag != 0;
        let below = match changes(IBV_REREG_MR_CHANGE_PD) {
            true => Pd::of(pd).real,
            false => ptr::null_mut(),
        };
        let (before_lkey, before_rkey) = ((*ours.real).lkey, (*ours.real).rkey);
        let done = (real.ibv_rereg_mr)(ours.real, flags, below, address, length, access);
        if done != 0 {
            return done;
        }
        if changes(IBV_REREG_MR_CHANGE_TRANSLATION) {
            (ours.mr.addr, ours.mr.length) = (address, length);
            ours.iova = address.addr() as u64;
        }
        if changes(IBV_REREG_MR_CHANGE_ACCESS) {
            ours.access = access as u32;
        }
        if changes(IBV_REREG_MR_CHANGE_PD) {
            ours.mr.pd = pd;
        }
        // Its names stay, unless they are others below.
        let (lkey, rkey) = ((*ours.real).lkey, (*ours.real).rkey);
        if (lkey, rkey) != (before_lkey, before_rkey) {
            (ours.mr.lkey, ours.mr.rkey) = (lkey, rkey);
        }
        0
    }

    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours((*mr).context) {
            return (real.ibv_dereg_mr)(mr);
        }
        let state = &mut *lock();
        let ours: *mut Mr = Mr::of(mr);
        let done = (real.ibv_dereg_mr)((*ours).real);
        if done == 0 {
            Context::of((*mr).context).local_keys.remove(&(*mr).lkey);
            state.things.mrs.remove(&ours);
            drop(Box::from_raw(ours));
        }
        done
    }
}

in_tables! {
    fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
        let range = Range { address: ptr::null_mut(), length: 0, iova: 0, access: 0, is_null: true };
        lock().things.new_mr(pd, &range)
    }

    fn advise_mr(
        pd: *mut ibv_pd,
        advice: ibv_advise_mr_advice,
        flags: u32,
        list: *mut ibv_sge,
        count: u32,
    ) -> c_int {
        let state = lock();
        let context = Context::of((*pd).context);
        let Some(advise) = (*context.real_verbs()).advise_mr else {
            return libc::EOPNOTSUPP;
        };
        let list = match list.is_null() {
            true => &[],
            false => std::slice::from_raw_parts(list, count as usize),
        };
        let mut list = state.things.real_list(context, list);
        advise(Pd::of(pd).real, advice, flags, list.as_mut_ptr(), count)
    }
}

/// Words of memory for what a mark of a domain fetches.
///
/// # Safety
/// The domain is one of the program's, and alive.
pub unsafe fn scratch_of(pd: *mut ibv_pd) -> Result<ibv_sge, String> {
    // SAFETY: the caller says that it is alive, and has the lock.
    unsafe {
        let pd = Pd::of(pd);
        if pd.scratch.is_none() {
            pd.scratch = Some(Scratch::new(pd.real, SCRATCH_WORDS as u64 * 8)?);
        }
        let scratch = pd.scratch.as_ref().expect("made above");
        Ok(scratch.element(8))
    }
}
