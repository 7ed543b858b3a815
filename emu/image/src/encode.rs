//! Writes an image, part by part, into memory of the caller's.
//!
//! The payload of a record is put where it belongs before the record is sealed, so that nothing is copied:
//!
//! ```text
//! [ room for the head | payload | padding ]  --Encoder::record-->  [ head | payload | zeroes ]
//! ```

use crate::{
    END, Format, HEAD_BYTES, ImageId,
    format::{put_long, put_word, seal},
    id::Digest,
};

/// Makes the header, the records and the end of one image, in this order.
#[derive(Clone)]
pub struct Encoder {
    format: &'static Format,
    index: u64,
    digest: Digest,
}

impl Encoder {
    /// An encoder, and the header of its image. None: the payload is longer than the format allows.
    pub fn start(
        format: &'static Format,
        parent: Option<ImageId>,
        payload: &[u8],
    ) -> Option<(Self, Vec<u8>)> {
        if payload.len() > format.header_max {
            return None;
        }
        let mut header = vec![0; HEAD_BYTES];
        header[..8].copy_from_slice(&format.magic);
        put_word(&mut header, 8, format.version);
        put_word(&mut header, 12, payload.len() as u32);
        put_long(&mut header, 16, parent.map_or(0, ImageId::get));
        header.extend_from_slice(payload);
        header.resize(format.framed_bytes(payload.len()), 0);
        let mut digest = Digest::default();
        digest.add(seal(&mut header));
        let encoder = Self {
            format,
            index: 0,
            digest,
        };
        Some((encoder, header))
    }

    /// Seals the next record, which is all of `framed`: as many bytes as [`Format::framed_bytes`] says, with `payload`
    /// bytes of payload already in place. A body of `body` bytes, whole blocks, follows in the image.
    pub fn record(&mut self, kind: u32, payload: usize, body: u64, framed: &mut [u8]) {
        assert!(framed.len() == self.format.framed_bytes(payload) && kind != END);
        assert!(body.is_multiple_of(self.format.block as u64));
        self.digest
            .add(frame(kind, payload, self.index, body, framed));
        self.index += 1;
    }

    /// Writes the last bytes of the image into `framed`, of [`Format::end_bytes`]; returns the image's id.
    pub fn end(
        &mut self,
        stands_for: Option<ImageId>,
        totals: &[u64],
        framed: &mut [u8],
    ) -> ImageId {
        assert!(totals.len() == self.format.totals && framed.len() == self.format.end_bytes());
        let id = self.digest.id();
        let front = [id.get(), stands_for.map_or(0, ImageId::get)];
        let words = front.iter().chain(totals);
        for (to, word) in framed[HEAD_BYTES..].chunks_exact_mut(8).zip(words) {
            put_long(to, 0, *word);
        }
        frame(END, self.format.end_payload(), self.index, 0, framed);
        id
    }

    /// The id that the image has if nothing more is added to it.
    pub fn id(&self) -> ImageId {
        self.digest.id()
    }
}

/// Puts head and padding around a payload; returns the checksum.
fn frame(kind: u32, payload: usize, index: u64, body: u64, framed: &mut [u8]) -> u64 {
    put_word(framed, 0, kind);
    put_word(framed, 4, payload as u32);
    put_long(framed, 8, index);
    put_long(framed, 16, body);
    framed[HEAD_BYTES + payload..].fill(0);
    seal(framed)
}
