//! Packets as they are on a link (InfiniBand Architecture 1, 5.2).
//!
//! ```text
//! LRH  [GRH]  BTH  [XRCETH | DETH]  [RETH | AtomicETH | AETH [AtomicAckETH]]  [ImmDt | IETH]
//! payload  pad  ICRC  VCRC
//! ```
//!
//! Not on a link, and so 0 when decoded: the ports' places in the table, and, save in datagrams,
//! the number of the sending queue pair; and so 1: how many packets a read asks for. Both ends of an extended reliable connection have the same
//! opcodes: [`Transport::XrcSend`](crate::Transport::XrcSend) when decoded.

mod crc;
mod headers;

use crate::{
    Packet,
    packet::{Body, Route},
    payload::Payload,
    port::Gid,
};

const LRH_BYTES: usize = 8;
/// Bytes of a global route header.
pub(crate) const GRH_BYTES: usize = 40;
const BTH_BYTES: usize = 12;
const ICRC_BYTES: usize = 4;
const VCRC_BYTES: usize = 2;
/// The largest MTU.
const PAYLOAD_MAX: usize = 4096;

/// Link next header: IBA local, a BTH.
const LNH_LOCAL: u8 = 2;
/// Link next header: IBA global, a GRH.
const LNH_GLOBAL: u8 = 3;
/// Version of the GRH.
const IP_VERSION: u8 = 6;
/// Next header of the GRH: a BTH.
const NEXT_IBA: u8 = 0x1b;
/// Within the subnet.
const HOP_LIMIT: u8 = 1;

/// Why bytes are not a packet, or a packet has no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Its lengths do not agree with each other.
    #[error("a length does not fit")]
    Length,
    /// Variant CRC.
    #[error("the VCRC is wrong")]
    Vcrc,
    /// Invariant CRC.
    #[error("the ICRC is wrong")]
    Icrc,
    /// A version, or the kind of the next header, or a syndrome.
    #[error("a header is not one of InfiniBand transport 1")]
    Header,
    /// No such opcode.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// The transport has no such packet.
    #[error("the transport has no such packet")]
    Kind,
    /// It stands for more than one packet, or its data is elsewhere.
    #[error("a message, or part of one, that is no packet")]
    NotOnePacket,
}

/// Appends a packet. Its data must be [`Payload::Bytes`]; numbers are cut to their fields. It must be one packet; a read that
/// asks for several is.
pub fn encode(packet: &Packet<'_>, into: &mut Vec<u8>) -> Result<(), WireError> {
    let start = into.len();
    encode_bare(packet, into)?;
    into.extend([0; ICRC_BYTES + VCRC_BYTES]);
    seal(&mut into[start..]);
    Ok(())
}

/// The same without the CRCs, for what carries packets and has checks of its own.
pub fn encode_bare(packet: &Packet<'_>, into: &mut Vec<u8>) -> Result<(), WireError> {
    let payload = match packet.payload() {
        None => &[],
        Some(Payload::Bytes(bytes)) => &bytes[..],
        Some(other) if other.length() == 0 => &[],
        Some(_) => return Err(WireError::NotOnePacket),
    };
    if packet.count != 1 && !matches!(packet.body, Body::Read(_)) {
        return Err(WireError::NotOnePacket);
    }
    if payload.len() > PAYLOAD_MAX {
        return Err(WireError::Length);
    }
    let route = &packet.route;
    let mut transport = Vec::with_capacity(headers::BYTES_MAX);
    headers::write(packet, payload.len(), &mut transport)?;
    let padded = payload.len().next_multiple_of(4);
    let after_grh = after_grh(transport.len(), payload.len());

    let (lnh, grh_bytes) = match route.global {
        None => (LNH_LOCAL, 0),
        Some(_) => (LNH_GLOBAL, GRH_BYTES as u16),
    };
    let words = (LRH_BYTES as u16 + grh_bytes + after_grh) / 4;
    into.extend([0, route.service_level << 4 | lnh]);
    into.extend(route.to_lid.to_be_bytes());
    into.extend(words.to_be_bytes());
    into.extend(route.from_lid.to_be_bytes());
    if let Some(gids) = route.global {
        into.extend(grh(gids, after_grh));
    }
    into.extend(transport);
    into.extend(payload);
    into.resize(into.len() + padded - payload.len(), 0);
    Ok(())
}

