//! What the header, the batches and the end of an image say: from typed values to bytes and back, on top of the
//! grammar of all images ([`snaprig_image`]). No I/O.
//!
//! What must stay true: what is decoded here is canonical. A length is checked before anybody
//! reads or allocates by it, and whatever bytes are accepted, encoding gives them again.

use serde::{Deserialize, Serialize};
use snaprig_image::{END, Encoder, End, Format, HEAD_BYTES, Head, ImageId};

use super::{CHUNK_MAX, Header, PAGE, Run, Summary, Totals, VERSION};

/// The kind of a record that is a batch: its payload is a list of chunks, its body their stored bytes.
const BATCH: u32 = u32::from_le_bytes(*b"BTCH");
/// Bytes of a block.
pub const BLOCK: usize = PAGE as usize;
/// Most bytes of an image's header.
const HEADER_MAX: usize = 16 * BLOCK;
/// Most bytes of a batch before its body.
pub const LIST_MAX: usize = 16 * BLOCK;
/// Bytes of an entry of the list.
const CHUNK: usize = 40;
/// Most chunks of a batch.
pub const CHUNKS_MAX: usize = (LIST_MAX - HEAD_BYTES) / CHUNK;

/// How an image of processes is laid out.
pub static FORMAT: Format = Format {
    magic: *b"SNAPCKPT",
    version: VERSION,
    block: BLOCK,
    header_max: HEADER_MAX - HEAD_BYTES,
    totals: 7,
};

/// What a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pages, and whether they are compressed.
    Pages { zstd: bool },
    /// Pages that are zero.
    Zeroes,
    /// Pages that the parent has, or that were here before, and that are no more.
    Gone,
    /// State, whether it is compressed, and whether it is the last of its section.
    State { zstd: bool, last: bool },
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Self::Pages { zstd } => 1 + u32::from(zstd),
            Self::Zeroes => 3,
            Self::Gone => 4,
            Self::State { zstd, last } => 5 + u32::from(last) + 8 * u32::from(zstd),
        }
    }

    fn of(number: u32) -> Option<Self> {
        Some(match number {
            1 | 2 => Self::Pages { zstd: number == 2 },
            3 => Self::Zeroes,
            4 => Self::Gone,
            5 | 6 | 13 | 14 => Self::State {
                zstd: number > 8,
                last: number.is_multiple_of(2),
            },
            _ => return None,
        })
    }

    /// Whether it has stored bytes.
    pub fn stores(self) -> bool {
        !matches!(self, Self::Zeroes | Self::Gone)
    }

    /// Whether what it stores is compressed.
    pub fn zstd(self) -> bool {
        matches!(
            self,
            Self::Pages { zstd: true } | Self::State { zstd: true, .. }
        )
    }
}

/// An entry of a batch's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub kind: Kind,
    /// Of state: the number of its section; and its address is the offset there.
    pub run: Run,
    /// Whole blocks.
    pub stored: u64,
    pub hash: u64,
}

impl Chunk {
    /// Counts it.
    pub fn count(&self, totals: &mut Totals) {
        totals.chunks += 1;
        let bytes = self.run.bytes;
        match self.kind {
            Kind::Pages { .. } => {
                totals.page_bytes += bytes;
                totals.stored_bytes += self.stored;
            }
            Kind::Zeroes => totals.zero_bytes = totals.zero_bytes.saturating_add(bytes),
            Kind::Gone => totals.gone_bytes = totals.gone_bytes.saturating_add(bytes),
            Kind::State { .. } => totals.state_bytes += bytes,
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        let Run { address, bytes, .. } = self.run;
        if bytes == 0 || address.checked_add(bytes).is_none() {
            return Err("a chunk of an impossible length");
        }
        let whole = (address | bytes).is_multiple_of(PAGE);
        if !whole && !matches!(self.kind, Kind::State { .. }) {
            return Err("a chunk that is not of whole pages");
        }
        if !self.kind.stores() {
            return match (self.stored, self.hash) {
                (0, 0) => Ok(()),
                _ => Err("a chunk with bytes that should have none"),
            };
        }
        if bytes > CHUNK_MAX as u64 {
            return Err("a chunk of an impossible length");
        }
        let blocks = bytes.next_multiple_of(PAGE);
        let sound = match self.kind.zstd() {
            true => self.stored.is_multiple_of(PAGE) && (PAGE..blocks).contains(&self.stored),
            false => self.stored == blocks,
        };
        match sound {
            true => Ok(()),
            false => Err("a chunk of an impossible length"),
        }
    }
}

/// So many bytes, rounded up to whole blocks.
pub fn blocks(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK)
}

/// Bytes of a batch of so many chunks, without its body.
pub fn list_bytes(chunks: usize) -> usize {
    FORMAT.framed_bytes(CHUNK * chunks)
}

/// What the payload of a header has.
#[derive(Serialize, Deserialize)]
struct Front {
    kernel: String,
    page_bytes: u32,
    cpu_features: Vec<String>,
    round: u64,
}

