//! The C interface of libibverbs 44 (rdma-core in Debian 12), for a library that takes its place:
//! types, constants and the calls that are pure functions.
//!
//! | module | what it holds |
//! |---|---|
//! | [`address`] | GIDs, global routes, address handles, rates |
//! | [`context`] | devices, contexts and their tables of functions, asynchronous events |
//! | [`cq`] | completions, completion queues and channels |
//! | [`device`] | what a device and a port can do |
//! | [`flow`] | flow steering and counters |
//! | [`memory`] | protection and thread domains, regions, windows, device memory |
//! | [`qp`] | queue pairs, their attributes and states |
//! | [`srq`] | shared receive queues, XRC domains |
//! | [`strings`] | the functions that name or convert values |
//! | [`symbols`] | what the library exports; `libibverbs.map` has the versions |
//! | [`work`] | work requests |
//! | [`wq`] | work queues and their indirection tables |
//!
//! All names are those of `infiniband/verbs.h`. What C calls an enum is an integer here, since a
//! caller may pass any value; a flag has the type of the field or argument that carries it. C's
//! anonymous structs and unions are named after the struct and the member they are in.
//!
//! All bits zero is a valid value of every type.

// The manual pages of libibverbs say what fields and values mean.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

/// Enums of C: a type of that name, and its values. Without `type`, C has no name for it. Each
/// invocation also lists its names and values in `CONSTANTS`.
macro_rules! constants {
    ($($(#[$doc:meta])* $(type $name:ident =)? $repr:ty { $($value:ident = $is:expr,)* })*) => {
        $($(#[$doc])* $(pub type $name = $repr;)? $(pub const $value: $repr = $is;)*)*

        pub(crate) const CONSTANTS: &[(&str, i64)] = &[$($((stringify!($value), $value as i64),)*)*];
    };
}

pub mod address;
pub mod context;
pub mod cq;
pub mod device;
pub mod flow;
pub mod memory;
pub mod qp;
pub mod srq;
pub mod strings;
pub mod symbols;
pub mod work;
pub mod wq;

pub use address::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use flow::*;
pub use memory::*;
pub use qp::*;
pub use srq::*;
pub use strings::*;
pub use work::*;
pub use wq::*;

/// In network byte order.
pub type __be16 = u16;
/// In network byte order.
pub type __be32 = u32;
/// In network byte order.
pub type __be64 = u64;

/// Every integer constant of this crate: its name and value.
// Each module has its own; all are also seen through the globs above.
#[allow(unused_qualifications)]
pub fn constants() -> impl Iterator<Item = (&'static str, i64)> {
    [
        address::CONSTANTS,
        context::CONSTANTS,
        cq::CONSTANTS,
        device::CONSTANTS,
        flow::CONSTANTS,
        memory::CONSTANTS,
        qp::CONSTANTS,
        srq::CONSTANTS,
        work::CONSTANTS,
        wq::CONSTANTS,
    ]
    .into_iter()
    .flatten()
    .copied()
}
