//! A file of a snapshot, compressed: `NAME.zst`, which zstd(1) reads, with the length of what is in it behind it.
//!
//! ```text
//! a frame of zstd    a frame that readers skip: 0x184D2A50 (u32)  8 (u32)  length (u64)
//! ```
//! Integers are little-endian, as all of zstd's. Checksums beside it are those of what is on the disk.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use zstd::stream::{read::Decoder, write::Encoder};

use crate::{
    stream::{Readable, SnapshotFile, Verified, Writable, into_io},
    sums::{StoreError, io_error},
};

/// Ends the names of such files.
pub const SUFFIX: &str = ".zst";
/// Of those that zstd has, one that is nearly as fast as a disk.
const LEVEL: i32 = 1;
/// Begins the frame that has the length.
const SKIPPED: [u8; 8] = [0x50, 0x2a, 0x4d, 0x18, 8, 0, 0, 0];
const TRAILER_BYTES: usize = SKIPPED.len() + 8;

/// Where a file is when it is compressed.
pub fn path_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// The length of what is in a compressed file.
pub fn len(packed: &Path) -> Result<u64, StoreError> {
    let mut trailer = [0; TRAILER_BYTES];
    let mut read = || {
        let file = File::open(packed)?;
        let end = file.metadata()?.len();
        let at = end.checked_sub(TRAILER_BYTES as u64);
        let at = at.ok_or(io::ErrorKind::UnexpectedEof)?;
        file.read_exact_at(&mut trailer, at)?;
        Ok(at)
    };
    let at = read().map_err(io_error(packed))?;
    match (trailer.first_chunk(), trailer.last_chunk()) {
        (Some(&SKIPPED), Some(len)) => Ok(u64::from_le_bytes(*len)),
        _ => Err(damaged(packed, at)),
    }
}

fn damaged(packed: &Path, offset: u64) -> StoreError {
    StoreError::Damaged {
        path: packed.to_owned(),
        offset,
        len: TRAILER_BYTES as u64,
    }
}

/// A file that is written, and compressed on the way; removed unless it is finished.
pub struct PackedFile {
    path: PathBuf,
    /// There until it is finished.
    encoder: Option<Encoder<'static, Appending>>,
    len: u64,
}

/// A file as an encoder writes it.
struct Appending(SnapshotFile);

impl Write for Appending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.append(bytes).map_err(into_io)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl PackedFile {
    /// Begins the file that will be at `path`, but for the end of its name.
    pub fn create(path: &Path) -> Result<Self, StoreError> {
        let path = path_of(path);
        let file = Appending(SnapshotFile::create(&path)?);
        let encoder = Encoder::new(file, LEVEL).map_err(io_error(&path))?;
        Ok(Self {
            path,
            encoder: Some(encoder),
            len: 0,
        })
    }
}

impl Writable for PackedFile {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let encoder = self
            .encoder
            .as_mut()
            .ok_or(io::ErrorKind::BrokenPipe.into());
        let written = encoder.and_then(|encoder| encoder.write_all(bytes));
        written.map_err(io_error(&self.path))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        let Some(encoder) = self.encoder.take() else {
            return Ok(());
        };
        let mut file = encoder.finish().map_err(io_error(&self.path))?.0;
        file.append(&SKIPPED)?;
        file.append(&self.len.to_le_bytes())?;
        file.finish()
    }
}

/// A compressed file that is read: what was in it, as far as its checksums vouch for it.
pub struct PackedSource {
    path: PathBuf,
    decoder: Decoder<'static, io::BufReader<Lent>>,
    len: u64,
    offset: u64,
    buffer: Vec<u8>,
}

/// A file as a decoder reads it.
struct Lent(Verified);

impl Read for Lent {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let lent = self.0.next(to.len()).map_err(into_io)?;
        to[..lent.len()].copy_from_slice(lent);
        Ok(lent.len())
    }
}

impl PackedSource {
    /// Opens the file that was at `path` before it was compressed.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let path = path_of(path);
        let file = Lent(Verified::open(&path)?);
        let len = len(&path)?;
        let decoder = Decoder::new(file).map_err(io_error(&path))?;
        Ok(Self {
            path,
            decoder,
            len,
            offset: 0,
            buffer: Vec::new(),
        })
    }
}

impl Readable for PackedSource {
    fn bytes(&self) -> u64 {
        self.len
    }

    fn next(&mut self, bytes: usize) -> Result<&[u8], StoreError> {
        let want = (self.len - self.offset).min(bytes as u64) as usize;
        self.buffer.resize(want, 0);
        let read = self.decoder.read_exact(&mut self.buffer);
        read.map_err(io_error(&self.path))?;
        self.offset += want as u64;
        if self.offset == self.len {
            // The end of the frame, with which all of the file has been read.
            let more = self.decoder.read(&mut [0]).map_err(io_error(&self.path))?;
            if more > 0 {
                return Err(damaged(&self.path, self.offset));
            }
        }
        Ok(&self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    fn read(path: &Path, at_once: usize) -> Result<Vec<u8>, StoreError> {
        let mut source = PackedSource::open(path)?;
        let mut all = Vec::new();
        loop {
            let next = source.next(at_once)?;
            if next.is_empty() {
                return Ok(all);
            }
            all.extend_from_slice(next);
        }
    }

    #[test]
    fn what_was_compressed_is_read_again_and_damage_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 1000) as u8).collect();
        let mut file = PackedFile::create(&path).unwrap();
        file.append(&bytes[..10]).unwrap();
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        for bytes in [&[][..], &bytes] {
            let mut file = PackedFile::create(&path).unwrap();
            for part in bytes.chunks(70_001) {
                file.append(part).unwrap();
            }
            file.finish().unwrap();
            assert_eq!(len(&path_of(&path)).unwrap(), bytes.len() as u64);
            for at_once in [1000, 2 << 20] {
                assert!(read(&path, at_once).unwrap() == bytes);
            }
        }
        let packed = path_of(&path);
        let good = fs::read(&packed).unwrap();
        assert!(good.len() < bytes.len() / 10);
        // Where it is installed, zstd(1) reads it, too.
        if let Ok(output) = Command::new("zstd").arg("-dc").arg(&packed).output() {
            assert!(output.stdout == bytes);
        }
        for at in [0, good.len() / 2, good.len() - 1] {
            let mut damaged = good.clone();
            damaged[at] ^= 2;
            fs::write(&packed, &damaged).unwrap();
            assert!(read(&path, 4096).is_err(), "{at}");
        }
    }
}
