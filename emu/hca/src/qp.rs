//! Queue pairs: what they are, and how their two halves keep their place.
//!
//! The requester's half is moved under `send_lock`, the responder's under `receive_lock`, by whoever
//! has something to do for it: the process that posts, its peer, or the daemon. A thread that holds
//! one `send_lock` may take one `receive_lock`, and then a completion queue's; never the other way.

use crate::{
    Memory,
    cell::{Line, U32, U64},
    key::Scope,
    lock::Lock,
    queue::Queue,
    traffic::Flow,
    types::{State, Transport},
};

/// Results of atomics that a responder remembers, and with that the most reads and atomics that a
/// queue pair can have under way as responder.
pub const RESOURCES_MAX: usize = 16;

/// A queue pair. Field names follow ibv_modify_qp(3) where they have one.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Qp {
    /// Its number; 0: the place is free.
    pub number: U32,
    /// [`Transport`].
    pub transport: U32,
    /// [`State`].
    pub state: U32,
    /// HCA.
    pub hca: U32,
    /// Owner's slot in the table of processes.
    pub process: U32,
    /// Protection domain.
    pub pd: U32,
    /// Completion queue of sends.
    pub send_cq: U32,
    /// Completion queue of receives.
    pub recv_cq: U32,
    /// Shared receive queue + 1; 0: its own.
    pub srq: U32,
    /// 1 if every request completes with an entry.
    pub signals_all: U32,
    /// What peers may do.
    pub access: U32,
    /// Index of the P_Key.
    pub pkey_index: U32,
    /// Port, from 1.
    pub port_number: U32,
    /// Port's place in the table.
    pub port: U32,
    /// Q_Key of datagrams.
    pub qkey: U32,
    /// Bytes of payload in a packet.
    pub path_mtu: U32,
    /// LID of the peer's port.
    pub dest_lid: U32,
    /// Number of the peer.
    pub dest_qp: U32,
    /// Service level.
    pub service_level: U32,
    /// Low bits of one's own LID.
    pub path_bits: U32,
    /// Index of one's own GID + 1, if there is a global route.
    pub sgid: U32,
    /// The peer's GID, if there is a global route.
    pub dest_gid: [U64; 2],
    /// How long to wait for an acknowledgement: 4.096 us * 2^timeout; 0: for ever.
    pub timeout: U32,
    /// How often to try again.
    pub retry_cnt: U32,
    /// How often to try again when the peer has no receive; 7: for ever.
    pub rnr_retry: U32,
    /// What to tell a peer for whom there is no receive.
    pub min_rnr_timer: U32,
    /// Reads and atomics under way as requester.
    pub max_rd_atomic: U32,
    /// Reads and atomics under way as responder.
    pub max_dest_rd_atomic: U32,
    /// 1 if an event is wanted when the send queue is drained.
    pub drain_event: U32,
    /// Domain + 1 of an extended reliable connection.
    pub xrc_domain: U32,

    /// 1 if requests are to be flushed.
    pub flushes: U32,

    /// Send queue. `taken` is the oldest request that is not complete.
    pub sq: Queue,
    /// For who sends.
    pub sender: Line,
    /// Held while the requester moves.
    pub send_lock: Lock,
    /// The requester's place.
    pub requester: Requester,

    /// For the peer.
    pub peer: Line,
    /// Held while the responder moves.
    pub receive_lock: Lock,
    /// The responder's place.
    pub responder: Responder,
    /// The receive that a message is being put into, taken from a shared queue: `taken` is that
    /// queue's place, `posted` the receive's number there.
    pub borrowed: Queue,

    /// Receive queue. `taken` is the oldest receive that is not complete. With a shared queue,
    /// `posted` counts what was taken there, and `starved` says that a message waits for one.
    pub rq: Queue,
    /// For who posts receives.
    pub poster: Line,
    /// Held while receives are posted.
    pub post_lock: Lock,
}

