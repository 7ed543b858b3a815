//! The process image as a stream of bytes: written once, front to back, and read the same way.
//!
//! ```text
//! stream := magic (8 bytes) version (u32) zero (u32)  chunk*
//! chunk  := kind (u32) length (u32) checksum (u64)  payload (length bytes)
//! kinds    1 process: what is not memory (postcard); exactly one, first
//!          4 link:    id (u64), parent (u64), then what is gone: (address, pages) (u64 each);
//!                     exactly one, second
//!          2 pages:   address (u64), then whole pages
//!          3 end:     bytes of pages in the stream (u64); exactly one, last
//! ```
//! Integers are little-endian. The checksum is XXH3 over the payload, seeded with the chunk's index
//! (from bit 3 on) and kind, so that a chunk that was flipped, moved, repeated or left out is noticed.
//!
//! ```text
//! decoder:  Header --> Process --> Link --> Pages --(end)--> Complete
//! ```
//! An image whose parent is 0 is whole. Any other is an increment: it has the pages that differ
//! from those of the image with that id ([`super::chain`]).
//!
//! What must stay true: a decoder believes nothing that it has not checked, holds at most one
//! chunk, and names the offset in the stream of the first thing that is wrong.

use snaprig_card_memory::PAGE;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// First bytes of an image.
pub const MAGIC: [u8; 8] = *b"SNAPPROC";
/// Version of the format: a reader refuses every other.
pub const VERSION: u32 = 5;
/// Most bytes of pages in one chunk.
pub const PAGES_MAX: usize = 1 << 20;
/// Most bytes of the process chunk.
const PROCESS_MAX: usize = 16 << 20;
/// Most runs of pages that an increment takes away.
pub const GONE_MAX: usize = 1 << 20;
const STREAM_HEADER_BYTES: usize = 16;
const CHUNK_HEADER_BYTES: usize = 16;

const PROCESS: u32 = 1;
const PAGES: u32 = 2;
const END: u32 = 3;
const LINK: u32 = 4;
/// Bytes of a chunk of pages that stand before the pages.
pub const PAGES_AT: usize = CHUNK_HEADER_BYTES + 8;

/// Why a stream is not an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// It does not start with [`MAGIC`].
    #[error("not a process image (wrong first bytes)")]
    Magic,
    /// It was written by another version.
    #[error("process image of version {found}, this card reads version {VERSION}")]
    Version {
        /// The version it names.
        found: u32,
    },
    /// A chunk does not match its checksum, or makes no sense where it is.
    #[error("process image damaged in the chunk at byte {offset}: {what}")]
    Damaged {
        /// Where the chunk starts.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// It ends before its end.
    #[error("process image truncated at byte {offset}")]
    Truncated {
        /// Where it ends.
        offset: u64,
    },
}

/// What is to be written is more than a [`Decoder`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is not memory takes {bytes} bytes of a process image, at most {PROCESS_MAX} fit")]
pub struct TooLarge {
    /// Bytes of the process chunk.
    pub bytes: usize,
}

/// Where an image stands in a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Of this image. Not 0.
    pub id: u64,
    /// Of the image whose pages it builds on; 0: of none.
    pub parent: u64,
    /// Pages of the parent's that are no more: address of the first, and how many; ascending.
    pub gone: Vec<(u64, u64)>,
}

/// Writes an image, and only one that a [`Decoder`] takes.
#[derive(Default)]
pub struct Encoder {
    index: u64,
    page_bytes: u64,
}

