//! DMA descriptors: 16 bytes, two little-endian words, after Knights Corner's memory-copy
//! descriptor, with the length in bytes instead of cache lines (SCIF allows any alignment).
//!
//! ```text
//! word 0: source 0..40 | length - 1, 40..60 | reserved
//! word 1: destination 0..40 | reserved | interrupt 59 | type 60..64 (1 = copy)
//! ```
//!
//! An address below [`HOST_BASE`] is card-physical; from there on it is the host's DMA address
//! (IOVA) plus `HOST_BASE`, as the card's SMPT windows show it.

/// Where host memory begins in the DMA engine's address space.
pub const HOST_BASE: u64 = 1 << 39;
/// The longest copy of one descriptor, in bytes.
pub const LEN_MAX: u64 = 1 << 20;
/// Bytes of one descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;

const ADDRESS_MASK: u64 = (1 << 40) - 1;
const TYPE_COPY: u64 = 1;

/// One copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// DMA address to read from.
    pub src: u64,
    /// DMA address to write to.
    pub dst: u64,
    /// Bytes, 1 to [`LEN_MAX`].
    pub len: u32,
    /// Raise the channel's interrupt when this one is done.
    pub interrupt: bool,
}

/// Why bytes are not a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadDescriptor {
    /// The type is none that the engine knows.
    Type(u8),
    /// Reserved bits are set.
    Reserved,
}

impl Descriptor {
    /// The descriptor's bytes. Addresses must be below 2^40 and `len` within bounds.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        assert!(self.src <= ADDRESS_MASK && self.dst <= ADDRESS_MASK);
        assert!(self.len >= 1 && u64::from(self.len) <= LEN_MAX);
        let word0 = self.src | (u64::from(self.len) - 1) << 40;
        let word1 = self.dst | u64::from(self.interrupt) << 59 | TYPE_COPY << 60;
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes[..8].copy_from_slice(&word0.to_le_bytes());
        bytes[8..].copy_from_slice(&word1.to_le_bytes());
        bytes
    }

    /// Reads a descriptor that somebody else wrote.
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES]) -> Result<Self, BadDescriptor> {
        let [lo, hi]: [[u8; 8]; 2] = [
            core::array::from_fn(|i| bytes[i]),
            core::array::from_fn(|i| bytes[8 + i]),
        ];
        let (word0, word1) = (u64::from_le_bytes(lo), u64::from_le_bytes(hi));
        if word1 >> 60 != TYPE_COPY {
            return Err(BadDescriptor::Type((word1 >> 60) as u8));
        }
        if word0 >> 60 != 0 || word1 >> 40 & 0x7_ffff != 0 {
            return Err(BadDescriptor::Reserved);
        }
        Ok(Self {
            src: word0 & ADDRESS_MASK,
            dst: word1 & ADDRESS_MASK,
            len: (word0 >> 40 & 0xf_ffff) as u32 + 1,
            interrupt: word1 >> 59 & 1 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_survives_its_encoding() {
        let longest = Descriptor {
            src: ADDRESS_MASK,
            dst: 0,
            len: 1 << 20,
            interrupt: true,
        };
        let shortest = Descriptor {
            src: 0,
            dst: HOST_BASE,
            len: 1,
            interrupt: false,
        };
        for d in [longest, shortest] {
            assert_eq!(Descriptor::decode(&d.encode()), Ok(d));
        }
    }

    #[test]
    fn strange_bytes_are_refused() {
        assert_eq!(Descriptor::decode(&[0; 16]), Err(BadDescriptor::Type(0)));
        let mut bytes = Descriptor {
            src: 1,
            dst: 2,
            len: 3,
            interrupt: false,
        }
        .encode();
        bytes[13] |= 1;
        assert_eq!(Descriptor::decode(&bytes), Err(BadDescriptor::Reserved));
    }
}
