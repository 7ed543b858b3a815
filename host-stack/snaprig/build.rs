//! Asks the libraries that programs are given for their build ids, by which a test finds their files. The crates of most of
//! them export symbols of C when they are linked, so that nothing in this crate may refer to them.

use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Each of those packages `links` itself; cargo passes on what its build script says.
    let mut builds: Vec<String> = env::vars()
        .filter_map(|(name, id)| {
            let package = name.strip_prefix("DEP_")?.strip_suffix("_BUILD_ID")?;
            Some(format!("lib{}={id}", package.to_lowercase()))
        })
        .collect();
    builds.sort();
    println!("cargo:rustc-env=SNAPRIG_BUILDS={}", builds.join(","));
}
