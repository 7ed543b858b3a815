//! TCP connections to other trees of a job, made again by both.
//!
//! ```text
//! connecting tree              board                accepting tree
//!   | <-- "at": where it listens now ------------------ |   through the program's own socket, or one for the purpose
//!   | --- "from": with which name it has connected ---> |
//!   | --- what is to come to it, which it is sent again |   both ways (carry)
//!   | <-- "open": nothing more is accepted ------------ |   then those connect that wait to be accepted
//! ```
//! The program sees the addresses that it had, if they are to be had on this machine; else those that its ends have now.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use super::{exchange as carry, save_tcp::listener};
use crate::{
    board::Board,
    calls,
    error::{Error, Result},
    sockets::{
        flow,
        names::{is_in_use, patiently, reuse},
        restore::{BUFFERS, COLD_BYTES, RestoredSockets, apply, plain},
        socket,
    },
    state::{Socket, Stage},
};

/// How long other trees may take to connect, once they know where.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one connection may take.
const CONNECTING_S: i64 = 10;
/// Connections that may wait while they are made.
const BACKLOG: u32 = 4096;
/// IP_LOCAL_PORT_RANGE (Linux 6.3), IP_BIND_ADDRESS_NO_PORT (ip(7)).
const LOCAL_PORT_RANGE: i32 = 51;
const BIND_ADDRESS_NO_PORT: i32 = 24;
/// As many times what is on its way goes through a new connection, so that its buffers grow; but no more than this.
const PUMPED: usize = 8;
const PUMPED_MAX: usize = 64 << 20;

/// An end of a connection to another tree.
struct End<'a> {
    socket: &'a Socket,
    id: &'a [u8],
    accepts: bool,
}

impl End<'_> {
    fn key(&self, what: &str) -> Vec<u8> {
        [what.as_bytes(), self.id].concat()
    }
}

/// Makes all but those that wait to be accepted.
pub fn connect(made: &mut RestoredSockets, board: Option<&Board>) -> Result<()> {
    let mut ends: Vec<End> = made.all.iter().filter_map(|socket| end(socket)).collect();
    // All go through them in this order, so that nobody waits for who waits for it.
    ends.sort_by(|one, other| one.id.cmp(other.id));
    let Some(board) = board else {
        return match made
            .all
            .iter()
            .any(|socket| matches!(socket.stage, Stage::BetweenTrees { .. }))
        {
            true => Err(Error::Missing {
                what: "it is connected to other trees of its job: restart that (--job)".into(),
            }),
            false => Ok(()),
        };
    };
    let failed = |source| Error::io("a connection to another tree", source);
    let temporary = listen(made, &ends, board)?;
    let connecting: Vec<&End> = ends.iter().filter(|end| !end.accepts).collect();
    let keys: Vec<_> = connecting.iter().map(|end| end.key("at")).collect();
    let mut said = Vec::new();
    for (end, to) in connecting.iter().zip(board.lookup::<SocketAddr>(&keys)?) {
        let fd = dial(end.socket, to).map_err(failed)?;
        let from = socket::address(&socket::local_name(&fd).map_err(failed)?);
        said.push((end.key("from"), from));
        made.made.insert(end.socket.inode, fd);
    }
    board.publish(&said)?;
    accept(made, &ends, &temporary, board)?;
    for end in &ends {
        if let Some(fd) = made.made.get(&end.socket.inode) {
            refill(fd.as_fd(), end.socket).map_err(failed)?;
        }
    }
    Ok(())
}

/// When this tree accepts nothing more: others may wait at its sockets, and it at theirs.
pub fn wait(made: &mut RestoredSockets, board: Option<&Board>) -> Result<()> {
    let Some(board) = board else {
        return Ok(());
    };
    let failed = |source| Error::io("a connection that waits to be accepted", source);
    let mut open = Vec::new();
    for socket in &made.all {
        let fd = made.made.get(&socket.inode);
        if let (Stage::Listening { .. }, libc::IPPROTO_TCP, Some(fd)) =
            (&socket.stage, socket.protocol, fd)
        {
            let key = [b"open", &listener(socket)[..]].concat();
            open.push((key, reachable(fd, socket).map_err(failed)?));
        }
    }
    board.publish(&open)?;
    for socket in made.all.clone() {
        let Stage::BetweenTrees {
            waits: Some(listener),
            ..
        } = &socket.stage
        else {
            continue;
        };
        let to = board.lookup::<SocketAddr>(&[[b"open", &listener[..]].concat()])?;
        let to = *to
            .first()
            .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let fd = dial(socket, to).map_err(failed)?;
        made.made.insert(socket.inode, fd);
    }
    Ok(())
}

