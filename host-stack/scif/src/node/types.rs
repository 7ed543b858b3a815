//! What goes into a node's machine, and what comes out.

use snaprig_wire::{
    dma::Descriptor,
    scif::{Bell, Extent, Message, NodeId, PortId},
};

use super::{BackingId, EndpointId, JobId, MappingId, RequestId};

/// What a program asks of its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// scif_bind: port 0 takes a free one.
    Bind(u16),
    /// scif_listen.
    Listen(usize),
    /// scif_connect.
    Connect(PortId),
    /// scif_connect on a descriptor with O_NONBLOCK: EINPROGRESS until asked again.
    ConnectAsync(PortId),
    /// scif_accept with SCIF_ACCEPT_SYNC.
    Accept,
    /// scif_accept without: EAGAIN where nobody waits.
    TryAccept,
    /// scif_send: done when all bytes are with the peer's node.
    Send(Vec<u8>),
    /// scif_recv: done when there is at least one byte.
    Recv(usize),
    /// scif_send that says how many bytes went.
    Write {
        /// The bytes.
        data: Vec<u8>,
        /// SCIF_SEND_BLOCK: all of them, unless something comes between.
        block: bool,
    },
    /// scif_recv.
    Read {
        /// Most bytes.
        max: usize,
        /// At least one, else what is there.
        block: bool,
    },
    /// scif_register.
    Register {
        /// The memory, page by page, as the peer's DMA engine sees it.
        extents: Vec<Extent>,
        /// `SCIF_MAP_FIXED` at this offset.
        offset: Option<i64>,
        /// `PROT_*`.
        prot: u8,
        /// Given back with [`Output::Release`].
        backing: BackingId,
    },
    /// scif_unregister: whole windows.
    Unregister {
        /// Start of the range.
        offset: i64,
        /// Bytes.
        len: u64,
    },
    /// scif_readfrom, scif_writeto, and their forms for unregistered memory.
    Rma {
        /// This side's memory.
        local: Local,
        /// Bytes.
        len: u64,
        /// Offset in the peer's registered address space.
        remote: i64,
        /// From here to the peer.
        write: bool,
        /// SCIF_RMA_ORDERED: the last cache line is seen last.
        ordered: bool,
        /// SCIF_RMA_SYNC: done when the copy is. Else when it has been started; how it ends nobody is told.
        sync: bool,
    },
    /// The same, copied by whoever asks: it is told where, and ends the job ([`Input::CopyDone`]).
    Plan {
        /// An offset in the own windows; none for unregistered memory.
        local: Option<i64>,
        /// Bytes.
        len: u64,
        /// Offset in the peer's registered address space.
        remote: i64,
        /// From here to the peer.
        write: bool,
    },
    /// Where the peer's window around this offset is, for copies that nobody tells of until [`Recall`].
    Lease(i64),
    /// scif_mmap: ended by [`Input::Unmapped`].
    Map {
        /// Offset in the peer's registered address space.
        offset: i64,
        /// Bytes.
        len: u64,
        /// `PROT_*`, all of which the windows must allow.
        prot: u8,
    },
    /// scif_fence_mark, of what this side or the peer started.
    FenceMark {
        /// SCIF_FENCE_INIT_PEER.
        peer: bool,
    },
    /// scif_fence_wait.
    FenceWait(i32),
    /// scif_fence_signal: (offset, value).
    FenceSignal {
        /// SCIF_SIGNAL_LOCAL.
        local: Option<(i64, u64)>,
        /// SCIF_SIGNAL_REMOTE.
        remote: Option<(i64, u64)>,
        /// SCIF_FENCE_INIT_PEER.
        peer: bool,
    },
    /// Its program takes lanes, and so do those of endpoints that are accepted through it.
    Willing,
    /// Where its lanes are; those of the peer's memory are mapped until [`Input::Unmapped`].
    MapLanes,
    /// Of its lanes, what the peer may wait for has changed.
    Ring(Bell),
    /// scif_close, done when nobody uses the endpoint's windows any more.
    Close,
}

