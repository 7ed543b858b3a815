//! A chain of images: a whole one, and increments, each of which has what differs from the one
//! before. Collapsed, it is one whole image: that of the last.
//!
//! ```text
//! whole:        0x1000 A  0x2000 B            0x4000 D
//! increment:              0x2000 X  0x3000 C            (gone: 0x4000)
//! collapsed:    0x1000 A  0x2000 X  0x3000 C
//! ```
//! All images are read once, front to back and side by side, because each has its pages in
//! ascending order; at every address the newest image that says something about it is believed.
//! Which image an image is follows from all of it: that each builds on the one before it is known when all
//! have been read, and before that the collapsed one does not get its end.

use std::io::{self, Read, Write};

use snaprig_card_memory::PAGE;
use snaprig_image::{ImageId, Inbox};

use super::stream::{Decoder, Encoder, ImageError, PAGES_AT, PAGES_MAX, Piece, TooLarge};

/// Bytes that are read at once.
const READ_MAX: usize = 64 << 10;

/// Why images are not a chain, or cannot be made one image.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// One of them is damaged.
    #[error("image {index} of the chain: {source}")]
    Image {
        /// Which, from 0.
        index: usize,
        /// What is wrong with it.
        source: ImageError,
    },
    /// One of them cannot be read, or the result cannot be written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// There is none.
    #[error("a chain has at least one image")]
    Empty,
    /// The first is not whole.
    #[error(
        "the first image of the chain is an increment; the whole image that it builds on is missing"
    )]
    NotWhole,
    /// One does not follow the one before it.
    #[error("image {index} of the chain does not build on the image before it")]
    Broken {
        /// Which, from 0.
        index: usize,
    },
    /// Its pages are not in ascending order.
    #[error("image {index} of the chain has pages out of order at {address:#x}")]
    Disordered {
        /// Which, from 0.
        index: usize,
        /// Where.
        address: u64,
    },
    /// What is not memory does not fit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Writes one whole image that says what the chain of `images`, the oldest first, says together.
pub fn collapse<R: Read>(images: Vec<R>, mut to: impl Write) -> Result<(), ChainError> {
    let mut reader = Reader::open(images)?;
    while !reader.chunk.is_empty() {
        to.write_all(&reader.chunk)?;
        reader.next_chunk()?;
    }
    Ok(to.flush()?)
}

/// A chain of images as one whole image, which is made as it is read: a restore can read it.
pub struct Reader<R> {
    sources: Vec<Source<R>>,
    encoder: Encoder,
    /// What is to be read next, and how much of it has been; empty at the end.
    chunk: Vec<u8>,
    read: usize,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the beginnings of `images`, the oldest first, and checks that they are a chain.
    pub fn open(images: Vec<R>) -> Result<Self, ChainError> {
        let mut sources = Vec::new();
        for (index, from) in images.into_iter().enumerate() {
            sources.push(Source::open(index, from)?);
        }
        let newest = sources.last().ok_or(ChainError::Empty)?;
        if sources[0].parent.is_some() {
            return Err(ChainError::NotWhole);
        }
        let (encoder, chunk) = Encoder::start(&newest.process, None, &[])?;
        Ok(Self {
            sources,
            encoder,
            chunk,
            read: 0,
            ended: false,
        })
    }

    /// The last bytes of the image, now that all others have been read to their ends.
    fn end(&mut self) -> Result<Vec<u8>, ChainError> {
        for (index, pair) in self.sources.windows(2).enumerate() {
            let is_parent = |parent| pair[0].ids.contains(&Some(parent));
            if !pair[1].parent.is_some_and(is_parent) {
                return Err(ChainError::Broken { index: index + 1 });
            }
        }
        // What builds on the newest builds on this, too.
        let newest = self.sources.last().and_then(|newest| newest.ids[0]);
        Ok(self.encoder.end(newest).0)
    }

