//! COI's results (COIResult_common.h), which both of its libraries give to programs: numbers and names.

use core::ffi::CStr;

/// The numbers, by their names without `COI_`.
#[expect(missing_docs, reason = "they are COI's, and documented there")]
pub mod code {
    pub const SUCCESS: u32 = 0;
    pub const ERROR: u32 = 1;
    pub const NOT_INITIALIZED: u32 = 2;
    pub const ALREADY_INITIALIZED: u32 = 3;
    pub const ALREADY_EXISTS: u32 = 4;
    pub const DOES_NOT_EXIST: u32 = 5;
    pub const INVALID_POINTER: u32 = 6;
    pub const OUT_OF_RANGE: u32 = 7;
    pub const NOT_SUPPORTED: u32 = 8;
    pub const TIME_OUT_REACHED: u32 = 9;
    pub const MEMORY_OVERLAP: u32 = 10;
    pub const ARGUMENT_MISMATCH: u32 = 11;
    pub const SIZE_MISMATCH: u32 = 12;
    pub const OUT_OF_MEMORY: u32 = 13;
    pub const INVALID_HANDLE: u32 = 14;
    pub const RETRY: u32 = 15;
    pub const RESOURCE_EXHAUSTED: u32 = 16;
    pub const ALREADY_LOCKED: u32 = 17;
    pub const NOT_LOCKED: u32 = 18;
    pub const MISSING_DEPENDENCY: u32 = 19;
    pub const UNDEFINED_SYMBOL: u32 = 20;
    pub const PENDING: u32 = 21;
    pub const BINARY_AND_HARDWARE_MISMATCH: u32 = 22;
    pub const PROCESS_DIED: u32 = 23;
    pub const INVALID_FILE: u32 = 24;
    pub const EVENT_CANCELED: u32 = 25;
    pub const VERSION_MISMATCH: u32 = 26;
    pub const BAD_PORT: u32 = 27;
    pub const AUTHENTICATION_FAILURE: u32 = 28;
    pub const COMM_NOT_INITIALIZED: u32 = 29;
    pub const INCORRECT_FORMAT: u32 = 30;
}

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
