//! Memory of a tree that comes, while the tree still runs where it is.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
};

use snaprig_ckpt::restart::Staging;
use snaprig_ckpt_image::image::{Reader, Reading};
use snaprig_resources::error::Result;

use super::handover::Ahead;

/// An image that is read while it is written.
pub struct Coming {
    reader: Reader<Reading<Front>>,
    staging: Staging,
}

impl Coming {
    /// The image has just been begun.
    pub fn new(image: File) -> Result<Self> {
        let front = Front { image, at: 0 };
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
        while self.reader.offset() < ahead.written {
            self.next()?;
        }
        self.staging.compact();
        Ok(())
    }

    /// All of it is there.
    pub fn finish(mut self) -> Result<Staging> {
        while self.next()? {}
        Ok(self.staging)
    }

    /// Whether there is more.
    fn next(&mut self) -> Result<bool> {
        match self.reader.next()? {
            Some(piece) => self.staging.take(&piece).map(|()| true),
            None => Ok(false),
        }
    }
}

/// A file from its front on, whatever offset others have in it.
struct Front {
    image: File,
    at: u64,
}

impl Read for Front {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.image.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
