//! A chain becomes one image.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::{Chain, ChainError, Place};
use crate::image::{FileSink, Header, Options, Sink, Summary, Writer};

/// Writes what the chain of `images`, the oldest first, says together as one image, whose name is
/// `to` once it is complete and on the disk. Whatever fails, the images are as they were.
pub fn collapse(images: &[PathBuf], to: &Path, zstd: Option<i32>) -> Result<Summary, ChainError> {
    let mut partial = to.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let written = write(images, &partial, to, zstd).and_then(|summary| {
        fs::rename(&partial, to).map_err(io_error(to))?;
        let directory = to.parent().filter(|path| path.as_os_str() != "");
        let directory = directory.unwrap_or(Path::new("."));
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(io_error(directory))?;
        Ok(summary)
    });
    written.inspect_err(|_| {
        // If it cannot be removed, the next attempt writes over it.
        let _ = fs::remove_file(&partial);
    })
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> ChainError {
    move |source| ChainError::Io {
        path: path.to_owned(),
        source,
    }
}

fn write(
    images: &[PathBuf],
    partial: &Path,
    to: &Path,
    zstd: Option<i32>,
) -> Result<Summary, ChainError> {
    let chain = Chain::open(images)?;
    let file = File::create(partial).map_err(io_error(partial))?;
    let sink = FileSink::new(file).map_err(io_error(partial))?;
    let options = Options {
        zstd,
        ..chain.collapsed_options(to.display().to_string())
    };
    let writer = Writer::new(sink, &chain.collapsed_header(), options)?;
    Ok(chain.copy_to(writer)?.1)
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
