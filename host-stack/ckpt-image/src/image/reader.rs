//! Reads an image, once, front to back.

use std::io::{self, Read};

use serde::de::DeserializeOwned;

use super::{
    CHUNK_MAX, Header, ImageError, Run, STATE_MAX, Summary, Totals, hash,
    wire::{self, BLOCK, Chunk, Digest, Kind, Next, Wrong},
};

/// What comes next in an image.
#[derive(Debug)]
pub enum Piece<'a> {
    /// A section of state.
    State(State<'a>),
    /// Whole pages from `address` of `space` on: at most [`CHUNK_MAX`] bytes.
    Pages {
        /// The space.
        space: u32,
        /// Where.
        address: u64,
        /// What is there.
        bytes: &'a [u8],
    },
    /// Pages that are zero.
    Zeroes {
        /// The space.
        space: u32,
        /// Where.
        address: u64,
        /// How long.
        bytes: u64,
    },
    /// Pages that the parent has, or that were here before, and that are no more.
    Gone {
        /// The space.
        space: u32,
        /// Where.
        address: u64,
        /// How long.
        bytes: u64,
    },
}

/// A section of state.
#[derive(Debug)]
pub struct State<'a> {
    name: &'a str,
    offset: u64,
    section: u32,
    bytes: &'a [u8],
}

impl State<'_> {
    /// Its number, from 0.
    pub fn section(&self) -> u32 {
        self.section
    }

    /// Its serialized bytes (postcard).
    pub fn bytes(&self) -> &[u8] {
        self.bytes
    }

    /// What was given to [`Writer::state`](super::Writer::state).
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, ImageError> {
        postcard::from_bytes(self.bytes).map_err(|source| ImageError::State {
            name: self.name.to_owned(),
            section: self.section,
            offset: self.offset,
            source,
        })
    }
}

/// An image that is being read, from anything that can be read. It is not read past its end.
pub struct Reader<R> {
    pub(super) from: Source<R>,
    header: Header,
    digest: Digest,
    batches: u64,
    totals: Totals,
    /// Chunks of the batch at hand, and how many of them have been handed out.
    chunks: Vec<Chunk>,
    done: usize,
    sections: Sections,
    stored: Vec<u8>,
    pages: Vec<u8>,
    summary: Option<Summary>,
}

impl<R: Read> Reader<R> {
    /// Reads the header. `name` is what errors call the image.
    pub fn new(from: R, name: impl Into<String>) -> Result<Self, ImageError> {
        let mut from = Source {
            from,
            name: name.into(),
            offset: 0,
        };
        let mut bytes = vec![0; BLOCK];
        from.fill(&mut bytes)?;
        let wrong = |from: &Source<R>, wrong| ImageError::wrong(&from.name, 0, None, wrong);
        let len = wire::header_bytes(block(&mut bytes)).map_err(|w| wrong(&from, w))?;
        bytes.resize(len, 0);
        from.fill(&mut bytes[BLOCK..])?;
        let (header, sum) = wire::decode_header(&mut bytes).map_err(|w| wrong(&from, w))?;
        let mut digest = Digest::default();
        digest.add(sum);
        Ok(Self {
            from,
            header,
            digest,
            batches: 0,
            totals: Totals {
                file_bytes: len as u64,
                ..Totals::default()
            },
            chunks: Vec::new(),
            done: 0,
            sections: Sections::default(),
            stored: Vec::new(),
            pages: Vec::new(),
            summary: None,
        })
    }

    /// Who made it where.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What the image is; none before all of it has been read.
    pub fn summary(&self) -> Option<&Summary> {
        self.summary.as_ref()
    }

    /// Gives back what it reads from.
    pub fn into_inner(self) -> R {
        self.from.from
    }

