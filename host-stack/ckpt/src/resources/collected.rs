//! The open files of a tree: each once, however many descriptors it has.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, HashMap},
    ffi::OsStr,
    fs::{self, File},
    io::{Seek, SeekFrom},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, PermissionsExt},
        },
    },
    path::{Path, PathBuf},
};

use libc::pid_t;
use snaprig_tracee::descriptors::{
    compare, copy_of, descriptors, is_ours, is_own, is_same_file, is_watched, me, passed_on,
};

use super::{
    counters::save::{Target, hex, timer, watched},
    descriptor::{Class, Seen},
    files::named::Named,
    huge::pages,
    locks::save as held,
    pipes::save::Pipes,
    plugins::owned::Owned,
    sockets::save::Sockets,
    terminals::save::{self as terminals, Terminals},
    watches::save as watches,
};
use crate::{
    dump::areas::{Shared, id_of},
    error::{Error, Result},
    spaces::Key,
    state::{
        Console, Contents, Descriptor, FileId, Kind, Lock, LockedBy, Message, OpenFile, Pipe,
        Terminal, Watch,
    },
};

/// Files with names that a program writes to are saved up to so many bytes; of larger ones only what they are is
/// remembered.
const CONTENTS_MAX: u64 = 256 << 20;
/// Files that a program only reads are known again by all of their bytes, if they have no more than this.
const HASHED_MAX: u64 = 128 << 10;

/// A time of modification that no file has.
const UNKNOWN: i64 = i64::MIN;

/// Open files, as they are met.
#[derive(Debug, Default)]
pub struct Files<'a> {
    /// What is not to be looked at.
    owned: Option<&'a Owned>,
    /// What each is.
    pub open: Vec<OpenFile>,
    /// Who has each first: process and descriptor.
    first: Vec<(pid_t, i32)>,
    /// Those that may be the same, in the kernel's order: there may be thousands of one name.
    alike: HashMap<(u64, u64, u64), Vec<u32>>,
    /// Contents to be saved.
    pub contents: Vec<Source>,
    /// Of which files they are: device and inode.
    saved: HashMap<(u64, u64), Contents>,
    /// Epoll instances are resolved when all are known: their lines of fdinfo.
    epolls: Vec<(u32, pid_t, Vec<Target>)>,
    /// Descriptor tables met: who can see what an epoll's numbers mean.
    tables: BTreeMap<(pid_t, i32), u32>,
    /// Sockets.
    pub sockets: Sockets,
    pipes: Pipes,
    /// Terminals.
    pub terminals: Terminals,
    /// Copies of files that no process has.
    pub kept: Vec<OwnedFd>,
    /// What the supervisor was launched with.
    passed_on: Option<Vec<i32>>,
}

/// Where the bytes of a file are read.
#[derive(Debug)]
pub enum Source {
    /// By a name.
    Path(PathBuf),
    /// Through the program's own open file, and where that is at: to open a file breaks a lease on it.
    Own(File, u64),
}

impl Source {
    /// Which space of a chain of images the bytes are.
    pub fn key(&self) -> Result<Key> {
        let metadata = match self {
            Self::Path(path) => fs::metadata(path),
            Self::Own(file, _) => file.metadata(),
        };
        let metadata = metadata.map_err(|source| Error::io("contents of a file", source))?;
        let (device, inode) = id_of(&metadata);
        Ok(Key::Contents(device, inode))
    }

    /// Has the bytes read; they are where they were when it returns.
    pub fn read(&self, read: impl FnOnce(&File) -> Result<()>) -> Result<()> {
        match self {
            Self::Path(path) => {
                let file = File::open(path);
                let named = |source| Error::io(path.display().to_string(), source);
                read(&file.map_err(named)?)
            }
            Self::Own(file, offset) => {
                let done = read(file);
                let back = { file }.seek(SeekFrom::Start(*offset));
                back.map_err(|source| Error::io("lseek", source))?;
                done
            }
        }
    }
}

