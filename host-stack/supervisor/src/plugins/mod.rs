//! Plugins within the programs of a tree, seen from its supervisor: the driver of [`machine`]. What is said is in
//! [`snaprig_ckpt_plugin::message`].
//!
//! ```text
//! gather: all plugins ready --> the tree is stopped --> has anybody come or said something? then on, and once more
//!         --> what belongs to plugins is left out of the image --> the tree goes on --> release
//! ```
//!
//! What must stay true: whoever has been asked is told what came of it, whatever goes wrong.

mod machine;

use std::{
    cell::RefCell,
    collections::BTreeMap,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::{Path, PathBuf},
    rc::Rc,
    time::Instant,
};

use libc::pid_t;
use rustix::{
    event::{Timespec, epoll},
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
        sockopt,
    },
};
use snaprig_ckpt::error::{Error, Result};
use snaprig_ckpt_plugin::message::{MESSAGE_MAX, SOCKET, ToProcess, decode, encode};
use snaprig_tracee::freeze;

use self::machine::{Connection, Machine, Output, Progress};
pub use snaprig_ckpt::owned::Owned;

/// The socket's name in a directory of checkpoints.
const NAME: &str = "plugins";
/// Connections that wait to be taken.
const BACKLOG: i32 = 4096;
/// What the listener is in the epoll instance.
const LISTENER: u64 = 0;
/// The longest value of a variable.
const VALUE_MAX: usize = MESSAGE_MAX - 16;

/// The plugins of a tree.
pub struct Plugins {
    machine: Machine,
    path: PathBuf,
    listener: OwnedFd,
    epoll: OwnedFd,
    sockets: BTreeMap<Connection, OwnedFd>,
    next: Connection,
}

impl Plugins {
    /// Listens for the plugins of programs in a directory of checkpoints.
    pub fn listen(directory: &Path) -> Result<Self> {
        let directory = directory.canonicalize();
        let path = directory.map(|directory| directory.join(NAME));
        let path = path.map_err(|source| Error::io(NAME, source))?;
        let failed = |source: rustix::io::Errno| Error::io(path.display().to_string(), source);
        // Who was there has gone: it has the other socket of the directory.
        let _ = std::fs::remove_file(&path);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let bound = || {
            let listener =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
            rustix::net::listen(&listener, BACKLOG)?;
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            watch(&epoll, &listener, LISTENER)?;
            Ok((listener, epoll))
        };
        let (listener, epoll) = bound().map_err(failed)?;
        Ok(Self {
            machine: Machine::default(),
            path,
            listener,
            epoll,
            sockets: BTreeMap::new(),
            next: LISTENER + 1,
        })
    }

    /// What programs have in their environment.
    pub fn variable(&self) -> (&'static str, &Path) {
        (SOCKET, &self.path)
    }

