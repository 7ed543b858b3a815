//! A chain of images: one that has all pages, and increments, each of which has what differs from
//! the one before. For each page the newest image that says something about it is believed.
//!
//! ```text
//! whole:        0x1000 A  0x2000 B            0x4000 D
//! increment:              0x2000 X  0x3000 C            (gone: 0x4000)
//! together:     0x1000 A  0x2000 X  0x3000 C
//! ```
//! Only the lists of the images are read to know that: an [`Index`] says where each page is. Its size
//! is bounded ([`CHUNKS_MAX`]), and so is the length of a chain ([`CHAIN_MAX`]).

mod collapse;
mod index;
mod loader;

use std::{io, path::PathBuf};

pub use self::{
    collapse::collapse,
    index::{Index, Part, Place},
    loader::Loader,
};
use crate::image::{Header, ImageError, Item, Scanner, State, Stored, Summary, WriteError};

/// Most images of a chain.
pub const CHAIN_MAX: usize = 64;
/// Most chunks of all images of a chain.
pub const CHUNKS_MAX: usize = 1 << 24;

/// Why images are not a chain, or cannot be made one image.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// One of them is damaged.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The collapsed one cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A file cannot be made, renamed or synced.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is none.
    #[error("a chain has at least one image")]
    Empty,
    /// The first is not whole.
    #[error("{name} is an increment, and what it builds on is missing; use an earlier checkpoint")]
    NotWhole {
        /// The first image.
        name: String,
    },
    /// One does not follow the one before it.
    #[error("{name} does not build on the image before it; use an earlier checkpoint")]
    Broken {
        /// The image.
        name: String,
    },
    /// There are too many, or they have too many chunks.
    #[error(
        "the chain that ends in {name} is too long ({CHAIN_MAX} images or {CHUNKS_MAX} chunks at most); \
         collapse it earlier, or take a full checkpoint"
    )]
    TooLong {
        /// The last image that was looked at.
        name: String,
    },
}

struct Image {
    name: String,
    scanner: Scanner,
    chunks: Vec<Stored>,
}

/// Images that build on each other.
pub struct Chain {
    images: Vec<Image>,
    index: Index,
}

impl Chain {
    /// Reads the lists of the images, the oldest first, and checks that they are a chain.
    pub fn open(paths: &[PathBuf]) -> Result<Self, ChainError> {
        if paths.is_empty() {
            return Err(ChainError::Empty);
        }
        let mut chain = Self {
            images: Vec::new(),
            index: Index::default(),
        };
        let mut chunks = 0_u64;
        for path in paths {
            let (name, scanner) = (path.display().to_string(), Scanner::open(path)?);
            chain.check_link(&name, scanner.header())?;
            chunks = scanner.summary().totals.chunks.saturating_add(chunks);
            if chain.images.len() == CHAIN_MAX || chunks > CHUNKS_MAX as u64 {
                return Err(ChainError::TooLong { name });
            }
            chain.add(name, scanner)?;
        }
        Ok(chain)
    }

    fn check_link(&self, name: &str, header: &Header) -> Result<(), ChainError> {
        let name = name.to_owned();
        match (self.images.last(), header.parent) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(ChainError::NotWhole { name }),
            (Some(before), parent) => {
                let scanner = &before.scanner;
                let is = [Some(scanner.summary().id), scanner.summary().stands_for];
                match parent.is_some() && is.contains(&parent) {
                    true => Ok(()),
                    false => Err(ChainError::Broken { name }),
                }
            }
        }
    }

    fn add(&mut self, name: String, mut scanner: Scanner) -> Result<(), ChainError> {
        let (image, mut chunks) = (self.images.len(), Vec::new());
        while let Some(item) = scanner.next()? {
            match item {
                Item::State(_) => {}
                Item::Gone(run) => self.index.remove(run),
                Item::Zeroes(run) => self.index.insert(run, Place::Zeroes),
                Item::Pages(stored) => {
                    let chunk = chunks.len();
                    chunks.push(stored);
                    let place = Place::Stored {
                        image,
                        chunk,
                        skip: 0,
                    };
                    self.index.insert(stored.run, place);
                }
            }
            // What the end says of their number is known to be true only at the end.
            if chunks.len() > CHUNKS_MAX || self.index.len() > 2 * CHUNKS_MAX {
                return Err(ChainError::TooLong { name });
            }
        }
        self.images.push(Image {
            name,
            scanner,
            chunks,
        });
        Ok(())
    }

    /// The newest image's header and summary.
    pub fn newest(&self) -> (&Header, &Summary) {
        let image = self.images.last().expect("a chain has an image");
        (image.scanner.header(), image.scanner.summary())
    }

    /// Calls `each` with the sections of the newest image's state, in order.
    pub fn states<E: From<ImageError>>(
        &self,
        mut each: impl FnMut(State<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let image = self.images.last().expect("a chain has an image");
        let mut scanner = image.scanner.again()?;
        while let Some(item) = scanner.next()? {
            if let Item::State(state) = item {
                each(state)?;
            }
        }
        Ok(())
    }

    /// Where each page is, ascending by space and address.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        self.index.parts()
    }

    /// Image and chunk of a part that is stored; none if it is zero.
    pub fn stored(&self, part: &Part) -> Option<(&Scanner, &Stored)> {
        match part.place {
            Place::Zeroes => None,
            Place::Stored { image, chunk, .. } => {
                let image = self.images.get(image)?;
                Some((&image.scanner, image.chunks.get(chunk)?))
            }
        }
    }

    /// Names of its images, the oldest first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.images.iter().map(|image| image.name.as_str())
    }
}
