//! What checkpoints are compared with: CRIU, and DMTCP without compression.

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use super::wait_for;
use crate::AnyError;

/// Something else that checkpoints processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// criu(8).
    Criu,
    /// dmtcp_launch(1) and its coordinator.
    Dmtcp,
}

/// A program, running, or checkpointed and ended.
pub struct Running {
    peer: Peer,
    images: PathBuf,
    /// The program's number.
    pid: u32,
    child: Child,
    /// The coordinator's.
    port: String,
}

impl Peer {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Criu, Self::Dmtcp];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Criu => "CRIU",
            Self::Dmtcp => "DMTCP",
        }
    }

    /// Whether it is installed.
    pub fn is_here(self) -> bool {
        let program = match self {
            Self::Criu => "criu",
            Self::Dmtcp => "dmtcp_launch",
        };
        let path = env::var_os("PATH").unwrap_or_default();
        env::split_paths(&path).any(|directory| directory.join(program).is_file())
    }

    /// Starts a program that writes its checkpoint to a directory.
    pub fn launch(
        self,
        program: &Path,
        arguments: &[String],
        images: &Path,
    ) -> Result<Running, AnyError> {
        let mut command = match self {
            Self::Criu => Command::new(program),
            Self::Dmtcp => dmtcp("dmtcp_launch", images),
        };
        if self == Self::Dmtcp {
            command.arg("--no-gzip").arg(program);
        }
        let child = quiet(&mut command).args(arguments).spawn()?;
        let mut running = Running {
            peer: self,
            images: images.to_owned(),
            pid: child.id(),
            child,
            port: String::new(),
        };
        if self == Self::Dmtcp {
            running.find_coordinator()?;
        }
        Ok(running)
    }
}

impl Running {
    /// A checkpoint, which ends the program.
    pub fn checkpoint(&mut self) -> Result<(), AnyError> {
        match self.peer {
            Peer::Criu => {
                let pid = self.pid.to_string();
                run(Command::new("criu")
                    .args(["dump", "--shell-job", "-t", &pid, "-D"])
                    .arg(&self.images))?;
            }
            Peer::Dmtcp => {
                self.command("--bcheckpoint")?;
                self.command("--kill")?;
            }
        }
        self.child.wait()?;
        Ok(())
    }

    /// A restart. Returns when the program runs.
    pub fn restart(&mut self) -> Result<(), AnyError> {
        if self.peer == Peer::Criu {
            return run(Command::new("criu")
                .args(["restore", "--shell-job", "-d", "-D"])
                .arg(&self.images));
        }
        let mut command = dmtcp("dmtcp_restart", &self.images);
        for entry in fs::read_dir(&self.images)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "dmtcp")
            {
                command.arg(path);
            }
        }
        self.child = quiet(&mut command).spawn()?;
        self.find_coordinator()?;
        wait_for(|| {
            let status = self.command("--status").unwrap_or_default();
            status.contains("RUNNING=yes") && !status.contains("NUM_PEERS=0")
        })
    }

    /// Waits for the end of the program, which has been told to.
    pub fn end(mut self) -> Result<(), AnyError> {
        let process = PathBuf::from(format!("/proc/{}", self.pid));
        match self.peer {
            Peer::Criu => wait_for(|| !process.exists()),
            Peer::Dmtcp => {
                self.child.wait()?;
                let _ = self.command("--quit");
                Ok(())
            }
        }
    }

    fn find_coordinator(&mut self) -> Result<(), AnyError> {
        let path = port_file(&self.images);
        let read = || fs::read_to_string(&path).unwrap_or_default();
        wait_for(|| !read().trim().is_empty())?;
        self.port = read().trim().to_owned();
        Ok(fs::remove_file(&path)?)
    }

    fn command(&self, what: &str) -> Result<String, AnyError> {
        let mut command = Command::new("dmtcp_command");
        let output = command.args(["--coord-port", &self.port, what]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.peer == Peer::Dmtcp {
            let _ = self.command("--kill");
            let _ = self.command("--quit");
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn port_file(images: &Path) -> PathBuf {
    images.join("port")
}

/// A command with a coordinator of its own.
fn dmtcp(program: &str, images: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .args(["--new-coordinator", "--coord-port", "0", "--interval", "0"])
        .arg("--port-file")
        .arg(port_file(images))
        .arg("--ckptdir")
        .arg(images);
    command
}

/// Has no terminal, and is its own session's: what CRIU can restore.
fn quiet(command: &mut Command) -> &mut Command {
    // SAFETY: it makes one system call, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
}

fn run(command: &mut Command) -> Result<(), AnyError> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}
