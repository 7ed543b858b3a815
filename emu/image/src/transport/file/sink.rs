//! A file as the place of an image: written past the page cache by io_uring where the file system
//! can, by write(2) where not (tmpfs), where io_uring is not to be had, or where the image is not of whole blocks.
//!
//! ```text
//! write ---> kernel: up to DEPTH writes at once ---> reaped: their buffers are free again
//! ```
//! What must stay true: a buffer is not dropped while the kernel may read from it.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::FileExt,
    },
};

use io_uring::{IoUring, opcode, types::Fd};
use rustix::fs::{AtFlags, FallocateFlags, OFlags, StatxFlags};

use super::BLOCK;
use crate::{Filled, Sink};

/// Writes at a time. More do not make a disk faster, and each holds a buffer.
const DEPTH: u32 = 4;
/// Bytes by which a file grows ahead of what is written: writes inside of a file do not wait for each other.
const AHEAD: u64 = 256 << 20;

/// Writes an image to a file; when it has all, the file is on the disk (fsync(2)).
pub struct FileSink {
    file: File,
    direct: Option<Direct>,
    /// Where the next bytes go.
    offset: u64,
    /// How long the file is now.
    len: u64,
}

impl FileSink {
    /// A file that is empty, and writable.
    pub fn new(file: File) -> io::Result<Self> {
        let direct = match bypasses_cache(&file) {
            true => Direct::new().ok(),
            false => None,
        };
        if direct.is_some() {
            set_direct(&file, true)?;
        }
        Ok(Self {
            file,
            direct,
            offset: 0,
            len: 0,
        })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What follows is written through the page cache.
    fn end_direct(&mut self) -> io::Result<()> {
        while self.settle()? {}
        if self.direct.take().is_some() {
            self.file.set_len(self.offset)?;
            set_direct(&self.file, false)?;
        }
        Ok(())
    }
}

impl Sink for FileSink {
    fn write(&mut self, bytes: Filled) -> io::Result<()> {
        let (offset, len) = (self.offset, bytes.len() as u64);
        let is_whole = bytes.as_ptr().addr().is_multiple_of(BLOCK as usize)
            && (offset | len).is_multiple_of(BLOCK);
        if !is_whole {
            self.end_direct()?;
        }
        self.offset += len;
        let Some(direct) = &mut self.direct else {
            return self.file.write_all_at(&bytes, offset);
        };
        if self.offset > self.len {
            let to = self.offset.max(self.len + AHEAD);
            let more = to - self.len;
            // Without room for that much there may still be enough: the write will say.
            let made = rustix::fs::fallocate(&self.file, FallocateFlags::empty(), self.len, more);
            self.len = if made.is_ok() { to } else { self.offset };
        }
        direct.write(&self.file, bytes, offset)
    }

    fn settle(&mut self) -> io::Result<bool> {
        match &mut self.direct {
            Some(direct) if !direct.writing.is_empty() => direct.reap(&self.file).map(|()| true),
            _ => Ok(false),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.end_direct()?;
        self.file.sync_all()
    }
}

/// Writes that the kernel has in hand.
struct Direct {
    ring: IoUring,
    /// By offset.
    writing: BTreeMap<u64, Filled>,
}

impl Direct {
    fn new() -> io::Result<Self> {
        Ok(Self {
            ring: IoUring::new(DEPTH)?,
            writing: BTreeMap::new(),
        })
    }

    fn write(&mut self, file: &File, bytes: Filled, offset: u64) -> io::Result<()> {
        while self.writing.len() >= DEPTH as usize {
            self.reap(file)?;
        }
        let entry = opcode::Write::new(Fd(file.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32)
            .offset(offset)
            .build()
            .user_data(offset);
        self.writing.insert(offset, bytes);
        // SAFETY: the bytes stay in `writing`, unchanged and in place, until their completion is reaped.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(io::Error::other)?;
        self.ring.submit().map(drop)
    }

    /// Waits for a write at least.
    fn reap(&mut self, file: &File) -> io::Result<()> {
        self.wait()?;
        for done in self.ring.completion() {
            let offset = done.user_data();
            let Some(bytes) = self.writing.remove(&offset) else {
                continue;
            };
            let error = |_| io::Error::from_raw_os_error(-done.result());
            let written = usize::try_from(done.result()).map_err(error)?;
            // Of what is left over, O_DIRECT takes whole blocks.
            let written = written - written % BLOCK as usize;
            file.write_all_at(&bytes[written..], offset + written as u64)?;
        }
        Ok(())
    }

    fn wait(&mut self) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done.map(drop),
            }
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        while !self.writing.is_empty() {
            if self.wait().is_err() {
                // The kernel may still read from them, and we cannot know when it no longer does.
                std::mem::forget(std::mem::take(&mut self.writing));
            }
            for done in self.ring.completion() {
                self.writing.remove(&done.user_data());
            }
        }
    }
}

fn set_direct(file: &File, on: bool) -> io::Result<()> {
    let mut flags = rustix::fs::fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, on);
    Ok(rustix::fs::fcntl_setfl(file, flags)?)
}

/// Whether the file can be written and read past the page cache in whole blocks.
pub(super) fn bypasses_cache(file: &File) -> bool {
    let stat = rustix::fs::statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    stat.is_ok_and(|stat| {
        let aligns = [stat.stx_dio_mem_align, stat.stx_dio_offset_align];
        aligns
            .iter()
            .all(|align| *align > 0 && BLOCK.is_multiple_of(u64::from(*align)))
    })
}
