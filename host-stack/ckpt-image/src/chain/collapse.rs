//! A chain becomes one image.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::{Chain, ChainError, Place};
use crate::image::{CHUNK_MAX, FileSink, Header, Options, Sink, Summary, Writer};

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
    let mut chain = Chain::open(images)?;
    let file = File::create(partial).map_err(io_error(partial))?;
    let sink = FileSink::new(file).map_err(io_error(partial))?;
    let options = Options {
        zstd,
        expected: chain.parts().map(|part| part.stored_bytes()).sum(),
        ..Options::new(to.display().to_string())
    };
    Ok(chain.copy_to(sink, options)?.1)
}

impl Chain {
    /// Writes one image that says what the chain says, and stands for its newest.
    pub fn copy_to<S: Sink>(
        &mut self,
        to: S,
        options: Options,
    ) -> Result<(S, Summary), ChainError> {
        let (newest, summary) = self.newest();
        let header = Header {
            parent: None,
            stands_for: Some(summary.id),
            ..newest.clone()
        };
        let mut writer = Writer::new(to, &header, options)?;
        self.states(|state| -> Result<(), ChainError> { Ok(writer.state_bytes(state.bytes())?) })?;
        let parts: Vec<_> = self.parts().collect();
        let mut pages = vec![0; CHUNK_MAX];
        for part in parts {
            let run = part.run;
            if part.place == Place::Zeroes {
                writer.zeroes(run.space, run.address, run.bytes)?;
                continue;
            }
            let pages = &mut pages[..run.bytes as usize];
            self.load(&part, pages)?;
            writer.pages(run.space, run.address, pages)?;
        }
        Ok(writer.finish()?)
    }
}

impl super::Part {
    /// Bytes that the pages take in an image.
    fn stored_bytes(&self) -> u64 {
        match self.place {
            Place::Zeroes => 0,
            Place::Stored { .. } => self.run.bytes,
        }
    }
}
