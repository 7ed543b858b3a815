//! Descriptors of restored processes, from what an image says of them ([`super::image`]).
//!
//! What must stay true: until [`Rebuilt::commit`] nothing on the card has changed. Indexes in an image
//! may be anything; what they do not lead to makes it damaged.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use super::{
    FileTable, Open, RegularFile, Vfs,
    epoll::Epoll,
    event::Event,
    image::{FileImage, FilesImage, OpenImage, SocketImage, SocketState, StreamImage},
    locks,
    meta::Meta,
    passed::Passed,
    pipe::{PipeEnd, Queue},
    regular::{Directory, PathOnly},
    socket::{Listener, Socket, State, Stream},
    socket_calls::Address,
    stored::{FileRef, Stored},
    timer::Timer,
    tree::Node,
};
use crate::kernel::{
    errno::Errno,
    file::{Cx, Description, File},
    pidfd::{Ending, PidFd},
    signalfd::SignalFd,
};

/// What changes what is on the card, and is for a restore to leave out.
const CREATION: i32 = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC;

/// Something of the image cannot be on this card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {errno}")]
pub struct RebuildError {
    /// What.
    pub what: String,
    /// Why not.
    pub errno: Errno,
}

fn failed(what: impl Into<String>) -> impl FnOnce(Errno) -> RebuildError {
    let what = what.into();
    move |errno| RebuildError { what, errno }
}

fn damaged() -> RebuildError {
    failed("a reference to what is not in the image")(Errno::EBADMSG)
}

/// Where files of the image are looked for.
pub struct Sources<'a> {
    /// In the image.
    pub stored: &'a Stored,
    /// A process of each table of descriptors.
    pub pids: &'a [i32],
    /// Processes of the image.
    pub endings: &'a BTreeMap<i32, Arc<Ending>>,
    /// In place of the card's console.
    pub stdio: &'a [Arc<dyn File>; 3],
}

/// Tables of descriptors, and names that are still to be given.
pub struct Rebuilt {
    /// The tables.
    pub tables: Vec<FileTable>,
    names: Vec<(Arc<Listener>, Address)>,
}

/// The tables of an image.
pub fn rebuild(
    vfs: &Vfs,
    cx: &mut Cx,
    image: &FilesImage,
    sources: &Sources,
) -> Result<Rebuilt, RebuildError> {
    let queues = image.queues.iter().map(Queue::from_image);
    let queues = queues.collect::<Result<Vec<_>, _>>();
    let mut building = Building {
        queues: queues.map_err(failed("a pipe"))?,
        ends: image.queues.iter().map(|queue| queue.ends).collect(),
        names: Vec::new(),
    };
    let mut opens = Vec::new();
    for open in &image.opens {
        let file = building.file(vfs, cx, open, sources)?;
        let (file, meta) = file;
        opens.push(Open::named(file, open.flags, meta));
    }
    let get = |index: u32| opens.get(index as usize).cloned().ok_or_else(damaged);
    for (image, queue) in image.queues.iter().zip(&building.queues) {
        for (at, passed) in &image.passed {
            let files = passed.iter().map(|open| get(*open));
            let files = files.collect::<Result<Vec<_>, _>>()?;
            let passed = Passed::new(files, vfs.in_flight());
            queue.put_in_flight(*at, passed.map_err(failed("descriptors on their way"))?);
        }
    }
    for (image, open) in image.opens.iter().zip(&opens) {
        if let (FileImage::Epoll(interest), Some(epoll)) =
            (&image.file, open.file.as_any().downcast_ref::<Epoll>())
        {
            for entry in interest {
                let watched = get(entry.open)?;
                // Only a hostile image has an instance watch another, or one thing twice.
                if !watched.file.as_any().is::<Epoll>() {
                    let (fd, events) = (entry.fd, entry.events);
                    let _ = epoll.control(libc::EPOLL_CTL_ADD, fd, &watched, events, entry.data);
                }
            }
        }
    }
    let mut tables = Vec::new();
    for (image, pid) in image.tables.iter().zip(sources.pids) {
        let mut table = FileTable::default();
        for descriptor in image {
            if descriptor.fd < 0 {
                return Err(damaged());
            }
            let open = get(descriptor.open)?;
            let owner = (table.id(), *pid);
            locks::restore(&open, owner, &descriptor.locks, cx.wake)
                .map_err(failed(format!("locks of descriptor {}", descriptor.fd)))?;
            table.insert_at(descriptor.fd, open, descriptor.close_on_exec, cx.wake);
        }
        tables.push(table);
    }
    let names = building.names;
    Ok(Rebuilt { tables, names })
}