/// What files of a tree are of.
#[derive(Debug, Default)]
pub struct Resolved {
    /// Pipes.
    pub pipes: Vec<Pipe>,
    /// Pseudoterminals.
    pub terminals: Vec<Terminal>,
    /// The terminal that the tree is on with its supervisor.
    pub console: Option<Console>,
}

impl<'a> Files<'a> {
    /// None yet; those that belong to plugins are not saved.
    pub fn new(owned: &'a Owned) -> Self {
        Self {
            owned: Some(owned),
            ..Self::default()
        }
    }

    /// The descriptors of a process, as one of its threads has them: the first may have ended.
    pub fn of(
        &mut self,
        (process, pid): (pid_t, pid_t),
        shared: &mut Shared,
        named: &mut Named,
    ) -> Result<Vec<Descriptor>> {
        let mut found = Vec::new();
        for fd in descriptors(pid)? {
            let seen = Seen::look(pid, fd)?;
            let locks = held::locks(process, &seen)?;
            let file = self.meet(&seen, locks, shared, named)?;
            self.tables.insert((pid, fd), file);
            found.push(Descriptor {
                fd,
                file,
                close_on_exec: seen.info.flags & libc::O_CLOEXEC != 0,
            });
        }
        Ok(found)
    }

    /// A file that a process has mapped to write to: its contents go back with its memory, if it has a descriptor of it
    /// or not. All that have are known. Its time of modification says nothing: memory is written without one.
    pub fn mapped(&mut self, file: &FileId) -> Result<()> {
        let path = Path::new(OsStr::from_bytes(&file.path));
        let metadata = fs::metadata(path);
        let metadata = metadata.map_err(|source| Error::io(path.display().to_string(), source))?;
        if !metadata.is_file() || metadata.len() > CONTENTS_MAX {
            return Ok(());
        }
        if let Some(saved) = self.saved.get(&id_of(&metadata)) {
            for open in &mut self.open {
                if let Kind::Path {
                    contents: Some(contents),
                    file: Some(file),
                    ..
                } = &mut open.kind
                    && contents.space == saved.space
                {
                    file.modified_nanos = UNKNOWN;
                }
            }
            return Ok(());
        }
        let contents = Contents {
            space: self.contents.len() as u32,
            size: metadata.len(),
        };
        self.contents.push(Source::Path(path.to_owned()));
        self.saved.insert(id_of(&metadata), contents);
        self.first.push((me(), -1));
        self.open.push(OpenFile {
            flags: libc::O_RDWR,
            kind: Kind::Path {
                path: file.path.clone(),
                offset: 0,
                file: Some(FileId {
                    modified_nanos: UNKNOWN,
                    ..file.clone()
                }),
                tail: 0,
                contents: Some(contents),
                unlinked: false,
                mode: metadata.permissions().mode() & 0o7777,
            },
            owner: None,
            locks: Vec::new(),
        });
        Ok(())
    }

