//! DMA descriptors: 16 bytes, two little-endian words, as Knights Corner has them (Linux's former
//! `drivers/dma/mic_x100_dma.c`, and `mic_dma_md.h` of MPSS), and one type of ours.
//!
//! ```text
//! type              word 0                                     word 1
//! 0 nop             -                                          type 60..64
//! 1 memory copy     source 0..40 | lines of 64 bytes 46..60    destination 0..40 | interrupt 56 | type
//! 2 status          64 bits that are written                   destination 0..40 | interrupt 59 | type
//! 3 general         32 bits that are written                   destination 0..40 | type
//! 8 byte copy       source 0..40 | length - 1, 40..60          destination 0..40 | interrupt 59 | type
//! ```
//!
//! The byte copy is there because SCIF allows any alignment, of which Knights Corner's driver has the
//! processor take care. All else is refused, the key descriptors (4 and 5) included: nothing is
//! encrypted here.
//!
//! An address below [`HOST_BASE`] is card-physical; from there on it is the host's, through the windows
//! that [`crate::bar4::SMPT00`] describes.

/// Where host memory begins in the DMA engine's address space.
pub const HOST_BASE: u64 = 1 << 39;
/// The longest copy of one descriptor, in bytes.
pub const LEN_MAX: u64 = 1 << 20;
/// Bytes of one descriptor.
pub const DESCRIPTOR_BYTES: usize = 16;
/// Memory copies (type 1) are made of lines of so many bytes, at multiples of that.
pub const LINE_BYTES: u64 = 64;

const ADDRESS_MASK: u64 = (1 << 40) - 1;
/// The bits of word 1 between address and type in which each type has something to say.
const FLAGS: u64 = 0xf_ffff << 40;
const TYPE_NOP: u64 = 0;
const TYPE_LINES: u64 = 1;
const TYPE_STATUS: u64 = 2;
const TYPE_GENERAL: u64 = 3;
const TYPE_BYTES: u64 = 8;
const INTERRUPT_LINES: u64 = 1 << 56;
const INTERRUPT: u64 = 1 << 59;

/// One copy: what any descriptor comes down to. A value that is written is copied from the descriptor
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// DMA address to read from.
    pub src: u64,
    /// DMA address to write to.
    pub dst: u64,
    /// Bytes, up to [`LEN_MAX`]; 0 for one that does nothing.
    pub len: u32,
    /// Raise the channel's interrupt when this one is done.
    pub interrupt: bool,
}

/// Why a channel halted: the bits of [`crate::bar4::DCHERR`].
pub mod error {
    /// The ring is no ring: its size is below 2, it is not at a multiple of 64 or not in memory that
    /// there is, or the head is beyond it.
    pub const RING: u32 = 1 << 0;
    /// The descriptor's type is none that the engine knows.
    pub const TYPE: u32 = 1 << 1;
    /// Reserved bits are set.
    pub const RESERVED: u32 = 1 << 2;
    /// A copy of nothing.
    pub const LENGTH: u32 = 1 << 3;
    /// An address is not at a multiple of what is copied.
    pub const ALIGNMENT: u32 = 1 << 4;
    /// There is no memory at the source, or not all of it.
    pub const SOURCE: u32 = 1 << 5;
    /// There is no memory at the destination, or not all of it.
    pub const DESTINATION: u32 = 1 << 6;
    /// The copy itself failed.
    pub const COPY: u32 = 1 << 7;
}

impl Descriptor {
    /// The bytes of a byte copy. Addresses must be below 2^40 and `len` within bounds.
    pub fn encode(&self) -> [u8; DESCRIPTOR_BYTES] {
        assert!(self.src <= ADDRESS_MASK && self.dst <= ADDRESS_MASK);
        assert!(self.len >= 1 && u64::from(self.len) <= LEN_MAX);
        let word0 = self.src | (u64::from(self.len) - 1) << 40;
        let interrupt = if self.interrupt { INTERRUPT } else { 0 };
        bytes(word0, self.dst | interrupt | TYPE_BYTES << 60)
    }

