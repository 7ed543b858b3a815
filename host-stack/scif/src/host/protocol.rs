//! What a host program and the host node say to each other on a Unix seqpacket socket: one
//! connection is one endpoint, or one of many of the same ([`Call::Join`]). A memfd travels with
//! [`Call::Register`] and [`Call::Pool`], any file with [`Call::RegisterFile`], the new endpoint's socket with [`Answer::Accepted`].

use serde::{Deserialize, Serialize};
use snaprig_scif_lanes::host::Place;
use snaprig_wire::scif::{Bell, NodeId, PortId};

use super::cards::CardState;

/// Most bytes of one [`Call::Send`], and of an answer; longer ones are several.
pub const SEND_MAX: usize = 64 << 10;
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
    Send(#[serde(with = "serde_bytes")] Vec<u8>),
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
    // What libscif needs: one call at a time on each connection, of which an endpoint may have many.
    /// This connection belongs to this endpoint, too, instead of a new one.
    Join(u64),
    /// A descriptor that is as ready as the endpoint is comes with the answer.
    Descriptor,
    /// The same, and the node keeps none: nobody asks for another one, or polls it but to sleep by lanes. Descriptors are few.
    OnlyDescriptor,
    /// What a direct connection is made of comes with the answer (`direct`).
    Direct,
    /// A program of a card is to be told of this.
    Ring(Bell),
    ConnectAsync(PortId),
    AcceptNow,
    Write {
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
        block: bool,
    },
    Read {
        max: u32,
        block: bool,
    },
    /// What poll(2) would say.
    Mask,
    /// Ends the call that is under way on this connection; not answered.
    Interrupt,
    /// The endpoint's pages are in the memfd that comes with this, each at its address.
    Pool,
    RegisterPages {
        address: u64,
        len: u64,
        offset: Option<i64>,
        prot: u8,
    },
    /// Memory that the program shares with others: of the file that comes with this, from `at` on.
    RegisterFile {
        at: u64,
        len: u64,
        offset: Option<i64>,
        prot: u8,
    },
    /// RMA that the caller does itself.
    Plan {
        local: Option<i64>,
        len: u64,
        remote: i64,
        write: bool,
    },
    /// It is done; not answered.
    PlanDone(u64),
    /// Memory to count copies in, which nobody asks about, comes with the answer (`leases`).
    Leases,
    /// Where the window at this offset of the peer's is, for such copies.
    Lease(i64),
    /// Those of what was recalled have ended; not answered.
    Leased,
    /// Memory that a [`Segment`] names comes with the answer.
    Memory(u64),
    Map {
        offset: i64,
        len: u64,
        prot: u8,
    },
    FenceMark {
        peer: bool,
    },
    FenceWait(i32),
    FenceSignal {
        local: Option<(i64, u64)>,
        remote: Option<(i64, u64)>,
        peer: bool,
    },
    /// Answered when nobody uses the endpoint's windows any more.
    CloseWait,
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
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    Offset(i64),
    Nodes {
        all: Vec<NodeId>,
        own: NodeId,
    },
    Cards(Vec<(NodeId, CardState)>),
    Endpoint(u64),
    /// A file comes with this, and may become shorter while it is mapped.
    File,
    /// The file of the lanes' memory, the own socket and, if it is here, the peer's come with this.
    Direct(Place),
    Count(u32),
    Mask(i16),
    Plan {
        job: u64,
        segments: Vec<Segment>,
    },
    /// From this offset on, in the peer's window.
    Lease {
        generation: u32,
        offset: i64,
        prot: u8,
        segments: Vec<Segment>,
    },
    /// A socket comes with this: the mapping lasts until it is closed.
    Mapped(Vec<Segment>),
    Mark(i32),
    Gone {
        held: bool,
    },
}

/// A run of the peer's memory, for who maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Which file ([`Call::Memory`]).
    pub memory: u64,
    /// Where in it.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Most segments in one answer.
pub const SEGMENTS_MAX: usize = 512;
