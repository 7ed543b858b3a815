//! The parent of a tree: launches or restarts it, answers commands, and ends with the exit status of its first process.
//! In a job, it does what the coordinator says ([`member`]).

use std::{
    cell::RefCell,
    ffi::OsString,
    io,
    os::{fd::AsFd, unix::process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    time::Instant,
};

use crate::{
    checkpoint::{self, CheckpointOptions, History, Mode, NewImage, Stopped},
    control::{Dumped, Reply, Request, Running, Status, listen},
    faults,
    job::{self, Job},
    member::{Done, Member},
    migrate::{Sources, settled_departure},
    plugins::{Plugins, SharedPlugins},
    preload,
    schedule::{Due, Schedule},
    signals::Signals,
};
use libc::pid_t;
use procfs::process::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use snaprig_ckpt_image::store::{Manifest, Store};
use snaprig_peers::lines;
use snaprig_tracee::faults::{begin_round, reached};

use snaprig_ckpt::{
    dump::{Purpose, own_session_keyring},
    restart::exit_code,
};
use snaprig_resources::event::{Event, Reporter};
use snaprig_resources::{
    error::{Error, Result, chain},
    state::{Backing, Tree},
};
use snaprig_tracee::{trace, tree};

/// How often a checkpoint is tried, each time without those that have ended.
const TRIES_MAX: u32 = 20;

/// What the tree is called in a checkpoint.
pub const MEMBER: &str = "tree";

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
    /// Who is told what happens.
    pub reporter: Reporter,
}

impl Options {
    /// Of a member of a job, which says how it is checkpointed.
    pub fn of_member(job: &Job) -> Self {
        Self {
            reporter: job.reporter.clone(),
            ..Self::default()
        }
    }
}

/// A program that is launched.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// Its name, and its arguments.
    pub words: &'a [OsString],
    /// Libraries that are loaded into it, and into what it starts and becomes, before all others: plugins that the
    /// program does not know of.
    pub preload: &'a [PathBuf],
    /// Variables that its environment has from here, unless it has them.
    pub environment: &'a [(&'a str, &'a str)],
}

impl<'a> From<&'a [OsString]> for Program<'a> {
    /// As it is.
    fn from(words: &'a [OsString]) -> Self {
        Self {
            words,
            preload: &[],
            environment: &[],
        }
    }
}

/// Launches a program, and supervises it to its end; its exit status.
pub fn launch<'a>(
    directory: &Path,
    program: impl Into<Program<'a>>,
    options: &Options,
) -> Result<i32> {
    let program = program.into();
    settled_departure(directory)?;
    let variables = variables(&program)?;
    let parts = Parts::new(directory, Store::open(directory)?)?;
    let child = start(program.words, variables, &parts)?;
    Supervisor::new(parts, child, command_of(program.words), options).run()
}

/// The same, as a member of a job, which has a name in it. The calling process has one thread.
pub fn launch_in<'a>(
    job: &Job,
    name: Option<String>,
    program: impl Into<Program<'a>>,
) -> Result<i32> {
    let program = program.into();
    let variables = variables(&program)?;
    let coordinator = job::ensure(job)?;
    let first = program.words.first().ok_or_else(no_program)?;
    let name = name.unwrap_or_else(|| job::name_of(Path::new(first)));
    let mut parts = Parts::new(&job.of_member(&name), job.store()?)?;
    // Its thread has the mask of this one.
    parts.member = Some(Member::join(job, &name)?);
    drop(coordinator);
    let child = start(program.words, variables, &parts)?;
    let command = command_of(program.words);
    Supervisor::new(parts, child, command, &Options::of_member(job)).run()
}

fn no_program() -> Error {
    Error::io("no program", io::ErrorKind::InvalidInput)
}

fn command_of(program: &[OsString]) -> Vec<String> {
    let words = program
        .iter()
        .map(|part| part.to_string_lossy().into_owned());
    words.collect()
}

/// What is new in the environment of a program.
fn variables<'a>(program: &Program<'a>) -> Result<Vec<(&'a str, OsString)>> {
    let preload = preload::variable(program.preload)?.map(|all| (preload::VARIABLE, all));
    let missing = program.environment.iter();
    let missing = missing.filter(|(name, _)| std::env::var_os(name).is_none());
    let missing = missing.map(|(name, value)| (*name, value.into()));
    Ok(preload.into_iter().chain(missing).collect())
}

/// Starts a program, with the signal mask that it is to have.
fn start(program: &[OsString], variables: Vec<(&str, OsString)>, parts: &Parts) -> Result<pid_t> {
    let [name, arguments @ ..] = program else {
        return Err(no_program());
    };
    let mut command = Command::new(name);
    let plugins = parts.plugins.borrow();
    let (variable, socket) = plugins.variable();
    command.args(arguments).env(variable, socket);
    command.envs(variables);
    let mask = parts.signals.before;
    // SAFETY: what runs in the child between fork and exec is sigprocmask(2), which is async-signal-safe, reads a mask
    // that the closure owns, and writes nothing to a null pointer.
    unsafe {
        command.pre_exec(move || {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
            Ok(())
        });
    }
    let child = command.spawn();
    let child = child.map_err(|source| Error::io(name.to_string_lossy().into_owned(), source))?;
    Ok(child.id() as pid_t)
}

