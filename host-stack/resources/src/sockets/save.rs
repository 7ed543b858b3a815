//! The sockets of a tree: what each is set to, who is at its other end, and what is on its way between them.
//!
//! What must stay true: nothing is taken out of a connection.

use std::{
    collections::HashMap,
    fs, io,
    mem::size_of,
    net::{SocketAddr, UdpSocket},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
};

use libc::pid_t;
use procfs::{
    net::{TcpNetEntry, TcpState},
    process::Process as Proc,
};

use super::{
    diag, flow, netlink, options,
    remote::save_tcp::UnknownPeer,
    socket::{self, Received},
};
use crate::{
    calls,
    error::{Error, Result},
    opened::Item,
    resource,
    state::{Kind, Message, OpenFile, Socket, Stage},
};

/// States of TCP (net/tcp_states.h).
const SYN_SENT: u8 = 2;
const CLOSED: u8 = 7;
const LISTENS: u8 = 10;
/// Those in which an end has said that it sends no more: FIN_WAIT1, FIN_WAIT2, LAST_ACK, CLOSING.
pub const SENT_END: [u8; 4] = [4, 5, 9, 11];
/// Where the backlog is in struct tcp_info (tcpi_sacked).
const BACKLOG_AT: usize = 28;

/// A socket as it is met.
#[derive(Debug)]
pub struct FoundSocket {
    /// Number among the files of the tree.
    pub file: u32,
    pub pid: pid_t,
    fd: i32,
    pub copy: OwnedFd,
    /// State of TCP.
    pub state: u8,
}

impl FoundSocket {
    pub fn refused(&self, what: &str) -> Error {
        Error::refused(self.pid, format!("descriptor {} is {what}", self.fd))
    }

    /// What it has sent does not arrive, however large the other end's buffer may become.
    pub fn overfull(&self) -> Error {
        let what = "a TCP socket of a connection with more on its way than its receiver may hold (net.ipv4.tcp_rmem): \
                    wait until it reads";
        self.refused(what)
    }

    pub fn failed(&self, source: io::Error) -> Error {
        Error::Process {
            pid: self.pid,
            what: format!(
                "what is on its way to the TCP socket at descriptor {}",
                self.fd
            ),
            source,
        }
    }
}

/// All sockets of a tree.
#[derive(Debug, Default)]
pub struct Sockets {
    pub met: Vec<FoundSocket>,
    /// TCP connections to who may be of the same job, and Unix sockets.
    pub unknown_peers: Vec<UnknownPeer>,
    pub unknown_unix_peers: Vec<UnknownPeer>,
}

impl Sockets {
    /// A socket that is met for the first time, and the messages in it, if they can be read without being taken.
    pub fn meet(&mut self, met: resource::FoundFile<'_>) -> Result<(Socket, Vec<Received>)> {
        let resource::FoundFile { seen, copy, .. } = met;
        let (file, pid, fd, inode) = (met.number, seen.pid, seen.fd, seen.metadata.ino());
        let failed = |source| Error::Process {
            pid,
            what: format!("the socket at descriptor {fd}"),
            source,
        };
        let described = describe(pid, &copy, inode).map_err(failed)?;
        let Some((socket, state)) = described else {
            let of = |name| socket::number(&copy, libc::SOL_SOCKET, name).unwrap_or(-1);
            let (family, protocol) = (of(libc::SO_DOMAIN), of(libc::SO_PROTOCOL));
            let what = format!(
                "descriptor {fd} is a socket of a kind that cannot be saved (family {family}, protocol {protocol})"
            );
            return Err(Error::refused(pid, what));
        };
        if socket.family == libc::AF_NETLINK && netlink::is_unread(&copy).map_err(failed)? {
            let what = format!("descriptor {fd} is a netlink socket with what has not been read");
            return Err(Error::refused(pid, what).for_now());
        }
        let has_messages = socket.family == libc::AF_UNIX || socket.protocol == libc::IPPROTO_UDP;
        let messages = match has_messages {
            true => socket::peek_messages(&copy).map_err(failed)?,
            false => Vec::new(),
        };
        self.met.push(FoundSocket {
            file,
            pid,
            fd,
            copy,
            state,
        });
        Ok((socket, messages))
    }

