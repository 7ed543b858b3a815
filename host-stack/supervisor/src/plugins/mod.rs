//! Plugins within the programs of a tree, seen from its supervisor: the driver of [`snaprig_coord::plugins`]. What is said
//! is in [`snaprig_ckpt_plugin::message`].
//!
//! ```text
//! checkpoint: quiesce, drain, save --> the tree is stopped --> has anybody come or said something? then on, and once more
//!             --> what belongs to plugins is left out of the image --> the tree goes on --> resume --> who was to finish has
//! restart:    plugins' threads alone run --> rebuild, exchange, refill --> the tree runs --> go
//! ```
//! In a move of a job's member, the plugins of all others pass rebuild, exchange and refill where they are.
//! In a job, each phase ends at a barrier of its round: no tree's plugins are in a phase before those of all others have
//! passed the one before. Plugins are heard while the tree waits there, and the job while plugins are at work: whichever
//! gives the round up, all are told at once.
//!
//! What must stay true: whoever has been told to quiesce is told what came of it, whatever goes wrong; and the supervisor
//! does not stand still for a plugin that is slow to resume.

mod gathered;
mod relay;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

use libc::pid_t;
use rustix::{
    event::{Timespec, epoll},
    net::{RecvFlags, SendFlags, SocketFlags, accept_with, sockopt},
};
use snaprig_ckpt_plugin::{
    message::{Answer, MESSAGE_MAX, SOCKET, ToPlugin, decode, encode},
    phase::{Part, Phase},
};
use snaprig_coord::{
    Ns,
    message::CallError,
    plugins::{Connection, Machine, Output, Progress, QuestionId, Refusal},
};
use snaprig_peers::packets;
use snaprig_resources::{
    board::Board,
    error::{Error, Result},
};
use snaprig_tracee::tree;

pub use self::gathered::ReadyPlugins;
use self::relay::Relay;

/// The socket's name in a directory of checkpoints.
const NAME: &str = "plugins";
/// Connections that wait to be taken.
const BACKLOG: i32 = 4096;
/// What the listener is in the epoll instance.
const LISTENER: u64 = 0;
/// What answers of a job's board are in it.
const ANSWERS: u64 = u64::MAX;
/// What the job says is in it, while plugins are at work in one of its rounds.
const JOB: u64 = u64::MAX - 1;
/// The longest value of a variable.
const VALUE_MAX: usize = MESSAGE_MAX - 16;
/// How long a supervisor stands still at most until plugins have resumed; after that they do while it does other things.
const RELEASE_MAX: Duration = Duration::from_secs(1);
/// How long plugins may take to say what they are.
const INTRODUCTION_MAX: Duration = Duration::from_secs(30);

/// Phases of a move that can be undone.
const UNDECIDED: [Phase; 2] = [Phase::Rebuild, Phase::Exchange];

/// A round of a job that plugins take part in.
#[derive(Clone, Copy)]
pub struct JobRound<'a> {
    /// The member's name in the job.
    pub member: &'a str,
    /// The board of the round.
    pub board: &'a Board<'a>,
}

/// Why plugins do not come to the end of a phase.
enum Stop {
    Refused(Refusal),
    /// The round of the job is not to be.
    Undone,
    /// Others do not come to its end.
    Unmet(CallError),
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Refused(Refusal {
                pid,
                what,
                has_ended: true,
            }) => Self::Ended { pid, what }.for_now(),
            Stop::Refused(Refusal { pid, what, .. }) => Self::refused(pid, what),
            Stop::Undone => Self::Job {
                what: "others of the job have given the round up".into(),
            },
            Stop::Unmet(error) => error.into(),
        }
    }
}

/// The plugins of a tree.
pub struct Plugins {
    machine: Machine,
    path: PathBuf,
    listener: OwnedFd,
    epoll: OwnedFd,
    sockets: BTreeMap<Connection, OwnedFd>,
    next: Connection,
    relay: Relay,
    start: Instant,
    /// What was received last: the next message is put there.
    received: Vec<u8>,
}