    /// The next piece, verified; none: the image is complete.
    #[expect(
        clippy::should_implement_trait,
        reason = "a piece borrows from the reader"
    )]
    pub fn next(&mut self) -> Result<Option<Piece<'_>>, ImageError> {
        while let Some(chunk) = self.chunk()? {
            let Run {
                space,
                address,
                bytes,
            } = chunk.run;
            return Ok(Some(match chunk.kind {
                Kind::Zeroes => Piece::Zeroes {
                    space,
                    address,
                    bytes,
                },
                Kind::Gone => Piece::Gone {
                    space,
                    address,
                    bytes,
                },
                Kind::Pages { zstd } => {
                    self.load(&chunk)?;
                    Piece::Pages {
                        space,
                        address,
                        bytes: if zstd { &self.pages } else { &self.stored },
                    }
                }
                Kind::State { .. } => match self.part(&chunk)? {
                    None => continue,
                    Some(section) => Piece::State(self.state(section)),
                },
            }));
        }
        Ok(None)
    }

    /// The next chunk; its stored bytes are the next to be read. None: the image is complete.
    pub(super) fn chunk(&mut self) -> Result<Option<Chunk>, ImageError> {
        while self.summary.is_none() {
            if let Some(chunk) = self.chunks.get(self.done) {
                self.done += 1;
                return Ok(Some(*chunk));
            }
            self.batch()?;
        }
        Ok(None)
    }

    /// Batches whose lists have been read.
    pub(super) fn batches(&self) -> u64 {
        self.batches
    }

    /// The section that is complete.
    pub(super) fn state(&self, section: u32) -> State<'_> {
        State {
            name: &self.from.name,
            offset: self.from.offset,
            section,
            bytes: &self.sections.bytes,
        }
    }

    /// Reads the next list, or the trailer.
    fn batch(&mut self) -> Result<(), ImageError> {
        let at = self.from.offset;
        let index = self.batches;
        let mut bytes = vec![0; BLOCK];
        self.from.fill(&mut bytes)?;
        let name = self.from.name.clone();
        let wrong = |batch, wrong| ImageError::wrong(&name, at, batch, wrong);
        match wire::next(block(&mut bytes)).map_err(|w| wrong(Some(index), w))? {
            Next::Trailer => {
                self.totals.file_bytes += BLOCK as u64;
                let (batches, summary) =
                    wire::decode_trailer(block(&mut bytes)).map_err(|w| wrong(None, w))?;
                let found = Summary {
                    id: self.digest.id(),
                    totals: self.totals,
                };
                if (batches, summary) != (index, found) || self.sections.open {
                    return Err(wrong(
                        None,
                        Wrong::Damaged("the image is not what its trailer says"),
                    ));
                }
                self.summary = Some(summary);
            }
            Next::List(len) => {
                bytes.resize(len, 0);
                self.from.fill(&mut bytes[BLOCK..])?;
                let (chunks, sum) =
                    wire::decode_list(&mut bytes, index).map_err(|w| wrong(Some(index), w))?;
                self.digest.add(sum);
                self.totals.file_bytes += len as u64;
                for chunk in &chunks {
                    chunk.count(&mut self.totals);
                    self.totals.file_bytes += chunk.stored;
                }
                (self.chunks, self.done) = (chunks, 0);
                self.batches += 1;
            }
        }
        Ok(())
    }

    /// Reads a chunk's stored bytes, and decompresses them if they are.
    fn load(&mut self, chunk: &Chunk) -> Result<(), ImageError> {
        let at = self.from.offset;
        self.stored.resize(chunk.stored as usize, 0);
        self.from.fill(&mut self.stored)?;
        if hash(&self.stored) != chunk.hash {
            return Err(self.damaged(at, "the checksum of a chunk differs"));
        }
        if chunk.kind.zstd() {
            self.pages.resize(chunk.run.bytes as usize, 0);
            let whole = decompress(&self.stored, &mut self.pages);
            whole.map_err(|what| self.damaged(at, what))?;
        }
        Ok(())
    }

    /// Reads a part of a section of state; the section's number if it was the last.
    pub(super) fn part(&mut self, chunk: &Chunk) -> Result<Option<u32>, ImageError> {
        let at = self.from.offset;
        self.load(chunk)?;
        let (bytes, padding) = match chunk.kind.zstd() {
            true => (&self.pages[..], &[][..]),
            false => self.stored.split_at(chunk.run.bytes as usize),
        };
        let section = self.sections.add(chunk, bytes, padding);
        section.map_err(|what| self.damaged(at, what))
    }

    /// Something is wrong with the batch at hand.
    pub(super) fn damaged(&self, offset: u64, what: &'static str) -> ImageError {
        let batch = self.batches.checked_sub(1);
        ImageError::wrong(&self.from.name, offset, batch, Wrong::Damaged(what))
    }
}

/// The section of state at hand.
#[derive(Default)]
struct Sections {
    bytes: Vec<u8>,
    /// How many there were before it.
    count: u32,
    /// It goes on.
    open: bool,
}

impl Sections {
    fn add(
        &mut self,
        chunk: &Chunk,
        bytes: &[u8],
        padding: &[u8],
    ) -> Result<Option<u32>, &'static str> {
        if !self.open {
            self.bytes.clear();
        }
        let in_order =
            chunk.run.space == self.count && chunk.run.address == self.bytes.len() as u64;
        if !in_order || padding.iter().any(|byte| *byte != 0) {
            return Err("a part of the state that does not belong here");
        }
        if self.bytes.len() + bytes.len() > STATE_MAX {
            return Err("a section of state that is too long");
        }
        self.bytes.extend_from_slice(bytes);
        self.open = !matches!(chunk.kind, Kind::State { last: true, .. });
        if self.open {
            return Ok(None);
        }
        let section = self.count;
        self.count = section.checked_add(1).ok_or("too many sections of state")?;
        Ok(Some(section))
    }
}

/// Decompresses a chunk into exactly as many bytes as it is to have.
pub(super) fn decompress(stored: &[u8], to: &mut [u8]) -> Result<(), &'static str> {
    assert!(to.len() <= CHUNK_MAX);
    // A frame knows its own length; zeroes follow.
    let frame = zstd::zstd_safe::find_frame_compressed_size(stored);
    let frame = frame.map_err(|_| "a chunk that is no zstd frame")?;
    let whole = frame <= stored.len() && stored[frame..].iter().all(|byte| *byte == 0);
    if !whole {
        return Err("a zstd frame with something behind it");
    }
    match zstd::bulk::decompress_to_buffer(&stored[..frame], to) {
        Ok(len) if len == to.len() => Ok(()),
        _ => Err("a zstd frame of another length"),
    }
}

fn block(bytes: &mut [u8]) -> &mut [u8; BLOCK] {
    (&mut bytes[..BLOCK]).try_into().expect("a block")
}

/// What is read, and how far.
pub(super) struct Source<R> {
    pub from: R,
    pub name: String,
    pub offset: u64,
}

impl<R: Read> Source<R> {
    fn fill(&mut self, to: &mut [u8]) -> Result<(), ImageError> {
        let mut done = 0;
        while done < to.len() {
            match self.from.read(&mut to[done..]) {
                Ok(0) => {
                    return Err(ImageError::Truncated {
                        name: self.name.clone(),
                        offset: self.offset + done as u64,
                    });
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(ImageError::Io {
                        name: self.name.clone(),
                        offset: self.offset + done as u64,
                        source,
                    });
                }
            }
        }
        self.offset += to.len() as u64;
        Ok(())
    }
}
