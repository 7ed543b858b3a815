//! The runtime starts before the program's main (and after the constructors of what the library itself
//! needs), so that a program can be reached that never calls COI: the daemon says in its environment
//! that it is an offload process, and the runtime takes that out again, so that programs which this
//! one starts are none.

use std::{
    ffi::CStr,
    sync::atomic::{AtomicBool, Ordering},
};

use super::Runtime;
use crate::environment::{MODE, SNAPIFY, USER_VARIABLES};

static IS_OFFLOAD_PROCESS: AtomicBool = AtomicBool::new(false);
static READ: AtomicBool = AtomicBool::new(false);

/// Whether the daemon has started this process as one, or this is a restored one.
pub fn is_offload_process() -> bool {
    // Names the constructor, so that a linker that takes this takes that too.
    std::hint::black_box(&raw const CONSTRUCTOR);
    if !READ.swap(true, Ordering::AcqRel) {
        IS_OFFLOAD_PROCESS.store(take_environment(), Ordering::Release);
    }
    IS_OFFLOAD_PROCESS.load(Ordering::Acquire)
}

/// Whether the host does without snapshots of this process.
pub fn is_without_snapify() -> bool {
    // SAFETY: the name ends with a zero. This is before main, or in the first call of COI of a program whose linker
    // left the constructor out: nobody else changes the environment meanwhile.
    let value = unsafe { libc::getenv(SNAPIFY.as_ptr()) };
    // SAFETY: it is not null, so it is the value of a variable, which ends with a zero and stays while nobody changes
    // the environment.
    !value.is_null() && unsafe { CStr::from_ptr(value) } == c"off"
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

extern "C" fn construct() {
    Runtime::get();
}

/// Reads what the daemon has put into the environment, and puts the user's own back.
fn take_environment() -> bool {
    // SAFETY: the names end with zeros. This is before main, or in the first call of COI of a program
    // whose linker left the constructor out: nobody else uses the environment meanwhile.
    unsafe {
        if libc::getenv(MODE.as_ptr()).is_null() {
            return false;
        }
        libc::unsetenv(MODE.as_ptr());
        for (name, users) in USER_VARIABLES {
            restore_variable(name, users);
        }
    }
    true
}

/// Gives a variable of the loader's the value that the user has asked for.
///
/// # Safety
/// Nobody else may use the environment meanwhile.
unsafe fn restore_variable(name: &CStr, users: &CStr) {
    // SAFETY: the caller says that nobody else uses the environment; the names end with zeros, and the value, which is
    // not null where it is used, stays where it is until its own variable is unset.
    unsafe {
        let value = libc::getenv(users.as_ptr());
        if value.is_null() {
            libc::unsetenv(name.as_ptr());
        } else {
            libc::setenv(name.as_ptr(), value, 1);
            libc::unsetenv(users.as_ptr());
        }
    }
}
