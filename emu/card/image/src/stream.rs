//! The process image as a stream of bytes: written once, front to back, and read the same way.
//!
//! Its grammar is that of all images ([`snaprig_image`]), with blocks of one byte: nothing is padded. Its records, in
//! this order:
//!
//! ```text
//! PROC  payload: what is not memory (postcard)                              exactly one
//! GONE  payload: (address, pages) (u64 each): pages of the parent's         in increments that take some away:
//!       that are no more, ascending                                         one
//! PAGE  payload: address (u64), XXH3 of the body (u64); body: whole pages   any number
//! END.  total: bytes of pages in the stream
//! ```
//! An image whose parent is none is whole. Any other is an increment: it has the pages that differ from those of its
//! parent ([`super::chain`]).
//!
//! What must stay true: a decoder believes nothing that it has not checked, holds at most one record, and names the
//! offset in the stream of the first thing that is wrong.

mod decode;
mod encode;

use snaprig_image::{Format, HEAD_BYTES, PartError};

pub use self::{decode::Decoder, decode::Piece, encode::Encoder};

/// First bytes of an image.
pub const MAGIC: [u8; 8] = *b"SNAPPROC";
/// Version of the format: a reader refuses every other.
pub const VERSION: u32 = 6;
/// Most bytes of pages in one record.
pub const PAGES_MAX: usize = 1 << 20;
/// Most bytes of what is not memory.
const PROCESS_MAX: usize = 16 << 20;
/// Most runs of pages that an increment takes away.
pub const GONE_MAX: usize = 1 << 20;
/// Bytes of a record of pages that stand before the pages.
pub const PAGES_AT: usize = HEAD_BYTES + PAGES_PAYLOAD;
const PAGES_PAYLOAD: usize = 16;

const PROCESS: u32 = u32::from_le_bytes(*b"PROC");
const GONE: u32 = u32::from_le_bytes(*b"GONE");
const PAGES: u32 = u32::from_le_bytes(*b"PAGE");

static FORMAT: Format = Format {
    magic: MAGIC,
    version: VERSION,
    block: 1,
    header_max: 0,
    totals: 1,
};

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
    /// A record does not match its checksum, or makes no sense where it is.
    #[error("process image damaged in the record at byte {offset}: {what}")]
    Damaged {
        /// Where the record starts.
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

impl ImageError {
    fn of(wrong: PartError, offset: u64) -> Self {
        match wrong {
            PartError::Magic => Self::Magic,
            PartError::Version { found, .. } => Self::Version { found },
            PartError::Damaged(what) => Self::Damaged { offset, what },
        }
    }
}

/// What is to be written is more than a [`Decoder`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what is not memory takes {bytes} bytes of a process image, at most {PROCESS_MAX} fit")]
pub struct TooLarge {
    /// Bytes of what is not memory.
    pub bytes: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use snaprig_image::{ImageId, Inbox};

    use super::*;

    const GONE_RUNS: [(u64, u64); 2] = [(0x1000, 3), (0x8000, 1)];

    fn image() -> Vec<u8> {
        let (mut encoder, mut bytes) =
            Encoder::start(b"the process", ImageId::new(1), &GONE_RUNS).unwrap();
        for (address, byte, len) in [(0x40_0000, 7, 8192), (0x7000_0000, 9, 4096)] {
            let mut record = vec![byte; PAGES_AT + len];
            encoder.pages(&mut record, address);
            bytes.extend_from_slice(&record);
        }
        bytes.extend(encoder.end(None).0);
        bytes
    }

    /// A piece, in words.
    fn told(piece: Piece) -> String {
        match piece {
            Piece::Process(bytes) => format!("process of {} bytes", bytes.len()),
            Piece::Pages { address, bytes } => {
                format!("{:#x}: {} times {}", address, bytes.len(), bytes[0])
            }
            Piece::End { .. } => "end".into(),
            piece => format!("{piece:?}"),
        }
    }

    /// Feeds `bytes` in parts of at most `step`, and collects the pieces.
    fn read(mut bytes: &[u8], step: usize) -> Result<Vec<String>, ImageError> {
        let (mut decoder, mut inbox) = (Decoder::default(), Inbox::default());
        let mut pieces = Vec::new();
        while !decoder.is_complete() {
            if let Some(bytes) = inbox.take(decoder.wants()) {
                pieces.extend(decoder.take(bytes)?.map(told));
                continue;
            }
            let missing = decoder.certain() - inbox.len();
            let (now, later) = bytes.split_at(missing.min(step).min(bytes.len()));
            if now.is_empty() {
                break;
            }
            inbox.room(now.len()).copy_from_slice(now);
            inbox.filled(now.len());
            bytes = later;
        }
        decoder.finish(inbox.len())?;
        assert!(inbox.is_empty(), "nothing is read that is not of the image");
        Ok(pieces)
    }

    #[test]
    fn an_image_comes_back_whatever_the_size_of_the_reads() {
        let image = [image(), b"something else".to_vec()].concat();
        for step in [1, 7, 4096, usize::MAX] {
            let pieces = read(&image, step).unwrap();
            let parent = format!("{:?}", Piece::Parent(ImageId::new(1)));
            let gone = format!("{:?}", Piece::Gone(GONE_RUNS.into()));
            let expected = [
                &parent,
                "process of 11 bytes",
                &gone,
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
            let torn = read(&image[..len], usize::MAX);
            assert_eq!(torn, Err(ImageError::Truncated { offset: len as u64 }));
        }
    }

    #[test]
    fn an_image_of_the_version_before_is_refused() {
        let mut image = image();
        image[8] = 5;
        let refused = read(&image, usize::MAX).unwrap_err();
        assert_eq!(refused, ImageError::Version { found: 5 });
        let text = "process image of version 5, this card reads version 6";
        assert_eq!(refused.to_string(), text);
    }

    #[test]
    fn what_cannot_be_read_is_not_written() {
        let most = vec![7; PROCESS_MAX];
        let (mut encoder, mut image) = Encoder::start(&most, None, &[]).unwrap();
        image.extend(encoder.end(None).0);
        let pieces = read(&image, usize::MAX).unwrap();
        assert_eq!(pieces[1], format!("process of {PROCESS_MAX} bytes"));
        let bytes = PROCESS_MAX + 1;
        let refused = Encoder::start(&vec![7; bytes], None, &[]);
        assert_eq!(refused.err(), Some(TooLarge { bytes }));
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
