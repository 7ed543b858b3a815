//! Open regular files and directories.

use std::{
    any::Any,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use snaprig_card_driver::{
    errno::Errno,
    file::{Cx, Description, File},
    wait::{Channel, SysResult},
};

use crate::{inode::Inode, meta::Meta};

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

    /// Whether memfd_create(2) made it.
    pub fn is_memory_file(&self) -> bool {
        self.path.starts_with("/memfd:") && self.inode.meta().lock().nlink == 0
    }

    /// Whether it was made without a name (open(2), O_TMPFILE).
    pub fn is_temporary(&self) -> bool {
        self.flags & libc::O_TMPFILE == libc::O_TMPFILE
    }

    /// Which open file description this is, among those who lock files.
    pub fn id(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    /// Where the next read or write begins.
    pub fn position(&self) -> u64 {
        *self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// lseek(2).
    pub fn seek(&self, offset: i64, whence: i32) -> Result<u64, Errno> {
        let mut position = self.position.lock().unwrap_or_else(PoisonError::into_inner);
        let base = match whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => *position,
            libc::SEEK_END => self.inode.size(),
            libc::SEEK_DATA | libc::SEEK_HOLE => {
                let from = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                *position = self.inode.seek(from, whence == libc::SEEK_DATA)?;
                return Ok(*position);
            }
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
        let left = self.inode.size().saturating_sub(self.position());
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
        let left = i64::try_from(self.inode.size()).unwrap_or(i64::MAX) - self.position() as i64;
        cx.memory.write(argument, &(left as i32).to_le_bytes())?;
        Ok(0)
    }

    fn describe(&self) -> Description {
        Description::Path {
            path: self.path.clone(),
            flags: self.flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC),
            position: self.position(),
        }
    }

    fn release(&self, wake: &mut dyn FnMut(Channel)) {
        self.inode.meta().locks.forget_description(self.id(), wake);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An open directory.
pub struct Directory {
    meta: Arc<Meta>,
    path: String,
    flags: i32,
    /// The cookie of the entry that getdents64(2) has returned last.
    pub position: AtomicU64,
}

impl Directory {
    /// Opened at its first entry.
    pub fn new(meta: Arc<Meta>, path: String, flags: i32) -> Arc<Self> {
        Arc::new(Self {
            meta,
            path,
            flags,
            position: AtomicU64::new(0),
        })
    }

    /// Its node.
    pub fn node(&self) -> u64 {
        self.meta.number
    }

    /// Its attributes.
    pub fn meta(&self) -> &Arc<Meta> {
        &self.meta
    }

    /// Its path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Which open file description this is, among those who lock files.
    pub fn id(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }
}

impl File for Directory {
    fn read(&self, _cx: &mut Cx, _max: usize) -> SysResult<Vec<u8>> {
        Err(Errno::EISDIR.into())
    }

    fn describe(&self) -> Description {
        Description::Path {
            path: self.path.clone(),
            flags: libc::O_RDONLY | libc::O_DIRECTORY | self.flags & libc::O_PATH,
            position: self.position.load(Ordering::Relaxed),
        }
    }

    fn release(&self, wake: &mut dyn FnMut(Channel)) {
        self.meta.locks.forget_description(self.id(), wake);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What is open with O_PATH only, and is neither a regular file nor a directory: a link, a FIFO, a
/// device, a socket.
pub struct PathOnly {
    meta: Arc<Meta>,
    path: String,
    flags: i32,
}

impl PathOnly {
    /// A place in the tree.
    pub fn new(meta: Arc<Meta>, path: String, flags: i32) -> Arc<Self> {
        Arc::new(Self { meta, path, flags })
    }

    /// What is there.
    pub fn meta(&self) -> &Arc<Meta> {
        &self.meta
    }
}

impl File for PathOnly {
    fn describe(&self) -> Description {
        Description::Path {
            path: self.path.clone(),
            flags: self.flags,
            position: 0,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
