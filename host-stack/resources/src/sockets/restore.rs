//! Makes the sockets of a tree again: by their names (`names`), without what was in them (`refill`).
//!
//! ```text
//! those that stand alone (bound, listening, datagrams) --> connections, through listeners that are there or are made for
//! the purpose --> those to other trees of the job --> connections that wait to be accepted
//! ```

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Instant,
};

use super::{
    names::{PATIENCE, bind, outlast, patiently, reuse, within},
    remote::{restore_tcp, restore_unix},
    socket,
};
use crate::{
    board::Board,
    calls,
    error::{Error, Result},
    event::Reporter,
    opened::{Item, Opened, damaged, set_flags},
    state::{Kind, Socket, Stage, Tree},
};

/// So long a connection within this machine takes at most.
const ACCEPT_MS: i32 = 5000;
/// More than this on its way is more than the buffers of a new connection hold.
pub const COLD_BYTES: usize = 64 << 10;
/// Options that matter to bind(2).
const BEFORE_BIND: [(i32, i32); 4] = [
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_IP, libc::IP_FREEBIND),
];
/// Those that matter to the window of a connection.
pub const BUFFERS: [(i32, i32); 2] = [
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
];

/// Other ends that nobody has any more, by the inodes of those that are left.
pub type Lost = BTreeMap<u64, OwnedFd>;

/// Sockets by their inodes: all that there are to be, and those that are made.
pub struct RestoredSockets<'a> {
    reporter: &'a Reporter,
    pub all: Vec<&'a Socket>,
    pub made: BTreeMap<u64, OwnedFd>,
    pub lost: Lost,
}

/// Opens all sockets of a tree; in a job, together with other trees.
pub fn open(
    tree: &Tree,
    opened: &mut Opened,
    board: Option<&Board>,
    reporter: &Reporter,
) -> Result<Lost> {
    let all: Vec<&Socket> = sockets(tree).map(|(_, socket)| socket).collect();
    let mut made = RestoredSockets {
        reporter,
        all,
        made: BTreeMap::new(),
        lost: Lost::new(),
    };
    for socket in made.all.clone() {
        let failed = |source| {
            let (local, remote) = (socket::show(&socket.local), socket::show(&socket.remote));
            Error::io(format!("a socket ({local} to {remote})"), source)
        };
        if stands_alone(socket) {
            made.alone(socket).map_err(failed)?;
        }
    }
    for socket in made.all.clone() {
        let failed = |source| {
            let (local, remote) = (socket::show(&socket.local), socket::show(&socket.remote));
            Error::io(format!("a connection ({local} to {remote})"), source)
        };
        made.connection(socket).map_err(failed)?;
    }
    restore_tcp::connect(&mut made, board)?;
    restore_unix::connect(&mut made, board)?;
    made.waiting()?;
    restore_tcp::wait(&mut made, board)?;
    let RestoredSockets { mut made, lost, .. } = made;
    for (number, socket) in sockets(tree) {
        let fd = made.remove(&socket.inode);
        let fd = fd.ok_or_else(|| damaged("a socket that is connected to none"))?;
        opened.files[number] = opened.keep(fd)?;
    }
    Ok(lost)
}

/// Sockets that have come along are those of the tree.
pub fn take_over(tree: &Tree, opened: &mut Opened) -> Result<()> {
    for (number, socket) in sockets(tree) {
        let fd = opened.carried(Item::Socket(socket.inode));
        let fd = fd.ok_or_else(|| damaged("a socket that has not come along"))?;
        opened.files[number] = opened.keep(fd)?;
    }
    Ok(())
}

pub fn sockets(tree: &Tree) -> impl Iterator<Item = (usize, &Socket)> {
    let files = tree.files.iter().enumerate();
    files.filter_map(|(number, file)| match &file.kind {
        Kind::Socket(socket) => Some((number, &**socket)),
        _ => None,
    })
}

pub fn is_datagram(socket: &Socket) -> bool {
    ![libc::SOCK_STREAM, libc::SOCK_SEQPACKET].contains(&socket.kind)
}

fn stands_alone(socket: &Socket) -> bool {
    match socket.stage {
        Stage::Idle | Stage::Listening { .. } => true,
        // Those without names can only be made as a pair.
        Stage::Connected { .. } => is_datagram(socket) && !socket.remote.is_empty(),
        _ => false,
    }
}

