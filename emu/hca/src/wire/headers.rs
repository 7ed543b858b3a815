//! Transport headers (InfiniBand Architecture 1, chapter 9; extended reliable connections: annex
//! 14).

use super::{BTH_BYTES, PAYLOAD_MAX, Reader, WireError};
use crate::{
    Opcode, Packet, Transport,
    packet::{Body, Extra, Nak, Remote, Route},
    payload::Payload,
    types::psn,
};

/// BTH, XRCETH, AtomicETH.
pub(super) const BYTES_MAX: usize = BTH_BYTES + 4 + 28;

/// Operations: the lower 5 bits of the BTH's opcode (table 38).
mod operation {
    /// Sends and writes follow each other as [`super::Part`] says.
    pub const SEND: u8 = 0x00;
    pub const SEND_END: u8 = 0x05;
    pub const WRITE: u8 = 0x06;
    pub const WRITE_END: u8 = 0x0b;
    pub const READ: u8 = 0x0c;
    pub const READ_RESPONSE_FIRST: u8 = 0x0d;
    pub const READ_RESPONSE_MIDDLE: u8 = 0x0e;
    pub const READ_RESPONSE_LAST: u8 = 0x0f;
    pub const READ_RESPONSE_ONLY: u8 = 0x10;
    pub const ACKNOWLEDGE: u8 = 0x11;
    pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
    pub const COMPARE_SWAP: u8 = 0x13;
    pub const FETCH_ADD: u8 = 0x14;
    pub const SEND_LAST_INVALIDATE: u8 = 0x16;
    pub const SEND_ONLY_INVALIDATE: u8 = 0x17;
}

/// Transport: the upper 3 bits of the BTH's opcode.
const RC: u8 = 0x00;
const UC: u8 = 0x20;
const UD: u8 = 0x60;
const XRC: u8 = 0xa0;
const TRANSPORT: u8 = 0xe0;

/// Solicited event, of the BTH.
const SE: u8 = 1 << 7;
/// Migration state, of the BTH: always "migrated", there being no alternate paths.
const M: u8 = 1 << 6;
/// Acknowledge request, beside the BTH's PSN.
const A: u32 = 1 << 31;
const MASK_24: u32 = 0xff_ffff;

/// AETH syndromes (table 43): the kind, and what it has in the lower 5 bits.
const SYNDROME_KIND: u8 = 0xe0;
const SYNDROME_ACK: u8 = 0x00;
const SYNDROME_RNR_NAK: u8 = 0x20;
const SYNDROME_NAK: u8 = 0x60;
/// "No credit count here", of an ACK.
const CREDITS_INVALID: u8 = 0x1f;

/// The message of a send or a write, as told by its place among their opcodes.
struct Part {
    first: bool,
    last: bool,
    immediate: bool,
}

impl Part {
    fn from_place(place: u8) -> Self {
        Self {
            first: matches!(place, 0 | 4 | 5),
            last: place >= 2,
            immediate: matches!(place, 3 | 5),
        }
    }

    fn place(&self) -> u8 {
        let place = match (self.first, self.last) {
            (true, false) => 0,
            (false, false) => 1,
            (false, true) => 2,
            (true, true) => 4,
        };
        place + u8::from(self.immediate)
    }
}

