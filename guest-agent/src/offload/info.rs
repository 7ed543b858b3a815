//! The C API that asks only of the card and of COI itself, by the names of the public MPSS headers
//! (`include/common`): results, the engine, hardware threads, clocks.

use std::ffi::c_char;

use snaprig_offload_wire::coi_result::{code, name};

use crate::{processors::Counts, scif::Endpoint};

/// COI_DEVICE_KNC: what the card's PCI function says it is.
const KNIGHTS_CORNER: i32 = 4;
/// What there is none of.
const NO_INDEX: u32 = u32::MAX;

/// The name of a result; "COI_ERROR" for what is none.
#[unsafe(no_mangle)]
pub extern "C" fn COIResultGetName(result: u32) -> *const c_char {
    name(result).as_ptr()
}

/// What kind of engine this is, and which of them.
///
/// # Safety
/// The pointers are null or valid to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn COIEngineGetIndex(kind: *mut i32, index: *mut u32) -> u32 {
    if kind.is_null() || index.is_null() {
        return code::INVALID_POINTER;
    }
    // Node 0 is the host.
    let Ok(node) = Endpoint::open().and_then(|endpoint| endpoint.node()) else {
        return code::ERROR;
    };
    // SAFETY: neither is null, as was checked, so the caller says that both can be written to.
    unsafe {
        kind.write(KNIGHTS_CORNER);
        index.write(u32::from(node.saturating_sub(1)));
    }
    code::SUCCESS
}

/// Time, in units of [`COIPerfGetCycleFrequency`].
#[unsafe(no_mangle)]
pub extern "C" fn COIPerfGetCycleCounter() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: clock_gettime(2) writes a timespec, which is a variable of this function.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64)
        .wrapping_mul(COIPerfGetCycleFrequency())
        .wrapping_add(now.tv_nsec as u64)
}

/// Units of [`COIPerfGetCycleCounter`] in a second: they are nanoseconds.
#[unsafe(no_mangle)]
pub extern "C" fn COIPerfGetCycleFrequency() -> u64 {
    1_000_000_000
}

/// The id of the hardware thread that the caller runs on.
#[unsafe(no_mangle)]
pub extern "C" fn COISysGetAPICID() -> u32 {
    COISysGetHardwareThreadIndex()
}

/// How many cores the card has.
#[unsafe(no_mangle)]
pub extern "C" fn COISysGetCoreCount() -> u32 {
    Counts::of_card().cores
}

/// How many hardware threads the card has.
#[unsafe(no_mangle)]
pub extern "C" fn COISysGetHardwareThreadCount() -> u32 {
    Counts::of_card().threads
}

/// Which hardware thread the caller runs on.
#[unsafe(no_mangle)]
pub extern "C" fn COISysGetHardwareThreadIndex() -> u32 {
    // SAFETY: sched_getcpu(3) takes no argument, and returns a number.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(NO_INDEX)
}

/// Which core the caller runs on.
#[unsafe(no_mangle)]
pub extern "C" fn COISysGetCoreIndex() -> u32 {
    match COISysGetHardwareThreadIndex() {
        NO_INDEX => NO_INDEX,
        thread => thread / Counts::of_card().threads_per_core(),
    }
}

/// How many level 2 caches the card has: one a core.
#[unsafe(no_mangle)]
pub extern "C" fn COISysGetL2CacheCount() -> u32 {
    COISysGetCoreCount()
}

/// The level 2 cache of the core that the caller runs on.
#[unsafe(no_mangle)]
pub extern "C" fn COISysGetL2CacheIndex() -> u32 {
    COISysGetCoreIndex()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_names_and_what_is_none_is_an_error() {
        let name = |result| {
            // SAFETY: a name is a constant that ends with a zero.
            let name = unsafe { std::ffi::CStr::from_ptr(COIResultGetName(result)) };
            name.to_str().unwrap()
        };
        assert_eq!(name(0), "COI_SUCCESS");
        assert_eq!(name(23), "COI_PROCESS_DIED");
        assert_eq!(name(30), "COI_INCORRECT_FORMAT");
        assert_eq!((name(31), name(u32::MAX)), ("COI_ERROR", "COI_ERROR"));
    }

    #[test]
    fn threads_and_time_are_those_of_the_machine() {
        assert!(COISysGetHardwareThreadIndex() < COISysGetHardwareThreadCount());
        let before = COIPerfGetCycleCounter();
        assert!(before > 0 && COIPerfGetCycleCounter() >= before);
    }
}
