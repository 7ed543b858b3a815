//! Gives the library the name and the version by which programs ask for it.

use snaprig_versioned_build::Library;

/// What libscif exports, all under SCIF_0.0.
const NAMES: [&str; 22] = [
    "scif_open",
    "scif_close",
    "scif_bind",
    "scif_listen",
    "scif_connect",
    "scif_accept",
    "scif_send",
    "scif_recv",
    "scif_register",
    "scif_unregister",
    "scif_mmap",
    "scif_munmap",
    "scif_readfrom",
    "scif_writeto",
    "scif_vreadfrom",
    "scif_vwriteto",
    "scif_fence_mark",
    "scif_fence_wait",
    "scif_fence_signal",
    "scif_get_nodeIDs",
    "scif_get_fd",
    "scif_poll",
];

fn main() {
    let library = Library::new("libscif.so.0");
    library.exports(&[("SCIF_0.0", &NAMES)]);
    library.stays_loaded();
    // It goes to cards, whose files are in their memory.
    library.link("--strip-debug");
}