    /// Makes the next part of the image.
    fn next_chunk(&mut self) -> Result<(), ChainError> {
        self.read = 0;
        self.chunk.resize(PAGES_AT, 0);
        let mut start = 0;
        while let Some(address) = self.sources.iter().filter_map(Source::address).min() {
            let len = self.chunk.len() - PAGES_AT;
            if len == 0 {
                start = address;
            } else if start + len as u64 != address || len == PAGES_MAX {
                break;
            }
            // The newest that has the page, unless a newer one says that it is gone.
            let mut wins = true;
            for source in self.sources.iter_mut().rev() {
                let has = source.address() == Some(address);
                if has && wins {
                    self.chunk.extend_from_slice(source.page());
                }
                wins &= !has && !source.takes_away(address);
                if has {
                    source.advance()?;
                }
            }
        }
        if self.chunk.len() > PAGES_AT {
            self.encoder.pages(&mut self.chunk, start);
        } else if std::mem::replace(&mut self.ended, true) {
            self.chunk.clear();
        } else {
            self.chunk = self.end()?;
        }
        Ok(())
    }
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.read == self.chunk.len() {
            self.next_chunk().map_err(io::Error::other)?;
        }
        let count = to.len().min(self.chunk.len() - self.read);
        to[..count].copy_from_slice(&self.chunk[self.read..self.read + count]);
        self.read += count;
        Ok(count)
    }
}

/// An image, read up to one of its pages.
struct Source<R> {
    index: usize,
    from: R,
    decoder: Decoder,
    inbox: Inbox,
    process: Vec<u8>,
    parent: Option<ImageId>,
    /// Its id, and that of the image that it stands for, once it has been read to its end.
    ids: [Option<ImageId>; 2],
    /// Pages of the parent's that are no more.
    gone: Vec<(u64, u64)>,
    /// The first of `gone` that does not end before the last address asked for.
    gone_at: usize,
    /// The run at hand: its address, its pages, and bytes of it that are done with.
    start: u64,
    pages: Vec<u8>,
    done: usize,
    /// Where the last run ended.
    end: u64,
}

impl<R: Read> Source<R> {
    fn open(index: usize, from: R) -> Result<Self, ChainError> {
        let mut source = Self {
            index,
            from,
            decoder: Decoder::default(),
            inbox: Inbox::default(),
            process: Vec::new(),
            parent: None,
            ids: [None; 2],
            gone: Vec::new(),
            gone_at: 0,
            start: 0,
            pages: Vec::new(),
            done: 0,
            end: 0,
        };
        source.next_run()?;
        Ok(source)
    }

    /// Address of the page at hand; `None` at the end.
    fn address(&self) -> Option<u64> {
        (self.done < self.pages.len()).then(|| self.start + self.done as u64)
    }

    fn page(&self) -> &[u8] {
        &self.pages[self.done..self.done + PAGE as usize]
    }

    fn advance(&mut self) -> Result<(), ChainError> {
        self.done += PAGE as usize;
        match self.done < self.pages.len() {
            true => Ok(()),
            false => self.next_run(),
        }
    }

    /// Whether the image says that its parent's page at `address` is gone. Addresses ascend.
    fn takes_away(&mut self, address: u64) -> bool {
        while let Some((start, pages)) = self.gone.get(self.gone_at) {
            if address < start + pages * PAGE {
                return address >= *start;
            }
            self.gone_at += 1;
        }
        false
    }

