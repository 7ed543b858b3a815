//! The field's terms, with the numbers that libibverbs gives them.

use serde::{Deserialize, Serialize};

macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$item:meta])* $variant:ident = $number:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
        #[repr(u32)]
        pub enum $name {
            $($(#[$item])* $variant = $number,)*
        }

        impl $name {
            /// The one with this number.
            #[inline]
            pub fn from_number(number: u32) -> Option<Self> {
                match number {
                    $(n if n == $number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// How a work request ended (ibv_poll_cq(3)).
    Status {
        /// As asked.
        Success = 0,
        /// The message does not fit the receive, or is longer than the transport allows.
        LocalLength = 1,
        /// The request makes no sense on this queue pair.
        LocalOperation = 2,
        /// A local key does not cover the buffer, or forbids the access.
        LocalProtection = 4,
        /// The queue pair failed earlier.
        Flushed = 5,
        /// A memory window could not be bound.
        WindowBind = 6,
        /// A response that no request asked for.
        BadResponse = 7,
        /// A write with immediate found its receive forbidden.
        LocalAccess = 8,
        /// The peer could not make sense of the request.
        RemoteInvalidRequest = 9,
        /// A remote key does not cover the range, or forbids the access.
        RemoteAccess = 10,
        /// The peer could not carry out the request.
        RemoteOperation = 11,
        /// No acknowledgement, after all retries.
        RetryExceeded = 12,
        /// The peer had no receive, after all retries.
        RnrRetryExceeded = 13,
    }
}

numbered! {
    /// What is asked of a send queue (ibv_post_send(3)).
    Opcode {
        /// RDMA write.
        Write = 0,
        /// RDMA write that also consumes a receive.
        WriteImm = 1,
        /// Send.
        Send = 2,
        /// Send with immediate data.
        SendImm = 3,
        /// RDMA read.
        Read = 4,
        /// Compare and swap.
        CompareSwap = 5,
        /// Fetch and add.
        FetchAdd = 6,
        /// Invalidate a key of one's own.
        LocalInvalidate = 7,
        /// Bind a memory window.
        BindWindow = 8,
        /// Send that invalidates a key of the peer.
        SendInvalidate = 9,
    }
}

numbered! {
    /// Transport services.
    Transport {
        /// Reliable connection.
        Rc = 2,
        /// Unreliable connection.
        Uc = 3,
        /// Unreliable datagram.
        Ud = 4,
        /// Extended reliable connection, the sending side.
        XrcSend = 9,
        /// Extended reliable connection, the receiving side.
        XrcReceive = 10,
    }
}

numbered! {
    /// States of a queue pair (ibv_modify_qp(3)).
    State {
        /// New.
        Reset = 0,
        /// Receives can be posted.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// Send queue drained.
        Sqd = 4,
        /// Send queue in error.
        Sqe = 5,
        /// In error.
        Error = 6,
    }
}

impl State {
    /// Whether packets are taken.
    #[inline]
    pub fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }
}

/// Completion opcodes (`enum ibv_wc_opcode`).
pub mod completed {
    /// Send.
    pub const SEND: u32 = 0;
    /// RDMA write.
    pub const WRITE: u32 = 1;
    /// RDMA read.
    pub const READ: u32 = 2;
    /// Compare and swap.
    pub const COMPARE_SWAP: u32 = 3;
    /// Fetch and add.
    pub const FETCH_ADD: u32 = 4;
    /// Bind of a window.
    pub const BIND_WINDOW: u32 = 5;
    /// Local invalidation.
    pub const LOCAL_INVALIDATE: u32 = 6;
    /// Receive of a send.
    pub const RECEIVE: u32 = 128;
    /// Receive consumed by a write with immediate.
    pub const RECEIVE_WRITE_IMM: u32 = 129;
}

impl Opcode {
    /// The opcode of its completion.
    #[inline]
    pub fn completed(self) -> u32 {
        match self {
            Self::Send | Self::SendImm | Self::SendInvalidate => completed::SEND,
            Self::Write | Self::WriteImm => completed::WRITE,
            Self::Read => completed::READ,
            Self::CompareSwap => completed::COMPARE_SWAP,
            Self::FetchAdd => completed::FETCH_ADD,
            Self::BindWindow => completed::BIND_WINDOW,
            Self::LocalInvalidate => completed::LOCAL_INVALIDATE,
        }
    }

    /// Whether the answer brings data back.
    #[inline]
    pub fn fetches(self) -> bool {
        matches!(self, Self::Read | Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether nothing leaves the HCA.
    #[inline]
    pub fn is_local(self) -> bool {
        matches!(self, Self::LocalInvalidate | Self::BindWindow)
    }
}

bitflags::bitflags! {
    /// What a key, or a queue pair, allows (`enum ibv_access_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Receives and results may be written.
        const LOCAL_WRITE = 1;
        /// Peers may write.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to it.
        const BIND = 1 << 4;
        /// Addresses count from 0.
        const ZERO_BASED = 1 << 5;
    }
}

bitflags::bitflags! {
    /// Flags of a send work request (`enum ibv_send_flags`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Wait for earlier reads and atomics.
        const FENCE = 1;
        /// Completes with an entry.
        const SIGNALED = 2;
        /// The peer's completion is solicited.
        const SOLICITED = 4;
        /// The data is in the request.
        const INLINE = 8;
    }
}

/// Flags of a completion (`enum ibv_wc_flags`).
pub mod completion_flags {
    /// A global route header precedes the data.
    pub const GRH: u32 = 1;
    /// Immediate data is there.
    pub const IMM: u32 = 2;
    /// A key was invalidated.
    pub const INVALIDATED: u32 = 8;
}

numbered! {
    /// What happened out of turn (`enum ibv_event_type`).
    Event {
        /// A completion queue overflowed.
        CqError = 0,
        /// A queue pair failed.
        QpFatal = 1,
        /// A request that makes no sense came.
        QpRequestError = 2,
        /// A request that is not allowed came.
        QpAccessError = 3,
        /// The first message came before the queue pair was ready to send.
        Established = 4,
        /// The send queue is drained.
        Drained = 5,
        /// The device is gone.
        DeviceFatal = 8,
        /// The port works.
        PortActive = 9,
        /// The port fails.
        PortError = 10,
        /// A shared receive queue has fewer receives than its limit.
        SrqLimit = 15,
        /// No more receives of the shared queue will be taken.
        LastWqe = 16,
        /// The port has another GID.
        GidChange = 18,
    }
}

/// Packet sequence numbers, of 24 bits.
pub mod psn {
    /// All bits of a number.
    pub const MASK: u32 = 0xff_ffff;

    /// `psn + by`.
    #[inline]
    pub fn add(psn: u32, by: u32) -> u32 {
        psn.wrapping_add(by) & MASK
    }

    /// How far `psn` is ahead of `other`: negative if it is behind.
    #[inline]
    pub fn ahead(psn: u32, other: u32) -> i32 {
        ((psn.wrapping_sub(other) << 8) as i32) >> 8
    }
}