/// The requester's half.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Requester {
    /// First request that is not wholly transmitted.
    pub next: U32,
    /// Bytes of it that are.
    pub offset: U64,
    /// Sequence number of the next packet.
    pub psn: U32,
    /// Sequence number of the oldest packet without acknowledgement.
    pub unacked: U32,
    /// Sequence number after the last that was ever sent.
    pub psn_max: U32,
    /// Reads and atomics under way.
    pub fetching: U32,
    /// When to try again, in nanoseconds; 0: nothing is awaited.
    pub deadline_ns: U64,
    /// 1 if the wait is for the peer to have a receive, or for room on the path.
    pub not_ready: U32,
    /// Tries left.
    pub retries: U32,
    /// 1 if a response was missed since the last progress, and asked for again.
    pub missed: U32,
    /// Tries left for want of a receive.
    pub rnr_retries: U32,
    /// 1 if packets are under way, so that nothing may overtake them.
    pub slow: U32,
    /// Requests that it sent, and what it read.
    pub flow: Flow,
}

/// What the message being received is.
pub mod receiving {
    /// None: the next packet must be a first one.
    pub const NOTHING: u32 = 0;
    /// A send.
    pub const SEND: u32 = 1;
    /// An RDMA write.
    pub const WRITE: u32 = 2;
}

/// The responder's half.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Responder {
    /// Requests that came, and what was read.
    pub flow: Flow,
    /// Sequence number of the next packet.
    pub psn: U32,
    /// One of [`receiving`].
    pub receiving: U32,
    /// Bytes of the message that came.
    pub offset: U64,
    /// RDMA write: address of the message.
    pub address: U64,
    /// RDMA write: its key.
    pub key: U32,
    /// RDMA write: bytes in all.
    pub length: U32,
    /// 1 if a receive is taken for the message.
    pub holds: U32,
    /// 1 if a gap was reported, and not filled yet.
    pub nak_sent: U32,
    /// 1 if the first message was seen.
    pub established: U32,
    /// Where the next result is kept.
    pub result_next: U32,
    /// Sequence number of each result, + 1.
    pub result_psns: [U32; RESOURCES_MAX],
    /// Results of atomics.
    pub results: [U64; RESOURCES_MAX],
}

impl Qp {
    /// Its state.
    #[inline]
    pub fn state(&self) -> State {
        State::from_number(self.state.acquire()).unwrap_or(State::Error)
    }

    /// Its transport.
    #[inline]
    pub fn transport(&self) -> Option<Transport> {
        Transport::from_number(self.transport.get())
    }

    /// Whether it is connected and acknowledges.
    #[inline]
    pub fn is_reliable(&self) -> bool {
        matches!(
            self.transport(),
            Some(Transport::Rc | Transport::XrcSend | Transport::XrcReceive)
        )
    }

    /// For whom its keys are checked.
    #[inline]
    pub fn scope(&self) -> Scope {
        Scope {
            hca: self.hca.get(),
            pd: self.pd.get(),
            qp: self.number.get(),
        }
    }

    /// Bytes of payload in a packet, whatever is in the table.
    #[inline]
    pub fn mtu(&self) -> u32 {
        self.path_mtu.get().clamp(256, 4096)
    }

    /// How many packets a message of so many bytes takes.
    #[inline]
    pub fn packets(&self, length: u32) -> u32 {
        length.div_ceil(self.mtu()).max(1)
    }
}

/// The number of the queue pair at a place of the table, used for the `generation`th time.
pub fn number(place: u32, generation: u32) -> u32 {
    // 0 and 1 are the management queue pairs; a number is never 0.
    (generation & 0x7f | 0x80) << 16 | place
}

/// The place of a queue pair's number.
#[inline]
pub fn place(number: u32) -> u32 {
    number & 0xffff
}

impl Memory {
    /// The queue pair with this number on this HCA.
    #[inline]
    pub fn qp_numbered(&self, number: u32, hca: u32) -> Option<(u32, &Qp)> {
        let index = place(number);
        let qp = self.qp(index)?;
        (qp.number.acquire() == number && qp.hca.get() == hca).then_some((index, qp))
    }
}
