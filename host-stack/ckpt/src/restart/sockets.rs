//! Makes the sockets of a tree again: names, connections, and what was on its way.
//!
//! ```text
//! open:    those that stand alone (bound, listening, datagrams) --> connections, through listeners that are there or
//!          are made for the purpose --> those to other trees of the job --> connections that wait to be accepted
//! refill:  contents (all files are open: they may be passed along) --> ends of streams --> options
//! ```

use std::{
    collections::BTreeMap,
    env, fs, io,
    net::SocketAddr,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::FileTypeExt,
    },
    path::Path,
    thread,
    time::{Duration, Instant},
};

use procfs::net::{TcpNetEntry, TcpState};

use super::{
    abroad,
    files::{Opened, damaged, path_of, set_flags},
};
use crate::{
    error::{Error, Result},
    flow::{self, Grown},
    job::Board,
    socket,
    state::{Kind, Message, Socket, Stage, Tree},
};

/// What an earlier instance has left of its connections is gone after so long (TIME_WAIT is reused after a second).
const PATIENCE: Duration = Duration::from_secs(5);
/// Where SO_REUSEADDR was not set it is not reused, but ends after a minute (TCP_TIMEWAIT_LEN).
const TIME_WAIT: Duration = Duration::from_secs(75);
/// Errors of bind(2), and of connect(2), of who may have it later.
const IN_USE: [Option<i32>; 2] = [Some(libc::EADDRINUSE), Some(libc::EADDRNOTAVAIL)];
/// A look whether it is gone.
const LOOK: Duration = Duration::from_millis(20);
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
pub struct Made<'a> {
    pub all: Vec<&'a Socket>,
    pub made: BTreeMap<u64, OwnedFd>,
    lost: Lost,
}

/// Opens all sockets of a tree; in a job, together with other trees.
pub fn open(tree: &Tree, opened: &mut Opened, board: Option<&Board>) -> Result<Lost> {
    let all: Vec<&Socket> = sockets(tree).map(|(_, socket)| socket).collect();
    let mut made = Made {
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
    abroad::connect(&mut made, board)?;
    made.waiting()?;
    abroad::wait(&mut made, board)?;
    let Made { mut made, lost, .. } = made;
    for (number, socket) in sockets(tree) {
        let fd = made.remove(&socket.inode);
        let fd = fd.ok_or_else(|| damaged("a socket that is connected to none"))?;
        opened.files[number] = opened.keep(fd)?;
    }
    Ok(lost)
}

fn sockets(tree: &Tree) -> impl Iterator<Item = (usize, &Socket)> {
    let files = tree.files.iter().enumerate();
    files.filter_map(|(number, file)| match &file.kind {
        Kind::Socket(socket) => Some((number, &**socket)),
        _ => None,
    })
}

fn is_datagram(socket: &Socket) -> bool {
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

impl<'a> Made<'a> {
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
            Some(address) if reuse(&fd) => outlast(address, || bind(&fd, socket))?,
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
                // Who it is connected to may be a stranger, who may be gone; then it says so when it sends.
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
            Stage::Idle | Stage::Listening { .. } | Stage::Abroad { .. } => {}
        }
        Ok(())
    }

    fn waits(&self, inode: u64) -> bool {
        self.all.iter().any(|socket| {
            matches!(&socket.stage, Stage::Listening { waiting, .. } if waiting.contains(&inode))
        })
    }

    /// Both ends of a connection within this machine.
    fn unix(&self, one: &Socket, other: &Socket) -> io::Result<(OwnedFd, OwnedFd)> {
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
            let accepted = accept(&[listener])?;
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
        let (accepted, connecting) = connect(client, server, &self.listeners(server))?;
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
                let fd = plain(client).map_err(failed)?;
                let (name, has_name) = match client.family {
                    libc::AF_UNIX => (&listener.local, !client.local.is_empty()),
                    _ => (&client.remote, reuse(&fd)),
                };
                apply(&fd, client, |option| BUFFERS.contains(&option));
                if has_name {
                    patiently(|| bind(&fd, client)).map_err(failed)?;
                }
                let connect = || within(listener, || socket::connect(&fd, name));
                patiently(connect).map_err(failed)?;
                self.made.insert(client.inode, fd);
            }
        }
        Ok(())
    }
}