/// An encoder of an image, and the image's header; none: it does not fit.
pub fn encode_header(header: &Header) -> Option<(Encoder, Vec<u8>)> {
    let Header {
        kernel,
        page_bytes,
        cpu_features,
        round,
        parent,
    } = header.clone();
    let front = Front {
        kernel,
        page_bytes,
        cpu_features,
        round,
    };
    Encoder::start(&FORMAT, parent, &postcard::to_allocvec(&front).ok()?)
}

/// The header with this parent and payload.
pub fn decode_header(parent: Option<ImageId>, payload: &[u8]) -> Result<Header, &'static str> {
    match postcard::take_from_bytes(payload) {
        Ok((front, [])) => {
            let Front {
                kernel,
                page_bytes,
                cpu_features,
                round,
            } = front;
            Ok(Header {
                kernel,
                page_bytes,
                cpu_features,
                round,
                parent,
            })
        }
        _ => Err("a header that nobody writes"),
    }
}

/// Makes the next batch of these chunks, whose bodies follow, in `to`, of [`list_bytes`].
pub fn encode_list(encoder: &mut Encoder, chunks: &[Chunk], to: &mut [u8]) {
    assert!(chunks.len() <= CHUNKS_MAX);
    let payload = CHUNK * chunks.len();
    let list = &mut to[HEAD_BYTES..HEAD_BYTES + payload];
    for (to, chunk) in list.chunks_exact_mut(CHUNK).zip(chunks) {
        to[..4].copy_from_slice(&chunk.kind.number().to_le_bytes());
        to[4..8].copy_from_slice(&chunk.run.space.to_le_bytes());
        to[8..16].copy_from_slice(&chunk.run.address.to_le_bytes());
        to[16..24].copy_from_slice(&chunk.run.bytes.to_le_bytes());
        to[24..32].copy_from_slice(&chunk.stored.to_le_bytes());
        to[32..].copy_from_slice(&chunk.hash.to_le_bytes());
    }
    let data = chunks.iter().map(|chunk| chunk.stored).sum();
    encoder.record(BATCH, payload, data, to);
}

/// Whether what this head begins can be: a batch of possible length, or the end.
pub fn check_head(head: &Head) -> Result<(), &'static str> {
    match head.kind {
        END => Ok(()),
        BATCH => {
            let chunks = head.payload / CHUNK;
            if !head.payload.is_multiple_of(CHUNK) || !(1..=CHUNKS_MAX).contains(&chunks) {
                return Err("an impossible number of chunks");
            }
            match head.body <= CHUNK_MAX as u64 {
                true => Ok(()),
                false => Err("a batch of an impossible length"),
            }
        }
        _ => Err("neither a batch nor the end"),
    }
}

/// The chunks of a batch.
pub fn decode_list(head: &Head, payload: &[u8]) -> Result<Vec<Chunk>, &'static str> {
    let mut chunks = Vec::with_capacity(payload.len() / CHUNK);
    for entry in payload.chunks_exact(CHUNK) {
        let chunk = Chunk {
            kind: Kind::of(word(entry, 0)).ok_or("a chunk of no known kind")?,
            run: Run {
                space: word(entry, 4),
                address: long(entry, 8),
                bytes: long(entry, 16),
            },
            stored: long(entry, 24),
            hash: long(entry, 32),
        };
        chunk.check()?;
        chunks.push(chunk);
    }
    // None of them is longer than a chunk can be.
    let stored: u64 = chunks.iter().map(|chunk| chunk.stored).sum();
    match stored == head.body {
        true => Ok(chunks),
        false => Err("a batch of an impossible length"),
    }
}

fn words(totals: &Totals) -> [u64; 7] {
    let Totals {
        file_bytes,
        chunks,
        state_bytes,
        page_bytes,
        stored_bytes,
        zero_bytes,
        gone_bytes,
    } = *totals;
    [
        file_bytes,
        chunks,
        state_bytes,
        page_bytes,
        stored_bytes,
        zero_bytes,
        gone_bytes,
    ]
}

/// Writes the end of an image into this block; what the image is then.
pub fn encode_end(
    encoder: &mut Encoder,
    stands_for: Option<ImageId>,
    totals: Totals,
    to: &mut [u8],
) -> Summary {
    Summary {
        id: encoder.end(stands_for, &words(&totals), to),
        stands_for,
        totals,
    }
}

/// What the image is that ends so.
pub fn summary(end: &End) -> Summary {
    let mut numbers = end.totals.iter().copied();
    let mut number = || numbers.next().unwrap_or_default();
    Summary {
        id: end.id,
        stands_for: end.stands_for,
        totals: Totals {
            file_bytes: number(),
            chunks: number(),
            state_bytes: number(),
            page_bytes: number(),
            stored_bytes: number(),
            zero_bytes: number(),
            gone_bytes: number(),
        },
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
