//! What plugins put into a checkpoint's directory, on its way to another supervisor: a tar archive, in portions of which
//! each has its length in front (four bytes), and the last one none.
//!
//! What must stay true: whatever arrives, nothing is written outside of the directory; the archive's end does not depend
//! on what is in it.

use std::{
    io::{self, BufWriter, Read, Write},
    path::Path,
};

use snaprig_peers::Stream;
use snaprig_resources::error::{Error, Result};
use tempfile::TempDir;

/// Bytes of a portion.
const PORTION: usize = 256 << 10;

/// A directory for files of plugins, while their tree moves; gone afterwards.
pub struct PluginFiles(TempDir);

impl PluginFiles {
    /// Makes one in a directory of checkpoints.
    pub fn make(directory: &Path) -> Result<Self> {
        let made = tempfile::Builder::new()
            .prefix("migrating-")
            .tempdir_in(directory);
        let failed = |source| Error::io(directory.display().to_string(), source);
        made.map(Self).map_err(failed)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Sends what is in it.
    pub fn send(&self, to: &Stream) -> io::Result<()> {
        let portions = BufWriter::with_capacity(PORTION, Portions(to));
        let mut archive = tar::Builder::new(portions);
        archive.follow_symlinks(false);
        archive.append_dir_all("", self.path())?;
        let portions = archive.into_inner()?;
        let Portions(mut to) = portions
            .into_inner()
            .map_err(io::IntoInnerError::into_error)?;
        to.write_all(&0u32.to_le_bytes())
    }
}

/// Puts what is sent into a directory.
pub fn receive(from: &mut dyn Read, to: &Path) -> io::Result<()> {
    let mut portions = Received {
        from,
        left: 0,
        is_over: false,
    };
    tar::Archive::new(&mut portions).unpack(to)?;
    io::copy(&mut portions, &mut io::sink()).map(drop)
}

struct Portions<'a>(&'a Stream);

impl Write for Portions<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let some = &bytes[..bytes.len().min(PORTION)];
        if !some.is_empty() {
            self.0.write_all(&(some.len() as u32).to_le_bytes())?;
            self.0.write_all(some)?;
        }
        Ok(some.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Received<'a> {
    from: &'a mut dyn Read,
    /// Of the portion that is read.
    left: usize,
    is_over: bool,
}

impl Read for Received<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.is_over {
            let mut length = [0; 4];
            self.from.read_exact(&mut length)?;
            self.left = u32::from_le_bytes(length) as usize;
            self.is_over = self.left == 0;
        }
        let most = to.len().min(self.left);
        if most == 0 {
            // To read nothing from a socket may wait for something.
            return Ok(0);
        }
        let count = self.from.read(&mut to[..most])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}
