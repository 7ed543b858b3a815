//! The numbers of the grammar: where fields are, how long parts may be, how checksums are made.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::ImageId;

/// Bytes of a header or record before its payload.
pub const HEAD_BYTES: usize = 32;
/// The kind of the record that ends an image. No kind of image uses it for anything else.
pub const END: u32 = u32::from_le_bytes(*b"END.");
/// Where the checksum is in a header or record.
const SUM_AT: usize = 24;

/// What a kind of image chooses.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// First bytes of an image.
    pub magic: [u8; 8],
    /// Version of the format; a decoder refuses every other.
    pub version: u32,
    /// Headers, payloads and bodies end at multiples of so many bytes.
    pub block: usize,
    /// Most bytes of the header's payload.
    pub header_max: usize,
    /// How many totals the end has.
    pub totals: usize,
}

impl Format {
    /// Bytes that a header or record takes with a payload of so many bytes, without its body.
    pub const fn framed_bytes(&self, payload: usize) -> usize {
        (HEAD_BYTES + payload).next_multiple_of(self.block)
    }

    /// Bytes of the payload of the end.
    pub(crate) const fn end_payload(&self) -> usize {
        8 * (2 + self.totals)
    }

    /// Bytes that the end takes: the last bytes of every image.
    pub const fn end_bytes(&self) -> usize {
        self.framed_bytes(self.end_payload())
    }
}

/// What stands before the payload of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What the record is: [`END`], or one of its kind of image.
    pub kind: u32,
    /// Bytes of the payload.
    pub payload: usize,
    /// Which record of the image it is, from 0.
    pub index: u64,
    /// Bytes of the body that follows the payload.
    pub body: u64,
    pub(crate) sum: u64,
}

impl Head {
    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES]) -> Self {
        Self {
            kind: word(bytes, 0),
            payload: word(bytes, 4) as usize,
            index: long(bytes, 8),
            body: long(bytes, 16),
            sum: long(bytes, SUM_AT),
        }
    }
}

/// What the end of an image says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The image's id.
    pub id: ImageId,
    /// The image that it says the same as: the last of a chain that was collapsed into it.
    pub stands_for: Option<ImageId>,
    /// Totals, as many as the format has.
    pub totals: Vec<u64>,
    /// Records before the end.
    pub records: u64,
}

impl End {
    pub(crate) fn of(payload: &[u8], records: u64) -> Result<Self, PartError> {
        let mut words = payload.chunks_exact(8).map(|word| long(word, 0));
        let mut next = || words.next().unwrap_or_default();
        let (id, stands_for) = (next(), next());
        Ok(Self {
            id: ImageId::new(id).ok_or(PartError::Damaged("an image without an id"))?,
            stands_for: ImageId::new(stands_for),
            totals: words.collect(),
            records,
        })
    }
}

/// What is wrong with a part of an image. Who decodes knows the image's name and the part's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// It is not that kind of image.
    #[error("wrong first bytes")]
    Magic,
    /// It is, but of another version.
    #[error("an image of version {found}, and version {read} is read")]
    Version {
        /// The version that it names.
        found: u32,
        /// The version that is read.
        read: u32,
    },
    /// It does not match a checksum, or makes no sense where it is.
    #[error("{0}")]
    Damaged(&'static str),
}

/// The checksum of a part of a body.
pub fn hash(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The checksum of a header or record: its first 24 bytes, and its payload with padding.
pub(crate) fn checksum(head: &[u8], payload: &[u8]) -> u64 {
    xxh3_64_with_seed(payload, xxh3_64(&head[..SUM_AT]))
}

/// Puts the checksum into a header or record that has everything else; it is returned, too.
pub(crate) fn seal(framed: &mut [u8]) -> u64 {
    let (head, payload) = framed.split_at_mut(HEAD_BYTES);
    let sum = checksum(head, payload);
    put_long(head, SUM_AT, sum);
    sum
}

/// The checksum that stands in a header or record.
pub(crate) fn stored_sum(head: &[u8]) -> u64 {
    long(head, SUM_AT)
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(crate) fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

pub(crate) fn put_word(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

pub(crate) fn put_long(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}
