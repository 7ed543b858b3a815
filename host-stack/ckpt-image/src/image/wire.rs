//! Blocks of an image: from numbers to bytes and back. No I/O.
//!
//! What must stay true: what is decoded here is canonical. A length is checked before anybody
//! reads or allocates by it, and whatever bytes are accepted, encoding gives them again.

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use super::{CHUNK_MAX, Header, ImageId, PAGE, Run, Summary, Totals, VERSION};

const MAGIC: [u8; 8] = *b"SNAPCKPT";
const BATCH: u32 = u32::from_le_bytes(*b"BTCH");
const TRAILER: u32 = u32::from_le_bytes(*b"TRLR");
/// Bytes of a block.
pub const BLOCK: usize = PAGE as usize;
/// Most bytes of an image's header.
pub const HEADER_MAX: usize = 16 * BLOCK;
/// Most bytes of a batch's chunk list.
pub const LIST_MAX: usize = 16 * BLOCK;
const HEADER_FIXED: usize = 24;
const LIST_FIXED: usize = 32;
const CHUNK: usize = 40;
/// Most chunks of a batch.
pub const CHUNKS_MAX: usize = (LIST_MAX - LIST_FIXED) / CHUNK;
/// Where checksums are, in header, list and trailer.
const HEADER_SUM: usize = 16;
const SUM: usize = 24;

/// What is wrong with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It is not that kind of file.
    Magic,
    /// It is, but of another version.
    Version(u32),
    /// This.
    Damaged(&'static str),
}

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

/// Bytes of the list of so many chunks.
pub fn list_bytes(chunks: usize) -> usize {
    blocks(LIST_FIXED + CHUNK * chunks)
}

/// The blocks of an image's header, and their checksum; none: it does not fit.
pub fn encode_header(header: &Header) -> Option<(Vec<u8>, u64)> {
    let mut bytes = vec![0; HEADER_FIXED];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes.extend(postcard::to_allocvec(header).ok()?);
    bytes.resize(blocks(bytes.len()), 0);
    if bytes.len() > HEADER_MAX {
        return None;
    }
    let len = bytes.len() as u32;
    bytes[12..16].copy_from_slice(&len.to_le_bytes());
    let sum = xxh3_64(&bytes);
    bytes[HEADER_SUM..HEADER_FIXED].copy_from_slice(&sum.to_le_bytes());
    Some((bytes, sum))
}

/// How long the header is that starts with this block.
pub fn header_bytes(block: &[u8; BLOCK]) -> Result<usize, Wrong> {
    if block[..8] != MAGIC {
        return Err(Wrong::Magic);
    }
    match word(block, 8) {
        VERSION => length(word(block, 12) as usize, HEADER_MAX),
        found => Err(Wrong::Version(found)),
    }
}

/// A header and its checksum.
pub fn decode_header(bytes: &mut [u8]) -> Result<(Header, u64), Wrong> {
    let sum = take_sum(bytes, HEADER_SUM);
    if xxh3_64(bytes) != sum {
        return Err(Wrong::Damaged("the header's checksum differs"));
    }
    let made_by_another = Wrong::Damaged("a header that nobody writes");
    let (header, rest) =
        postcard::take_from_bytes(&bytes[HEADER_FIXED..]).map_err(|_| made_by_another.clone())?;
    match rest.len() < BLOCK && rest.iter().all(|byte| *byte == 0) {
        true => Ok((header, sum)),
        false => Err(made_by_another),
    }
}

/// Writes the list of batch `index`, whose data follow, into `to`, of [`list_bytes`]; its checksum.
pub fn encode_list(index: u64, chunks: &[Chunk], to: &mut [u8]) -> u64 {
    assert!(chunks.len() <= CHUNKS_MAX && to.len() == list_bytes(chunks.len()));
    let data: u64 = chunks.iter().map(|chunk| chunk.stored).sum();
    to[..4].copy_from_slice(&BATCH.to_le_bytes());
    to[4..8].copy_from_slice(&(chunks.len() as u32).to_le_bytes());
    to[8..16].copy_from_slice(&index.to_le_bytes());
    to[16..24].copy_from_slice(&data.to_le_bytes());
    to[SUM..LIST_FIXED].fill(0);
    let (list, padding) = to[LIST_FIXED..].split_at_mut(CHUNK * chunks.len());
    for (to, chunk) in list.chunks_exact_mut(CHUNK).zip(chunks) {
        to[..4].copy_from_slice(&chunk.kind.number().to_le_bytes());
        to[4..8].copy_from_slice(&chunk.run.space.to_le_bytes());
        to[8..16].copy_from_slice(&chunk.run.address.to_le_bytes());
        to[16..24].copy_from_slice(&chunk.run.bytes.to_le_bytes());
        to[24..32].copy_from_slice(&chunk.stored.to_le_bytes());
        to[32..].copy_from_slice(&chunk.hash.to_le_bytes());
    }
    padding.fill(0);
    let sum = xxh3_64_with_seed(to, index);
    to[SUM..LIST_FIXED].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// What a block after the header starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A batch, whose list has so many bytes.
    List(usize),
    /// The trailer, which is this block.
    Trailer,
}

