//! The programs that every card starts with, as static Linux executables, and the runtime that hosts
//! bring along with dynamic offload programs.

/// Path of the COI daemon on a card.
pub const COI_DAEMON_PATH: &str = "/bin/coi_daemon";
/// Path of the Snapify-IO daemon on a card.
pub const SNAPIFY_IOD_PATH: &str = "/bin/snapify_iod";

/// The COI daemon.
pub static COI_DAEMON: &[u8] = include_bytes!(concat!(env!("SNAPRIG_GUEST_BIN"), "/coi_daemon"));
/// The Snapify-IO daemon.
pub static SNAPIFY_IOD: &[u8] = include_bytes!(concat!(env!("SNAPRIG_GUEST_BIN"), "/snapify_iod"));

/// The name that dynamic offload programs ask for.
pub const COI_DEVICE_NAME: &str = "libcoi_device.so.0";
/// That library. The archive for static ones is beside it where this was built
/// (`DEP_SNAPRIG_GUEST_LIBDIR`).
pub static COI_DEVICE: &[u8] =
    include_bytes!(concat!(env!("SNAPRIG_GUEST_BIN"), "/libcoi_device.so.0"));
