//! A cm_id: what the kernel knows of one, and how it goes from state to state.
//!
//! ```text
//!   Idle -bind-> Bound -listen-> Listening
//!     \           |
//!      +-resolve--+-> AddrResolved -route-> RouteResolved -connect/REQ-> Connecting
//!                                                                           | REP: CONNECT_RESPONSE
//!   (of a listener) REQ: CONNECT_REQUEST                                    v
//!   Requested -accept/REP-> Accepted                                     Responded
//!                              | RTU: ESTABLISHED                           | accept/RTU
//!                              v                                            v
//!                          Connected <---------------------------------- Connected
//!                              | disconnect/DREQ, DREQ/DREP, hangup: DISCONNECTED
//!                              v
//!                            Ended  (and TIMEWAIT_EXIT, later)
//! ```
//!
//! UD ids end at the answer: SIDR REP makes the active side ESTABLISHED. Nothing here does I/O: the
//! caller sends what it is told to send.

use std::net::SocketAddr;

use libc::{EINVAL, ETIMEDOUT};

use super::wire::{
    Endpoint, Message, Params, REJ_CONSUMER, REJ_DATA, REP_DATA, REQ_DATA, SIDR_REJECTED,
    SIDR_REP_DATA, SIDR_REQ_DATA,
};

pub(super) const PS_IPOIB: u16 = 0x0002;
pub(super) const PS_UDP: u16 = 0x0111;
pub(super) const QPT_UD: u8 = 4;
/// The Q_Key of UD ids (RDMA_UDP_QKEY).
pub(super) const UDP_QKEY: u32 = 0x0123_4567;

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    ConnectRequest = 4,
    ConnectResponse = 5,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    MulticastJoin = 12,
    TimewaitExit = 15,
}

/// What an event says beside its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    pub status: i32,
    pub params: Params,
    /// Length of the message's private data.
    pub data: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    Connecting,
    Responded,
    Requested,
    Accepted,
    Connected,
    Ended,
}

/// What happens to an id with a connection.
#[derive(Debug)]
pub(super) enum Input {
    Accept(Option<Params>),
    Reject { reason: u32, data: Vec<u8> },
    Disconnect,
    Received(Message),
    Hangup,
}

/// What is to be done about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Output {
    Send(Message),
    /// The connection has served its purpose.
    Close,
    Event(Kind, News),
    /// TIMEWAIT_EXIT, in a while.
    Timewait,
}

#[derive(Debug)]
pub(super) struct Id {
    /// What the program calls it; 0: nothing yet.
    pub uid: u64,
    /// The descriptor whose events are its own.
    pub channel: i32,
    pub space: u16,
    pub qp_type: u8,
    pub state: State,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// Its HCA, and where that is.
    pub hca: Option<u32>,
    pub endpoint: Endpoint,
    /// The other side.
    pub peer: Endpoint,
    pub peer_params: Params,
    /// First packet that the other side sends.
    pub psn: u32,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub qkey: u32,
    pub reported: u32,
    /// Its connection, or the socket on which it listens.
    pub link: Option<u64>,
    pub file: Option<String>,
    pub afonly: bool,
}

impl Id {
    pub fn new(uid: u64, channel: i32, space: u16, qp_type: u8, psn: u32) -> Self {
        Self {
            uid,
            channel,
            space,
            qp_type,
            state: State::Idle,
            local: None,
            remote: None,
            hca: None,
            endpoint: Endpoint::default(),
            peer: Endpoint::default(),
            peer_params: Params::default(),
            psn: psn & 0xff_ffff,
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry: 7,
            qkey: UDP_QKEY,
            reported: 0,
            link: None,
            file: None,
            afonly: false,
        }
    }

    pub fn is_ud(&self) -> bool {
        self.qp_type == QPT_UD || self.space == PS_UDP || self.space == PS_IPOIB
    }

    /// Asks for a connection; the caller has found who listens.
    pub fn request(&mut self, mut params: Params) -> Result<Message, i32> {
        let room = if self.is_ud() {
            SIDR_REQ_DATA
        } else {
            REQ_DATA
        };
        let (Some(from), Some(to)) = (self.local, self.remote) else {
            return Err(EINVAL);
        };
        if self.state != State::RouteResolved || params.data.len() > room {
            return Err(EINVAL);
        }
        self.keep(&params);
        self.retry_count = params.retry_count.min(7);
        params.psn = self.psn;
        self.state = State::Connecting;
        Ok(Message::Req {
            from,
            to,
            endpoint: self.endpoint,
            params,
        })
    }

    /// Is asked for one; tells the program.
    pub fn requested(&mut self, endpoint: Endpoint, params: Params) -> News {
        let data = if self.is_ud() {
            SIDR_REQ_DATA
        } else {
            REQ_DATA
        };
        self.state = State::Requested;
        self.peer = endpoint;
        self.retry_count = params.retry_count.min(7);
        self.heed(params);
        News {
            status: 0,
            params: self.peer_params.clone(),
            data,
        }
    }