    /// Reads a descriptor that somebody else wrote at DMA address `at`; else what is wrong with it
    /// ([`error`]).
    pub fn decode(bytes: &[u8; DESCRIPTOR_BYTES], at: u64) -> Result<Self, u32> {
        let [lo, hi]: [[u8; 8]; 2] = [
            core::array::from_fn(|i| bytes[i]),
            core::array::from_fn(|i| bytes[8 + i]),
        ];
        let (word0, word1) = (u64::from_le_bytes(lo), u64::from_le_bytes(hi));
        let (dst, flags) = (word1 & ADDRESS_MASK, word1 & FLAGS);
        let written = |len| Self {
            src: at,
            dst,
            len,
            interrupt: flags & INTERRUPT != 0,
        };
        let (descriptor, flag, is_reserved, unit) = match word1 >> 60 {
            TYPE_NOP => (written(0), 0, false, 1),
            TYPE_LINES => {
                let copy = Self {
                    src: word0 & ADDRESS_MASK,
                    dst,
                    len: (word0 >> 46 & 0x3fff) as u32 * LINE_BYTES as u32,
                    interrupt: flags & INTERRUPT_LINES != 0,
                };
                let reserved = word0 >> 40 & 0x3f | word0 >> 60;
                (copy, INTERRUPT_LINES, reserved != 0, LINE_BYTES)
            }
            TYPE_STATUS => (written(8), INTERRUPT, false, 8),
            TYPE_GENERAL => (written(4), 0, word0 >> 32 != 0, 4),
            TYPE_BYTES => {
                let copy = Self {
                    src: word0 & ADDRESS_MASK,
                    dst,
                    len: (word0 >> 40 & 0xf_ffff) as u32 + 1,
                    interrupt: flags & INTERRUPT != 0,
                };
                (copy, INTERRUPT, word0 >> 60 != 0, 1)
            }
            _ => return Err(error::TYPE),
        };
        if is_reserved || flags & !flag != 0 {
            return Err(error::RESERVED);
        }
        if descriptor.len == 0 && word1 >> 60 != TYPE_NOP {
            return Err(error::LENGTH);
        }
        match (descriptor.src | descriptor.dst).is_multiple_of(unit) || unit == 1 {
            true => Ok(descriptor),
            false => Err(error::ALIGNMENT),
        }
    }
}

/// A descriptor that does nothing.
pub fn nop() -> [u8; DESCRIPTOR_BYTES] {
    bytes(0, TYPE_NOP << 60)
}

/// A copy of `lines` lines of 64 bytes (up to 16,383).
pub fn copy_lines(src: u64, dst: u64, lines: u64, interrupt: bool) -> [u8; DESCRIPTOR_BYTES] {
    let interrupt = if interrupt { INTERRUPT_LINES } else { 0 };
    bytes(src | lines << 46, dst | interrupt | TYPE_LINES << 60)
}

/// A status descriptor: `value` is written to `dst` once everything before it is done.
pub fn status(value: u64, dst: u64, interrupt: bool) -> [u8; DESCRIPTOR_BYTES] {
    let interrupt = if interrupt { INTERRUPT } else { 0 };
    bytes(value, dst | interrupt | TYPE_STATUS << 60)
}

/// A general descriptor: the same with 32 bits, and no interrupt.
pub fn general(value: u32, dst: u64) -> [u8; DESCRIPTOR_BYTES] {
    bytes(value.into(), dst | TYPE_GENERAL << 60)
}

fn bytes(word0: u64, word1: u64) -> [u8; DESCRIPTOR_BYTES] {
    let (lo, hi) = (word0.to_le_bytes(), word1.to_le_bytes());
    core::array::from_fn(|i| if i < 8 { lo[i] } else { hi[i - 8] })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 4096;

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
            assert_eq!(Descriptor::decode(&d.encode(), AT), Ok(d));
        }
    }

    #[test]
    fn every_type_comes_down_to_a_copy() {
        let copy = |src, dst, len, interrupt| {
            Ok(Descriptor {
                src,
                dst,
                len,
                interrupt,
            })
        };
        for (bytes, expected) in [
            (nop(), copy(AT, 0, 0, false)),
            (
                copy_lines(64, HOST_BASE, 3, true),
                copy(64, HOST_BASE, 192, true),
            ),
            (status(7, 72, true), copy(AT, 72, 8, true)),
            (status(u64::MAX, 72, false), copy(AT, 72, 8, false)),
            (general(7, 68), copy(AT, 68, 4, false)),
        ] {
            assert_eq!(Descriptor::decode(&bytes, AT), expected);
        }
    }

    #[test]
    fn strange_bytes_are_refused_and_why_is_said() {
        let with = |mut bytes: [u8; DESCRIPTOR_BYTES], at: usize, bits: u8| {
            bytes[at] |= bits;
            bytes
        };
        for (bytes, why) in [
            (with(nop(), 15, 0x40), error::TYPE),
            (with(nop(), 15, 0xf0), error::TYPE),
            (with(nop(), 13, 1), error::RESERVED),
            (with(copy_lines(0, 64, 1, false), 15, 8), error::RESERVED),
            (with(general(1, 0), 4, 1), error::RESERVED),
            (copy_lines(0, 64, 0, false), error::LENGTH),
            (copy_lines(32, 64, 1, false), error::ALIGNMENT),
            (copy_lines(64, 8, 1, false), error::ALIGNMENT),
            (status(1, 4, false), error::ALIGNMENT),
            (general(1, 2), error::ALIGNMENT),
        ] {
            assert_eq!(Descriptor::decode(&bytes, AT), Err(why), "{bytes:x?}");
        }
    }
}