    /// When all are known: finds out who is connected to whom, and saves what is on its way.
    pub fn join(&mut self, open: &mut [OpenFile]) -> Result<()> {
        self.join_unix(open)?;
        let pairs = self.join_tcp(open)?;
        for (receiver, sender) in pairs {
            let bytes = self.save(receiver, sender)?;
            if !bytes.is_empty() {
                let message = Message {
                    bytes,
                    ..Message::default()
                };
                at(open, self.met[receiver].file).received = vec![message];
            }
        }
        Ok(())
    }

    /// All of them, by inode.
    pub fn copies(&self, open: &[OpenFile]) -> Vec<(Item, BorrowedFd<'_>)> {
        let inode = |file: u32| match &open[file as usize].kind {
            Kind::Socket(socket) => Some(Item::Socket(socket.inode)),
            _ => None,
        };
        let copies = self.met.iter();
        copies
            .filter_map(|met| Some((inode(met.file)?, met.copy.as_fd())))
            .collect()
    }

    /// Before a tree ends whose image is complete: its connections leave nothing behind that keeps their addresses
    /// (TIME_WAIT).
    pub fn abandon(&self) {
        for met in self.met.iter().filter(|met| met.state != 0) {
            let linger = [1i32, 0].map(i32::to_ne_bytes).concat();
            // What cannot be set so is waited for when the tree is restarted.
            let _ = socket::set_option(&met.copy, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
        }
    }

    fn join_unix(&mut self, open: &mut [OpenFile]) -> Result<()> {
        let ours =
            |open: &mut [OpenFile], met: &FoundSocket| at(open, met.file).family == libc::AF_UNIX;
        if !self.met.iter().any(|met| ours(open, met)) {
            return Ok(());
        }
        let known = diag::unix_sockets()?;
        let inodes: HashMap<u64, u32> = self
            .met
            .iter()
            .map(|met| (at(open, met.file).inode, met.file))
            .collect();
        let waiting: Vec<u64> = inodes
            .keys()
            .filter_map(|inode| known.get(inode))
            .flat_map(|known| known.waiting.iter().copied())
            .collect();
        let mut unknown = Vec::new();
        for (index, met) in self.met.iter().enumerate() {
            let socket = at(open, met.file);
            let Some(known) = known
                .get(&socket.inode)
                .filter(|_| socket.family == libc::AF_UNIX)
            else {
                continue;
            };
            socket.shut = known.shut;
            if let Some(backlog) = known.listens {
                let waiting = known.waiting.iter().copied();
                let waiting = waiting.filter(|inode| inodes.contains_key(inode));
                socket.stage = Stage::Listening {
                    backlog,
                    waiting: waiting.collect(),
                };
                continue;
            }
            let is_datagram = socket.kind == libc::SOCK_DGRAM;
            let is_lost = |peer: u64| peer != 0 && !inodes.contains_key(&peer);
            socket.stage = match known.peer {
                None => Stage::Idle,
                Some(peer) if is_lost(peer) && (!is_datagram || socket.remote.is_empty()) => {
                    let remote = socket::show(&socket.remote);
                    let what = format!("a Unix socket connected to a process outside ({remote})");
                    let refusal = met.refused(&what);
                    if is_datagram {
                        return Err(refusal);
                    }
                    unknown.push(UnknownPeer {
                        met: index,
                        refusal,
                    });
                    Stage::Connected { peer: None }
                }
                Some(peer) => Stage::Connected {
                    peer: Some(peer).filter(|peer| inodes.contains_key(peer)),
                },
            };
            // What was sent on a connection that nobody has accepted can be read by nobody.
            if waiting.contains(&socket.inode) && socket::unsent(&met.copy).unwrap_or(0) > 0 {
                let what = "a Unix socket that has sent something on a connection not yet accepted";
                return Err(met.refused(what).for_now());
            }
        }
        self.unknown_unix_peers = unknown;
        Ok(())
    }

    /// Finds the ends of TCP connections: who receives, and from whom, if it is in the tree.
    fn join_tcp(&mut self, open: &mut [OpenFile]) -> Result<Vec<(usize, Option<usize>)>> {
        let mut ends: HashMap<(SocketAddr, SocketAddr), usize> = HashMap::new();
        for (index, met) in self
            .met
            .iter()
            .enumerate()
            .filter(|(_, met)| met.state != 0)
        {
            let socket = at(open, met.file);
            if let (Some(local), Some(remote)) = names(socket) {
                ends.insert((local, remote), index);
            }
        }
        let (mut pairs, mut unknown) = (Vec::new(), Vec::new());
        for (index, met) in self
            .met
            .iter()
            .enumerate()
            .filter(|(_, met)| met.state != 0)
        {
            let socket = at(open, met.file);
            if matches!(socket.stage, Stage::Ended { .. }) {
                pairs.push((index, None));
            }
            let (Stage::Connected { .. }, (Some(local), Some(remote))) =
                (&socket.stage, names(socket))
            else {
                continue;
            };
            let other = ends.get(&(remote, local)).copied();
            if other == Some(index) {
                return Err(met.refused("a socket connected to itself"));
            }
            match other {
                Some(other) => {
                    let peer = at(open, self.met[other].file).inode;
                    at(open, met.file).stage = Stage::Connected { peer: Some(peer) };
                }
                None => {
                    if let Some(refusal) = self.lonely(met, open, local, remote)? {
                        unknown.push(UnknownPeer {
                            met: index,
                            refusal,
                        });
                        continue;
                    }
                }
            }
            pairs.push((index, other));
        }
        self.unknown_peers = unknown;
        Ok(pairs)
    }

    /// A connection whose other end no process of the tree has: it waits to be accepted, has been closed, or is a
    /// a process outside has it, which is refused unless that is of the same job.
    pub fn lonely(
        &self,
        met: &FoundSocket,
        open: &mut [OpenFile],
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Option<Error>> {
        let entries = entries(met.pid)?;
        let mut ends = entries
            .iter()
            .filter(|entry| is_other_end(entry, local, remote));
        let other = ends.clone().find(|entry| entry.inode == 0);
        let outside = format!(
            "a TCP socket connected to {remote}, which is outside (from {local}, {})",
            TcpState::from_u8(met.state).map_or("CLOSED".into(), |state| format!("{state:?}"))
        );
        let is_local = UdpSocket::bind((remote.ip(), 0)).is_ok();
        if !is_local || ends.any(|entry| entry.inode != 0) {
            return Ok(Some(met.refused(&outside)));
        }
        let waits = other
            .filter(|other| matches!(other.state, TcpState::Established | TcpState::CloseWait));
        let Some(waits) = waits else {
            return match other.is_some_and(|other| other.tx_queue > 1) {
                true => Err(met.refused(&format!(
                    "a TCP socket to which {remote}, which has ended, still sends"
                ))),
                false => Ok(None),
            };
        };
        let inode = at(open, met.file).inode;
        let listener = self.met.iter().find(|listener| {
            let socket = at(open, listener.file);
            let address = socket::address(&socket.local);
            matches!(socket.stage, Stage::Listening { .. })
                && address.is_some_and(|address| {
                    address.port() == remote.port()
                        && (address.ip().is_unspecified() || address.ip() == remote.ip())
                })
        });
        let Some(listener) = listener else {
            return Ok(Some(met.refused(&outside)));
        };
        // The end of what is sent counts as well.
        let ended = u32::from(waits.state == TcpState::CloseWait);
        if waits.rx_queue > ended {
            let what = "a TCP socket that has sent something on a connection not yet accepted";
            return Err(met.refused(what).for_now());
        }
        if let Stage::Listening { waiting, .. } = &mut at(open, listener.file).stage {
            waiting.push(inode);
        }
        Ok(None)
    }

    /// What an end has not read yet.
    fn save(&self, receiver: usize, sender: Option<usize>) -> Result<Vec<u8>> {
        let met = &self.met[receiver];
        let failed = |source| met.failed(source);
        let Some(sender) = sender.map(|sender| &self.met[sender]) else {
            return flow::peek(&met.copy).map_err(failed);
        };
        let has_ended = SENT_END.contains(&sender.state);
        let gathered = flow::gather(&sender.copy, &met.copy, has_ended).map_err(failed)?;
        // It no longer sends ahead: if its receiver reads, there is room soon.
        gathered.ok_or_else(|| sender.overfull().for_now())
    }
}

/// The socket that a file is.
pub fn at(open: &mut [OpenFile], file: u32) -> &mut Socket {
    match &mut open[file as usize].kind {
        Kind::Socket(socket) => socket,
        _ => unreachable!("only sockets are met here"),
    }
}

pub fn names(socket: &Socket) -> (Option<SocketAddr>, Option<SocketAddr>) {
    (
        socket::address(&socket.local),
        socket::address(&socket.remote),
    )
}

/// An address of IPv4 within IPv6 is the former.
pub fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Whether it is the other end of the connection between these two addresses.
pub fn is_other_end(entry: &TcpNetEntry, local: SocketAddr, remote: SocketAddr) -> bool {
    (plain(entry.local_address), plain(entry.remote_address)) == (remote, local)
}

/// All TCP connections that a process's network namespace has.
pub fn entries(pid: pid_t) -> Result<Vec<TcpNetEntry>> {
    let process = Proc::new(pid)?;
    let mut entries = process.tcp()?;
    // There may be no IPv6.
    entries.extend(process.tcp6().unwrap_or_default());
    Ok(entries)
}

/// What a socket says of itself, and TCP's state; none if it is of a kind that cannot be saved.
fn describe(pid: pid_t, fd: &OwnedFd, inode: u64) -> io::Result<Option<(Socket, u8)>> {
    let number = |name| socket::number(fd, libc::SOL_SOCKET, name);
    let (family, kind, protocol) = (
        number(libc::SO_DOMAIN)?,
        number(libc::SO_TYPE)?,
        number(libc::SO_PROTOCOL)?,
    );
    let is_known = match family {
        libc::AF_UNIX | libc::AF_NETLINK => true,
        libc::AF_INET | libc::AF_INET6 => {
            (kind == libc::SOCK_STREAM
                && [libc::IPPROTO_TCP, libc::IPPROTO_MPTCP].contains(&protocol))
                || (kind == libc::SOCK_DGRAM && protocol == libc::IPPROTO_UDP)
        }
        _ => false,
    };
    if !is_known {
        return Ok(None);
    }
    let mut socket = Socket {
        family,
        kind,
        protocol,
        inode,
        local: socket::local_name(fd)?,
        directory: Vec::new(),
        remote: socket::remote_name(fd)?,
        stage: Stage::Idle,
        received: Vec::new(),
        shut: 0,
        options: options::all(fd, (family, kind)),
    };
    if family == libc::AF_UNIX && !socket.local.is_empty() {
        let directory = fs::read_link(format!("/proc/{pid}/cwd"))?;
        socket.directory = directory.as_os_str().as_bytes().to_vec();
    }
    let state = match protocol {
        libc::IPPROTO_TCP | libc::IPPROTO_MPTCP if family != libc::AF_UNIX => tcp(fd, &mut socket)?,
        _ => 0,
    };
    // Who speaks plain TCP with its clients has a listener of MPTCP all the same. A connection has more to it, and so has
    // one whose TLS the kernel speaks.
    let is_plain = matches!(socket.stage, Stage::Idle | Stage::Listening { .. });
    let has_more = match protocol {
        libc::IPPROTO_MPTCP => !is_plain,
        _ => options::has_upper_layer(fd),
    };
    if has_more {
        return Ok(None);
    }
    if state == 0 && family != libc::AF_UNIX && !socket.remote.is_empty() {
        socket.stage = Stage::Connected { peer: None };
    }
    Ok(Some((socket, state)))
}

/// Where a TCP socket stands.
pub fn tcp(fd: &OwnedFd, socket: &mut Socket) -> io::Result<u8> {
    let info = socket::option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let state = info.first().copied().unwrap_or(CLOSED);
    let events = calls::events(fd, libc::POLLRDHUP, 0)?;
    socket.stage = match state {
        LISTENS => {
            let backlog = info.get(BACKLOG_AT..BACKLOG_AT + size_of::<u32>());
            let backlog = backlog.and_then(|bytes| bytes.try_into().ok());
            Stage::Listening {
                backlog: backlog.map_or(0, u32::from_ne_bytes),
                waiting: Vec::new(),
            }
        }
        SYN_SENT => Stage::Connecting,
        CLOSED if events & libc::POLLERR != 0 => Stage::Ended { reset: true },
        CLOSED if was_connected(fd) => Stage::Ended { reset: false },
        CLOSED => Stage::Idle,
        _ => Stage::Connected { peer: None },
    };
    // ESTABLISHED, FIN_WAIT1 and 2: the other end has not said that it is done, so this one has.
    let stops = [1, 4, 5].contains(&state) && events & libc::POLLRDHUP != 0;
    socket.shut = u8::from(stops) | u8::from(SENT_END.contains(&state)) << 1;
    Ok(state)
}

/// Of a socket that is not connected: one that was says that its stream has ended.
fn was_connected(fd: &OwnedFd) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: recv(2) writes at most one byte, for which there is room.
    unsafe { libc::recv(fd.as_raw_fd(), (&raw mut byte).cast(), 1, flags) >= 0 }
}
