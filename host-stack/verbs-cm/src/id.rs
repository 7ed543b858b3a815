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

use rustix::io::Errno;

use crate::{
    abi::AhAttr,
    host::{LinkId, Port},
    manager::Channel,
    wire::{
        Endpoint, Message, Params, REJ_CONSUMER, REJ_DATA, REP_DATA, REQ_DATA, SIDR_REJECTED,
        SIDR_REP_DATA, SIDR_REQ_DATA,
    },
};

pub(crate) const PS_IPOIB: u16 = 0x0002;
pub(crate) const PS_UDP: u16 = 0x0111;
pub(crate) const QPT_UD: u8 = 4;
/// The Q_Key of UD ids (RDMA_UDP_QKEY).
pub(crate) const UDP_QKEY: u32 = 0x0123_4567;

/// The one port of each HCA that is used.
pub(crate) const PORT: u8 = 1;

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
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
pub(crate) struct EventBody {
    pub status: i32,
    pub params: Params,
    /// Length of the message's private data.
    pub data: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
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
pub(crate) enum Input {
    Accept(Option<Params>),
    Reject { reason: u32, data: Vec<u8> },
    Disconnect,
    Received(Message),
    Hangup,
}

/// What is to be done about it, in this order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Send(Message),
    /// The connection has served its purpose.
    Close,
    Event(EventKind, EventBody),
    /// TIMEWAIT_EXIT, in a while.
    Timewait,
}

/// One cm_id.
#[derive(Debug)]
pub(crate) struct Id {
    /// What the program calls it; 0: nothing yet.
    pub uid: u64,
    /// The channel on which its events are reported.
    pub channel: Channel,
    pub space: u16,
    pub qp_type: u8,
    pub state: State,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// The port of its local address.
    pub port: Option<Port>,
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
    pub link: Option<LinkId>,
    /// It listens for IPv6 alone.
    pub ipv6_only: bool,
}

impl Id {
    pub fn new(uid: u64, channel: Channel, space: u16, qp_type: u8, psn: u32) -> Self {
        Self {
            uid,
            channel,
            space,
            qp_type,
            state: State::Idle,
            local: None,
            remote: None,
            port: None,
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
            ipv6_only: false,
        }
    }

    pub fn is_ud(&self) -> bool {
        self.qp_type == QPT_UD || self.space == PS_UDP || self.space == PS_IPOIB
    }

    /// Where its port is in the fabric; zeros before it has one.
    pub fn endpoint(&self) -> Endpoint {
        self.port.map_or(Endpoint::default(), |port| port.endpoint)
    }

    /// How its queue pair reaches the other side.
    pub fn path_to_peer(&self) -> AhAttr {
        AhAttr {
            dgid: self.peer.gid,
            dlid: self.peer.lid,
            port_num: PORT,
            ..AhAttr::default()
        }
    }

    /// Is the way to the other side known?
    pub fn has_route(&self) -> bool {
        self.port.is_some()
            && !matches!(
                self.state,
                State::Idle | State::Bound | State::AddrResolved | State::Listening
            )
            && self.peer != Endpoint::default()
    }

    /// Asks for a connection; the caller has found who listens.
    pub fn request(&mut self, mut params: Params) -> Result<Message, Errno> {
        let room = if self.is_ud() {
            SIDR_REQ_DATA
        } else {
            REQ_DATA
        };
        let (Some(from), Some(to)) = (self.local, self.remote) else {
            return Err(Errno::INVAL);
        };
        if self.state != State::RouteResolved || params.data.len() > room {
            return Err(Errno::INVAL);
        }
        self.set_resources(&params);
        self.retry_count = params.retry_count.min(7);
        params.psn = self.psn;
        self.state = State::Connecting;
        Ok(Message::Req {
            from,
            to,
            endpoint: self.endpoint(),
            params,
        })
    }

    /// Is asked for one; tells the program.
    pub fn requested(&mut self, endpoint: Endpoint, params: Params) -> EventBody {
        let data = if self.is_ud() {
            SIDR_REQ_DATA
        } else {
            REQ_DATA
        };
        self.state = State::Requested;
        self.peer = endpoint;
        self.retry_count = params.retry_count.min(7);
        self.take_peer_params(params);
        EventBody {
            status: 0,
            params: self.peer_params.clone(),
            data,
        }
    }

