//! Reads an image, once, front to back.

use std::io::Read;

use serde::de::DeserializeOwned;
use snaprig_image::{Decoder, END, PartError, Source, decode::Part, transport::Reading};

use super::{
    CHUNK_MAX, Header, ImageError, Run, STATE_MAX, Summary, Totals, hash,
    wire::{self, Chunk, FORMAT, Kind},
};

/// What comes next in an image.
#[derive(Clone, Copy, Debug)]
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
#[derive(Clone, Copy, Debug)]
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

/// An image that is being read. It is not read past its end.
pub struct Reader<S> {
    source: S,
    name: String,
    grammar: Decoder,
    header: Header,
    batches: u64,
    totals: Totals,
    /// Chunks of the batch at hand, and how many of them have been handed out.
    chunks: Vec<Chunk>,
    done: usize,
    sections: Sections,
    /// What was compressed.
    pages: Vec<u8>,
    summary: Option<Summary>,
}

impl<R: Read> Reader<Reading<R>> {
    /// Reads the header from anything that can be read. `name` is what errors call the image.
    pub fn new(from: R, name: impl Into<String>) -> Result<Self, ImageError> {
        Self::of(Reading::new(from), name)
    }
}

impl<S: Source> Reader<S> {
    /// Reads the header from a source. `name` is what errors call the image.
    pub fn of(mut source: S, name: impl Into<String>) -> Result<Self, ImageError> {
        let (name, mut grammar) = (name.into(), Decoder::new(&FORMAT));
        let header = loop {
            let part = part(&mut source, &mut grammar, &name, None)?;
            if let Part::Header { parent, payload } = part {
                let header = wire::decode_header(parent, payload);
                break header
                    .map_err(|what| ImageError::wrong(&name, 0, None, PartError::Damaged(what)))?;
            }
        };
        let totals = Totals {
            file_bytes: grammar.offset(),
            ..Totals::default()
        };
        Ok(Self {
            source,
            name,
            grammar,
            header,
            batches: 0,
            totals,
            chunks: Vec::new(),
            done: 0,
            sections: Sections::default(),
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

    /// What it reads from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// The same, for who reads what follows.
    pub fn source_mut(&mut self) -> &mut S {
        &mut self.source
    }

    /// How many of its bytes have been read.
    pub fn offset(&self) -> u64 {
        self.grammar.offset()
    }

    /// What errors call it.
    pub fn name(&self) -> &str {
        &self.name
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
                    let at = self.grammar.offset();
                    let batch = self.batches - 1;
                    let (source, grammar) = (&mut self.source, &mut self.grammar);
                    let stored = stored(source, grammar, &self.name, batch, &chunk)?;
                    let bytes = match zstd {
                        false => stored,
                        true => {
                            self.pages.resize(bytes as usize, 0);
                            decompress(stored, &mut self.pages)
                                .map_err(|what| damaged(&self.name, at, batch, what))?;
                            &self.pages
                        }
                    };
                    Piece::Pages {
                        space,
                        address,
                        bytes,
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
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// The section that is complete.
    pub(super) fn state(&self, section: u32) -> State<'_> {
        State {
            name: &self.name,
            offset: self.grammar.offset(),
            section,
            bytes: &self.sections.bytes,
        }
    }

    /// Leaves out a chunk's stored bytes, for somebody else to read and check; where in the image they are.
    pub(super) fn pass(&mut self, chunk: &Chunk) -> Result<u64, ImageError> {
        let at = self.grammar.offset();
        let skipped = self.source.skip(chunk.stored);
        skipped.map_err(|source| io(&self.name, at, source))?;
        self.grammar.pass_body(chunk.stored);
        Ok(at)
    }

    /// Reads the next list, or the end.
    fn batch(&mut self) -> Result<(), ImageError> {
        let at = self.grammar.offset();
        let mut batch = Some(self.batches);
        loop {
            let part = part(&mut self.source, &mut self.grammar, &self.name, batch)?;
            let checked = match part {
                Part::Head(head) => {
                    batch = batch.filter(|_| head.kind != END);
                    wire::check_head(&head)
                }
                Part::Record(head, payload) => match wire::decode_list(&head, payload) {
                    Ok(chunks) => {
                        self.totals.file_bytes += self.grammar.offset() - at + head.body;
                        for chunk in &chunks {
                            chunk.count(&mut self.totals);
                        }
                        (self.chunks, self.done) = (chunks, 0);
                        self.batches += 1;
                        return Ok(());
                    }
                    Err(what) => Err(what),
                },
                Part::End(end) => {
                    self.totals.file_bytes += self.grammar.offset() - at;
                    let summary = wire::summary(&end);
                    if summary.totals == self.totals && !self.sections.open {
                        self.summary = Some(summary);
                        return Ok(());
                    }
                    Err("the image is not what its end says")
                }
                Part::Begun | Part::Header { .. } | Part::Body(_) => {
                    Err("a batch with more than its chunks")
                }
            };
            let wrong = |what| ImageError::wrong(&self.name, at, batch, PartError::Damaged(what));
            checked.map_err(wrong)?;
        }
    }

    /// Reads a part of a section of state; the section's number if it was the last.
    pub(super) fn part(&mut self, chunk: &Chunk) -> Result<Option<u32>, ImageError> {
        let (at, batch) = (self.grammar.offset(), self.batches - 1);
        let (source, grammar) = (&mut self.source, &mut self.grammar);
        let stored = stored(source, grammar, &self.name, batch, chunk)?;
        let (bytes, padding) = match chunk.kind.zstd() {
            false => stored.split_at(chunk.run.bytes as usize),
            true => {
                self.pages.resize(chunk.run.bytes as usize, 0);
                decompress(stored, &mut self.pages)
                    .map_err(|what| damaged(&self.name, at, batch, what))?;
                (&self.pages[..], &[][..])
            }
        };
        let section = self.sections.add(chunk, bytes, padding);
        section.map_err(|what| damaged(&self.name, at, batch, what))
    }
}

/// The next part of the grammar. `batch`: which an error is about.
fn part<'a, S: Source>(
    source: &'a mut S,
    grammar: &mut Decoder,
    name: &str,
    batch: Option<u64>,
) -> Result<Part<'a>, ImageError> {
    // Lengths have been checked.
    let bytes = lend(source, name, grammar.offset(), grammar.wants() as usize)?;
    let taken = grammar.take(bytes);
    taken.map_err(|wrong| ImageError::wrong(name, grammar.part_at(), batch, wrong))
}

/// A chunk's stored bytes, checked.
fn stored<'a, S: Source>(
    source: &'a mut S,
    grammar: &mut Decoder,
    name: &str,
    batch: u64,
    chunk: &Chunk,
) -> Result<&'a [u8], ImageError> {
    let at = grammar.offset();
    let bytes = lend(source, name, at, chunk.stored as usize)?;
    grammar.pass_body(chunk.stored);
    match hash(bytes) == chunk.hash {
        true => Ok(bytes),
        false => Err(damaged(name, at, batch, "the checksum of a chunk differs")),
    }
}

/// So many bytes, all of them.
fn lend<'a, S: Source>(
    source: &'a mut S,
    name: &str,
    offset: u64,
    bytes: usize,
) -> Result<&'a [u8], ImageError> {
    match source.lend(bytes) {
        Ok(lent) if lent.len() == bytes => Ok(lent),
        Ok(lent) => Err(ImageError::Truncated {
            name: name.to_owned(),
            offset: offset + lent.len() as u64,
        }),
        Err(source) => Err(io(name, offset, source)),
    }
}

fn io(name: &str, offset: u64, source: std::io::Error) -> ImageError {
    ImageError::Io {
        name: name.to_owned(),
        offset,
        source,
    }
}

fn damaged(name: &str, offset: u64, batch: u64, what: &'static str) -> ImageError {
    ImageError::wrong(name, offset, Some(batch), PartError::Damaged(what))
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