/// What this block starts.
pub fn next(block: &[u8; BLOCK]) -> Result<Next, Wrong> {
    match word(block, 0) {
        TRAILER => Ok(Next::Trailer),
        BATCH => {
            let chunks = word(block, 4) as usize;
            match (1..=CHUNKS_MAX).contains(&chunks) {
                true => Ok(Next::List(list_bytes(chunks))),
                false => Err(Wrong::Damaged("an impossible number of chunks")),
            }
        }
        _ => Err(Wrong::Damaged("neither a batch nor the trailer")),
    }
}

/// The chunks of batch `index`, and the list's checksum.
pub fn decode_list(bytes: &mut [u8], index: u64) -> Result<(Vec<Chunk>, u64), Wrong> {
    let sum = take_sum(bytes, SUM);
    if xxh3_64_with_seed(bytes, index) != sum {
        return Err(Wrong::Damaged("the checksum of its list differs"));
    }
    let (count, data) = (word(bytes, 4) as usize, long(bytes, 16));
    let (list, padding) = bytes[LIST_FIXED..].split_at(CHUNK * count);
    if long(bytes, 8) != index || padding.iter().any(|byte| *byte != 0) {
        return Err(Wrong::Damaged("a list that nobody writes"));
    }
    let mut chunks = Vec::with_capacity(count);
    for entry in list.chunks_exact(CHUNK) {
        let chunk = Chunk {
            kind: Kind::of(word(entry, 0)).ok_or(Wrong::Damaged("a chunk of no known kind"))?,
            run: Run {
                space: word(entry, 4),
                address: long(entry, 8),
                bytes: long(entry, 16),
            },
            stored: long(entry, 24),
            hash: long(entry, 32),
        };
        chunk.check().map_err(Wrong::Damaged)?;
        chunks.push(chunk);
    }
    let stored: u64 = chunks.iter().map(|chunk| chunk.stored).sum();
    match stored == data && stored <= CHUNK_MAX as u64 {
        true => Ok((chunks, sum)),
        false => Err(Wrong::Damaged("a batch of an impossible length")),
    }
}

/// What becomes the id of an image as its parts go by.
#[derive(Clone, Default)]
pub struct Digest(Xxh3);

impl Digest {
    /// The checksum of the next part.
    pub fn add(&mut self, sum: u64) {
        self.0.update(&sum.to_le_bytes());
    }

    /// The image's id.
    pub fn id(&self) -> ImageId {
        ImageId(self.0.digest().max(1))
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

/// The trailer of an image of so many batches.
pub fn encode_trailer(batches: u64, summary: &Summary) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..4].copy_from_slice(&TRAILER.to_le_bytes());
    let numbers = [batches, 0, summary.id.0];
    let numbers = numbers.into_iter().chain(words(&summary.totals));
    for (to, number) in block[8..].chunks_exact_mut(8).zip(numbers) {
        to.copy_from_slice(&number.to_le_bytes());
    }
    let sum = xxh3_64(&block);
    block[16..24].copy_from_slice(&sum.to_le_bytes());
    block
}

/// How many batches the image has, and what it is.
pub fn decode_trailer(block: &mut [u8; BLOCK]) -> Result<(u64, Summary), Wrong> {
    let sum = take_sum(block, 16);
    if xxh3_64(&*block) != sum {
        return Err(Wrong::Damaged("the trailer's checksum differs"));
    }
    let id = long(block, 24);
    let mut numbers = block[32..].chunks_exact(8).map(|word| long(word, 0));
    let mut number = || numbers.next().unwrap_or_default();
    let totals = Totals {
        file_bytes: number(),
        chunks: number(),
        state_bytes: number(),
        page_bytes: number(),
        stored_bytes: number(),
        zero_bytes: number(),
        gone_bytes: number(),
    };
    let sound = word(block, 0) == TRAILER && word(block, 4) == 0 && numbers.all(|word| word == 0);
    match sound && id != 0 {
        true => Ok((
            long(block, 8),
            Summary {
                id: ImageId(id),
                totals,
            },
        )),
        false => Err(Wrong::Damaged("a trailer that nobody writes")),
    }
}

fn length(bytes: usize, max: usize) -> Result<usize, Wrong> {
    match bytes.is_multiple_of(BLOCK) && (BLOCK..=max).contains(&bytes) {
        true => Ok(bytes),
        false => Err(Wrong::Damaged("a header of an impossible length")),
    }
}

/// A block's checksum covers zeroes in its own place.
fn take_sum(bytes: &mut [u8], at: usize) -> u64 {
    let sum = long(bytes, at);
    bytes[at..at + 8].fill(0);
    sum
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}