    fn keep(&mut self, params: &Params) {
        self.responder_resources = params.responder_resources;
        self.initiator_depth = params.initiator_depth;
    }

    /// What one side may ask is what the other has room for.
    fn heed(&mut self, mut params: Params) {
        std::mem::swap(&mut params.responder_resources, &mut params.initiator_depth);
        self.keep(&params);
        self.rnr_retry = params.rnr_retry_count.min(7);
        self.peer_params = params;
    }

    fn ended(&mut self, status: i32) -> Vec<Output> {
        self.state = State::Ended;
        let news = News {
            status,
            ..News::default()
        };
        vec![Output::Event(Kind::Disconnected, news), Output::Timewait]
    }

    fn refused(&mut self, reason: u32, data: Vec<u8>) -> Vec<Output> {
        let ud = self.is_ud();
        // As after an error of the kernel's: one may connect again.
        self.state = State::RouteResolved;
        let params = Params {
            data,
            ..Params::default()
        };
        let news = News {
            status: reason as i32,
            params,
            data: if ud { SIDR_REP_DATA } else { REJ_DATA },
        };
        let kind = if ud {
            Kind::Unreachable
        } else {
            Kind::Rejected
        };
        vec![Output::Close, Output::Event(kind, news)]
    }

    pub fn handle(&mut self, input: Input) -> Result<Vec<Output>, i32> {
        use State::*;
        let ud = self.is_ud();
        Ok(match (self.state, input) {
            (Requested, Input::Accept(Some(mut params))) => {
                let room = if ud { SIDR_REP_DATA } else { REP_DATA };
                if params.data.len() > room {
                    return Err(EINVAL);
                }
                self.keep(&params);
                params.psn = self.psn;
                if ud && params.qkey == 0 {
                    params.qkey = self.qkey;
                }
                self.state = if ud { Connected } else { Accepted };
                let endpoint = self.endpoint;
                let mut outputs = vec![Output::Send(Message::Rep { endpoint, params })];
                if ud {
                    outputs.push(Output::Close);
                }
                outputs
            }
            (Responded, Input::Accept(_)) => {
                self.state = Connected;
                vec![Output::Send(Message::Rtu)]
            }
            (Requested | Responded | Accepted, Input::Reject { reason, mut data }) => {
                if data.len() > REJ_DATA || ud && data.len() > SIDR_REP_DATA {
                    return Err(EINVAL);
                }
                data.shrink_to_fit();
                self.state = Ended;
                let reason = match reason {
                    _ if ud => SIDR_REJECTED,
                    0 => REJ_CONSUMER,
                    reason => reason,
                };
                vec![Output::Send(Message::Rej { reason, data }), Output::Close]
            }
            (Responded | Accepted | Connected, Input::Disconnect) if !ud => {
                // The event comes with the answer.
                self.state = Connected;
                vec![Output::Send(Message::Dreq)]
            }
            (Ended, Input::Disconnect) => vec![],
            (Connecting | Requested, Input::Disconnect) => {
                self.state = Ended;
                vec![Output::Close]
            }
            (_, Input::Accept(_) | Input::Reject { .. } | Input::Disconnect) => {
                return Err(EINVAL);
            }

            (Connecting, Input::Received(Message::Rep { endpoint, params })) => {
                self.peer = endpoint;
                self.heed(params);
                let news = News {
                    status: 0,
                    params: self.peer_params.clone(),
                    data: if ud { SIDR_REP_DATA } else { REP_DATA },
                };
                if ud {
                    self.qkey = self.peer_params.qkey;
                    self.state = Connected;
                    return Ok(vec![Output::Close, Output::Event(Kind::Established, news)]);
                }
                self.state = Responded;
                vec![Output::Event(Kind::ConnectResponse, news)]
            }
            (Connecting, Input::Received(Message::Rej { reason, data })) => {
                self.refused(reason, data)
            }
            (Connecting, Input::Hangup) if ud => {
                self.refused(ETIMEDOUT.wrapping_neg() as u32, vec![])
            }
            (Connecting, Input::Hangup) => self.refused(REJ_CONSUMER, vec![]),
            (Accepted, Input::Received(Message::Rtu)) => {
                self.state = Connected;
                vec![Output::Event(Kind::Established, News::default())]
            }
            (Accepted, Input::Received(Message::Rej { reason, data })) => {
                let outputs = self.refused(reason, data);
                self.state = Ended;
                outputs
            }
            (Responded | Accepted | Connected, Input::Received(Message::Dreq)) => {
                let mut outputs = vec![Output::Send(Message::Drep)];
                outputs.extend(self.ended(0));
                outputs
            }
            (Connected, Input::Received(Message::Drep)) => self.ended(0),
            (Responded | Accepted | Connected, Input::Hangup) if !ud => {
                let mut outputs = self.ended(0);
                outputs.insert(0, Output::Close);
                outputs
            }
            (_, Input::Hangup) => {
                if self.state == Requested {
                    self.state = Ended;
                }
                vec![Output::Close]
            }
            // Late, doubled or senseless.
            (_, Input::Received(_)) => vec![],
        })
    }
}
