//! Descriptors of restored processes, from what an image says of them ([`crate::image`]).
//!
//! What must stay true: until [`Rebuilt::commit`] nothing on the card has changed. Indexes in an image
//! may be anything; what they do not lead to makes it damaged.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, atomic::Ordering},
};

use snaprig_card_driver::{
    errno::Errno,
    file::{Cx, Description, File},
};

use super::locks;
use crate::{
    files::{
        address::STORAGE_BYTES,
        datagram::Mailbox,
        epoll::Epoll,
        event::Event,
        netlink::Netlink,
        pidfd::{Ending, PidFd},
        pipe::PipeEnd,
        queue::Queue,
        regular::{Directory, PathOnly, RegularFile},
        signalfd::SignalFd,
        socket::{Listener, Name, Socket, State, Stream},
        timer::Timer,
    },
    image::{
        BoundImage, FileImage, FilesImage, OpenImage, SocketImage, SocketState, StreamImage,
        stored::{FileRef, Stored},
    },
    meta::Meta,
    passed::Passed,
    sockets::{SocketName, Sockets},
    table::{FileTable, Open},
    tree::{Node, Vfs},
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
    /// In place of the card's console: shared with whoever restores, as fork(2) would.
    pub stdio: &'a [Arc<Open>; 3],
}

/// Tables of descriptors, and names that are still to be given.
pub struct Rebuilt {
    /// The tables.
    pub tables: Vec<FileTable>,
    names: Vec<(Arc<Listener>, SocketName)>,
}

