//! What an image says of the descriptors of its processes.
//!
//! Processes share descriptions, and descriptions share pipes, connections and files; so an image has
//! a list of each, and says which of a list it means. First everything that can be reached is
//! collected: through tables, through sockets that nobody has accepted yet, and through descriptors
//! on their way in sockets. Then each is described.

pub(crate) mod locks;
pub mod rebuild;
pub mod stored;

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};
use snaprig_card_driver::file::{Description, Identity};

use crate::{
    files::{
        datagram::{Mailbox, MailboxImage},
        epoll::Epoll,
        netlink::Netlink,
        pidfd::PidFd,
        pipe::PipeEnd,
        queue::{Queue, QueueImage},
        regular::{Directory, RegularFile},
        socket::{Listener, Socket, State, Stream},
        socket_options::Options,
    },
    image::stored::{FileRef, StoredImage, Storing},
    locks::LocksImage,
    sockets::{SocketName, Sockets},
    table::{FileTable, Open},
    tree::Vfs,
};

/// All that the processes of an image have open.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FilesImage {
    /// Descriptor tables.
    pub tables: Vec<Vec<DescriptorImage>>,
    /// Open file descriptions.
    pub opens: Vec<OpenImage>,
    /// Pipes, and directions of connections.
    pub queues: Vec<QueueImage>,
    /// Mailboxes of sockets of datagrams.
    pub mailboxes: Vec<MailboxImage>,
    /// Files whose contents are in the image.
    pub stored: Vec<StoredImage>,
}

/// A descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorImage {
    /// The number.
    pub fd: i32,
    /// Close on exec.
    pub close_on_exec: bool,
    /// Which of the descriptions.
    pub open: u32,
    /// What is locked of it.
    pub locks: LocksImage,
}

/// An open file description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenImage {
    /// `O_*` status flags.
    pub flags: i32,
    /// What it is.
    pub file: FileImage,
}

/// What is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileImage {
    /// Something that its description says all of.
    Plain(Description),
    /// Standard input or output of the card's console: the restorer's descriptor of this number.
    Console(u8),
    /// A regular file.
    Regular {
        /// Where it is.
        file: FileRef,
        /// `O_*` flags of open(2).
        flags: i32,
        /// File position.
        position: u64,
    },
    /// An end of a pipe, or both. A FIFO comes back as a pipe: its name is its card's. What has no
    /// other end in the image is at its end, but for standard output and error, which go where the
    /// console's would.
    Pipe {
        /// Which of the queues.
        queue: u32,
        /// It is read from.
        reads: bool,
        /// It is written to.
        writes: bool,
    },
    /// A socket.
    Socket(SocketImage),
    /// An epoll instance.
    Epoll(Vec<InterestImage>),
    /// A descriptor of a process. One that is not in the image has ended.
    Process(i32),
    /// A socket of netlink(7). What it has asked is forgotten.
    Netlink,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketImage {
    /// `AF_*`.
    pub domain: i32,
    /// `SOCK_*`.
    pub kind: i32,
    /// What was set (setsockopt(2)).
    pub options: Options,
    /// The name that it keeps, connected or sending letters.
    pub kept: Option<BoundImage>,
    /// What it has become.
    pub state: SocketState,
}

/// A socket's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundImage {
    /// `struct sockaddr`.
    pub address: Vec<u8>,
    /// What it is found under, if it still is.
    pub name: Option<SocketName>,
}

/// What a socket has become.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SocketState {
    /// Nothing yet.
    New,
    /// It has a name, and may listen.
    Bound {
        /// That name.
        bound: BoundImage,
        /// Who has made it listen.
        owner: Identity,
        /// How many may wait; 0: it does not listen.
        backlog: u64,
        /// Who waits.
        waiting: Vec<StreamImage>,
    },
    /// It has a peer that is in the image, or has gone before.
    Connected(StreamImage),
    /// It sends datagrams: which of the mailboxes is its own. Its peer is one of them, or nobody.
    Letters(u32),
    /// Its peer is not in the image.
    Reset,
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamImage {
    /// What it reads: which of the queues.
    pub incoming: u32,
    /// What its peer reads.
    pub outgoing: u32,
    /// Its address and its peer's.
    pub names: [Vec<u8>; 2],
    /// Who has made the peer.
    pub peer: Identity,
}

/// An entry of an epoll instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterestImage {
    /// The descriptor that it was made with.
    pub fd: i32,
    /// Which of the descriptions.
    pub open: u32,
    /// `EPOLL*`.
    pub events: u32,
    /// What comes with a report.
    pub data: u64,
}

