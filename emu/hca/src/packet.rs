//! What goes over a path: requests, responses and datagrams, with the headers of InfiniBand
//! Architecture 1, chapter 9, that matter to the machines.

use crate::{
    payload::Payload,
    port::{Gid, MULTICAST_LID},
    types::{Opcode, Transport},
};

/// Addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The sending port's place in the table.
    pub from_port: u32,
    /// The receiving port's place in the table; of a multicast packet, the sender's own.
    pub to_port: u32,
    /// The LID it is sent from, path bits included.
    pub from_lid: u16,
    /// The LID it is sent to.
    pub to_lid: u16,
    /// Number of the sending queue pair.
    pub from_qp: u32,
    /// Number of the receiving queue pair.
    pub to_qp: u32,
    /// Service level.
    pub service_level: u8,
    /// The sender's P_Key.
    pub pkey: u16,
    /// Source and destination, if there is a global route.
    pub global: Option<(Gid, Gid)>,
}

impl Route {
    /// Whether it is for a group, whose members may be behind every port.
    #[inline]
    pub fn is_multicast(&self) -> bool {
        self.to_lid >= MULTICAST_LID
    }
}

/// What a message brings beside its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    None,
    /// Immediate data, in network order.
    Immediate(u32),
    /// A key to invalidate.
    Invalidate(u32),
}

/// A range of the responder's memory (RETH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// First address.
    pub address: u64,
    /// Remote key.
    pub key: u32,
    /// Bytes.
    pub length: u32,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// Packets before it are missing.
    Sequence,
    /// It makes no sense.
    InvalidRequest,
    /// It is not allowed.
    RemoteAccess,
    /// It failed at the responder.
    RemoteOperation,
    /// There is no receive; this is the responder's timer code.
    NotReady(u8),
}

/// What a packet says.
#[derive(Clone, Debug, PartialEq)]
pub enum Body<'a> {
    /// (A part of) a send.
    Send {
        /// It begins a message.
        first: bool,
        /// It ends one.
        last: bool,
        /// In the last one.
        extra: Extra,
        /// Data.
        payload: Payload<'a>,
    },
    /// (A part of) an RDMA write.
    Write {
        /// In the first one.
        remote: Option<Remote>,
        /// It ends the message.
        last: bool,
        /// In the last one.
        extra: Extra,
        /// Data.
        payload: Payload<'a>,
    },
    /// An RDMA read.
    Read(Remote),
    /// An atomic operation.
    Atomic {
        /// Compare and swap, or fetch and add.
        opcode: Opcode,
        /// Where.
        remote: Remote,
        /// What to compare with, or to add.
        compare_add: u64,
        /// What to swap in.
        swap: u64,
    },
    /// A datagram.
    Datagram {
        /// Must be the receiver's.
        qkey: u32,
        /// Immediate data.
        extra: Extra,
        /// Data.
        payload: Payload<'a>,
    },
    /// All up to here arrived.
    Ack,
    /// Not this one.
    Nak(Nak),
    /// (A part of) what was read.
    ReadResponse {
        /// It begins the response.
        first: bool,
        /// It ends it.
        last: bool,
        /// Data.
        payload: Payload<'a>,
    },
    /// What was there before the atomic operation.
    AtomicResponse(u64),
}

impl Body<'_> {
    /// Whether a receive is taken for its message.
    pub(crate) fn takes_receive(&self) -> bool {
        match self {
            Self::Send { .. } | Self::Datagram { .. } => true,
            Self::Write { extra, .. } => *extra != Extra::None,
            _ => false,
        }
    }
}

/// A packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet<'a> {
    /// Addresses.
    pub route: Route,
    /// Transport service.
    pub transport: Transport,
    /// Sequence number.
    pub psn: u32,
    /// How many sequence numbers it stands for. On a path that goes packet by packet that is 1; of a
    /// read, one for each packet of the response.
    pub count: u32,
    /// An acknowledgement is wanted.
    pub acknowledge: bool,
    /// The receiver's completion is solicited.
    pub solicited: bool,
    /// Number of the shared receive queue, on an extended reliable connection.
    pub srq: u32,
    /// The rest.
    pub body: Body<'a>,
}

impl Packet<'_> {
    /// Whether a responder sent it.
    #[inline]
    pub fn is_response(&self) -> bool {
        matches!(
            self.body,
            Body::Ack | Body::Nak(_) | Body::ReadResponse { .. } | Body::AtomicResponse(_)
        )
    }

    /// Its data.
    pub fn payload(&self) -> Option<&Payload<'_>> {
        match &self.body {
            Body::Send { payload, .. }
            | Body::Write { payload, .. }
            | Body::Datagram { payload, .. }
            | Body::ReadResponse { payload, .. } => Some(payload),
            _ => None,
        }
    }

    /// The same with the data in itself; none if the data is not there any more.
    pub fn to_owned<H: crate::Host>(&self, host: &H) -> Option<Packet<'static>> {
        let own = |payload: &Payload<'_>| Some(Payload::Bytes(payload.to_bytes(host)?.into()));
        let body = match &self.body {
            Body::Send {
                first,
                last,
                extra,
                payload,
            } => Body::Send {
                first: *first,
                last: *last,
                extra: *extra,
                payload: own(payload)?,
            },
            Body::Write {
                remote,
                last,
                extra,
                payload,
            } => Body::Write {
                remote: *remote,
                last: *last,
                extra: *extra,
                payload: own(payload)?,
            },
            Body::Datagram {
                qkey,
                extra,
                payload,
            } => Body::Datagram {
                qkey: *qkey,
                extra: *extra,
                payload: own(payload)?,
            },
            Body::ReadResponse {
                first,
                last,
                payload,
            } => Body::ReadResponse {
                first: *first,
                last: *last,
                payload: own(payload)?,
            },
            Body::Read(remote) => Body::Read(*remote),
            Body::Atomic {
                opcode,
                remote,
                compare_add,
                swap,
            } => Body::Atomic {
                opcode: *opcode,
                remote: *remote,
                compare_add: *compare_add,
                swap: *swap,
            },
            Body::Ack => Body::Ack,
            Body::Nak(nak) => Body::Nak(*nak),
            Body::AtomicResponse(before) => Body::AtomicResponse(*before),
        };
        Some(Packet {
            body,
            ..self.head()
        })
    }

    /// All but the body.
    fn head(&self) -> Packet<'static> {
        Packet {
            route: self.route,
            transport: self.transport,
            psn: self.psn,
            count: self.count,
            acknowledge: self.acknowledge,
            solicited: self.solicited,
            srq: self.srq,
            body: Body::Ack,
        }
    }
}
