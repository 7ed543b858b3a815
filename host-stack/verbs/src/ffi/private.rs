//! What rdma-core's own providers bind to when they are loaded, and never call here.
//!
//! perftest, UCX and libfabric are linked with libmlx5 and libefa, which must load; with no device
//! of theirs in sight, none of these functions is ever called. One that is says so.

use std::ffi::c_int;

/// Of providers: whether devices may vanish under their users.
#[unsafe(no_mangle)]
pub static mut verbs_allow_disassociate_destroy: bool = false;

macro_rules! refuse {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)]
        pub extern "C" fn $name() -> c_int {
            eprintln!(concat!(
                "libibverbs (snaprig): ", stringify!($name),
                " is for rdma-core's providers, and this is not rdma-core"
            ));
            libc::EOPNOTSUPP
        })*
    };
}

snaprig_verbs_abi::private_functions!(refuse);

/// Of providers of old, which called it as they were loaded.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_register_driver() {}