impl Rebuilt {
    /// Gives sockets their names. If one cannot have its name, none has.
    pub fn commit(self, vfs: &mut Vfs) -> Result<Vec<FileTable>, RebuildError> {
        for (_, name) in &self.names {
            let is_free = match name {
                Address::Port(port) => vfs.find_port(*port).is_none(),
                Address::Abstract(name) => vfs.find_abstract(name).is_none(),
                Address::Path(path) => match vfs.find(vfs.root(), path, true) {
                    Ok(found) => found.node.is_none_or(|node| match vfs.node(node) {
                        Some(Node::Socket(listener)) => {
                            listener.as_ref().is_none_or(|it| !it.is_open())
                        }
                        _ => false,
                    }),
                    Err(errno) => errno == Errno::ENOENT,
                },
            };
            if !is_free {
                return Err(failed(format!("a socket's name, {name:?}"))(
                    Errno::EADDRINUSE,
                ));
            }
        }
        for (listener, name) in self.names {
            let what = failed(format!("a socket's name, {name:?}"));
            match name {
                Address::Port(port) => vfs.add_port(port, &listener).map(|_| ()),
                Address::Abstract(name) => vfs.add_abstract(name, &listener),
                Address::Path(path) => vfs.put(&path, Node::Socket(Some(listener))),
            }
            .map_err(what)?;
        }
        Ok(self.tables)
    }
}

/// A file, and the attributes of its name if it does not know them itself.
type Named = (Arc<dyn File>, Option<Arc<Meta>>);

/// A rebuild on its way.
struct Building {
    queues: Vec<Arc<Queue>>,
    ends: Vec<(bool, bool)>,
    names: Vec<(Arc<Listener>, Address)>,
}

impl Building {
    fn queue(&self, index: u32) -> Result<&Arc<Queue>, RebuildError> {
        self.queues.get(index as usize).ok_or_else(damaged)
    }

    fn file(
        &mut self,
        vfs: &Vfs,
        cx: &mut Cx,
        image: &OpenImage,
        sources: &Sources,
    ) -> Result<Named, RebuildError> {
        let file: Arc<dyn File> = match &image.file {
            FileImage::Plain(description) => return plain(vfs, description),
            FileImage::Console(number) => sources.stdio[usize::from(*number).min(2)].clone(),
            FileImage::Regular {
                file,
                flags,
                position,
            } => regular(vfs, file, *flags, *position, sources.stored)
                .map_err(failed(file.path()))?,
            FileImage::Pipe {
                queue,
                reads,
                writes,
            } => PipeEnd::restored(self.queue(*queue)?, *reads, *writes, cx.wake),
            FileImage::Socket(socket) => self.socket(socket)?,
            FileImage::Epoll(_) => Epoll::new(),
            FileImage::Process(pid) => match sources.endings.get(pid) {
                Some(ending) => PidFd::new(*pid, ending),
                None => PidFd::ended(),
            },
        };
        Ok((file, None))
    }