fn end<'a>(socket: &'a Socket) -> Option<End<'a>> {
    match &socket.stage {
        Stage::BetweenTrees {
            id,
            accepts,
            waits: None,
        } if socket.family != libc::AF_UNIX => Some(End {
            socket,
            id,
            accepts: *accepts,
        }),
        _ => None,
    }
}

/// Has all that accept listen, and says where; what listens for the purpose, by the names it stands for.
fn listen(
    made: &RestoredSockets,
    ends: &[End],
    board: &Board,
) -> Result<BTreeMap<Vec<u8>, OwnedFd>> {
    let failed = |source| Error::io("a socket that listens for another tree", source);
    let mut temporary: BTreeMap<Vec<u8>, OwnedFd> = BTreeMap::new();
    let mut said = Vec::new();
    for end in ends.iter().filter(|end| end.accepts) {
        let (own, local) = (made.listeners(end.socket), &end.socket.local);
        if own.is_empty() && !temporary.contains_key(local) {
            temporary.insert(local.clone(), substitute(end.socket).map_err(failed)?);
        }
        let substitute = temporary.get(local).map(AsFd::as_fd);
        let Some(fd) = own.first().copied().or(substitute) else {
            continue;
        };
        socket::listen(fd, BACKLOG).map_err(failed)?;
        said.push((end.key("at"), reachable(fd, end.socket).map_err(failed)?));
    }
    board.publish(&said)?;
    Ok(temporary)
}

