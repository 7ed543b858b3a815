//! What programs call: each function under its name and version, as `libibverbs.map` has them.
//!
//! rustc tells the linker what a cdylib exports, and knows of no versions. A symbol that names its
//! own is exported all the same; only assembly can define one, which jumps to the function.

use std::arch::global_asm;

use super::{
    address::*, cq::*, device::*, event::*, fork::*, kern::*, memory::*, private::*, qp::*, srq::*,
};

macro_rules! export {
    // The one that is data: a C `bool`. A program may have a copy of it, by its size.
    (verbs_allow_disassociate_destroy, $versioned:literal) => {
        global_asm!(
            ".pushsection .bss.snaprig_disassociate, \"aw\", @nobits",
            ".globl snaprig_disassociate",
            ".type snaprig_disassociate, @object",
            ".size snaprig_disassociate, 1",
            "snaprig_disassociate: .zero 1",
            concat!(".symver snaprig_disassociate, ", $versioned),
            ".popsection",
        );
    };
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
