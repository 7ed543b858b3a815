//! TCP connections between trees of a job: who is at the other end, and what is on its way.
//!
//! ```text
//! one tree                     board                     the other tree        all trees stand still
//!   | -- "end": this is one --> |                                |
//!   |                     all have said so                       |
//!   | <-- who has the other --- |                                |             nobody: a process outside has it
//!   | -- "out": what is left -> |                                |
//!   | <------------------------ |                                |             any: the receiver's buffer grows
//!   | -- "left": of that -----> |                                |             must be nothing
//! ```

use std::{
    fs, io,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use libc::pid_t;
use procfs::net::TcpState;
use serde::{Deserialize, Serialize};

use crate::{
    board::Board,
    error::{Error, Result},
    faults,
    sockets::{
        flow,
        save::{FoundSocket, Sockets, at, entries, names, plain, tcp},
        socket,
    },
    state::{Message, OpenFile, Socket, Stage},
};
use snaprig_tracee::faults::reached;

/// The other end has said that it sends no more (net/tcp_states.h).
const CLOSE_WAIT: u8 = 8;
/// A look at connections that move.
const LOOK: Duration = Duration::from_micros(200);

/// A connection whose other end no process of the tree has.
#[derive(Debug)]
pub struct UnknownPeer {
    /// Number among the sockets met.
    pub met: usize,
    /// What is said if nobody of the job has it either.
    pub refusal: Error,
}

/// An end of a connection between trees.
#[derive(Clone, Debug)]
struct End {
    met: usize,
    id: Vec<u8>,
    /// Its address is the lower one.
    is_low: bool,
    local: SocketAddr,
    /// It is the one that is connected to, when the connection is made again.
    accepts: bool,
}

/// What a tree says of an end.
#[derive(Debug, Serialize, Deserialize)]
struct EndState {
    /// It has a socket that listens at the end's address.
    listens: bool,
    /// Nobody has accepted it yet: what the socket that listens is called, and how much is in it.
    waits: Option<(Vec<u8>, u32)>,
}

impl End {
    fn own(&self, what: &str) -> Vec<u8> {
        key(what, &self.id, self.is_low)
    }

    fn others(&self, what: &str) -> Vec<u8> {
        key(what, &self.id, !self.is_low)
    }
}

/// What an end of a connection is called on the board.
pub fn key(what: &str, id: &[u8], is_low: bool) -> Vec<u8> {
    [what.as_bytes(), &[u8::from(is_low)], id].concat()
}

/// What both ends call a connection, and whether this one's address is the lower. Addresses of a loopback are those of
/// one network namespace alone.
fn id(pid: pid_t, local: SocketAddr, remote: SocketAddr) -> Result<(Vec<u8>, bool)> {
    let place = match local.ip().is_loopback() {
        true => place(pid)?,
        false => String::new(),
    };
    id_in(&place, local, remote)
}

/// The same in a network namespace, of which this is the name.
pub fn id_in(place: &str, local: SocketAddr, remote: SocketAddr) -> Result<(Vec<u8>, bool)> {
    let place = match local.ip().is_loopback() {
        true => place,
        false => "",
    };
    let is_low = local < remote;
    let ends = if is_low {
        (local, remote)
    } else {
        (remote, local)
    };
    let id = postcard::to_stdvec(&(place, ends));
    let id = id.map_err(|error| Error::io("a connection's name", io::Error::other(error)))?;
    Ok((id, is_low))
}

/// What a network namespace is called, anywhere.
pub fn place(pid: pid_t) -> Result<String> {
    let space = fs::read_link(format!("/proc/{pid}/ns/net"));
    let space = space.map_err(|source| Error::io("the network namespace", source))?;
    Ok(format!("{} {}", machine()?, space.display()))
}

/// What this machine is called until it is booted again.
pub fn machine() -> Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot = boot.map_err(|source| Error::io("the machine's boot_id", source))?;
    Ok(boot.trim().to_owned())
}

impl Sockets {
    /// Of a tree that is in no job: refuses connections to processes outside.
    pub fn alone(&mut self) -> Result<()> {
        match self
            .unknown_peers
            .pop()
            .or_else(|| self.unknown_unix_peers.pop())
        {
            Some(peer) => Err(peer.refusal),
            None => Ok(()),
        }
    }

