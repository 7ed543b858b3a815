//! A file as a source, at an offset of its own: several can read the same file.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};

use crate::Source;

/// Reads a file from its beginning.
pub struct FileSource {
    file: Arc<File>,
    at: u64,
    buffer: Vec<u8>,
}

impl FileSource {
    /// Reads this file.
    pub fn new(file: Arc<File>) -> Self {
        Self {
            file,
            at: 0,
            buffer: Vec::new(),
        }
    }

    /// The file.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }
}

impl Source for FileSource {
    fn lend(&mut self, bytes: usize) -> io::Result<&[u8]> {
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes, 0);
        }
        let (room, mut done) = (&mut self.buffer[..bytes], 0);
        while done < bytes {
            match self.file.read_at(&mut room[done..], self.at) {
                Ok(0) => break,
                Ok(count) => (done, self.at) = (done + count, self.at + count as u64),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&room[..done])
    }

    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        self.at = self.at.saturating_add(bytes);
        Ok(())
    }
}
