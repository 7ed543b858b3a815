//! TCP connections between trees of a job: who is at the other end, and what is on its way.
//!
//! ```text
//! one tree                     board                     the other tree        all trees stand still
//!   | -- "end": this is one --> |                                |
//!   |                     all have said so                       |
//!   | <-- who has the other --- |                                |             nobody: it is a stranger's
//!   | -- "out": all arrived? -> |                                |
//!   | <------------------------ |                                |
//!   |                                                            |             if not: stuck.rs
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

use super::sockets::{SENT_END, Sockets, at, entries, names, plain, tcp};
use crate::{
    error::{Error, Result},
    flow,
    job::Board,
    socket,
    state::{Message, OpenFile, Socket, Stage},
};

/// The other end has said that it sends no more (net/tcp_states.h).
const CLOSE_WAIT: u8 = 8;
/// A look at connections that move.
const LOOK: Duration = Duration::from_micros(200);

/// A connection whose other end no process of the tree has.
#[derive(Debug)]
pub struct Stranger {
    /// Number among the sockets met.
    pub met: usize,
    /// What is said if nobody of the job has it either.
    pub refusal: Error,
}

/// An end of a connection between trees.
#[derive(Clone, Debug)]
pub struct End {
    pub met: usize,
    pub id: Vec<u8>,
    /// Its address is the lower one.
    is_low: bool,
    pub local: SocketAddr,
    /// It is the one that is connected to, when the connection is made again.
    pub accepts: bool,
}

/// What a tree says of an end.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    /// It has a socket that listens at the end's address.
    listens: bool,
    /// Nobody has accepted it yet: what the socket that listens is called, and how much is in it.
    waits: Option<(Vec<u8>, u32)>,
}

/// What it says of what it has sent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Out {
    /// All has arrived.
    is_clear: bool,
    /// One of the directions is shut.
    is_shut: bool,
}

impl End {
    pub fn own(&self, what: &str) -> Vec<u8> {
        key(what, &self.id, self.is_low)
    }

    pub fn others(&self, what: &str) -> Vec<u8> {
        key(what, &self.id, !self.is_low)
    }
}

fn key(what: &str, id: &[u8], is_low: bool) -> Vec<u8> {
    [what.as_bytes(), &[u8::from(is_low)], id].concat()
}

/// What both ends call a connection, and whether this one's address is the lower. Addresses of a loopback are those of
/// one network namespace alone.
fn id(pid: pid_t, local: SocketAddr, remote: SocketAddr) -> Result<(Vec<u8>, bool)> {
    let place = match local.ip().is_loopback() {
        true => place(pid).map_err(|source| Error::io("the network namespace", source))?,
        false => String::new(),
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

fn place(pid: pid_t) -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let space = fs::read_link(format!("/proc/{pid}/ns/net"))?;
    Ok(format!("{} {}", boot.trim(), space.display()))
}

impl Sockets {
    /// Of a tree that is in no job: refuses connections to strangers.
    pub fn alone(&mut self) -> Result<()> {
        match self.strangers.pop() {
            Some(stranger) => Err(stranger.refusal),
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
                Said {
                    listens,
                    waits: None,
                },
            ));
        }
        board.publish(&said)?;
        board.meet("ends")?;
        let keys: Vec<_> = ends.iter().map(|end| end.others("end")).collect();
        let others = board.look::<Said>(&keys)?;
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
            socket.stage = Stage::Abroad {
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
        let strangers: Vec<_> = self.strangers.drain(..).map(|one| one.met).collect();
        let mut ends = Vec::new();
        for index in 0..self.met.len() {
            let met = &mut self.met[index];
            let socket = at(open, met.file);
            let may_be = met.state != 0 && socket.stage == Stage::Connecting;
            if !may_be && !strangers.contains(&index) {
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
    fn guests(&self, open: &mut [OpenFile], ends: &[End]) -> Result<Vec<(Vec<u8>, Said)>> {
        let mut own: Vec<(SocketAddr, SocketAddr)> = Vec::new();
        for met in self.met.iter().filter(|met| met.state != 0) {
            if let (Some(local), Some(remote)) = names(at(open, met.file)) {
                own.push((local, remote));
            }
        }
        let mut guests: Vec<(Vec<u8>, Said)> = Vec::new();
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
                    Said {
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

    /// Nobody of the job has the other end: it has been closed, or is a stranger's.
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
        let own = self.settle(open, &ends)?;
        let said: Vec<_> = ends
            .iter()
            .zip(&own)
            .map(|(end, out)| (end.own("out"), *out))
            .collect();
        board.publish(&said)?;
        let keys: Vec<_> = ends.iter().map(|end| end.others("out")).collect();
        let others: Vec<Out> = board.lookup(&keys)?;
        let mut stuck = Vec::new();
        for ((end, own), other) in ends.iter().zip(own).zip(others) {
            if own.is_clear && other.is_clear {
                continue;
            }
            if own.is_shut || other.is_shut {
                let what = "a TCP socket of a connection with more on its way than fits, of which an end has said that \
                            it is done";
                return Err(self.met[end.met].refused(what));
            }
            stuck.push(end.clone());
        }
        let is_stuck = |end: &End| stuck.iter().any(|one| one.met == end.met);
        for end in ends.iter().filter(|end| !is_stuck(end)) {
            self.peek(open, end.met)?;
        }
        self.connect_sides(stuck, board)?;
        board.meet("sides")?;
        self.take(board)?;
        for stuck in &self.stuck {
            let met = &self.met[stuck.end.met];
            received(at(open, met.file), stuck.bytes.clone());
        }
        Ok(())
    }

    /// Has all arrive that can.
    fn settle(&self, open: &mut [OpenFile], ends: &[End]) -> Result<Vec<Out>> {
        let (mut left, mut last) = (u64::MAX, Instant::now());
        for end in ends {
            let met = &self.met[end.met];
            flow::push(&met.copy).map_err(|source| met.failed(source))?;
        }
        loop {
            let mut unsent = Vec::new();
            for end in ends {
                let met = &self.met[end.met];
                flow::acknowledge(&met.copy);
                unsent.push(socket::unsent(&met.copy).map_err(|source| met.failed(source))?);
            }
            let sum = unsent.iter().sum();
            if sum != left {
                (left, last) = (sum, Instant::now());
            }
            if left == 0 || last.elapsed() > flow::ARRIVAL {
                let mut out = Vec::new();
                for (end, unsent) in ends.iter().zip(unsent) {
                    let met = &self.met[end.met];
                    let is_shut = at(open, met.file).shut != 0
                        || SENT_END.contains(&met.state)
                        || met.state == CLOSE_WAIT;
                    let is_clear = unsent == 0;
                    out.push(Out { is_clear, is_shut });
                }
                return Ok(out);
            }
            thread::sleep(LOOK);
        }
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