    fn set_resources(&mut self, params: &Params) {
        self.responder_resources = params.responder_resources;
        self.initiator_depth = params.initiator_depth;
    }

    /// What one side may ask is what the other has room for.
    fn take_peer_params(&mut self, mut params: Params) {
        std::mem::swap(&mut params.responder_resources, &mut params.initiator_depth);
        self.set_resources(&params);
        self.rnr_retry = params.rnr_retry_count.min(7);
        self.peer_params = params;
    }

    fn ended(&mut self, status: i32) -> Vec<Step> {
        self.state = State::Ended;
        let body = EventBody {
            status,
            ..EventBody::default()
        };
        vec![Step::Event(EventKind::Disconnected, body), Step::Timewait]
    }

    fn refused(&mut self, reason: u32, data: Vec<u8>) -> Vec<Step> {
        let ud = self.is_ud();
        // As after an error of the kernel's: one may connect again.
        self.state = State::RouteResolved;
        let params = Params {
            data,
            ..Params::default()
        };
        let body = EventBody {
            status: reason as i32,
            params,
            data: if ud { SIDR_REP_DATA } else { REJ_DATA },
        };
        let kind = if ud {
            EventKind::Unreachable
        } else {
            EventKind::Rejected
        };
        vec![Step::Close, Step::Event(kind, body)]
    }

