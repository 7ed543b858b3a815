//! The parent of a tree: launches or restarts it, answers commands, and ends with the exit status of its first process.
//!
//! ```text
//! client                      supervisor (socket DIR/control)
//!   | --- Request (a line) --->  |  freeze, describe, write, rename, let go (or kill)
//!   | <-- Reply (a line) ------- |
//! ```

use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use libc::pid_t;
use procfs::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use snaprig_ckpt_image::{
    image::{Header, Options as WriteOptions, Reader},
    store::{Checkpoint, Manifest, Member, Store},
};

use crate::{
    dump::{self, Before, Named},
    error::{Error, Result},
    freeze::{Calls, Frozen},
    restart::{self, Clocks},
    trace,
};

/// Longest command line that a client sends, and how long it may take to.
const REQUEST_MAX: u64 = 4096;
const ASKING: Duration = Duration::from_secs(5);
/// How often a tree is looked at again that is where it cannot be saved for a moment, and how long it runs in between.
const TRIES_MAX: u32 = 200;
const BETWEEN_TRIES: Duration = Duration::from_millis(2);
/// The socket's name in the directory.
const CONTROL: &str = "control";
/// What the tree is called in a checkpoint.
const MEMBER: &str = "tree";
/// Buffers of 4 MiB that are filled before the disk has to keep up.
const BUFFERS: usize = 64;

/// How long from one checkpoint to the next; none: only those that are asked for.
pub type Interval = Option<Duration>;

/// What a supervisor is asked for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Request {
    /// A checkpoint; and then the tree runs on, or ends.
    Dump {
        /// It ends.
        kill: bool,
    },
    /// Who is there.
    Status,
}

/// What it answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// A checkpoint is complete.
    Dumped(Dumped),
    /// Who is there.
    Status(Status),
    /// It failed, and the tree runs on.
    Failed(String),
}

/// A tree.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its processes.
    pub processes: Vec<Running>,
    /// Its last checkpoint, if there was any.
    pub last: Option<u64>,
}

/// A process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Running {
    /// Its number.
    pub pid: pid_t,
    /// How many threads it has.
    pub threads: usize,
    /// Its name.
    pub name: String,
}

/// A checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dumped {
    /// Its number.
    pub round: u64,
    /// Bytes of it.
    pub bytes: u64,
    /// How long the tree stood still.
    pub pause: Duration,
    /// How long it took in all.
    pub took: Duration,
}

/// Launches a program, and supervises it to its end; its exit status.
pub fn launch(directory: &Path, program: &[OsString], interval: Interval) -> Result<i32> {
    let [name, arguments @ ..] = program else {
        return Err(Error::io("no program", io::ErrorKind::InvalidInput));
    };
    let listener = listen(directory)?;
    let signals = Signals::block()?;
    let mut command = Command::new(name);
    command.args(arguments);
    let mask = signals.before;
    // SAFETY: it calls only an async-signal-safe function.
    unsafe {
        command.pre_exec(move || {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
            Ok(())
        });
    }
    let child = command.spawn();
    let child = child.map_err(|source| Error::io(name.to_string_lossy().into_owned(), source))?;
    let command = program
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    Supervisor::new(
        directory,
        listener,
        signals,
        child.id() as pid_t,
        command,
        interval,
    )?
    .run()
}

/// Restarts the newest checkpoint of a directory, and supervises it to its end; its exit status. The calling process
/// has one thread.
pub fn restart(directory: &Path, interval: Interval) -> Result<i32> {
    let checkpoint = newest(directory)?;
    let chain = checkpoint.chain(MEMBER)?;
    let path = chain.last().ok_or_else(|| nothing(directory))?;
    let file =
        fs::File::open(path).map_err(|source| Error::io(path.display().to_string(), source))?;
    let mut reader = Reader::new(file, path.display().to_string())?;
    let tree = restart::read_tree(&mut reader)?;
    let command = checkpoint.manifest().command.clone();
    // SAFETY: no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    let clocks = Clocks {
        monotonic: tree.monotonic_nanos,
        boottime: tree.boottime_nanos,
    };
    restart::run(restart::place(&tree), clocks, || {
        let supervise = || -> Result<i32> {
            let listener = listen(directory)?;
            let signals = Signals::block()?;
            restart::restore(&tree, &mut reader, !is_root)?;
            Supervisor::new(directory, listener, signals, tree.root, command, interval)?.run()
        };
        supervise().unwrap_or_else(|error| {
            eprintln!("snaprig: {}", restart::chain(&error));
            1
        })
    })
}

