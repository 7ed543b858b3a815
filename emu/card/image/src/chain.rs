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

use std::io::{self, Read};

use snaprig_card_memory::PAGE;
use snaprig_image::{ImageId, Sink, Source, transport::Outbox};

use super::{
    stream::{Decoder, ImageError, Piece, TooLarge},
    writer::{Pages, StartError, Writer},
};

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

impl From<StartError> for ChainError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::TooLarge(error) => Self::TooLarge(error),
            StartError::Memory(error) => Self::Io(error),
        }
    }
}

/// Writes one whole image that says what the chain of `images`, the oldest first, says together. Returns the sink, which
/// has all of it.
pub fn collapse<F: Source, S: Sink>(images: Vec<F>, to: S) -> Result<S, ChainError> {
    let mut chain = Chain::open(images)?;
    let mut writer = Writer::start(to, chain.process(), None, &[])?;
    while writer.step(&mut chain)? {}
    Ok(writer.into_sink())
}

/// A chain of images as one whole image, which is made as it is read: a restore can read it.
pub struct Reader<F> {
    chain: Chain<F>,
    writer: Writer<Outbox>,
}

impl<F: Source> Reader<F> {
    /// Reads the beginnings of `images`, the oldest first, and checks that they can be a chain.
    pub fn open(images: Vec<F>) -> Result<Self, ChainError> {
        let chain = Chain::open(images)?;
        let writer = Writer::start(Outbox::default(), chain.process(), None, &[])?;
        Ok(Self { chain, writer })
    }
}

impl<F: Source> Read for Reader<F> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.writer.sink().front().is_none() {
            let step = self.writer.step(&mut self.chain);
            if !step.map_err(io::Error::other)? {
                return Ok(0);
            }
        }
        let front = self.writer.sink().front().unwrap_or_default();
        let count = to.len().min(front.len());
        to[..count].copy_from_slice(&front[..count]);
        self.writer.sink().took(count);
        Ok(count)
    }
}

/// What a chain says of each page.
struct Chain<F> {
    images: Vec<Image<F>>,
}

impl<F: Source> Chain<F> {
    fn open(images: Vec<F>) -> Result<Self, ChainError> {
        let images = images.into_iter().enumerate();
        let images = images.map(|(index, from)| Image::open(index, from));
        let images = images.collect::<Result<Vec<_>, _>>()?;
        match images.first() {
            None => Err(ChainError::Empty),
            Some(first) if first.parent.is_some() => Err(ChainError::NotWhole),
            Some(_) => Ok(Self { images }),
        }
    }

    /// What is not memory: what the newest says.
    fn process(&self) -> &[u8] {
        self.images.last().map_or(&[], |newest| &newest.process)
    }

    /// Address of the next page that is in the result, and the newest image that has it. Pages that a newer image takes
    /// away are passed over.
    fn newest(&mut self) -> Result<Option<(u64, usize)>, ChainError> {
        while let Some(address) = self.images.iter().filter_map(Image::address).min() {
            for (index, image) in self.images.iter_mut().enumerate().rev() {
                if image.address() == Some(address) {
                    return Ok(Some((address, index)));
                }
                if image.takes_away(address) {
                    break;
                }
            }
            self.advance(address)?;
        }
        Ok(None)
    }

    /// All images are done with the page at `address`.
    fn advance(&mut self, address: u64) -> Result<(), ChainError> {
        let images = self.images.iter_mut();
        let mut at = images.filter(|image| image.address() == Some(address));
        at.try_for_each(Image::advance)
    }
}

impl<F: Source> Pages for Chain<F> {
    type Error = ChainError;

    fn next(&mut self) -> Result<Option<u64>, ChainError> {
        Ok(self.newest()?.map(|(address, _)| address))
    }

    fn take(&mut self, address: u64, room: &mut [u8]) -> Result<bool, ChainError> {
        match self.newest()? {
            Some((next, newest)) if next == address => {
                room.copy_from_slice(self.images[newest].page());
                self.advance(address)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// All images have been read to their ends: only now is it known which they are.
    fn end(&mut self) -> Result<Option<ImageId>, ChainError> {
        for (index, pair) in self.images.windows(2).enumerate() {
            let is_parent = |parent| pair[0].ids.contains(&Some(parent));
            if !pair[1].parent.is_some_and(is_parent) {
                return Err(ChainError::Broken { index: index + 1 });
            }
        }
        // What builds on the newest builds on this, too.
        Ok(self.images.last().and_then(|newest| newest.ids[0]))
    }
}

/// An image, read up to one of its pages.
struct Image<F> {
    index: usize,
    from: F,
    decoder: Decoder,
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

impl<F: Source> Image<F> {
    fn open(index: usize, from: F) -> Result<Self, ChainError> {
        let mut image = Self {
            index,
            from,
            decoder: Decoder::default(),
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
        image.next_run()?;
        Ok(image)
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
            let wants = self.decoder.wants();
            let bytes = self.from.lend(wants)?;
            if bytes.len() < wants {
                return self.decoder.finish(bytes.len()).map_err(damaged);
            }
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
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::stream::{Encoder, PAGES_AT};

    type Said = BTreeMap<u64, u8>;

    /// An image of pages, each full of one byte.
    fn image(parent: Option<ImageId>, gone: &[(u64, u64)], pages: &Said) -> (Vec<u8>, ImageId) {
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

    fn pages_of(image: &[u8]) -> Said {
        let (mut image, mut pages) = (Image::open(0, image).unwrap(), Said::new());
        while let Some(address) = image.address() {
            pages.insert(address / PAGE, image.page()[0]);
            image.advance().unwrap();
        }
        pages
    }

    /// The increment from one state to another.
    fn increment(parent: ImageId, from: &Said, to: &Said) -> (Vec<u8>, ImageId) {
        let gone = from.keys().filter(|page| !to.contains_key(page));
        let gone: Vec<_> = gone.map(|page| (page * PAGE, 1)).collect();
        let differs = |(page, byte): &(&u64, &u8)| from.get(*page) != Some(*byte);
        let changed = to.iter().filter(differs).map(|(p, b)| (*p, *b)).collect();
        image(Some(parent), &gone, &changed)
    }

    #[test]
    fn what_is_no_chain_is_refused() {
        let pages: Said = [(1, 1), (2, 2)].into();
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
            let one = collapse(images.iter().map(Vec::as_slice).collect(), Vec::new()).unwrap();
            prop_assert_eq!(&pages_of(&one), states.last().unwrap());
            // What was collapsed may be the first of another chain, of what builds on its last.
            let (next, _) = increment(last, states.last().unwrap(), &states[0]);
            let again = collapse(vec![one.as_slice(), &next], Vec::new()).unwrap();
            prop_assert_eq!(&pages_of(&again), &states[0]);
            // Read as it is made it is the same.
            let (mut chain, mut read) = (Vec::new(), Vec::new());
            chain.extend(images.iter().map(Vec::as_slice));
            Reader::open(chain).unwrap().read_to_end(&mut read).unwrap();
            prop_assert_eq!(one, read);
        }
    }
}
