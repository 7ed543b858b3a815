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

use std::io::{self, Read, Write};

use snaprig_card_memory::PAGE;

use super::stream::{Decoder, Encoder, ImageError, Link, PAGES_AT, PAGES_MAX, Piece, TooLarge};

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
        if sources[0].link.parent != 0 {
            return Err(ChainError::NotWhole);
        }
        for (index, pair) in sources.windows(2).enumerate() {
            if pair[1].link.parent != pair[0].link.id {
                return Err(ChainError::Broken { index: index + 1 });
            }
        }
        let link = Link {
            id: newest.link.id,
            ..Link::default()
        };
        let mut encoder = Encoder::default();
        let chunk = encoder.start(&newest.process, &link)?;
        Ok(Self {
            sources,
            encoder,
            chunk,
            read: 0,
            ended: false,
        })
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
            self.chunk = self.encoder.end();
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
    buffer: Vec<u8>,
    process: Vec<u8>,
    link: Link,
    /// The first of `link.gone` that does not end before the last address asked for.
    gone: usize,
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
            buffer: vec![0; READ_MAX],
            process: Vec::new(),
            link: Link::default(),
            gone: 0,
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
        while let Some((start, pages)) = self.link.gone.get(self.gone) {
            if address < start + pages * PAGE {
                return address >= *start;
            }
            self.gone += 1;
        }
        false
    }

    /// Reads up to the next run of pages, or to the end.
    fn next_run(&mut self) -> Result<(), ChainError> {
        let index = self.index;
        let damaged = |source| ChainError::Image { index, source };
        self.pages.clear();
        self.done = 0;
        while self.decoder.wants() > 0 {
            let want = self.decoder.wants().min(READ_MAX);
            let count = self.from.read(&mut self.buffer[..want])?;
            if count == 0 {
                break;
            }
            match self.decoder.push(&self.buffer[..count]).map_err(damaged)? {
                Some(Piece::Process(bytes)) => self.process = bytes.to_vec(),
                Some(Piece::Link(link)) => self.link = link,
                Some(Piece::Pages { address, bytes }) => {
                    let end = address.checked_add(bytes.len() as u64);
                    let (true, Some(end)) = (address >= self.end, end) else {
                        return Err(ChainError::Disordered { index, address });
                    };
                    (self.start, self.end) = (address, end);
                    self.pages.extend_from_slice(bytes);
                    return Ok(());
                }
                Some(Piece::End) | None => {}
            }
        }
        self.decoder.finish().map_err(damaged)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Pages = BTreeMap<u64, u8>;

    /// An image of pages, each full of one byte.
    fn image(link: &Link, pages: &Pages) -> Vec<u8> {
        let mut encoder = Encoder::default();
        let mut bytes = encoder.start(b"process", link).unwrap();
        for (page, byte) in pages {
            let mut chunk = [*byte; PAGES_AT + PAGE as usize];
            encoder.pages(&mut chunk, page * PAGE);
            bytes.extend_from_slice(&chunk);
        }
        bytes.extend(encoder.end());
        bytes
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
    fn increment(id: u64, from: &Pages, to: &Pages) -> Vec<u8> {
        let gone = from.keys().filter(|page| !to.contains_key(page));
        let link = Link {
            id,
            parent: id - 1,
            gone: gone.map(|page| (page * PAGE, 1)).collect(),
        };
        let differs = |(page, byte): &(&u64, &u8)| from.get(*page) != Some(*byte);
        let changed = to.iter().filter(differs).map(|(p, b)| (*p, *b)).collect();
        image(&link, &changed)
    }

    fn whole(pages: &Pages) -> Vec<u8> {
        let link = Link {
            id: 1,
            ..Link::default()
        };
        image(&link, pages)
    }

    #[test]
    fn what_is_no_chain_is_refused() {
        let pages: Pages = [(1, 1), (2, 2)].into();
        let (first, second) = (whole(&pages), increment(2, &pages, &[(1, 3)].into()));
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
            let mut images = vec![whole(&states[0])];
            for (index, pair) in states.windows(2).enumerate() {
                images.push(increment(index as u64 + 2, &pair[0], &pair[1]));
            }
            let mut one = Vec::new();
            collapse(images.iter().map(Vec::as_slice).collect(), &mut one).unwrap();
            prop_assert_eq!(&pages_of(&one), states.last().unwrap());
            // What was collapsed may be the first of another chain.
            let mut again = Vec::new();
            collapse(vec![one.as_slice()], &mut again).unwrap();
            prop_assert_eq!(&one, &again);
            // Read as it is made it is the same.
            let (mut chain, mut read) = (Vec::new(), Vec::new());
            chain.extend(images.iter().map(Vec::as_slice));
            Reader::open(chain).unwrap().read_to_end(&mut read).unwrap();
            prop_assert_eq!(one, read);
        }
    }
}
