//! Calls that find, make, move and remove names, in the order of Linux's fs/namei.c.

use std::sync::Arc;

use snaprig_card_driver::{errno::Errno, wait::SysResult};

use crate::{
    call::{FsCall, only, read_c_string},
    files::{
        queue::Queue,
        regular::{Directory, PathOnly, RegularFile},
    },
    inode::Inode,
    meta::Meta,
    proc::{DESCRIPTORS, ProcFile},
    table::Open,
    tree::{Found, Last, Node, PATH_MAX, Place},
};

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let int = |i: usize| a[i] as i32;
    let remove = libc::AT_REMOVEDIR;
    Some(match number as i64 {
        libc::SYS_open => call.openat(libc::AT_FDCWD, a[0], int(1), a[2] as u32),
        libc::SYS_openat => call.openat(int(0), a[1], int(2), a[3] as u32),
        libc::SYS_openat2 => call.openat2(int(0), a[1], a[2], a[3]),
        libc::SYS_creat => {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            call.openat(libc::AT_FDCWD, a[0], flags, a[1] as u32)
        }
        libc::SYS_mkdir => call.mkdir(libc::AT_FDCWD, a[0], a[1] as u32),
        libc::SYS_mkdirat => call.mkdir(int(0), a[1], a[2] as u32),
        libc::SYS_mknod => call.mknod(libc::AT_FDCWD, a[0], a[1] as u32),
        libc::SYS_mknodat => call.mknod(int(0), a[1], a[2] as u32),
        libc::SYS_rmdir => call.rmdir(libc::AT_FDCWD, a[0]),
        libc::SYS_unlink => call.unlink(libc::AT_FDCWD, a[0]),
        libc::SYS_unlinkat => only(int(2), remove).and_then(|flags| match flags {
            0 => call.unlink(int(0), a[1]),
            _ => call.rmdir(int(0), a[1]),
        }),
        libc::SYS_rename => call.rename(libc::AT_FDCWD, a[0], libc::AT_FDCWD, a[1], 0),
        libc::SYS_renameat => call.rename(int(0), a[1], int(2), a[3], 0),
        libc::SYS_renameat2 => call.rename(int(0), a[1], int(2), a[3], a[4] as u32),
        libc::SYS_link => call.link(libc::AT_FDCWD, a[0], libc::AT_FDCWD, a[1], 0),
        libc::SYS_linkat => call.link(int(0), a[1], int(2), a[3], int(4)),
        libc::SYS_symlink => call.symlink(a[0], libc::AT_FDCWD, a[1]),
        libc::SYS_symlinkat => call.symlink(a[0], int(1), a[2]),
        libc::SYS_readlink => call.readlink(libc::AT_FDCWD, a[0], a[1], int(2)),
        libc::SYS_readlinkat => call.readlink(int(0), a[1], a[2], int(3)),
        libc::SYS_truncate => call.truncate(a[0], a[1]),
        libc::SYS_chdir => call.chdir(a[0]),
        libc::SYS_fchdir => call.fchdir(int(0)),
        libc::SYS_getcwd => call.getcwd(a[0], a[1] as usize),
        _ => return None,
    })
}

