//! Asks the libraries that programs are given for their build ids, by which a test finds their files. The crates of most of
//! them export symbols of C when they are linked, so that nothing in this crate may refer to them.

use std::env;

/// Libraries by the stems of their files, and the names by which cargo passes on what their build scripts say (`links`).
const LIBRARIES: [(&str, &str); 4] = [
    ("libsnaprig_verbs", "SNAPRIG_VERBS"),
    ("libsnaprig_libscif", "SNAPRIG_LIBSCIF"),
    ("libsnaprig_libcoi", "SNAPRIG_LIBCOI"),
    ("libsnaprig_libckpt_plugin", "SNAPRIG_LIBCKPT_PLUGIN"),
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let builds = LIBRARIES.iter().filter_map(|(stem, links)| {
        let id = env::var(format!("DEP_{links}_BUILD_ID")).ok()?;
        Some(format!("{stem}={id}"))
    });
    println!(
        "cargo:rustc-env=SNAPRIG_BUILDS={}",
        builds.collect::<Vec<_>>().join(",")
    );
}
