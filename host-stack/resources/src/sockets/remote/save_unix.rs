//! Unix sockets between trees of a job: who is at the other end. What is on its way is in the queue of the end that it
//! goes to: nothing is drained.
//!
//! ```text
//! each tree                                  board                            all trees stand still
//!   | -- "unix": ends of this tree ---------> |
//!   | -- "waits": who waits at its sockets -> |   all have said so
//!   | <-- other ends ------------------------ |                               nobody: it is a process's outside
//! ```

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::save_tcp::{UnknownPeer, machine};
use crate::{
    board::Board,
    error::Result,
    sockets::{
        diag::{self, UnixSocket},
        save::{Sockets, at},
        socket::{self, Received},
    },
    state::{Message, OpenFile, Socket, Stage},
};

/// What a tree says of an end: the one that is greater in this, or else in its inode, makes both again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct EndState {
    /// A socket of the tree listens under the end's name.
    listens: bool,
    /// It has one, as those have that were accepted.
    has_name: bool,
}

/// Ends that lead out of a tree.
#[derive(Default)]
pub struct UnixEnds {
    machine: String,
    ends: Vec<End>,
    /// Inodes of sockets that nobody is at the other end of, or nobody yet, with their numbers among those met.
    lonely: Vec<(u64, usize)>,
}

struct End {
    unknown: UnknownPeer,
    inode: u64,
    peer: u64,
    said: EndState,
}

/// What a Unix socket is called on the board: its inode is one of a machine.
pub fn key(what: &str, machine: &str, inode: u64) -> Vec<u8> {
    [what.as_bytes(), machine.as_bytes(), &inode.to_le_bytes()].concat()
}

impl Sockets {
    /// When all trees of a job stand still: says what this one has.
    pub fn publish_unix_ends(&mut self, open: &mut [OpenFile], board: &Board) -> Result<UnixEnds> {
        let is_unix = |file: u32, open: &mut [OpenFile]| at(open, file).family == libc::AF_UNIX;
        if !self.met.iter().any(|met| is_unix(met.file, open)) {
            return Ok(UnixEnds::default());
        }
        let known = diag::unix_sockets()?;
        let mut found = UnixEnds {
            machine: machine()?,
            ..UnixEnds::default()
        };
        let mut said = Vec::new();
        for unknown in std::mem::take(&mut self.unknown_unix_peers) {
            let socket = at(open, self.met[unknown.met].file);
            let inode = socket.inode;
            let now = known.get(&inode).cloned().unwrap_or_default();
            socket.shut = now.shut;
            self.peek_again(open, unknown.met)?;
            // Else the other end has been closed meanwhile.
            if let Some(peer) = now.peer.filter(|peer| *peer != 0) {
                let end = End {
                    said: self.say(open, unknown.met),
                    unknown,
                    inode,
                    peer,
                };
                said.push((key("unix", &found.machine, inode), end.said));
                found.ends.push(end);
            }
        }
        board.publish(&said)?;
        self.look_for_lonely(open, &known, &mut found, board)?;
        Ok(found)
    }

    fn say(&self, open: &mut [OpenFile], index: usize) -> EndState {
        let end = at(open, self.met[index].file).clone();
        let mut all = self.met.iter();
        EndState {
            listens: all.any(|met| {
                let socket = at(open, met.file);
                matches!(socket.stage, Stage::Listening { .. })
                    && (&socket.local, &socket.directory) == (&end.local, &end.directory)
            }),
            has_name: !end.local.is_empty(),
        }
    }

    /// Connections that nobody has accepted: those of others at this tree's sockets, and this tree's at others'.
    fn look_for_lonely(
        &self,
        open: &mut [OpenFile],
        known: &HashMap<u64, UnixSocket>,
        found: &mut UnixEnds,
        board: &Board,
    ) -> Result<()> {
        let mut waiting = Vec::new();
        for (index, met) in self.met.iter().enumerate() {
            let socket = at(open, met.file);
            let Some(known) = known.get(&socket.inode) else {
                continue;
            };
            waiting.extend(known.waiting.iter().copied());
            if known.peer == Some(0) && !known.is_datagram {
                found.lonely.push((socket.inode, index));
            }
        }
        found.lonely.retain(|(inode, _)| !waiting.contains(inode));
        let said = waiting
            .iter()
            .map(|inode| key("waits", &found.machine, *inode));
        let said: Vec<_> = said.map(|key| (key, ())).collect();
        board.publish(&said)
    }

    /// When all have said what they have: finds out who is at the other ends.
    pub fn find_unix_peers(
        &mut self,
        open: &mut [OpenFile],
        ends: UnixEnds,
        board: &Board,
    ) -> Result<()> {
        let UnixEnds {
            machine,
            ends,
            lonely,
        } = ends;
        let keys: Vec<_> = ends
            .iter()
            .map(|end| key("unix", &machine, end.peer))
            .collect();
        let others = board.look::<EndState>(&keys)?;
        for (end, other) in ends.into_iter().zip(others) {
            let Some(other) = other else {
                return Err(end.unknown.refusal);
            };
            let (low, high) = (end.inode.min(end.peer), end.inode.max(end.peer));
            at(open, self.met[end.unknown.met].file).stage = Stage::BetweenTrees {
                id: [key("", &machine, low), high.to_le_bytes().to_vec()].concat(),
                accepts: (end.said, end.inode) > (other, end.peer),
                waits: None,
            };
        }
        let keys: Vec<_> = lonely
            .iter()
            .map(|(inode, _)| key("waits", &machine, *inode))
            .collect();
        let waits = board.look::<()>(&keys)?;
        match lonely.iter().zip(waits).find(|(_, waits)| waits.is_some()) {
            Some(((_, index), _)) => {
                let what = "a Unix socket that another tree of the job has not accepted yet";
                Err(self.met[*index].refused(what).for_now())
            }
            None => Ok(()),
        }
    }

    /// What has come since the tree was stopped, from others who were not.
    fn peek_again(&self, open: &mut [OpenFile], index: usize) -> Result<()> {
        let met = &self.met[index];
        let now = socket::peek_messages(&met.copy).map_err(|source| met.failed(source))?;
        let socket = at(open, met.file);
        if is_same(socket, &now) {
            return Ok(());
        }
        let has_files = now.iter().any(|one| !one.files.is_empty());
        if has_files || socket.received.iter().any(|one| !one.files.is_empty()) {
            let what = "a Unix socket to which another tree has sent something, with descriptors on their way";
            return Err(met.refused(what).for_now());
        }
        let message = |one: Received| Message {
            bytes: one.bytes,
            files: Vec::new(),
            from: one.from,
        };
        socket.received = now.into_iter().map(message).collect();
        Ok(())
    }
}

/// Whether there is what there was: nobody has read, and what comes is behind it.
fn is_same(socket: &Socket, now: &[Received]) -> bool {
    let before = socket
        .received
        .iter()
        .map(|one| (one.bytes.len(), one.files.len()));
    before.eq(now.iter().map(|one| (one.bytes.len(), one.files.len())))
}
