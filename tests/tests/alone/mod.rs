//! A `snaprig` that was installed alone, as one file, and a home.
#![allow(dead_code, reason = "each test program uses its part")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

const SNAPRIG: &str = env!("CARGO_BIN_EXE_snaprig-under-test");

/// A directory with the program and nothing else, and a home.
pub struct Scene(tempfile::TempDir);

impl Scene {
    pub fn new() -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        for directory in ["bin", "home"] {
            fs::create_dir(scene.0.path().join(directory)).unwrap();
        }
        // By a process of its own: a child that another test forks meanwhile would hold it open for writing, and what is open
        // for writing cannot be executed.
        let copied = Command::new("cp")
            .arg(SNAPRIG)
            .arg(scene.program())
            .status();
        assert!(copied.unwrap().success());
        scene
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn program(&self) -> PathBuf {
        self.path("bin/snaprig")
    }

    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_remove("XDG_CACHE_HOME")
            .env_remove("XDG_RUNTIME_DIR")
            .env("HOME", self.path("home"))
            .env("SNAPRIG_FABRICS", self.path("fabrics"))
            .stdin(Stdio::null());
        command
    }

    pub fn snaprig(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&self.program());
        command.args(arguments);
        command
    }

    /// A script that may mount something.
    pub fn script(&self, script: &str) -> Command {
        let mut command = self.command(Path::new("unshare"));
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", script]);
        command
            .env("SNAPRIG", self.program())
            .env("SCENE", self.0.path());
        command
    }

    pub fn cache(&self) -> PathBuf {
        self.path("home/.cache/snaprig/sdk")
    }
}

pub fn succeeded(output: Output) -> String {
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {err}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

pub fn root(command: &mut Command) -> PathBuf {
    let text = succeeded(command.output().unwrap());
    PathBuf::from(text.strip_suffix('\n').unwrap())
}
