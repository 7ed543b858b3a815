//! Memory of a tree that comes, while its image is still being written: what there are places for goes there, and nobody keeps
//! it twice. The rest is an image of its own, which is small.

use std::{
    fs::File,
    io::{self, Read},
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
}

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
        })
    }

    /// More of it is there.
    pub fn take(&mut self, ahead: Ahead) -> Result<()> {
        let is_at_its_front = self.reader.batches() == 0;
        for piece in ahead.large {
            let (space, memory) = (piece.space, piece.start..piece.end);
            match is_at_its_front {
                true => self.staging.reserve(space, memory, piece.is_unreserved),
                // What has been read of memory that is told of only now is in the rest.
                false => self.staging.grow(space, memory),
            }
        }
        let (before, until) = (self.reader.offset(), ahead.written.unwrap_or(u64::MAX));
        while self.reader.offset() < until && self.next()? {}
        // While the tree stands still, it takes longer than it saves.
        if ahead.written.is_some_and(|until| until > before) {
            self.staging.compact();
        }
        Ok(())
    }

    /// What can be read when more of it is there, if it comes by itself.
    pub fn comes(&self) -> Option<BorrowedFd<'_>> {
        match self.reader.source().get_ref() {
            Front::Memory { .. } => None,
            Front::Incoming(incoming) => incoming.comes(),
        }
    }

    /// All of it is there, or is about to be: the memory, and an image of the rest.
    pub fn finish(mut self) -> Result<(Staging, File)> {
        while self.next()? {}
        self.rest.finish()?;
        Ok((self.staging, self.kept))
    }

    /// Waits for the next piece of it; whether there was one.
    pub fn next(&mut self) -> Result<bool> {
        let Some(piece) = self.reader.next()? else {
            // Whoever sends it hears that all of it has been read from who reads its end.
            let end = self.reader.source_mut().lend(1);
            let end = end.map_err(|source| Error::io(super::IMAGE, source))?;
            return match end {
                [] => Ok(false),
                _ => Err(super::nonsense("more than an image comes")),
            };
        };
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

/// An image from its front on.
pub enum Front {
    /// In memory of this machine: whatever offset others have in it.
    Memory { image: File, at: u64 },
    /// As it comes.
    Incoming(Box<Incoming>),
}

impl Read for Front {
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
