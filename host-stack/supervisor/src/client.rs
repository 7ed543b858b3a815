//! A program under a supervisor, for who starts both from a program: the supervisor is a process of its own, a `snaprig`
//! program that is told what to do ([`crate::process`]).

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use libc::pid_t;
use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open,
        pidfd_send_signal, waitid,
    },
};
use snaprig_tracee::{
    freeze::{descendants, is_descendant},
    trace::has_ended,
};

use crate::{
    Dumped, Mode, Reply, Request, Status, ask,
    process::{PROCESS, Task, What},
};

/// How long a supervisor may take until it listens; a restart reads a checkpoint before.
const LISTENING_MAX: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Why there is no checkpoint, or no program.
#[derive(Debug, thiserror::Error)]
pub enum CkptError {
    /// The supervisor is no process, or does not listen.
    #[error("supervisor of {directory}: {source}")]
    Start {
        /// Where the checkpoints are.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has ended, and has said why on standard error.
    #[error("supervisor of {directory}: it ended ({status}) before it could be asked for anything")]
    Ended {
        /// Where the checkpoints are.
        directory: PathBuf,
        /// How.
        status: ExitStatus,
    },
    /// It could not be asked.
    #[error(transparent)]
    Ask(#[from] crate::Error),
    /// It took no checkpoint, and the program runs on.
    #[error("no checkpoint was taken, and the program runs on: {0}")]
    Refused(String),
}

/// A program under a supervisor. When it is dropped, both end.
#[derive(Debug)]
pub struct Ckpt {
    supervisor: Child,
    directory: PathBuf,
}

/// What is to be supervised, and how.
#[derive(Clone, Debug)]
#[must_use]
pub struct CkptBuilder {
    exe: PathBuf,
    directory: PathBuf,
    mode: Mode,
    log: Option<PathBuf>,
}

impl CkptBuilder {
    /// The `snaprig` program, which is the supervisor (default: [`snaprig_sdk::program::default`]).
    pub fn exe(mut self, exe: impl Into<PathBuf>) -> Self {
        self.exe = exe.into();
        self
    }

    /// What a checkpoint has, and when that is copied (default: all, while the program stands still).
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// A file for what the supervisor has to say, and for standard error of the program (default: this process's).
    pub fn log(mut self, file: impl Into<PathBuf>) -> Self {
        self.log = Some(file.into());
        self
    }

    /// Launches a program: its name, and its arguments.
    pub fn launch<S: Into<String>>(
        self,
        words: impl IntoIterator<Item = S>,
    ) -> Result<Ckpt, CkptError> {
        let words = words.into_iter().map(Into::into).collect();
        self.start(What::Launch { words })
    }

    /// Restarts it from this checkpoint, or from the newest complete one.
    pub fn restart(self, round: Option<u64>) -> Result<Ckpt, CkptError> {
        self.start(What::Restart { round })
    }

    fn start(self, what: What) -> Result<Ckpt, CkptError> {
        let directory = self.directory.clone();
        let failed = |source| CkptError::Start {
            directory: directory.clone(),
            source,
        };
        let task = Task {
            directory: self.directory,
            mode: self.mode,
            what,
        };
        let task = serde_json::to_string(&task).map_err(|error| failed(error.into()))?;
        let exe = snaprig_sdk::program::find(&self.exe).map_err(failed)?;
        let mut command = Command::new(exe);
        command.arg0(snaprig_sdk::program::NAME);
        if let Some(log) = &self.log {
            command.stderr(File::create(log).map_err(failed)?);
        }
        let supervisor = command.args([PROCESS, &task]).spawn().map_err(failed)?;
        let mut ckpt = Ckpt {
            supervisor,
            directory: directory.clone(),
        };
        let deadline = Instant::now() + LISTENING_MAX;
        loop {
            let Err(why) = ckpt.status() else {
                return Ok(ckpt);
            };
            if let Some(status) = ckpt.supervisor.try_wait().map_err(failed)? {
                // A program may be that short.
                return if status.success() {
                    Ok(ckpt)
                } else {
                    Err(CkptError::Ended {
                        directory: directory.clone(),
                        status,
                    })
                };
            }
            if Instant::now() >= deadline {
                return Err(why);
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }
}

impl Ckpt {
    /// A program whose checkpoints are in a directory.
    pub fn builder(directory: impl Into<PathBuf>) -> CkptBuilder {
        CkptBuilder {
            exe: snaprig_sdk::program::default(),
            directory: directory.into(),
            mode: Mode::default(),
            log: None,
        }
    }

    /// Launches a program: its name, and its arguments.
    pub fn launch<S: Into<String>>(
        directory: impl Into<PathBuf>,
        words: impl IntoIterator<Item = S>,
    ) -> Result<Self, CkptError> {
        Self::builder(directory).launch(words)
    }

    /// Restarts a program from its newest complete checkpoint.
    pub fn restart(directory: impl Into<PathBuf>) -> Result<Self, CkptError> {
        Self::builder(directory).restart(None)
    }

    /// Where its checkpoints are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes a checkpoint; the program runs on.
    pub fn dump(&self) -> Result<Dumped, CkptError> {
        self.ask_for_dump(false)
    }

    /// Takes a checkpoint with which the program ends.
    pub fn dump_and_kill(&self) -> Result<Dumped, CkptError> {
        self.ask_for_dump(true)
    }

    /// Its processes, and its last checkpoint.
    pub fn status(&self) -> Result<Status, CkptError> {
        match ask(&self.directory, Request::Status)? {
            Reply::Status(status) => Ok(status),
            other => Err(CkptError::Refused(format!("{other:?}"))),
        }
    }

    /// Waits until the program ends: its status.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.supervisor.wait()
    }

    /// Kills the program and its supervisor, as a machine that loses power does (SIGKILL).
    pub fn kill(&mut self) -> io::Result<()> {
        let program = match self.supervisor.try_wait()? {
            None => self.kill_program(),
            Some(_) => Ok(()),
        };
        self.supervisor.kill()?;
        self.supervisor.wait()?;
        program
    }

    /// Kills all that is below the supervisor. While that stands still it ends with none of them, and who loses a parent is its
    /// child (PR_SET_CHILD_SUBREAPER): none escapes.
    fn kill_program(&self) -> io::Result<()> {
        let supervisor = Pid::from_child(&self.supervisor);
        kill_process(supervisor, Signal::STOP)?;
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(supervisor), options)?;
        loop {
            let below = descendants(supervisor.as_raw_pid()).map_err(io::Error::other)?;
            let below = below.into_iter().filter(|pid| !has_ended(*pid));
            let killed = below.filter_map(|pid| killed(pid, supervisor));
            let killed: Vec<OwnedFd> = killed.collect();
            if killed.is_empty() {
                return Ok(());
            }
            for program in killed {
                poll(&mut [PollFd::new(&program, PollFlags::IN)], None)?;
            }
        }
    }

    fn ask_for_dump(&self, kill: bool) -> Result<Dumped, CkptError> {
        match ask(&self.directory, Request::Dump { kill, full: false })? {
            Reply::Dumped(dumped) => Ok(dumped),
            Reply::Failed(why) => Err(CkptError::Refused(why)),
            other => Err(CkptError::Refused(format!("{other:?}"))),
        }
    }
}

/// Kills a process if it is below another one, and may be killed. Opened before it is looked at, so that it is the one that is
/// killed.
fn killed(pid: pid_t, above: Pid) -> Option<OwnedFd> {
    let program = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let is_below = is_descendant(pid, above.as_raw_pid());
    (is_below && pidfd_send_signal(&program, Signal::KILL).is_ok()).then_some(program)
}

impl Drop for Ckpt {
    fn drop(&mut self) {
        // It may have ended: then there is nothing to end.
        let _ = self.kill();
    }
}
