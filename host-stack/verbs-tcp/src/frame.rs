//! Frames of a connection between two daemons.
//!
//! ```text
//!   length (u32, of what follows)  kind (u8)  MESSAGE: a Message, as postcard
//!                                             PACKET:  from_port (u16)  to_port (u16)  from_qp (u32)  count (u32)
//!                                                      the packet from its LRH on, without CRCs (snaprig_hca::wire)
//! ```
//! Numbers are little-endian. TCP has checks of its own, so packets go without theirs; what a link does not carry, and the
//! machines need, is in front of them.
//!
//! What must stay true: what was encoded is decoded to the same, but that both ends of an extended reliable connection are
//! [`XrcSend`](snaprig_hca::Transport::XrcSend); anything else is refused, never more; memory is taken for what has come, not
//! for what is announced.

use serde::{Deserialize, Serialize};
use snaprig_hca::{
    Packet,
    packet::{Body, Route},
    wire,
};
use snaprig_peers::{Nonce, Proof};
use snaprig_wire::frame as postcard;

/// The longest frame of those who have shown who they are: the largest packet with all headers, or a message of a connection
/// manager.
pub const FRAME_BYTES_MAX: usize = 8 << 10;
/// The longest one before that.
pub const FIRST_BYTES_MAX: usize = 256;

const LENGTH_BYTES: usize = 4;
const MESSAGE: u8 = 0;
const PACKET: u8 = 1;

/// What daemons say beside packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// First of all, by who was connected to.
    Challenge {
        /// Its nonce.
        nonce: Nonce,
    },
    /// Who has connected.
    Hello {
        /// Its node, from 1.
        node: u32,
        /// Its nonce.
        nonce: Nonce,
        /// That it knows the token, and is in the same fabric.
        proof: Proof,
    },
    /// The same, of who was connected to.
    Welcome {
        /// Its proof.
        proof: Proof,
    },
    /// Are you there?
    Ping,
    /// Yes.
    Pong,
    /// About a connection between two connection managers that goes through the daemons of their nodes.
    Relay {
        /// The number that the opener's daemon gave it.
        link: u64,
        /// The sender's daemon is the opener's.
        by_opener: bool,
        /// What.
        what: Relayed,
    },
}

/// What happened to a connection between two connection managers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Relayed {
    /// Somebody wants to reach who listens under the first of these names that somebody listens under.
    Open {
        /// Names of sockets in the directory of the node's fabric.
        names: Vec<String>,
        /// The first message.
        first: Vec<u8>,
    },
    /// A message.
    Data(Vec<u8>),
    /// Nobody listens.
    Refused,
    /// It has ended.
    End,
}

/// What came.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// A message.
    Message(Message),
    /// A packet of the fabric.
    Packet(Packet<'static>),
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It is longer than it may be.
    #[error("a frame of {length} bytes: {bytes_max} at most")]
    Length {
        /// What it says.
        length: usize,
        /// What it may.
        bytes_max: usize,
    },
    /// It is of no kind that there is.
    #[error("a frame of no known kind")]
    Kind,
    /// It is no message.
    #[error("what is no message")]
    Message,
    /// It is no packet.
    #[error("what is no packet: {0}")]
    Packet(#[from] wire::WireError),
}

/// Appends a message.
pub fn put_message(message: &Message, into: &mut Vec<u8>) {
    let body = postcard::encode(message);
    into.extend_from_slice(&(1 + body.len() as u32).to_le_bytes());
    into.push(MESSAGE);
    into.extend_from_slice(&body);
}

/// Appends a packet; its data is in itself. Nothing is appended if it has no bytes.
pub fn put_packet(packet: &Packet<'_>, into: &mut Vec<u8>) -> Result<(), FrameError> {
    let route = &packet.route;
    let start = into.len();
    into.extend_from_slice(&[0; LENGTH_BYTES]);
    into.push(PACKET);
    for port in [route.from_port, route.to_port] {
        into.extend_from_slice(&(port as u16).to_le_bytes());
    }
    into.extend_from_slice(&route.from_qp.to_le_bytes());
    into.extend_from_slice(&packet.count.to_le_bytes());
    if let Err(error) = wire::encode_bare(packet, into) {
        into.truncate(start);
        return Err(error.into());
    }
    let length = (into.len() - start - LENGTH_BYTES) as u32;
    into[start..start + LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// The frame whose bytes after the length these are.
pub fn decode(bytes: &[u8]) -> Result<Frame, FrameError> {
    match bytes.split_first().ok_or(FrameError::Kind)? {
        (&MESSAGE, body) => {
            let message = postcard::decode(body).map_err(|_| FrameError::Message)?;
            Ok(Frame::Message(message))
        }
        (&PACKET, body) => decode_packet(body).map(Frame::Packet),
        _ => Err(FrameError::Kind),
    }
}

fn decode_packet(body: &[u8]) -> Result<Packet<'static>, FrameError> {
    let short = FrameError::Packet(wire::WireError::Length);
    let (from_port, body) = body.split_first_chunk().ok_or(short)?;
    let (to_port, body) = body.split_first_chunk().ok_or(short)?;
    let (from_qp, body) = body.split_first_chunk().ok_or(short)?;
    let (count, body) = body.split_first_chunk().ok_or(short)?;
    let packet = wire::decode_bare(body)?;
    let count = match packet.body {
        Body::Read(_) => u32::from_le_bytes(*count),
        _ => packet.count,
    };
    let route = Route {
        from_port: u16::from_le_bytes(*from_port).into(),
        to_port: u16::from_le_bytes(*to_port).into(),
        from_qp: u32::from_le_bytes(*from_qp),
        ..packet.route
    };
    Ok(Packet {
        route,
        count,
        ..packet
    })
}

/// What came over a connection, cut into frames.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Where the next frame begins.
    at: usize,
}

impl Frames {
    /// Adds what came.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, of at most `bytes_max` bytes.
    pub fn next_frame(&mut self, bytes_max: usize) -> Result<Option<Frame>, FrameError> {
        let rest = &self.bytes[self.at..];
        let Some((length, rest)) = rest.split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > bytes_max {
            return Err(FrameError::Length { length, bytes_max });
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = decode(body)?;
        self.at += LENGTH_BYTES + length;
        Ok(Some(frame))
    }
}
