//! The libibverbs below, which the program would have if this library were not there.

use std::{
    ffi::{CStr, CString, c_int, c_uint, c_void},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use snaprig_verbs_abi::*;

use crate::loader::real_dlvsym;

/// The name by which programs ask for it.
const LIBRARY: &CStr = c"libibverbs.so.1";

/// What libraries of fabrics offer: [`crate::owned::restarted`].
pub const RESTARTED: &CStr = c"snaprig_verbs_restarted";

// SAFETY: the handle of a library that is never unloaded is good for all threads.
unsafe impl Send for Real {}
// SAFETY: the same.
unsafe impl Sync for Real {}

macro_rules! functions {
    ($($version:literal { $($name:ident($($type:ty),*) $(-> $result:ty)?;)* })*) => {
        /// Its functions.
        pub struct Real {
            library: *mut c_void,
            $($(pub $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*)*
        }

        impl Real {
            fn of(library: *mut c_void) -> Result<Self, String> {
                Ok(Self {
                    library,
                    $($($name: {
                        let name = concat!(stringify!($name), "\0");
                        let at = symbol(library, name, concat!($version, "\0"))?;
                        type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
                        // SAFETY: the library has a function of this name and version, whose type is that of the
                        // public header.
                        unsafe { std::mem::transmute::<*mut c_void, Function>(at) }
                    },)*)*
                })
            }
        }
    };
}

functions! {
    "IBVERBS_1.0" {
        ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    }
    "IBVERBS_1.1" {
        ibv_ack_async_event(*mut ibv_async_event);
        ibv_ack_cq_events(*mut ibv_cq, c_uint);
        ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        ibv_attach_mcast(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
        ibv_close_device(*mut ibv_context) -> c_int;
        ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        ibv_create_ah_from_wc(*mut ibv_pd, *mut ibv_wc, *mut ibv_grh, u8) -> *mut ibv_ah;
        ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        ibv_dereg_mr(*mut ibv_mr) -> c_int;
        ibv_destroy_ah(*mut ibv_ah) -> c_int;
        ibv_destroy_cq(*mut ibv_cq) -> c_int;
        ibv_destroy_qp(*mut ibv_qp) -> c_int;
        ibv_destroy_srq(*mut ibv_srq) -> c_int;
        ibv_detach_mcast(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
        ibv_free_device_list(*mut *mut ibv_device);
        ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_get_device_guid(*mut ibv_device) -> u64;
        ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        ibv_init_ah_from_wc(*mut ibv_context, u8, *mut ibv_wc, *mut ibv_grh, *mut ibv_ah_attr) -> c_int;
        ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_modify_srq(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
        ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        ibv_query_pkey(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
        ibv_query_port(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
        ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        ibv_query_srq(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
        ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_rereg_mr(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
        ibv_resize_cq(*mut ibv_cq, c_int) -> c_int;
        ibv_resolve_eth_l2_from_gid(*mut ibv_context, *mut ibv_ah_attr, *mut u8, *mut u16) -> c_int;
    }
    "IBVERBS_1.5" {
        ibv_get_pkey_index(*mut ibv_context, u8, u16) -> c_int;
    }
    "IBVERBS_1.6" {
        ibv_qp_to_qp_ex(*mut ibv_qp) -> *mut ibv_qp_ex;
    }
    "IBVERBS_1.7" {
        ibv_reg_mr_iova(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
    }
    "IBVERBS_1.8" {
        ibv_reg_mr_iova2(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    }
    "IBVERBS_1.9" {
        ibv_get_device_index(*mut ibv_device) -> c_int;
    }
    "IBVERBS_1.10" {
        ibv_query_ece(*mut ibv_qp, *mut ibv_ece) -> c_int;
        ibv_set_ece(*mut ibv_qp, *mut ibv_ece) -> c_int;
    }
    "IBVERBS_1.11" {
        _ibv_query_gid_ex(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        _ibv_query_gid_table(*mut ibv_context, *mut ibv_gid_entry, usize, u32, usize) -> isize;
    }
    "IBVERBS_1.12" {
        ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    }
    "IBVERBS_1.14" {
        ibv_query_qp_data_in_order(*mut ibv_qp, ibv_wr_opcode, u32) -> c_int;
    }
}

fn symbol(library: *mut c_void, name: &str, version: &str) -> Result<*mut c_void, String> {
    // SAFETY: both strings end with a zero (the macro above), and the handle is of dlopen(3) and never closed.
    let at = unsafe { real_dlvsym(library, name.as_ptr().cast(), version.as_ptr().cast()) };
    match at.is_null() {
        false => Ok(at),
        true => Err(format!(
            "the libibverbs of this program is older than rdma-core 38: it has no {} of {}",
            name.trim_end_matches('\0'),
            version.trim_end_matches('\0')
        )),
    }
}

fn load(name: &CStr, flags: c_int) -> Result<Real, String> {
    // SAFETY: the name is a string; loading the library that the program or its restart asks for runs no other code than it would.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | flags) };
    if library.is_null() {
        return Err(format!("no {} is found", name.to_string_lossy()));
    }
    Real::of(library)
}

impl Real {
    /// What this library offers that is no kernel's, if it does: see `snaprig_verbs`.
    pub fn offered(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the name is a string; the library is loaded, and stays so.
        let at = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        (!at.is_null()).then_some(at)
    }
}

/// The program's own.
static OWN: OnceLock<Option<Real>> = OnceLock::new();
/// One that a restart has brought along.
static BROUGHT: OnceLock<Option<Real>> = OnceLock::new();
/// Which of them is below.
static IS_BROUGHT: AtomicBool = AtomicBool::new(false);

/// The libibverbs below; who cannot have it is told why, once.
pub fn real() -> Option<&'static Real> {
    if IS_BROUGHT.load(Relaxed) {
        return BROUGHT.get()?.as_ref();
    }
    own()
}

fn own() -> Option<&'static Real> {
    let found = OWN.get_or_init(|| found(load(LIBRARY, libc::RTLD_GLOBAL)));
    found.as_ref()
}

fn found(loaded: Result<Real, String>) -> Option<Real> {
    if let Err(why) = &loaded {
        eprintln!("snaprig: verbs cannot be a part of checkpoints: {why}");
    }
    loaded.ok()
}

/// What is below from a restart on. A program whose own library knows no fabric has that of the fabric that its supervisor is in:
/// `preload` is what that preloads. Elsewhere it has its own again. Until then no object of another one may be used.
pub fn choose(preload: &[u8]) -> Result<(), String> {
    let is_of_fabrics = own().is_some_and(|own| own.offered(RESTARTED).is_some());
    let mut names = preload.split(|byte| *byte == b':');
    let name = names.find(|name| !is_of_fabrics && name.ends_with(b"/libibverbs.so.1"));
    if let Some(name) = name {
        let name = CString::new(name).map_err(|error| error.to_string())?;
        let brought = BROUGHT.get_or_init(|| found(load(&name, libc::RTLD_LOCAL)));
        if brought.is_none() {
            return Err("the fabric's libibverbs cannot be loaded".into());
        }
    }
    IS_BROUGHT.store(name.is_some(), Relaxed);
    Ok(())
}

/// The libibverbs below, for dlsym(3).
pub fn library() -> Option<*mut c_void> {
    real().map(|real| real.library)
}

/// Functions that programs call. The body may do what an `unsafe` block may: what the manual page of the name asks of the program is
/// all that it may rely on - objects that came from here and are not destroyed, places that can be read or written, strings that
/// end. Those of the libibverbs below are called with its own objects, which live as long as ours that stand for them.
/// A thread may be cancelled where it waits, which unwinds.
macro_rules! exported {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $(
            #[unsafe(export_name = concat!("snaprig_ckpt_ib_", stringify!($name)))]
            pub unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: see the macro.
                #[allow(unused_unsafe)]
                unsafe {
                    $body
                }
            }
        )*
    };
}

/// Functions of tables that programs find in objects; otherwise as [`exported`].
macro_rules! in_tables {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $(
            #[inline(never)]
            pub unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: as for `exported`.
                #[allow(unused_unsafe)]
                unsafe {
                    $body
                }
            }
        )*
    };
}

/// Leaves an errno value for the caller.
pub fn set_errno(errno: c_int) {
    // SAFETY: __errno_location(3) returns the place of this thread's own errno, which is always there.
    unsafe { *libc::__errno_location() = errno };
}

/// What errno is.
pub fn errno() -> c_int {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// Fails a call that returns a pointer.
pub fn null<T>(errno: c_int) -> *mut T {
    set_errno(errno);
    std::ptr::null_mut()
}