/// Things that are known by where they are, in the order in which they were met.
pub struct Numbered<T>(Vec<Arc<T>>, HashMap<*const T, u32>);

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self(Vec::new(), HashMap::new())
    }
}

impl<T> Numbered<T> {
    /// All of them.
    pub fn met(&self) -> &[Arc<T>] {
        &self.0
    }

    fn index_of(&self, thing: &Arc<T>) -> Option<u32> {
        self.1.get(&Arc::as_ptr(thing)).copied()
    }

    /// Which of them it is, from now on.
    pub fn meet(&mut self, thing: &Arc<T>) -> u32 {
        let next = self.0.len() as u32;
        let index = *self.1.entry(Arc::as_ptr(thing)).or_insert(next);
        if index == next {
            self.0.push(thing.clone());
        }
        index
    }
}

/// What is open, on its way into an image.
pub struct Describer<'a> {
    vfs: &'a Vfs,
    sockets: &'a Sockets,
    /// Files whose contents go into the image.
    pub storing: Storing,
    tables: Vec<Vec<DescriptorImage>>,
    opens: Numbered<Open>,
    /// The first descriptor of each.
    first: Vec<i32>,
    queues: Numbered<Queue>,
    mailboxes: Numbered<Mailbox>,
    /// What ends of connections read that are in the image.
    read: Vec<*const Queue>,
}

impl<'a> Describer<'a> {
    /// For files of a card, and names of its sockets.
    pub fn new(vfs: &'a Vfs, sockets: &'a Sockets, storing: Storing) -> Self {
        Self {
            vfs,
            sockets,
            storing,
            tables: Vec::new(),
            opens: Numbered::default(),
            first: Vec::new(),
            queues: Numbered::default(),
            mailboxes: Numbered::default(),
            read: Vec::new(),
        }
    }

    /// Takes up a table of descriptors.
    pub fn table(&mut self, files: &FileTable) {
        let mut table = Vec::new();
        for (fd, open, close_on_exec) in files.iter() {
            let locks = locks::image(open, files.id());
            let open = self.open(open, fd);
            table.push(DescriptorImage {
                fd,
                close_on_exec,
                open,
                locks,
            });
        }
        self.tables.push(table);
    }

    /// Takes up a description, and what can be reached through it.
    fn open(&mut self, open: &Arc<Open>, fd: i32) -> u32 {
        let known = self.opens.0.len();
        let index = self.opens.meet(open);
        if self.opens.0.len() == known {
            return index;
        }
        self.first.push(fd);
        let file = open.file.as_any();
        if let Some(pipe) = file.downcast_ref::<PipeEnd>() {
            self.queues.meet(pipe.ends().0);
        }
        if let Some(socket) = file.downcast_ref::<Socket>() {
            for stream in socket.streams() {
                self.read.push(Arc::as_ptr(&stream.incoming));
                self.queues.meet(&stream.incoming);
                self.queues.meet(&stream.outgoing);
                for on_its_way in stream.incoming.in_flight() {
                    self.open(&on_its_way, -1);
                }
            }
            if let Some(mailbox) = socket.mailbox() {
                self.mailboxes.meet(&mailbox);
                for on_its_way in mailbox.in_flight() {
                    self.open(&on_its_way, -1);
                }
            }
        }
        index
    }

    /// What the image says of all that was taken up.
    pub fn describe(&mut self) -> FilesImage {
        let opens = self.opens.0.clone();
        let first = std::mem::take(&mut self.first);
        let opens = opens.iter().zip(first).map(|(open, fd)| OpenImage {
            flags: open.flags(),
            file: self.file(open, fd),
        });
        let opens = opens.collect();
        let open = |open: &Arc<Open>| self.opens.index_of(open);
        let mailbox = |mailbox: &Arc<Mailbox>| self.mailboxes.index_of(mailbox);
        let mailboxes = self.mailboxes.met().iter();
        FilesImage {
            opens,
            queues: self
                .queues
                .0
                .iter()
                .map(|queue| queue.image(open))
                .collect(),
            mailboxes: mailboxes.map(|one| one.image(open, mailbox)).collect(),
            tables: std::mem::take(&mut self.tables),
            // Those that are only mapped are yet to come.
            stored: Vec::new(),
        }
    }

