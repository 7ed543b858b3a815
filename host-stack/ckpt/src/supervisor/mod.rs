//! The parent of a tree: launches or restarts it, answers commands, and ends with the exit status of its first process.

mod again;
mod ahead;
mod checkpoint;
mod control;
mod migrate;
mod schedule;
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
    time::Instant,
};

use libc::pid_t;
use procfs::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snaprig_ckpt_image::store::{Manifest, Store};

pub use self::{
    again::restart,
    checkpoint::{Copied, Mode, Pause},
    control::{Dumped, Reply, Request, Running, Status, ask},
    migrate::{Address, Migrated, receive},
    schedule::Schedule,
};
use self::{
    checkpoint::{Begun, How, Known, Stopped},
    control::{CONTROL, listen},
    schedule::Due,
    signals::Signals,
};
use crate::{
    error::{Error, Result},
    restart::{chain, exit_code},
    steps::{self, Step},
    trace,
};

/// What the tree is called in a checkpoint.
const MEMBER: &str = "tree";

/// How a tree is checkpointed.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// When.
    pub schedule: Schedule,
    /// What a checkpoint has, and when that is copied.
    pub mode: Mode,
    /// Compressed with zstd, at this level.
    pub zstd: Option<i32>,
    /// Older checkpoints than so many are removed, unless one of those builds on them.
    pub keep: Option<usize>,
}

/// Launches a program, and supervises it to its end; its exit status.
pub fn launch(directory: &Path, program: &[OsString], options: &Options) -> Result<i32> {
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
        options,
    )?
    .run()
}

struct Supervisor<'a> {
    directory: &'a Path,
    store: Store,
    listener: UnixListener,
    signals: Signals,
    root: pid_t,
    command: Vec<String>,
    known: Known,
    status: i32,
    last: Option<u64>,
    options: &'a Options,
    due: Due,
}

impl<'a> Supervisor<'a> {
    fn new(
        directory: &'a Path,
        listener: UnixListener,
        signals: Signals,
        root: pid_t,
        command: Vec<String>,
        options: &'a Options,
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
            known: Known::default(),
            status: 0,
            options,
            due: Due::new(options.schedule),
        })
    }

    fn run(mut self) -> Result<i32> {
        while self.reap() {
            if self.due.is_now()
                && let Err(error) = self.dump(false, false)
            {
                eprintln!("snaprig: no checkpoint was taken: {}", chain(&error));
                self.due.failed();
            }
            if self.wait()?
                && let Ok((stream, _)) = self.listener.accept()
            {
                control::answer(&stream, |request| self.reply(request));
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
        let left = self.due.left();
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
                self.status = exit_code(status);
            }
            if ended <= 0 {
                return ended == 0;
            }
        }
    }

    fn reply(&mut self, request: Request) -> Reply {
        let replied = match request {
            Request::Dump { kill, full } => self.dump(kill, full).map(Reply::Dumped),
            Request::Migrate { to } => self.migrate(&to).map(Reply::Migrated),
            Request::Status => self.look().map(Reply::Status),
        };
        replied.unwrap_or_else(|error| Reply::Failed(chain(&error)))
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
    fn dump(&mut self, kill: bool, full: bool) -> Result<Dumped> {
        let begun = Instant::now();
        steps::reached(Step::Begun);
        let cost = self.due.cost();
        let number = self.last.map_or(1, |last| last + 1);
        let round = self.store.begin(number, 0)?;
        let how = How {
            mode: self.options.mode,
            is_whole: full,
            zstd: self.options.zstd,
        };
        let image = Begun::begin(round.joined(), MEMBER, &how, &mut self.known)?;
        let parent = image.parent();
        let mut stopped = Stopped::stop(self.root, &mut self.known)?;
        let saved = image.save(&mut stopped, &mut self.known)?;
        let (held, pause) = match kill {
            true => (Some(stopped), None),
            false => (None, Some(stopped.let_go()?)),
        };
        let (_, written) = saved.finish()?;
        steps::reached(Step::Finished);
        let members = vec![written.member(MEMBER)];
        round.commit(Manifest::now(self.command.clone(), parent, members))?;
        steps::reached(Step::Committed);
        self.last = Some(number);
        let ended = held.map(|held| {
            self.status = 128 + libc::SIGKILL;
            held.end()
        });
        if let Some(lineage) = written.lineage {
            self.known.keep(lineage);
        }
        if let Some(Err(error)) = self.options.keep.map(|keep| self.store.prune(keep)) {
            eprintln!("snaprig: older checkpoints stay: {}", chain(&error));
        }
        let pause = pause.or(ended).unwrap_or_default();
        self.due.ended(cost, pause.all);
        Ok(Dumped {
            round: number,
            bytes: written.summary.totals.file_bytes,
            parent,
            copied: written.copied,
            pause,
            took: begun.elapsed(),
        })
    }
}
