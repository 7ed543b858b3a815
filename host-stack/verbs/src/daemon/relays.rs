//! Connections between connection managers of programs on different nodes: each manager is connected with the daemon of its
//! node, and the daemons pass on what they say.
//!
//! ```text
//!   manager --Reach--> its daemon --Open--> other daemon --connect--> who listens there
//!           <------------- messages, each way, and the end ------------->
//!                                 <--Refused--     (nobody does)
//! ```
//!
//! What must stay true: the names that another daemon gives are those of listeners of connection managers, in the directory of
//! this fabric; there are never more than [`LINKS_MAX`] of these connections.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::{io::ioctl_fionbio, net::SocketFlags};
use snaprig_peers::packets;
use snaprig_verbs_tcp::Relayed;

/// Most connections at a time.
const LINKS_MAX: usize = 1024;
/// The longest message.
const BYTES_MAX: usize = 4096;

/// A connection, by the node at its other end and the number that its opener's daemon has given it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// The node.
    pub node: u32,
    /// The number.
    pub number: u64,
    /// Whose number it is.
    pub is_opened_here: bool,
}

/// The end that is here.
#[derive(Debug)]
struct End {
    socket: OwnedFd,
    /// What it is told if there is nobody.
    refusal: Vec<u8>,
}

/// All of them.
#[derive(Debug)]
pub struct Relays {
    directory: PathBuf,
    ends: BTreeMap<Link, End>,
    next: u64,
}

impl Relays {
    /// None yet. Who listens is in this directory.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            ends: BTreeMap::new(),
            next: 0,
        }
    }

    /// Where something may be read.
    pub fn descriptors(&self) -> impl Iterator<Item = (Link, BorrowedFd<'_>)> {
        self.ends
            .iter()
            .map(|(link, end)| (*link, end.socket.as_fd()))
    }

    /// A program wants to reach a node; none: it is refused.
    pub fn open(
        &mut self,
        socket: OwnedFd,
        node: u32,
        refusal: Vec<u8>,
        is_up: bool,
    ) -> Option<Link> {
        if !is_up || self.ends.len() >= LINKS_MAX || ioctl_fionbio(&socket, true).is_err() {
            // Whoever does not take it hears the end.
            let _ = packets::send(&socket, &refusal, &[]);
            return None;
        }
        self.next += 1;
        let link = Link {
            node,
            number: self.next,
            is_opened_here: true,
        };
        self.ends.insert(link, End { socket, refusal });
        Some(link)
    }

    /// What the manager here says.
    pub fn read(&mut self, link: Link) -> Option<Relayed> {
        let end = self.ends.get(&link)?;
        let mut buffer = [0; BYTES_MAX];
        match packets::receive(&end.socket, &mut buffer) {
            Ok(Some((length, _))) => Some(Relayed::Data(buffer[..length].to_vec())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Ok(None) | Err(_) => {
                self.ends.remove(&link);
                Some(Relayed::End)
            }
        }
    }

    /// What the other daemon says; what is to be answered.
    pub fn take(&mut self, link: Link, what: Relayed) -> Option<Relayed> {
        match what {
            Relayed::Open { names, first } if !link.is_opened_here => {
                self.connect(link, &names, &first)
            }
            Relayed::Open { .. } => None,
            Relayed::Data(bytes) => {
                let end = self.ends.get(&link)?;
                packets::send(&end.socket, &bytes, &[]).err()?;
                self.ends.remove(&link);
                Some(Relayed::End)
            }
            Relayed::Refused => {
                let end = self.ends.remove(&link)?;
                let _ = packets::send(&end.socket, &end.refusal, &[]);
                None
            }
            Relayed::End => {
                self.ends.remove(&link);
                None
            }
        }
    }

    /// Connects to who listens under the first of these names.
    fn connect(&mut self, link: Link, names: &[String], first: &[u8]) -> Option<Relayed> {
        if self.ends.len() >= LINKS_MAX {
            return Some(Relayed::Refused);
        }
        let is_listener = |name: &&String| name.starts_with("cm-") && !name.contains('/');
        let connect = |name: &String| {
            packets::connect(&self.directory.join(name), SocketFlags::NONBLOCK).ok()
        };
        let Some(socket) = names.iter().filter(is_listener).find_map(connect) else {
            return Some(Relayed::Refused);
        };
        if packets::send(&socket, first, &[]).is_err() {
            return Some(Relayed::Refused);
        }
        let refusal = Vec::new();
        self.ends.insert(link, End { socket, refusal });
        None
    }

    /// A node is away: so are its managers.
    pub fn forget(&mut self, node: u32) {
        self.ends.retain(|link, _| link.node != node);
    }
}
