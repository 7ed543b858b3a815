//! Builds the programs that run on the card: static executables (`coi_daemon`, `snapify_iod`), and
//! the runtime of offload processes, `libcoi_device.a` for static ones and `libcoi_device.so.0` for
//! dynamic ones; from `guest-agent`, for embedding and for sink programs to link with.
//!
//! They need other flags than the rest of the workspace (`crt-static`), hence a cargo of their own
//! with target directories of its own. Crates that link sinks get the place of the archive and of
//! the headers through `links` metadata: `DEP_SNAPRIG_GUEST_LIBDIR`, `DEP_SNAPRIG_GUEST_INCLUDE`.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// The name that programs ask for.
const LIBRARY: &str = "libcoi_device.so.0";

fn main() {
    let manifest_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let workspace = manifest_dir
        .join("../..")
        .canonicalize()
        .expect("the workspace is there");
    let target_dir = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("guest");
    build(&workspace, &target_dir, true);
    let out = target_dir.join(TARGET).join("release");
    let shared = target_dir.with_extension("shared");
    build(&workspace, &shared, false);
    let archive = shared.join(TARGET).join("release").join("libcoi_device.a");
    link(&workspace, &archive, &out.join(LIBRARY));
    println!("cargo:rustc-env=SNAPRIG_GUEST_BIN={}", out.display());
    println!("cargo:libdir={}", out.display());
    println!(
        "cargo:include={}",
        workspace.join("guest-agent/include").display()
    );
    for source in [
        "guest-agent",
        "emu/wire",
        "host-stack/offload-wire",
        "Cargo.lock",
    ] {
        println!(
            "cargo:rerun-if-changed={}",
            workspace.join(source).display()
        );
    }
}

/// Static programs and the archive for those, or the archive for the shared library.
fn build(workspace: &Path, target_dir: &Path, is_static: bool) {
    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    // The outer cargo's choices (clippy as compiler, flags, profile, target directory) are not ours.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let ours = name.starts_with("CARGO") || name.starts_with("RUSTC") || name == "RUSTFLAGS";
        if ours && !["CARGO_HOME", "CARGO_NET_OFFLINE"].contains(&name.as_str()) {
            cargo.env_remove(name);
        }
    }
    if is_static {
        cargo.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");
    }
    let status = cargo
        .current_dir(workspace)
        // They go to the card, and into snapshots, with everything that is in them.
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .args([
            "build",
            "--release",
            "--package",
            "snaprig-guest-agent",
            "--target",
            TARGET,
        ])
        .arg("--target-dir")
        .arg(target_dir)
        .args((!is_static).then_some("--lib"))
        .status()
        .expect("cargo runs");
    assert!(
        status.success(),
        "the programs for the card do not build: see above"
    );
}

/// The shared library, with a name and versions that rustc would not give it.
fn link(workspace: &Path, archive: &Path, library: &Path) {
    let map = workspace.join("guest-agent/libcoi_device.map");
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
