//! The process image as a stream of bytes: written once, front to back, and read the same way.
//!
//! ```text
//! stream := magic (8 bytes) version (u32) zero (u32)  chunk*
//! chunk  := kind (u32) length (u32) checksum (u64)  payload (length bytes)
//! kinds    1 process: what is not memory (postcard); exactly one, first
//!          2 pages:   address (u64), then whole pages
//!          3 end:     bytes of pages in the stream (u64); exactly one, last
//! ```
//! Integers are little-endian. The checksum is XXH3 over the chunk's index, kind, length and
//! payload, so that a chunk that was flipped, moved, repeated or left out is noticed.
//!
//! ```text
//! decoder:  Header --> Process --> Pages --(end)--> Complete
//! ```
//!
//! What must stay true: a decoder believes nothing that it has not checked, holds at most one
//! chunk, and names the offset in the stream of the first thing that is wrong.

use xxhash_rust::xxh3::Xxh3;

use crate::memory::PAGE;

/// First bytes of an image.
pub const MAGIC: [u8; 8] = *b"SNAPPROC";
/// Version of the format: a reader refuses every other.
pub const VERSION: u32 = 3;
/// Most bytes of pages in one chunk.
pub const PAGES_MAX: usize = 1 << 20;
/// Most bytes of the process chunk.
const PROCESS_MAX: usize = 16 << 20;
const STREAM_HEADER_BYTES: usize = 16;
const CHUNK_HEADER_BYTES: usize = 16;

const PROCESS: u32 = 1;
const PAGES: u32 = 2;
const END: u32 = 3;

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

/// Writes an image, and only one that a [`Decoder`] takes.
#[derive(Default)]
pub struct Encoder {
    index: u64,
    page_bytes: u64,
}

impl Encoder {
    /// The stream's first bytes: its header and the process chunk.
    pub fn start(&mut self, process: &[u8]) -> Result<Vec<u8>, TooLarge> {
        if process.len() > PROCESS_MAX {
            return Err(TooLarge {
                bytes: process.len(),
            });
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        self.chunk(&mut bytes, PROCESS, &[process]);
        Ok(bytes)
    }

    /// A run of whole pages from page-aligned `address`: at least one, at most [`PAGES_MAX`] bytes.
    pub fn pages(&mut self, address: u64, pages: &[u8]) -> Vec<u8> {
        assert!((1..=PAGES_MAX).contains(&pages.len()));
        assert!((address | pages.len() as u64).is_multiple_of(PAGE));
        self.page_bytes += pages.len() as u64;
        let mut bytes = Vec::with_capacity(CHUNK_HEADER_BYTES + 8 + pages.len());
        self.chunk(&mut bytes, PAGES, &[&address.to_le_bytes(), pages]);
        bytes
    }

    /// The stream's last bytes.
    pub fn end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let total = self.page_bytes;
        self.chunk(&mut bytes, END, &[&total.to_le_bytes()]);
        bytes
    }

    fn chunk(&mut self, to: &mut Vec<u8>, kind: u32, payload: &[&[u8]]) {
        let len = payload.iter().map(|part| part.len()).sum::<usize>() as u32;
        to.extend_from_slice(&kind.to_le_bytes());
        to.extend_from_slice(&len.to_le_bytes());
        to.extend_from_slice(&checksum(self.index, kind, payload).to_le_bytes());
        for part in payload {
            to.extend_from_slice(part);
        }
        self.index += 1;
    }
}

/// What a decoder found next.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// The process chunk's payload.
    Process(Vec<u8>),
    /// Pages and where they belong.
    Pages {
        /// Page-aligned address of the first.
        address: u64,
        /// Their contents.
        bytes: Vec<u8>,
    },
    /// The image is complete.
    End,
}

enum State {
    Header,
    Process,
    Pages,
    Complete,
}

/// Reads an image from bytes as they come.
pub struct Decoder {
    state: State,
    buffer: Vec<u8>,
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
            offset: 0,
            index: 0,
            page_bytes: 0,
        }
    }
}

impl Decoder {
    /// How many more bytes the next piece needs: read at most this many, then [`Decoder::push`].
    /// Zero once the image is complete.
    pub fn wants(&self) -> usize {
        let need = match self.state {
            State::Complete => 0,
            State::Header => STREAM_HEADER_BYTES,
            _ if self.buffer.len() < CHUNK_HEADER_BYTES => CHUNK_HEADER_BYTES,
            _ => CHUNK_HEADER_BYTES + self.word(4) as usize,
        };
        need.saturating_sub(self.buffer.len())
    }

