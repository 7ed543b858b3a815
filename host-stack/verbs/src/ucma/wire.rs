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

/// Private data that each message carries: programs see all of it, zeros behind what was given.
pub(super) const REQ_DATA: usize = 56;
pub(super) const REP_DATA: usize = 196;
pub(super) const REJ_DATA: usize = 148;
pub(super) const SIDR_REQ_DATA: usize = 180;
pub(super) const SIDR_REP_DATA: usize = 136;

/// Why a connection is refused: the consumer said so.
pub(super) const REJ_CONSUMER: u32 = 28;
/// Nobody listens.
pub(super) const REJ_INVALID_SERVICE: u32 = 8;
/// SIDR: nobody listens.
pub(super) const SIDR_UNSUPPORTED: u32 = 1;
/// SIDR: the consumer said so.
pub(super) const SIDR_REJECTED: u32 = 2;

/// Where a port is in the fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Endpoint {
    pub lid: u16,
    pub gid: [u8; 16],
}

/// What the starter or the answerer of a connection says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Params {
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// Of a connection, or of a lookup of a UD service.
    Req {
        from: SocketAddr,
        to: SocketAddr,
        endpoint: Endpoint,
        params: Params,
    },
    Rep {
        endpoint: Endpoint,
        params: Params,
    },
    Rtu,
    Rej {
        reason: u32,
        data: Vec<u8>,
    },
    Dreq,
    Drep,
}