/// The tables of an image.
pub fn rebuild(
    vfs: &Vfs,
    sockets: &Sockets,
    cx: &mut Cx,
    image: &FilesImage,
    sources: &Sources,
) -> Result<Rebuilt, RebuildError> {
    let queues = image.queues.iter().map(Queue::from_image);
    let queues = queues.collect::<Result<Vec<_>, _>>();
    let mailboxes = image.mailboxes.iter().map(Mailbox::from_image);
    let mailboxes = mailboxes.collect::<Result<Vec<_>, _>>();
    let mut building = Building {
        queues: queues.map_err(failed("a pipe"))?,
        ends: image.queues.iter().map(|queue| queue.ends).collect(),
        mailboxes: mailboxes.map_err(failed("a mailbox"))?,
        addresses: HashMap::new(),
        names: Vec::new(),
    };
    let mut opens = Vec::new();
    for open in &image.opens {
        if let FileImage::Console(number) = &open.file {
            opens.push(sources.stdio[usize::from(*number).min(2)].clone());
            continue;
        }
        let file = building.file(vfs, cx, open, sources)?;
        let (file, meta) = file;
        opens.push(Open::named(file, open.flags, meta));
    }
    let get = |index: u32| opens.get(index as usize).cloned().ok_or_else(damaged);
    let pass = |passed: &[u32]| {
        let files = passed.iter().map(|open| get(*open));
        let files = files.collect::<Result<Vec<_>, _>>()?;
        Passed::new(files, &sockets.in_flight).map_err(failed("descriptors on their way"))
    };
    for (image, queue) in image.queues.iter().zip(&building.queues) {
        for (with, passed) in &image.passed {
            queue.put_in_flight(with, pass(passed)?);
        }
    }
    for (image, mailbox) in image.mailboxes.iter().zip(&building.mailboxes) {
        let peer = |index: u32| building.mailboxes.get(index as usize).cloned();
        mailbox.refill(image, pass, |index| peer(index).ok_or_else(damaged))?;
    }
    for (image, open) in image.opens.iter().zip(&opens) {
        if let (FileImage::Epoll(interest), Some(epoll)) =
            (&image.file, open.file.as_any().downcast_ref::<Epoll>())
        {
            for entry in interest {
                let watched = get(entry.open)?;
                let (fd, events) = (entry.fd, entry.events);
                // Only a hostile image has instances watch each other, or one thing twice.
                let _ = epoll.control(libc::EPOLL_CTL_ADD, fd, &watched, events, entry.data);
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
    pub fn commit(
        self,
        vfs: &mut Vfs,
        sockets: &mut Sockets,
    ) -> Result<Vec<FileTable>, RebuildError> {
        let what = |name: &SocketName| failed(format!("a socket's name, {name:?}"));
        if let Some((_, name)) = self
            .names
            .iter()
            .find(|(_, name)| !sockets.is_free(vfs, name))
        {
            return Err(what(name)(Errno::EADDRINUSE));
        }
        for (listener, name) in self.names {
            let what = what(&name);
            let is_outside = name.is_of_ipv4();
            sockets.give(vfs, name, listener.clone()).map_err(what)?;
            if is_outside {
                sockets.listen_outside(&listener);
            }
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
    mailboxes: Vec<Arc<Mailbox>>,
    /// Addresses of ends of connections, by what the end reads.
    addresses: HashMap<(u32, Vec<u8>), Name>,
    names: Vec<(Arc<Listener>, SocketName)>,
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
            FileImage::Console(_) => return Err(damaged()),
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
            FileImage::Netlink => Netlink::new(),
            FileImage::Process(pid) => match sources.endings.get(pid) {
                Some(ending) => PidFd::new(*pid, ending),
                None => PidFd::ended(),
            },
        };
        Ok((file, None))
    }

    fn socket(&mut self, image: &SocketImage) -> Result<Arc<Socket>, RebuildError> {
        let (domain, kind) = (image.domain, image.kind);
        let sends_letters = matches!(image.state, SocketState::Letters(_));
        if ![libc::AF_UNIX, libc::AF_INET, libc::AF_INET6].contains(&domain)
            || ![libc::SOCK_STREAM, libc::SOCK_SEQPACKET, libc::SOCK_DGRAM].contains(&kind)
            || sends_letters != (kind == libc::SOCK_DGRAM)
        {
            return Err(damaged());
        }
        let socket = match &image.state {
            SocketState::New | SocketState::Bound { .. } => Socket::new(domain, kind),
            SocketState::Reset => Socket::in_state(domain, kind, State::Reset),
            SocketState::Connected(stream) => {
                Socket::in_state(domain, kind, State::Connected(self.stream(stream)?))
            }
            SocketState::Letters(mailbox) => {
                let mailbox = self.mailboxes.get(*mailbox as usize);
                let mailbox = mailbox.filter(|mailbox| mailbox.domain == domain);
                let mailbox = mailbox.ok_or_else(damaged)?;
                Socket::in_state(domain, kind, State::Letters(mailbox.clone()))
            }
        };
        if let SocketState::Bound {
            bound,
            owner,
            backlog,
            waiting,
        } = &image.state
        {
            let waiting = waiting.iter().map(|stream| self.stream(stream));
            let waiting = waiting.collect::<Result<_, _>>()?;
            let address = address(&bound.address)?;
            let limit = usize::try_from(*backlog).unwrap_or(usize::MAX);
            let name = |listener: &Arc<Listener>| {
                listener.set_backlog(waiting, limit);
                listener.set_owner(*owner);
                self.has_name(listener, bound);
                Ok(address)
            };
            socket.bind(name).map_err(failed("a socket"))?;
        }
        if let Some(kept) = &image.kept {
            let listener = socket.keep_name(address(&kept.address)?);
            self.has_name(&listener, kept);
        }
        if !image.options.are_sound(domain, kind) {
            return Err(damaged());
        }
        *socket.options() = image.options.clone();
        socket.options_changed();
        Ok(socket)
    }

    /// Names are given when everything else is there.
    fn has_name(&mut self, listener: &Arc<Listener>, bound: &BoundImage) {
        let name = bound.name.clone();
        self.names.extend(name.map(|name| (listener.clone(), name)));
    }

    fn stream(&mut self, image: &StreamImage) -> Result<Arc<Stream>, RebuildError> {
        let ends = [image.incoming, image.outgoing];
        for index in ends {
            self.queue(index)?.open_ends(self.ends[index as usize]);
        }
        let mut names = <[Name; 2]>::default();
        for ((cell, end), name) in names.iter_mut().zip(ends).zip(&image.names) {
            let name = address(name)?;
            // What both ends are told of one of them is one thing: it may get a name yet.
            let known = self.addresses.entry((end, name.clone()));
            *cell = known.or_insert_with(|| Arc::new(Mutex::new(name))).clone();
        }
        Ok(Arc::new(Stream {
            incoming: self.queue(image.incoming)?.clone(),
            outgoing: self.queue(image.outgoing)?.clone(),
            names,
            peer: image.peer,
        }))
    }
}

/// A `struct sockaddr` of an image.
fn address(bytes: &[u8]) -> Result<Vec<u8>, RebuildError> {
    match bytes.len() as u64 > STORAGE_BYTES {
        true => Err(damaged()),
        false => Ok(bytes.to_vec()),
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

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use snaprig_card_driver::{device::Waker, file::Identity};

    use super::*;
    use crate::{
        files::socket_options::Options,
        image::{Describer, stored::Storing},
        test_kit::{Kit, Memory, Nobody, error, is_wait},
    };

    /// What is open in an image, on another card.
    fn again(image: &FilesImage) -> Result<Kit, RebuildError> {
        let mut kit = Kit::new();
        let stored = Stored::new(kit.vfs.memory(), Vec::new()).unwrap();
        let sources = Sources {
            pids: &[1],
            stored: &stored,
            endings: &BTreeMap::new(),
            stdio: &Kit::stdio().map(|file| Open::new(file, libc::O_RDWR)),
        };
        let mut cx = Cx {
            tid: 1,
            pid: 1,
            identity: Identity::default(),
            memory: &mut Memory(Vec::new()),
            wake: &mut |_| {},
            waker: &Waker::new(Weak::<Nobody>::new()),
            nonblock: false,
            append: false,
            now: kit.now,
        };
        let rebuilt = rebuild(&kit.vfs, &kit.sockets, &mut cx, image, &sources)?;
        kit.files = rebuilt.commit(&mut kit.vfs, &mut kit.sockets)?.remove(0);
        Ok(kit)
    }

    fn image_of(kit: &Kit) -> FilesImage {
        let mut describer = Describer::new(&kit.vfs, &kit.sockets, Storing::default());
        describer.table(&kit.files);
        describer.describe()
    }

    /// A card whose descriptors 3 and 4 write to each other, the first with something to read, and with
    /// 5 bound to a path.
    fn pair(kind: i32) -> Kit {
        let mut kit = Kit::new();
        let kind = kind as u64;
        kit.call(libc::SYS_socketpair, &[1, kind, 0, 0x800])
            .unwrap();
        kit.call(libc::SYS_write, &[4, 0x2000, 7]).unwrap();
        assert_eq!(kit.call(libc::SYS_socket, &[1, kind, 0]), Ok(5));
        kit.put(0x700, b"\x01\0/tmp/s\0");
        kit.call(libc::SYS_bind, &[5, 0x700, 9]).unwrap();
        kit
    }

    const KINDS: [i32; 3] = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET, libc::SOCK_DGRAM];

    #[test]
    fn an_image_of_a_restored_card_is_the_same() {
        for kind in KINDS {
            let image = image_of(&pair(kind));
            let mut kit = again(&image).unwrap();
            let same = image_of(&kit);
            assert_eq!(
                (&same.opens, &same.queues, &same.mailboxes),
                (&image.opens, &image.queues, &image.mailboxes)
            );
            assert_eq!(kit.call(libc::SYS_read, &[3, 0x2000, 99]), Ok(7));
            assert!(is_wait(&kit.call(libc::SYS_read, &[4, 0x2000, 99])));
            assert_eq!(kit.call(libc::SYS_write, &[3, 0x2000, 5]), Ok(5));
            assert_eq!(kit.call(libc::SYS_read, &[4, 0x2000, 99]), Ok(5));
        }
    }

    #[test]
    fn who_is_not_in_an_image_is_nobody() {
        for (kind, errno) in
            KINDS
                .into_iter()
                .zip([Errno::ECONNRESET, Errno::ECONNRESET, Errno::ECONNREFUSED])
        {
            let mut kit = pair(kind);
            let captured = kit.files.get(3).unwrap();
            // Its peer is another process's.
            let others = std::mem::replace(&mut kit.files, FileTable::new(Kit::stdio()));
            kit.files.insert_at(3, captured, false, &mut |_| {});
            let image = image_of(&kit);
            drop(others);
            let mut kit = again(&image).unwrap();
            assert_eq!(kit.call(libc::SYS_write, &[3, 0x2000, 1]), error(errno));
        }
    }

    #[test]
    fn output_whose_reader_stays_behind_goes_where_the_restore_says() {
        let mut kit = Kit::new();
        kit.call(libc::SYS_pipe2, &[0x800, 0]).unwrap();
        let [reads, writes] = [3, 4].map(|fd| kit.files.get(fd).unwrap());
        let mut captured = Kit::new();
        for fd in [1, 4] {
            captured
                .files
                .insert_at(fd, writes.clone(), false, &mut |_| {});
        }
        let outside = image_of(&captured);
        let file = |image: &FilesImage, fd: i32| {
            let table = image.tables[0].iter();
            let open = table
                .clone()
                .find(|descriptor| descriptor.fd == fd)
                .unwrap();
            image.opens[open.open as usize].file.clone()
        };
        assert_eq!(file(&outside, 1), FileImage::Console(1));
        assert!(again(&outside).is_ok());
        captured.files.insert_at(3, reads, false, &mut |_| {});
        let inside = image_of(&captured);
        assert!(matches!(file(&inside, 1), FileImage::Pipe { .. }));
    }

    #[test]
    fn sockets_that_make_no_sense_are_refused() {
        type Harm = fn(&mut SocketImage);
        let harms: [Harm; 9] = [
            |socket| socket.domain = libc::AF_PACKET,
            |socket| socket.kind = libc::SOCK_RAW,
            |socket| socket.kind = libc::SOCK_DGRAM,
            |socket| socket.state = SocketState::Letters(9),
            |socket| {
                socket.domain = libc::AF_INET;
                socket.kind = libc::SOCK_DGRAM;
                socket.state = SocketState::Letters(0);
            },
            |socket| socket.kept = Some(bound(vec![0; 129])),
            |socket| {
                socket.state = SocketState::Bound {
                    bound: bound(vec![0; 129]),
                    owner: Identity::default(),
                    backlog: 0,
                    waiting: Vec::new(),
                }
            },
            |socket| {
                socket.state = SocketState::Connected(StreamImage {
                    incoming: 9,
                    outgoing: 0,
                    names: Default::default(),
                    peer: Identity::default(),
                })
            },
            |socket| {
                socket.state = SocketState::Connected(StreamImage {
                    incoming: 0,
                    outgoing: 0,
                    names: [vec![0; 129], Vec::new()],
                    peer: Identity::default(),
                })
            },
        ];
        for harm in harms {
            let mut image = image_of(&pair(libc::SOCK_STREAM));
            image.mailboxes = image_of(&pair(libc::SOCK_DGRAM)).mailboxes;
            let socket = image
                .opens
                .iter_mut()
                .find_map(|open| match &mut open.file {
                    FileImage::Socket(socket) => Some(socket),
                    _ => None,
                });
            harm(socket.unwrap());
            let refused = again(&image).err();
            assert_eq!(refused.unwrap().errno, Errno::EBADMSG);
        }
    }

    #[test]
    fn contents_and_options_that_make_no_sense_are_refused() {
        let image = image_of(&pair(libc::SOCK_DGRAM));
        let mailbox = &image.mailboxes[0];
        for hostile in mailbox.hostile() {
            let mut image = image.clone();
            image.mailboxes[0] = hostile;
            assert_eq!(again(&image).err().unwrap().errno, Errno::EBADMSG);
        }
        let image = image_of(&pair(libc::SOCK_SEQPACKET));
        for hostile in image.queues[0].hostile() {
            let mut image = image.clone();
            image.queues[0] = hostile;
            assert_eq!(again(&image).err().unwrap().errno, Errno::EBADMSG);
        }
        let socket = Socket::new(libc::AF_UNIX, libc::SOCK_STREAM);
        for (level, option, value) in [
            (libc::SOL_SOCKET, libc::SO_PASSCRED, 2),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
            (99, 99, 0),
        ] {
            assert!(!Options::with(level, option, value).are_sound(socket.domain, socket.kind));
        }
        let tells = Options::with(libc::SOL_SOCKET, libc::SO_PASSCRED, 1);
        assert!(tells.are_sound(socket.domain, socket.kind));
    }

    fn bound(address: Vec<u8>) -> BoundImage {
        BoundImage {
            address,
            name: None,
        }
    }
}