impl Plugins {
    /// Listens for the plugins of programs in a directory of checkpoints.
    pub fn listen(directory: &Path) -> Result<Self> {
        let directory = directory.canonicalize();
        let path = directory.map(|directory| directory.join(NAME));
        let path = path.map_err(|source| Error::io(NAME, source))?;
        let failed = |source: io::Error| Error::io(path.display().to_string(), source);
        // Who was there has gone: it has the other socket of the directory.
        let _ = std::fs::remove_file(&path);
        let bound = || -> io::Result<_> {
            let listener = packets::listen(&path, BACKLOG, SocketFlags::NONBLOCK)?;
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let relay = Relay::new()?;
            watch(&epoll, listener.as_fd(), LISTENER)?;
            watch(&epoll, relay.as_fd(), ANSWERS)?;
            Ok((listener, epoll, relay))
        };
        let (listener, epoll, relay) = bound().map_err(failed)?;
        Ok(Self {
            machine: Machine::default(),
            path,
            listener,
            epoll,
            sockets: BTreeMap::new(),
            next: LISTENER + 1,
            relay,
            start: Instant::now(),
            received: Vec::with_capacity(MESSAGE_MAX),
        })
    }

    /// What programs have in their environment.
    pub fn variable(&self) -> (&'static str, &Path) {
        (SOCKET, &self.path)
    }

