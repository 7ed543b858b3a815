//! What an image says of memory that several processes can map.

use serde::{Deserialize, Serialize};

/// Memory that several processes can map, or one and a descriptor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedMemory {
    /// Space of the image.
    pub space: u32,
    /// Name of a memfd; none: anonymous.
    pub name: Option<Vec<u8>>,
    /// Bytes.
    pub size: u64,
    /// F_GET_SEALS.
    pub seals: i32,
    /// Bytes of its huge pages (MFD_HUGETLB); 0: ordinary ones.
    pub huge_bytes: u64,
}
