//! Builds the vDSO of a card's programs (`vdso/vdso.c`), which the card kernel embeds, and says which tests this machine
//! can run.

use std::{env, path::PathBuf, process::Command};

fn main() {
    snaprig_test_needs::tell();
    println!("cargo:rerun-if-changed=vdso");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo")).join("vdso.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-std=gnu11", "-fPIC"])
        // It has no startup, no stack protector's secret, no thread and no vector registers.
        .args([
            "-ffreestanding",
            "-fno-stack-protector",
            "-fcf-protection=none",
        ])
        .args(["-mno-sse", "-fasynchronous-unwind-tables", "-fno-builtin"])
        .args([
            "-shared",
            "-nostdlib",
            "-Wl,-Tvdso/vdso.lds",
            "-Wl,--eh-frame-hdr",
        ])
        .args(["-Wl,-soname,linux-vdso.so.1", "-Wl,--hash-style=both"])
        .args([
            "-Wl,-Bsymbolic",
            "-Wl,--build-id=none",
            "-Wl,--no-undefined",
        ])
        .args(["-Wl,-z,noexecstack", "-Wl,-z,max-page-size=4096"])
        .args(["vdso/vdso.c", "-o"])
        .arg(&out);
    let status = gcc.status();
    let status = status.unwrap_or_else(|error| panic!("{gcc:?}: {error}; ci/setup installs it"));
    assert!(status.success(), "{gcc:?}: {status}");
}
