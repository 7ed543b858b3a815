//! Gives the library the name and the version by which programs ask for it.

use std::{env, fmt::Write as _, fs, path::Path};

/// What it exports, all under SNAPRIG_CKPT_1.0.
const NAMES: [&str; 8] = [
    "snaprig_ckpt_register",
    "snaprig_ckpt_unregister",
    "snaprig_ckpt_is_supervised",
    "snaprig_ckpt_own_descriptor",
    "snaprig_ckpt_own_region",
    "snaprig_ckpt_directory",
    "snaprig_ckpt_variable",
    "snaprig_ckpt_refuse",
];

fn main() {
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let write = |name, text| {
        let path = Path::new(&out).join(name);
        fs::write(&path, text).expect("cargo's directory can be written");
        path
    };
    let (mut exports, mut map) = (String::new(), String::from("SNAPRIG_CKPT_1.0 { global: "));
    for name in NAMES {
        let _ = writeln!(exports, "export!({name}, \"{name}@@SNAPRIG_CKPT_1.0\");");
        let _ = write!(map, "{name}; ");
    }
    map += "};\n";
    write("exports.rs", exports);
    let map = write("versions.map", map);
    for argument in [
        "-soname,libsnaprig_ckpt_plugin.so.0".to_owned(),
        // It has a thread, and handlers of fork(2).
        "-z,nodelete".to_owned(),
        format!("--version-script={}", map.display()),
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
    // Beside rustc's own script, which lld takes and ld does not.
    println!("cargo:rustc-cdylib-link-arg=-fuse-ld=lld");
    println!("cargo:rerun-if-changed=build.rs");
}