/// Whether what is sent to `name` comes to who is bound to `address`.
fn covers(address: SocketAddr, name: SocketAddr) -> bool {
    address.port() == name.port() && (address.ip().is_unspecified() || address.ip() == name.ip())
}

pub fn plain(socket: &Socket) -> io::Result<OwnedFd> {
    socket::socket(socket.family, socket.kind, socket.protocol)
}

/// SO_REUSEADDR for now; the program's own setting comes with its other options.
pub fn reuse(fd: impl AsFd) -> bool {
    socket::set_number(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).is_ok()
}

/// A TCP connection between two names, through one of the listeners, or one that is made for it: the accepted end, and
/// the connecting one.
fn connect(
    client: &Socket,
    server: &Socket,
    listeners: &[BorrowedFd],
) -> io::Result<(OwnedFd, OwnedFd)> {
    if !listeners.is_empty() {
        return through(client, listeners);
    }
    let address = socket::address(&server.local).ok_or(io::ErrorKind::InvalidData)?;
    let listener = outlast(address, || substitute(server))?;
    through(client, &[listener.as_fd()])
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

fn through(client: &Socket, listeners: &[BorrowedFd]) -> io::Result<(OwnedFd, OwnedFd)> {
    let local = socket::address(&client.local).ok_or(io::ErrorKind::InvalidData)?;
    let connecting = outlast(local, || abroad::named(client, local, &client.remote))?;
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
            if socket::events(listener, libc::POLLIN, wait_ms)? != 0 {
                return socket::accept(listener);
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Tries until names of an earlier instance are free.
pub fn patiently<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    loop {
        match work() {
            Err(error) if IN_USE.contains(&error.raw_os_error()) && begun.elapsed() < PATIENCE => {
                thread::sleep(LOOK);
            }
            done => return done,
        }
    }
}

/// The same, for as long as nothing but earlier connections are at an address (TIME_WAIT): to bind where they were takes
/// SO_REUSEADDR of both, and theirs is what it was (inet_bind_conflict).
fn outlast<T>(address: SocketAddr, mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let begun = Instant::now();
    let mut is_said = false;
    loop {
        let done = patiently(&mut work);
        let in_use = done
            .as_ref()
            .is_err_and(|error| IN_USE.contains(&error.raw_os_error()));
        if !in_use || begun.elapsed() > TIME_WAIT || !is_left_behind(address) {
            return done;
        }
        if !is_said {
            is_said = true;
            eprintln!(
                "snaprig: port {} was bound without SO_REUSEADDR: it is waited for what is left of its connections \
                 (TIME_WAIT, a minute at most)",
                address.port()
            );
        }
    }
}

/// Whether all sockets that are bound to an address are connections that have ended.
fn is_left_behind(address: SocketAddr) -> bool {
    let mut entries = procfs::net::tcp().unwrap_or_default();
    // There may be no IPv6.
    entries.extend(procfs::net::tcp6().unwrap_or_default());
    let port = |entry: &&TcpNetEntry| entry.local_address.port() == address.port();
    let mut here = entries.iter().filter(port).peekable();
    here.peek().is_some() && here.all(|entry| entry.state == TcpState::TimeWait)
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

/// Binds a socket to its name; a file of an earlier socket makes room.
fn bind(fd: impl AsFd, socket: &Socket) -> io::Result<()> {
    if socket.local.is_empty() {
        return Ok(());
    }
    if let Some(address) = socket::address(&socket.local) {
        // Nobody has bound it.
        if address.port() == 0 && address.ip().is_unspecified() {
            return Ok(());
        }
        return patiently(|| socket::bind(&fd, &socket.local));
    }
    if socket.family == libc::AF_NETLINK {
        // Its number may be another's by now: then the kernel chooses.
        return socket::bind(&fd, &socket.local).or(Ok(()));
    }
    within(socket, || {
        if let Some(path) = socket
            .local
            .get(2..)
            .filter(|path| path.first() != Some(&0))
        {
            let end = path
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(path.len());
            let path = path_of(&path[..end]);
            if fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
                fs::remove_file(path)?;
            }
        }
        patiently(|| socket::bind(&fd, &socket.local))
    })
}

/// Works in the directory at which a socket's name begins.
fn within<T>(socket: &Socket, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let is_relative = socket.family == libc::AF_UNIX
        && !socket.directory.is_empty()
        && socket
            .local
            .get(2)
            .is_some_and(|first| ![0, b'/'].contains(first));
    if !is_relative {
        return work();
    }
    let before = env::current_dir()?;
    env::set_current_dir(path_of(&socket.directory))?;
    let done = work();
    env::set_current_dir::<&Path>(&before)?;
    done
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

/// When all files are open: puts into all sockets what was in them, and makes them what they were.
pub fn refill(tree: &Tree, opened: &Opened, lost: Lost) -> Result<()> {
    let fd_of = |inode: u64| {
        let (number, _) = sockets(tree).find(|(_, socket)| socket.inode == inode)?;
        // SAFETY: it is open until all are closed.
        Some(unsafe { BorrowedFd::borrow_raw(opened.files[number]) })
    };
    let is_ours = |socket: &Socket| !matches!(socket.stage, Stage::Abroad { .. });
    let filled = sockets(tree).filter(|(_, socket)| !socket.received.is_empty());
    for (_, socket) in filled.filter(|(_, socket)| is_ours(socket)) {
        let failed = |source| {
            let name = socket::show(&socket.local);
            Error::io(format!("contents of the socket {name}"), source)
        };
        let fd = fd_of(socket.inode).ok_or_else(|| damaged("a socket"))?;
        let peer = match socket.stage {
            Stage::Connected { peer: Some(peer) } => fd_of(peer),
            _ => lost.get(&socket.inode).map(AsFd::as_fd),
        };
        let refilled = match (peer, is_datagram(socket)) {
            (Some(peer), false) if socket.family != libc::AF_UNIX => tcp(peer, fd, socket),
            (Some(peer), _) if socket.family == libc::AF_UNIX => unix(peer, opened, socket),
            _ => datagrams(tree, opened, socket),
        };
        refilled.map_err(failed)?;
    }
    for (number, socket) in sockets(tree) {
        let fd = fd_of(socket.inode).ok_or_else(|| damaged("a socket"))?;
        let is_connected = matches!(socket.stage, Stage::Connected { .. } | Stage::Abroad { .. });
        for (bit, how) in [(1, libc::SHUT_RD), (2, libc::SHUT_WR)] {
            if is_connected && socket.shut & bit != 0 {
                // The other end may have said so before.
                let _ = socket::shut(fd, how);
            }
        }
        if let (Stage::Ended { reset }, Some(end)) = (&socket.stage, lost.get(&socket.inode)) {
            match reset {
                true => {
                    let linger = [1i32, 0].map(i32::to_ne_bytes).concat();
                    let _ = socket::set_option(end, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
                }
                false => {
                    let _ = socket::shut(end, libc::SHUT_WR)
                        .and_then(|()| socket::shut(fd, libc::SHUT_WR));
                }
            }
        }
        // One that had to grow for what is in it stays so (flow::hold).
        let is_larger = |bytes: &i32| *bytes > buffer_of(socket).saturating_mul(2);
        let size = socket::number(fd, libc::SOL_SOCKET, libc::SO_RCVBUF);
        let has_grown = !socket.received.is_empty() && size.as_ref().is_ok_and(is_larger);
        apply(fd, socket, |option| !(has_grown && option == BUFFERS[1]));
        set_flags(&fd, tree.files[number].flags)?;
    }
    Ok(())
}

/// The size that the program has given the receiving buffer.
fn buffer_of(socket: &Socket) -> i32 {
    let mut options = socket.options.iter();
    let set = options.find(|(level, name, _)| (*level, *name) == BUFFERS[1]);
    let bytes = set.and_then(|(_, _, value)| value.as_slice().try_into().ok());
    bytes.map_or(i32::MAX, i32::from_ne_bytes)
}

fn tcp(sender: BorrowedFd, receiver: BorrowedFd, socket: &Socket) -> io::Result<()> {
    for message in &socket.received {
        let lock = socket::number(receiver, libc::SOL_SOCKET, socket::SO_BUF_LOCK)?;
        if lock & socket::RECEIVE_LOCK != 0 {
            // It does not grow with use.
            flow::hold(receiver, message.bytes.len() as u64)?;
        } else if message.bytes.len() > COLD_BYTES {
            flow::warm(sender, receiver, message.bytes.len())?;
        }
        flow::put(sender, Some(receiver), &message.bytes)?;
    }
    Ok(())
}

/// Sends messages, with the files that came with them, through the other end.
fn unix(sender: BorrowedFd, opened: &Opened, socket: &Socket) -> io::Result<()> {
    let total: usize = socket
        .received
        .iter()
        .map(|one| one.bytes.len() + 1024)
        .sum();
    let grown = Grown::sending(sender, total)?;
    for message in &socket.received {
        let files = files(opened, message)?;
        let mut sent = socket::send(sender, &message.bytes, &files, &[])?;
        while sent < message.bytes.len() {
            sent += socket::send(sender, &message.bytes[sent..], &[], &[])?;
        }
    }
    grown.shrink(sender)
}

fn files(opened: &Opened, message: &Message) -> io::Result<Vec<i32>> {
    let files = message.files.iter();
    let files = files.map(|number| opened.files.get(*number as usize).copied());
    let files: Option<Vec<i32>> = files.collect();
    files.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Sends datagrams to a name, from the names that they came from.
fn datagrams(tree: &Tree, opened: &Opened, socket: &Socket) -> io::Result<()> {
    for message in &socket.received {
        let from = message.from.as_slice();
        let address = socket::address(from);
        let is_sender = |other: &Socket| match (address, socket::address(&other.local)) {
            (Some(from), Some(name)) => other.protocol == libc::IPPROTO_UDP && covers(name, from),
            _ => !from.is_empty() && other.local == from,
        };
        let sender = sockets(tree).find(|(_, other)| is_sender(other));
        let temporary;
        let sender = match sender {
            // SAFETY: it is open until all are closed.
            Some((number, _)) => unsafe { BorrowedFd::borrow_raw(opened.files[number]) },
            None => {
                temporary = plain(socket)?;
                reuse(&temporary);
                if address.is_some() && socket::bind(&temporary, from).is_err() {
                    // From another machine; datagrams may get lost (udp(7)).
                    continue;
                }
                temporary.as_fd()
            }
        };
        let to = reachable(&socket.local);
        let files = files(opened, message)?;
        within(socket, || socket::send(sender, &message.bytes, &files, &to))?;
    }
    Ok(())
}

/// The name by which this machine reaches who is bound to `name`.
fn reachable(name: &[u8]) -> Vec<u8> {
    let mut name = name.to_vec();
    match socket::address(&name) {
        Some(SocketAddr::V4(v4)) if v4.ip().is_unspecified() && name.len() < 24 => {
            name[4..8].copy_from_slice(&[127, 0, 0, 1]);
        }
        Some(SocketAddr::V6(v6)) if v6.ip().is_unspecified() => name[23] = 1,
        _ => {}
    }
    name
}