impl Encoder {
    /// The stream's first bytes: its header, the process chunk and the link.
    pub fn start(&mut self, process: &[u8], link: &Link) -> Result<Vec<u8>, TooLarge> {
        let gone = link.gone.len() * 16;
        if process.len() > PROCESS_MAX || link.gone.len() > GONE_MAX {
            return Err(TooLarge {
                bytes: process.len() + gone,
            });
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        self.chunk(&mut bytes, PROCESS, process);
        let mut words = vec![link.id, link.parent];
        words.extend(
            link.gone
                .iter()
                .flat_map(|(address, pages)| [address, pages]),
        );
        let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.chunk(&mut bytes, LINK, &words);
        Ok(bytes)
    }

    /// Makes `chunk` a run of whole pages from page-aligned `address`. They are in it already, behind
    /// [`PAGES_AT`] bytes of room: at least one, at most [`PAGES_MAX`] bytes.
    pub fn pages(&mut self, chunk: &mut [u8], address: u64) {
        let len = chunk.len() - PAGES_AT;
        assert!((1..=PAGES_MAX).contains(&len));
        assert!((address | len as u64).is_multiple_of(PAGE));
        self.page_bytes += len as u64;
        chunk[CHUNK_HEADER_BYTES..PAGES_AT].copy_from_slice(&address.to_le_bytes());
        let header = self.header(PAGES, &chunk[CHUNK_HEADER_BYTES..]);
        chunk[..CHUNK_HEADER_BYTES].copy_from_slice(&header);
    }

    /// The stream's last bytes.
    pub fn end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let total = self.page_bytes;
        self.chunk(&mut bytes, END, &total.to_le_bytes());
        bytes
    }

    fn chunk(&mut self, to: &mut Vec<u8>, kind: u32, payload: &[u8]) {
        to.extend_from_slice(&self.header(kind, payload));
        to.extend_from_slice(payload);
    }

    fn header(&mut self, kind: u32, payload: &[u8]) -> [u8; CHUNK_HEADER_BYTES] {
        let mut header = [0; CHUNK_HEADER_BYTES];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[8..].copy_from_slice(&checksum(self.index, kind, payload).to_le_bytes());
        self.index += 1;
        header
    }
}

/// What a decoder found next.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// The process chunk's payload.
    Process(&'a [u8]),
    /// The link's.
    Link(Link),
    /// Pages and where they belong.
    Pages {
        /// Page-aligned address of the first.
        address: u64,
        /// Their contents.
        bytes: &'a [u8],
    },
    /// The image is complete.
    End,
}

enum State {
    Header,
    Process,
    Link,
    Pages,
    Complete,
}

/// Reads an image from bytes as they come.
pub struct Decoder {
    state: State,
    /// The chunk at hand, and room for more.
    buffer: Vec<u8>,
    /// Bytes of it that are there.
    len: usize,
    /// It has been handed out.
    taken: bool,
    /// Offset in the stream of `buffer[0]`.
    offset: u64,
    index: u64,
    page_bytes: u64,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            state: State::Header,
            buffer: Vec::new(),
            len: 0,
            taken: false,
            offset: 0,
            index: 0,
            page_bytes: 0,
        }
    }
}

impl Decoder {
    /// How many more bytes the next piece needs. Zero once the image is complete.
    pub fn wants(&self) -> usize {
        let has = if self.taken { 0 } else { self.len };
        let need = match self.state {
            State::Complete => 0,
            State::Header => STREAM_HEADER_BYTES,
            _ if has < CHUNK_HEADER_BYTES => CHUNK_HEADER_BYTES,
            _ => CHUNK_HEADER_BYTES + self.word(4) as usize,
        };
        need.saturating_sub(has)
    }

    /// Room for the next bytes of the stream, at most `max` and [`Decoder::wants`] of them. Then
    /// [`Decoder::filled`].
    pub fn room(&mut self, max: usize) -> &mut [u8] {
        let wants = self.wants().min(max);
        if std::mem::take(&mut self.taken) {
            self.offset += self.len as u64;
            self.len = 0;
        }
        let end = self.len + wants;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        &mut self.buffer[self.len..end]
    }

