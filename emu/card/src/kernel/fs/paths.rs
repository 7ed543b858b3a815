//! Calls on paths.

use std::{sync::Arc, time::Duration};

use super::{
    FsCall, Open, PATH_MAX, RegularFile, Stat,
    calls::only,
    pipe::Queue,
    proc::{self, ProcFile},
    read_c_string,
    regular::Directory,
    stat_of,
    tree::{Found, Node},
};
use crate::kernel::{errno::Errno, file::File, time::card_clock, wait::SysResult};

const AT_FDCWD: i32 = libc::AT_FDCWD;

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let int = |i: usize| a[i] as i32;
    Some(match number as i64 {
        libc::SYS_open => call.openat(AT_FDCWD, a[0], int(1), a[2] as u32),
        libc::SYS_openat => call.openat(int(0), a[1], int(2), a[3] as u32),
        libc::SYS_creat => {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            call.openat(AT_FDCWD, a[0], flags, a[1] as u32)
        }
        libc::SYS_stat => call.stat_path(AT_FDCWD, a[0], a[1], true),
        libc::SYS_lstat => call.stat_path(AT_FDCWD, a[0], a[1], false),
        libc::SYS_newfstatat => call.newfstatat(int(0), a[1], a[2], int(3)),
        // STATX__RESERVED is for masks that are no masks.
        libc::SYS_statx if a[3] as u32 & 1 << 31 != 0 => Err(Errno::EINVAL.into()),
        libc::SYS_statx => call.statx(int(0), a[1], int(2), a[4]),
        libc::SYS_access => call.access(AT_FDCWD, a[0], int(1), 0),
        libc::SYS_faccessat => call.access(int(0), a[1], int(2), 0),
        libc::SYS_faccessat2 => only(
            int(3),
            libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH,
        )
        .and_then(|flags| call.access(int(0), a[1], int(2), flags)),
        libc::SYS_mkdir => call.mkdir(AT_FDCWD, a[0]),
        libc::SYS_mkdirat => call.mkdir(int(0), a[1]),
        libc::SYS_mknod => call.mknod(AT_FDCWD, a[0], a[1] as u32),
        libc::SYS_mknodat => call.mknod(int(0), a[1], a[2] as u32),
        libc::SYS_rmdir => call.unlink(AT_FDCWD, a[0], true),
        libc::SYS_unlink => call.unlink(AT_FDCWD, a[0], false),
        libc::SYS_unlinkat => {
            only(int(2), libc::AT_REMOVEDIR).and_then(|flags| call.unlink(int(0), a[1], flags != 0))
        }
        libc::SYS_rename => call.rename(AT_FDCWD, a[0], AT_FDCWD, a[1], 0),
        libc::SYS_renameat => call.rename(int(0), a[1], int(2), a[3], 0),
        libc::SYS_renameat2 => call.rename(int(0), a[1], int(2), a[3], a[4] as u32),
        libc::SYS_link => call.link(AT_FDCWD, a[0], AT_FDCWD, a[1], 0),
        libc::SYS_linkat => call.link(int(0), a[1], int(2), a[3], int(4)),
        libc::SYS_symlink => call.symlink(a[0], AT_FDCWD, a[1]),
        libc::SYS_symlinkat => call.symlink(a[0], int(1), a[2]),
        libc::SYS_readlink => call.readlink(AT_FDCWD, a[0], a[1], a[2] as usize),
        libc::SYS_readlinkat => call.readlink(int(0), a[1], a[2], a[3] as usize),
        libc::SYS_setxattr | libc::SYS_getxattr | libc::SYS_listxattr | libc::SYS_removexattr => {
            call.no_attributes(a[0], true)
        }
        libc::SYS_lsetxattr
        | libc::SYS_lgetxattr
        | libc::SYS_llistxattr
        | libc::SYS_lremovexattr => call.no_attributes(a[0], false),
        libc::SYS_truncate => call.truncate(a[0], a[1]),
        libc::SYS_chmod => call.chmod(AT_FDCWD, a[0], a[1] as u32),
        libc::SYS_fchmodat => call.chmod(int(0), a[1], a[2] as u32),
        // Everybody on a card is root, whatever the owner; but what has an owner must be there.
        libc::SYS_chown => call.find_existing(AT_FDCWD, a[0], true),
        libc::SYS_lchown => call.find_existing(AT_FDCWD, a[0], false),
        libc::SYS_fchownat => call.at_or_fd(int(0), a[1], int(4)),
        libc::SYS_utimensat => call.utimensat(int(0), a[1], a[2], int(3)),
        libc::SYS_chdir => call.chdir(a[0]),
        libc::SYS_getcwd => call.getcwd(a[0], a[1] as usize),
        _ => return None,
    })
}

