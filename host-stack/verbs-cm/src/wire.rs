//! What connection managers of two processes say to each other.
//!
//! ```text
//!   active                      passive            active               passive
//!     | REQ ---------------------> |                 | SIDR REQ ----------> |
//!     | <--------------------- REP |                 | <---------- SIDR REP |
//!     | RTU ---------------------> |
//!     |            ...             |               instead of REP, at any time before RTU: REJ
//!     | DREQ --------------------> |
//!     | <-------------------- DREP |               the connection's end stands for DREQ, too
//! ```

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Bytes of private data that a request carries. Programs see as many of every such message, zeros behind what was given.
pub const REQ_DATA: usize = 56;
/// Bytes of private data that an answer carries.
pub const REP_DATA: usize = 196;
/// Bytes of private data that a refusal carries.
pub const REJ_DATA: usize = 148;
/// Bytes of private data that the lookup of a service carries.
pub const SIDR_REQ_DATA: usize = 180;
/// Bytes of private data that the answer to a lookup carries.
pub const SIDR_REP_DATA: usize = 136;

/// Why a connection is refused: the consumer said so.
pub const REJ_CONSUMER: u32 = 28;
/// Why a connection is refused: nobody listens.
pub const REJ_INVALID_SERVICE: u32 = 8;
/// Why a lookup is refused: nobody listens.
pub const SIDR_UNSUPPORTED: u32 = 1;
/// Why a lookup is refused: the consumer said so.
pub const SIDR_REJECTED: u32 = 2;

/// Where a port is in the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its local identifier.
    pub lid: u16,
    /// Its first global identifier.
    pub gid: [u8; 16],
}

/// What the starter or the answerer of a connection says of itself: `struct rdma_conn_param`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // rdma_connect(3) explains them
pub struct Params {
    pub qpn: u32,
    pub qkey: u32,
    pub psn: u32,
    pub srq: bool,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: bool,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    /// Enhanced connection establishment: vendor, options.
    pub ece: (u32, u32),
    pub data: Vec<u8>,
}

/// A message between two managers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// A request for a connection, or a lookup of a UD service.
    Req {
        /// The address of who asks.
        from: SocketAddr,
        /// The address of who is asked.
        to: SocketAddr,
        /// The port of who asks.
        endpoint: Endpoint,
        /// What it says of its side.
        params: Params,
    },
    /// The answer to that.
    Rep {
        /// The port of who answers.
        endpoint: Endpoint,
        /// What it says of its side.
        params: Params,
    },
    /// Who asked is ready to use the connection.
    Rtu,
    /// There is no connection.
    Rej {
        /// `REJ_*`, or `SIDR_*` for a lookup.
        reason: u32,
        /// Private data.
        data: Vec<u8>,
    },
    /// The connection is to end.
    Dreq,
    /// The answer to that.
    Drep,
}