    /// When all trees of a job stand still: finds the other ends of connections, and saves what is on its way to this
    /// tree.
    pub fn meet_others(&mut self, open: &mut [OpenFile], board: &Board) -> Result<()> {
        let ends = self.look_again(open)?;
        let mut said = self.guests(open, &ends)?;
        for end in &ends {
            let listens = self.listens(open, end.local);
            said.push((
                end.own("end"),
                EndState {
                    listens,
                    waits: None,
                },
            ));
        }
        board.publish(&said)?;
        let unix_ends = self.publish_unix_ends(open, board)?;
        board.meet("ends")?;
        self.find_unix_peers(open, unix_ends, board)?;
        let keys: Vec<_> = ends.iter().map(|end| end.others("end")).collect();
        let others = board.look::<EndState>(&keys)?;
        let mut joined = Vec::new();
        for (mut end, other) in ends.into_iter().zip(others) {
            let Some(other) = other else {
                self.nobodys(open, &end)?;
                continue;
            };
            let waits = self.waits(&end, other.waits)?;
            let listens = self.listens(open, end.local);
            end.accepts = waits.is_none() && (listens, end.is_low) > (other.listens, !end.is_low);
            let socket = at(open, self.met[end.met].file);
            socket.stage = Stage::BetweenTrees {
                id: end.id.clone(),
                accepts: end.accepts,
                waits: waits.clone(),
            };
            if waits.is_none() {
                joined.push(end);
            }
        }
        self.drain_others(open, joined, board)
    }

    /// Since the tree was stopped, others went on: what their ends are now.
    fn look_again(&mut self, open: &mut [OpenFile]) -> Result<Vec<End>> {
        let unknown: Vec<_> = self.unknown_peers.drain(..).map(|one| one.met).collect();
        let mut ends = Vec::new();
        for index in 0..self.met.len() {
            let met = &mut self.met[index];
            let socket = at(open, met.file);
            let may_be = met.state != 0 && socket.stage == Stage::Connecting;
            if !may_be && !unknown.contains(&index) {
                continue;
            }
            let failed = |source| met.failed(source);
            socket.remote = socket::remote_name(&met.copy).map_err(failed)?;
            let state = tcp(&met.copy, socket).map_err(failed)?;
            met.state = state;
            match (&socket.stage, names(socket)) {
                (Stage::Connected { .. }, (Some(local), Some(remote))) => {
                    let (id, is_low) = id(met.pid, local, remote)?;
                    let accepts = false;
                    ends.push(End {
                        met: index,
                        id,
                        is_low,
                        local,
                        accepts,
                    });
                }
                // It has ended, or is still on its way.
                _ => self.peek(open, index)?,
            }
        }
        Ok(ends)
    }

    /// Whether a socket of the tree listens at an address.
    fn listens(&self, open: &mut [OpenFile], local: SocketAddr) -> bool {
        self.met
            .iter()
            .any(|met| listens_at(at(open, met.file), local))
    }

    /// Connections of others that wait to be accepted by this tree.
    fn guests(&self, open: &mut [OpenFile], ends: &[End]) -> Result<Vec<(Vec<u8>, EndState)>> {
        let mut own: Vec<(SocketAddr, SocketAddr)> = Vec::new();
        for met in self.met.iter().filter(|met| met.state != 0) {
            if let (Some(local), Some(remote)) = names(at(open, met.file)) {
                own.push((local, remote));
            }
        }
        let mut guests: Vec<(Vec<u8>, EndState)> = Vec::new();
        for met in &self.met {
            let socket = at(open, met.file);
            if met.state == 0 || !matches!(socket.stage, Stage::Listening { .. }) {
                continue;
            }
            let name = listener(socket);
            for entry in entries(met.pid)? {
                let (local, remote) = (plain(entry.local_address), plain(entry.remote_address));
                // The end of what is sent counts as well.
                let ended = match entry.state {
                    TcpState::Established => 0,
                    TcpState::CloseWait => 1,
                    _ => continue,
                };
                if entry.inode != 0 || own.contains(&(remote, local)) || !listens_at(socket, local)
                {
                    continue;
                }
                let (id, is_low) = id(met.pid, local, remote)?;
                let key = key("end", &id, is_low);
                // Of several that listen at one address, nobody says which has it.
                if ends.iter().any(|end| end.id == id) || guests.iter().any(|(one, _)| *one == key)
                {
                    continue;
                }
                let waits = Some((name.clone(), entry.rx_queue.saturating_sub(ended)));
                guests.push((
                    key,
                    EndState {
                        listens: true,
                        waits,
                    },
                ));
            }
        }
        Ok(guests)
    }

    /// Of an end whose other end waits to be accepted: what the socket is called that listens.
    fn waits(&self, end: &End, waits: Option<(Vec<u8>, u32)>) -> Result<Option<Vec<u8>>> {
        let Some((listener, unread)) = waits else {
            return Ok(None);
        };
        let met = &self.met[end.met];
        let unsent = socket::unsent(&met.copy).map_err(|source| met.failed(source))?;
        match unread == 0 && unsent == 0 {
            true => Ok(Some(listener)),
            false => {
                let what = "a TCP socket that has sent something on a connection not yet accepted";
                Err(met.refused(what).for_now())
            }
        }
    }