/// What a supervisor has before there is a tree.
pub struct Parts {
    pub directory: PathBuf,
    pub store: Store,
    /// Who asks for something.
    pub clients: lines::Server,
    pub signals: Signals,
    pub plugins: SharedPlugins,
    pub member: Option<Member>,
}

impl Parts {
    pub fn new(directory: &Path, store: Store) -> Result<Self> {
        own_session_keyring();
        // Who loses its parent is this one's child, however soon that is.
        // SAFETY: PR_SET_CHILD_SUBREAPER takes a number, so prctl(2) reads and writes no memory of this process.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        Ok(Self {
            directory: directory.to_owned(),
            store,
            clients: listen(directory)?,
            plugins: Rc::new(RefCell::new(Plugins::listen(directory)?)),
            signals: Signals::block()?,
            member: None,
        })
    }
}

pub struct Supervisor<'a> {
    pub parts: Parts,
    pub root: pid_t,
    pub command: Vec<String>,
    pub known: History,
    pub status: i32,
    /// Its tree goes on elsewhere.
    has_moved: bool,
    pub last: Option<u64>,
    pub options: &'a Options,
    pub due: Due,
    /// Those from whom its tree has come.
    pub sources: Sources,
}

impl<'a> Supervisor<'a> {
    pub fn new(parts: Parts, root: pid_t, command: Vec<String>, options: &'a Options) -> Self {
        Self {
            last: parts
                .store
                .rounds()
                .ok()
                .and_then(|rounds| rounds.last().copied()),
            parts,
            root,
            command,
            known: History::new(&options.reporter),
            status: 0,
            has_moved: false,
            options,
            due: Due::new(options.schedule),
            sources: Sources::default(),
        }
    }

    /// Of a tree that has been restarted.
    pub fn of_restarted(
        parts: Parts,
        tree: &Tree,
        command: Vec<String>,
        options: &'a Options,
    ) -> Self {
        let mut supervisor = Self::new(parts, tree.root, command, options);
        supervisor.known.has_own_ipc = tree.sysv.is_some();
        for body in tree.processes.iter().filter_map(|one| one.body.as_ref()) {
            supervisor.known.named.learn(&body.exe);
            for area in &body.areas {
                if let Backing::File { file, .. } = &area.backing {
                    supervisor.known.named.learn(file);
                }
            }
        }
        supervisor
    }

    pub fn run(mut self) -> Result<i32> {
        while self.holds() || self.reap() {
            if self.due.is_now()
                && let Err(error) = self.dump(false, false)
            {
                let why = chain(&error);
                self.options.reporter.tell(Event::NotTaken { why });
                self.due.failed();
            }
            self.wait()?;
            // One at a time: however many there are, children are waited for between them.
            if let Some((client, request)) = self.parts.clients.next_command() {
                let reply = match request {
                    Ok(request) => self.reply(request),
                    Err(error) => Reply::Failed(format!("not a request: {error}")),
                };
                self.parts.clients.answer(client, &reply);
            }
            self.parts.plugins.borrow_mut().go_on();
            self.sources.go_on();
            while let Some(signal) = self.parts.signals.next() {
                if [libc::SIGTERM, libc::SIGHUP].contains(&signal) {
                    // SAFETY: kill(2) takes numbers alone; it is a child that has not been waited for, or nobody.
                    unsafe { libc::kill(self.root, signal) };
                }
            }
            self.take_part();
        }
        self.parts.clients.finish();
        if let Some(member) = self.parts.member {
            member.leave();
        }
        self.sources.linger()?;
        Ok(self.status)
    }

    /// Whether the tree stands still for a round: nothing of it ends meanwhile.
    pub fn holds(&self) -> bool {
        self.parts.member.as_ref().is_some_and(Member::holds)
    }

    /// Does what the job's coordinator says, if it says something.
    pub fn take_part(&mut self) {
        let Some(member) = &mut self.parts.member else {
            return;
        };
        match member.next(self.root, &mut self.known, &self.parts.plugins) {
            Done::Complete(round) => self.last = Some(round),
            Done::Ended => self.status = 128 + libc::SIGKILL,
            // What ends here has not failed: whoever started it waits for nothing more.
            Done::Moved => self.has_moved = true,
            Done::Nothing => {}
        }
    }