impl FsCall<'_> {
    /// A path in the caller's memory; an empty one is ENOENT.
    pub fn path(&mut self, at: u64) -> Result<String, Errno> {
        let path = self.path_or_empty(at)?;
        match path.is_empty() {
            true => Err(Errno::ENOENT),
            false => Ok(path),
        }
    }

    /// A path that may be empty.
    pub fn path_or_empty(&mut self, at: u64) -> Result<String, Errno> {
        let bytes = read_c_string(self.cx.memory, at, PATH_MAX)?;
        String::from_utf8(bytes).map_err(|_| Errno::EINVAL)
    }

    /// Where a path begins.
    pub fn base(&mut self, dirfd: i32, path: &str) -> Result<Arc<Meta>, Errno> {
        if path.starts_with('/') {
            self.refresh_fd_names(path)?;
            return Ok(self.vfs.root().clone());
        }
        if dirfd == libc::AT_FDCWD {
            return Ok(self.fs.cwd.clone());
        }
        let open = self.files.get_any(dirfd)?;
        let directory = open.file.as_any().downcast_ref::<Directory>();
        let directory = directory.ok_or(Errno::ENOTDIR)?;
        if directory.path() == DESCRIPTORS {
            self.refresh_fd_names(DESCRIPTORS)?;
        }
        Ok(directory.meta().clone())
    }

    /// What is at a path in the caller's memory.
    pub fn lookup(&mut self, dirfd: i32, at: u64, follow: bool) -> Result<u64, Errno> {
        let path = self.path(at)?;
        let base = self.base(dirfd, &path)?;
        self.vfs.lookup(&base, &path, follow)
    }

    fn place(&mut self, dirfd: i32, at: u64) -> Result<Place, Errno> {
        let path = self.path(at)?;
        let base = self.base(dirfd, &path)?;
        self.vfs.place(&base, &path)
    }

    /// Where something new is to be: directory and name.
    fn vacant(&mut self, dirfd: i32, at: u64, directory: bool) -> Result<(u64, String), Errno> {
        let place = self.place(dirfd, at)?;
        let Last::Name(name) = place.last else {
            return Err(Errno::EEXIST);
        };
        match self.vfs.child(place.directory, &name) {
            Ok(_) => Err(Errno::EEXIST),
            // Only a directory's own name may end in a slash.
            Err(Errno::ENOENT) if directory || !place.slash => Ok((place.directory, name)),
            Err(errno) => Err(errno),
        }
    }

    /// Attributes of something new: in a directory with S_ISGID it gets that one's group (inode(7)).
    fn new_meta(&self, parent: u64, mode: u32, directory: bool) -> Result<Arc<Meta>, Errno> {
        let meta = Meta::new(mode & !self.fs.umask);
        let above = self.vfs.meta(parent)?.lock();
        if above.mode & libc::S_ISGID != 0 {
            let mut own = meta.lock();
            own.gid = above.gid;
            if directory {
                own.mode |= libc::S_ISGID;
            }
        }
        drop(above);
        Ok(meta)
    }

    fn mkdir(&mut self, dirfd: i32, at: u64, mode: u32) -> SysResult {
        let (parent, name) = self.vacant(dirfd, at, true)?;
        let meta = self.new_meta(parent, mode & 0o1777, true)?;
        self.vfs
            .add_with(parent, &name, Node::directory(parent), meta)?;
        Ok(0)
    }

    /// mknod(2): regular files, FIFOs and sockets. Devices are the card's own.
    fn mknod(&mut self, dirfd: i32, at: u64, mode: u32) -> SysResult {
        match mode & libc::S_IFMT {
            0 | libc::S_IFREG | libc::S_IFIFO | libc::S_IFSOCK => {}
            libc::S_IFDIR | libc::S_IFCHR | libc::S_IFBLK => return Err(Errno::EPERM.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        let (parent, name) = self.vacant(dirfd, at, false)?;
        let meta = self.new_meta(parent, mode, false)?;
        let node = match mode & libc::S_IFMT {
            libc::S_IFIFO => Node::Fifo(Queue::closed()),
            libc::S_IFSOCK => Node::Socket(None),
            _ => Node::File(Inode::of(
                self.vfs.memory(),
                meta.clone(),
                libc::F_SEAL_SEAL,
            )),
        };
        self.vfs.add_with(parent, &name, node, meta)?;
        Ok(0)
    }

    fn unlink(&mut self, dirfd: i32, at: u64) -> SysResult {
        let place = self.place(dirfd, at)?;
        let Last::Name(name) = &place.last else {
            return Err(Errno::EISDIR.into());
        };
        let node = self.vfs.child(place.directory, name)?;
        if self.vfs.directory(node).is_ok() {
            return Err(Errno::EISDIR.into());
        }
        if place.slash {
            return Err(Errno::ENOTDIR.into());
        }
        self.vfs.unlink_node(place.directory, name, node);
        Ok(0)
    }

    fn rmdir(&mut self, dirfd: i32, at: u64) -> SysResult {
        let place = self.place(dirfd, at)?;
        let name = match &place.last {
            Last::Name(name) => name,
            Last::Dot => return Err(Errno::EINVAL.into()),
            Last::DotDot => return Err(Errno::ENOTEMPTY.into()),
            Last::Root => return Err(Errno::EBUSY.into()),
        };
        let node = self.vfs.child(place.directory, name)?;
        if !self.vfs.directory(node)?.is_empty() {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.vfs.unlink_node(place.directory, name, node);
        Ok(0)
    }

    fn rename(&mut self, from_dir: i32, from: u64, to_dir: i32, to: u64, flags: u32) -> SysResult {
        let keeps = flags & libc::RENAME_NOREPLACE != 0;
        let exchanges = flags & libc::RENAME_EXCHANGE != 0;
        if flags & !(libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE) != 0 || keeps && exchanges {
            return Err(Errno::EINVAL.into());
        }
        let (from, to) = (self.place(from_dir, from)?, self.place(to_dir, to)?);
        let (from_slash, to_slash) = (from.slash, to.slash);
        let has_name = |place: &Place| matches!(place.last, Last::Name(_));
        if !has_name(&from) || !has_name(&to) {
            return Err(match has_name(&from) && keeps {
                true => Errno::EEXIST.into(),
                false => Errno::EBUSY.into(),
            });
        }
        let from = self.renamed(from)?;
        let node = from.node.ok_or(Errno::ENOENT)?;
        let to = self.renamed(to)?;
        if keeps && to.node.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let is_directory = self.vfs.directory(node).is_ok();
        let old_is_directory = to.node.map(|old| self.vfs.directory(old).is_ok());
        if exchanges && !old_is_directory.ok_or(Errno::ENOENT)? && to_slash
            || !is_directory && (from_slash || !exchanges && to_slash)
        {
            return Err(Errno::ENOTDIR.into());
        }
        if is_directory && self.vfs.is_within(to.parent, node) {
            return Err(Errno::EINVAL.into());
        }
        if let Some(old) = to.node
            && self.vfs.is_within(from.parent, old)
        {
            return Err(match exchanges {
                true => Errno::EINVAL.into(),
                false => Errno::ENOTEMPTY.into(),
            });
        }
        if to.node == Some(node) {
            return Ok(0);
        }
        if exchanges {
            self.vfs.exchange(&from, &to)?;
            return Ok(0);
        }
        match (is_directory, old_is_directory) {
            (true, Some(false)) => return Err(Errno::ENOTDIR.into()),
            (false, Some(true)) => return Err(Errno::EISDIR.into()),
            _ => {}
        }
        if let Some(Ok(names)) = to.node.map(|old| self.vfs.directory(old))
            && !names.is_empty()
        {
            return Err(Errno::ENOTEMPTY.into());
        }
        self.vfs.rename(&from, &to, node)?;
        Ok(0)
    }

    /// What is at one of the two places of a rename.
    fn renamed(&self, place: Place) -> Result<Found, Errno> {
        let Last::Name(name) = place.last else {
            return Err(Errno::EBUSY);
        };
        let node = match self.vfs.child(place.directory, &name) {
            Err(Errno::ENOENT) => None,
            node => Some(node?),
        };
        Ok(Found {
            parent: place.directory,
            name,
            node,
        })
    }

    fn link(&mut self, from_dir: i32, from: u64, to_dir: i32, to: u64, flags: i32) -> SysResult {
        let flags = only(flags, libc::AT_SYMLINK_FOLLOW | libc::AT_EMPTY_PATH)?;
        let path = self.path_or_empty(from)?;
        if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            return self.link_open(from_dir, to_dir, to);
        }
        let node = self.lookup(from_dir, from, flags & libc::AT_SYMLINK_FOLLOW != 0)?;
        let (parent, name) = self.vacant(to_dir, to, false)?;
        self.vfs.link(parent, &name, node)?;
        Ok(0)
    }

    /// linkat(2) with AT_EMPTY_PATH: a name for what is open, if it has one or never had one.
    fn link_open(&mut self, fd: i32, to_dir: i32, to: u64) -> SysResult {
        let open = match fd {
            libc::AT_FDCWD => None,
            fd => Some(self.files.get_any(fd)?),
        };
        let (parent, name) = self.vacant(to_dir, to, false)?;
        let open = open.ok_or(Errno::EPERM)?;
        let file = open.file.as_any();
        if let Some(file) = file.downcast_ref::<RegularFile>() {
            let inode = file.inode();
            let meta = inode.meta();
            if file.is_memory_file() {
                return Err(Errno::EXDEV.into());
            }
            if self.vfs.meta(meta.number).is_ok() {
                self.vfs.link(parent, &name, meta.number)?;
                return Ok(0);
            }
            // What has lost its last name gets none again.
            if !file.is_temporary() || !inode.may_be_named() {
                return Err(Errno::ENOENT.into());
            }
            let meta = meta.clone();
            self.vfs
                .add_with(parent, &name, Node::File(inode.clone()), meta.clone())?;
            meta.link(1);
            return Ok(0);
        }
        // What is not in the tree is on another file system.
        let number = open.attributes().ok_or(Errno::EXDEV)?.number;
        self.vfs.meta(number).map_err(|_| Errno::EXDEV)?;
        self.vfs.link(parent, &name, number)?;
        Ok(0)
    }

    fn symlink(&mut self, target: u64, dirfd: i32, at: u64) -> SysResult {
        let target = self.path(target)?;
        let (parent, name) = self.vacant(dirfd, at, false)?;
        self.vfs.add(parent, &name, Node::Link(target))?;
        Ok(0)
    }

    fn readlink(&mut self, dirfd: i32, at: u64, to: u64, max: i32) -> SysResult {
        let max = usize::try_from(max).ok().filter(|max| *max > 0);
        let max = max.ok_or(Errno::EINVAL)?;
        let path = self.path_or_empty(at)?;
        let node = match path.is_empty() {
            true => self.node_of(dirfd)?,
            false => Some(self.lookup(dirfd, at, false)?),
        };
        let target = match node.and_then(|node| self.vfs.node(node)) {
            Some(Node::Link(target)) => target.clone(),
            Some(Node::Proc(ProcFile::Exe)) => self.proc.exe(),
            _ if path.is_empty() => return Err(Errno::ENOENT.into()),
            _ => return Err(Errno::EINVAL.into()),
        };
        let len = target.len().min(max);
        self.cx.memory.write(to, &target.as_bytes()[..len])?;
        Ok(len as u64)
    }

    /// The node that a descriptor has open by path.
    fn node_of(&mut self, fd: i32) -> Result<Option<u64>, Errno> {
        if fd == libc::AT_FDCWD {
            return Ok(Some(self.fs.cwd.number));
        }
        let open = self.files.get_any(fd)?;
        let only = open.file.as_any().downcast_ref::<PathOnly>();
        Ok(only.map(|only| only.meta().number))
    }

    fn truncate(&mut self, at: u64, size: u64) -> SysResult {
        if size > i64::MAX as u64 {
            return Err(Errno::EINVAL.into());
        }
        let node = self.lookup(libc::AT_FDCWD, at, true)?;
        match self.vfs.node(node) {
            Some(Node::File(inode)) => inode.truncate(size)?,
            Some(Node::Directory(..)) => return Err(Errno::EISDIR.into()),
            Some(_) => return Err(Errno::EINVAL.into()),
            None => return Err(Errno::ENOENT.into()),
        }
        Ok(0)
    }

    fn chdir(&mut self, at: u64) -> SysResult {
        let node = self.lookup(libc::AT_FDCWD, at, true)?;
        self.vfs.directory(node)?;
        self.fs.cwd = self.vfs.meta(node)?.clone();
        Ok(0)
    }

    fn fchdir(&mut self, fd: i32) -> SysResult {
        let open: Arc<Open> = self.files.get_any(fd)?;
        let directory = open.file.as_any().downcast_ref::<Directory>();
        self.fs.cwd = directory.ok_or(Errno::ENOTDIR)?.meta().clone();
        Ok(0)
    }

    fn getcwd(&mut self, to: u64, max: usize) -> SysResult {
        if self.fs.cwd.lock().nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        let mut bytes = self.vfs.path_of(self.fs.cwd.number, "").into_bytes();
        bytes.push(0);
        if bytes.len() > max {
            return Err(Errno::ERANGE.into());
        }
        self.cx.memory.write(to, &bytes)?;
        Ok(bytes.len() as u64)
    }
}
