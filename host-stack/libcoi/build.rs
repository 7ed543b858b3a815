//! Gives the library the name and the versions by which programs ask for it.

use std::{env, fs, path::Path};

/// The versions of COI. Symbols say themselves of which they are (`src/exports.rs`).
const VERSIONS: &str = "COI_1.0 { };\nCOI_2.0 { } COI_1.0;\n";

fn main() {
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let map = Path::new(&out).join("versions.map");
    fs::write(&map, VERSIONS).expect("cargo's directory can be written");
    // Beside rustc's own script, which lld takes and ld does not.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    for argument in [
        "-soname,libcoi_host.so.0".to_owned(),
        format!("--version-script={}", map.display()),
        "--no-warnings".to_owned(),
        // It has threads, and handlers of fork(2).
        "-z,nodelete".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