/// A socket to be bound where another is that nobody has any more.
fn substitute(socket: &Socket) -> io::Result<OwnedFd> {
    let fd = plain(socket)?;
    reuse(&fd);
    apply(&fd, socket, |option| {
        BUFFERS.contains(&option) || option.1 == libc::SO_REUSEPORT
    });
    // With another machine's name, or one that is not to be had, the kernel chooses one when it listens.
    if socket::address(&socket.local).is_some_and(|address| is_here(address.ip())) {
        match patiently(|| socket::bind(&fd, &socket.local)) {
            Err(error) if !is_in_use(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(fd)
}

/// Accepts those that have said who they are.
fn accept(
    made: &mut RestoredSockets,
    ends: &[End],
    temporary: &BTreeMap<Vec<u8>, OwnedFd>,
    board: &Board,
) -> Result<()> {
    let failed = |source| Error::io("a connection of another tree", source);
    let accepting: Vec<&End> = ends.iter().filter(|end| end.accepts).collect();
    let keys: Vec<_> = accepting.iter().map(|end| end.key("from")).collect();
    let from = board.lookup::<Option<SocketAddr>>(&keys)?;
    let mut expected: BTreeMap<(SocketAddr, u16), u64> = BTreeMap::new();
    for (end, from) in accepting.iter().zip(from) {
        let port = |socket: &Socket| socket::address(&socket.local).map_or(0, |local| local.port());
        if let Some(from) = from {
            let at = if temporary.contains_key(&end.socket.local) {
                0
            } else {
                port(end.socket)
            };
            expected.insert((from, at), end.socket.inode);
        }
    }
    if expected.len() < accepting.len() {
        return Err(failed(io::ErrorKind::InvalidData.into()));
    }
    let mut found = Vec::new();
    let until = Instant::now() + PATIENCE;
    while !expected.is_empty() {
        let own = made
            .all
            .iter()
            .filter(|one| matches!(one.stage, Stage::Listening { .. }));
        let own = own.filter_map(|one| made.made.get(&one.inode).map(|fd| (fd, false)));
        let listeners = own.chain(temporary.values().map(|fd| (fd, true)));
        let mut is_still = true;
        for (listener, is_temporary) in listeners {
            if calls::events(listener, libc::POLLIN, 0).map_err(failed)? == 0 {
                continue;
            }
            is_still = false;
            let fd = socket::accept(listener).map_err(failed)?;
            let from = socket::address(&socket::remote_name(&fd).map_err(failed)?);
            let local = socket::address(&socket::local_name(&fd).map_err(failed)?);
            let (Some(from), Some(local)) = (from, local) else {
                continue;
            };
            let at = if is_temporary { 0 } else { local.port() };
            // Somebody else may have come: nobody answers who is not of the job.
            if let Some(inode) = expected.remove(&(from, at)) {
                found.push((inode, fd));
            }
        }
        if Instant::now() > until {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
        if is_still {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    made.made.extend(found);
    for socket in &made.all {
        if let (Stage::Listening { backlog, .. }, Some(fd)) =
            (&socket.stage, made.made.get(&socket.inode))
        {
            socket::listen(fd, *backlog).map_err(failed)?;
        }
    }
    Ok(())
}

/// Connects, with the name that the socket had, if that is to be had here.
fn dial(socket: &Socket, to: SocketAddr) -> io::Result<OwnedFd> {
    let to = socket::name_of(socket.family, to);
    let local = socket::address(&socket.local).filter(|local| is_here(local.ip()));
    if let Some(local) = local {
        // An earlier instance may keep the name for a while.
        match patiently(|| named(socket, local, &to)) {
            Ok(fd) => return Ok(fd),
            Err(error) => {
                tracing::warn!(%error, %local, "a connection has another name than it had")
            }
        }
    }
    let fd = ready(socket)?;
    socket::connect(&fd, &to)?;
    Ok(fd)
}

/// Connects with a name: as the kernel chooses, of one port, which it does also where an earlier connection's name is no
/// longer needed (TIME_WAIT); or bound to it. What was bound, and without SO_REUSEADDR, leaves a name behind that is not
/// to be had again for a minute.
pub fn named(socket: &Socket, local: SocketAddr, to: &[u8]) -> io::Result<OwnedFd> {
    chosen(socket, local, to).or_else(|_| {
        let fd = ready(socket)?;
        socket::bind(&fd, &socket.local)?;
        socket::connect(&fd, to)?;
        Ok(fd)
    })
}

/// The kernel chooses the one port that it may; one that cannot do it (before Linux 6.3) says so.
fn chosen(socket: &Socket, local: SocketAddr, to: &[u8]) -> io::Result<OwnedFd> {
    let fd = ready(socket)?;
    let port = i32::from(local.port());
    let choose = |range: i32, late: i32| {
        socket::set_number(&fd, libc::IPPROTO_IP, LOCAL_PORT_RANGE, range)
            .and_then(|()| socket::set_number(&fd, libc::IPPROTO_IP, BIND_ADDRESS_NO_PORT, late))
    };
    choose(port | port << 16, 1)?;
    let address = SocketAddr::new(local.ip(), 0);
    socket::bind(&fd, &socket::name_of(socket.family, address))?;
    socket::connect(&fd, to)?;
    choose(0, 0)?;
    match socket::address(&socket::local_name(&fd)?) == Some(local) {
        true => Ok(fd),
        false => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// A socket that gives up connecting after a while; the program's own setting comes with its other options.
fn ready(socket: &Socket) -> io::Result<OwnedFd> {
    let fd = plain(socket)?;
    reuse(&fd);
    apply(&fd, socket, |option| {
        BUFFERS.contains(&option) || option.1 == libc::SO_REUSEPORT
    });
    let patience = [CONNECTING_S, 0].map(i64::to_ne_bytes).concat();
    socket::set_option(&fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, &patience)?;
    Ok(fd)
}

/// Where other trees reach who listens.
fn reachable(listener: impl AsFd, socket: &Socket) -> io::Result<SocketAddr> {
    let bound = socket::address(&socket::local_name(listener)?);
    let bound = bound.ok_or(io::ErrorKind::InvalidData)?;
    if !bound.ip().is_unspecified() {
        return Ok(bound);
    }
    let old = socket::address(&socket.local).map(|old| old.ip());
    let ip = match old.filter(|ip| !ip.is_unspecified() && is_here(*ip)) {
        Some(ip) => ip,
        None => outwards(socket)?,
    };
    Ok(SocketAddr::new(ip, bound.port()))
}

/// The address of this machine that leads to who was at the other end; if nobody was, to anybody.
fn outwards(socket: &Socket) -> io::Result<IpAddr> {
    let to = socket::address(&socket.remote);
    let any: IpAddr = match to {
        Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    let probe = UdpSocket::bind((any, 0))?;
    // TEST-NET-1 (RFC 5737) is nobody's: it goes where everything else does.
    let to = to.unwrap_or(SocketAddr::from(([192, 0, 2, 1], 9)));
    // Connecting a datagram socket sends nothing: it chooses a route.
    match probe.connect(to) {
        Ok(()) => Ok(probe.local_addr()?.ip()),
        // A machine without a network: everybody is here.
        Err(_) => Ok(Ipv4Addr::LOCALHOST.into()),
    }
}

/// Whether an address is this machine's.
fn is_here(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// What is to come to this end is sent to the other tree, which sends it back; the other way likewise.
fn refill(fd: BorrowedFd, socket: &Socket) -> io::Result<()> {
    let bytes: Vec<u8> = socket
        .received
        .iter()
        .flat_map(|one| one.bytes.clone())
        .collect();
    let theirs = carry::swap(fd, &bytes)?;
    let pumped = |bytes: usize| match bytes {
        ..=COLD_BYTES => 0,
        _ => (bytes * PUMPED).min(PUMPED_MAX),
    };
    carry::pump(fd, pumped(theirs.len()), pumped(bytes.len()))?;
    flow::put(fd, None, &theirs)
}