    /// Nobody of the job has the other end: it has been closed, or a process outside has it.
    fn nobodys(&mut self, open: &mut [OpenFile], end: &End) -> Result<()> {
        let met = &self.met[end.met];
        let (Some(local), Some(remote)) = names(at(open, met.file)) else {
            return Ok(());
        };
        let refusal = self.lonely(met, open, local, remote)?;
        if let (Some(refusal), true) = (refusal, met.state != CLOSE_WAIT) {
            return Err(refusal);
        }
        self.peek(open, end.met)
    }

    /// What an end has that nobody sends to any more.
    fn peek(&self, open: &mut [OpenFile], index: usize) -> Result<()> {
        let met = &self.met[index];
        let bytes = flow::peek(&met.copy).map_err(|source| met.failed(source))?;
        received(at(open, met.file), bytes);
        Ok(())
    }

    /// Saves what is on its way to this tree.
    fn drain_others(
        &mut self,
        open: &mut [OpenFile],
        mut ends: Vec<End>,
        board: &Board,
    ) -> Result<()> {
        // All go through them in this order, so that nobody waits for who waits for it.
        ends.sort_by(|one, other| one.id.cmp(&other.id));
        let out = self.settle(&ends, board, "out", flow::ARRIVAL)?;
        let mut stuck = Vec::new();
        for (end, (own, others)) in ends.iter().zip(out) {
            let met = &self.met[end.met];
            if own > 0 {
                flow::restrain(&met.copy).map_err(|source| met.failed(source))?;
            }
            if others > 0 {
                let held = flow::hold(&met.copy, others.saturating_add(others / 4));
                held.map_err(|source| met.failed(source))?;
            }
            if own > 0 || others > 0 {
                stuck.push(end.clone());
            }
        }
        if !stuck.is_empty() {
            reached(&faults::FLOW_GROWN);
            let left = self.settle(&stuck, board, "left", flow::GROWN_ARRIVAL)?;
            let left = stuck.iter().zip(left);
            if let Some((end, _)) = left.into_iter().find(|(_, left)| *left != (0, 0)) {
                return Err(self.met[end.met].overfull());
            }
        }
        for end in &ends {
            self.peek(open, end.met)?;
        }
        if !stuck.is_empty() {
            reached(&faults::FLOW_READ);
        }
        Ok(())
    }

    /// Has all arrive that can, both ways: how many bytes of this tree, and of the others, do not.
    fn settle(
        &self,
        ends: &[End],
        board: &Board,
        what: &str,
        silence: Duration,
    ) -> Result<Vec<(u64, u64)>> {
        let met: Vec<&FoundSocket> = ends.iter().map(|end| &self.met[end.met]).collect();
        for met in &met {
            flow::push(&met.copy).map_err(|source| met.failed(source))?;
        }
        let keys: Vec<_> = ends.iter().map(|end| end.others(what)).collect();
        let (mut left, mut last) = (Vec::new(), Instant::now());
        let mut said: Option<Vec<u64>> = None;
        thread::scope(|scope| {
            let others = scope.spawn(|| board.lookup::<u64>(&keys));
            loop {
                let mut unsent = Vec::new();
                for met in &met {
                    flow::invite(&met.copy);
                    unsent.push(socket::unsent(&met.copy).map_err(|source| met.failed(source))?);
                }
                if unsent != left {
                    (left, last) = (unsent, Instant::now());
                }
                let is_done = left.iter().all(|left| *left == 0) || last.elapsed() > silence;
                if is_done && said.is_none() {
                    let own = ends.iter().map(|end| end.own(what));
                    board.publish(&own.zip(left.iter().copied()).collect::<Vec<_>>())?;
                    said = Some(left.clone());
                }
                if let Some(said) = said.take_if(|_| others.is_finished()) {
                    let others = others.join();
                    let panicked = |_| Error::io("what others say", io::Error::other("a panic"));
                    return Ok(said.into_iter().zip(others.map_err(panicked)??).collect());
                }
                thread::sleep(LOOK);
            }
        })
    }
}

/// What a socket that listens is called, in all of a job.
pub fn listener(socket: &Socket) -> Vec<u8> {
    [&socket.inode.to_le_bytes(), &socket.local[..]].concat()
}

fn listens_at(socket: &Socket, local: SocketAddr) -> bool {
    let address = socket::address(&socket.local);
    matches!(socket.stage, Stage::Listening { .. })
        && socket.protocol == libc::IPPROTO_TCP
        && address.is_some_and(|address| {
            address.port() == local.port()
                && (address.ip().is_unspecified() || address.ip() == local.ip())
        })
}

fn received(socket: &mut Socket, bytes: Vec<u8>) {
    socket.received = match bytes.is_empty() {
        true => Vec::new(),
        false => vec![Message {
            bytes,
            ..Message::default()
        }],
    };
}
