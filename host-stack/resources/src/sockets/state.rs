//! What an image says of sockets.

use serde::{Deserialize, Serialize};

/// A socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Socket {
    /// AF_.
    pub family: i32,
    /// SOCK_.
    pub kind: i32,
    /// IPPROTO_.
    pub protocol: i32,
    /// Identifies it among those of the tree.
    pub inode: u64,
    /// `struct sockaddr` that it is bound to.
    pub local: Vec<u8>,
    /// The directory that a Unix socket's name begins at, if it is relative.
    pub directory: Vec<u8>,
    /// What it is connected to.
    pub remote: Vec<u8>,
    /// What it is used for.
    pub stage: Stage,
    /// What has come, or is on its way, and was not read; datagrams one by one.
    pub received: Vec<Message>,
    /// shutdown(2): 1: no more receiving, 2: no more sending.
    pub shut: u8,
    /// getsockopt(2): level, name, value.
    pub options: Vec<(i32, i32, Vec<u8>)>,
}

/// What a socket is used for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Not connected; it may be bound.
    Idle,
    /// listen(2).
    Listening {
        /// Connections that wait at most.
        backlog: u32,
        /// Those that wait, by the inodes of the sockets that have made them.
        waiting: Vec<u64>,
    },
    /// Connected.
    Connected {
        /// The other end's inode; none: nobody has it any more, or it waits to be accepted, or, of datagrams, it is
        /// nobody of the tree.
        peer: Option<u64>,
    },
    /// connect(2) has not succeeded yet.
    Connecting,
    /// A connection that both have ended, or one of them by force.
    Ended {
        /// ECONNRESET.
        reset: bool,
    },
    /// A connection to another tree of the job.
    BetweenTrees {
        /// What both ends call it.
        id: Vec<u8>,
        /// This end is connected to when it is made again.
        accepts: bool,
        /// Nobody has accepted it: what the socket is called that listens.
        waits: Option<Vec<u8>>,
    },
}

/// Bytes in a socket, with the files that were sent along.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Message {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Numbers in [`crate::state::Tree::files`].
    pub files: Vec<u32>,
    /// Who sent it: `struct sockaddr`.
    pub from: Vec<u8>,
}
