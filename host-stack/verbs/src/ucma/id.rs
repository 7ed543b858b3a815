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

/// One cm_id.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(space: u16, qp_type: u8) -> (Id, Id, Message) {
        let mut active = Id::new(1, 3, space, qp_type, 100);
        active.local = Some(([127, 0, 0, 1], 40000).into());
        active.remote = Some(([127, 0, 0, 1], 7174).into());
        active.state = State::RouteResolved;
        let params = Params {
            qpn: 17,
            responder_resources: 3,
            initiator_depth: 2,
            rnr_retry_count: 5,
            ..Params::default()
        };
        let message = active.request(params).expect("a route");
        let Message::Req {
            endpoint, params, ..
        } = message.clone()
        else {
            panic!("{message:?}");
        };
        let mut passive = Id::new(0, 4, space, qp_type, 200);
        passive.requested(endpoint, params);
        (active, passive, message)
    }

    fn answer(passive: &mut Id) -> Message {
        let params = Params {
            qpn: 18,
            responder_resources: 2,
            initiator_depth: 3,
            ..Params::default()
        };
        let outputs = passive.handle(Input::Accept(Some(params))).expect("asked");
        match &outputs[0] {
            Output::Send(message) => message.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn kinds(outputs: &[Output]) -> Vec<Kind> {
        let kind = |output: &Output| match output {
            Output::Event(kind, _) => Some(*kind),
            _ => None,
        };
        outputs.iter().filter_map(kind).collect()
    }

    #[test]
    fn a_connection_is_made_and_ended() {
        let (mut active, mut passive, _) = pair(0x0106, 2);
        // What one side may ask, the other side has room for.
        assert_eq!(
            (passive.responder_resources, passive.initiator_depth),
            (2, 3)
        );
        let reply = answer(&mut passive);
        let told = active.handle(Input::Received(reply)).expect("no error");
        assert_eq!(kinds(&told), [Kind::ConnectResponse]);
        assert_eq!(active.peer_params.psn, passive.psn);
        assert_eq!(passive.peer_params.psn, active.psn);
        let ready = active.handle(Input::Accept(None)).expect("no error");
        assert_eq!(ready, [Output::Send(Message::Rtu)]);
        let told = passive.handle(Input::Received(Message::Rtu));
        assert_eq!(kinds(&told.expect("no error")), [Kind::Established]);
        let asked = active.handle(Input::Disconnect).expect("no error");
        assert_eq!(asked, [Output::Send(Message::Dreq)]);
        let told = passive.handle(Input::Received(Message::Dreq));
        assert_eq!(kinds(&told.expect("no error")), [Kind::Disconnected]);
        let told = active.handle(Input::Received(Message::Drep));
        assert_eq!(kinds(&told.expect("no error")), [Kind::Disconnected]);
        // Once is enough.
        let told = active.handle(Input::Hangup).expect("no error");
        assert_eq!(kinds(&told), []);
        assert_eq!(passive.handle(Input::Disconnect), Ok(vec![]));
    }

    #[test]
    fn both_sides_may_hang_up_at_once() {
        let (mut active, mut passive, _) = pair(0x0106, 2);
        let reply = answer(&mut passive);
        active.handle(Input::Received(reply)).expect("no error");
        active.handle(Input::Accept(None)).expect("no error");
        passive
            .handle(Input::Received(Message::Rtu))
            .expect("no error");
        for id in [&mut active, &mut passive] {
            id.handle(Input::Disconnect).expect("no error");
            let told = id.handle(Input::Received(Message::Dreq));
            assert_eq!(kinds(&told.expect("no error")), [Kind::Disconnected]);
            let told = id.handle(Input::Received(Message::Drep));
            assert_eq!(kinds(&told.expect("no error")), []);
        }
    }

    #[test]
    fn who_is_refused_may_ask_again() {
        for (space, qp_type, kind, status) in [
            (0x0106, 2, Kind::Rejected, REJ_CONSUMER),
            (PS_UDP, QPT_UD, Kind::Unreachable, SIDR_REJECTED),
        ] {
            let (mut active, mut passive, _) = pair(space, qp_type);
            let reject = Input::Reject {
                reason: 0,
                data: vec![7],
            };
            let outputs = passive.handle(reject).expect("asked");
            let [Output::Send(message), Output::Close] = &outputs[..] else {
                panic!("{outputs:?}");
            };
            let told = active.handle(Input::Received(message.clone()));
            let told = told.expect("no error");
            assert_eq!(kinds(&told), [kind]);
            assert!(told.iter().any(|output| matches!(
                output,
                Output::Event(_, news) if news.status == status as i32 && news.params.data == [7]
            )));
            assert!(active.request(Params::default()).is_ok());
        }
    }

    #[test]
    fn too_much_private_data_is_an_error() {
        let mut id = Id::new(1, 3, 0x0106, 2, 0);
        id.local = Some(([127, 0, 0, 1], 1).into());
        id.remote = id.local;
        id.state = State::RouteResolved;
        let params = |bytes| Params {
            data: vec![0; bytes],
            ..Params::default()
        };
        assert_eq!(id.request(params(REQ_DATA + 1)), Err(EINVAL));
        assert!(id.request(params(REQ_DATA)).is_ok());
    }
}
