//! What there is on this machine of what strategies need, and what is left out where there is not.

use std::{path::Path, process::Command};

use tempfile::TempDir;

use super::{super::super::snapify_io::servers::find, job::Strategy, shared::Shared};
use crate::AnyError;

/// The paper's network for what goes by files from node to node.
const RATE: &str = "1gbit";

/// The machine.
pub struct Here {
    /// What jobs have for each node's link.
    pub link: Option<&'static str>,
    /// The file system of `--strategy shared`.
    pub shared: Option<Shared>,
    has_sshd: bool,
    /// How chunks go, as `--transport` has it.
    pub transport: &'static str,
    /// Where jobs and files of strategies are, on a disk.
    scratch: TempDir,
    pub left_out: Vec<String>,
}

impl Here {
    /// Looks what there is. An error: there is nothing without it.
    pub fn new() -> Result<Self, AnyError> {
        for program in ["mpicc", "mpirun"] {
            find(program)?;
        }
        let scratch = tempfile::tempdir()?;
        let mut left_out = Vec::new();
        let mut or_not = |what: &str, missing: Option<String>| {
            left_out.extend(missing.map(|why| format!("{what} is left out: {why}")));
        };
        let sshd = find("sshd").and_then(|_| find("scp"));
        let has_sshd = sshd.is_ok();
        or_not("strategy local", sshd.err().map(|error| error.to_string()));
        let limits = can_limit();
        let link = limits.is_ok().then_some(RATE);
        let why = limits.err().map(|error| error.to_string());
        or_not("a link of 1 Gbit/s", why);
        let (shared, why) = match Shared::mount(scratch.path()) {
            Ok(shared) => (Some(shared), None),
            Err(error) => (None, Some(error.to_string())),
        };
        or_not("strategy shared", why);
        Ok(Self {
            link,
            shared,
            has_sshd,
            transport: "rdma",
            scratch,
            left_out,
        })
    }

    /// Chunks go over sockets: the program knows no RDMA.
    pub fn without_rdma(&mut self, why: &AnyError) {
        self.transport = "tcp";
        let why = why.to_string();
        let why = why.lines().next().unwrap_or_default();
        self.left_out
            .push(format!("RDMA is left out, chunks go over TCP: {why}"));
    }

    /// Whether it can be measured.
    pub fn has(&self, strategy: Strategy) -> bool {
        match strategy {
            Strategy::Ppmr | Strategy::PreCopy | Strategy::PostCopy | Strategy::RdmaLocal => true,
            Strategy::Local => self.has_sshd,
            Strategy::Shared => self.shared.is_some(),
        }
    }

    /// A new directory, for a job.
    pub fn directory(&self) -> Result<TempDir, AnyError> {
        Ok(tempfile::tempdir_in(self.scratch.path())?)
    }

    /// Where programs are compiled to.
    pub fn programs(&self) -> &Path {
        self.scratch.path()
    }
}

/// Whether `snaprig nodes --link` works here.
fn can_limit() -> Result<(), AnyError> {
    for program in ["ip", "tc"] {
        find(program)?;
    }
    let mut nodes = Command::new(std::env::current_exe()?);
    nodes.args(["nodes", "1", "--link", RATE, "--", "true"]);
    let output = nodes.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
    }
}
