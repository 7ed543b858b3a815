//! Gives the library the name and the version by which programs ask for it.

use std::{env, fmt::Write as _, fs, path::Path};

/// What it exports, by version; each builds on the one before.
const VERSIONS: [(&str, &[&str]); 2] = [
    (
        "SNAPRIG_CKPT_1.0",
        &[
            "snaprig_ckpt_register",
            "snaprig_ckpt_unregister",
            "snaprig_ckpt_is_supervised",
            "snaprig_ckpt_own_descriptor",
            "snaprig_ckpt_own_region",
            "snaprig_ckpt_directory",
            "snaprig_ckpt_variable",
            "snaprig_ckpt_refuse",
        ],
    ),
    (
        "SNAPRIG_CKPT_1.1",
        &[
            "snaprig_ckpt_participants",
            "snaprig_ckpt_publish",
            "snaprig_ckpt_lookup",
            "snaprig_ckpt_collect",
            "snaprig_ckpt_barrier",
        ],
    ),
];

fn main() {
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let write = |name, text| {
        let path = Path::new(&out).join(name);
        fs::write(&path, text).expect("cargo's directory can be written");
        path
    };
    let (mut exports, mut map) = (String::new(), String::new());
    let mut before = "";
    for (version, names) in VERSIONS {
        let _ = write!(map, "{version} {{ global: ");
        for name in names {
            let _ = writeln!(exports, "export!({name}, \"{name}@@{version}\");");
            let _ = write!(map, "{name}; ");
        }
        let _ = writeln!(map, "}} {before};");
        before = version;
    }
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
