//! Connections of a tree of a job to a process that is in no member, found while all trees run.
//!
//! ```text
//! each member            board                                    what it has, and what may be its own
//!   | -- "tcp": ends -----> |       all have said so
//!   | -- "tcp": more -----> |       all have said so              what was made while others looked
//!   | <-- other ends ------ |                                     nobody says so, and it is still there: a process outside's
//! ```
//! Connections come and go meanwhile. What was there before the first look of others had ended, their second look sees,
//! if it is theirs. Nobody tells of an end that has been closed, or is on its way in a message (SCM_RIGHTS): of an end
//! that no process outside can be seen to have, each member says that it may be its own. Of Unix sockets there may be many
//! of those. A process outside is who can be seen to have the other end: what is in doubt, or on another machine, is left to
//! when all stand still.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
};

use libc::pid_t;
use procfs::net::{TcpNetEntry, TcpState};
use snaprig_tracee::tree;

use super::{
    save_tcp::{id_in, key, machine, place},
    save_unix,
};
use crate::{
    board::Board,
    error::{Error, Result},
    outside,
    plugins::owned::Owned,
    sockets::{
        diag,
        save::{entries, is_other_end, plain},
    },
};

/// A connection that a tree has, to something else.
struct Connection {
    pid: pid_t,
    /// What is said if that is a process outside.
    what: String,
    others: Vec<u8>,
    /// The inode of the other end, where it can be seen.
    peer: Option<u64>,
}

/// What a member sees at one look.
#[derive(Default)]
struct Observation {
    /// By what its own end is called.
    own: BTreeMap<Vec<u8>, Connection>,
    /// Ends that are its own, or may be.
    claims: BTreeSet<Vec<u8>>,
    /// Inodes of its sockets.
    tree: BTreeSet<u64>,
}

/// Refuses connections of this process's descendants to processes outside; all members of the job do so at the same time. What
/// programs with plugins have, those say later: with them (`judges` is false), it is only said what there is.
pub fn refuse(board: &Board, judges: bool) -> Result<()> {
    let first = Observation::take()?;
    board.claim(first.claims.iter())?;
    board.meet("seen")?;
    let mut second = Observation::take()?;
    board.claim(second.claims.difference(&first.claims))?;
    board.meet("seen again")?;
    second.own.retain(|own, _| first.own.contains_key(own));
    if !judges || second.own.is_empty() {
        return Ok(());
    }
    let keys: Vec<_> = second.own.values().map(|it| it.others.clone()).collect();
    let claimed = board.look::<()>(&keys)?;
    let outsiders = second.own.iter().zip(claimed);
    let mut outsiders = outsiders
        .filter(|(_, claimed)| claimed.is_none())
        .peekable();
    if outsiders.peek().is_none() {
        return Ok(());
    }
    let last = Observation::take()?;
    let others = outside::sockets_of_others(last.tree.iter());
    let is_others = |one: &&Connection| one.peer.is_some_and(|peer| others.contains(&peer));
    let mut left = outsiders.filter_map(|((own, _), _)| last.own.get(own));
    match left.find(is_others) {
        Some(Connection { pid, what, .. }) => Err(Error::refused(*pid, what.clone())),
        None => Ok(()),
    }
}

impl Observation {
    fn take() -> Result<Self> {
        let (mut look, mut places) = (Self::default(), BTreeSet::new());
        let pids = tree::processes()?;
        let tree = outside::sockets(&Owned::default())?;
        let mut uids = BTreeSet::new();
        for pid in &pids {
            uids.extend(fs::metadata(format!("/proc/{pid}")).map(|process| process.uid()));
        }
        let mut others = None;
        for pid in pids {
            // It may have ended.
            let Some(place) = place(pid).ok().filter(|place| !places.contains(place)) else {
                continue;
            };
            let Ok(entries) = entries(pid) else { continue };
            for entry in &entries {
                let (local, remote) = (plain(entry.local_address), plain(entry.remote_address));
                let (id, is_low) = id_in(&place, local, remote)?;
                let own = key("tcp", &id, is_low);
                if let Some((pid, fd)) = tree.get(&entry.inode) {
                    look.claims.insert(own.clone());
                    if entry.state == TcpState::Established {
                        let connection = Connection {
                            pid: *pid,
                            what: outside::tcp_outside(*fd, remote),
                            others: key("tcp", &id, !is_low),
                            peer: entries
                                .iter()
                                .find(|other| is_other_end(other, local, remote))
                                .map(|other| other.inode),
                        };
                        look.own.insert(own, connection);
                    }
                } else if may_be_own(entry, &uids) {
                    let others =
                        others.get_or_insert_with(|| outside::sockets_of_others(tree.keys()));
                    if !others.contains(&entry.inode) {
                        look.claims.insert(own);
                    }
                }
            }
            places.insert(place);
        }
        look.unix(&tree)?;
        look.tree = tree.into_keys().collect();
        Ok(look)
    }

    fn unix(&mut self, tree: &BTreeMap<u64, (pid_t, i32)>) -> Result<()> {
        if tree.is_empty() {
            return Ok(());
        }
        let machine = machine()?;
        let key = |inode: u64| save_unix::key("unix", &machine, inode);
        let known = diag::unix_sockets()?;
        for (inode, (pid, fd)) in tree {
            let Some(known) = known.get(inode).filter(|known| !known.is_datagram) else {
                continue;
            };
            self.claims.insert(key(*inode));
            if let Some(peer) = known
                .peer
                .filter(|peer| *peer != 0 && !tree.contains_key(peer))
            {
                let connection = Connection {
                    pid: *pid,
                    what: outside::unix_outside(*fd),
                    others: key(peer),
                    peer: Some(peer),
                };
                self.own.insert(key(*inode), connection);
            }
        }
        Ok(())
    }
}

/// Whether an end that no process of the tree is seen to have may be one of its own: not accepted yet, closed, or on its
/// way in a message.
fn may_be_own(entry: &TcpNetEntry, uids: &BTreeSet<u32>) -> bool {
    let is_none = matches!(
        entry.state,
        TcpState::Listen | TcpState::TimeWait | TcpState::Close
    );
    !is_none && (entry.inode == 0 || uids.contains(&entry.uid))
}
