//! Builds the libraries that programs are given, for embedding.

use std::{env, fs, path::Path};

const PACKAGES: [&str; 7] = [
    "snaprig-verbs",
    "snaprig-libscif",
    "snaprig-libcoi",
    "snaprig-libsnapify",
    "snaprig-libmicmgmt",
    "snaprig-libckpt-plugin",
    "snaprig-libckpt-ib",
];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let packages = PACKAGES.map(|package| ["--package", package]);
    let arguments = [&["--lib"], packages.as_flattened()].concat();
    let built = snaprig_nested_build::build("carried", &arguments, |_| ());
    let lines = PACKAGES.map(|package| {
        let stem = format!("lib{}", package.replace('-', "_"));
        let library = built.take(&format!("{stem}.so"));
        format!("    ({stem:?}, include_bytes!({library:?})),\n")
    });
    let out = env::var_os("OUT_DIR").expect("set by cargo");
    let table = format!("&[\n{}]\n", lines.concat());
    fs::write(Path::new(&out).join("libraries.rs"), table)
        .expect("cargo's directory can be written");
}
