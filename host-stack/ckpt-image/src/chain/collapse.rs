//! A chain becomes one image.

use std::{
    io,
    path::{Path, PathBuf},
};

use snaprig_store::{CommitError, NewFile, file::remove_dead};

use super::{Chain, ChainError, Place};
use crate::image::{FileSink, Header, Options, Sink, Summary, Writer};

/// Writes what the chain of `images`, the oldest first, says together as one image, whose name is
/// `to` once it is complete and on the disk. Whatever fails, the images are as they were.
pub fn collapse(images: &[PathBuf], to: &Path, zstd: Option<i32>) -> Result<Summary, ChainError> {
    let chain = Chain::open(images)?;
    remove_dead(to)?;
    let file = NewFile::create(to)?;
    let sink = file.file().try_clone().and_then(FileSink::new);
    let sink = sink.map_err(|source| ChainError::Io {
        path: to.to_owned(),
        source,
    })?;
    let options = Options {
        zstd,
        ..chain.collapsed_options(to.display().to_string())
    };
    let writer = Writer::new(sink, &chain.collapsed_header(), options)?;
    let (_, summary) = chain.copy_to(writer)?;
    file.commit()?;
    Ok(summary)
}

impl From<CommitError> for ChainError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Io { path, source } => Self::Io { path, source },
            CommitError::Busy { path } => Self::Io {
                path,
                source: io::ErrorKind::ResourceBusy.into(),
            },
            CommitError::Exists { path } => Self::Io {
                path,
                source: io::ErrorKind::AlreadyExists.into(),
            },
        }
    }
}

impl Chain {
    /// The header of an image that says what the chain says.
    pub fn collapsed_header(&self) -> Header {
        Header {
            parent: None,
            ..self.newest().0.clone()
        }
    }

    /// How that image is written: it stands for the newest.
    pub fn collapsed_options(&self, name: impl Into<String>) -> Options {
        Options {
            expected: self.stored_bytes(),
            stands_for: Some(self.newest().1.id),
            ..Options::new(name)
        }
    }

    /// Bytes of the pages that a collapsed image has, uncompressed.
    pub fn stored_bytes(&self) -> u64 {
        let stored = self.parts().filter(|part| part.place != Place::Zeroes);
        stored.map(|part| part.run.bytes).sum()
    }

    /// Writes what the chain says: the newest's state, and all pages.
    pub fn copy_to<S: Sink>(&self, mut writer: Writer<S>) -> Result<(S, Summary), ChainError> {
        self.states(|state| -> Result<(), ChainError> { Ok(writer.state_bytes(state.bytes())?) })?;
        let parts: Vec<_> = self.parts().collect();
        let mut loader = self.loader();
        for part in parts {
            let run = part.run;
            if part.place == Place::Zeroes {
                writer.zeroes(run.space, run.address, run.bytes)?;
                continue;
            }
            loader.load(&part, |at, pages| -> Result<(), ChainError> {
                Ok(writer.pages(run.space, run.address + at, pages)?)
            })?;
        }
        Ok(writer.finish()?)
    }
}
