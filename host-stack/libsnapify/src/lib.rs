//! `libsnapify.so.0`: the C interface of Snapify. The contracts are the headers, `include/snapify.h` for host programs and
//! `include/snapifyio.h` for programs on cards (`io`).
//!
//! A process that it is called for is a handle of the `libcoi_host.so.0` that the program has, and its state is there. So are
//! these functions, under a version of their own; here are their public names.
//!
//! What must stay true: nothing is kept here, so that the program has one copy of everything.

#![allow(missing_docs)]
#![allow(clippy::missing_safety_doc)]

use std::{
    ffi::{CStr, c_int, c_void},
    ptr::NonNull,
};

mod io;

pub use io::{snapifyio_finish, snapifyio_open};
use snaprig_offload_wire::coi_result::code;
use snaprig_versioned::export;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// Where the functions are.
const LIBRARY: &CStr = c"libcoi_host.so.0";
/// Their version there.
const VERSION: &CStr = c"SNAPRIG_PRIVATE";

/// A pointer to a program's `snapify_t`, which is passed on.
type Snapshot = *mut c_void;

/// The function of this name in the library that the program has; none: it has another one, or none, and so no process
/// that this could be for.
fn of_coi(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: dlopen(3) and dlvsym(3) read strings that end with a zero, which a `CStr` does. RTLD_NOLOAD has dlopen run no
    // code of a library, and returns null or a handle that dlvsym takes; the library is never unloaded.
    unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        NonNull::new(library)?;
        NonNull::new(libc::dlvsym(library, name.as_ptr(), VERSION.as_ptr()))
    }
}

/// Calls a function of libcoi_host.so.0; what it returns is a COIRESULT. Use it in an `unsafe` block: the types must be those
/// that it has there, and the arguments what the header asks for.
macro_rules! call {
    ($name:literal, fn($($type:ty),*), $($argument:expr),*) => {
        match of_coi($name) {
            Some(function) => {
                let function: unsafe extern "C" fn($($type),*) -> u32 = std::mem::transmute(function);
                function($($argument),*)
            }
            None => code::NOT_INITIALIZED,
        }
    };
}

pub unsafe extern "C" fn snapify_copy(snapshot: Snapshot, device: c_int) {
    // SAFETY: this is its type, and the header asks for the same.
    unsafe { call!(c"snapify_copy", fn(Snapshot, c_int), snapshot, device) };
}

pub unsafe extern "C" fn snapify_pause(snapshot: Snapshot) {
    // SAFETY: this is its type, and the header asks for the same.
    unsafe { call!(c"snapify_pause", fn(Snapshot), snapshot) };
}

pub unsafe extern "C" fn snapify_capture(snapshot: Snapshot, terminate: bool) {
    // SAFETY: this is its type, and the header asks for the same.
    unsafe { call!(c"snapify_capture", fn(Snapshot, bool), snapshot, terminate) };
}

pub unsafe extern "C" fn snapify_wait(snapshot: Snapshot) {
    // SAFETY: this is its type, and the header asks for the same.
    unsafe { call!(c"snapify_wait", fn(Snapshot), snapshot) };
}

pub unsafe extern "C" fn snapify_resume(snapshot: Snapshot) {
    // SAFETY: this is its type, and the header asks for the same.
    unsafe { call!(c"snapify_resume", fn(Snapshot), snapshot) };
}

pub unsafe extern "C" fn snapify_restore(snapshot: Snapshot, device: c_int) {
    // SAFETY: this is its type, and the header asks for the same.
    unsafe { call!(c"snapify_restore", fn(Snapshot, c_int), snapshot, device) };
}

pub unsafe extern "C" fn snapify_result(snapshot: Snapshot) -> u32 {
    // SAFETY: this is its type, and the header asks for the same.
    unsafe { call!(c"snapify_result", fn(Snapshot), snapshot) }
}