/// This side of an RMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// An offset in the registered address space.
    Window(i64),
    /// Pinned memory that starts `skip` bytes into the first extent.
    Memory {
        /// The pages.
        extents: Vec<Extent>,
        /// Bytes before the start.
        skip: u64,
    },
}

/// How a request ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing to tell.
    Unit,
    /// The endpoint's port.
    Port(u16),
    /// A connection was accepted.
    Accepted {
        /// Its endpoint.
        endpoint: EndpointId,
        /// The other side.
        peer: PortId,
    },
    /// Bytes received.
    Bytes(Vec<u8>),
    /// Bytes sent.
    Count(usize),
    /// Offset of the window.
    Offset(i64),
    /// Where to copy, from the start of the range on.
    Plan {
        /// To be ended.
        job: JobId,
        /// The peer's memory: all of the range.
        extents: Vec<Extent>,
    },
    /// Where to copy until it is recalled.
    Leased {
        /// From here on in the peer's registered address space.
        offset: i64,
        /// `PROT_*` of the window.
        prot: u8,
        /// The peer's memory, to the window's end.
        extents: Vec<Extent>,
    },
    /// What to map.
    Mapped {
        /// To be ended.
        mapping: MappingId,
        /// The peer's memory.
        extents: Vec<Extent>,
    },
    /// A mark.
    Mark(i32),
    /// Lanes.
    Lanes {
        /// The number of the mapping, if they are the peer's.
        mapping: Option<MappingId>,
        /// Where they are for this node.
        extents: Vec<Extent>,
    },
    /// The windows are gone from the registered address space. Whether the peer has mapped some of
    /// their memory, which therefore stays as it is.
    Gone {
        /// It has.
        held: bool,
    },
}

/// What happens to the node.
#[derive(Clone, Debug)]
pub enum Input {
    /// A program opens an endpoint under a number that is new.
    Open(EndpointId),
    /// It asks something of it.
    Request(RequestId, EndpointId, Op),
    /// It gives up waiting.
    Cancel(RequestId),
    /// A signal ends the wait: the request is done, with what it has or EINTR.
    Interrupt(RequestId),
    /// It closes the endpoint.
    Close(EndpointId),
    /// A message came from a neighbour.
    Message(Message),
    /// A neighbour can be reached.
    PeerUp(NodeId),
    /// A neighbour is gone.
    PeerDown(NodeId),
    /// A copy ended.
    CopyDone(JobId, Result<(), i32>),
    /// A mapping is gone.
    Unmapped(MappingId),
    /// The answer to [`Output::Lay`]: [`LANES_BYTES`](snaprig_wire::scif::LANES_BYTES), if there is room.
    Laid(EndpointId, Option<(Extent, BackingId)>),
}

/// What the node wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A request ended: a value or an errno.
    Done(RequestId, Result<Value, i32>),
    /// A message for a neighbour.
    Send(NodeId, Message),
    /// Copies, in order; report with [`Input::CopyDone`].
    Copy {
        /// The number to report.
        job: JobId,
        /// The other side of the connection: whose DMA engine can reach both.
        peer: NodeId,
        /// The copies.
        copies: Vec<Descriptor>,
        /// A program waits for their end.
        waits: bool,
    },
    /// Bytes to write into the own memory of a window.
    Poke {
        /// The other side of the connection: whose DMA engine has this address.
        peer: NodeId,
        /// Where, as in the window's extents.
        address: u64,
        /// What: 4 or 8 bytes, aligned to 4.
        bytes: Vec<u8>,
    },
    /// Nobody uses this memory any more.
    Release(BackingId),
    /// What poll would say of the endpoint may have changed.
    Changed(EndpointId),
    /// Memory of this card is wanted for the lanes of an endpoint; answered with [`Input::Laid`] before any other input.
    Lay(EndpointId),
    /// What the endpoint's program, or whoever polls it, may wait for has changed.
    Ring(EndpointId, Bell),
}

/// What was leased of a connection ([`Op::Lease`]) is not to be used any more; a job stands for what is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Reported with [`Input::CopyDone`] when those copies have ended.
    pub job: JobId,
    /// Whose leases.
    pub endpoint: EndpointId,
    /// They end in any case; else only if somebody copies.
    pub revoke: bool,
}
