//! Two HCA models that differ as vendors do: ids, limits, numbering.

use serde::{Deserialize, Serialize};

/// Which model an HCA is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ModelName {
    /// Roomy, one port.
    #[default]
    A,
    /// Small, two ports, other numbers.
    B,
}

/// What a model can do (ibv_query_device(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Version of its firmware.
    pub firmware: &'static str,
    /// IEEE number of the vendor.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub part_id: u32,
    /// Revision of the part.
    pub hardware_version: u32,
    /// Ports of an HCA.
    pub ports: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Requests in a queue.
    pub queue_slots: u32,
    /// Scatter/gather entries of a request.
    pub sges: u32,
    /// Bytes of inline data.
    pub inline_bytes: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Entries of a completion queue.
    pub cq_entries: u32,
    /// Memory regions.
    pub regions: u32,
    /// Memory windows.
    pub windows: u32,
    /// Protection domains.
    pub pds: u32,
    /// Address handles.
    pub address_handles: u32,
    /// Reads and atomics of a queue pair under way.
    pub rd_atomic: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Receives in one of them.
    pub srq_slots: u32,
    /// Queue pairs of a multicast group.
    pub group_members: u32,
    /// The largest packet, in bytes.
    pub mtu: u32,
    /// Completion vectors.
    pub vectors: u32,
}

impl Model {
    /// The model of this name.
    pub fn of(name: ModelName) -> Self {
        match name {
            ModelName::A => Self {
                firmware: "1.4.100",
                vendor_id: 0x5a52,
                part_id: 0x1001,
                hardware_version: 0xa0,
                ports: 1,
                qps: 16384,
                queue_slots: 16384,
                sges: 30,
                inline_bytes: 1024,
                cqs: 16384,
                cq_entries: (1 << 22) - 1,
                regions: 1 << 16,
                windows: 1 << 16,
                pds: 32768,
                address_handles: 1 << 20,
                rd_atomic: 16,
                srqs: 4096,
                srq_slots: 32767,
                group_members: 240,
                mtu: 4096,
                vectors: 4,
            },
            ModelName::B => Self {
                firmware: "7.2.18",
                vendor_id: 0xb157,
                part_id: 0x2b02,
                hardware_version: 0x12,
                ports: 2,
                qps: 4096,
                queue_slots: 4096,
                sges: 16,
                inline_bytes: 256,
                cqs: 4096,
                cq_entries: (1 << 16) - 1,
                regions: 1 << 14,
                windows: 1 << 12,
                pds: 1024,
                address_handles: 1 << 16,
                rd_atomic: 8,
                srqs: 512,
                srq_slots: 8191,
                group_members: 56,
                mtu: 2048,
                vectors: 2,
            },
        }
    }
}
