//! The parent of a tree: launches or restarts it, answers commands, and ends with the exit status of its first process.

mod checkpoint;
mod control;
mod signals;

use std::{
    ffi::OsString,
    fs, io,
    os::{
        fd::AsFd,
        unix::{net::UnixListener, process::CommandExt},
    },
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use libc::pid_t;
use procfs::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snaprig_ckpt_image::{
    image::Reader,
    store::{Checkpoint, Manifest, Store},
};

pub use self::control::{Dumped, Reply, Request, Running, Status, ask};
use self::{
    checkpoint::{Known, Stopped},
    control::{CONTROL, listen},
    signals::Signals,
};
use crate::{
    error::{Error, Result},
    plugins::Plugins,
    restart::{self, Clocks},
    steps::{self, Step},
    trace,
};

/// What the tree is called in a checkpoint.
const MEMBER: &str = "tree";

/// How long from one checkpoint to the next; none: only those that are asked for.
pub type Interval = Option<Duration>;

/// Launches a program, and supervises it to its end; its exit status.
pub fn launch(directory: &Path, program: &[OsString], interval: Interval) -> Result<i32> {
    let [name, arguments @ ..] = program else {
        return Err(Error::io("no program", io::ErrorKind::InvalidInput));
    };
    let listener = listen(directory)?;
    let plugins = Plugins::listen(directory)?;
    let signals = Signals::block()?;
    let mut command = Command::new(name);
    let (variable, socket) = plugins.variable();
    command.args(arguments).env(variable, socket);
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
        plugins,
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
    restart::run(restart::place(&tree), clocks, |complete| {
        let supervise = || -> Result<i32> {
            let listener = listen(directory)?;
            let mut plugins = Plugins::listen(directory)?;
            let signals = Signals::block()?;
            let channels = restart::restore(&tree, &mut reader, !is_root, complete)?;
            if let Err(error) = plugins.restart(channels, checkpoint.path()) {
                end_all();
                return Err(error);
            }
            let root = tree.root;
            Supervisor::new(
                directory, listener, plugins, signals, root, command, interval,
            )?
            .run()
        };
        supervise().unwrap_or_else(|error| {
            eprintln!("snaprig: {}", restart::chain(&error));
            1
        })
    })
}

/// Ends all processes of a tree that has been restarted, and is not to go on.
fn end_all() {
    // SAFETY: no preconditions.
    let me = unsafe { libc::getpid() };
    let lives = |pid: &pid_t| {
        let stat = Process::new(*pid).and_then(|process| process.stat());
        stat.is_ok_and(|stat| stat.state != 'Z')
    };
    // Those that are being made while others end are seen the next time.
    while let Ok(pids) = crate::freeze::descendants(me)
        && pids.iter().any(lives)
    {
        for pid in pids {
            // SAFETY: no memory is involved; in this namespace they are all of this tree.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
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

struct Supervisor<'a> {
    directory: &'a Path,
    store: Store,
    listener: UnixListener,
    plugins: Plugins,
    signals: Signals,
    root: pid_t,
    command: Vec<String>,
    known: Known,
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
        plugins: Plugins,
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
            plugins,
            signals,
            root,
            command,
            known: Known::default(),
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
                control::answer(&stream, |request| self.reply(request));
            }
            self.plugins.go_on();
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
        let plugins = self.plugins.as_fd();
        let mut ready = [
            PollFd::new(&listener, PollFlags::IN),
            PollFd::new(&signals, PollFlags::IN),
            PollFd::new(&plugins, PollFlags::IN),
        ];
        let left = self
            .due
            .into_iter()
            .chain(self.plugins.deadline())
            .min()
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
        steps::reached(Step::Begun);
        let number = self.last.map_or(1, |last| last + 1);
        let round = self.store.begin(number, 0)?;
        let (known, plugins) = (&mut self.known, &mut self.plugins);
        let stopped = Stopped::stop(self.root, known, plugins, round.joined())?;
        let saved = stopped.save(round.joined(), MEMBER)?;
        let (held, pause) = match kill {
            true => (Some(stopped), None),
            false => (None, Some(stopped.let_go()?)),
        };
        let (member, bytes) = saved.finish()?;
        steps::reached(Step::Finished);
        round.commit(Manifest::now(self.command.clone(), None, vec![member]))?;
        steps::reached(Step::Committed);
        self.last = Some(number);
        let ended = held.map(|held| {
            self.status = 128 + libc::SIGKILL;
            held.end()
        });
        Ok(Dumped {
            round: number,
            bytes,
            pause: pause.or(ended).unwrap_or_default(),
            took: begun.elapsed(),
        })
    }
}