/// Appends the headers.
pub(super) fn write(
    packet: &Packet<'_>,
    payload: usize,
    into: &mut Vec<u8>,
) -> Result<(), WireError> {
    let route = &packet.route;
    let (transport, operation) = opcode(packet).ok_or(WireError::Kind)?;
    let pad = (payload.next_multiple_of(4) - payload) as u8;
    let se = if packet.solicited { SE } else { 0 };
    let a = if packet.acknowledge { A } else { 0 };
    into.extend([transport | operation, se | M | pad << 4]);
    into.extend(route.pkey.to_be_bytes());
    into.extend((route.to_qp & MASK_24).to_be_bytes());
    into.extend((a | packet.psn & psn::MASK).to_be_bytes());
    if transport == XRC && !packet.is_response() {
        into.extend((packet.srq & MASK_24).to_be_bytes());
    }
    match &packet.body {
        Body::Send { extra, .. } => write_extra(*extra, into),
        Body::Write { remote, extra, .. } => {
            if let Some(remote) = remote {
                write_reth(remote, into);
            }
            write_extra(*extra, into);
        }
        Body::Read(remote) => write_reth(remote, into),
        Body::Atomic {
            opcode,
            remote,
            compare_add,
            swap,
        } => {
            let (swap_add, compare) = match opcode {
                Opcode::CompareSwap => (*swap, *compare_add),
                _ => (*compare_add, 0),
            };
            into.extend(remote.address.to_be_bytes());
            into.extend(remote.key.to_be_bytes());
            into.extend(swap_add.to_be_bytes());
            into.extend(compare.to_be_bytes());
        }
        Body::Datagram { qkey, extra, .. } => {
            into.extend(qkey.to_be_bytes());
            into.extend((route.from_qp & MASK_24).to_be_bytes());
            write_extra(*extra, into);
        }
        Body::Nak(nak) => write_aeth(syndrome(*nak), into),
        Body::Ack => write_aeth(SYNDROME_ACK | CREDITS_INVALID, into),
        Body::ReadResponse { first, last, .. } => {
            if *first || *last {
                write_aeth(SYNDROME_ACK | CREDITS_INVALID, into);
            }
        }
        Body::AtomicResponse(before) => {
            write_aeth(SYNDROME_ACK | CREDITS_INVALID, into);
            into.extend(before.to_be_bytes());
        }
    }
    Ok(())
}

/// Bytes of a datagram's headers: BTH, DETH, ImmDt.
pub(super) fn datagram_bytes(packet: &Packet<'_>) -> usize {
    let immediate = match packet.body {
        Body::Datagram { extra, .. } if extra != Extra::None => 4,
        _ => 0,
    };
    BTH_BYTES + 8 + immediate
}

/// Transport and operation; none if there is no opcode for it.
fn opcode(packet: &Packet<'_>) -> Option<(u8, u8)> {
    let transport = match packet.transport {
        Transport::Rc => RC,
        Transport::Uc => UC,
        Transport::Ud => UD,
        Transport::XrcSend | Transport::XrcReceive => XRC,
    };
    let message = |base: u8, first, last, extra| {
        let immediate = matches!(extra, Extra::Immediate(_));
        let part = Part {
            first,
            last,
            immediate,
        };
        match extra {
            Extra::None => Some(base + part.place()),
            Extra::Immediate(_) => last.then(|| base + part.place()),
            Extra::Invalidate(_) if base != operation::SEND || !last => None,
            Extra::Invalidate(_) if first => Some(operation::SEND_ONLY_INVALIDATE),
            Extra::Invalidate(_) => Some(operation::SEND_LAST_INVALIDATE),
        }
    };
    let operation = match packet.body {
        Body::Send {
            first, last, extra, ..
        } => message(operation::SEND, first, last, extra)?,
        Body::Write {
            remote,
            last,
            extra,
            ..
        } => message(operation::WRITE, remote.is_some(), last, extra)?,
        Body::Read(_) => operation::READ,
        Body::Atomic { opcode, .. } => match opcode {
            Opcode::CompareSwap => operation::COMPARE_SWAP,
            Opcode::FetchAdd => operation::FETCH_ADD,
            _ => return None,
        },
        Body::Datagram { extra, .. } => message(operation::SEND, true, true, extra)?,
        Body::Ack | Body::Nak(_) => operation::ACKNOWLEDGE,
        Body::ReadResponse { first, last, .. } => match (first, last) {
            (true, false) => operation::READ_RESPONSE_FIRST,
            (false, false) => operation::READ_RESPONSE_MIDDLE,
            (false, true) => operation::READ_RESPONSE_LAST,
            (true, true) => operation::READ_RESPONSE_ONLY,
        },
        Body::AtomicResponse(_) => operation::ATOMIC_ACKNOWLEDGE,
    };
    let datagram = matches!(packet.body, Body::Datagram { .. });
    let known = carries(transport, operation) && datagram == (transport == UD);
    known.then_some((transport, operation))
}

