//! Processes with the numbers, parents, sessions and descriptors that they had, and nothing else yet: forks of the
//! supervisor that wait to be made what they were.
//!
//! ```text
//! supervisor                                  each process
//!   |  -- fork, by its parent --------------->  |  session, group, terminal, descriptors
//!   |  <-- there is one more -----------------  |
//!   |  -- all are there (a byte for each) --->  |  pidfds, files of /proc/PID, what epoll watches
//!   |  <-- done ------------------------------  |  waits
//! ```
//! What must stay true: a child that is of another session than its parent was born before its parent made one.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs::File,
    io::{self, Read, Write},
    mem::ManuallyDrop,
    os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd},
    process,
};

use libc::pid_t;
use snaprig_resources::groups::{is_orphaned, joins};
use snaprig_resources::{
    error::{Error, Result, chain},
    files::enter,
    opened::{Opened, damaged, owned, path_of},
    processes::await_end,
    resource::Resources,
    state::{Body, Descriptor, OpenFile, Process, Tree},
};

use super::{
    groups,
    namespaces::{fork_as, fork_brother},
    staging::Staging,
};

/// Longest message of a process that cannot be planted.
const MESSAGE_MAX: usize = 2000;

/// Makes all processes of a tree; returns when each of them waits, or has ended if it had.
pub fn plant(
    tree: &Tree,
    opened: &mut Opened,
    resources: &Resources,
    staging: &Staging,
) -> Result<()> {
    let (reader, writer) = io::pipe().map_err(|source| Error::io("pipe", source))?;
    let ready = opened.keep(writer.into())?;
    let (all_there, mut told) = io::pipe().map_err(|source| Error::io("pipe", source))?;
    let all_there = opened.keep(all_there.into())?;
    let planter = Planter {
        tree,
        opened,
        resources,
        staging,
        ready,
        all_there,
    };
    // SAFETY: getsid(2) takes numbers alone and no address, so the kernel reads and writes no memory of this process.
    let session = unsafe { libc::getsid(0) };
    groups::make(tree, session)?;
    planter.children(tree.supervisor, session, |_| true)?;
    // SAFETY: the number is of the pipe's writing end, which this function got to give to the processes that it plants;
    // it closes its own here and does not use the number again.
    drop(unsafe { File::from_raw_fd(ready) });
    let mut reader = File::from(OwnedFd::from(reader));
    let living = tree.processes.iter().filter(|one| one.zombie.is_none());
    let count = living.count();
    hear(&mut reader, count)?;
    // Who has ended already says nothing, and until it has is as this process is: no checkpoint must find it so.
    for process in tree.processes.iter().filter(|one| one.zombie.is_some()) {
        await_end(process.pid)?;
    }
    told.write_all(&vec![0; count])
        .map_err(|source| Error::io("pipe", source))?;
    hear(&mut reader, count)
}

/// Waits until so many processes have got to where they say so, or one says why it cannot.
fn hear(reader: &mut File, count: usize) -> Result<()> {
    for _ in 0..count {
        let mut length = [0; 4];
        let read = reader.read_exact(&mut length);
        read.map_err(|source| Error::io("a process ended before it was restored", source))?;
        let length = u32::from_ne_bytes(length) as usize;
        if length > 0 {
            let mut message = vec![0; length.min(MESSAGE_MAX)];
            reader
                .read_exact(&mut message)
                .map_err(|source| Error::io("a process's message", source))?;
            let what = String::from_utf8_lossy(&message).into_owned();
            return Err(Error::Missing { what });
        }
    }
    Ok(())
}

struct Planter<'a> {
    tree: &'a Tree,
    opened: &'a Opened,
    resources: &'a Resources,
    staging: &'a Staging,
    /// Where processes say that they wait, or why they cannot.
    ready: RawFd,
    /// Where each of them reads that all are there.
    all_there: RawFd,
}

