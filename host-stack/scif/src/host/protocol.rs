//! What a host program and the host node say to each other on a Unix seqpacket socket: one
//! connection is one endpoint. A memfd travels with [`Call::Register`], the new endpoint's socket
//! with [`Answer::Accepted`].

use serde::{Deserialize, Serialize};
use snaprig_wire::scif::{NodeId, PortId};

use super::cards::CardState;

/// Most bytes of one [`Call::Send`]; longer sends are several.
pub const SEND_MAX: usize = 32 << 10;
/// Most bytes of a message.
pub const MESSAGE_MAX: usize = SEND_MAX + 1024;

/// A request and the number under which it is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The client's number.
    pub id: u64,
    /// What it wants.
    pub call: Call,
}

/// The calls of scif.h.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the manual pages")]
pub enum Call {
    Bind(u16),
    Listen(u32),
    Connect(PortId),
    Accept,
    Send(Vec<u8>),
    Recv(u32),
    Register {
        fd_offset: u64,
        len: u64,
        offset: Option<i64>,
        prot: u8,
    },
    Unregister {
        offset: i64,
        len: u64,
    },
    Rma {
        local: i64,
        len: u64,
        remote: i64,
        write: bool,
    },
    NodeIds,
    /// Not of scif.h: what state each card is in.
    Cards,
    Close,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's number.
    pub id: u64,
    /// A value or an errno.
    pub result: Result<Answer, i32>,
}

/// What a request gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are those of the calls")]
pub enum Answer {
    Unit,
    Port(u16),
    Accepted(PortId),
    Bytes(Vec<u8>),
    Offset(i64),
    Nodes { all: Vec<NodeId>, own: NodeId },
    Cards(Vec<(NodeId, CardState)>),
}