    /// Whether a description in the image reads from a pipe.
    fn is_read(&self, queue: &Arc<Queue>) -> bool {
        self.opens.0.iter().any(|open| {
            let pipe = open.file.as_any().downcast_ref::<PipeEnd>();
            pipe.is_some_and(|pipe| {
                let (other, reads, _) = pipe.ends();
                reads && Arc::ptr_eq(other, queue)
            })
        })
    }

    fn file(&mut self, open: &Open, fd: i32) -> FileImage {
        let file = open.file.as_any();
        if let Some(pipe) = file.downcast_ref::<PipeEnd>() {
            let (queue, reads, writes) = pipe.ends();
            if let (1..=2, false) = (fd, reads || self.is_read(queue)) {
                // Whoever reads what the process writes is the card's, and stays there.
                return FileImage::Console(fd as u8);
            }
            return FileImage::Pipe {
                queue: self.queues.meet(queue),
                reads,
                writes,
            };
        }
        if let Some(socket) = file.downcast_ref::<Socket>() {
            return FileImage::Socket(self.socket(socket));
        }
        if file.is::<Netlink>() {
            return FileImage::Netlink;
        }
        if let Some(epoll) = file.downcast_ref::<Epoll>() {
            let interest = epoll.watched().into_iter().filter_map(|interest| {
                Some(InterestImage {
                    fd: interest.fd,
                    open: self.opens.index_of(&interest.open)?,
                    events: interest.events,
                    data: interest.data,
                })
            });
            return FileImage::Epoll(interest.collect());
        }
        if let Some(process) = file.downcast_ref::<PidFd>() {
            return FileImage::Process(process.pid());
        }
        match open.file.describe() {
            Description::Console => FileImage::Console(u8::try_from(fd).unwrap_or(1).min(2)),
            Description::Path {
                path,
                flags,
                position,
            } => self.path(open, path, flags, position),
            plain => FileImage::Plain(plain),
        }
    }

    /// A file knows the path that it was opened by; that may be another's, or nobody's, by now.
    fn path(&mut self, open: &Open, path: String, flags: i32, position: u64) -> FileImage {
        let file = open.file.as_any();
        if let Some(regular) = file.downcast_ref::<RegularFile>() {
            // It has its name by now, or never will.
            let flags = match flags & libc::O_TMPFILE {
                libc::O_TMPFILE => flags & !libc::O_TMPFILE,
                _ => flags,
            };
            return FileImage::Regular {
                file: self.storing.refer_open(self.vfs, regular.inode(), &path),
                flags,
                position,
            };
        }
        let now = file
            .downcast_ref::<Directory>()
            .filter(|directory| directory.meta().lock().nlink > 0)
            .map(|directory| self.vfs.path_of(directory.node(), ""));
        FileImage::Plain(Description::Path {
            path: now.unwrap_or(path),
            flags,
            position,
        })
    }

    fn socket(&mut self, socket: &Socket) -> SocketImage {
        let state = match socket.state() {
            State::New => SocketState::New,
            // Whoever is outside of the card does not come along.
            State::Connecting(_) | State::Reset => SocketState::Reset,
            State::Letters(mailbox) => SocketState::Letters(self.mailboxes.meet(&mailbox)),
            State::Connected(stream) => match self.stream(&stream) {
                Some(stream) => SocketState::Connected(stream),
                None => SocketState::Reset,
            },
            State::Bound(listener) => {
                let (waiting, backlog) = listener.backlog();
                SocketState::Bound {
                    bound: self.bound(&listener),
                    owner: listener.owner(),
                    backlog: backlog as u64,
                    waiting: waiting.iter().filter_map(|s| self.stream(s)).collect(),
                }
            }
        };
        SocketImage {
            domain: socket.domain,
            kind: socket.kind,
            options: socket.options().clone(),
            kept: socket.kept_name().map(|listener| self.bound(&listener)),
            state,
        }
    }

    /// An end of a connection, unless its peer is there, but not in the image.
    fn stream(&mut self, stream: &Stream) -> Option<StreamImage> {
        let peer_is_there = stream.outgoing.ends().0 || stream.incoming.ends().1;
        if peer_is_there && !self.read.contains(&Arc::as_ptr(&stream.outgoing)) {
            return None;
        }
        Some(StreamImage {
            incoming: self.queues.meet(&stream.incoming),
            outgoing: self.queues.meet(&stream.outgoing),
            names: [stream.name(false), stream.name(true)],
            peer: stream.peer,
        })
    }

    fn bound(&self, listener: &Arc<Listener>) -> BoundImage {
        BoundImage {
            address: listener.name(),
            name: self.sockets.name_of(self.vfs, listener),
        }
    }
}