    /// When [`Plugins::go_on`] is due, at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        self.machine.deadline()
    }

    /// Hears what processes say, and answers.
    pub fn go_on(&mut self) {
        self.hear(Some(Instant::now()));
        self.machine.tick(Instant::now());
        self.perform();
    }

    /// Tells plugins of a restarted tree, whose processes' ends of connections these are the others of.
    pub fn restart(&mut self, channels: Vec<(pid_t, OwnedFd)>, checkpoint: &Path) -> Result<()> {
        if channels.is_empty() {
            return Ok(());
        }
        for (pid, channel) in channels {
            self.add(channel, pid)?;
        }
        let checkpoint = checkpoint.canonicalize();
        let checkpoint = checkpoint.map_err(|source| Error::io("the checkpoint", source))?;
        let socket = self.path.as_os_str().as_bytes();
        let now = Instant::now();
        self.machine
            .restart(checkpoint.as_os_str().as_bytes(), socket, now);
        match self.work() {
            Progress::Failed(refusal) => Err(Error::Missing {
                what: format!("process {}, {}", refusal.pid, refusal.what),
            }),
            _ => Ok(()),
        }
    }

    /// Whether there are no programs with plugins.
    pub fn are_none(&self) -> bool {
        self.sockets.is_empty()
    }

    fn gather(&mut self, directory: Option<&Path>) -> Result<()> {
        self.hear(Some(Instant::now()));
        let Some(directory) = directory else {
            return match self.machine.first() {
                Some((pid, name)) => {
                    let what = format!("plugin {name}: it cannot go along to another machine");
                    Err(Error::refused(pid, what))
                }
                None => Ok(()),
            };
        };
        let now = Instant::now();
        self.machine.gather(directory.as_os_str().as_bytes(), now);
        match self.work() {
            Progress::Failed(refusal) => Err(Error::refused(refusal.pid, refusal.what)),
            _ => Ok(()),
        }
    }

    fn release(&mut self) {
        self.machine.release(Instant::now());
        self.work();
    }

    /// Until there is nothing left to do.
    fn work(&mut self) -> Progress {
        loop {
            self.perform();
            match self.machine.progress() {
                Progress::AtWork => {}
                other => return other,
            }
            self.hear(self.machine.deadline());
            self.machine.tick(Instant::now());
        }
    }

    /// Whether somebody has said something that was not heard yet.
    fn has_news(&self) -> bool {
        let mut events = Vec::with_capacity(1);
        let now = Timespec::default();
        let waiting = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&now),
        );
        !matches!(waiting, Ok(0)) || !self.machine.is_gathered()
    }

    /// Waits for somebody who says something; and everybody is heard. No longer than to the deadline.
    fn hear(&mut self, deadline: Option<Instant>) {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let room = rustix::buffer::spare_capacity(&mut events);
        // A signal is the caller's.
        let _ = epoll::wait(&self.epoll, room, left.as_ref());
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(),
                connection => self.receive(connection),
            }
        }
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // SAFETY: no preconditions.
        let own = unsafe { libc::getpid() };
        while let Ok(socket) = accept_with(&self.listener, flags) {
            let peer = sockopt::socket_peercred(&socket);
            let Ok(pid) = peer.map(|peer| peer.pid.as_raw_nonzero().get()) else {
                continue;
            };
            // Who is none of the tree has no plugins in it.
            if freeze::is_descendant(pid, own)
                && let Err(error) = self.add(socket, pid)
            {
                tracing::warn!(%error, pid, "its plugins are not known");
            }
        }
    }

    fn add(&mut self, socket: OwnedFd, pid: pid_t) -> Result<()> {
        let connection = self.next;
        self.next += 1;
        watch(&self.epoll, &socket, connection).map_err(|source| Error::io("epoll_ctl", source))?;
        self.sockets.insert(connection, socket);
        self.machine.connected(connection, pid);
        Ok(())
    }

    /// Takes all that has come from a process.
    fn receive(&mut self, connection: Connection) {
        let mut bytes = vec![0; MESSAGE_MAX];
        while let Some(socket) = self.sockets.get(&connection) {
            let received = rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT);
            let now = Instant::now();
            match received {
                Ok((count @ 1.., _)) => match decode(&bytes[..count]) {
                    Some(message) => self.machine.received(connection, message, now),
                    None => self.hang_up(connection),
                },
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Ok(_) | Err(_) => self.hang_up(connection),
            }
            self.perform();
        }
    }

    fn hang_up(&mut self, connection: Connection) {
        self.sockets.remove(&connection);
        self.machine.gone(connection);
    }

    fn perform(&mut self) {
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(connection, message) => self.send(connection, &message),
                Output::Answer(connection, name) => {
                    let name = std::ffi::OsString::from_vec(name);
                    // getenv(3) has no such names, and std's function panics.
                    let is_name =
                        !name.is_empty() && !name.as_bytes().iter().any(|b| b"=\0".contains(b));
                    let value = is_name.then(|| std::env::var_os(name)).flatten();
                    let value = value.map(OsStringExt::into_vec);
                    let value = value.filter(|value| value.len() <= VALUE_MAX);
                    self.send(connection, &ToProcess::Value(value));
                }
                Output::Close(connection) => drop(self.sockets.remove(&connection)),
            }
        }
    }

    fn send(&mut self, connection: Connection, message: &ToProcess) {
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

/// Plugins that are ready for a checkpoint; dropped, they are told that the program runs on.
pub struct Gathered {
    /// None: there is nobody to tell.
    plugins: Option<SharedPlugins>,
    /// Where their files are; none: they cannot have any, and so there must be none of them.
    directory: Option<PathBuf>,
}

impl Gathered {
    /// Asks all plugins for a checkpoint in this directory. If one refuses, the others are told. Without a directory
    /// their files cannot go along, and there must be none of them.
    pub fn of(plugins: &SharedPlugins, directory: Option<&Path>) -> Result<Self> {
        let directory = directory.map(Path::canonicalize).transpose();
        let gathered = Self {
            plugins: Some(plugins.clone()),
            directory: directory.map_err(|source| Error::io("the round's directory", source))?,
        };
        gathered.again()
    }

    /// Asks those, too, that have come since.
    pub fn again(self) -> Result<Self> {
        if let Some(plugins) = &self.plugins {
            plugins.borrow_mut().gather(self.directory.as_deref())?;
        }
        Ok(self)
    }

    /// Whether, now that the tree stands still, nobody has come since, or said something.
    pub fn is_all(&self) -> bool {
        let plugins = self.plugins.as_ref();
        plugins.is_none_or(|plugins| !plugins.borrow().has_news())
    }

    /// What belongs to plugins.
    pub fn owned(&self) -> Owned {
        let plugins = self.plugins.as_ref().map(|plugins| plugins.borrow());
        Owned::of(plugins.iter().flat_map(|plugins| plugins.machine.owned()))
    }

    /// The tree has ended: there is nobody to tell.
    pub fn forget(mut self) {
        self.plugins = None;
    }
}

impl Drop for Gathered {
    fn drop(&mut self) {
        if let Some(plugins) = &self.plugins {
            plugins.borrow_mut().release();
        }
    }
}

fn watch(epoll: &OwnedFd, fd: &OwnedFd, number: u64) -> rustix::io::Result<()> {
    epoll::add(
        epoll,
        fd,
        epoll::EventData::new_u64(number),
        epoll::EventFlags::IN,
    )
}
