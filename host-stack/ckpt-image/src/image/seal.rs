//! Makes a batch of what was handed in: finds zero pages, closes the gaps that they leave,
//! compresses, hashes, and puts the list in front.
//!
//! What must stay true: data only ever move towards the front of their buffer, by parts that have
//! been looked at; nothing here waits or fails.

use snaprig_image::{Buffer, Encoder, Filled, ImageId};

use super::{
    Run, Summary, Totals,
    buffer::data_mut,
    hash,
    wire::{self, BLOCK, Chunk, Kind, LIST_MAX, blocks},
    worth::Worth,
};

/// A chunk to be. Those that store have their bytes in the buffer, in order, in whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    pub kind: Kind,
    pub run: Run,
}

/// A buffer and what is in it.
pub struct Job {
    pub block: Buffer,
    pub drafts: Vec<Draft>,
}

/// What compresses.
pub struct Zstd {
    pub compressor: zstd::bulk::Compressor<'static>,
    /// None: always.
    pub worth: Option<Worth>,
}

/// Seals the batches of one image, in order.
pub struct Sealer {
    zstd: Option<Zstd>,
    /// The batch at hand is compressed.
    is_compressing: bool,
    scratch: Vec<u8>,
    chunks: Vec<Chunk>,
    encoder: Encoder,
    stands_for: Option<ImageId>,
    totals: Totals,
}

impl Sealer {
    /// For an image whose header takes so many bytes.
    pub fn new(
        encoder: Encoder,
        header: usize,
        stands_for: Option<ImageId>,
        zstd: Option<Zstd>,
    ) -> Self {
        Self {
            zstd,
            is_compressing: false,
            scratch: Vec::new(),
            chunks: Vec::new(),
            encoder,
            stands_for,
            totals: Totals {
                file_bytes: header as u64,
                ..Totals::default()
            },
        }
    }

    /// Makes a batch of it.
    pub fn seal(&mut self, job: Job) -> Filled {
        let Job { mut block, drafts } = job;
        let data = data_mut(&mut block);
        self.chunks.clear();
        self.is_compressing = match &mut self.zstd {
            None => false,
            Some(Zstd { worth: None, .. }) => true,
            Some(Zstd {
                worth: Some(worth), ..
            }) => worth.begin(),
        };
        let (mut from, mut to) = (0, 0);
        for draft in drafts {
            match draft.kind {
                Kind::Pages { .. } => self.pages(draft.run, data, &mut from, &mut to),
                Kind::State { .. } => {
                    let len = draft.run.bytes as usize;
                    to += self.store(draft, data, from..from + len, to);
                    from += blocks(len);
                }
                Kind::Zeroes | Kind::Gone => self.mark(draft),
            }
        }
        if let Some(Zstd {
            worth: Some(worth), ..
        }) = &mut self.zstd
        {
            worth.done(from, to);
        }
        let start = LIST_MAX - wire::list_bytes(self.chunks.len());
        let list = &mut block.bytes_mut()[start..LIST_MAX];
        wire::encode_list(&mut self.encoder, &self.chunks, list);
        for chunk in &self.chunks {
            chunk.count(&mut self.totals);
        }
        let sealed = block.filled(start..LIST_MAX + to);
        self.totals.file_bytes += sealed.len() as u64;
        sealed
    }

    /// The image's last bytes, in this block; and what it is.
    pub fn finish(mut self, mut block: Buffer) -> (Filled, Summary) {
        self.totals.file_bytes += BLOCK as u64;
        let end = &mut block.bytes_mut()[..BLOCK];
        let summary = wire::encode_end(&mut self.encoder, self.stands_for, self.totals, end);
        (block.filled(0..BLOCK), summary)
    }

    /// A run of pages becomes chunks of pages and of zeroes, in turn.
    fn pages(&mut self, run: Run, data: &mut [u8], from: &mut usize, to: &mut usize) {
        let (end, mut address) = (*from + run.bytes as usize, run.address);
        while *from < end {
            let zero = is_zero(&data[*from..*from + BLOCK]);
            let mut next = *from + BLOCK;
            while next < end && is_zero(&data[next..next + BLOCK]) == zero {
                next += BLOCK;
            }
            let bytes = (next - *from) as u64;
            let run = Run {
                address,
                bytes,
                ..run
            };
            if zero {
                self.mark(Draft {
                    kind: Kind::Zeroes,
                    run,
                });
            } else {
                let kind = Kind::Pages { zstd: false };
                *to += self.store(Draft { kind, run }, data, *from..next, *to);
            }
            address += bytes;
            *from = next;
        }
    }

    /// Moves a chunk's bytes to where they are stored; how many that are.
    fn store(
        &mut self,
        draft: Draft,
        data: &mut [u8],
        from: std::ops::Range<usize>,
        to: usize,
    ) -> usize {
        let Draft { mut kind, run } = draft;
        let stored = match self.compress(&data[from.clone()]) {
            Some(len) => {
                let stored = blocks(len);
                data[to..to + len].copy_from_slice(&self.scratch[..len]);
                data[to + len..to + stored].fill(0);
                match &mut kind {
                    Kind::Pages { zstd } | Kind::State { zstd, .. } => *zstd = true,
                    Kind::Zeroes | Kind::Gone => {}
                }
                stored
            }
            None => {
                let stored = blocks(from.len());
                if from.start != to {
                    data.copy_within(from.start..from.start + stored, to);
                }
                stored
            }
        };
        self.chunks.push(Chunk {
            kind,
            run,
            stored: stored as u64,
            hash: hash(&data[to..to + stored]),
        });
        stored
    }

    /// Compresses into the scratch; how many bytes it has then. None: that would save no block.
    fn compress(&mut self, bytes: &[u8]) -> Option<usize> {
        let zstd = self.zstd.as_mut().filter(|_| self.is_compressing)?;
        let most = blocks(bytes.len()) - BLOCK;
        self.scratch.resize(most, 0);
        let zstd = &mut zstd.compressor;
        zstd.compress_to_buffer(bytes, &mut self.scratch[..]).ok()
    }

    fn mark(&mut self, draft: Draft) {
        let Draft { kind, run } = draft;
        self.chunks.push(Chunk {
            kind,
            run,
            stored: 0,
            hash: 0,
        });
    }
}

/// Whether a page is all zeroes. Most that are not show it in their first bytes.
fn is_zero(page: &[u8]) -> bool {
    page.chunks(256)
        .all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_anywhere_makes_a_page_not_zero() {
        let mut page = [0; BLOCK];
        assert!(is_zero(&page));
        for at in 0..BLOCK {
            page[at] = 1 << (at % 8);
            assert!(!is_zero(&page), "{at}");
            page[at] = 0;
        }
    }
}
