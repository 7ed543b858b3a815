//! The parent of a tree: launches or restarts it, answers commands, and ends with the exit status of its first process.
//!
//! ```text
//! client                      supervisor (socket DIR/control)
//!   | --- Request (a line) --->  |  freeze, describe, write, rename, let go (or kill)
//!   | <-- Reply (a line) ------- |
//! ```

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use libc::pid_t;
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use snaprig_ckpt_image::image::{Header, Options as WriteOptions, Reader, Writer};

use crate::{
    dump::{self, Before, Named},
    error::{Error, Result},
    freeze::Frozen,
    restart::{self, Clocks},
};

/// Longest command line that a client sends.
const REQUEST_MAX: u64 = 4096;

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
    /// Processes and threads of the tree.
    Status {
        /// Numbers of the processes.
        processes: Vec<pid_t>,
    },
    /// It failed, and the tree runs on.
    Failed(String),
}

/// A checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dumped {
    /// Its image.
    pub image: PathBuf,
    /// Bytes of it.
    pub bytes: u64,
    /// How long the tree stood still.
    pub pause: Duration,
    /// How long it took in all.
    pub took: Duration,
}

/// Launches a program, and supervises it to its end; its exit status.
pub fn launch(directory: &Path, program: &[std::ffi::OsString]) -> Result<i32> {
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
    Supervisor::new(directory, listener, signals, child.id() as pid_t).run()
}

/// Restarts what is in a directory, and supervises it to its end; its exit status. The calling process has one thread.
pub fn restart(directory: &Path) -> Result<i32> {
    let path = directory.join("image");
    let file =
        fs::File::open(&path).map_err(|source| Error::io(path.display().to_string(), source))?;
    let mut reader = Reader::new(file, path.display().to_string())?;
    let tree = restart::read_tree(&mut reader)?;
    // SAFETY: no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    let clocks = Clocks {
        monotonic: tree.monotonic_nanos,
        boottime: tree.boottime_nanos,
    };
    restart::run(tree.supervisor, clocks, || {
        let mut supervise = || -> Result<i32> {
            let listener = listen(directory)?;
            let signals = Signals::block()?;
            restart::restore(&tree, &mut reader, !is_root)?;
            Supervisor::new(directory, listener, signals, tree.root).run()
        };
        supervise().unwrap_or_else(|error| {
            eprintln!("snaprig: {}", restart::chain(&error));
            1
        })
    })
}

/// Asks the supervisor of a directory.
pub fn ask(directory: &Path, request: Request) -> Result<Reply> {
    let path = directory.join("control");
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
    let path = directory.join("control");
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
    listener: UnixListener,
    signals: Signals,
    root: pid_t,
    named: Named,
    status: i32,
    round: u64,
}

impl<'a> Supervisor<'a> {
    fn new(directory: &'a Path, listener: UnixListener, signals: Signals, root: pid_t) -> Self {
        // Who loses its parent is this one's child.
        // SAFETY: no memory is involved.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        Self {
            directory,
            listener,
            signals,
            root,
            named: Named::default(),
            status: 0,
            round: 0,
        }
    }

    fn run(mut self) -> Result<i32> {
        while self.reap() {
            let (listener, signals) = (self.listener.as_fd(), self.signals.fd.as_fd());
            let mut ready = [
                PollFd::new(&listener, PollFlags::IN),
                PollFd::new(&signals, PollFlags::IN),
            ];
            match poll(&mut ready, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::io("poll", error)),
            }
            let asked = !ready[0].revents().is_empty();
            while let Some(signal) = self.signals.next() {
                if [libc::SIGTERM, libc::SIGHUP].contains(&signal) {
                    // SAFETY: no memory is involved; it is a child that has not been waited for, or nobody.
                    unsafe { libc::kill(self.root, signal) };
                }
            }
            if asked && let Ok((stream, _)) = self.listener.accept() {
                self.answer(stream);
            }
        }
        let _ = fs::remove_file(self.directory.join("control"));
        Ok(self.status)
    }

    /// Waits for children that have ended; whether there are others.
    fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: `status` is valid to write to.
            let ended = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
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
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
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
            // SAFETY: no preconditions.
            Request::Status => crate::freeze::descendants(unsafe { libc::getpid() })
                .map(|processes| Reply::Status { processes }),
        };
        replied.unwrap_or_else(|error| Reply::Failed(restart::chain(&error)))
    }

    fn dump(&mut self, kill: bool) -> Result<Dumped> {
        let begun = Instant::now();
        // SAFETY: no preconditions.
        let me = unsafe { libc::getpid() };
        let before = Before::look(me)?;
        let stopped = Instant::now();
        let mut frozen = Frozen::freeze(me)?;
        let mut described = dump::describe(&mut frozen, self.root, &before, &mut self.named)?;
        let (image, temporary) = (
            self.directory.join("image"),
            self.directory.join("image.tmp"),
        );
        let failed = |source| Error::io(temporary.display().to_string(), source);
        let file = fs::File::create(&temporary).map_err(failed)?;
        let header = Header {
            page_bytes: 4096,
            round: self.round,
            ..Header::default()
        };
        let options = WriteOptions::new(temporary.display().to_string());
        let mut writer = Writer::new(file, &header, options)?;
        dump::write(&described, &frozen, &mut writer)?;
        let (file, summary) = writer.finish()?;
        file.sync_all().map_err(failed)?;
        fs::rename(&temporary, &image).map_err(failed)?;
        self.round += 1;
        match kill {
            true => {
                described.abandon();
                // Copies of descriptors would keep connections until they are closed.
                frozen.kill();
                drop(described);
                self.status = 128 + libc::SIGKILL;
            }
            false => {
                // What was taken out of connections is put back first.
                drop(described);
                frozen.let_go()?;
            }
        }
        Ok(Dumped {
            image,
            bytes: summary.totals.file_bytes,
            pause: stopped.elapsed(),
            took: begun.elapsed(),
        })
    }
}
