//! What queue pairs send and receive, for the counters of ports.
//!
//! Each half of a queue pair counts its own, under its own lock, in a line of the cache that is there anyway. A port's counters
//! are what its queue pairs have counted, and what those had that it has no more: a queue pair hands it over when it is reset or
//! destroyed. Packets are those of requests, and of what was read; acknowledgements are not counted.

use crate::{
    Memory,
    cell::U64,
    packet::{Body, Packet},
    port::Port,
    qp::Qp,
};

/// Of each packet, beside the payload: LRH, BTH and ICRC (InfiniBand Architecture 1, 5.2).
const HEADERS_BYTES: u64 = 8 + 12 + 4;

/// One direction.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Traffic {
    /// Packets.
    pub packets: U64,
    /// Bytes of payload.
    pub bytes: U64,
}

/// Both directions.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Flow {
    /// What went out.
    pub sent: Traffic,
    /// What came in.
    pub received: Traffic,
}

impl Traffic {
    /// Counts a message, or a part of one. The caller holds the lock of the half that it is of.
    #[inline]
    pub(crate) fn count(&self, packets: u32, bytes: u64) {
        let counts = [(&self.packets, packets.into()), (&self.bytes, bytes)];
        for (word, by) in counts {
            word.set(word.get().wrapping_add(by));
        }
    }

    /// Counts what travels as this packet, or as those that it stands for.
    #[inline]
    pub(crate) fn count_packet(&self, packet: &Packet<'_>, mtu: u32) {
        let bytes = match &packet.body {
            Body::Ack | Body::Nak(_) => return,
            Body::Read(_) | Body::Atomic { .. } => 0,
            Body::AtomicResponse(_) => 8,
            Body::Send { payload, .. }
            | Body::Write { payload, .. }
            | Body::Datagram { payload, .. }
            | Body::ReadResponse { payload, .. } => payload.length(),
        };
        self.count(bytes.div_ceil(mtu.into()).max(1) as u32, bytes);
    }

    fn hand_over(&self, to: &Self) {
        to.packets.add(self.packets.swap(0));
        to.bytes.add(self.bytes.swap(0));
    }
}

impl Qp {
    /// Its port has what it has counted. The caller holds both locks.
    pub(crate) fn hand_over_traffic(&self, memory: &Memory) {
        let Some(port) = memory.header().ports.get(self.port.get() as usize) else {
            return;
        };
        for half in [&self.requester.flow, &self.responder.flow] {
            half.sent.hand_over(&port.flow.sent);
            half.received.hand_over(&port.flow.received);
        }
    }
}

impl Memory {
    /// The files below `ports/N/counters` of the kernel's sysfs, of the port at this place (PortCounters, InfiniBand
    /// Architecture 1, 16.1.3.5).
    pub fn counters(&self, port: u32) -> Vec<(&'static str, u64)> {
        let found = self.header().ports.get(port as usize);
        let errors = found.into_iter().flat_map(Port::errors);
        errors.chain(self.traffic(port)).collect()
    }

    /// Data is counted in units of four octets, with the headers of packets.
    fn traffic(&self, port: u32) -> [(&'static str, u64); 4] {
        let header = self.header();
        let qps = (0..header.qps_end.get()).filter_map(|place| self.qp(place));
        let mine = qps.filter(|qp| qp.number.get() != 0 && qp.port.get() == port);
        let halves = mine.flat_map(|qp| [&qp.requester.flow, &qp.responder.flow]);
        let handed_over = header.ports.get(port as usize).map(|port| &port.flow);
        let mut sums = [0u64; 4];
        for Flow { sent, received } in halves.chain(handed_over) {
            let counts = [
                &sent.packets,
                &sent.bytes,
                &received.packets,
                &received.bytes,
            ];
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum = sum.wrapping_add(count.get());
            }
        }
        let words =
            |packets: u64, bytes: u64| packets.wrapping_mul(HEADERS_BYTES).wrapping_add(bytes) / 4;
        let [sent, sent_bytes, received, received_bytes] = sums;
        [
            ("port_rcv_data", words(received, received_bytes)),
            ("port_rcv_packets", received),
            ("port_xmit_data", words(sent, sent_bytes)),
            ("port_xmit_packets", sent),
        ]
    }
}