    fn meet(
        &mut self,
        seen: &Seen,
        locks: Vec<Lock>,
        shared: &mut Shared,
        named: &mut Named,
    ) -> Result<u32> {
        let known = self.known(seen);
        if let Ok(file) = known {
            self.check_plugins(file, seen)?;
            // Each process has its own.
            let held = &mut self.open[file as usize].locks;
            for lock in locks {
                if !held.contains(&lock) {
                    held.push(lock);
                }
            }
            return Ok(file);
        }
        let (pid, fd) = (seen.pid, seen.fd);
        let number = self.open.len() as u32;
        let alike = self.alike.entry(seen_alike(seen)).or_default();
        alike.insert(known.err().unwrap_or(0), number);
        self.first.push((pid, fd));
        let own = is_own(pid, fd);
        // Its place: epolls may watch themselves in a circle.
        self.open.push(OpenFile {
            flags: seen.info.flags & !libc::O_CLOEXEC,
            kind: Kind::Stdio(own.unwrap_or(-1)),
            owner: None,
            locks,
        });
        let owned = self
            .owned
            .and_then(|owned| owned.kind(pid, fd, &seen.metadata));
        if let Some(kind) = owned {
            self.open[number as usize].kind = kind;
            return Ok(number);
        }
        let copy = copy_of(pid, fd)?;
        if !seen.is_name() {
            let owner = held::owner(&copy).map_err(|source| Error::Process {
                pid,
                what: format!("the owner of descriptor {fd}"),
                source,
            })?;
            let told = owner.filter(|owner| owner.kind != held::OF_GROUP && owner.id != 0);
            if told.is_some_and(|owner| !is_ours(owner.id)) {
                return Err(seen.refused("a process outside gets its signals (F_SETOWN)"));
            }
            self.open[number as usize].owner = owner;
        }
        if own.is_none() {
            self.open[number as usize].kind = self.kind(number, seen, copy, shared, named)?;
        }
        Ok(number)
    }

    /// Between fork(2) and the first that it says for itself, or exec, a child has its parent's plugins, and none.
    fn check_plugins(&self, file: u32, seen: &Seen) -> Result<()> {
        let (parent, _) = self.first[file as usize];
        let is_channel = matches!(self.open[file as usize].kind, Kind::Supervisor);
        match is_channel && seen.pid != parent {
            true => Err(not_registered(seen.pid, parent).for_now()),
            false => Ok(()),
        }
    }

    /// The number of an open file that has been met before, or its place among those that are like it.
    fn known(&self, seen: &Seen) -> std::result::Result<u32, usize> {
        let Some(alike) = self.alike.get(&seen_alike(seen)) else {
            return Err(0);
        };
        let order = |file: &u32| {
            let order = compare(self.first[*file as usize], (seen.pid, seen.fd));
            // Who is gone has no file: what is found out of others fails the checkpoint.
            order.unwrap_or(Ordering::Greater)
        };
        alike.binary_search_by(order).map(|place| alike[place])
    }

    fn kind(
        &mut self,
        number: u32,
        seen: &Seen,
        copy: OwnedFd,
        shared: &mut Shared,
        named: &mut Named,
    ) -> Result<Kind> {
        let info = &seen.info;
        let class = seen.class(is_ours)?;
        if matches!(class, Class::Pipe | Class::Socket)
            && let Some(own) = self.inherited(seen)
        {
            return Ok(Kind::Stdio(own));
        }
        Ok(match class {
            Class::Proc(pid, path) => Kind::Proc {
                pid,
                path,
                offset: info.offset,
            },
            Class::Memory(name) => memory(seen, Some(name), &copy, shared),
            // A hugetlbfs may not be there where it is restarted.
            Class::Path if seen.lost_name().is_some() && pages::of_file(&copy) != 0 => {
                memory(seen, None, &copy, shared)
            }
            Class::Path => self.path(number, seen, copy, named)?,
            Class::Pipe => Kind::Pipe(self.pipes.meet(seen, copy)),
            Class::Socket => self.socket(number, seen, shared, named)?,
            Class::Terminal => {
                self.terminals.meet(number, seen, copy)?;
                Kind::Console
            }
            Class::Event => Kind::Event {
                count: info.get("eventfd-count").and_then(hex).unwrap_or(0),
                semaphore: info.number("eventfd-semaphore") == Some(1),
            },
            Class::Epoll => {
                self.epolls.push((number, seen.pid, watched(info)));
                Kind::Epoll {
                    watched: Vec::new(),
                }
            }
            Class::Signal => Kind::Signal {
                mask: info.get("sigmask").and_then(hex).unwrap_or(0),
            },
            Class::Timer => {
                let timer = timer(seen, &copy)?;
                timer.ok_or_else(|| seen.refused("a timer that is not understood"))?
            }
            Class::Inotify => Kind::Inotify(watches::describe(seen, copy.as_fd(), named)?),
            Class::Pid(pid) => Kind::Pid(pid),
        })
    }

