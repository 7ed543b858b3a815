//! Memory of a tree that comes, while its image is still being written: what there are places for goes there, and nobody keeps
//! it twice. The rest is an image of its own, which is small.

use std::{
    fs::File,
    io,
    os::{fd::BorrowedFd, unix::fs::FileExt},
};

use rustix::fs::{MemfdFlags, memfd_create};
use snaprig_ckpt::restart::Staging;
use snaprig_ckpt_image::image::{FileSink, Options, Piece, Reader, Reading, Writer};
use snaprig_image::Source;
use snaprig_resources::error::{Error, Result};

use super::{handover::Ahead, incoming::Incoming};

/// An image that is read while it is written.
pub struct Coming {
    reader: Reader<Reading<Front>>,
    staging: Staging,
    /// All that has no place in memory yet.
    rest: Writer<FileSink>,
    kept: File,
    /// What is behind the tree's state is not for now.
    defers: bool,
    has_state: bool,
}

/// What has been read of an image.
pub struct Read {
    /// Memory that is in place.
    pub staging: Staging,
    /// An image of all else.
    pub image: File,
    /// What follows, if anything does.
    pub rest: Option<Remainder>,
}

/// What is behind the state in an image whose tree does not wait for all of its memory.
pub struct Remainder(Reader<Reading<Front>>);

impl Coming {
    /// The image has just been begun.
    pub fn new(front: Front) -> Result<Self> {
        let failed = |source| Error::io(super::IMAGE, source);
        let reader = Reader::new(front, super::IMAGE)?;
        let kept = memfd_create("snaprig-rest", MemfdFlags::CLOEXEC);
        let kept = File::from(kept.map_err(|error| failed(error.into()))?);
        let sink = kept.try_clone().and_then(FileSink::new).map_err(failed)?;
        let options = Options {
            buffers: 1,
            ..Options::new(super::IMAGE)
        };
        Ok(Self {
            rest: Writer::new(sink, reader.header(), options)?,
            reader,
            staging: Staging::default(),
            kept,
            defers: false,
            has_state: false,
        })
    }

    /// More of it is there.
    pub fn take(&mut self, ahead: Ahead) -> Result<()> {
        let is_at_its_front = self.reader.batches() == 0;
        for piece in ahead.large {
            let (space, memory) = (piece.space, piece.start..piece.end);
            self.staging.grow(space, memory.clone());
            // What has been read of memory that is told of only now is in the rest.
            if is_at_its_front {
                self.staging.reserve(space, memory, piece.is_unreserved);
            }
        }
        for (space, pages) in ahead.present {
            self.staging.populate(space, &pages);
        }
        self.defers |= ahead.defers;
        let until = ahead.written.unwrap_or(u64::MAX);
        while self.reader.offset() < until && self.next()? {}
        Ok(())
    }

    /// What can be read when more of it is there, if it comes by itself.
    pub fn comes(&self) -> Option<BorrowedFd<'_>> {
        let is_wanted = !self.is_over();
        is_wanted.then(|| self.reader.source().get_ref().comes())?
    }

    /// Whether the rest is not for now.
    fn is_over(&self) -> bool {
        self.defers && self.has_state
    }

    /// All of it that is for now is there, or is about to be.
    pub fn finish(mut self) -> Result<Read> {
        while self.next()? {}
        self.rest.finish()?;
        Ok(Read {
            staging: self.staging,
            image: self.kept,
            rest: self.defers.then_some(Remainder(self.reader)),
        })
    }

    /// Waits for the next piece of it; whether there was one.
    pub fn next(&mut self) -> Result<bool> {
        if self.is_over() {
            return Ok(false);
        }
        let Some(piece) = self.reader.next()? else {
            return ends(&mut self.reader).map(|()| false);
        };
        self.has_state |= matches!(piece, Piece::State(_));
        let rest = &mut self.rest;
        self.staging.take(piece, |piece| {
            let written = match piece {
                Piece::State(state) => rest.state_bytes(state.bytes()),
                Piece::Pages {
                    space,
                    address,
                    bytes,
                } => rest.pages(space, address, bytes),
                Piece::Zeroes {
                    space,
                    address,
                    bytes,
                } => rest.zeroes(space, address, bytes),
                Piece::Gone {
                    space,
                    address,
                    bytes,
                } => rest.gone(space, address, bytes),
            };
            Ok(written?)
        })?;
        Ok(true)
    }
}

impl Remainder {
    /// What can be read when more of it is there.
    pub fn comes(&self) -> Option<BorrowedFd<'_>> {
        self.0.source().get_ref().comes()
    }

    /// Waits for the next piece; none: that was all ([`Self::ends`]).
    pub fn next(&mut self) -> Result<Option<Piece<'_>>> {
        Ok(self.0.next()?)
    }

    /// All of it has been read, and was what was sent.
    pub fn ends(&mut self) -> Result<()> {
        ends(&mut self.0)
    }
}

/// Whoever sends an image hears that all of it has been read from who reads its end.
fn ends(reader: &mut Reader<Reading<Front>>) -> Result<()> {
    let end = reader.source_mut().lend(1);
    match end.map_err(|source| Error::io(super::IMAGE, source))? {
        [] => Ok(()),
        _ => Err(super::nonsense("more than an image comes")),
    }
}

/// An image from its front on.
pub enum Front {
    /// In memory of this machine: whatever offset others have in it.
    Memory { image: File, at: u64 },
    /// As it comes.
    Incoming(Box<Incoming>),
}

impl Front {
    /// What can be read when more of it is there, if it comes by itself.
    fn comes(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Memory { .. } => None,
            Self::Incoming(incoming) => incoming.comes(),
        }
    }
}

impl io::Read for Front {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Memory { image, at } => {
                let read = image.read_at(buffer, *at)?;
                *at += read as u64;
                Ok(read)
            }
            Self::Incoming(incoming) => incoming.read(buffer),
        }
    }
}
