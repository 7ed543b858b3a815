//! A file system that all nodes have, for `--strategy shared`: GlusterFS with four servers, as the paper has four of PVFS2. All of it
//! is of the benchmark's own, in namespaces of its own, on the loopback interface.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::super::super::snapify_io::servers::find;
use crate::AnyError;

const SCRIPT: &str = include_str!("shared.sh");

/// Programs that it takes.
const NEEDED: [&str; 9] = [
    "glusterd",
    "gluster",
    "glusterfs",
    "ip",
    "mountpoint",
    "nsenter",
    "setpriv",
    "umount",
    "unshare",
];

/// A file system that is mounted. It is unmounted when this is dropped.
pub struct Shared {
    holder: Child,
    scratch: tempfile::TempDir,
}

impl Shared {
    /// Mounts it; its servers have their files below this directory. An error says what is missing.
    pub fn mount(directory: &Path) -> Result<Self, AnyError> {
        for program in NEEDED {
            find(program)?;
        }
        if !rustix::process::geteuid().is_root() {
            return Err("root mounts file systems".into());
        }
        let scratch = tempfile::tempdir_in(directory)?;
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "--net", "sh", "-c", SCRIPT, "sh"]);
        holder.arg(scratch.path());
        holder.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shared = Self {
            holder: holder.stderr(Stdio::null()).spawn()?,
            scratch,
        };
        let said = shared.holder.stdout.take().ok_or("a pipe")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        match line.trim() {
            "ready" => Ok(shared),
            _ => Err("GlusterFS does not start".into()),
        }
    }

    /// Where it is, for commands of [`Self::command`].
    pub fn directory(&self) -> PathBuf {
        self.scratch.path().join("mounted")
    }

    /// A program that has it mounted.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string()]);
        command.args(["--mount", "--net"]).arg(program);
        command
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Its end of input has it clean up.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