    /// So many bytes have been put into the room; a piece if one is complete.
    pub fn filled(&mut self, count: usize) -> Result<Option<Piece<'_>>, ImageError> {
        assert!(count <= self.wants() && self.len + count <= self.buffer.len());
        self.len += count;
        if matches!(self.state, State::Header) {
            return self.header();
        }
        if self.len < CHUNK_HEADER_BYTES {
            return Ok(None);
        }
        self.check_length()?;
        if self.wants() > 0 {
            return Ok(None);
        }
        self.piece().map(Some)
    }

    /// Takes the next bytes of the stream, at most [`Decoder::wants`]; a piece if one is complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Piece<'_>>, ImageError> {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.filled(bytes.len())
    }

    /// The stream is at its end: an error unless the image is complete.
    pub fn finish(&self) -> Result<(), ImageError> {
        match self.state {
            State::Complete => Ok(()),
            _ => Err(ImageError::Truncated {
                offset: self.offset + self.len as u64,
            }),
        }
    }

    fn header(&mut self) -> Result<Option<Piece<'_>>, ImageError> {
        if self.wants() > 0 {
            return Ok(None);
        }
        if self.buffer[..8] != MAGIC {
            return Err(ImageError::Magic);
        }
        match self.word(8) {
            VERSION if self.word(12) == 0 => {}
            VERSION => return Err(self.damaged("reserved bytes are not zero")),
            found => return Err(ImageError::Version { found }),
        }
        self.taken = true;
        self.state = State::Process;
        Ok(None)
    }

    /// A length is checked before a byte of the payload is read: it bounds what we hold.
    fn check_length(&self) -> Result<(), ImageError> {
        let len = self.word(4) as usize;
        let sound = match (self.word(0), &self.state) {
            (PROCESS, State::Process) => len <= PROCESS_MAX,
            (LINK, State::Link) => len >= 16 && len.is_multiple_of(16) && len / 16 <= GONE_MAX + 1,
            (PAGES, State::Pages) => {
                len > 8 && len <= 8 + PAGES_MAX && (len as u64 - 8).is_multiple_of(PAGE)
            }
            (END, State::Pages) => len == 8,
            _ => return Err(self.damaged("a chunk that does not belong here")),
        };
        if sound {
            Ok(())
        } else {
            Err(self.damaged("an impossible length"))
        }
    }

    fn piece(&mut self) -> Result<Piece<'_>, ImageError> {
        let kind = self.word(0);
        if checksum(self.index, kind, &self.buffer[CHUNK_HEADER_BYTES..self.len]) != self.long(8) {
            return Err(self.damaged("its checksum differs"));
        }
        let link = match kind {
            LINK => Some(self.link()?),
            PAGES if !self.long(CHUNK_HEADER_BYTES).is_multiple_of(PAGE) => {
                return Err(self.damaged("pages at an odd address"));
            }
            PAGES => {
                self.page_bytes += (self.len - PAGES_AT) as u64;
                None
            }
            END if self.long(CHUNK_HEADER_BYTES) != self.page_bytes => {
                return Err(self.damaged("pages are missing"));
            }
            _ => None,
        };
        self.index += 1;
        self.taken = true;
        self.state = match kind {
            PROCESS => State::Link,
            LINK | PAGES => State::Pages,
            _ => State::Complete,
        };
        Ok(match (kind, link) {
            (PROCESS, _) => Piece::Process(&self.buffer[CHUNK_HEADER_BYTES..self.len]),
            (_, Some(link)) => Piece::Link(link),
            (PAGES, _) => Piece::Pages {
                address: self.long(CHUNK_HEADER_BYTES),
                bytes: &self.buffer[PAGES_AT..self.len],
            },
            _ => Piece::End,
        })
    }

    fn link(&self) -> Result<Link, ImageError> {
        let mut pairs = (CHUNK_HEADER_BYTES..self.len)
            .step_by(16)
            .map(|at| (self.long(at), self.long(at + 8)));
        let (id, parent) = pairs.next().unwrap_or_default();
        let gone: Vec<_> = pairs.collect();
        let mut from = 0;
        for &(address, pages) in &gone {
            let end = pages
                .checked_mul(PAGE)
                .and_then(|bytes| address.checked_add(bytes));
            from = match end {
                Some(end) if address >= from && address.is_multiple_of(PAGE) => end,
                _ => return Err(self.damaged("what is gone is not in order")),
            };
        }
        if id == 0 || parent == 0 && !gone.is_empty() {
            return Err(self.damaged("an impossible link"));
        }
        Ok(Link { id, parent, gone })
    }

    fn damaged(&self, what: &'static str) -> ImageError {
        ImageError::Damaged {
            offset: self.offset,
            what,
        }
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.buffer[at..at + 4].try_into().expect("4 bytes"))
    }

    fn long(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.buffer[at..at + 8].try_into().expect("8 bytes"))
    }
}

