//! Gives the library the name and the version by which programs ask for it.

use std::{env, fmt::Write as _, fs, path::Path};

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
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let write = |name, text| {
        let path = Path::new(&out).join(name);
        fs::write(&path, text).expect("cargo's directory can be written");
        path
    };
    let (mut exports, mut map) = (String::new(), String::from("SCIF_0.0 { global: "));
    for name in NAMES {
        let _ = writeln!(exports, "export!({name}, \"{name}@@SCIF_0.0\");");
        let _ = write!(map, "{name}; ");
    }
    map += "};\n";
    write("exports.rs", exports);
    let map = write("libscif.map", map);
    link("-soname,libscif.so.0");
    // It has a thread, and handlers of fork(2).
    link("-z,nodelete");
    // It goes to cards, whose files are in their memory.
    link("--strip-debug");
    // Beside rustc's own script, which lld takes and ld does not.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    link(&format!("--version-script={}", map.display()));
}

/// An argument for the linker.
fn link(argument: &str) {
    println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
}
