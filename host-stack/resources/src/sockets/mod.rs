//! Sockets: what each is set to, who is at its other end, and what is on its way between them.
//!
//! | | |
//! |---|---|
//! | Unix sockets, TCP, UDP, netlink; options, groups, what has not been read, files on their way | saved |
//! | connections between trees of a job | saved ([`remote`]) |
//! | all of a tree that goes on elsewhere on this machine, as one of its job | they go along |
//! | connections to processes outside | refused (`outside`; in a job, [`remote::outside_peers`]) |
//! | other protocols, TLS in the kernel, MPTCP connections | refused |

mod diag;
mod flow;
mod multicast;
mod names;
mod netlink;
mod options;
mod queue;
mod refill;
pub mod remote;
mod restore;
mod save;
mod socket;
pub mod state;

use std::os::{fd::BorrowedFd, unix::fs::FileTypeExt};

pub use self::{
    diag::unix_sockets,
    save::{entries, is_other_end, plain},
};
use crate::{
    board::Board,
    descriptor::FoundDescriptor,
    error::Result,
    event::Reporter,
    opened::{Item, Opened},
    resource::{FoundFile, Purpose, Resource, Saved, Stopped, TreeContext},
    state::{Kind, Message, OpenFile, Tree},
};

/// Protocols of sockets that can be saved, as the kernel calls them.
const PROTOCOLS: [&str; 9] = [
    "UNIX",
    "UNIX-STREAM",
    "TCP",
    "TCPv6",
    "MPTCP",
    "MPTCPv6",
    "UDP",
    "UDPv6",
    "NETLINK",
];

/// Sockets of a tree.
#[derive(Debug, Default)]
pub struct Sockets {
    reporter: Reporter,
    saving: save::Sockets,
    /// Ends of restored connections that nobody has any more, until those that are left have what was on its way.
    lost: restore::Lost,
    /// They go along, or have come along, with what is in them.
    are_carried: bool,
}

impl Sockets {
    /// None yet.
    pub fn new(reporter: &Reporter) -> Self {
        Self {
            reporter: reporter.clone(),
            ..Self::default()
        }
    }
}

impl Resource for Sockets {
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        match !seen.is_name() && seen.metadata.file_type().is_socket() {
            true => check_protocol(seen).map(|()| true),
            false => Ok(false),
        }
    }

    fn save(&mut self, met: FoundFile<'_>, _: &mut TreeContext<'_>) -> Result<Saved> {
        let (mut socket, messages) = self.saving.meet(met)?;
        let mut passed = Vec::new();
        for message in messages {
            let first = passed.len() as u32;
            passed.extend(message.files);
            socket.received.push(Message {
                bytes: message.bytes,
                files: (first..passed.len() as u32).collect(),
                from: message.from,
            });
        }
        Ok(Saved {
            kind: Kind::Socket(Box::new(socket)),
            passed,
        })
    }

    fn number_passed(&self, kind: &mut Kind, numbers: &[u32]) {
        if let Kind::Socket(socket) = kind {
            let files = socket.received.iter_mut().flat_map(|it| &mut it.files);
            files.for_each(|file| *file = numbers[*file as usize]);
        }
    }

    fn join(&mut self, tree: &mut Tree, stopped: &mut Stopped<'_>) -> Result<()> {
        self.are_carried = stopped.purpose == Purpose::MovingAlong;
        match self.are_carried {
            // All that there is to know of them goes along.
            true => Ok(()),
            false => self.saving.join(&mut tree.files),
        }
    }

    fn carried(&self, open: &[OpenFile]) -> Vec<(Item, BorrowedFd<'_>)> {
        self.saving.copies(open)
    }

    fn alone(&mut self) -> Result<()> {
        self.saving.alone()
    }

    fn meet_others(&mut self, open: &mut [OpenFile], board: &Board<'_>) -> Result<()> {
        self.saving.meet_others(open, board)
    }

    fn abandon(&self) {
        if !self.are_carried {
            self.saving.abandon();
        }
    }

    fn open(&mut self, tree: &Tree, opened: &mut Opened, board: Option<&Board<'_>>) -> Result<()> {
        self.are_carried = opened.carried.is_some();
        if self.are_carried {
            return restore::take_over(tree, opened);
        }
        self.lost = restore::open(tree, opened, board, &self.reporter)?;
        Ok(())
    }

    fn refill(&mut self, tree: &Tree, opened: &Opened, board: Option<&Board<'_>>) -> Result<()> {
        match self.are_carried {
            true => Ok(()),
            false => refill::refill(tree, opened, std::mem::take(&mut self.lost), board),
        }
    }
}

/// Refuses a socket of a kind that cannot be saved, as far as its protocol's name tells: before anything stops.
pub fn check_protocol(seen: &FoundDescriptor) -> Result<()> {
    let mut name = [0; 32];
    let read = rustix::fs::getxattr(seen.path(), "system.sockprotoname", &mut name);
    let name = String::from_utf8_lossy(&name[..read.unwrap_or(0)]);
    let name = name.trim_end_matches('\0');
    match name.is_empty() || PROTOCOLS.contains(&name) {
        true => Ok(()),
        false => Err(seen.refused(&format!("a socket of a kind that cannot be saved ({name})"))),
    }
}
