//! The vfio-user protocol's messages, as bytes (version 0.1; libvfio-user's specification).
//!
//! ```text
//! header  id u16 | command u16 | size u32 (header included) | flags u32 | errno u32
//! body    as the command says; little-endian on the hosts that we run on
//! ```
//! A command is answered by a reply of the same id and command, unless it carries [`NO_REPLY`].

/// Bytes of a header.
pub(crate) const HEADER_BYTES: usize = 16;
/// The longest message that we send or take, in bytes.
pub(crate) const MESSAGE_MAX: usize = DATA_MAX + 64;
/// The longest region access, in bytes.
pub(crate) const DATA_MAX: usize = 64 << 10;
/// Bytes of a region access before its data.
pub(crate) const ACCESS_BYTES: usize = 16;
/// Bytes of `struct vfio_region_info`.
pub(crate) const REGION_INFO_BYTES: usize = 32;

/// Commands (specification, "Commands").
pub(crate) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const GET_INFO: u16 = 4;
    pub(crate) const GET_REGION_INFO: u16 = 5;
    pub(crate) const GET_IRQ_INFO: u16 = 7;
    pub(crate) const SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const RESET: u16 = 13;
}

/// Flag bits 0 to 3: the type of a message.
pub(crate) const TYPE_MASK: u32 = 0xf;
pub(crate) const TYPE_COMMAND: u32 = 0;
pub(crate) const TYPE_REPLY: u32 = 1;
/// The sender of a command wants no reply.
pub(crate) const NO_REPLY: u32 = 1 << 4;
/// A reply says that the command failed; the errno field says why.
pub(crate) const ERROR: u32 = 1 << 5;

/// Indices and flags of `linux/vfio.h`.
pub(crate) mod vfio {
    pub(crate) const REGION_CONFIG: u32 = 7;
    pub(crate) const REGION_COUNT: u32 = 9;
    pub(crate) const REGION_READ: u32 = 1;
    pub(crate) const REGION_WRITE: u32 = 2;
    pub(crate) const REGION_MMAP: u32 = 4;
    pub(crate) const IRQ_MSIX: u32 = 2;
    pub(crate) const IRQ_COUNT: u32 = 5;
    pub(crate) const IRQ_INFO_EVENTFD: u32 = 1;
    pub(crate) const IRQ_SET_NONE: u32 = 1;
    pub(crate) const IRQ_SET_EVENTFD: u32 = 4;
    pub(crate) const IRQ_SET_TRIGGER: u32 = 32;
    pub(crate) const DEVICE_RESET: u32 = 1;
    pub(crate) const DEVICE_PCI: u32 = 2;
    pub(crate) const DMA_READ: u32 = 1;
    pub(crate) const DMA_WRITE: u32 = 2;
    pub(crate) const UNMAP_ALL: u32 = 4;
}

/// What stands before every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) id: u16,
    pub(crate) command: u16,
    pub(crate) size: u32,
    pub(crate) flags: u32,
    pub(crate) errno: u32,
}

impl Header {
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let word = |at| u32_at(bytes, at).expect("a header has four words");
        Self {
            id: word(0) as u16,
            command: (word(0) >> 16) as u16,
            size: word(4),
            flags: word(8),
            errno: word(12),
        }
    }

    /// Bytes of the body, if it is one that we take.
    pub(crate) fn body_len(&self) -> Option<usize> {
        let body = (self.size as usize).checked_sub(HEADER_BYTES)?;
        (body <= MESSAGE_MAX).then_some(body)
    }
}

/// A whole message.
pub(crate) fn message(id: u16, command: u16, flags: u32, errno: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&command.to_le_bytes());
    let size = (HEADER_BYTES + body.len()) as u32;
    push_u32s(&mut bytes, &[size, flags, errno]);
    bytes.extend_from_slice(body);
    bytes
}

pub(crate) fn push_u32s(to: &mut Vec<u8>, values: &[u32]) {
    values.iter().for_each(|v| to.extend(v.to_le_bytes()));
}

pub(crate) fn push_u64s(to: &mut Vec<u8>, values: &[u64]) {
    values.iter().for_each(|v| to.extend(v.to_le_bytes()));
}

/// The 32-bit number at `at`, if the bytes reach that far.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// The 64-bit number at `at`, if the bytes reach that far.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The body of a region access: offset u64, region u32, count u32, then data.
pub(crate) fn access(offset: u64, region: u32, count: u32, data: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(ACCESS_BYTES + data.len());
    push_u64s(&mut body, &[offset]);
    push_u32s(&mut body, &[region, count]);
    body.extend_from_slice(data);
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_survives_and_strange_sizes_are_refused(
            id: u16, command: u16, flags: u32, errno: u32, size: u32, body in prop::collection::vec(any::<u8>(), 0..64)
        ) {
            let bytes = message(id, command, flags, errno, &body);
            let header = Header::decode(bytes[..HEADER_BYTES].try_into().unwrap());
            let expected = Header { id, command, size: bytes.len() as u32, flags, errno };
            prop_assert_eq!(header, expected);
            prop_assert_eq!(header.body_len(), Some(body.len()));
            let strange = Header { size, ..header };
            prop_assert!(strange.body_len().is_none_or(|len| len <= MESSAGE_MAX));
        }
    }
}