    /// When [`Plugins::go_on`] is due, at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let due = self.machine.deadline();
        let due = due.into_iter().chain(self.relay.deadline()).min()?;
        self.start.checked_add(Duration::from_nanos(due))
    }

    /// Hears what processes say, and answers.
    pub fn go_on(&mut self) {
        self.hear(Some(Instant::now()), None);
        self.pass_time(None);
    }

    /// Whether there are no programs with plugins.
    pub fn are_none(&self) -> bool {
        self.sockets.is_empty()
    }

    /// Waits until so many have said what they are: who has been told of this supervisor while it ran.
    pub fn expect(&mut self, plugins: u32) -> Result<()> {
        let until = Instant::now() + INTRODUCTION_MAX;
        while self.machine.counts().values().sum::<u32>() < plugins {
            if Instant::now() >= until {
                let what = format!("not all of its {plugins} plugins have said what they are");
                return Err(Error::Job { what });
            }
            self.hear(Some(until), None);
        }
        Ok(())
    }

    /// Takes the plugins of a restarted tree, whose processes' ends of connections these are the others of, to where the
    /// tree may run. An error: it must end.
    pub fn rebuild(
        &mut self,
        channels: Vec<(pid_t, OwnedFd)>,
        checkpoint: &Path,
        job: Option<JobRound>,
    ) -> Result<()> {
        if channels.is_empty() && job.is_none() {
            return Ok(());
        }
        let checkpoint = self.restore(channels, checkpoint, job)?;
        self.pass_all(&Phase::RESTART, &checkpoint, job)
    }

    /// The same, of a tree that moves, up to where that is decided.
    pub fn arrive(
        &mut self,
        channels: Vec<(pid_t, OwnedFd)>,
        checkpoint: &Path,
        job: JobRound,
    ) -> Result<()> {
        let checkpoint = self.restore(channels, checkpoint, Some(job))?;
        self.machine.take_part(Part::Moves);
        self.pass_all(&UNDECIDED, &checkpoint, Some(job))
    }

    /// What the next round is for this tree.
    pub fn take_part(&mut self, part: Part) {
        self.machine.take_part(part);
    }

    /// Of a tree that stays, what leads to those that move is made again, up to where that is decided.
    pub fn connect(&mut self, checkpoint: &Path, job: JobRound) -> Result<()> {
        self.pass_all(&UNDECIDED, &canonical(checkpoint)?, Some(job))
    }

    /// Those of a tree that leaves do nothing more, but others wait for it.
    pub fn look_on(&mut self, job: JobRound) -> Result<()> {
        let counted = relay::count_all(job.board, job.member, &BTreeMap::new())?;
        if counted.is_empty() {
            return Ok(());
        }
        UNDECIDED
            .into_iter()
            .try_for_each(|phase| job.board.meet(&barrier(phase)))
    }

    /// It is decided that a tree moves. Nobody waits for anybody any more.
    pub fn refill(&mut self, checkpoint: &Path) -> Result<()> {
        self.pass_to(Phase::Refill, &canonical(checkpoint)?, None)
    }

    /// Takes those of a restarted tree to where they were saved.
    fn restore(
        &mut self,
        channels: Vec<(pid_t, OwnedFd)>,
        checkpoint: &Path,
        job: Option<JobRound>,
    ) -> Result<PathBuf> {
        for (pid, channel) in channels {
            self.add(channel, pid)?;
        }
        let checkpoint = canonical(checkpoint)?;
        let socket = self.path.as_os_str().as_bytes();
        self.machine.restarted(socket, ns(self.start));
        // They are where they were saved, when all have said what they are.
        self.pass_to(Phase::Save, &checkpoint, job)?;
        Ok(checkpoint)
    }

    /// Takes all through these phases; in a job, together with those of all others.
    fn pass_all(
        &mut self,
        phases: &[Phase],
        checkpoint: &Path,
        job: Option<JobRound>,
    ) -> Result<()> {
        let is_needed = self.count(job)?;
        for phase in phases {
            self.pass_to(*phase, checkpoint, job)?;
            if let Some(job) = job.filter(|_| is_needed) {
                self.meet(*phase, job).map_err(no_restart)?;
            }
        }
        Ok(())
    }

    fn pass_to(&mut self, phase: Phase, checkpoint: &Path, job: Option<JobRound>) -> Result<()> {
        self.pass(phase, checkpoint, job).map_err(no_restart)
    }

    /// The tree that [`Plugins::rebuild`] was for runs.
    pub fn go(&mut self) {
        self.release(Phase::Go);
    }

    /// Takes all plugins to where the tree can be saved; in a job, together with those of all others.
    fn gather(&mut self, directory: &Path, job: Option<JobRound>) -> Result<()> {
        if let Some(with) = job {
            self.hear(Some(Instant::now()), job);
            let counts = self.machine.counts();
            let is_needed = self.count(job)?;
            for phase in Phase::CHECKPOINT.into_iter().filter(|_| is_needed) {
                self.pass(phase, directory, job)?;
                match phase {
                    Phase::Quiesce => self.meet_and_count(with, &counts)?,
                    _ => self.meet(phase, with)?,
                }
            }
        }
        self.gather_rest(directory, job)
    }

    /// Who has ended before it has quiesced is not missed: nobody is to count on it in the phases that follow.
    fn meet_and_count(&mut self, job: JobRound, before: &BTreeMap<String, u32>) -> Result<()> {
        let counts = self.machine.counts();
        if counts != *before {
            relay::count(job.board, job.member, &counts)?;
        }
        self.meet(Phase::Quiesce, job)?;
        self.machine.count_all(relay::counted(job.board)?);
        Ok(())
    }

    /// Takes those to where the others are who have come since.
    fn gather_rest(&mut self, directory: &Path, job: Option<JobRound>) -> Result<()> {
        self.hear(Some(Instant::now()), job);
        for phase in Phase::CHECKPOINT {
            self.pass(phase, directory, job)?;
        }
        Ok(())
    }

    /// Takes all to the end of a phase.
    fn pass(
        &mut self,
        phase: Phase,
        directory: &Path,
        job: Option<JobRound>,
    ) -> std::result::Result<(), Stop> {
        self.relay.begin(job.is_some());
        let now = ns(self.start);
        self.machine
            .towards(phase, directory.as_os_str().as_bytes(), now);
        let ready = job.map(|job| job.board.member.ready());
        if let Some(ready) = ready {
            // If it cannot be watched, what it says is heard at the end of the phase.
            let _ = watch(&self.epoll, ready, JOB);
        }
        let progress = self.work(None, job);
        if let Some(ready) = ready {
            let _ = epoll::delete(&self.epoll, ready);
        }
        match progress {
            Progress::Failed(refusal) => Err(Stop::Refused(refusal)),
            Progress::AtWork => Err(Stop::Undone),
            Progress::Done => Ok(()),
        }
    }

    /// Waits until the plugins of all trees of the job have passed a phase. Others may rely on one of this tree that ends
    /// meanwhile.
    fn meet(&mut self, phase: Phase, job: JobRound) -> std::result::Result<(), Stop> {
        self.relay.meet(barrier(phase), job.board);
        loop {
            if let Some(met) = self.relay.met() {
                return met.map_err(Stop::Unmet);
            }
            if let Progress::Failed(refusal) = self.machine.progress() {
                return Err(Stop::Refused(refusal));
            }
            self.hear(self.deadline(), Some(job));
            self.pass_time(Some(job));
        }
    }

    /// How many plugins there are in all trees of the job; whether there are any.
    fn count(&mut self, job: Option<JobRound>) -> Result<bool> {
        let Some(JobRound { member, board }) = job else {
            return Ok(!self.machine.is_empty());
        };
        let counted = relay::count_all(board, member, &self.machine.counts())?;
        let is_needed = !counted.is_empty();
        self.machine.count_all(counted);
        Ok(is_needed)
    }

    /// The round is over: all resume, or go.
    pub fn release(&mut self, phase: Phase) {
        self.machine.release(phase, ns(self.start));
        self.relay.end();
        self.work(Some(Instant::now() + RELEASE_MAX), None);
    }

    /// The tree that was saved goes on. Waits until all that plugins were to finish later is part of the checkpoint, too.
    pub fn finish(&mut self) -> Result<()> {
        match self.work_on(Machine::finished, None, None) {
            Progress::Failed(refusal) => Err(Stop::Refused(refusal).into()),
            // No job is listened to, and there is no end of the time.
            Progress::AtWork => Err(Stop::Undone.into()),
            Progress::Done => Ok(()),
        }
    }

    /// Until there is nothing left to do, or it has taken so long, or the job has given the round up.
    fn work(&mut self, until: Option<Instant>, job: Option<JobRound>) -> Progress {
        self.work_on(Machine::progress, until, job)
    }

    /// The same, where something else says `how_far` it is.
    fn work_on(
        &mut self,
        how_far: fn(&Machine) -> Progress,
        until: Option<Instant>,
        job: Option<JobRound>,
    ) -> Progress {
        loop {
            self.perform(job);
            match how_far(&self.machine) {
                Progress::AtWork if until.is_none_or(|until| Instant::now() < until) => {}
                other => return other,
            }
            let deadline = self.deadline().into_iter().chain(until).min();
            let is_undone = self.hear(deadline, job);
            self.pass_time(job);
            if is_undone {
                return how_far(&self.machine);
            }
        }
    }

    fn pass_time(&mut self, job: Option<JobRound>) {
        let now = ns(self.start);
        self.machine.tick(now);
        for (id, answer) in self.relay.expire(now) {
            self.machine.answer(id, answer);
        }
        self.perform(job);
    }

    /// Whether somebody has said something that was not heard yet, or is not where the tree can be saved.
    fn has_news(&self) -> bool {
        let mut events = Vec::with_capacity(1);
        let now = Timespec::default();
        let waiting = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&now),
        );
        !matches!(waiting, Ok(0)) || !self.machine.have_passed(Phase::Save)
    }

    /// Waits for somebody who says something; and everybody is heard. No longer than to the deadline. Whether the job has
    /// said something: amid a phase, that its round is not to be.
    fn hear(&mut self, deadline: Option<Instant>, job: Option<JobRound>) -> bool {
        let mut is_undone = false;
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let room = rustix::buffer::spare_capacity(&mut events);
        // A signal is the caller's.
        let _ = epoll::wait(&self.epoll, room, left.as_ref());
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                JOB => is_undone = true,
                ANSWERS => {
                    for (id, answer) in self.relay.answers() {
                        self.machine.answer(id, answer);
                    }
                }
                connection => self.receive(connection, job),
            }
        }
        is_undone
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(socket) = accept_with(&self.listener, flags) {
            let peer = sockopt::socket_peercred(&socket);
            let Ok(pid) = peer.map(|peer| peer.pid.as_raw_nonzero().get()) else {
                continue;
            };
            // Who is none of the tree has no plugins in it.
            if tree::is_ours(pid)
                && let Err(error) = self.add(socket, pid)
            {
                tracing::warn!(%error, pid, "its plugins are not known");
            }
        }
    }

    fn add(&mut self, socket: OwnedFd, pid: pid_t) -> Result<()> {
        let connection = self.next;
        self.next += 1;
        watch(&self.epoll, socket.as_fd(), connection)
            .map_err(|source| Error::io("epoll_ctl", source))?;
        self.sockets.insert(connection, socket);
        self.machine.connected(connection, pid, ns(self.start));
        Ok(())
    }

    /// Takes all that has come from a plugin.
    fn receive(&mut self, connection: Connection, job: Option<JobRound>) {
        while let Some(socket) = self.sockets.get(&connection) {
            self.received.clear();
            let room = rustix::buffer::spare_capacity(&mut self.received);
            let received = rustix::net::recv(socket, room, RecvFlags::DONTWAIT);
            let now = ns(self.start);
            match received {
                Ok((1.., _)) => match decode(&self.received) {
                    Some(message) => self.machine.received(connection, message, now),
                    None => self.hang_up(connection),
                },
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Ok(_) | Err(_) => self.hang_up(connection),
            }
            self.perform(job);
        }
    }

    fn hang_up(&mut self, connection: Connection) {
        self.sockets.remove(&connection);
        self.machine.gone(connection);
    }

    fn perform(&mut self, job: Option<JobRound>) {
        let board = job.map(|job| job.board);
        loop {
            let Some(output) = self.machine.poll_output() else {
                // What came when nobody had the board at hand.
                return self.relay.send_waiting(board, ns(self.start));
            };
            match output {
                Output::Send(connection, message) => self.send(connection, &message),
                Output::Variable { id, name } => self.answer_variable(id, name),
                Output::Close(connection) => drop(self.sockets.remove(&connection)),
                Output::Ask {
                    id,
                    question,
                    deadline_ns,
                } => {
                    let now = ns(self.start);
                    for (id, answer) in self.relay.ask(id, question, deadline_ns, board, now) {
                        self.machine.answer(id, answer);
                    }
                }
            }
        }
    }

    fn answer_variable(&mut self, id: QuestionId, name: Vec<u8>) {
        let name = std::ffi::OsString::from_vec(name);
        // getenv(3) has no such names, and std's function panics.
        let is_name = !name.is_empty() && !name.as_bytes().iter().any(|b| b"=\0".contains(b));
        let value = is_name.then(|| std::env::var_os(name)).flatten();
        let value = value.map(OsStringExt::into_vec);
        let value = value.filter(|value| value.len() <= VALUE_MAX);
        self.machine.answer(id, Ok(Answer::Variable(value)));
    }

    fn send(&mut self, connection: Connection, message: &ToPlugin) {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let Some(socket) = self.sockets.get(&connection) else {
            return;
        };
        // Who does not listen any more, or has not for a long time, has gone.
        if rustix::net::send(socket, &encode(message), flags).is_err() {
            self.hang_up(connection);
        }
    }
}

