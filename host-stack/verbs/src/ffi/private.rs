//! What rdma-core's own providers bind to when they are loaded, and never call here.
//!
//! perftest, UCX and libfabric are linked with libmlx5 and libefa, which must load; with no device
//! of theirs in sight, all they do is to say that they are there. A function that is called for
//! more says what it is.

use std::ffi::c_int;

/// Of providers of old, which called it as they were loaded.
pub extern "C" fn ibv_register_driver() {}

macro_rules! private {
    (@one ibv_query_gid_type) => {
        // Programs call it: it is among the queries of a device.
    };
    (@one verbs_register_driver_34) => {
        pub extern "C" fn verbs_register_driver_34() {}
    };
    (@one __verbs_log) => {
        pub extern "C" fn __verbs_log() {}
    };
    (@one $name:ident) => {
        pub extern "C" fn $name() -> c_int {
            eprintln!(concat!(
                "libibverbs (snaprig): ",
                stringify!($name),
                " is for rdma-core's providers, and this is not rdma-core"
            ));
            libc::EOPNOTSUPP
        }
    };
    ($($name:ident)*) => {
        $(private!(@one $name);)*
    };
}

snaprig_verbs_abi::private_functions!(private);
