//! The coordinator of a job: a process of its own, started by the first launch, or by hand where it is to be reached from
//! other machines.
//!
//! What must stay true: there is one at most (its lock); a checkpoint is one when its directory has its name, and all
//! images that its manifest names have been checked before.

use snaprig_resources::error::chain;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::fd::{AsFd, AsRawFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, poll};
use snaprig_ckpt_image::store::{Manifest, Store};
use snaprig_coord::{
    coordinator::Config,
    driver::{self, ConnectError, Control, Coordinator},
    job::{JobDir, JobError},
    phase::{Kind, Order},
};
use snaprig_peers::{Address, Listener};
use snaprig_resources::error::{Error, Result};

use super::{Job, Report, due, input, none};
use crate::{
    moving::{self, decision::Decision},
    signals::Signals,
};

/// How long one that was started may take until it answers.
const STARTING: Duration = Duration::from_secs(10);
/// How long until another one is started for the first time; after that, twice as long.
const AGAIN: Duration = Duration::from_millis(200);

/// What a coordinator keeps.
struct Keeper {
    directory: JobDir,
    store: Store,
}

impl driver::Keeper for Keeper {
    fn members(&self, members: &[String]) -> io::Result<()> {
        self.directory
            .write_members(members)
            .map_err(io::Error::other)
    }

    fn commit(
        &self,
        round: u64,
        order: &Order,
        reports: &BTreeMap<String, String>,
    ) -> Result<(), String> {
        if order.kind == Kind::Move {
            let note = moving::Note::of(order).map_err(|error| chain(&error))?;
            let decided = Decision::of(&self.store, &note.decision);
            let decided = decided.and_then(|decision| decision.decide());
            return decided.map_err(|error| chain(&error));
        }
        let (mut members, mut parent) = (Vec::new(), None);
        for (name, report) in reports {
            let report: Report =
                serde_json::from_str(report).map_err(|error| format!("{name}: {error}"))?;
            if report.image.name != *name {
                let whose = report.image.name;
                return Err(format!("{name} has written the image of {whose}"));
            }
            parent = match (parent, report.parent) {
                (Some(one), Some(other)) if one != other => {
                    return Err(format!("{name} builds on {other}, others on {one}"));
                }
                (one, other) => one.or(other),
            };
            members.push(report.image);
        }
        let command = vec![self.directory.name().to_owned()];
        let making = self.store.lead(round);
        let committed =
            making.and_then(|making| making.commit(Manifest::now(command, parent, members)));
        committed.map(drop).map_err(|error| chain(&error))
    }
}

/// What a coordinator is made of; none if there is one already.
struct Parts {
    listener: Listener,
    config: Config,
    keeper: Arc<Keeper>,
    /// Held for as long as it is there.
    _lock: std::os::fd::OwnedFd,
}

impl Parts {
    fn of(job: &Job, address: &Address) -> Result<Self> {
        let directory = job.directory.clone();
        let lock = directory.claim()?;
        let store = job.store()?;
        // Rounds of coordinators that are dead: what is not published now never will be.
        store.sweep()?;
        let config = Config {
            job: directory.name().to_owned(),
            token: directory.token()?,
            members: directory.members()?,
            first_round: store.next_round()?,
        };
        let failed = |source| Error::io(format!("a coordinator at {address}"), source);
        let listener = Listener::bind(address).map_err(failed)?;
        directory.write_address(&listener.address().map_err(failed)?, std::process::id())?;
        let keeper = Arc::new(Keeper { directory, store });
        Ok(Self {
            listener,
            config,
            keeper,
            _lock: lock,
        })
    }
}

