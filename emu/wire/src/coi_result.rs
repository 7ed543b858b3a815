//! The names of COI's results (COIResult_common.h), which both of its libraries give to programs.

use core::ffi::CStr;

const NAMES: [&CStr; 31] = [
    c"COI_SUCCESS",
    c"COI_ERROR",
    c"COI_NOT_INITIALIZED",
    c"COI_ALREADY_INITIALIZED",
    c"COI_ALREADY_EXISTS",
    c"COI_DOES_NOT_EXIST",
    c"COI_INVALID_POINTER",
    c"COI_OUT_OF_RANGE",
    c"COI_NOT_SUPPORTED",
    c"COI_TIME_OUT_REACHED",
    c"COI_MEMORY_OVERLAP",
    c"COI_ARGUMENT_MISMATCH",
    c"COI_SIZE_MISMATCH",
    c"COI_OUT_OF_MEMORY",
    c"COI_INVALID_HANDLE",
    c"COI_RETRY",
    c"COI_RESOURCE_EXHAUSTED",
    c"COI_ALREADY_LOCKED",
    c"COI_NOT_LOCKED",
    c"COI_MISSING_DEPENDENCY",
    c"COI_UNDEFINED_SYMBOL",
    c"COI_PENDING",
    c"COI_BINARY_AND_HARDWARE_MISMATCH",
    c"COI_PROCESS_DIED",
    c"COI_INVALID_FILE",
    c"COI_EVENT_CANCELED",
    c"COI_VERSION_MISMATCH",
    c"COI_BAD_PORT",
    c"COI_AUTHENTICATION_FAILURE",
    c"COI_COMM_NOT_INITIALIZED",
    c"COI_INCORRECT_FORMAT",
];

/// The name of a result; "COI_ERROR" for what is none.
pub fn name(result: u32) -> &'static CStr {
    NAMES.get(result as usize).copied().unwrap_or(c"COI_ERROR")
}
