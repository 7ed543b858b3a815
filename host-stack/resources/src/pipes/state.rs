//! What an image says of pipes and FIFOs.

use serde::{Deserialize, Serialize};

/// A pipe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pipe {
    /// A FIFO's name.
    pub fifo: Option<Fifo>,
    /// Bytes that it holds at most.
    pub capacity: u32,
    /// What is in it.
    pub contents: Vec<Part>,
    /// There are no writers any more, and readers know that there were some.
    pub hung_up: bool,
}

/// A FIFO of the file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fifo {
    /// Absolute name.
    pub path: Vec<u8>,
    /// Permissions.
    pub mode: u32,
    /// It has no name any more.
    pub unlinked: bool,
}

/// Bytes in a pipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// One read gets no more than these (O_DIRECT of pipe2(2)).
    pub is_packet: bool,
}