    /// Which of the descriptors that the supervisor was launched with a descriptor is.
    fn inherited(&mut self, seen: &Seen) -> Option<i32> {
        let passed_on = self.passed_on.get_or_insert_with(passed_on);
        let is_it = |own: &&i32| is_same_file((seen.pid, seen.fd), (me(), **own));
        passed_on.iter().find(is_it).copied()
    }

    fn socket(
        &mut self,
        number: u32,
        seen: &Seen,
        shared: &mut Shared,
        named: &mut Named,
    ) -> Result<Kind> {
        let of = (seen.pid, seen.fd);
        let (mut socket, messages) = self.sockets.meet(number, of, seen.metadata.ino())?;
        for message in messages {
            let files = self.passed(message.files, shared, named)?;
            socket.received.push(Message {
                bytes: message.bytes,
                files,
                from: message.from,
            });
        }
        Ok(Kind::Socket(Box::new(socket)))
    }

    fn path(&mut self, number: u32, seen: &Seen, copy: OwnedFd, named: &mut Named) -> Result<Kind> {
        let (metadata, name) = (&seen.metadata, seen.name.as_os_str().as_bytes());
        let gone = seen.lost_name();
        // What the kernel makes up as it is read is neither saved nor compared.
        let is_regular = metadata.is_file()
            && !seen.is_name()
            && ![b"/proc/".as_slice(), b"/sys/"]
                .iter()
                .any(|root| name.starts_with(root));
        let writes = seen.info.flags & libc::O_ACCMODE != libc::O_RDONLY;
        // What has no name is nowhere else.
        let is_saved = is_regular && (gone.is_some() || writes && metadata.len() <= CONTENTS_MAX);
        if gone.is_some() && !is_saved {
            return Err(seen.refused("a file of the kernel's that has been removed"));
        }
        let mut locks = self.open[number as usize].locks.iter();
        let is_leased = locks.any(|lock| lock.by == LockedBy::Lease);
        if is_leased && seen.info.flags & (libc::O_ACCMODE | libc::O_DIRECT) != libc::O_RDWR {
            return Err(seen.refused("a lease on what only others can read"));
        }
        let (file, tail) = match is_regular && gone.is_none() {
            true if is_leased => (Some(named.file(seen.pid, &seen.name, false)?), 0),
            true => {
                let is_hashed = !writes && metadata.len() <= HASHED_MAX;
                let file = named
                    .file(seen.pid, &seen.name, is_hashed)
                    .or_else(|_| named.file(seen.pid, &seen.name, false))?;
                (Some(file), named.tail(&seen.name))
            }
            false => (None, 0),
        };
        Ok(Kind::Path {
            path: gone.unwrap_or(name).to_vec(),
            offset: seen.info.offset,
            file,
            tail,
            contents: is_saved.then(|| {
                self.save(
                    seen,
                    match is_leased {
                        true => Source::Own(copy.into(), seen.info.offset),
                        false => Source::Path(seen.path()),
                    },
                )
            }),
            unlinked: gone.is_some(),
            mode: metadata.permissions().mode() & 0o7777,
        })
    }

    /// The contents of a file, which are saved once. The space is that behind all others, for now.
    fn save(&mut self, seen: &Seen, source: Source) -> Contents {
        let contents = &mut self.contents;
        *self.saved.entry(id_of(&seen.metadata)).or_insert_with(|| {
            contents.push(source);
            Contents {
                space: contents.len() as u32 - 1,
                size: seen.metadata.len(),
            }
        })
    }