    pub fn handle(&mut self, input: Input) -> Result<Vec<Step>, Errno> {
        use State::*;
        let ud = self.is_ud();
        Ok(match (self.state, input) {
            (Requested, Input::Accept(Some(mut params))) => {
                let room = if ud { SIDR_REP_DATA } else { REP_DATA };
                if params.data.len() > room {
                    return Err(Errno::INVAL);
                }
                self.set_resources(&params);
                params.psn = self.psn;
                if ud && params.qkey == 0 {
                    params.qkey = self.qkey;
                }
                self.state = if ud { Connected } else { Accepted };
                let endpoint = self.endpoint();
                let mut outputs = vec![Step::Send(Message::Rep { endpoint, params })];
                if ud {
                    outputs.push(Step::Close);
                }
                outputs
            }
            (Responded, Input::Accept(_)) => {
                self.state = Connected;
                vec![Step::Send(Message::Rtu)]
            }
            (Requested | Responded | Accepted, Input::Reject { reason, mut data }) => {
                if data.len() > REJ_DATA || ud && data.len() > SIDR_REP_DATA {
                    return Err(Errno::INVAL);
                }
                data.shrink_to_fit();
                self.state = Ended;
                let reason = match reason {
                    _ if ud => SIDR_REJECTED,
                    0 => REJ_CONSUMER,
                    reason => reason,
                };
                vec![Step::Send(Message::Rej { reason, data }), Step::Close]
            }
            (Responded | Accepted | Connected, Input::Disconnect) if !ud => {
                // The event comes with the answer.
                self.state = Connected;
                vec![Step::Send(Message::Dreq)]
            }
            (Ended, Input::Disconnect) => vec![],
            (Connecting | Requested, Input::Disconnect) => {
                self.state = Ended;
                vec![Step::Close]
            }
            (_, Input::Accept(_) | Input::Reject { .. } | Input::Disconnect) => {
                return Err(Errno::INVAL);
            }

            (Connecting, Input::Received(Message::Rep { endpoint, params })) => {
                self.peer = endpoint;
                self.take_peer_params(params);
                let body = EventBody {
                    status: 0,
                    params: self.peer_params.clone(),
                    data: if ud { SIDR_REP_DATA } else { REP_DATA },
                };
                if ud {
                    self.qkey = self.peer_params.qkey;
                    self.state = Connected;
                    return Ok(vec![Step::Close, Step::Event(EventKind::Established, body)]);
                }
                self.state = Responded;
                vec![Step::Event(EventKind::ConnectResponse, body)]
            }
            (Connecting, Input::Received(Message::Rej { reason, data })) => {
                self.refused(reason, data)
            }
            (Connecting, Input::Hangup) if ud => {
                self.refused(libc::ETIMEDOUT.wrapping_neg() as u32, vec![])
            }
            (Connecting, Input::Hangup) => self.refused(REJ_CONSUMER, vec![]),
            (Accepted, Input::Received(Message::Rtu)) => {
                self.state = Connected;
                vec![Step::Event(EventKind::Established, EventBody::default())]
            }
            (Accepted, Input::Received(Message::Rej { reason, data })) => {
                let outputs = self.refused(reason, data);
                self.state = Ended;
                outputs
            }
            (Responded | Accepted | Connected, Input::Received(Message::Dreq)) => {
                let mut outputs = vec![Step::Send(Message::Drep)];
                outputs.extend(self.ended(0));
                outputs
            }
            (Connected, Input::Received(Message::Drep)) => self.ended(0),
            (Responded | Accepted | Connected, Input::Hangup) if !ud => {
                let mut outputs = self.ended(0);
                outputs.insert(0, Step::Close);
                outputs
            }
            (_, Input::Hangup) => {
                if self.state == Requested {
                    self.state = Ended;
                }
                vec![Step::Close]
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
        let mut active = Id::new(1, Channel(3), space, qp_type, 100);
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
        let mut passive = Id::new(0, Channel(4), space, qp_type, 200);
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
            Step::Send(message) => message.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn kinds(outputs: &[Step]) -> Vec<EventKind> {
        let kind = |output: &Step| match output {
            Step::Event(kind, _) => Some(*kind),
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
        assert_eq!(kinds(&told), [EventKind::ConnectResponse]);
        assert_eq!(active.peer_params.psn, passive.psn);
        assert_eq!(passive.peer_params.psn, active.psn);
        let ready = active.handle(Input::Accept(None)).expect("no error");
        assert_eq!(ready, [Step::Send(Message::Rtu)]);
        let told = passive.handle(Input::Received(Message::Rtu));
        assert_eq!(kinds(&told.expect("no error")), [EventKind::Established]);
        let asked = active.handle(Input::Disconnect).expect("no error");
        assert_eq!(asked, [Step::Send(Message::Dreq)]);
        let told = passive.handle(Input::Received(Message::Dreq));
        assert_eq!(kinds(&told.expect("no error")), [EventKind::Disconnected]);
        let told = active.handle(Input::Received(Message::Drep));
        assert_eq!(kinds(&told.expect("no error")), [EventKind::Disconnected]);
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
            assert_eq!(kinds(&told.expect("no error")), [EventKind::Disconnected]);
            let told = id.handle(Input::Received(Message::Drep));
            assert_eq!(kinds(&told.expect("no error")), []);
        }
    }

    #[test]
    fn who_is_refused_may_ask_again() {
        for (space, qp_type, kind, status) in [
            (0x0106, 2, EventKind::Rejected, REJ_CONSUMER),
            (PS_UDP, QPT_UD, EventKind::Unreachable, SIDR_REJECTED),
        ] {
            let (mut active, mut passive, _) = pair(space, qp_type);
            let reject = Input::Reject {
                reason: 0,
                data: vec![7],
            };
            let outputs = passive.handle(reject).expect("asked");
            let [Step::Send(message), Step::Close] = &outputs[..] else {
                panic!("{outputs:?}");
            };
            let told = active.handle(Input::Received(message.clone()));
            let told = told.expect("no error");
            assert_eq!(kinds(&told), [kind]);
            assert!(told.iter().any(|output| matches!(
                output,
                Step::Event(_, body) if body.status == status as i32 && body.params.data == [7]
            )));
            assert!(active.request(Params::default()).is_ok());
        }
    }

    #[test]
    fn too_much_private_data_is_an_error() {
        let mut id = Id::new(1, Channel(3), 0x0106, 2, 0);
        id.local = Some(([127, 0, 0, 1], 1).into());
        id.remote = id.local;
        id.state = State::RouteResolved;
        let params = |bytes| Params {
            data: vec![0; bytes],
            ..Params::default()
        };
        assert_eq!(id.request(params(REQ_DATA + 1)), Err(Errno::INVAL));
        assert!(id.request(params(REQ_DATA)).is_ok());
    }
}