/// Whether the transport has this operation.
fn carries(transport: u8, operation: u8) -> bool {
    match transport {
        RC | XRC => matches!(
            operation,
            operation::SEND
                ..=operation::FETCH_ADD
                    | operation::SEND_LAST_INVALIDATE
                    | operation::SEND_ONLY_INVALIDATE
        ),
        UC => operation <= operation::WRITE_END,
        UD => {
            let part = Part::from_place(operation);
            operation <= operation::SEND_END && part.first && part.last
        }
        _ => false,
    }
}

fn write_extra(extra: Extra, into: &mut Vec<u8>) {
    match extra {
        Extra::None => {}
        // In network order already.
        Extra::Immediate(data) => into.extend(data.to_ne_bytes()),
        Extra::Invalidate(key) => into.extend(key.to_be_bytes()),
    }
}

fn write_reth(remote: &Remote, into: &mut Vec<u8>) {
    into.extend(remote.address.to_be_bytes());
    into.extend(remote.key.to_be_bytes());
    into.extend(remote.length.to_be_bytes());
}

/// With a message sequence number of 0: no credits, no need of it (9.7.7.2).
fn write_aeth(syndrome: u8, into: &mut Vec<u8>) {
    into.extend([syndrome, 0, 0, 0]);
}

fn syndrome(nak: Nak) -> u8 {
    match nak {
        Nak::Sequence => SYNDROME_NAK,
        Nak::InvalidRequest => SYNDROME_NAK | 1,
        Nak::RemoteAccess => SYNDROME_NAK | 2,
        Nak::RemoteOperation => SYNDROME_NAK | 3,
        Nak::NotReady(timer) => SYNDROME_RNR_NAK | timer & !SYNDROME_KIND,
    }
}

