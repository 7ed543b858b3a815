//! Pipes and sockets whose other end a process outside has, as /proc and sock_diag(7) tell while the tree runs.
//!
//! Nothing is opened or copied for it: a copy of an end would keep the pipe from hanging up. What it does not see (ends of
//! processes that only root may look at, or in a message on its way) is found when the tree stands still.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Metadata},
    net::{SocketAddr, UdpSocket},
    os::unix::fs::FileTypeExt,
};

use libc::pid_t;
use procfs::net::TcpState;
use snaprig_tracee::{
    descriptors::{descriptors, me, passed_on},
    tree::{self, is_ours},
};

use crate::{
    descriptor::FoundDescriptor,
    error::{Error, Result},
    memory::shared::id_of,
    plugins::owned::Owned,
    resource::{Purpose, Resource, Running},
    sockets::{entries, is_other_end, plain, unix_sockets},
};

/// Pipes and sockets that lead outside: they are looked for together, for it takes a look at all processes.
#[derive(Debug)]
pub struct Outside;

impl Resource for Outside {
    fn look(&self, tree: &Running<'_>) -> Result<()> {
        let may_be_outside = matches!(tree.purpose, Purpose::Job | Purpose::MovingAlong);
        check(tree.owned, !may_be_outside)
    }
}

/// Device and inode.
type Id = (u64, u64);

/// An end that the tree has: whose it is, and what is said if somebody outside has the other one.
struct End {
    pid: pid_t,
    what: String,
}

/// The pipes and sockets of a tree.
#[derive(Default)]
struct Ends {
    /// Who has an end of a pipe, whether some can be read, and whether some can be written to.
    pipes: BTreeMap<Id, (pid_t, i32, bool, bool)>,
    sockets: BTreeMap<Id, (pid_t, i32)>,
}

/// Refuses a tree whose pipes or sockets lead outside; sockets are looked at only if it `is_alone`, in no job.
fn check(owned: &Owned, is_alone: bool) -> Result<()> {
    let look = || Ends::of(owned)?.check(is_alone);
    // What is looked at may be on its way from process to process of the tree.
    look().or_else(|_| look())
}

/// By inode, the sockets of a tree, and who has them.
pub fn sockets(owned: &Owned) -> Result<BTreeMap<u64, (pid_t, i32)>> {
    let sockets = Ends::of(owned)?.sockets.into_iter();
    Ok(sockets.map(|((_, inode), who)| (inode, who)).collect())
}

/// Inodes of the sockets that processes outside can be seen to have, but for those that a tree has as well; and 0 is
/// nobody's.
pub fn sockets_of_others<'a>(tree: impl Iterator<Item = &'a u64>) -> BTreeSet<u64> {
    let mut inodes = BTreeSet::new();
    for pid in processes() {
        for fd in descriptors(pid).unwrap_or_default() {
            let metadata = end_of(pid, fd).filter(|end| end.file_type().is_socket());
            inodes.extend(metadata.map(|metadata| id_of(&metadata).1));
        }
    }
    for own in tree {
        inodes.remove(own);
    }
    inodes
}

impl Ends {
    fn of(owned: &Owned) -> Result<Self> {
        let own = passed_on().into_iter().chain(0..3);
        let own = own.filter_map(|fd| fs::metadata(format!("/proc/self/fd/{fd}")).ok());
        let own: Vec<Id> = own.map(|metadata| id_of(&metadata)).collect();
        let mut ends = Self::default();
        for pid in tree::processes()? {
            for fd in descriptors(pid).unwrap_or_default() {
                let Some(metadata) = end_of(pid, fd) else {
                    continue;
                };
                let id = id_of(&metadata);
                if own.contains(&id) || owned.is_known(&metadata) {
                    continue;
                }
                if metadata.file_type().is_socket() {
                    ends.sockets.entry(id).or_insert((pid, fd));
                } else if let Some((reads, writes)) = modes(pid, fd) {
                    let end = ends.pipes.entry(id).or_insert((pid, fd, false, false));
                    end.2 |= reads;
                    end.3 |= writes;
                }
            }
        }
        Ok(ends)
    }

