//! What a plugin of checkpoints must know of this library, which no kernel is behind: what is its own, and will be another one's
//! when the process is restarted.
//!
//! ```text
//!   save      snaprig_verbs_owned      descriptors and memory that are the daemon's, or peers'
//!   rebuild   snaprig_verbs_restarted  all of that is gone: what is opened from here on is of the fabric that the environment of
//!                                      the new supervisor names
//! ```
//!
//! Whoever calls them sees to it that nobody else calls this library meanwhile. What was open is to be closed after the second
//! one, as after the end of a daemon.

use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int, c_void},
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
    sync::Weak,
};

use snaprig_fabric::{node, place, start::EXE_ENV, tcp};
use snaprig_verbs_files::device;

use super::{BEFORE, FABRIC};

type OnDescriptor = extern "C" fn(c_int, *mut c_void);
type OnRegion = extern "C" fn(*mut c_void, usize, *mut c_void);
type Variable = extern "C" fn(*const c_char, *mut c_void) -> *const c_char;

/// What says where a fabric is, and what it is if it has to be started.
const VARIABLES: [&str; 14] = [
    place::FABRIC_ENV,
    place::DIRECTORY_ENV,
    place::HCAS_ENV,
    place::MODEL_ENV,
    place::PKEYS_ENV,
    place::FAULTS_ENV,
    place::PLAN_ENV,
    place::CAPTURE_ENV,
    node::NODE_ENV,
    node::NODE_HCAS_ENV,
    node::NODE_DIRECTORY_ENV,
    tcp::TCP_ENV,
    tcp::TOKEN_ENV,
    EXE_ENV,
];

/// Says what is its own.
#[unsafe(no_mangle)]
pub extern "C" fn snaprig_verbs_owned(
    descriptor: OnDescriptor,
    region: OnRegion,
    data: *mut c_void,
) {
    device::owned(|fd| descriptor(fd.as_raw_fd(), data));
    if let Ok(current) = FABRIC.lock()
        && let Some(fabric) = current.1.upgrade()
    {
        fabric.owned(
            |fd| descriptor(fd.as_raw_fd(), data),
            |start, bytes| region(start, bytes, data),
        );
    }
}

/// All of that is gone. `variable` says what the environment is now, or null.
#[unsafe(no_mangle)]
pub extern "C" fn snaprig_verbs_restarted(variable: Variable, data: *mut c_void) {
    let value = |name: &str| {
        let name = CString::new(name).ok()?;
        let value = variable(name.as_ptr(), data);
        if value.is_null() {
            return None;
        }
        // SAFETY: the plugin gives a string, which stays until this function returns.
        Some(OsStr::from_bytes(
            unsafe { CStr::from_ptr(value) }.to_bytes(),
        ))
    };
    // A supervisor that is in no fabric says nothing of where this is to be.
    if value(place::FABRIC_ENV).is_some() {
        for name in VARIABLES {
            // SAFETY: no other thread runs in a restart. Children that the program makes are to be in the new fabric, too.
            unsafe {
                match value(name) {
                    Some(value) => std::env::set_var(name, value),
                    None => std::env::remove_var(name),
                }
            }
        }
    }
    device::retire();
    let Ok(mut current) = FABRIC.lock() else {
        return;
    };
    if let Some(fabric) = current.1.upgrade() {
        let pool = fabric.retire();
        if let Ok(mut before) = BEFORE.lock() {
            *before = Some((current.0, pool));
        }
    }
    *current = (0, Weak::new());
}
