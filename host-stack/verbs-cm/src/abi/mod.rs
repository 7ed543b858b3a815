//! The structures that librdmacm and the kernel exchange (rdma/rdma_user_cm.h), as the C compiler lays them out.
//!
//! ```text
//!   +-----+----+-----+-------------------------------+
//!   | cmd | in | out | request: `in` bytes           |   answer: up to `out` bytes, at the request's `response`
//!   +-----+----+-----+-------------------------------+
//!     u32  u16   u16
//! ```
//!
//! What must stay true: every structure has the size that the kernel's header gives it. The sizes are asserted when this
//! crate is compiled, and a C compiler confirms sizes and offsets with the header itself (`tests/layout.rs`). Numbers
//! are in the byte order of the machine, except where a type of `zerocopy::byteorder::big_endian` says otherwise.

mod address;
mod answers;
mod attributes;
mod requests;

pub use address::{AF_IB, Sockaddr, SockaddrIb, SockaddrStorage};
pub use answers::{
    ConnParam, Ece, EventAnswer, EventParam, EventsReportedAnswer, IdAnswer, PathRecord,
    QueryAddrAnswer, QueryPathAnswer, QueryRouteAnswer, SaPathRecord, UdParam,
};
pub use attributes::{AhAttr, QpAttr};
pub use requests::{
    Accept, Bind, BindIp, Connect, CreateId, Disconnect, GetEvent, InitQpAttr, JoinIpMcast,
    JoinMcast, Listen, Notify, OfId, Query, Reject, ResolveAddr, ResolveIp, ResolveRoute,
    SetOption,
};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of private data that a request or an event has room for (`RDMA_MAX_PRIVATE_DATA`).
pub const PRIVATE_DATA_BYTES: usize = 256;

/// `struct rdma_ucm_cmd_hdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// Which command it is: `RDMA_USER_CM_CMD_*`.
    pub command: u32,
    /// Bytes of the request that follow.
    pub request_bytes: u16,
    /// Bytes of the answer that there is room for.
    pub answer_bytes: u16,
}

/// Asserts the size of a structure of C when this crate is compiled.
macro_rules! sizes {
    ($($type:ty = $bytes:literal;)*) => { $(const _: () = assert!(size_of::<$type>() == $bytes);)* };
}

sizes! {
    Header = 8;
    Sockaddr = 28;
    SockaddrStorage = 128;
    SockaddrIb = 48;
    CreateId = 24;
    OfId = 16;
    BindIp = 40;
    Bind = 136;
    ResolveIp = 64;
    ResolveAddr = 272;
    ResolveRoute = 8;
    Query = 16;
    ConnParam = 272;
    UdParam = 304;
    Ece = 8;
    Connect = 288;
    Listen = 8;
    Accept = 296;
    Reject = 264;
    Disconnect = 4;
    InitQpAttr = 16;
    Notify = 8;
    JoinIpMcast = 48;
    JoinMcast = 152;
    GetEvent = 8;
    SetOption = 24;
    IdAnswer = 4;
    EventsReportedAnswer = 4;
    EventParam = 304;
    EventAnswer = 336;
    QueryRouteAnswer = 208;
    QueryAddrAnswer = 280;
    QueryPathAnswer = 80;
    PathRecord = 64;
    SaPathRecord = 64;
    AhAttr = 32;
    QpAttr = 144;
}