impl<'a> RestoredSockets<'a> {
    fn find(&self, inode: u64) -> Option<&'a Socket> {
        self.all
            .iter()
            .find(|socket| socket.inode == inode)
            .copied()
    }

    /// A socket that needs no other.
    fn alone(&mut self, socket: &Socket) -> io::Result<()> {
        let fd = plain(socket)?;
        apply(&fd, socket, |option| {
            BEFORE_BIND.contains(&option) || BUFFERS.contains(&option)
        });
        let listens = matches!(socket.stage, Stage::Listening { .. });
        match socket::address(&socket.local).filter(|_| listens) {
            // listen(2) finds out whether somebody else does.
            Some(address) if reuse(&fd) => outlast(address, self.reporter, || bind(&fd, socket))?,
            _ => bind(&fd, socket)?,
        }
        if let Stage::Listening { backlog, .. } = socket.stage {
            socket::listen(&fd, backlog)?;
        }
        self.made.insert(socket.inode, fd);
        Ok(())
    }

    fn connection(&mut self, socket: &Socket) -> io::Result<()> {
        if let (true, Some(fd)) = (is_datagram(socket), self.made.get(&socket.inode)) {
            if matches!(socket.stage, Stage::Connected { .. }) {
                // Who it is connected to may be a process outside, which may be gone; then it says so when it sends.
                let _ = within(socket, || socket::connect(fd, &socket.remote));
            }
            return Ok(());
        }
        if self.made.contains_key(&socket.inode) || self.waits(socket.inode) {
            return Ok(());
        }
        match socket.stage {
            Stage::Connected { peer } => {
                let peer = peer.and_then(|peer| self.find(peer));
                let phantom = Socket {
                    local: socket.remote.clone(),
                    remote: socket.local.clone(),
                    options: Vec::new(),
                    received: Vec::new(),
                    ..socket.clone()
                };
                let other = peer.unwrap_or(&phantom);
                let (fd, end) = match socket.family {
                    libc::AF_UNIX => self.unix(socket, other)?,
                    _ => self.tcp(socket, other)?,
                };
                self.made.insert(socket.inode, fd);
                match peer {
                    Some(peer) => self.made.insert(peer.inode, end),
                    None => self.lost.insert(socket.inode, end),
                };
            }
            Stage::Ended { .. } => {
                let (fd, end) = anonymous(socket)?;
                self.made.insert(socket.inode, fd);
                self.lost.insert(socket.inode, end);
            }
            Stage::Connecting => {
                self.made.insert(socket.inode, refused(socket)?);
            }
            Stage::Idle | Stage::Listening { .. } | Stage::BetweenTrees { .. } => {}
        }
        Ok(())
    }

    fn waits(&self, inode: u64) -> bool {
        self.all.iter().any(|socket| {
            matches!(&socket.stage, Stage::Listening { waiting, .. } if waiting.contains(&inode))
        })
    }

    /// Both ends of a connection within this machine.
    pub fn unix(&self, one: &Socket, other: &Socket) -> io::Result<(OwnedFd, OwnedFd)> {
        for (server, client) in [(one, other), (other, one)] {
            let Some(listener) = self.listener(|listener| {
                listener.family == libc::AF_UNIX
                    && !server.local.is_empty()
                    && (&listener.local, &listener.directory) == (&server.local, &server.directory)
            }) else {
                continue;
            };
            let connecting = plain(client)?;
            bind(&connecting, client)?;
            within(server, || socket::connect(&connecting, &server.local))?;
            let accepted = accept_own(listener)?;
            return Ok(match server.inode == one.inode {
                true => (accepted, connecting),
                false => (connecting, accepted),
            });
        }
        let (fd, end) = socket::pair(one.family, one.kind)?;
        for (fd, socket) in [(&fd, one), (&end, other)] {
            // An abstract name of a listener that is gone has several: only one can have it now.
            let _ = bind(fd, socket);
        }
        Ok((fd, end))
    }

    fn tcp(&self, one: &Socket, other: &Socket) -> io::Result<(OwnedFd, OwnedFd)> {
        let reverse = self.listeners(one).is_empty();
        let (server, client) = if reverse { (other, one) } else { (one, other) };
        let (accepted, connecting) =
            connect(client, server, &self.listeners(server), self.reporter)?;
        Ok(if reverse {
            (connecting, accepted)
        } else {
            (accepted, connecting)
        })
    }

    fn listener(&self, is: impl Fn(&Socket) -> bool) -> Option<BorrowedFd<'_>> {
        let listens = |socket: &&&Socket| matches!(socket.stage, Stage::Listening { .. });
        let found = self.all.iter().filter(listens).find(|socket| is(socket))?;
        self.made.get(&found.inode).map(AsFd::as_fd)
    }

    /// All through which a TCP connection to a name may come.
    pub fn listeners(&self, server: &Socket) -> Vec<BorrowedFd<'_>> {
        let Some(name) = socket::address(&server.local) else {
            return Vec::new();
        };
        let is = |socket: &&&Socket| {
            let address = socket::address(&socket.local);
            matches!(socket.stage, Stage::Listening { .. })
                && address.is_some_and(|address| covers(address, name))
        };
        let found = self.all.iter().filter(is);
        found
            .filter_map(|socket| self.made.get(&socket.inode).map(AsFd::as_fd))
            .collect()
    }

    /// Connections that nobody has accepted.
    fn waiting(&mut self) -> Result<()> {
        let failed = |source| Error::io("a connection that waits to be accepted", source);
        for listener in self.all.clone() {
            let Stage::Listening { waiting, .. } = &listener.stage else {
                continue;
            };
            let clients: Vec<&Socket> = waiting
                .iter()
                .filter_map(|inode| self.find(*inode))
                .collect();
            for client in clients {
                let own = socket::address(&client.local);
                let fd = match own {
                    Some(address) => outlast(address, self.reporter, || {
                        restore_tcp::named(client, address, &client.remote)
                    }),
                    None => to_unix(client, listener),
                };
                let fd = fd.map_err(failed)?;
                self.made.insert(client.inode, fd);
            }
        }
        Ok(())
    }
}

