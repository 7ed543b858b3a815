//! What programs call: each function under its name and version, as `libibverbs.map` has them.

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
        snaprig_versioned::export!($function, $versioned);
    };
}

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