/// The newest checkpoint that is sound; what is wrong with newer ones is said.
fn newest(directory: &Path) -> Result<Checkpoint> {
    if !directory.is_dir() {
        return Err(nothing(directory));
    }
    let latest = Store::open(directory)?.latest()?;
    for error in &latest.damaged {
        eprintln!(
            "snaprig: a newer checkpoint is passed over: {}",
            restart::chain(error)
        );
    }
    latest.checkpoint.ok_or_else(|| nothing(directory))
}

fn nothing(directory: &Path) -> Error {
    Error::Missing {
        what: format!("there is no complete checkpoint in {}", directory.display()),
    }
}

/// Asks the supervisor of a directory.
pub fn ask(directory: &Path, request: Request) -> Result<Reply> {
    let path = directory.join(CONTROL);
    let failed = |source| Error::io(format!("no supervisor at {}", path.display()), source);
    let mut stream = UnixStream::connect(&path).map_err(failed)?;
    let mut line = serde_json::to_vec(&request).map_err(|e| failed(e.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(failed)?;
    let mut reply = String::new();
    BufReader::new(stream)
        .read_line(&mut reply)
        .map_err(failed)?;
    serde_json::from_str(&reply).map_err(|e| failed(e.into()))
}

fn listen(directory: &Path) -> Result<UnixListener> {
    let failed = |source| Error::io(directory.display().to_string(), source);
    fs::create_dir_all(directory).map_err(failed)?;
    let path = directory.join(CONTROL);
    // A dead supervisor's name.
    if UnixStream::connect(&path).is_err() {
        let _ = fs::remove_file(&path);
    }
    UnixListener::bind(&path).map_err(failed)
}

/// SIGCHLD and what ends a supervisor, as a descriptor.
struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    fn block() -> Result<Self> {
        // SAFETY: the sets are valid to write to and read; the result is checked.
        unsafe {
            let (mut set, mut before) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
            for signal in [
                libc::SIGCHLD,
                libc::SIGTERM,
                libc::SIGHUP,
                libc::SIGINT,
                libc::SIGQUIT,
            ] {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
                fd if fd < 0 => Err(Error::io("signalfd", io::Error::last_os_error())),
                fd => Ok(Self {
                    fd: OwnedFd::from_raw_fd(fd),
                    before,
                }),
            }
        }
    }

    /// The next one that has come.
    fn next(&self) -> Option<i32> {
        // SAFETY: plain integers, for which zero is a value; read into as far as it reaches.
        unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let bytes = size_of_val(&info);
            let read = libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), bytes);
            (read == bytes as isize).then_some(info.ssi_signo as i32)
        }
    }
}

struct Supervisor<'a> {
    directory: &'a Path,
    store: Store,
    listener: UnixListener,
    signals: Signals,
    root: pid_t,
    command: Vec<String>,
    named: Named,
    calls: Calls,
    status: i32,
    last: Option<u64>,
    interval: Interval,
    /// When the next checkpoint is due.
    due: Option<Instant>,
}

impl<'a> Supervisor<'a> {
    fn new(
        directory: &'a Path,
        listener: UnixListener,
        signals: Signals,
        root: pid_t,
        command: Vec<String>,
        interval: Interval,
    ) -> Result<Self> {
        // Who loses its parent is this one's child.
        // SAFETY: no memory is involved.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        let store = Store::open(directory)?;
        Ok(Self {
            directory,
            last: store.rounds()?.last().copied(),
            store,
            listener,
            signals,
            root,
            command,
            named: Named::default(),
            calls: Calls::default(),
            status: 0,
            interval,
            due: interval.map(|interval| Instant::now() + interval),
        })
    }

    fn run(mut self) -> Result<i32> {
        while self.reap() {
            if self.due.is_some_and(|due| due <= Instant::now()) {
                if let Err(error) = self.dump(false) {
                    eprintln!(
                        "snaprig: no checkpoint was taken: {}",
                        restart::chain(&error)
                    );
                }
                self.due = self.interval.map(|interval| Instant::now() + interval);
            }
            if self.wait()?
                && let Ok((stream, _)) = self.listener.accept()
            {
                self.answer(stream);
            }
            while let Some(signal) = self.signals.next() {
                if [libc::SIGTERM, libc::SIGHUP].contains(&signal) {
                    // SAFETY: no memory is involved; it is a child that has not been waited for, or nobody.
                    unsafe { libc::kill(self.root, signal) };
                }
            }
        }
        let _ = fs::remove_file(self.directory.join(CONTROL));
        Ok(self.status)
    }