    /// Takes the next bytes of the stream, at most [`Decoder::wants`]; a piece if one is complete.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Piece>, ImageError> {
        assert!(bytes.len() <= self.wants());
        self.buffer.extend_from_slice(bytes);
        if matches!(self.state, State::Header) {
            return self.header();
        }
        if self.buffer.len() < CHUNK_HEADER_BYTES {
            return Ok(None);
        }
        self.check_length()?;
        if self.wants() > 0 {
            return Ok(None);
        }
        self.piece().map(Some)
    }

    /// The stream is at its end: an error unless the image is complete.
    pub fn finish(&self) -> Result<(), ImageError> {
        match self.state {
            State::Complete => Ok(()),
            _ => Err(ImageError::Truncated {
                offset: self.offset + self.buffer.len() as u64,
            }),
        }
    }

    fn header(&mut self) -> Result<Option<Piece>, ImageError> {
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
        self.consume(STREAM_HEADER_BYTES, State::Process);
        Ok(None)
    }

    /// A length is checked before a byte of the payload is read: it bounds what we hold.
    fn check_length(&self) -> Result<(), ImageError> {
        let len = self.word(4) as usize;
        let sound = match (self.word(0), &self.state) {
            (PROCESS, State::Process) => len <= PROCESS_MAX,
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

    fn piece(&mut self) -> Result<Piece, ImageError> {
        let kind = self.word(0);
        let payload = self.buffer.split_off(CHUNK_HEADER_BYTES);
        if checksum(self.index, kind, &[&payload]) != self.long(8) {
            return Err(self.damaged("its checksum differs"));
        }
        self.index += 1;
        let chunk_bytes = CHUNK_HEADER_BYTES + payload.len();
        let (next, piece) = match kind {
            PROCESS => (State::Pages, Piece::Process(payload)),
            PAGES => {
                let (address, pages) = payload.split_at(8);
                let address = u64::from_le_bytes(address.try_into().expect("8 bytes"));
                if address % PAGE != 0 {
                    return Err(self.damaged("pages at an odd address"));
                }
                self.page_bytes += pages.len() as u64;
                (
                    State::Pages,
                    Piece::Pages {
                        address,
                        bytes: pages.to_vec(),
                    },
                )
            }
            _ => {
                let total = u64::from_le_bytes(payload.try_into().expect("8 bytes"));
                if total != self.page_bytes {
                    return Err(self.damaged("pages are missing"));
                }
                (State::Complete, Piece::End)
            }
        };
        self.consume(chunk_bytes, next);
        Ok(piece)
    }

    fn consume(&mut self, bytes: usize, next: State) {
        self.offset += bytes as u64;
        self.buffer.clear();
        self.state = next;
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

fn checksum(index: u64, kind: u32, payload: &[&[u8]]) -> u64 {
    let len = payload.iter().map(|part| part.len() as u64).sum::<u64>();
    let mut hash = Xxh3::new();
    hash.update(&index.to_le_bytes());
    hash.update(&kind.to_le_bytes());
    hash.update(&len.to_le_bytes());
    for part in payload {
        hash.update(part);
    }
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn image() -> Vec<u8> {
        let mut encoder = Encoder::default();
        let mut bytes = encoder.start(b"the process").unwrap();
        bytes.extend(encoder.pages(0x40_0000, &[7; 8192]));
        bytes.extend(encoder.pages(0x7000_0000, &[9; 4096]));
        bytes.extend(encoder.end());
        bytes
    }

    /// Feeds `bytes` in parts of at most `step`, and collects the pieces.
    fn read(mut bytes: &[u8], step: usize) -> Result<Vec<Piece>, ImageError> {
        let (mut decoder, mut pieces) = (Decoder::default(), Vec::new());
        while decoder.wants() > 0 && !bytes.is_empty() {
            let (now, later) = bytes.split_at(decoder.wants().min(step).min(bytes.len()));
            pieces.extend(decoder.push(now)?);
            bytes = later;
        }
        decoder.finish()?;
        Ok(pieces)
    }

    #[test]
    fn an_image_comes_back_whatever_the_size_of_the_reads() {
        for step in [1, 7, 4096, usize::MAX] {
            let pieces = read(&image(), step).unwrap();
            assert_eq!(pieces.len(), 4);
            assert_eq!(pieces[0], Piece::Process(b"the process".to_vec()));
            assert_eq!(
                pieces[2],
                Piece::Pages {
                    address: 0x7000_0000,
                    bytes: vec![9; 4096]
                }
            );
            assert_eq!(pieces[3], Piece::End);
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
        let mut image = encoder.start(&most).unwrap();
        image.extend(encoder.end());
        let pieces = read(&image, usize::MAX).unwrap();
        assert!(pieces[0] == Piece::Process(most));
        let bytes = PROCESS_MAX + 1;
        let refused = Encoder::default().start(&vec![7; bytes]);
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