fn checksum(index: u64, kind: u32, payload: &[u8]) -> u64 {
    // The length is in the hash already.
    xxh3_64_with_seed(payload, index << 3 | u64::from(kind))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn link() -> Link {
        Link {
            id: 2,
            parent: 1,
            gone: vec![(0x1000, 3), (0x8000, 1)],
        }
    }

    fn image() -> Vec<u8> {
        let mut encoder = Encoder::default();
        let mut bytes = encoder.start(b"the process", &link()).unwrap();
        for (address, byte, len) in [(0x40_0000, 7, 8192), (0x7000_0000, 9, 4096)] {
            let mut chunk = vec![byte; PAGES_AT + len];
            encoder.pages(&mut chunk, address);
            bytes.extend_from_slice(&chunk);
        }
        bytes.extend(encoder.end());
        bytes
    }

    /// A piece, in words.
    fn told(piece: Piece) -> String {
        match piece {
            Piece::Process(bytes) => format!("process of {} bytes", bytes.len()),
            Piece::Link(link) => format!("{link:?}"),
            Piece::Pages { address, bytes } => {
                format!("{:#x}: {} times {}", address, bytes.len(), bytes[0])
            }
            Piece::End => "end".into(),
        }
    }

    /// Feeds `bytes` in parts of at most `step`, and collects the pieces.
    fn read(mut bytes: &[u8], step: usize) -> Result<Vec<String>, ImageError> {
        let (mut decoder, mut pieces) = (Decoder::default(), Vec::new());
        while decoder.wants() > 0 && !bytes.is_empty() {
            let (now, later) = bytes.split_at(decoder.wants().min(step).min(bytes.len()));
            pieces.extend(decoder.push(now)?.map(told));
            bytes = later;
        }
        decoder.finish()?;
        Ok(pieces)
    }

    #[test]
    fn an_image_comes_back_whatever_the_size_of_the_reads() {
        for step in [1, 7, 4096, usize::MAX] {
            let pieces = read(&image(), step).unwrap();
            let link = format!("{:?}", link());
            let expected = [
                "process of 11 bytes",
                &link,
                "0x400000: 8192 times 7",
                "0x70000000: 4096 times 9",
                "end",
            ];
            assert_eq!(pieces, expected);
        }
    }

    #[test]
    fn every_truncation_is_noticed() {
        let image = image();
        for len in 0..image.len() {
            assert!(read(&image[..len], usize::MAX).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_written() {
        let most = vec![7; PROCESS_MAX];
        let mut encoder = Encoder::default();
        let mut image = encoder.start(&most, &link()).unwrap();
        image.extend(encoder.end());
        let pieces = read(&image, usize::MAX).unwrap();
        assert_eq!(pieces[0], format!("process of {PROCESS_MAX} bytes"));
        let bytes = PROCESS_MAX + 1;
        let whole = Link {
            id: 1,
            ..Link::default()
        };
        let refused = Encoder::default().start(&vec![7; bytes], &whole);
        assert_eq!(refused, Err(TooLarge { bytes }));
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_noticed(at in 0..image().len(), bit in 0..8u8) {
            let mut image = image();
            image[at] ^= 1 << bit;
            prop_assert!(read(&image, usize::MAX).is_err());
        }

        #[test]
        fn any_bytes_are_taken_without_panic(bytes: Vec<u8>, step in 1..100usize) {
            let mut stream = MAGIC.to_vec();
            stream.extend_from_slice(&VERSION.to_le_bytes());
            stream.extend_from_slice(&[0; 4]);
            stream.extend(bytes);
            prop_assert!(read(&stream, step).is_err());
        }
    }
}