    /// Waits for something to do; whether somebody asks.
    fn wait(&self) -> Result<bool> {
        let (listener, signals) = (self.listener.as_fd(), self.signals.fd.as_fd());
        let mut ready = [
            PollFd::new(&listener, PollFlags::IN),
            PollFd::new(&signals, PollFlags::IN),
        ];
        let left = self
            .due
            .map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut ready, left.as_ref()) {
            Ok(_) => Ok(!ready[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(Error::io("poll", error)),
        }
    }

    /// Waits for children that have ended; whether there are others.
    fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: `status` is valid to write to.
            let ended = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if ended > 0 && libc::WIFSTOPPED(status) {
                trace::let_go_late(ended);
                continue;
            }
            if ended == self.root {
                self.status = restart::exit_code(status);
            }
            if ended <= 0 {
                return ended == 0;
            }
        }
    }

    fn answer(&mut self, stream: UnixStream) {
        let mut line = String::new();
        let mut from = BufReader::new(io::Read::take(&stream, REQUEST_MAX));
        let _ = stream.set_read_timeout(Some(ASKING));
        if from.read_line(&mut line).is_err() {
            return;
        }
        let reply = match serde_json::from_str(&line) {
            Ok(request) => self.reply(request),
            Err(error) => Reply::Failed(format!("not a request: {error}")),
        };
        if let Ok(mut reply) = serde_json::to_vec(&reply) {
            reply.push(b'\n');
            // Who asked may be gone.
            let _ = (&stream).write_all(&reply);
        }
    }

    fn reply(&mut self, request: Request) -> Reply {
        let replied = match request {
            Request::Dump { kill } => self.dump(kill).map(Reply::Dumped),
            Request::Status => self.look().map(Reply::Status),
        };
        replied.unwrap_or_else(|error| Reply::Failed(restart::chain(&error)))
    }

    fn look(&self) -> Result<Status> {
        // SAFETY: no preconditions.
        let pids = crate::freeze::descendants(unsafe { libc::getpid() })?;
        let stats = pids
            .into_iter()
            .filter_map(|pid| Process::new(pid).ok()?.stat().ok());
        let running = stats.map(|stat| Running {
            pid: stat.pid,
            threads: stat.num_threads as usize,
            name: stat.comm,
        });
        Ok(Status {
            processes: running.collect(),
            last: self.last,
        })
    }

    /// A checkpoint. Whatever goes wrong, the tree runs on.
    fn dump(&mut self, kill: bool) -> Result<Dumped> {
        let begun = Instant::now();
        // SAFETY: no preconditions.
        let me = unsafe { libc::getpid() };
        let number = self.last.map_or(1, |last| last + 1);
        let round = self.store.begin(number, 0)?;
        let before = Before::look(me)?;
        let mut tries = 0;
        let (stopped, frozen, described) = loop {
            let stopped = Instant::now();
            let mut frozen = Frozen::freeze(me, &mut self.calls)?;
            match dump::describe(&mut frozen, self.root, &before, &mut self.named) {
                Ok(described) => break (stopped, frozen, described),
                // The tree runs on for a moment, and gets past what is in the way.
                Err(Error::NotNow(_)) if tries < TRIES_MAX => frozen.let_go()?,
                Err(error) => return Err(error),
            }
            tries += 1;
            thread::sleep(BETWEEN_TRIES);
        };
        let header = Header {
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            page_bytes: 4096,
            round: number,
            ..Header::default()
        };
        let options = WriteOptions {
            buffers: BUFFERS,
            ..WriteOptions::new(MEMBER)
        };
        let mut writer = round.joined().image(MEMBER, &header, options)?;
        dump::write(&described, &frozen, &mut writer)?;
        // All bytes are here: who goes on need not wait for the disk.
        let mut pause = None;
        let held = match kill {
            true => Some((frozen, described)),
            false => {
                // What was taken out of connections is put back first.
                drop(described);
                frozen.let_go()?;
                pause = Some(stopped.elapsed());
                None
            }
        };
        let (_, summary) = writer.finish()?;
        let member = Member::new(MEMBER, &summary);
        round.commit(Manifest::now(self.command.clone(), None, vec![member]))?;
        self.last = Some(number);
        if let Some((frozen, mut described)) = held {
            described.abandon();
            // Copies of descriptors would keep connections until they are closed.
            frozen.kill();
            drop(described);
            self.status = 128 + libc::SIGKILL;
        }
        Ok(Dumped {
            round: number,
            bytes: summary.totals.file_bytes,
            pause: pause.unwrap_or_else(|| stopped.elapsed()),
            took: begun.elapsed(),
        })
    }
}
