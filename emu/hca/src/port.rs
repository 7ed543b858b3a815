//! Ports, the addresses of a subnet, and multicast groups.

use crate::{
    cell::{U32, U64},
    traffic::Flow,
};

/// Ports of one fabric: 64 HCAs with two each.
pub const PORTS_MAX: u32 = 128;
/// Entries of a port's GID table.
pub const GIDS_MAX: usize = 8;
/// Entries of a port's P_Key table.
pub const PKEYS_MAX: usize = 16;
/// Multicast groups of one fabric.
pub const GROUPS_MAX: u32 = 256;
/// Queue pairs in one group.
pub const MEMBERS_MAX: usize = 240;
/// The first LID of multicast.
pub const MULTICAST_LID: u16 = 0xc000;

/// A GID, as two numbers in network order: prefix and interface.
pub type Gid = [u8; 16];

/// The two numbers of a GID, in its own byte order.
#[inline]
pub fn gid_words(gid: Gid) -> [u64; 2] {
    [0, 8].map(|at| u64::from_ne_bytes(gid[at..at + 8].try_into().expect("8 bytes")))
}

/// A GID out of device memory.
#[inline]
pub fn load_gid(words: &[U64; 2]) -> Gid {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&words[0].get().to_ne_bytes());
    gid[8..].copy_from_slice(&words[1].get().to_ne_bytes());
    gid
}

/// A GID into device memory.
pub fn store_gid(to: &[U64; 2], gid: Gid) {
    for (to, word) in to.iter().zip(gid_words(gid)) {
        to.set(word);
    }
}

/// A port, as the subnet manager left it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Port {
    /// The HCA it belongs to, from 0.
    pub hca: U32,
    /// Its number there, from 1.
    pub number: U32,
    /// Its LID.
    pub lid: U32,
    /// 1 if its link works.
    pub up: U32,
    /// Packets with a wrong P_Key.
    pub bad_pkeys: U32,
    /// Packets with a wrong Q_Key.
    pub bad_qkeys: U32,
    /// P_Key table.
    pub pkeys: [U32; PKEYS_MAX],
    /// GID table, two words in network order each; 0: free.
    pub gids: [[U64; 2]; GIDS_MAX],
    /// What it counts.
    pub counters: Counters,
    /// What queue pairs counted that are gone, or elsewhere.
    pub flow: Flow,
}

/// What a port counts: rare things, so that whoever sees one counts it at once.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counters {
    /// Times that the link went down.
    pub link_downed: U64,
    /// Packets that came damaged.
    pub port_rcv_errors: U64,
    /// Requests that came before.
    pub duplicate_request: U64,
    /// Packets that came before one that is missing.
    pub out_of_sequence: U64,
    /// Packets whose sequence number a peer refused.
    pub packet_seq_err: U64,
    /// Responses that were missed because a later one came.
    pub implied_nak_seq_err: U64,
    /// Requests that a peer had no receive for.
    pub rnr_nak_retry_err: U64,
    /// Messages that there was no receive for.
    pub out_of_buffer: U64,
    /// Acknowledgements that did not come in time.
    pub local_ack_timeout_err: U64,
}

/// Speed and width of every port's link, as the kernel's sysfs writes them.
pub const RATE: &str = "100 Gb/sec (4X EDR)";

impl Port {
    /// Files below `ports/N/counters` of the kernel's sysfs (PortCounters, InfiniBand Architecture 1, 16.1.3.5).
    pub(crate) fn errors(&self) -> [(&'static str, u64); 2] {
        let Counters {
            link_downed,
            port_rcv_errors,
            ..
        } = &self.counters;
        [
            ("link_downed", link_downed.get()),
            ("port_rcv_errors", port_rcv_errors.get()),
        ]
    }

    /// The files below `ports/N/hw_counters`, with the names and the meanings that the mlx5 driver gives them.
    pub fn hw_counters(&self) -> [(&'static str, u64); 7] {
        let of = &self.counters;
        [
            ("duplicate_request", of.duplicate_request.get()),
            ("implied_nak_seq_err", of.implied_nak_seq_err.get()),
            ("local_ack_timeout_err", of.local_ack_timeout_err.get()),
            ("out_of_buffer", of.out_of_buffer.get()),
            ("out_of_sequence", of.out_of_sequence.get()),
            ("packet_seq_err", of.packet_seq_err.get()),
            ("rnr_nak_retry_err", of.rnr_nak_retry_err.get()),
        ]
    }

    /// An entry of its GID table.
    #[inline]
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.gids.get(index).map(load_gid)
    }

    /// Whether it is known by this GID, at any place of its table.
    pub fn has_gid(&self, gid: Gid) -> bool {
        (0..self.gids.len()).any(|index| self.gid(index) == Some(gid))
    }

    /// Replaces an entry of its GID table.
    pub fn set_gid(&self, index: usize, gid: Gid) {
        if let Some(words) = self.gids.get(index) {
            store_gid(words, gid);
        }
    }

    /// Its P_Key at this place.
    #[inline]
    pub fn pkey(&self, index: usize) -> Option<u16> {
        Some(self.pkeys.get(index)?.get() as u16)
    }
}

/// Whether two ports share a partition by these keys: same number, not both limited members.
#[inline]
pub fn same_partition(a: u16, b: u16) -> bool {
    a & 0x7fff == b & 0x7fff && a & 0x7fff != 0 && (a | b) & 0x8000 != 0
}

/// A multicast group.
#[repr(C)]
#[derive(Debug)]
pub struct Group {
    /// Its GID in network order; 0: free.
    pub gid: [U64; 2],
    /// Its LID.
    pub lid: U32,
    /// How many entries of `members` are used.
    pub count: U32,
    /// Queue pairs: their place in the table + 1; 0: none.
    pub members: [U32; MEMBERS_MAX],
}
