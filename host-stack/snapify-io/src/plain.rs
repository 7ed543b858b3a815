//! A program's own file, read as it is, and written aside until it is whole.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use snaprig_store::NewFile;

use crate::{
    stream::{Behind, Readable, Writable},
    sums::{StoreError, io_error},
};

/// A file that is being written; removed unless it is finished.
pub struct PlainFile {
    path: PathBuf,
    /// There until it is finished.
    file: Option<NewFile>,
    len: u64,
    behind: Behind,
}

impl PlainFile {
    /// Begins a file that will be at `path`.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            path: path.to_owned(),
            file: Some(NewFile::create(path)?),
            len: 0,
            behind: Behind::default(),
        })
    }
}

impl Writable for PlainFile {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::BrokenPipe.into());
        let written = file.and_then(|file| {
            file.write_all(bytes)?;
            self.len += bytes.len() as u64;
            self.behind.written(file.file(), self.len);
            Ok(())
        });
        written.map_err(io_error(&self.path))
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        match self.file.take() {
            Some(file) => Ok(file.commit()?),
            None => Ok(()),
        }
    }
}

/// A file that is being read.
pub struct PlainSource {
    path: PathBuf,
    file: File,
    len: u64,
    offset: u64,
    buffer: Vec<u8>,
}

impl PlainSource {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let open = || {
            // A FIFO without a writer would be waited for.
            let mut options = File::options();
            let file = options
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(path)?;
            let there = file.metadata()?;
            if !there.is_file() {
                // What is no file has no length, and may have no end.
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            Ok((file, there.len()))
        };
        let (file, len) = open().map_err(io_error(path))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            len,
            offset: 0,
            buffer: Vec::new(),
        })
    }
}

impl Readable for PlainSource {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn next(&mut self, bytes: usize) -> Result<&[u8], StoreError> {
        // What has been appended since does not count; what is missing is an error.
        let want = (self.len - self.offset).min(bytes as u64) as usize;
        self.buffer.resize(want, 0);
        let read = self.file.read_exact(&mut self.buffer);
        read.map_err(io_error(&self.path))?;
        self.offset += want as u64;
        Ok(&self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_there_when_it_is_finished_and_is_read_as_it_was_opened() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut file = PlainFile::create(&path).unwrap();
        file.append(b"all").unwrap();
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        let mut file = PlainFile::create(&path).unwrap();
        file.append(b"all ").unwrap();
        file.append(b"of it").unwrap();
        assert!(!path.exists());
        file.finish().unwrap();
        let mut source = PlainSource::open(&path).unwrap();
        fs::write(&path, "all of it, and more").unwrap();
        assert_eq!(source.next(3).unwrap(), b"all");
        assert_eq!(source.next(100).unwrap(), b" of it");
        assert_eq!(source.next(100).unwrap(), b"");
        let mut source = PlainSource::open(&path).unwrap();
        fs::write(&path, "less").unwrap();
        assert!(source.next(100).is_err());
        assert!(PlainSource::open(directory.path()).is_err());
    }
}