/// Coordinates a job until a signal ends it (SIGTERM, SIGINT); orders a checkpoint every so often, if that is wanted here
/// or by the job's settings.
pub fn coordinate(job: &Job, listen: Option<Address>, interval: Option<Duration>) -> Result<()> {
    let signals = Signals::block()?;
    let parts = Parts::of(job, &listen.unwrap_or_else(|| job.address()))?;
    let failed = |source| Error::io("the coordinator", source);
    let coordinator = Coordinator::start(parts.listener, parts.config, parts.keeper);
    let coordinator = coordinator.map_err(failed)?;
    begin_ordering(job, interval).map_err(failed)?;
    loop {
        let fd = signals.fd.as_fd();
        // EINTR: it is looked again.
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], None);
        while let Some(signal) = signals.next() {
            if signal != libc::SIGCHLD {
                return coordinator.stop().map_err(failed);
            }
        }
    }
}

/// Checkpoints that nobody asks for, as long as the process lives.
fn begin_ordering(job: &Job, interval: Option<Duration>) -> io::Result<()> {
    let job = job.clone();
    let orders = thread::Builder::new().name("orders".into());
    orders.spawn(move || due::order_when_due(&job, interval))?;
    Ok(())
}

/// A connection to the job's coordinator, which is started if there is none. It ends when the job has had no members for
/// a while. The calling process has one thread.
pub fn ensure(job: &Job) -> Result<Control> {
    match job.control() {
        Err(Error::Connect(ConnectError::Unreachable { .. }) | Error::Directory(_)) => {}
        other => return other,
    }
    let log = job.directory.path("coordinator.log");
    let failed = |source| Error::io(log.display().to_string(), source);
    let to = File::options()
        .append(true)
        .create(true)
        .open(&log)
        .map_err(failed)?;
    let begun = Instant::now();
    let mut next = Duration::ZERO;
    loop {
        // Once more after a while: one that is being killed may have closed its socket, and hold its lock still.
        if begun.elapsed() >= next {
            detach(job, &to).map_err(failed)?;
            next = 2 * begun.elapsed() + AGAIN;
        }
        match job.control() {
            Err(_) if begun.elapsed() < STARTING => thread::sleep(Duration::from_millis(5)),
            Err(error) => {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let said = said.lines().last().unwrap_or_default();
                return Err(none(format!(
                    "the job has no coordinator, and none could be started ({said}): {}; start one where members reach \
                     it: `snaprig ckpt coordinator`",
                    chain(&error)
                )));
            }
            other => return other,
        }
    }
}

/// Starts a coordinator that is nobody's child.
fn detach(job: &Job, log: &File) -> io::Result<()> {
    // SAFETY: the process has one thread, so its child is a whole copy of it, and may do what it likes.
    let between = unsafe { libc::fork() };
    if between > 0 {
        let mut status = 0;
        // SAFETY: waitpid(2) writes an int, which is a variable of this function.
        unsafe { libc::waitpid(between, &raw mut status, 0) };
        return match status {
            0 => Ok(()),
            _ => Err(input("it could not be started")),
        };
    }
    if between < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this child has one thread, too, so it may fork again. open(2) reads a string that ends with a zero; the
    // other calls take numbers alone. What the parent has open is in this process nobody's: owners in its copy of the
    // memory are never dropped.
    let is_first = unsafe {
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY);
        libc::setsid();
        libc::dup2(nothing, 0);
        libc::dup2(log.as_raw_fd(), 1);
        libc::dup2(log.as_raw_fd(), 2);
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0);
        libc::fork()
    };
    if is_first != 0 {
        std::process::exit(i32::from(is_first < 0));
    }
    let served = Parts::of(job, &job.address()).and_then(|parts| {
        let served = begin_ordering(job, None)
            .and_then(|()| Coordinator::serve(parts.listener, parts.config, parts.keeper));
        served.map_err(|source| Error::io("the coordinator", source))
    });
    match served {
        // Somebody else was faster.
        Ok(()) | Err(Error::Directory(JobError::Claimed { .. })) => std::process::exit(0),
        Err(error) => {
            job.reporter.failed(&error);
            std::process::exit(1)
        }
    }
}
