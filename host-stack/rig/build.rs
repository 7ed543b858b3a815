//! Builds the programs that run on the card: static executables (`coi_daemon`, `snapify_iod`), and
//! the runtime of offload processes, `libcoi_device.a` for static ones and `libcoi_device.so.0` for
//! dynamic ones; from `guest-agent`, for embedding and for sink programs to link with.
//!
//! Static ones need other flags than the rest of the workspace (`crt-static`), so the two archives are of two builds.
//! Crates that link sinks get the place of the archive and of the headers through `links` metadata:
//! `DEP_SNAPRIG_GUEST_LIBDIR`, `DEP_SNAPRIG_GUEST_INCLUDE`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use snaprig_nested_build::{build, workspace};

const PACKAGE: [&str; 2] = ["--package", "snaprig-guest-agent"];
const ARCHIVE: &str = "libcoi_device.a";
/// The name that programs ask for.
const LIBRARY: &str = "libcoi_device.so.0";
const MAP: &str = "guest-agent/libcoi_device.map";
const INCLUDE: &str = "guest-agent/include";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let guest = build("guest", &PACKAGE, |cargo| {
        cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    });
    for program in ["coi_daemon", "snapify_iod"] {
        guest.take(program);
    }
    let directory = directory_of(&guest.take(ARCHIVE));
    let arguments = [&PACKAGE[..], &["--lib"]].concat();
    let dynamic = build("guest-dynamic", &arguments, |_| ());
    link(&dynamic.take(ARCHIVE), &directory.join(LIBRARY));
    println!("cargo:rustc-env=SNAPRIG_GUEST_BIN={}", directory.display());
    println!("cargo:libdir={}", directory.display());
    println!("cargo:include={}", workspace().join(INCLUDE).display());
    for source in [MAP, INCLUDE] {
        println!(
            "cargo:rerun-if-changed={}",
            workspace().join(source).display()
        );
    }
}

fn directory_of(file: &Path) -> PathBuf {
    file.parent().expect("it is in a directory").to_path_buf()
}

/// The shared library, with a name and versions that rustc would not give it.
fn link(archive: &Path, library: &Path) {
    let map = workspace().join(MAP);
    let status = Command::new("gcc")
        .args(["-shared", "-s", "-static-libgcc", "-o"])
        .arg(library)
        .arg(format!("-Wl,-soname,{LIBRARY}"))
        .arg(format!("-Wl,--version-script={}", map.display()))
        .args(["-Wl,--gc-sections", "-Wl,-z,relro,-z,now", "-Wl,-z,defs"])
        .arg("-Wl,--whole-archive")
        .arg(archive)
        .arg("-Wl,--no-whole-archive")
        .args(["-lpthread", "-ldl", "-lm", "-lc"])
        .status()
        .unwrap_or_else(|error| panic!("gcc: {error}; ci/setup installs what is needed"));
    assert!(status.success(), "{LIBRARY} does not link: see above");
}
