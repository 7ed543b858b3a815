//! The host process of the offload application: started, controlled, waited for, up to a deadline.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use snaprig_fixtures::kmeans;
use snaprig_snapify::control::{self, Client, Command as Control};

use crate::{Error, deadline::Deadline};

/// The host process's control service, up to the deadline.
pub struct Controlled {
    client: Client,
    deadline: Deadline,
}

impl Controlled {
    /// Of the host process of this number.
    pub fn connect(rig: &Path, host: u32, deadline: Deadline) -> Result<Self, Error> {
        let client = Client::connect(rig, host)?;
        Ok(Self { client, deadline })
    }

    /// Runs one command; `step` is for errors.
    pub fn run(&mut self, step: &str, command: &Control) -> Result<control::Report, Error> {
        match self.client.run(command, self.deadline.left()) {
            Ok(report) => Ok(report),
            Err(control::ControlError::TimedOut) => Err(Deadline::passed(step)),
            Err(source) => Err(Error::Command {
                step: step.into(),
                source,
            }),
        }
    }
}

/// The host process of the offload application. Killed if it is still there when dropped.
pub struct HostProcess {
    child: Child,
}

impl HostProcess {
    /// Starts it, with this standard error, and waits until it says that it can be controlled.
    pub fn start(
        rig: &Path,
        workload: &kmeans::Workload,
        result: &Path,
        log: Stdio,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let command = Command::new(std::env::current_exe()?);
        Self::begin(command, rig, workload, result, log, deadline)
    }

    /// The same, under a supervisor that keeps checkpoints in a directory.
    pub fn supervised(
        checkpoints: &Path,
        rig: &Path,
        workload: &kmeans::Workload,
        result: &Path,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let own = std::env::current_exe()?;
        let mut command = Command::new(&own);
        command.args(["ckpt", "launch", "--dir"]).arg(checkpoints);
        command.arg("--").arg(&own);
        Self::begin(command, rig, workload, result, Stdio::inherit(), deadline)
    }

    /// Restarts it from the newest checkpoint of a directory, on this rig; waits until it goes on.
    pub fn restart(checkpoints: &Path, rig: &Path, deadline: Deadline) -> Result<Self, Error> {
        let child = Command::new(std::env::current_exe()?)
            .args(["ckpt", "restart"])
            .arg(checkpoints)
            .env("SNAPRIG_RIG", rig)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let mut host = Self { child };
        // Its supervisor answers as soon as the program goes on.
        while snaprig_supervisor::ask(checkpoints, snaprig_supervisor::Request::Status).is_err() {
            if let Some(status) = host.child.try_wait()? {
                return match status.success() {
                    true => Ok(host),
                    false => Err(Error::Restart),
                };
            }
            if deadline.left().is_zero() {
                return Err(Deadline::passed("restart"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(host)
    }

    fn begin(
        mut command: Command,
        rig: &Path,
        workload: &kmeans::Workload,
        result: &Path,
        log: Stdio,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let child = command
            .args(["workload", "kmeans"])
            .args(workload.arguments())
            .arg("--result")
            .arg(result)
            .env("SNAPRIG_RIG", rig)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            // It ends when the rig does, and has things to put in order before.
            .process_group(0)
            .spawn()?;
        let mut host = Self { child };
        let stdout = host.child.stdout.take().expect("it is piped");
        deadline.wait_for("start", &stdout)?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.trim() != kmeans::READY {
            let status = host.child.wait()?;
            return Err(Error::HostStart(status));
        }
        Ok(host)
    }

    /// Its id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it; it must still be waited for.
    pub fn kill(&mut self) -> std::io::Result<()> {
        self.child.kill()
    }

    /// Its exit status.
    pub fn wait(&mut self, deadline: Deadline) -> Result<ExitStatus, Error> {
        // It may have been seen to end: then there is no process of this number any more.
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        let pidfd = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        deadline.wait_for("finish", &pidfd)?;
        Ok(self.child.wait()?)
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        // It may have ended already; there is nobody to tell.
        for pid in tree(self.child.id()) {
            // SAFETY: kill(2) takes numbers alone; it is a child that has not been waited for, or a descendant of one.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        let _ = self.child.wait();
    }
}

/// A process, and all that it has made and that have not lost their parents, children before their parents.
pub fn tree(root: u32) -> Vec<i32> {
    let mut found = vec![root as i32];
    let mut at = 0;
    while let Some(pid) = found.get(at) {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        for task in tasks.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(task.path().join("children"));
            let children = children.unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse::<i32>().ok()),
            );
        }
        at += 1;
    }
    found.reverse();
    found
}
