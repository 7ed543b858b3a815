//! The two CRCs of a packet (InfiniBand Architecture 1, 7.8).

use crc::{Algorithm, CRC_32_ISO_HDLC, Crc};

use super::{BTH_BYTES, GRH_BYTES, LNH_GLOBAL, LRH_BYTES};

const ICRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);
const VCRC: Crc<u16> = Crc::<u16>::new(&Algorithm {
    width: 16,
    poly: 0x100b,
    init: 0xffff,
    refin: true,
    refout: true,
    xorout: 0xffff,
    check: 0x0a3d,
    residue: 0,
});

/// The invariant CRC of all that precedes it, LRH included; none if headers are missing.
pub(super) fn icrc(packet: &[u8]) -> Option<[u8; 4]> {
    let global = packet.get(1)? & 3 == LNH_GLOBAL;
    let bth = LRH_BYTES + if global { GRH_BYTES } else { 0 };
    let mut masked = [0; LRH_BYTES + GRH_BYTES + BTH_BYTES];
    let (head, rest) = packet.split_at_checked(bth + BTH_BYTES)?;
    let masked = &mut masked[..head.len()];
    masked.copy_from_slice(head);
    if global {
        // The LRH; traffic class, flow label and hop limit of the GRH.
        masked[..8].fill(0xff);
        masked[8] |= 0x0f;
        masked[9..12].fill(0xff);
        masked[15] = 0xff;
    } else {
        // VL of the LRH.
        masked[0] |= 0xf0;
    }
    // Resv8a of the BTH.
    masked[bth + 4] = 0xff;
    let mut digest = ICRC.digest();
    digest.update(masked);
    digest.update(rest);
    Some(digest.finalize().to_le_bytes())
}

/// The variant CRC of all that precedes it.
pub(super) fn vcrc(packet: &[u8]) -> [u8; 2] {
    VCRC.checksum(packet).to_le_bytes()
}
