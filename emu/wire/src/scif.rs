//! SCIF between nodes, and SCIF between a program and its node.
//!
//! Nodes exchange [`Message`]s over the rings of the aperture. The host (node 0) is the switch:
//! a card sends everything to the host, which forwards what is for another card.
//!
//! ```text
//! connecting side                     listening side
//!   Connect {from, to}      ------->    queued in the backlog
//!                           <-------    Accepted {from, to}  | Refused
//!   Data {..} (within credit) <---->    Data {..}
//!   Credit {bytes read}     <------>    Credit
//!   Window / Unwindow       <------>    the peer's registered windows, as DMA extents
//!   Fence                   ------->    a mark, or a wait for one, or a signal after one
//!                           <-------    Fenced
//!   Poke                    <------>    a value into the receiver's own window (a signal)
//!   Held .. Released        <------>    windows and lanes that the peer has mapped stay until then
//!   Closed                  <------>    the peer reads what was sent, then ECONNRESET
//! ```
//!
//! When a card comes or is gone the host says so to every other one ([`Body::Found`], [`Body::Lost`]): a
//! connection between cards ends like one between a card and the host.
//!
//! Programs on the card use the ioctls of the `mic` driver ([`ioctl`]), programs on the host a Unix socket
//! that carries the same operations.

pub mod ioctl;

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Version of [`Message`]; a card and a host that differ do not talk.
pub const VERSION: u32 = 8;

/// A node: 0 is the host, cards are 1 and up.
pub type NodeId = u16;
/// The host's node.
pub const HOST: NodeId = 0;
/// First port of the dynamic range (`scif_bind` with port 0).
pub const PORT_DYNAMIC: u16 = 1088;
/// Ports below this one need privilege to bind.
pub const PORT_PRIVILEGED: u16 = 1024;
/// Unread bytes of a connection beyond which a send that does not wait takes no more (scif_send(3)).
pub const QUEUE_BYTES: usize = 4096;
/// Bytes of a connection between nodes that are under way or queued for its reader: what the way there and back
/// takes, at the speed that messages have.
pub const WINDOW_BYTES: usize = 256 << 10;

/// Bytes of a ring of lanes: a power of two.
pub const LANE_BYTES: u64 = 128 << 10;
/// Bytes of a connection's lanes: a page, and two rings.
pub const LANES_BYTES: u64 = PAGE + 2 * LANE_BYTES;
/// Most extents in one [`Body::Window`].
pub const EXTENTS_MAX: usize = 1024;
/// The page size of windows, in bytes.
pub const PAGE: u64 = 4096;

/// Well-known ports.
pub mod port {
    /// COI daemon on each card (Intel reserves 40 to 49 for COI).
    pub const COI_DAEMON: u16 = 40;
    /// Snapify-IO daemon on every node.
    pub const SNAPIFY_IO: u16 = 50;
}

/// One end's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortId {
    /// The node.
    pub node: NodeId,
    /// The port on it.
    pub port: u16,
}

/// A run of contiguous memory as the DMA engine sees it (see [`crate::dma`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// DMA address.
    pub address: u64,
    /// Bytes, a multiple of [`PAGE`].
    pub len: u64,
}

/// What one node tells another. `from` and `to` name the endpoints; a connection is the pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Sender.
    pub from: PortId,
    /// Receiver.
    pub to: PortId,
    /// Connection number that the connecting node chose, so that a late message for an earlier
    /// connection of the same two ports is recognised and dropped.
    pub connection: u32,
    /// What it says.
    pub body: Body,
}

/// How the bytes of a connection go, as one end offers it, and as the other answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// By the nodes, as [`Body::Data`].
    Nodes,
    /// This end's program takes lanes that the other end lays; as an answer: those that it has laid.
    Willing,
    /// Lanes are laid here, in a card's memory.
    Lanes(Extent),
}

/// What one end of lanes waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Bell {
    /// Bytes.
    Readable,
    /// Room.
    Writable,
}

/// What a peer that is gone may still have mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Held {
    /// Some of the windows.
    Windows,
    /// The lanes.
    Lanes,
}

impl Held {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Windows, Self::Lanes];

    /// As an offset and bytes: all windows, and where no window can be.
    pub const fn range(self) -> (i64, u64) {
        match self {
            Self::Windows => (0, i64::MAX as u64),
            Self::Lanes => (i64::MAX, 0),
        }
    }

    /// What a mapped range is of.
    pub fn of(range: (i64, u64)) -> Self {
        match range == Self::Lanes.range() {
            true => Self::Lanes,
            false => Self::Windows,
        }
    }
}

/// The kinds of [`Message`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Body {
    /// Ask a listening endpoint for a connection.
    Connect(Way),
    /// The connection is made; `from` is the accepting endpoint's own port.
    Accepted(Way),
    /// Nobody listens there, or the backlog is full.
    Refused,
    /// Bytes of the stream, never more than the receiver has room for.
    Data(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The reader took this many bytes from its queue.
    Credit(u32),
    /// A window was registered, or a further part of it (`more` says that another follows).
    Window {
        /// Offset of this part in the registered address space.
        offset: i64,
        /// `SCIF_PROT_READ` 1, `SCIF_PROT_WRITE` 2.
        prot: u8,
        /// Another part follows.
        more: bool,
        /// Where the part's memory is.
        extents: Vec<Extent>,
    },
    /// The peer knows the window: an answer on connections with lanes, whose bytes would be there before it.
    Windowed,
    /// A range of windows was unregistered.
    Unwindow {
        /// Start of the range.
        offset: i64,
        /// Bytes.
        len: u64,
    },
    /// The peer confirms that it no longer uses the range; its memory may go.
    Unwindowed {
        /// Start of the range.
        offset: i64,
        /// Bytes.
        len: u64,
        /// Some of it is mapped there (scif_mmap): the memory stays until [`Body::Released`].
        held: bool,
    },
    /// Before [`Body::Closed`]: this of the receiver's is mapped and stays until [`Body::Released`].
    Held(Held),
    /// What was held of this range is not any more: of windows; or of what [`Held::range`] says.
    Released {
        /// Start of the range.
        offset: i64,
        /// Bytes.
        len: u64,
    },
    /// Asks for a fence over RMA that the receiver's side started; answered under the number.
    Fence(u64, Fence),
    /// How a [`Body::Fence`] ended: a mark (or 0), or an errno.
    Fenced(u64, Result<i32, i32>),
    /// Write this value at an offset of the receiver's own windows.
    Poke {
        /// A multiple of 4.
        offset: i64,
        /// What is written.
        value: u64,
    },
    /// A program's lanes are no longer what their receiver, who may sleep, took them for: there are bytes, or there is room.
    Ring(Bell),
    /// The endpoint is gone.
    Closed,
    /// From the host alone: this card is gone, and with it all of its endpoints.
    Lost(NodeId),
    /// From the host alone: this card is there.
    Found(NodeId),
}

/// What is asked of the side that started the RMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fence {
    /// A mark for what is under way.
    Mark,
    /// The end of what has this mark.
    Wait(i32),
    /// Values into windows once what is under way has ended: (offset, value) as the receiver sees
    /// the windows.
    Signal {
        /// In the receiver's windows.
        local: Option<(i64, u64)>,
        /// In the sender's.
        remote: Option<(i64, u64)>,
    },
}