/// The packet of which this is what follows LRH and GRH, up to the ICRC.
pub(super) fn read(mut from: Reader<'_>, route: Route) -> Result<Packet<'static>, WireError> {
    let [opcode, flags] = from.take()?;
    let pkey = u16::from_be_bytes(from.take()?);
    let to_qp = from.u32()? & MASK_24;
    let sequence = from.u32()?;
    let (transport, operation) = (opcode & TRANSPORT, opcode & !TRANSPORT);
    if !carries(transport, operation) {
        return Err(WireError::Opcode(opcode));
    }
    // The transport header's version.
    if flags & 0xf != 0 {
        return Err(WireError::Header);
    }
    let mut packet = Packet {
        route: Route {
            to_qp,
            pkey,
            ..route
        },
        transport: match transport {
            RC => Transport::Rc,
            UC => Transport::Uc,
            UD => Transport::Ud,
            _ => Transport::XrcSend,
        },
        psn: sequence & psn::MASK,
        count: 1,
        acknowledge: sequence & A != 0,
        solicited: flags & SE != 0,
        srq: 0,
        body: Body::Ack,
    };
    let response =
        (operation::READ_RESPONSE_FIRST..=operation::ATOMIC_ACKNOWLEDGE).contains(&operation);
    if transport == XRC && !response {
        packet.srq = from.u32()? & MASK_24;
    }
    let pad = usize::from(flags >> 4 & 3);
    packet.body = if transport == UD {
        let qkey = from.u32()?;
        packet.route.from_qp = from.u32()? & MASK_24;
        let part = Part::from_place(operation);
        Body::Datagram {
            qkey,
            extra: read_immediate(&mut from, &part)?,
            payload: read_payload(&mut from, pad)?,
        }
    } else {
        read_body(&mut from, operation, pad)?
    };
    match from.0 {
        [] => Ok(packet),
        _ => Err(WireError::Length),
    }
}

fn read_body(from: &mut Reader<'_>, operation: u8, pad: usize) -> Result<Body<'static>, WireError> {
    Ok(match operation {
        operation::SEND..=operation::SEND_END => {
            let part = Part::from_place(operation);
            Body::Send {
                first: part.first,
                last: part.last,
                extra: read_immediate(from, &part)?,
                payload: read_payload(from, pad)?,
            }
        }
        operation::SEND_LAST_INVALIDATE | operation::SEND_ONLY_INVALIDATE => Body::Send {
            first: operation == operation::SEND_ONLY_INVALIDATE,
            last: true,
            extra: Extra::Invalidate(from.u32()?),
            payload: read_payload(from, pad)?,
        },
        operation::WRITE..=operation::WRITE_END => {
            let part = Part::from_place(operation - operation::WRITE);
            Body::Write {
                remote: part.first.then(|| read_reth(from)).transpose()?,
                last: part.last,
                extra: read_immediate(from, &part)?,
                payload: read_payload(from, pad)?,
            }
        }
        operation::READ => Body::Read(read_reth(from)?),
        operation::COMPARE_SWAP | operation::FETCH_ADD => read_atomic(from, operation)?,
        operation::ACKNOWLEDGE => match from.take()? {
            [syndrome, _, _, _] => read_syndrome(syndrome)?,
        },
        operation::ATOMIC_ACKNOWLEDGE => {
            read_ack(from)?;
            Body::AtomicResponse(from.u64()?)
        }
        // A response to a read.
        _ => {
            let first = matches!(
                operation,
                operation::READ_RESPONSE_FIRST | operation::READ_RESPONSE_ONLY
            );
            let last = matches!(
                operation,
                operation::READ_RESPONSE_LAST | operation::READ_RESPONSE_ONLY
            );
            if first || last {
                read_ack(from)?;
            }
            Body::ReadResponse {
                first,
                last,
                payload: read_payload(from, pad)?,
            }
        }
    })
}

fn read_immediate(from: &mut Reader<'_>, part: &Part) -> Result<Extra, WireError> {
    Ok(if part.immediate {
        Extra::Immediate(u32::from_ne_bytes(from.take()?))
    } else {
        Extra::None
    })
}

fn read_reth(from: &mut Reader<'_>) -> Result<Remote, WireError> {
    Ok(Remote {
        address: from.u64()?,
        key: from.u32()?,
        length: from.u32()?,
    })
}

fn read_atomic(from: &mut Reader<'_>, operation: u8) -> Result<Body<'static>, WireError> {
    let remote = Remote {
        address: from.u64()?,
        key: from.u32()?,
        length: 8,
    };
    let (swap_add, compare) = (from.u64()?, from.u64()?);
    let (opcode, compare_add, swap) = match operation {
        operation::COMPARE_SWAP => (Opcode::CompareSwap, compare, swap_add),
        _ => (Opcode::FetchAdd, swap_add, 0),
    };
    Ok(Body::Atomic {
        opcode,
        remote,
        compare_add,
        swap,
    })
}

/// An AETH that must be an ACK.
fn read_ack(from: &mut Reader<'_>) -> Result<(), WireError> {
    let [syndrome, _, _, _] = from.take()?;
    match read_syndrome(syndrome)? {
        Body::Ack => Ok(()),
        _ => Err(WireError::Header),
    }
}

fn read_syndrome(syndrome: u8) -> Result<Body<'static>, WireError> {
    let value = syndrome & !SYNDROME_KIND;
    Ok(match (syndrome & SYNDROME_KIND, value) {
        (SYNDROME_ACK, _) => Body::Ack,
        (SYNDROME_RNR_NAK, timer) => Body::Nak(Nak::NotReady(timer)),
        (SYNDROME_NAK, 0) => Body::Nak(Nak::Sequence),
        (SYNDROME_NAK, 1) => Body::Nak(Nak::InvalidRequest),
        (SYNDROME_NAK, 2) => Body::Nak(Nak::RemoteAccess),
        (SYNDROME_NAK, 3) => Body::Nak(Nak::RemoteOperation),
        _ => return Err(WireError::Header),
    })
}

/// All that is left but `pad` bytes.
fn read_payload(from: &mut Reader<'_>, pad: usize) -> Result<Payload<'static>, WireError> {
    let length = from.0.len().checked_sub(pad);
    let length = length.filter(|length| *length <= PAYLOAD_MAX);
    let bytes = from.0[..length.ok_or(WireError::Length)?].to_vec();
    from.0 = &[];
    Ok(Payload::Bytes(bytes.into()))
}
