//! What programs call: each function under its name and version.
//!
//! rustc tells the linker what a cdylib exports, and knows of no versions. A symbol that names its
//! own is exported all the same; only assembly can define one, which jumps to the function.

use std::arch::global_asm;

use crate::ffi::*;

macro_rules! export {
    ($function:ident, $versioned:literal) => {
        global_asm!(
            concat!(".pushsection .text.snaprig_", stringify!($function), ", \"ax\", @progbits"),
            concat!(".globl snaprig_", stringify!($function)),
            concat!(".type snaprig_", stringify!($function), ", @function"),
            concat!("snaprig_", stringify!($function), ": jmp {function}"),
            concat!(".size snaprig_", stringify!($function), ", . - snaprig_", stringify!($function)),
            concat!(".symver snaprig_", stringify!($function), ", ", $versioned),
            ".popsection",
            function = sym $function,
        );
    };
}

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