    fn socket(&mut self, image: &SocketImage) -> Result<Arc<Socket>, RebuildError> {
        let (domain, kind) = (image.domain, image.kind);
        let socket = match &image.state {
            SocketState::New => Socket::new(domain, kind),
            SocketState::Reset => Socket::in_state(domain, kind, State::Reset),
            SocketState::Connected(stream) => {
                Socket::in_state(domain, kind, State::Connected(self.stream(stream)?))
            }
            SocketState::Bound {
                name,
                path,
                backlog,
                waiting,
            } => {
                let socket = Socket::new(domain, kind);
                let mut bound = None;
                let keep = |listener: &Arc<Listener>| {
                    bound = Some(listener.clone());
                    Ok(name.clone())
                };
                socket.bind(keep).map_err(failed("a socket"))?;
                if let Some(listener) = bound {
                    let waiting = waiting.iter().map(|stream| self.stream(stream));
                    let waiting = waiting.collect::<Result<_, _>>()?;
                    let limit = usize::try_from(*backlog).unwrap_or(usize::MAX);
                    listener.set_backlog(waiting, limit);
                    let address = match path {
                        Some(path) => Some(Address::Path(path.clone())),
                        // One whose node is gone has no name any more.
                        None => Address::parse(name, domain)
                            .ok()
                            .filter(|address| !matches!(address, Address::Path(_))),
                    };
                    self.names
                        .extend(address.map(|address| (listener, address)));
                }
                socket
            }
        };
        for (direction, timeout) in image.timeouts.iter().enumerate() {
            socket.set_timeout(direction, *timeout);
        }
        Ok(socket)
    }

    fn stream(&self, image: &StreamImage) -> Result<Arc<Stream>, RebuildError> {
        for index in [image.incoming, image.outgoing] {
            self.queue(index)?.open_ends(self.ends[index as usize]);
        }
        Ok(Arc::new(Stream {
            incoming: self.queue(image.incoming)?.clone(),
            outgoing: self.queue(image.outgoing)?.clone(),
            names: image.names.clone(),
        }))
    }
}

/// What a description says all of.
fn plain(vfs: &Vfs, description: &Description) -> Result<Named, RebuildError> {
    let mut meta = None;
    let file: Arc<dyn File> = match description {
        Description::Path {
            path,
            flags,
            position,
        } => {
            let node = vfs.lookup(vfs.root(), path, true).map_err(failed(path))?;
            let here = vfs.meta(node).map_err(failed(path))?.clone();
            match vfs.node(node) {
                Some(Node::Directory(..)) => {
                    let directory = Directory::new(here, path.clone(), *flags);
                    directory.position.store(*position, Ordering::Relaxed);
                    directory
                }
                _ if flags & libc::O_PATH != 0 => PathOnly::new(here, path.clone(), *flags),
                _ => return Err(failed(path)(Errno::ENOTDIR)),
            }
        }
        Description::Device { path, flags } => {
            let node = vfs.lookup(vfs.root(), path, true).map_err(failed(path))?;
            meta = vfs.meta(node).ok().cloned();
            match vfs.node(node) {
                Some(Node::Device(device)) => device.open_disconnected(*flags),
                _ => return Err(failed(path)(Errno::ENODEV)),
            }
        }
        Description::Event { count, flags } => Event::new(*count, *flags),
        Description::Timer {
            clock,
            left,
            interval,
            missed,
        } => Timer::new(*clock, *left, *interval, *missed),
        Description::Signals { mask } => SignalFd::new(*mask),
        Description::Pipe { .. }
        | Description::Epoll
        | Description::Socket
        | Description::Process
        | Description::Console => return Err(damaged()),
    };
    Ok((file, meta))
}

fn regular(
    vfs: &Vfs,
    file: &FileRef,
    flags: i32,
    position: u64,
    stored: &Stored,
) -> Result<Arc<dyn File>, Errno> {
    let inode = match file {
        FileRef::Named(path) => vfs.inode(path)?,
        FileRef::Stored { index, .. } => stored.get(*index)?,
    };
    let position = i64::try_from(position).map_err(|_| Errno::EBADMSG)?;
    let file = RegularFile::new(inode, file.path().to_owned(), flags & !CREATION);
    file.seek(position, libc::SEEK_SET)?;
    Ok(file)
}
