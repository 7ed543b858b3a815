//! Snapify from outside (paper section 5, command-line tools): a socket in the host process, on
//! which commands come and reports go, as lines of JSON. The application knows nothing of it.

use std::{
    fs,
    io::{self, Read},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use snaprig_coi::{Engine, Process};
use snaprig_peers::{Exchange, lines};
use snaprig_scif::checkpoint::{self, RigDescriptor};

use crate::{Snapify, SnapifyError, Step, StepReport};

/// Most bytes of a command, and of a report.
const COMMAND_MAX: usize = 64 << 10;
const REPORT_MAX: usize = 16 << 20;

/// What a host process is told to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Wait until this many run functions have been sent, and hold further ones.
    BreakAtRunFunction(u64),
    /// snapify_pause, for a snapshot in this directory.
    Pause(PathBuf),
    /// snapify_capture; true ends the process.
    Capture(bool),
    /// snapify_wait.
    Wait,
    /// snapify_resume.
    Resume,
    /// snapify_restore on the card with this node.
    Restore(u16),
    /// Swap out to this directory.
    SwapOut(PathBuf),
    /// Swap in on the card with this node.
    SwapIn(u16),
    /// Migrate to the card with this node, by way of this directory.
    Migrate(PathBuf, u16),
    /// Whenever a step begins from now on, say which on this Unix socket, as a line of JSON, and
    /// wait for a byte before it is done: whoever listens there may do harm meanwhile.
    TellSteps(PathBuf),
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Bytes that were saved or brought back.
    pub bytes: u64,
    /// The steps that ended.
    pub steps: Vec<StepReport>,
    /// What went wrong.
    pub error: Option<String>,
}

impl Report {
    /// The time of all steps together.
    pub fn elapsed(&self) -> Duration {
        self.steps.iter().filter_map(|step| step.elapsed).sum()
    }
}

fn socket(rig: &Path, pid: u32) -> PathBuf {
    rig.join(format!("host-{pid}.sock"))
}

/// The service, until it is dropped: then the command under way, if there is one, is waited for, so
/// that a snapshot that is being made is either finished or taken away.
pub struct Service {
    listening: Arc<Listening>,
    snapify: Snapify,
    at_work: Arc<Mutex<()>>,
}

impl Drop for Service {
    fn drop(&mut self) {
        // It goes with the rig's directory at the latest.
        let _ = fs::remove_file(&*lock(&self.listening.path));
        // The service's thread ends with the process, and must not be at work then.
        std::mem::forget(lock(&self.at_work));
        // A capture goes on in the background; how it ends is of no interest any more.
        let _ = self.snapify.wait(None);
    }
}

/// Where commands come in. It leads to the rig: in a program that was restarted it is to be made again.
struct Listening {
    rig: PathBuf,
    path: Mutex<PathBuf>,
    listener: Mutex<Arc<Listener>>,
}

struct Listener {
    _leads: RigDescriptor,
    socket: UnixListener,
}

impl Listener {
    /// In the directory of the rig as it is now.
    fn bind(rig: &Path) -> io::Result<(PathBuf, Self)> {
        let path = socket(&checkpoint::place(rig), std::process::id());
        let socket = UnixListener::bind(&path)?;
        let _leads = RigDescriptor::new(&socket);
        Ok((path, Self { _leads, socket }))
    }
}

/// The services that there are.
static SERVICES: Mutex<Vec<Weak<Listening>>> = Mutex::new(Vec::new());

/// The rig is another one: commands come in there.
pub(crate) fn serve_again() -> io::Result<()> {
    let services: Vec<_> = lock(&SERVICES).iter().filter_map(Weak::upgrade).collect();
    for listening in services {
        let (path, listener) = Listener::bind(&listening.rig)?;
        *lock(&listening.path) = path;
        *lock(&listening.listener) = Arc::new(listener);
    }
    Ok(())
}

impl Listening {
    /// The next client; none: there will be no more.
    fn accept(&self) -> Option<UnixStream> {
        loop {
            let listener = lock(&self.listener).clone();
            match listener.socket.accept() {
                Ok((client, _)) => return Some(client),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // If the program was restarted, there is another one, or will be.
                    checkpoint::settled();
                    if Arc::ptr_eq(&listener, &lock(&self.listener)) {
                        return None;
                    }
                }
            }
        }
    }
}