impl FsCall<'_> {
    fn path(&mut self, at: u64) -> Result<String, Errno> {
        let bytes = read_c_string(self.cx.memory, at, PATH_MAX)?;
        String::from_utf8(bytes).map_err(|_| Errno::EINVAL)
    }

    /// A path relative to a directory descriptor, made absolute.
    fn path_at(&mut self, dirfd: i32, at: u64) -> Result<String, Errno> {
        let path = self.path(at)?;
        if path.starts_with('/') || dirfd == AT_FDCWD || path.is_empty() {
            self.refresh_fd_names(&path)?;
            return Ok(path);
        }
        let open = self.files.get(dirfd)?;
        let directory = open
            .file
            .as_any()
            .downcast_ref::<Directory>()
            .ok_or(Errno::ENOTDIR)?;
        self.vfs.directory(directory.node())?;
        let path = format!("{}/{path}", self.vfs.path_of(directory.node(), ""));
        self.refresh_fd_names(&path)?;
        Ok(path)
    }

    fn find(&mut self, dirfd: i32, at: u64, follow: bool) -> Result<Found, Errno> {
        let path = self.path_at(dirfd, at)?;
        self.vfs.find(&self.fs.cwd, &path, follow)
    }

    fn openat(&mut self, dirfd: i32, at: u64, flags: i32, mode: u32) -> SysResult {
        let path = self.path_at(dirfd, at)?;
        self.check_room(1)?;
        let open = match self.open_fd_name(&path, flags)? {
            Some(open) => open,
            None => Open::new(self.open_file(&path, flags, mode)?, flags),
        };
        self.insert(open, flags & libc::O_CLOEXEC != 0)
    }

    fn open_file(&mut self, path: &str, flags: i32, mode: u32) -> SysResult<Arc<dyn File>> {
        if let Ok(found) = self.vfs.find(&self.fs.cwd, path, true)
            && let Some(Node::Proc(file)) = found.node.and_then(|node| self.vfs.node(node))
        {
            let path = match *file {
                ProcFile::Exe => {
                    let exe = self.proc.exe();
                    return self.vfs.open(&mut self.cx, self.fs, &exe, flags, mode);
                }
                _ => self.vfs.path_of(found.parent, &found.name),
            };
            return Ok(proc::open(self, *file, path)?);
        }
        self.vfs.open(&mut self.cx, self.fs, path, flags, mode)
    }

    fn stat_path(&mut self, dirfd: i32, at: u64, to: u64, follow: bool) -> SysResult {
        let stat = self.stat(dirfd, at, follow)?;
        self.cx.memory.write(to, &stat.bytes())?;
        Ok(0)
    }

    fn stat(&mut self, dirfd: i32, at: u64, follow: bool) -> Result<Stat, Errno> {
        let node = self.find(dirfd, at, follow)?.node.ok_or(Errno::ENOENT)?;
        match self.vfs.node(node) {
            Some(Node::Proc(ProcFile::Exe)) if follow => {
                let inode = self.vfs.inode(&self.proc.exe())?;
                Ok(inode.stat())
            }
            _ => self.vfs.stat(node),
        }
    }

    /// Of a path, or with `AT_EMPTY_PATH` of a descriptor.
    fn stat_at(&mut self, dirfd: i32, at: u64, flags: i32) -> Result<Stat, Errno> {
        if flags & libc::AT_EMPTY_PATH != 0 && self.path(at)?.is_empty() {
            return Ok(stat_of(&*self.files.get(dirfd)?));
        }
        self.stat(dirfd, at, flags & libc::AT_SYMLINK_NOFOLLOW == 0)
    }

    fn newfstatat(&mut self, dirfd: i32, at: u64, to: u64, flags: i32) -> SysResult {
        let stat = self.stat_at(dirfd, at, flags)?;
        self.cx.memory.write(to, &stat.bytes())?;
        Ok(0)
    }

    fn statx(&mut self, dirfd: i32, at: u64, flags: i32, to: u64) -> SysResult {
        let stat = self.stat_at(dirfd, at, flags)?;
        self.cx.memory.write(to, &stat.statx_bytes())?;
        Ok(0)
    }

    /// access(2), for root: everything may be read and written, and executed what anybody may.
    fn access(&mut self, dirfd: i32, at: u64, mode: i32, flags: i32) -> SysResult {
        if mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
            return Err(Errno::EINVAL.into());
        }
        let stat = self.stat(dirfd, at, flags & libc::AT_SYMLINK_NOFOLLOW == 0)?;
        let searchable = stat.mode & libc::S_IFMT == libc::S_IFDIR;
        if mode & libc::X_OK != 0 && !searchable && stat.mode & 0o111 == 0 {
            return Err(Errno::EACCES.into());
        }
        Ok(0)
    }

    /// 0, or why there is nothing at a path.
    fn find_existing(&mut self, dirfd: i32, at: u64, follow: bool) -> SysResult {
        self.find(dirfd, at, follow)?.node.ok_or(Errno::ENOENT)?;
        Ok(0)
    }

    /// Calls of xattr(7): no file has attributes.
    fn no_attributes(&mut self, at: u64, follow: bool) -> SysResult {
        self.find_existing(AT_FDCWD, at, follow)?;
        Err(Errno::EOPNOTSUPP.into())
    }

    /// The same for a path, or with `AT_EMPTY_PATH` a descriptor.
    fn at_or_fd(&mut self, dirfd: i32, at: u64, flags: i32) -> SysResult {
        if flags & libc::AT_EMPTY_PATH != 0 && self.path(at)?.is_empty() {
            self.files.get(dirfd)?;
            return Ok(0);
        }
        self.find_existing(dirfd, at, flags & libc::AT_SYMLINK_NOFOLLOW == 0)
    }

    /// utimensat(2), and futimens(3) without a path. Of its two times a card keeps that of the last
    /// change, of regular files.
    fn utimensat(&mut self, dirfd: i32, at: u64, times: u64, flags: i32) -> SysResult {
        let mtime = self.read_mtime(times)?;
        let inode = match at {
            0 => {
                let open = self.files.get(dirfd)?;
                let file = open.file.as_any().downcast_ref::<RegularFile>();
                file.map(|file| file.inode().clone())
            }
            _ => {
                let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
                let node = self.find(dirfd, at, follow)?.node.ok_or(Errno::ENOENT)?;
                match self.vfs.node(node) {
                    Some(Node::File(inode)) => Some(inode.clone()),
                    _ => None,
                }
            }
        };
        if let (Some(inode), Some(mtime)) = (inode, mtime) {
            inode.set_mtime(mtime);
        }
        Ok(0)
    }

    /// The second of two `struct timespec`; `None`: the time is to stay.
    fn read_mtime(&mut self, times: u64) -> Result<Option<Duration>, Errno> {
        if times == 0 {
            return Ok(Some(card_clock(libc::CLOCK_REALTIME)));
        }
        let mut bytes = [0; 32];
        self.cx.memory.read(times, &mut bytes)?;
        let word = |at: usize| i64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        match (u64::try_from(word(16)), word(24)) {
            (_, libc::UTIME_NOW) => Ok(Some(card_clock(libc::CLOCK_REALTIME))),
            (_, libc::UTIME_OMIT) => Ok(None),
            // A time before 1970 is the earliest that there is.
            (seconds, nanos @ 0..1_000_000_000) => {
                Ok(Some(Duration::new(seconds.unwrap_or(0), nanos as u32)))
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn mkdir(&mut self, dirfd: i32, at: u64) -> SysResult {
        let path = self.path_at(dirfd, at)?;
        // Only a directory's own name may end so; nor is a link followed to where one could be.
        let name = match path.trim_end_matches('/') {
            "" => &path,
            name => name,
        };
        let found = self.vfs.find(&self.fs.cwd, name, false)?;
        if found.node.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let directory = Node::Directory(Default::default(), found.parent);
        self.vfs.add(found.parent, &found.name, directory)?;
        Ok(0)
    }

    /// mknod(2): FIFOs and regular files. Devices are the card's own.
    fn mknod(&mut self, dirfd: i32, at: u64, mode: u32) -> SysResult {
        match mode & libc::S_IFMT {
            0 | libc::S_IFREG | libc::S_IFIFO => {}
            libc::S_IFDIR | libc::S_IFCHR | libc::S_IFBLK | libc::S_IFSOCK => {
                return Err(Errno::EPERM.into());
            }
            _ => return Err(Errno::EINVAL.into()),
        }
        let found = self.find(dirfd, at, false)?;
        if found.node.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let bits = mode & 0o7777 & !self.fs.umask;
        let node = match mode & libc::S_IFMT {
            libc::S_IFIFO => Node::Fifo(Queue::closed(), bits),
            _ => Node::File(self.vfs.new_inode(bits)),
        };
        self.vfs.add(found.parent, &found.name, node)?;
        Ok(0)
    }

    fn unlink(&mut self, dirfd: i32, at: u64, directory: bool) -> SysResult {
        let found = self.find(dirfd, at, false)?;
        let node = found.node.ok_or(Errno::ENOENT)?;
        match (self.vfs.directory(node), directory) {
            (Ok(_), false) => return Err(Errno::EISDIR.into()),
            (Err(_), true) => return Err(Errno::ENOTDIR.into()),
            (Ok(names), true) if !names.is_empty() => return Err(Errno::ENOTEMPTY.into()),
            _ => {}
        }
        if found.name.is_empty() {
            return Err(Errno::EBUSY.into());
        }
        self.vfs.unlink_node(found.parent, &found.name, node);
        Ok(0)
    }

    fn rename(&mut self, from_dir: i32, from: u64, to_dir: i32, to: u64, flags: u32) -> SysResult {
        if flags & !libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::EINVAL.into());
        }
        let from = self.find(from_dir, from, false)?;
        let to = self.find(to_dir, to, false)?;
        let node = from.node.ok_or(Errno::ENOENT)?;
        if flags & libc::RENAME_NOREPLACE != 0 && to.node.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if to.node == Some(node) {
            return Ok(0);
        }
        if from.name.is_empty() || to.name.is_empty() {
            return Err(Errno::EBUSY.into());
        }
        if self.vfs.directory(node).is_ok() {
            // Not into itself.
            let (old, new) = (
                self.vfs.path_of(from.parent, &from.name),
                self.vfs.path_of(to.parent, &to.name),
            );
            if new.starts_with(&format!("{old}/")) {
                return Err(Errno::EINVAL.into());
            }
        }
        if let Some(old) = to.node {
            match (self.vfs.directory(old), self.vfs.directory(node)) {
                (Ok(names), Ok(_)) if !names.is_empty() => return Err(Errno::ENOTEMPTY.into()),
                (Ok(_), Err(_)) => return Err(Errno::EISDIR.into()),
                (Err(_), Ok(_)) => return Err(Errno::ENOTDIR.into()),
                _ => {}
            }
        }
        self.vfs.rename(&from, &to, node)?;
        Ok(0)
    }

    fn link(&mut self, from_dir: i32, from: u64, to_dir: i32, to: u64, flags: i32) -> SysResult {
        let follow = only(flags, libc::AT_SYMLINK_FOLLOW)? != 0;
        let node = self
            .find(from_dir, from, follow)?
            .node
            .ok_or(Errno::ENOENT)?;
        let to = self.find(to_dir, to, false)?;
        if to.node.is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.vfs.link(to.parent, &to.name, node)?;
        Ok(0)
    }

    fn symlink(&mut self, target: u64, dirfd: i32, at: u64) -> SysResult {
        let target = self.path(target)?;
        if target.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        let found = self.find(dirfd, at, false)?;
        if found.node.is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.vfs
            .add(found.parent, &found.name, Node::Link(target))?;
        Ok(0)
    }

    fn readlink(&mut self, dirfd: i32, at: u64, to: u64, max: usize) -> SysResult {
        // The size is an int (readlink(2)).
        if max as i32 <= 0 {
            return Err(Errno::EINVAL.into());
        }
        let node = self.find(dirfd, at, false)?.node.ok_or(Errno::ENOENT)?;
        let target = match self.vfs.node(node) {
            Some(Node::Link(target)) => target.clone(),
            Some(Node::Proc(ProcFile::Exe)) => self.proc.exe(),
            _ => return Err(Errno::EINVAL.into()),
        };
        let len = target.len().min(max);
        self.cx.memory.write(to, &target.as_bytes()[..len])?;
        Ok(len as u64)
    }

    fn truncate(&mut self, at: u64, size: u64) -> SysResult {
        if size > i64::MAX as u64 {
            return Err(Errno::EINVAL.into());
        }
        let path = self.path_at(AT_FDCWD, at)?;
        let found = self.vfs.find(&self.fs.cwd, &path, true)?;
        match found.node.and_then(|node| self.vfs.node(node)) {
            Some(Node::File(inode)) => inode.truncate(size)?,
            Some(Node::Directory(..)) => return Err(Errno::EISDIR.into()),
            Some(_) => return Err(Errno::EINVAL.into()),
            None => return Err(Errno::ENOENT.into()),
        }
        Ok(0)
    }

    fn chmod(&mut self, dirfd: i32, at: u64, mode: u32) -> SysResult {
        let node = self.find(dirfd, at, true)?.node.ok_or(Errno::ENOENT)?;
        self.vfs.set_mode(node, mode);
        Ok(0)
    }

    fn chdir(&mut self, at: u64) -> SysResult {
        let found = self.find(AT_FDCWD, at, true)?;
        self.vfs.directory(found.node.ok_or(Errno::ENOENT)?)?;
        self.fs.cwd = self.vfs.path_of(found.parent, &found.name);
        Ok(0)
    }

    fn getcwd(&mut self, to: u64, max: usize) -> SysResult {
        let mut bytes = self.fs.cwd.clone().into_bytes();
        bytes.push(0);
        if bytes.len() > max {
            return Err(Errno::ERANGE.into());
        }
        self.cx.memory.write(to, &bytes)?;
        Ok(bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use crate::kernel::{
        errno::Errno,
        fs::test_kit::{Kit, error},
    };

    #[test]
    fn the_time_of_the_last_change_can_be_set() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"");
        let (path, at) = (kit.path("/tmp/a"), libc::AT_FDCWD as u64);
        let changed = |kit: &mut Kit| {
            kit.call(libc::SYS_stat, &[path, 0x2000]).unwrap();
            u64::from_le_bytes(kit.bytes(0x2000 + 88, 8).try_into().unwrap())
        };
        kit.put_words(0x500, &[1, 0, 77, 5]);
        assert_eq!(kit.call(libc::SYS_utimensat, &[at, path, 0x500, 0]), Ok(0));
        assert_eq!(changed(&mut kit), 77);
        kit.put_words(0x500, &[1, 0, 78, libc::UTIME_OMIT as u64]);
        assert_eq!(kit.call(libc::SYS_utimensat, &[at, path, 0x500, 0]), Ok(0));
        assert_eq!(changed(&mut kit), 77);
        let fd = kit.open("/tmp/a", libc::O_RDONLY).unwrap();
        assert_eq!(kit.call(libc::SYS_utimensat, &[fd, 0, 0, 0]), Ok(0));
        assert!(changed(&mut kit) > 1_000_000_000);
        kit.put_words(0x500, &[1, 0, 78, 1_000_000_000]);
        let wrong = kit.call(libc::SYS_utimensat, &[at, path, 0x500, 0]);
        assert_eq!(wrong, error(Errno::EINVAL));
    }

    #[test]
    fn root_executes_what_anybody_may() {
        let mut kit = Kit::new();
        kit.file("/tmp/a", b"");
        let path = kit.path("/tmp/a");
        let execute = [path, libc::X_OK as u64];
        assert_eq!(kit.call(libc::SYS_access, &execute), error(Errno::EACCES));
        assert_eq!(
            kit.call(libc::SYS_access, &[path, libc::W_OK as u64]),
            Ok(0)
        );
        assert_eq!(kit.call(libc::SYS_access, &[path, 8]), error(Errno::EINVAL));
        kit.call(libc::SYS_chmod, &[path, 0o711]).unwrap();
        assert_eq!(kit.call(libc::SYS_access, &execute), Ok(0));
        let path = kit.path("/tmp");
        assert_eq!(
            kit.call(libc::SYS_access, &[path, libc::X_OK as u64]),
            Ok(0)
        );
    }
}
