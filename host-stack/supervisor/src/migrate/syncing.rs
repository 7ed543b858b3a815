//! An image on its way to the disk, while its tree is restored: how long the tree runs nowhere is not to be longer for it.
//!
//! A process of its own waits for the disk, since whoever restores has one thread, and numbers of processes that are the
//! tree's.

use std::{
    fs::File,
    io::{self, PipeReader, Read, Write},
    os::fd::AsRawFd,
};

/// Bytes of an image after which the kernel is told to begin with them.
const BEHIND: u64 = 8 << 20;

/// A file that is written from front to back, and early.
pub struct WrittenBehind<'a> {
    file: &'a File,
    /// Bytes in the file, and those that the kernel was told to write to the disk.
    bytes: u64,
    begun: u64,
}

impl<'a> WrittenBehind<'a> {
    /// A file that is empty.
    pub fn new(file: &'a File) -> Self {
        Self {
            file,
            bytes: 0,
            begun: 0,
        }
    }
}

impl Write for WrittenBehind<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.bytes += count as u64;
        let new = self.bytes - self.begun;
        if new >= BEHIND {
            let (from, length) = (self.begun as libc::off64_t, new as libc::off64_t);
            let flags = libc::SYNC_FILE_RANGE_WRITE;
            // SAFETY: a system call without pointers. If it fails, fsync(2) takes longer.
            unsafe { libc::sync_file_range(self.file.as_raw_fd(), from, length, flags) };
            self.begun = self.bytes;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that is being synced (fsync(2)) by another process.
pub struct Syncing(PipeReader);

/// What that process says when it has failed.
const FAILED: u8 = 1;

impl Syncing {
    /// Begins. The calling process has one thread, and reaps its children; until the file is on the disk, what it has open
    /// is open in two processes.
    pub fn begin(file: &File) -> io::Result<Self> {
        let (reader, mut writer) = io::pipe()?;
        // SAFETY: the process has one thread, so the child may do what it likes.
        match unsafe { libc::fork() } {
            0 => {
                let failed = u8::from(file.sync_all().is_err());
                // Who would read it may be gone.
                let _ = writer.write_all(&[failed]);
                // SAFETY: it ends this process, in which nothing is to be tidied up.
                unsafe { libc::_exit(0) }
            }
            child if child < 0 => Err(io::Error::last_os_error()),
            _ => Ok(Self(reader)),
        }
    }

    /// Waits until the file is on the disk.
    pub fn finish(mut self, file: &File) -> io::Result<()> {
        let mut said = [0];
        match self.0.read_exact(&mut said) {
            Ok(()) if said == [FAILED] => Err(io::Error::from_raw_os_error(libc::EIO)),
            Ok(()) => Ok(()),
            // It has died.
            Err(_) => file.sync_all(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_behind_is_all_there() {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..BEHIND * 2 + 5).map(|at| at as u8).collect();
        WrittenBehind::new(&file).write_all(&bytes).unwrap();
        let mut found = Vec::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_end(&mut found).unwrap();
        assert!(found == bytes);
    }
}