impl AsFd for Plugins {
    /// Readable when [`Plugins::go_on`] is due.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for Plugins {
    fn drop(&mut self) {
        // The next supervisor removes what is left.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The plugins of a tree, for its supervisor and for a checkpoint that is under way.
pub type SharedPlugins = Rc<RefCell<Plugins>>;

fn canonical(checkpoint: &Path) -> Result<PathBuf> {
    let path = checkpoint.canonicalize();
    path.map_err(|source| Error::io("the checkpoint", source))
}

/// Where the trees of a job meet whose plugins have passed a phase.
fn barrier(phase: Phase) -> String {
    format!("plugins-{}", phase.name())
}

/// Why a restart is not to be.
fn no_restart(stop: Stop) -> Error {
    match stop {
        Stop::Refused(Refusal { pid, what, .. }) => Error::Missing {
            what: format!("process {pid}, {what}"),
        },
        Stop::Undone | Stop::Unmet(_) => stop.into(),
    }
}

/// Nanoseconds since the plugins were listened for: the machine's clock.
fn ns(start: Instant) -> Ns {
    start.elapsed().as_nanos() as Ns
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd, number: u64) -> rustix::io::Result<()> {
    epoll::add(
        epoll,
        fd,
        epoll::EventData::new_u64(number),
        epoll::EventFlags::IN,
    )
}