impl Planter<'_> {
    /// Forks those children of a process, which the caller is and which is in `session`, that `which` picks.
    fn children(
        &self,
        parent: pid_t,
        session: pid_t,
        which: impl Fn(&Process) -> bool,
    ) -> Result<()> {
        let all = self.tree.processes.iter();
        let children: Vec<_> = all
            .filter(|child| child.parent == parent && which(child))
            .collect();
        let mut made = Vec::new();
        for child in &children {
            let of = child.session;
            let is_orphan = of != session && is_orphaned(self.tree, of);
            if !is_orphan || groups::place(self.tree).session.is_none() && of == self.outside() {
                self.give(&[child.pid]);
                if fork_as(child.pid, child.exit_signal)? == 0 {
                    self.become_process(child);
                }
            } else if !made.contains(&of) {
                made.push(of);
                let brothers = children.iter().filter(|child| child.session == of);
                self.orphaned(of, &brothers.copied().collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }

    /// The session that the tree was launched in.
    fn outside(&self) -> pid_t {
        let root = self.tree.root;
        let root = self.tree.processes.iter().find(|one| one.pid == root);
        root.map_or(0, |root| root.session)
    }

    /// Children in a session whose leader has ended: it makes them, as its brothers.
    fn orphaned(&self, session: pid_t, children: &[&Process]) -> Result<()> {
        self.give(&children.iter().map(|child| child.pid).collect::<Vec<_>>());
        let leader = fork_as(session, libc::SIGCHLD)?;
        if leader != 0 {
            return groups::wait(leader);
        }
        // SAFETY: setsid(2) takes no argument; it was just made and leads no group, so that cannot fail.
        unsafe { libc::setsid() };
        let mut made = groups::make(self.tree, session);
        for child in children {
            self.give(&[child.pid]);
            match fork_brother(child.pid) {
                Ok(0) => self.become_process(child),
                Ok(_) => {}
                Err(error) => made = Err(error),
            }
        }
        process::exit(i32::from(made.is_err()))
    }

    /// Who is forked next has the memory of these processes and of their descendants, and of nobody else.
    fn give(&self, heads: &[pid_t]) {
        if self.staging.is_empty() {
            return;
        }
        let (mut spaces, mut heads) = (BTreeSet::new(), heads.to_vec());
        while let Some(head) = heads.pop() {
            for process in &self.tree.processes {
                if process.pid == head {
                    spaces.insert(process.space);
                }
                if process.parent == head {
                    heads.push(process.pid);
                }
            }
        }
        self.staging.give(&spaces);
    }

    fn become_process(&self, process: &Process) -> ! {
        if let Err(error) = self.settle(process) {
            self.fail(&error);
        }
        if let Some(status) = process.zombie {
            end(status);
        }
        self.say(&[]);
        self.wait_for_all();
        let late = process.body.as_ref().map(|body| self.add(process, body));
        if let Some(Err(error)) = late {
            self.fail(&error);
        }
        self.say(&[]);
        loop {
            // SAFETY: pause(2) takes no argument, and waits for a signal.
            unsafe { libc::pause() };
        }
    }

    fn fail(&self, error: &Error) -> ! {
        let mut message = chain(error).into_bytes();
        message.truncate(MESSAGE_MAX);
        self.say(&message);
        process::exit(1);
    }

    fn wait_for_all(&self) {
        // SAFETY: the number is of the pipe's reading end, which this process has from its parent and never closes; the
        // file is not dropped, so it is not closed here.
        let mut told = ManuallyDrop::new(unsafe { File::from_raw_fd(self.all_there) });
        if told.read_exact(&mut [0]).is_err() {
            // The restart has failed.
            process::exit(1);
        }
    }

    fn say(&self, message: &[u8]) {
        let mut bytes = (message.len() as u32).to_ne_bytes().to_vec();
        bytes.extend_from_slice(message);
        // SAFETY: the number is of the pipe's writing end, which this process has from its parent and never closes; the
        // file is taken apart again and not dropped, so it is not closed here.
        let mut ready = unsafe { File::from_raw_fd(self.ready) };
        // Who reads may be gone; then this process ends, too.
        let _ = ready.write_all(&bytes);
        let _ = ready.into_raw_fd();
    }

    fn settle(&self, process: &Process) -> Result<()> {
        let (pid, session) = (process.pid, process.session);
        if session == pid {
            // SAFETY: getsid(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
            // process.
            let before = unsafe { libc::getsid(0) };
            self.children(pid, before, |child| child.session != session)?;
            // SAFETY: setsid(2) takes no argument.
            if unsafe { libc::setsid() } < 0 {
                return Err(Error::io("setsid", io::Error::last_os_error()));
            }
            let mut kinds = self.resources.iter();
            kinds.try_for_each(|kind| kind.lead_session(self.tree, session))?;
            groups::make(self.tree, session)?;
            self.children(pid, session, |child| child.session == session)?;
        } else {
            if process.group == pid {
                // SAFETY: setpgid(2) takes numbers alone; this process is in the session of its group, and leads none.
                unsafe { libc::setpgid(0, 0) };
            }
            self.children(pid, session, |_| true)?;
        }
        if let (Some(_), Some(group)) = (process.zombie, joins(self.tree, process)) {
            // SAFETY: setpgid(2) takes numbers alone. The process has ended: nothing but its number is left to look at.
            unsafe { libc::setpgid(0, group) };
        }
        match &process.body {
            Some(body) => self.dress(body),
            None => Ok(()),
        }
    }

    /// Working directory, umask, descriptors.
    fn dress(&self, body: &Body) -> Result<()> {
        let cwd = path_of(&body.cwd);
        enter(cwd).map_err(|source| {
            Error::io(format!("the working directory {}", cwd.display()), source)
        })?;
        // SAFETY: umask(2) takes numbers alone and no address, so the kernel reads and writes no memory of this
        // process.
        unsafe {
            libc::umask(body.umask);
        }
        for fd in 0..self.opened.base {
            let wanted = body.descriptors.iter().find(|one| one.fd == fd);
            // SAFETY: this process was forked to become another and owns no descriptor below the base: what it has
            // there is its parent's, of whose owners in its copy of the memory none is ever dropped. close(2) takes a
            // number alone.
            unsafe {
                let wanted = wanted.filter(|one| !self.is_late(one));
                let Some(wanted) = wanted else {
                    libc::close(fd);
                    continue;
                };
                let from = self.opened.files.get(wanted.file as usize);
                place(from.copied().unwrap_or(-1), wanted)?;
            }
        }
        Ok(())
    }

    fn is_late(&self, one: &Descriptor) -> bool {
        let file = self.tree.files.get(one.file as usize);
        let is_late = |kind| self.resources.iter().any(|one| one.is_late(kind));
        file.is_some_and(|file| is_late(&file.kind))
    }

    /// What takes other processes to be there.
    fn add(&self, process: &Process, body: &Body) -> Result<()> {
        let mut made: BTreeMap<u32, OwnedFd> = BTreeMap::new();
        let late = || body.descriptors.iter().filter(|one| self.is_late(one));
        for one in late().filter(|one| one.fd < self.opened.base) {
            if let Entry::Vacant(entry) = made.entry(one.file) {
                let file = self.open_late(&self.tree.files[one.file as usize])?;
                // SAFETY: F_DUPFD_CLOEXEC takes a number, so fcntl(2) reads and writes no memory of this process.
                let above = unsafe {
                    libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, self.opened.base)
                };
                entry.insert(owned(above, "too many files")?);
            }
            place(made[&one.file].as_raw_fd(), one)?;
        }
        drop(made);
        let mut kinds = self.resources.iter();
        kinds.try_for_each(|kind| kind.add(self.tree, self.opened, process, body))
    }

    /// Opens a file of the kind that is late.
    fn open_late(&self, file: &OpenFile) -> Result<OwnedFd> {
        for kind in self.resources {
            if let Some(opened) = kind.open_late(file)? {
                return Ok(opened);
            }
        }
        Err(damaged("a file that is opened late"))
    }
}

/// Gives an open file the number that a process has it at.
fn place(from: RawFd, wanted: &Descriptor) -> Result<()> {
    let flags = if wanted.close_on_exec {
        libc::O_CLOEXEC
    } else {
        0
    };
    // SAFETY: dup3(2) takes numbers alone; what this process, which was forked to become another, has had there nobody
    // owns.
    match unsafe { libc::dup3(from, wanted.fd, flags) } {
        -1 => Err(Error::io(
            format!("descriptor {}", wanted.fd),
            io::Error::last_os_error(),
        )),
        _ => Ok(()),
    }
}

/// Ends as a process did that nobody has waited for.
fn end(status: i32) -> ! {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        // SAFETY: the calls read structures of this frame, one of which has numbers alone, for which zero is a value,
        // and write nothing to a null pointer. No handler of this program is taken away that anybody waits for: it ends
        // here.
        unsafe {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&raw mut set, signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
            libc::kill(libc::getpid(), signal);
        }
    }
    process::exit(libc::WEXITSTATUS(status))
}