    /// Files that are on their way from process to process: they are this process's as well until all is saved.
    fn passed(
        &mut self,
        copies: Vec<OwnedFd>,
        shared: &mut Shared,
        named: &mut Named,
    ) -> Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for copy in copies {
            let fd = copy.as_raw_fd();
            self.kept.push(copy);
            let seen = Seen::look(me(), fd)?;
            // A process's own locks are not on their way.
            let locks = held::locks(me(), &seen)?;
            let number = self.meet(&seen, locks, shared, named)?;
            if matches!(
                self.open[number as usize].kind,
                Kind::Proc { .. } | Kind::Pid(1..)
            ) {
                return Err(seen.refused("it is in a message on its way"));
            }
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// When all files are known: says of epoll instances what they watch, of sockets and pipes who is at their other
    /// ends, and what is in them. `processes`: those of the tree.
    pub fn resolve(&mut self, processes: &[pid_t], shared: &mut Shared) -> Result<Resolved> {
        self.share(shared);
        let pipes = self.pipes.describe()?;
        let mut terminals = self.terminals.join(&mut self.open, processes)?;
        for (number, pid, targets) in std::mem::take(&mut self.epolls) {
            let watched = targets
                .into_iter()
                .map(|target| self.watch(number, pid, target));
            let watched = watched.collect::<Result<_>>()?;
            self.open[number as usize].kind = Kind::Epoll { watched };
        }
        self.sockets.join(&mut self.open)?;
        self.terminals.contents(&mut terminals)?;
        Ok(Resolved {
            pipes,
            terminals,
            console: terminals::console(&self.open),
        })
    }

    /// Files without names that somebody maps are memory, which all who have them share.
    fn share(&mut self, shared: &mut Shared) {
        for (file, first) in self.open.iter_mut().zip(&self.first) {
            let Kind::Path {
                contents: Some(contents),
                unlinked: true,
                offset,
                ..
            } = &file.kind
            else {
                continue;
            };
            let mut saved = self.saved.iter();
            let id = saved.find(|(_, other)| other.space == contents.space);
            let id = id.map(|(id, _)| *id);
            let object = shared.met.iter().position(|object| Some(object.id) == id);
            if let Some(number) = object {
                shared.met[number].size = contents.size;
                shared.met[number].open = Some(*first);
                file.kind = Kind::Memory {
                    shared: number as u32,
                    offset: *offset,
                };
            }
        }
    }

    /// What an epoll instance watches may be closed, or another file's number by now.
    fn watch(&self, epoll: u32, pid: pid_t, (fd, events, data): Target) -> Result<Watch> {
        let (_, own) = self.first[epoll as usize];
        let file = self.tables.get(&(pid, fd)).copied();
        let file = file.filter(|_| is_watched((pid, fd), own, fd));
        let file = file.ok_or_else(|| {
            let what = format!("an epoll instance watches descriptor {fd}, which is closed");
            Error::refused(pid, what)
        })?;
        Ok(Watch {
            fd,
            file,
            events,
            data,
        })
    }
}

fn seen_alike(seen: &Seen) -> (u64, u64, u64) {
    let (device, inode) = id_of(&seen.metadata);
    (device, inode, seen.info.offset)
}

/// A child that has the connection of its parent's plugins.
fn not_registered(pid: pid_t, parent: pid_t) -> Error {
    let what = format!(
        "it has the plugins of process {parent}, and was not made by fork(3), which registers them"
    );
    Error::refused(pid, what)
}

fn memory(seen: &Seen, name: Option<Vec<u8>>, copy: &OwnedFd, shared: &mut Shared) -> Kind {
    let object = shared.meet(id_of(&seen.metadata), name, pages::of_file(copy));
    let object_of = &mut shared.met[object];
    object_of.size = seen.metadata.len();
    object_of.open = Some((seen.pid, seen.fd));
    // SAFETY: no memory is involved.
    object_of.seals = unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_GET_SEALS) }.max(0);
    Kind::Memory {
        shared: object as u32,
        offset: seen.info.offset,
    }
}
