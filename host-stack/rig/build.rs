//! Builds the programs that run on the card: static executables (`coi_daemon`, `snapify_iod`) and
//! `libcoi_device.a`, from `guest-agent`, for embedding and for sink programs to link with.
//!
//! They need other flags than the rest of the workspace (`crt-static`), hence a cargo of their own
//! with a target directory of its own. Crates that link sinks get the place of the archive and of
//! the headers through `links` metadata: `DEP_SNAPRIG_GUEST_LIBDIR`, `DEP_SNAPRIG_GUEST_INCLUDE`.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    let manifest_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let workspace = manifest_dir
        .join("../..")
        .canonicalize()
        .expect("the workspace is there");
    let target_dir = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("guest");
    build(&workspace, &target_dir);
    let out = target_dir.join(TARGET).join("release");
    println!("cargo:rustc-env=SNAPRIG_GUEST_BIN={}", out.display());
    println!("cargo:libdir={}", out.display());
    println!(
        "cargo:include={}",
        workspace.join("guest-agent/include").display()
    );
    for source in ["guest-agent", "emu/wire", "Cargo.lock"] {
        println!(
            "cargo:rerun-if-changed={}",
            workspace.join(source).display()
        );
    }
}

fn build(workspace: &Path, target_dir: &Path) {
    let mut cargo = Command::new(env::var_os("CARGO").expect("set by cargo"));
    // The outer cargo's choices (clippy as compiler, flags, profile, target directory) are not ours.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let ours = name.starts_with("CARGO") || name.starts_with("RUSTC") || name == "RUSTFLAGS";
        if ours && !["CARGO_HOME", "CARGO_NET_OFFLINE"].contains(&name.as_str()) {
            cargo.env_remove(name);
        }
    }
    let status = cargo
        .current_dir(workspace)
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static")
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
        .status()
        .expect("cargo runs");
    assert!(
        status.success(),
        "the programs for the card do not build: see above"
    );
}