    /// Waits for something to do.
    pub fn wait(&self) -> Result<()> {
        let (clients, signals) = (self.parts.clients.as_fd(), self.parts.signals.fd.as_fd());
        let plugins = self.parts.plugins.borrow();
        let mut ready = vec![
            PollFd::new(&clients, PollFlags::IN),
            PollFd::new(&signals, PollFlags::IN),
            PollFd::from_borrowed_fd(plugins.as_fd(), PollFlags::IN),
        ];
        let member = self.parts.member.as_ref().map(|member| member.link.ready());
        ready.extend(member.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        ready.extend(self.sources.descriptors());
        let now = Instant::now();
        let plugins_left = plugins
            .deadline()
            .map(|due| due.saturating_duration_since(now));
        let clients_left = self.parts.clients.deadline();
        let clients_left = clients_left.map(|due| due.saturating_duration_since(now));
        let sources_left = self.sources.left();
        let all_left = [self.due.left(), plugins_left, clients_left, sources_left];
        let left = all_left.into_iter().flatten().min();
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut ready, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::io("poll", error)),
        }
    }

    /// Waits for children that have ended; whether there are others.
    pub fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: waitpid(2) writes an int, which is a variable of this function.
            let ended = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if ended > 0 && libc::WIFSTOPPED(status) {
                trace::let_go_late(ended);
                continue;
            }
            if ended == self.root && !self.has_moved {
                self.status = exit_code(status);
            }
            if ended <= 0 {
                return ended == 0;
            }
        }
    }

    pub fn reply(&mut self, request: Request) -> Reply {
        let replied = match request {
            Request::Dump { kill, full } => self.dump(kill, full).map(Reply::Dumped),
            Request::Migrate { to } => self.migrate(&to).map(Reply::Migrated),
            Request::Status => self.look().map(Reply::Status),
        };
        replied.unwrap_or_else(|error| Reply::Failed(chain(&error)))
    }

    pub fn look(&self) -> Result<Status> {
        let pids = tree::processes()?;
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

    /// It is in no job.
    pub fn is_alone(&self) -> Result<()> {
        let Some(member) = &self.parts.member else {
            return Ok(());
        };
        let what = format!(
            "it is member {} of a job: that is checkpointed as a whole (--job)",
            member.name
        );
        Err(Error::Job { what })
    }

    /// A checkpoint; if somebody ends whom others waited for, another try at one of the rest. Whatever goes wrong, the tree
    /// runs on.
    pub fn dump(&mut self, kill: bool, full: bool) -> Result<Dumped> {
        self.is_alone()?;
        for _ in 1..TRIES_MAX {
            match self.try_dump(kill, full) {
                Err(error) if error.is_end() => {}
                other => return other,
            }
        }
        self.try_dump(kill, full)
    }

    fn try_dump(&mut self, kill: bool, full: bool) -> Result<Dumped> {
        let begun = Instant::now();
        begin_round();
        reached(&faults::BEGUN);
        let cost = self.due.cost();
        let number = self.last.map_or(1, |last| last + 1);
        let round = self.parts.store.begin(number, 0)?;
        let how = CheckpointOptions {
            mode: self.options.mode,
            is_whole: full,
            zstd: self.options.zstd,
        };
        self.known.check(&self.parts.store, MEMBER);
        if how.mode == Mode::Background {
            checkpoint::look(&mut self.known, Purpose::Alone, &self.parts.plugins)?;
        }
        let mut image = NewImage::begin(round.joined(), MEMBER, &how, &mut self.known)?;
        let parent = image.parent();
        let (known, directory) = (&mut self.known, round.joined().dir());
        let (plugins, last) = (&self.parts.plugins, |known: &mut _| image.catch_up(known));
        let files = (directory, how.span(kill));
        let stopped = Stopped::stop(self.root, Purpose::Alone, known, plugins, files, last);
        let stopped = match stopped {
            Err(error) if error.is_end() => {
                // The next try builds on what this one would have built on.
                image.abandon(&mut self.known);
                return Err(error);
            }
            stopped => stopped?,
        };
        let mut stopped = stopped.alone()?;
        let saved = image.save(&mut stopped, &mut self.known)?;
        let (held, pause) = match kill {
            true => (Some(stopped), None),
            false => (None, Some(stopped.let_go()?)),
        };
        let (_, written) = saved.finish()?;
        if !kill && let Err(error) = self.parts.plugins.borrow_mut().finish() {
            self.known.undone(written.next);
            return Err(error);
        }
        reached(&faults::FINISHED);
        let members = vec![written.member(MEMBER)];
        round.commit(Manifest {
            arrivals: self.sources.arrivals(),
            ..Manifest::now(self.command.clone(), parent, members)
        })?;
        reached(&faults::COMMITTED);
        self.last = Some(number);
        let ended = held.map(|held| {
            self.status = 128 + libc::SIGKILL;
            held.end()
        });
        self.known.keep(written.next);
        if let Some(Err(error)) = self.options.keep.map(|keep| self.parts.store.prune(keep)) {
            let why = chain(&error);
            self.options.reporter.tell(Event::OlderStay { why });
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
