//! Files of a snapshot as transports of images: a sink and a source ([`snaprig_image`]) that keep and check the checksums
//! beside each file ([`crate::sums`]).

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use rustix::fd::AsRawFd;
use snaprig_image::{Filled, Sink, Source};
use snaprig_store::NewFile;

use crate::sums::{self, CHUNK_BYTES, StoreError, Sums, io_error};

/// A file that the daemon reads.
pub trait Readable {
    /// Bytes of the file.
    fn bytes(&self) -> u64;

    /// The next bytes of the file; fewer only if it ends before.
    fn next(&mut self, bytes: usize) -> Result<&[u8], StoreError>;
}

/// A file that the daemon writes; nothing of it remains unless it is finished.
pub trait Writable {
    /// Bytes that have been written.
    fn bytes(&self) -> u64;

    /// Writes the next bytes.
    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError>;

    /// Gives the file its name, when all of it is on the disk.
    fn finish(&mut self) -> Result<(), StoreError>;
}

/// Has the kernel write a file to its disk while more of it comes in, so that there is less to wait for at its end.
#[derive(Default)]
pub struct Behind {
    /// Bytes that the kernel was told of.
    begun: u64,
}

impl Behind {
    /// What the kernel is told of at once.
    const BYTES: u64 = 2 << 20;

    /// The file has so many bytes now.
    pub fn written(&mut self, file: &File, len: u64) {
        let more = len.saturating_sub(self.begun);
        if more < Self::BYTES {
            return;
        }
        let (fd, from) = (file.as_raw_fd(), self.begun as i64);
        // SAFETY: sync_file_range(2) takes numbers alone. It waits for nothing, and where it does not work, fsync(2) does all
        // of it in the end.
        unsafe { libc::sync_file_range(fd, from, more as i64, libc::SYNC_FILE_RANGE_WRITE) };
        self.begun = len;
    }
}

/// A file that is written under a name of its own, and takes its name with its checksums; removed unless it is finished.
/// Its directory is not synced: whoever commits the snapshot does that.
pub struct SnapshotFile {
    path: PathBuf,
    /// There until it is finished.
    file: Option<NewFile>,
    sums: Sums,
    /// None: nobody needs it after a crash of the machine.
    behind: Option<Behind>,
}

impl SnapshotFile {
    /// Begins a file that will be at `path`.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            path: path.to_owned(),
            file: Some(NewFile::create(path)?),
            sums: Sums::default(),
            behind: Some(Behind::default()),
        })
    }

    /// The same, of a file that nobody needs after a crash of the machine: nothing waits for the disk.
    pub fn passing(path: &Path) -> Result<Self, StoreError> {
        let file = Self::create(path)?;
        Ok(Self {
            behind: None,
            ..file
        })
    }

    /// Bytes that have been written.
    pub fn len(&self) -> u64 {
        self.sums.len()
    }

    /// Whether nothing has been written.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// Writes the next bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::BrokenPipe.into());
        let written = file.and_then(|file| {
            file.write_all(bytes)?;
            self.sums.update(bytes);
            if let Some(behind) = &mut self.behind {
                behind.written(file.file(), self.sums.len());
            }
            Ok(())
        });
        written.map_err(io_error(&self.path))
    }

    /// Gives the file its name, when its checksums and all of it are on the disk.
    pub fn finish(&mut self) -> Result<(), StoreError> {
        let Some(file) = self.file.take() else {
            return Ok(());
        };
        let sums = std::mem::take(&mut self.sums);
        let named = match self.behind {
            Some(_) => sums.save(&self.path).and_then(|()| Ok(file.rename()?)),
            None => sums
                .save_unsynced(&self.path)
                .and_then(|()| Ok(file.rename_unsynced()?)),
        };
        named.inspect_err(|_| {
            // Checksums of a file that is not there would be left behind.
            let _ = fs::remove_file(sums::path_of(&self.path));
        })
    }
}

impl Writable for SnapshotFile {
    fn bytes(&self) -> u64 {
        self.len()
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.append(bytes)
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        self.finish()
    }
}

impl Readable for Verified {
    fn bytes(&self) -> u64 {
        self.len()
    }

    fn next(&mut self, bytes: usize) -> Result<&[u8], StoreError> {
        self.next(bytes)
    }
}

impl Sink for SnapshotFile {
    fn write(&mut self, bytes: Filled) -> io::Result<()> {
        self.append(&bytes).map_err(into_io)
    }