/// Connects a Unix socket, under the name that it has, to one that listens.
fn to_unix(client: &Socket, listener: &Socket) -> io::Result<OwnedFd> {
    let fd = plain(client)?;
    apply(&fd, client, |option| BUFFERS.contains(&option));
    bind(&fd, client)?;
    patiently(|| within(listener, || socket::connect(&fd, &listener.local)))?;
    Ok(fd)
}

/// Whether what is sent to `name` comes to who is bound to `address`.
pub fn covers(address: SocketAddr, name: SocketAddr) -> bool {
    address.port() == name.port() && (address.ip().is_unspecified() || address.ip() == name.ip())
}

pub fn plain(socket: &Socket) -> io::Result<OwnedFd> {
    socket::socket(socket.family, socket.kind, socket.protocol)
}

/// A TCP connection between two names, through one of the listeners, or one that is made for it: the accepted end, and
/// the connecting one.
fn connect(
    client: &Socket,
    server: &Socket,
    listeners: &[BorrowedFd],
    reporter: &Reporter,
) -> io::Result<(OwnedFd, OwnedFd)> {
    if !listeners.is_empty() {
        return through(client, listeners, reporter);
    }
    let address = socket::address(&server.local).ok_or(io::ErrorKind::InvalidData)?;
    let listener = outlast(address, reporter, || substitute(server))?;
    through(client, &[listener.as_fd()], reporter)
}

/// A socket that listens where nobody does any more.
fn substitute(server: &Socket) -> io::Result<OwnedFd> {
    let listener = plain(server)?;
    reuse(&listener);
    apply(&listener, server, |option| {
        BUFFERS.contains(&option) || option.1 == libc::SO_REUSEPORT
    });
    socket::bind(&listener, &server.local)?;
    socket::listen(&listener, 8)?;
    Ok(listener)
}

fn through(
    client: &Socket,
    listeners: &[BorrowedFd],
    reporter: &Reporter,
) -> io::Result<(OwnedFd, OwnedFd)> {
    let local = socket::address(&client.local).ok_or(io::ErrorKind::InvalidData)?;
    let connecting = outlast(local, reporter, || {
        restore_tcp::named(client, local, &client.remote)
    })?;
    loop {
        let accepted = accept(listeners)?;
        let from = socket::remote_name(&accepted)?;
        // Somebody else may have come: nobody answers who is not one of the tree's.
        if socket::address(&from) == Some(local) {
            return Ok((accepted, connecting));
        }
    }
}

/// The next connection of one of the listeners.
fn accept(listeners: &[BorrowedFd]) -> io::Result<OwnedFd> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        for listener in listeners {
            let wait_ms = if listeners.len() == 1 { ACCEPT_MS } else { 1 };
            if calls::events(listener, libc::POLLIN, wait_ms)? != 0 {
                return socket::accept(listener);
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// The next Unix connection that this process has made: somebody else may have come, whom nobody answers.
fn accept_own(listener: BorrowedFd) -> io::Result<OwnedFd> {
    loop {
        let accepted = accept(&[listener])?;
        let whose = socket::option(&accepted, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
        // struct ucred begins with the process.
        if whose.starts_with(&(std::process::id() as i32).to_ne_bytes()) {
            return Ok(accepted);
        }
    }
}

/// A connection whose names nobody can ask for any more.
fn anonymous(socket: &Socket) -> io::Result<(OwnedFd, OwnedFd)> {
    let listener = plain(socket)?;
    socket::listen(&listener, 1)?;
    let fd = plain(socket)?;
    socket::connect(&fd, &socket::local_name(&listener)?)?;
    Ok((fd, accept(&[listener.as_fd()])?))
}

/// A connection that was on its way: it is refused, as if nobody had listened.
fn refused(socket: &Socket) -> io::Result<OwnedFd> {
    let nobody = plain(socket)?;
    socket::listen(&nobody, 1)?;
    let name = socket::local_name(&nobody)?;
    drop(nobody);
    let fd = plain(socket)?;
    set_flags(&fd, libc::O_NONBLOCK).map_err(io::Error::other)?;
    let _ = socket::connect(&fd, &name);
    Ok(fd)
}

/// Sets those options that `which` picks and that are not what they should be.
pub fn apply(fd: impl AsFd, socket: &Socket, which: impl Fn((i32, i32)) -> bool) {
    let fd = fd.as_fd();
    for (level, name, value) in &socket.options {
        let is_same = || socket::option(fd, *level, *name).is_ok_and(|now| now == *value);
        if which((*level, *name)) && !is_same() {
            // What takes a privilege that is not there any more is not worth a restart.
            if let Err(error) = socket::set_option(fd, *level, *name, value) {
                tracing::warn!(%error, level, name, "a socket's option");
            }
        }
    }
}
