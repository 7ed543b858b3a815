//! Programs of the benchmarks, compiled where they run.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use snaprig_rig::sdk::Sdk;

use crate::AnyError;

/// Has gcc make a program of these sources, with the headers and libraries of the offload stack.
pub fn gcc(sdk: &Sdk, sources: &[PathBuf], to: &Path, more: &[&str]) -> Result<(), AnyError> {
    let flag = |option: &str, directory: &Path| format!("{option}{}", directory.display());
    let output = Command::new("gcc")
        .args(["-O2", "-o"])
        .arg(to)
        .args(sources)
        .args([flag("-I", sdk.include()), flag("-L", sdk.lib())])
        .args(more)
        .output()
        .map_err(|error| format!("gcc: {error}; ci/setup installs it"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("gcc: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}
