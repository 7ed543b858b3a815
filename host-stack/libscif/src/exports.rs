//! What programs call: each function under its name and version.

use snaprig_versioned::export;

use crate::ffi::*;

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