/// Serves commands for `process` in this host process.
pub fn serve(rig: &Path, process: &Process) -> io::Result<Service> {
    let (path, listener) = Listener::bind(rig)?;
    let listening = Arc::new(Listening {
        rig: rig.to_owned(),
        path: Mutex::new(path),
        listener: Mutex::new(Arc::new(listener)),
    });
    let mut services = lock(&SERVICES);
    services.retain(|service| service.strong_count() > 0);
    services.push(Arc::downgrade(&listening));
    drop(services);
    let steps: Arc<Mutex<Vec<StepReport>>> = Arc::default();
    let listener_of_steps: Arc<Mutex<Option<UnixStream>>> = Arc::default();
    let (seen, told) = (steps.clone(), listener_of_steps.clone());
    let observer = Arc::new(move |report: &StepReport| {
        if report.elapsed.is_some() {
            lock(&seen).push(*report);
            return;
        }
        let mut told = lock(&told);
        if told
            .as_ref()
            .is_some_and(|stream| tell(stream, report.step).is_err())
        {
            // It does not listen any more.
            *told = None;
        }
    });
    let snapify = Snapify::new(process, observer);
    let at_work = Arc::new(Mutex::new(()));
    let work = Work {
        rig: rig.to_owned(),
        process: process.clone(),
        snapify: snapify.clone(),
        steps,
        listener_of_steps,
        at_work: at_work.clone(),
    };
    let clients = listening.clone();
    std::thread::spawn(move || {
        while let Some(client) = clients.accept() {
            let _leads = RigDescriptor::new(&client);
            // A client that breaks off has its own reasons.
            let _ = work.converse(&client);
        }
    });
    Ok(Service {
        listening,
        snapify,
        at_work,
    })
}

/// What the service's thread has.
struct Work {
    rig: PathBuf,
    process: Process,
    snapify: Snapify,
    steps: Arc<Mutex<Vec<StepReport>>>,
    /// Who is told of steps that begin.
    listener_of_steps: Arc<Mutex<Option<UnixStream>>>,
    /// Held while a command is under way.
    at_work: Arc<Mutex<()>>,
}

impl Work {
    fn converse(&self, client: &UnixStream) -> io::Result<()> {
        let mut commands = lines::Receiver::new(client, COMMAND_MAX);
        while let Some(line) = commands.next_line()? {
            let _at_work = lock(&self.at_work);
            let result = match lines::parse(&line) {
                Ok(Command::TellSteps(path)) => UnixStream::connect(path)
                    .map(|stream| *lock(&self.listener_of_steps) = Some(stream))
                    .map(|()| 0)
                    .map_err(|error| error.to_string()),
                Ok(command) => {
                    run(command, &self.rig, &self.process, &self.snapify).map_err(|e| e.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            let steps = std::mem::take(&mut *lock(&self.steps));
            let report = match result {
                Ok(bytes) => Report {
                    bytes,
                    steps,
                    error: None,
                },
                Err(error) => Report {
                    bytes: 0,
                    steps,
                    error: Some(error),
                },
            };
            lines::send(&mut &*client, &report)?;
        }
        Ok(())
    }
}

/// Tells of a step that begins, and waits until it may.
fn tell(mut stream: &UnixStream, step: Step) -> io::Result<()> {
    lines::send(&mut stream, &step)?;
    stream.read_exact(&mut [0])
}

fn run(
    command: Command,
    rig: &Path,
    process: &Process,
    snapify: &Snapify,
) -> Result<u64, SnapifyError> {
    let engine = |node: u16| Engine::get(rig, node.saturating_sub(1));
    match command {
        // It concerns the service, not the process.
        Command::TellSteps(_) => {}
        Command::BreakAtRunFunction(count) => process.break_at(count, None)?,
        Command::Pause(snapshot) => return snapify.pause(&snapshot),
        Command::Capture(terminate) => snapify.capture(terminate)?,
        Command::Wait => return snapify.wait(None),
        Command::Resume => snapify.resume()?,
        Command::Restore(node) => return snapify.restore(&engine(node)?),
        Command::SwapOut(snapshot) => return snapify.swap_out(&snapshot),
        Command::SwapIn(node) => return snapify.swap_in(&engine(node)?),
        Command::Migrate(snapshot, node) => return snapify.migrate(&snapshot, &engine(node)?),
    }
    Ok(0)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command failed, or the host process is gone.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The connection.
    #[error("the host process cannot be reached: {0}")]
    Connection(#[from] io::Error),
    /// The command.
    #[error("{0}")]
    Failed(String),
    /// It did not end in time.
    #[error("the host process did not answer in time")]
    TimedOut,
}

/// A connection to a host process.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// To the host process `pid` of the rig in this directory.
    pub fn connect(rig: &Path, pid: u32) -> Result<Self, ControlError> {
        let stream = UnixStream::connect(socket(rig, pid))?;
        Ok(Self { stream })
    }

    /// Runs one command, which takes no longer than this. After a timeout the connection is of no more use.
    pub fn run(&mut self, command: &Command, timeout: Duration) -> Result<Report, ControlError> {
        let mut exchange = Exchange::new(&self.stream, timeout);
        let answered = lines::send(&mut exchange, command)
            .and_then(|()| lines::receive::<Report>(exchange, REPORT_MAX));
        let report = answered.map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => ControlError::TimedOut,
            _ => error.into(),
        })?;
        match report.error {
            Some(error) => Err(ControlError::Failed(error)),
            None => Ok(report),
        }
    }
}
