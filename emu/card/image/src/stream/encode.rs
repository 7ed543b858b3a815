//! Writes an image, and only one that a [`Decoder`](super::Decoder) takes.

use snaprig_card_memory::PAGE;
use snaprig_image::{self as grammar, HEAD_BYTES, ImageId, hash};

use super::{
    FORMAT, GONE, GONE_MAX, PAGES, PAGES_AT, PAGES_MAX, PAGES_PAYLOAD, PROCESS, PROCESS_MAX,
    TooLarge,
};

/// Makes the records of one image.
pub struct Encoder {
    encoder: grammar::Encoder,
    page_bytes: u64,
}

impl Encoder {
    /// An encoder, and the stream's first bytes: its header, what is not memory, and which pages of its parent's are
    /// no more (address of the first, and how many; ascending; none without a parent).
    pub fn start(
        process: &[u8],
        parent: Option<ImageId>,
        gone: &[(u64, u64)],
    ) -> Result<(Self, Vec<u8>), TooLarge> {
        let too_large = TooLarge {
            bytes: process.len() + 16 * gone.len(),
        };
        if process.len() > PROCESS_MAX || gone.len() > GONE_MAX {
            return Err(too_large);
        }
        let started = grammar::Encoder::start(&FORMAT, parent, &[]);
        let (encoder, mut bytes) = started.ok_or(too_large)?;
        let mut encoder = Self {
            encoder,
            page_bytes: 0,
        };
        encoder.record(&mut bytes, PROCESS, process);
        if !gone.is_empty() {
            let words = gone.iter().flat_map(|(address, pages)| [address, pages]);
            let words: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
            encoder.record(&mut bytes, GONE, &words);
        }
        Ok((encoder, bytes))
    }

    /// Makes `record` a run of whole pages from page-aligned `address`. They are in it already, behind [`PAGES_AT`]
    /// bytes of room: at least one, at most [`PAGES_MAX`] bytes.
    pub fn pages(&mut self, record: &mut [u8], address: u64) {
        let (framed, pages) = record.split_at_mut(PAGES_AT);
        assert!((1..=PAGES_MAX).contains(&pages.len()));
        assert!((address | pages.len() as u64).is_multiple_of(PAGE));
        self.page_bytes += pages.len() as u64;
        framed[HEAD_BYTES..HEAD_BYTES + 8].copy_from_slice(&address.to_le_bytes());
        framed[HEAD_BYTES + 8..].copy_from_slice(&hash(pages).to_le_bytes());
        let body = pages.len() as u64;
        self.encoder.record(PAGES, PAGES_PAYLOAD, body, framed);
    }

    /// The stream's last bytes, and the image's id. An image that is made of a chain stands for the last of it.
    pub fn end(&mut self, stands_for: Option<ImageId>) -> (Vec<u8>, ImageId) {
        let mut bytes = vec![0; FORMAT.end_bytes()];
        let id = self.encoder.end(stands_for, &[self.page_bytes], &mut bytes);
        (bytes, id)
    }

    fn record(&mut self, to: &mut Vec<u8>, kind: u32, payload: &[u8]) {
        let start = to.len();
        to.resize(start + HEAD_BYTES, 0);
        to.extend_from_slice(payload);
        self.encoder
            .record(kind, payload.len(), 0, &mut to[start..]);
    }
}