    fn finish(&mut self) -> io::Result<()> {
        Self::finish(self).map_err(into_io)
    }
}

/// Reads a file chunk by chunk, and hands out only what its checksums vouch for.
pub struct Verified {
    path: PathBuf,
    file: File,
    sums: Sums,
    /// Bytes that have been read.
    offset: u64,
    /// Those that have not been lent: `buffer[from..to]`.
    buffer: Vec<u8>,
    from: usize,
    to: usize,
}

impl Verified {
    /// Opens a stored file.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(io_error(path))?;
        let sums = Sums::load(path)?;
        let found = file.metadata().map_err(io_error(path))?.len();
        if found != sums.len() {
            let expected = sums.len();
            return Err(StoreError::Truncated {
                path: path.to_owned(),
                expected,
                found,
            });
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            sums,
            offset: 0,
            buffer: Vec::new(),
            from: 0,
            to: 0,
        })
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.sums.len()
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// The next bytes of the file; fewer only if it ends before.
    pub fn next(&mut self, bytes: usize) -> Result<&[u8], StoreError> {
        if self.to - self.from < bytes {
            // What is there goes to the front, and what comes behind it.
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            while self.to < bytes && self.offset < self.sums.len() {
                self.read_chunk()?;
            }
        }
        let next = self.from..self.to.min(self.from.saturating_add(bytes));
        self.from = next.end;
        Ok(&self.buffer[next])
    }

    fn read_chunk(&mut self) -> Result<(), StoreError> {
        let want = (self.sums.len() - self.offset).min(CHUNK_BYTES as u64) as usize;
        if self.buffer.len() < self.to + want {
            self.buffer.resize(self.to + want, 0);
        }
        let chunk = &mut self.buffer[self.to..self.to + want];
        self.file.read_exact(chunk).map_err(io_error(&self.path))?;
        self.sums.check(&self.path, self.offset, chunk)?;
        self.offset += want as u64;
        self.to += want;
        Ok(())
    }
}

impl Source for Verified {
    fn lend(&mut self, bytes: usize) -> io::Result<&[u8]> {
        self.next(bytes).map_err(into_io)
    }
}

/// Verifies every byte of a stored file; returns its checksums.
pub fn verify(path: &Path) -> Result<Sums, StoreError> {
    let mut file = Verified::open(path)?;
    while !file.next(CHUNK_BYTES)?.is_empty() {}
    Ok(file.sums)
}

pub(crate) fn into_io(error: StoreError) -> io::Error {
    match error {
        StoreError::Io { source, .. } => source,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

#[cfg(test)]
mod tests {
    use snaprig_image::Pool;

    use super::*;

    #[test]
    fn what_is_written_is_lent_however_it_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let bytes: Vec<u8> = (0..300_000_u32).map(|i| (i * 7) as u8).collect();
        let mut sink = SnapshotFile::create(&path).unwrap();
        let mut pool = Pool::lent_by(&mut sink, 1, 40_960).unwrap();
        for part in bytes.chunks(40_000) {
            let mut buffer = pool.take_of(&mut sink).unwrap();
            buffer.bytes_mut()[..part.len()].copy_from_slice(part);
            sink.write(buffer.filled(0..part.len())).unwrap();
        }
        assert!(!path.exists());
        Sink::finish(&mut sink).unwrap();
        for asked in [1_000, CHUNK_BYTES, CHUNK_BYTES + 1, 400_000] {
            let mut source = Verified::open(&path).unwrap();
            let mut read = Vec::new();
            while let lent = source.lend(asked).unwrap()
                && !lent.is_empty()
            {
                assert!(lent.len() == asked || read.len() + lent.len() == bytes.len());
                read.extend_from_slice(lent);
            }
            assert!(read == bytes);
        }
        let mut damaged = bytes.clone();
        damaged[70_000] ^= 8;
        fs::write(&path, damaged).unwrap();
        let mut source = Verified::open(&path).unwrap();
        assert_eq!(source.lend(65_000).unwrap(), &bytes[..65_000]);
        let refused = source.lend(65_000).unwrap_err();
        assert!(refused.to_string().contains("offset 65536"), "{refused}");
    }

    #[test]
    fn a_file_that_is_not_finished_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut sink = SnapshotFile::create(&path).unwrap();
        sink.append(b"half of it").unwrap();
        drop(sink);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
