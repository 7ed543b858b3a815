//! Memory of a tree that comes, while the tree still runs where it is.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

use snaprig_ckpt::restart::Staging;
use snaprig_ckpt_image::image::{Reader, Reading};
use snaprig_resources::error::Result;

use super::{handover::Ahead, incoming::Incoming};

/// An image that is read while it is written.
pub struct Coming {
    reader: Reader<Reading<Front>>,
    staging: Staging,
}

impl Coming {
    /// The image has just been begun.
    pub fn new(front: Front) -> Result<Self> {
        Ok(Self {
            reader: Reader::new(front, super::IMAGE)?,
            staging: Staging::default(),
        })
    }

    /// More of it is there.
    pub fn take(&mut self, ahead: Ahead) -> Result<()> {
        for piece in ahead.large {
            let memory = piece.start..piece.end;
            self.staging
                .reserve(piece.space, memory, piece.is_unreserved);
        }
        let until = ahead.written.unwrap_or(u64::MAX);
        while self.reader.offset() < until && self.next()? {}
        self.staging.compact();
        Ok(())
    }

    /// All of it is there, or is about to be: the memory, and the image.
    pub fn finish(mut self) -> Result<(Staging, File)> {
        while self.next()? {}
        let front = self.reader.into_source().into_inner();
        Ok((self.staging, front.into_image()?))
    }

    /// Whether there is more.
    fn next(&mut self) -> Result<bool> {
        match self.reader.next()? {
            Some(piece) => self.staging.take(&piece).map(|()| true),
            None => Ok(false),
        }
    }
}

/// An image from its front on, whatever offset others have in its file.
pub struct Front {
    image: File,
    at: u64,
    /// Who says how much of it there is.
    incoming: Option<Incoming>,
}

impl Front {
    /// Of an image of which all is there that is to be read.
    pub fn of(image: File) -> Self {
        Self {
            image,
            at: 0,
            incoming: None,
        }
    }

    /// Of one that comes.
    pub fn of_incoming(incoming: Incoming) -> Result<Self> {
        let image = incoming.image()?;
        Ok(Self {
            incoming: Some(incoming),
            ..Self::of(image)
        })
    }

    fn into_image(self) -> Result<File> {
        self.incoming.map_or(Ok(self.image), Incoming::whole)
    }
}

impl Read for Front {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let here = match &mut self.incoming {
            Some(incoming) => incoming.wait_beyond(self.at)?,
            None => u64::MAX,
        };
        let left = usize::try_from(here - self.at).unwrap_or(usize::MAX);
        let room = buffer.len().min(left);
        let read = self.image.read_at(&mut buffer[..room], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
