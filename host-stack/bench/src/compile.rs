//! Programs of the benchmarks, compiled where they run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use snaprig_rig::sdk::Sdk;
use tempfile::TempDir;

use crate::AnyError;

/// A directory with programs and their sources, and what they are made with: headers and libraries of the offload stack.
pub struct Programs {
    directory: TempDir,
    sdk: Sdk,
}

impl Programs {
    /// None yet.
    pub fn new() -> Result<Self, AnyError> {
        Ok(Self {
            directory: tempfile::tempdir()?,
            sdk: Sdk::of(&std::env::current_exe()?)?,
        })
    }

    /// Where something of them is.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Adds a source.
    pub fn write(&self, name: &str, text: &str) -> Result<(), AnyError> {
        let path = self.path(name);
        fs::create_dir_all(path.parent().ok_or("a path in a directory")?)?;
        Ok(fs::write(path, text)?)
    }

    /// Has gcc make a program of sources.
    pub fn gcc(&self, to: &Path, sources: &[PathBuf], more: &[&str]) -> Result<(), AnyError> {
        let flag = |option: &str, directory: &Path| format!("{option}{}", directory.display());
        let output = Command::new("gcc")
            .args(["-O2", "-o"])
            .arg(to)
            .args(sources)
            .args([flag("-I", self.sdk.include()), flag("-L", self.sdk.lib())])
            .args(more)
            .output()
            .map_err(|error| format!("gcc: {error}; ci/setup installs it"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("gcc: {}", String::from_utf8_lossy(&output.stderr)).into()),
        }
    }

    /// A command that runs a program on a rig.
    pub fn command(&self, program: &Path, rig: &Path) -> Result<Command, AnyError> {
        let mut command = Command::new(program);
        command.envs(self.sdk.environment(rig)?);
        Ok(command)
    }
}