    /// Reads up to the next run of pages, or to the end.
    fn next_run(&mut self) -> Result<(), ChainError> {
        let index = self.index;
        let damaged = |source| ChainError::Image { index, source };
        self.pages.clear();
        self.done = 0;
        while !self.decoder.is_complete() {
            let Some(bytes) = self.inbox.take(self.decoder.wants()) else {
                let missing = self.decoder.certain() - self.inbox.len();
                let count = self.from.read(self.inbox.room(missing.min(READ_MAX)))?;
                if count == 0 {
                    break;
                }
                self.inbox.filled(count);
                continue;
            };
            match self.decoder.take(bytes).map_err(damaged)? {
                Some(Piece::Parent(parent)) => self.parent = parent,
                Some(Piece::Process(bytes)) => self.process = bytes.to_vec(),
                Some(Piece::Gone(gone)) => self.gone = gone,
                Some(Piece::Pages { address, bytes }) => {
                    let end = address.checked_add(bytes.len() as u64);
                    let (true, Some(end)) = (address >= self.end, end) else {
                        return Err(ChainError::Disordered { index, address });
                    };
                    (self.start, self.end) = (address, end);
                    self.pages.extend_from_slice(bytes);
                    return Ok(());
                }
                Some(Piece::End { id, stands_for }) => self.ids = [Some(id), stands_for],
                None => {}
            }
        }
        self.decoder.finish(self.inbox.len()).map_err(damaged)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Pages = BTreeMap<u64, u8>;

    /// An image of pages, each full of one byte.
    fn image(parent: Option<ImageId>, gone: &[(u64, u64)], pages: &Pages) -> (Vec<u8>, ImageId) {
        let (mut encoder, mut bytes) = Encoder::start(b"process", parent, gone).unwrap();
        for (page, byte) in pages {
            let mut chunk = [*byte; PAGES_AT + PAGE as usize];
            encoder.pages(&mut chunk, page * PAGE);
            bytes.extend_from_slice(&chunk);
        }
        let (end, id) = encoder.end(None);
        bytes.extend(end);
        (bytes, id)
    }

    fn pages_of(image: &[u8]) -> Pages {
        let (mut source, mut pages) = (Source::open(0, image).unwrap(), Pages::new());
        while let Some(address) = source.address() {
            pages.insert(address / PAGE, source.page()[0]);
            source.advance().unwrap();
        }
        pages
    }

    /// The increment from one state to another.
    fn increment(parent: ImageId, from: &Pages, to: &Pages) -> (Vec<u8>, ImageId) {
        let gone = from.keys().filter(|page| !to.contains_key(page));
        let gone: Vec<_> = gone.map(|page| (page * PAGE, 1)).collect();
        let differs = |(page, byte): &(&u64, &u8)| from.get(*page) != Some(*byte);
        let changed = to.iter().filter(differs).map(|(p, b)| (*p, *b)).collect();
        image(Some(parent), &gone, &changed)
    }

    #[test]
    fn what_is_no_chain_is_refused() {
        let pages: Pages = [(1, 1), (2, 2)].into();
        let (first, id) = image(None, &[], &pages);
        let (second, _) = increment(id, &pages, &[(1, 3)].into());
        let collapsed = |images: Vec<&[u8]>| collapse(images, Vec::new());
        assert!(collapsed(vec![&first, &second]).is_ok());
        assert!(matches!(collapsed(vec![]), Err(ChainError::Empty)));
        assert!(matches!(
            collapsed(vec![&second]),
            Err(ChainError::NotWhole)
        ));
        let twice = collapsed(vec![&first, &second, &second]);
        assert!(matches!(twice, Err(ChainError::Broken { index: 2 })));
        for cut in 0..second.len() {
            let torn = collapsed(vec![&first, &second[..cut]]);
            assert!(
                matches!(torn, Err(ChainError::Image { index: 1, .. })),
                "{cut}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_chain_collapses_to_its_last_state(
            states in prop::collection::vec(prop::collection::btree_map(1..40u64, any::<u8>(), 0..30), 1..6),
        ) {
            let (first, mut last) = image(None, &[], &states[0]);
            let mut images = vec![first];
            for pair in states.windows(2) {
                let (image, id) = increment(last, &pair[0], &pair[1]);
                images.push(image);
                last = id;
            }
            let mut one = Vec::new();
            collapse(images.iter().map(Vec::as_slice).collect(), &mut one).unwrap();
            prop_assert_eq!(&pages_of(&one), states.last().unwrap());
            // What was collapsed may be the first of another chain, of what builds on its last.
            let (next, _) = increment(last, states.last().unwrap(), &states[0]);
            let mut again = Vec::new();
            collapse(vec![one.as_slice(), &next], &mut again).unwrap();
            prop_assert_eq!(&pages_of(&again), &states[0]);
            // Read as it is made it is the same.
            let (mut chain, mut read) = (Vec::new(), Vec::new());
            chain.extend(images.iter().map(Vec::as_slice));
            Reader::open(chain).unwrap().read_to_end(&mut read).unwrap();
            prop_assert_eq!(one, read);
        }
    }
}