/// The global route header of a datagram, as its receiver gets it; none if it has no such route.
pub(crate) fn datagram_grh(packet: &Packet<'_>) -> Option<[u8; GRH_BYTES]> {
    let payload = packet.payload().map_or(0, Payload::length) as usize;
    let transport = headers::datagram_bytes(packet);
    Some(grh(packet.route.global?, after_grh(transport, payload)))
}

/// What a global route header counts: all that follows it up to the ICRC, which is included (8.3).
fn after_grh(transport: usize, payload: usize) -> u16 {
    (transport + payload.next_multiple_of(4) + ICRC_BYTES) as u16
}

fn grh((source, destination): (Gid, Gid), after: u16) -> [u8; GRH_BYTES] {
    let mut bytes = [0; GRH_BYTES];
    bytes[0] = IP_VERSION << 4;
    bytes[4..6].copy_from_slice(&after.to_be_bytes());
    bytes[6..8].copy_from_slice(&[NEXT_IBA, HOP_LIMIT]);
    bytes[8..24].copy_from_slice(&source);
    bytes[24..].copy_from_slice(&destination);
    bytes
}

/// Puts the CRCs of a packet right that was changed. What is too short has none.
pub fn seal(packet: &mut [u8]) {
    let Some((rest, vcrc)) = packet.split_last_chunk_mut() else {
        return;
    };
    if let Some((invariant, icrc)) = rest.split_last_chunk_mut()
        && let Some(right) = crc::icrc(invariant)
    {
        *icrc = right;
    }
    *vcrc = crc::vcrc(rest);
}

/// Whether a packet would be taken for one with this bit of it flipped, modulo its length: its CRCs
/// say no.
pub fn survives(packet: &Packet<'_>, bit: u64) -> bool {
    let mut bytes = Vec::new();
    if encode(packet, &mut bytes).is_err() {
        return false;
    }
    let bit = bit % (bytes.len() as u64 * 8);
    bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    decode(&bytes).is_ok()
}

/// The packet that these bytes are.
pub fn decode(bytes: &[u8]) -> Result<Packet<'static>, WireError> {
    let (packet, vcrc) = bytes.split_last_chunk().ok_or(WireError::Length)?;
    let (invariant, icrc) = packet.split_last_chunk().ok_or(WireError::Length)?;
    check_length(invariant)?;
    if *vcrc != crc::vcrc(packet) {
        return Err(WireError::Vcrc);
    }
    if *icrc != crc::icrc(invariant).ok_or(WireError::Length)? {
        return Err(WireError::Icrc);
    }
    decode_bare(invariant)
}

/// The packet's length is what its LRH says; `invariant` is all of it but the CRCs.
fn check_length(invariant: &[u8]) -> Result<(), WireError> {
    let words = invariant.get(4..6).ok_or(WireError::Length)?;
    let words = u16::from_be_bytes([words[0], words[1]]) & 0x7ff;
    match usize::from(words) * 4 == invariant.len() + ICRC_BYTES {
        true => Ok(()),
        false => Err(WireError::Length),
    }
}

/// The packet that these bytes of [`encode_bare`] are.
pub fn decode_bare(bytes: &[u8]) -> Result<Packet<'static>, WireError> {
    check_length(bytes)?;
    let mut rest = Reader(bytes);
    let lrh = rest.take::<LRH_BYTES>()?;
    let field = |at: usize| u16::from_be_bytes([lrh[at], lrh[at + 1]]);
    let global = match (lrh[0] & 0xf, lrh[1] & 3) {
        (0, LNH_LOCAL) => None,
        (0, LNH_GLOBAL) => Some(read_grh(&mut rest)?),
        _ => return Err(WireError::Header),
    };
    let route = Route {
        from_port: 0,
        to_port: 0,
        from_lid: field(6),
        to_lid: field(2),
        from_qp: 0,
        to_qp: 0,
        service_level: lrh[1] >> 4,
        pkey: 0,
        global,
    };
    headers::read(rest, route)
}

/// Source and destination of the GRH.
fn read_grh(from: &mut Reader<'_>) -> Result<(Gid, Gid), WireError> {
    let head = from.take::<8>()?;
    let gids = (from.take()?, from.take()?);
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    if head[0] >> 4 != IP_VERSION || head[6] != NEXT_IBA {
        return Err(WireError::Header);
    }
    if length != from.0.len() + ICRC_BYTES {
        return Err(WireError::Length);
    }
    Ok(gids)
}

/// What is left of a packet.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (now, later) = self.0.split_first_chunk().ok_or(WireError::Length)?;
        self.0 = later;
        Ok(*now)
    }

    fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.take()?))
    }
}
