//! Open regular files and directories.

use std::{
    any::Any,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::inode::Inode;
use crate::kernel::{
    errno::Errno,
    file::{Cx, Description, File},
    wait::SysResult,
};

/// An open regular file.
pub struct RegularFile {
    inode: Arc<Inode>,
    path: String,
    flags: i32,
    position: Mutex<u64>,
}

impl RegularFile {
    /// Opened at the start, or wherever appending puts it.
    pub fn new(inode: Arc<Inode>, path: String, flags: i32) -> Arc<Self> {
        Arc::new(Self {
            inode,
            path,
            flags,
            position: Mutex::new(0),
        })
    }

    /// The file.
    pub fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// lseek(2).
    pub fn seek(&self, offset: i64, whence: i32) -> Result<u64, Errno> {
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        let size = self.inode.size();
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => *position,
            libc::SEEK_END => size,
            // Without holes: all of a file is data (lseek(2)).
            libc::SEEK_DATA if (offset as u64) < size => 0,
            libc::SEEK_HOLE if (offset as u64) < size => {
                *position = size;
                return Ok(size);
            }
            libc::SEEK_DATA | libc::SEEK_HOLE => return Err(Errno::ENXIO),
            _ => return Err(Errno::EINVAL),
        };
        let to = base
            .checked_add_signed(offset)
            .filter(|to| *to <= i64::MAX as u64);
        *position = to.ok_or(Errno::EINVAL)?;
        Ok(*position)
    }
}

impl File for RegularFile {
    fn read(&self, _cx: &mut Cx, max: usize) -> SysResult<Vec<u8>> {
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.inode.read_at(*position, max);
        *position += bytes.len() as u64;
        Ok(bytes)
    }

    fn takes(&self) -> usize {
        let position = *self.position.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.inode.size().saturating_sub(position);
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    fn write(&self, cx: &mut Cx, data: &[u8]) -> SysResult<usize> {
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        if cx.append {
            *position = self.inode.size();
        }
        let done = self.inode.write_at(*position, data)?;
        *position += done as u64;
        Ok(done)
    }

    fn ioctl(&self, cx: &mut Cx, request: u32, argument: u64) -> SysResult<i64> {
        if u64::from(request) != libc::FIONREAD {
            return Err(Errno::ENOTTY.into());
        }
        let position = *self.position.lock().unwrap_or_else(PoisonError::into_inner);
        let left = i64::try_from(self.inode.size()).unwrap_or(i64::MAX) - position as i64;
        cx.memory.write(argument, &(left as i32).to_le_bytes())?;
        Ok(0)
    }

    fn describe(&self) -> Description {
        Description::Path {
            path: self.path.clone(),
            flags: self.flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC),
            position: *self.position.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An open directory.
pub struct Directory {
    node: u64,
    path: String,
    /// The cookie of the entry that getdents64(2) has returned last.
    pub position: AtomicU64,
}

impl Directory {
    /// Opened at its first entry.
    pub fn new(node: u64, path: String) -> Arc<Self> {
        Arc::new(Self {
            node,
            path,
            position: AtomicU64::new(0),
        })
    }

    /// Its node.
    pub fn node(&self) -> u64 {
        self.node
    }

    /// Its path.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl File for Directory {
    fn read(&self, _cx: &mut Cx, _max: usize) -> SysResult<Vec<u8>> {
        Err(Errno::EISDIR.into())
    }

    fn describe(&self) -> Description {
        Description::Path {
            path: self.path.clone(),
            flags: libc::O_RDONLY | libc::O_DIRECTORY,
            position: self.position.load(Ordering::Relaxed),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