    fn check(&self, is_alone: bool) -> Result<()> {
        let mut others = BTreeMap::new();
        for (id, (pid, fd, reads, writes)) in &self.pipes {
            if reads == writes {
                continue;
            }
            let name = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap_or_default();
            let what = format!(
                "descriptor {fd} is a pipe whose other end a process outside has ({})",
                name.display()
            );
            others.insert(*id, (Some(*reads), End { pid: *pid, what }));
        }
        if is_alone {
            self.unix(&mut others)?;
            self.tcp(&mut others)?;
        }
        match outsiders(&others) {
            Some(End { pid, what }) => Err(Error::refused(*pid, what.clone())),
            None => Ok(()),
        }
    }

    fn unix(&self, others: &mut BTreeMap<Id, (Option<bool>, End)>) -> Result<()> {
        if self.sockets.is_empty() {
            return Ok(());
        }
        let known = unix_sockets()?;
        for ((device, inode), (pid, fd)) in &self.sockets {
            let connected = known.get(inode).filter(|known| !known.is_datagram);
            let Some(peer) = connected.and_then(|known| known.peer) else {
                continue;
            };
            let id = (*device, peer);
            if peer != 0 && !self.sockets.contains_key(&id) {
                let what = unix_outside(*fd);
                others.insert(id, (None, End { pid: *pid, what }));
            }
        }
        Ok(())
    }

    fn tcp(&self, others: &mut BTreeMap<Id, (Option<bool>, End)>) -> Result<()> {
        let Some((device, _)) = self.sockets.keys().next() else {
            return Ok(());
        };
        let entries = entries(me())?;
        for entry in &entries {
            let Some((pid, fd)) = self.sockets.get(&(*device, entry.inode)) else {
                continue;
            };
            if matches!(
                entry.state,
                TcpState::Listen | TcpState::SynSent | TcpState::Close
            ) {
                continue;
            }
            let (local, remote) = (plain(entry.local_address), plain(entry.remote_address));
            let what = tcp_outside(*fd, remote);
            if UdpSocket::bind((remote.ip(), 0)).is_err() {
                return Err(Error::refused(*pid, what));
            }
            let other = entries
                .iter()
                .find(|other| other.inode != 0 && is_other_end(other, local, remote));
            let id = other.map(|other| (*device, other.inode));
            if let Some(id) = id.filter(|id| !self.sockets.contains_key(id)) {
                others.insert(id, (None, End { pid: *pid, what }));
            }
        }
        Ok(())
    }
}

/// Of those ends, one that a process outside has; of a pipe that the tree only reads, one that is written to, and the
/// other way round.
fn outsiders(others: &BTreeMap<Id, (Option<bool>, End)>) -> Option<&End> {
    if others.is_empty() {
        return None;
    }
    for pid in processes().filter(|pid| *pid != me()) {
        for fd in descriptors(pid).unwrap_or_default() {
            let id = end_of(pid, fd).map(|metadata| id_of(&metadata));
            let Some((is_read, end)) = id.and_then(|id| others.get(&id)) else {
                continue;
            };
            let is_other = match (is_read, modes(pid, fd)) {
                (None, _) => true,
                (Some(true), Some((_, writes))) => writes,
                (Some(false), Some((reads, _))) => reads,
                (Some(_), None) => false,
            };
            if is_other && !is_ours(pid) {
                return Some(end);
            }
        }
    }
    None
}

/// All processes that there are.
fn processes() -> impl Iterator<Item = pid_t> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|one| one.file_name().to_str()?.parse().ok())
}

/// What is said of a connection to a process outside.
pub fn tcp_outside(fd: i32, remote: SocketAddr) -> String {
    format!("descriptor {fd} is a TCP socket connected to {remote}, which is outside")
}

/// The same of a Unix socket.
pub fn unix_outside(fd: i32) -> String {
    format!("descriptor {fd} is a Unix socket connected to a process outside")
}

/// A descriptor, if it is of a pipe or a socket.
fn end_of(pid: pid_t, fd: i32) -> Option<Metadata> {
    let metadata = fs::metadata(format!("/proc/{pid}/fd/{fd}")).ok()?;
    let kind = metadata.file_type();
    (kind.is_fifo() || kind.is_socket()).then_some(metadata)
}

/// Whether a descriptor can be read, and whether it can be written to.
fn modes(pid: pid_t, fd: i32) -> Option<(bool, bool)> {
    let seen = FoundDescriptor::look(pid, fd)
        .ok()
        .filter(|seen| !seen.is_name())?;
    let mode = seen.info.flags & libc::O_ACCMODE;
    Some((mode != libc::O_WRONLY, mode != libc::O_RDONLY))
}
