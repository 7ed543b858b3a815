//! The host process of the offload application: started, controlled, waited for, up to a deadline.

use std::{
    io::{BufRead, BufReader},
    os::{fd::AsFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec};
use snaprig_fixtures::kmeans;
use snaprig_snapify::control::{self, Client, Command as Control};

use crate::AnyError;

/// When everything must be over.
#[derive(Clone, Copy)]
pub struct Deadline(Instant);

impl Deadline {
    /// So long from now.
    pub fn after(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    /// What is left.
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Waits until there is something to read, or for a process to end (pidfd_open(2)).
    pub fn wait_for(self, what: &str, fd: impl AsFd) -> Result<(), AnyError> {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let left = self.left();
        let timeout = Timespec {
            tv_sec: left.as_secs().try_into()?,
            tv_nsec: left.subsec_nanos().into(),
        };
        if rustix::event::poll(&mut fds, Some(&timeout))? == 0 {
            return Err(Self::passed(what));
        }
        Ok(())
    }

    fn passed(what: &str) -> AnyError {
        format!("{what} did not end in time; give it more with --timeout SECONDS").into()
    }
}

/// The host process's control service, up to the deadline.
pub struct Controlled {
    client: Client,
    deadline: Deadline,
}

impl Controlled {
    /// Of this host process.
    pub fn connect(rig: &Path, host: &HostProcess, deadline: Deadline) -> Result<Self, AnyError> {
        let client = Client::connect(rig, host.pid())?;
        Ok(Self { client, deadline })
    }

    /// Runs one command; `step` is for errors.
    pub fn run(&mut self, step: &str, command: &Control) -> Result<control::Report, AnyError> {
        match self.client.run(command, self.deadline.left()) {
            Ok(report) => Ok(report),
            Err(control::ControlError::TimedOut) => Err(Deadline::passed(step)),
            Err(error) => Err(format!("{step}: {error}").into()),
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
    ) -> Result<Self, AnyError> {
        let child = Command::new(std::env::current_exe()?)
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
            return Err(format!("the host process did not start: {status}").into());
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
    pub fn wait(&mut self, deadline: Deadline) -> Result<ExitStatus, AnyError> {
        let pidfd = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::PidfdFlags::empty(),
        )?;
        deadline.wait_for("finish", &pidfd)?;
        Ok(self.child.wait()?)
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        // It may have ended already; there is nobody to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
