//! Calls that look at the attributes of files and change them (inode(7), xattr(7)).

use std::sync::Arc;

use snaprig_card_driver::{errno::Errno, file::Description, wait::SysResult};

use crate::{
    call::{FsCall, only, read_c_string},
    calls::stat::stat_of,
    meta::{Meta, Timestamp},
    proc::ProcFile,
    stat::Stat,
    tree::Node,
};

/// Both kinds of synchronisation at once, which is none (statx(2)).
const SYNC_TYPE: i32 = libc::AT_STATX_FORCE_SYNC | libc::AT_STATX_DONT_SYNC;
/// For masks that are no masks.
const STATX_RESERVED: u32 = 1 << 31;
/// Most bytes of an attribute's name and of its value.
const XATTR_NAME_MAX: usize = 255;
const XATTR_SIZE_MAX: u64 = 65536;
/// Most bytes of all attributes of a file.
const XATTR_TOTAL_MAX: usize = 8192;

/// Runs one of these calls; `None` if it is none.
pub fn run(call: &mut FsCall, number: u64, a: [u64; 6]) -> Option<SysResult> {
    let int = |i: usize| a[i] as i32;
    let no_follow = libc::AT_SYMLINK_NOFOLLOW;
    let empty = libc::AT_EMPTY_PATH;
    Some(match number as i64 {
        libc::SYS_stat => call.stat_path(libc::AT_FDCWD, a[0], a[1], 0),
        libc::SYS_lstat => call.stat_path(libc::AT_FDCWD, a[0], a[1], no_follow),
        libc::SYS_fstat => call.fstat(int(0), a[1]),
        libc::SYS_newfstatat => call.stat_path(int(0), a[1], a[2], int(3)),
        libc::SYS_statx => call.statx(int(0), a[1], int(2), a[3] as u32, a[4]),
        libc::SYS_access => call.access(libc::AT_FDCWD, a[0], int(1), 0),
        libc::SYS_faccessat => call.access(int(0), a[1], int(2), 0),
        libc::SYS_faccessat2 => call.access(int(0), a[1], int(2), int(3)),
        libc::SYS_chmod => call.chmod(libc::AT_FDCWD, a[0], a[1] as u32, 0),
        libc::SYS_fchmodat => call.chmod(int(0), a[1], a[2] as u32, 0),
        FCHMODAT2 => call.chmod(int(0), a[1], a[2] as u32, int(3)),
        libc::SYS_fchmod => call.fchmod(int(0), a[1] as u32),
        libc::SYS_chown => call.chown(libc::AT_FDCWD, a[0], owners(a[1], a[2]), 0),
        libc::SYS_lchown => call.chown(libc::AT_FDCWD, a[0], owners(a[1], a[2]), no_follow),
        libc::SYS_fchownat => only(int(4), no_follow | empty)
            .and_then(|flags| call.chown(int(0), a[1], owners(a[2], a[3]), flags)),
        libc::SYS_fchown => call.fchown(int(0), owners(a[1], a[2])),
        libc::SYS_utimensat => call.utimensat(int(0), a[1], a[2], int(3)),
        libc::SYS_utime => call.utimes(libc::AT_FDCWD, a[0], a[1], 0),
        libc::SYS_utimes => call.utimes(libc::AT_FDCWD, a[0], a[1], MICRO),
        libc::SYS_futimesat => call.utimes(int(0), a[1], a[2], MICRO),
        libc::SYS_setxattr => call.setxattr(Of::Path(a[0], true), a),
        libc::SYS_lsetxattr => call.setxattr(Of::Path(a[0], false), a),
        libc::SYS_fsetxattr => call.setxattr(Of::Descriptor(int(0)), a),
        libc::SYS_getxattr => call.getxattr(Of::Path(a[0], true), a),
        libc::SYS_lgetxattr => call.getxattr(Of::Path(a[0], false), a),
        libc::SYS_fgetxattr => call.getxattr(Of::Descriptor(int(0)), a),
        libc::SYS_listxattr => call.listxattr(Of::Path(a[0], true), a),
        libc::SYS_llistxattr => call.listxattr(Of::Path(a[0], false), a),
        libc::SYS_flistxattr => call.listxattr(Of::Descriptor(int(0)), a),
        libc::SYS_removexattr => call.removexattr(Of::Path(a[0], true), a),
        libc::SYS_lremovexattr => call.removexattr(Of::Path(a[0], false), a),
        libc::SYS_fremovexattr => call.removexattr(Of::Descriptor(int(0)), a),
        libc::SYS_statfs => call
            .lookup(libc::AT_FDCWD, a[0], true)
            .map_err(Into::into)
            .and_then(|_| call.tell_file_system(a[1], None)),
        libc::SYS_fstatfs => match call.files.get_any(int(0)) {
            Ok(open) => {
                let of = Some(open.file.describe());
                let is_nameless = open.attributes().is_none() || call.is_nameless_pipe(&open);
                call.tell_file_system(a[1], of.filter(|_| is_nameless))
            }
            Err(errno) => Err(errno.into()),
        },
        _ => return None,
    })
}

const FCHMODAT2: i64 = 452;
/// Microseconds in a second.
const MICRO: u32 = 1_000_000;

/// Owner and group.
fn owners(uid: u64, gid: u64) -> (u32, u32) {
    (uid as u32, gid as u32)
}

/// Whose extended attributes.
#[derive(Clone, Copy)]
enum Of {
    /// At this path, through a link at its end or not.
    Path(u64, bool),
    Descriptor(i32),
}

impl FsCall<'_> {
    fn stat_path(&mut self, dirfd: i32, at: u64, to: u64, flags: i32) -> SysResult {
        let stat = self.stat_at(dirfd, at, flags)?;
        self.cx.memory.write(to, &stat.bytes())?;
        Ok(0)
    }

    fn fstat(&mut self, fd: i32, to: u64) -> SysResult {
        let stat = stat_of(&*self.files.get_any(fd)?, self.vfs);
        self.cx.memory.write(to, &stat.bytes())?;
        Ok(0)
    }

    fn statx(&mut self, dirfd: i32, at: u64, flags: i32, mask: u32, to: u64) -> SysResult {
        if mask & STATX_RESERVED != 0 || flags & SYNC_TYPE == SYNC_TYPE {
            return Err(Errno::EINVAL.into());
        }
        let stat = self.stat_at(dirfd, at, flags)?;
        self.cx.memory.write(to, &stat.statx_bytes())?;
        Ok(0)
    }

    /// Of a path, or with `AT_EMPTY_PATH` of a descriptor.
    fn stat_at(&mut self, dirfd: i32, at: u64, flags: i32) -> Result<Stat, Errno> {
        let known = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT | libc::AT_EMPTY_PATH;
        if flags & libc::AT_EMPTY_PATH != 0
            && dirfd >= 0
            && (at == 0 || self.path_or_empty(at).is_ok_and(|path| path.is_empty()))
        {
            return Ok(stat_of(&*self.files.get_any(dirfd)?, self.vfs));
        }
        if flags & !(known | SYNC_TYPE) != 0 {
            return Err(Errno::EINVAL);
        }
        let node = match at {
            // No path at all is as good as an empty one.
            0 if flags & libc::AT_EMPTY_PATH != 0 => self.fs.cwd.number,
            at => self.lookup_with(dirfd, at, flags)?,
        };
        match self.vfs.node(node) {
            Some(Node::Proc(ProcFile::Exe)) if flags & libc::AT_SYMLINK_NOFOLLOW == 0 => {
                let inode = self.vfs.inode(&self.proc.exe())?;
                Ok(inode.stat())
            }
            _ => self.vfs.stat(node),
        }
    }

    /// What a path leads to, with `AT_SYMLINK_NOFOLLOW` and `AT_EMPTY_PATH`, of directories.
    fn lookup_with(&mut self, dirfd: i32, at: u64, flags: i32) -> Result<u64, Errno> {
        let is_empty = flags & libc::AT_EMPTY_PATH != 0 && self.path_or_empty(at)?.is_empty();
        if is_empty && dirfd == libc::AT_FDCWD {
            return Ok(self.fs.cwd.number);
        }
        self.lookup(dirfd, at, flags & libc::AT_SYMLINK_NOFOLLOW == 0)
    }

    /// Attributes of what a path, or with `AT_EMPTY_PATH` a descriptor, leads to, and its type. What
    /// has no inode of its own keeps none: `None`.
    fn meta_at(
        &mut self,
        dirfd: i32,
        at: u64,
        flags: i32,
    ) -> Result<Option<(Arc<Meta>, u32)>, Errno> {
        if flags & libc::AT_EMPTY_PATH != 0
            && dirfd != libc::AT_FDCWD
            && self.path_or_empty(at)?.is_empty()
        {
            let open = self.files.get_any(dirfd)?;
            self.check_owned(&open)?;
            return Ok(self.meta_of(&open));
        }
        let node = self.lookup_with(dirfd, at, flags)?;
        let kind = self.vfs.node(node).map_or(0, Node::kind);
        Ok(Some((self.vfs.meta(node)?.clone(), kind)))
    }

    /// The same of what is open.
    fn meta_of(&self, open: &crate::table::Open) -> Option<(Arc<Meta>, u32)> {
        let kind = stat_of(open, self.vfs).mode & libc::S_IFMT;
        Some((open.attributes()?.clone(), kind))
    }

    /// access(2), for root: everything may be read and written, and executed what anybody may.
    fn access(&mut self, dirfd: i32, at: u64, mode: i32, flags: i32) -> SysResult {
        let known = libc::AT_EACCESS | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
        if mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 || flags & !known != 0 {
            return Err(Errno::EINVAL.into());
        }
        let stat = match flags & libc::AT_EMPTY_PATH != 0 && self.path_or_empty(at)?.is_empty() {
            true if dirfd != libc::AT_FDCWD => stat_of(&*self.files.get_any(dirfd)?, self.vfs),
            _ => {
                let node = self.lookup_with(dirfd, at, flags)?;
                self.vfs.stat(node)?
            }
        };
        let searchable = stat.mode & libc::S_IFMT == libc::S_IFDIR;
        if mode & libc::X_OK != 0 && !searchable && stat.mode & 0o111 == 0 {
            return Err(Errno::EACCES.into());
        }
        Ok(0)
    }

    fn chmod(&mut self, dirfd: i32, at: u64, mode: u32, flags: i32) -> SysResult {
        only(flags, libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH)?;
        match self.meta_at(dirfd, at, flags)? {
            Some((_, libc::S_IFLNK)) => return Err(Errno::EOPNOTSUPP.into()),
            Some((meta, _)) => meta.set_mode(mode),
            None => {}
        }
        Ok(0)
    }

    fn fchmod(&mut self, fd: i32, mode: u32) -> SysResult {
        let open = self.files.get(fd)?;
        self.check_owned(&open)?;
        if let Some(meta) = open.attributes() {
            meta.set_mode(mode);
        }
        Ok(0)
    }

    fn chown(&mut self, dirfd: i32, at: u64, (uid, gid): (u32, u32), flags: i32) -> SysResult {
        if let Some((meta, kind)) = self.meta_at(dirfd, at, flags)? {
            meta.set_owner(uid, gid, kind == libc::S_IFDIR);
        }
        Ok(0)
    }

    fn fchown(&mut self, fd: i32, (uid, gid): (u32, u32)) -> SysResult {
        let open = self.files.get(fd)?;
        self.check_owned(&open)?;
        if let Some((meta, kind)) = self.meta_of(&open) {
            meta.set_owner(uid, gid, kind == libc::S_IFDIR);
        }
        Ok(0)
    }

    /// EOPNOTSUPP of what shares one inode with all of its kind.
    fn check_owned(&self, open: &crate::table::Open) -> Result<(), Errno> {
        match is_anonymous(&open.file.describe()) {
            true => Err(Errno::EOPNOTSUPP),
            false => Ok(()),
        }
    }

    /// utimensat(2), and futimens(3) without a path.
    fn utimensat(&mut self, dirfd: i32, at: u64, times: u64, flags: i32) -> SysResult {
        let times = match times {
            0 => [(0, libc::UTIME_NOW); 2],
            times => {
                let [a, b, c, d] = self.read_words(times)?;
                [(a, b), (c, d)]
            }
        };
        if times.iter().all(|(_, nanos)| *nanos == libc::UTIME_OMIT) {
            return Ok(0);
        }
        self.set_times(dirfd, at, times, flags)
    }

    /// utime(2), and utimes(2) with so many parts in a second.
    fn utimes(&mut self, dirfd: i32, at: u64, times: u64, parts: u32) -> SysResult {
        let times = match (times, parts) {
            (0, _) => [(0, libc::UTIME_NOW); 2],
            (times, 0) => {
                let [read, modified] = self.read_words(times)?;
                [(read, 0), (modified, 0)]
            }
            (times, parts) => {
                let [a, b, c, d] = self.read_words(times)?;
                if ![b, d]
                    .iter()
                    .all(|part| (0..i64::from(parts)).contains(part))
                {
                    return Err(Errno::EINVAL.into());
                }
                let nanos = 1_000_000_000 / i64::from(parts);
                [(a, b * nanos), (c, d * nanos)]
            }
        };
        self.set_times(dirfd, at, times, 0)
    }

    fn set_times(&mut self, dirfd: i32, at: u64, times: [(i64, i64); 2], flags: i32) -> SysResult {
        let meta = if at == 0 && dirfd != libc::AT_FDCWD {
            let open = self.files.get(dirfd)?;
            if flags != 0 {
                return Err(Errno::EINVAL.into());
            }
            self.check_owned(&open)?;
            self.meta_of(&open)
        } else {
            only(flags, libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH)?;
            self.meta_at(dirfd, at, flags)?
        };
        let time = |(seconds, nanos): (i64, i64)| match nanos {
            libc::UTIME_NOW => Ok(Some(Timestamp::now())),
            libc::UTIME_OMIT => Ok(None),
            0..1_000_000_000 => Ok(Some(Timestamp {
                seconds,
                nanos: nanos as u32,
            })),
            _ => Err(Errno::EINVAL),
        };
        let [read, modified] = [time(times[0])?, time(times[1])?];
        if let Some((meta, _)) = meta {
            let mut attributes = meta.lock();
            attributes.atime = read.unwrap_or(attributes.atime);
            attributes.mtime = modified.unwrap_or(attributes.mtime);
            attributes.ctime = Timestamp::now();
        }
        Ok(0)
    }

    fn read_words<const N: usize>(&mut self, at: u64) -> Result<[i64; N], Errno> {
        let mut bytes = vec![0; N * 8];
        self.cx.memory.read(at, &mut bytes)?;
        let word = |i: usize| i64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("8"));
        Ok(std::array::from_fn(word))
    }

    fn attributed(&mut self, of: Of) -> Result<Option<(Arc<Meta>, u32)>, Errno> {
        match of {
            Of::Path(at, follow) => {
                let flags = match follow {
                    true => 0,
                    false => libc::AT_SYMLINK_NOFOLLOW,
                };
                self.meta_at(libc::AT_FDCWD, at, flags)
            }
            Of::Descriptor(fd) => {
                let open = self.files.get(fd)?;
                // The file system of pipes keeps none (xattr(7)).
                let is_kept = !self.is_nameless_pipe(&open);
                Ok(self.meta_of(&open).filter(|_| is_kept))
            }
        }
    }

    /// Whether it is of pipe(2), and so of a file system of its own.
    fn is_nameless_pipe(&self, open: &crate::table::Open) -> bool {
        let is_named = |meta: &Arc<Meta>| self.vfs.meta(meta.number).is_ok();
        matches!(open.file.describe(), Description::Pipe { .. })
            && !open.attributes().is_some_and(is_named)
    }

    /// What keeps an extended attribute of this name; `none` is why there is none of a file of its type.
    fn keeper(&mut self, of: Of, name: &str, none: Errno) -> Result<Arc<Meta>, Errno> {
        let target = self.attributed(of)?;
        let kind = target.as_ref().map_or(0, |(_, kind)| *kind);
        check_name(name, kind, none)?;
        target.map(|(meta, _)| meta).ok_or(Errno::EOPNOTSUPP)
    }

    fn xattr_name(&mut self, at: u64) -> Result<String, Errno> {
        let name = match read_c_string(self.cx.memory, at, XATTR_NAME_MAX + 1) {
            Err(Errno::ENAMETOOLONG) => return Err(Errno::ERANGE),
            name => name?,
        };
        if name.is_empty() {
            return Err(Errno::ERANGE);
        }
        String::from_utf8(name).map_err(|_| Errno::EOPNOTSUPP)
    }

    fn setxattr(&mut self, of: Of, a: [u64; 6]) -> SysResult {
        let flags = only(a[4] as i32, libc::XATTR_CREATE | libc::XATTR_REPLACE)?;
        let name = self.xattr_name(a[1])?;
        if a[3] > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG.into());
        }
        let mut value = vec![0; a[3] as usize];
        if !value.is_empty() {
            self.cx.memory.read(a[2], &mut value)?;
        }
        let meta = self.keeper(of, &name, Errno::EPERM)?;
        let mut attributes = meta.lock();
        match attributes.extended.contains_key(&name) {
            true if flags & libc::XATTR_CREATE != 0 => return Err(Errno::EEXIST.into()),
            false if flags & libc::XATTR_REPLACE != 0 => return Err(Errno::ENODATA.into()),
            _ => {}
        }
        let others = attributes
            .extended
            .iter()
            .filter(|(other, _)| **other != name);
        let total: usize = others.map(|(name, value)| name.len() + value.len()).sum();
        if total + name.len() + value.len() > XATTR_TOTAL_MAX {
            return Err(Errno::ENOSPC.into());
        }
        attributes.extended.insert(name, value);
        attributes.ctime = Timestamp::now();
        Ok(0)
    }

    fn getxattr(&mut self, of: Of, a: [u64; 6]) -> SysResult {
        let name = self.xattr_name(a[1])?;
        let meta = self.keeper(of, &name, Errno::ENODATA)?;
        let value = meta.lock().extended.get(&name).cloned();
        self.put_sized(&value.ok_or(Errno::ENODATA)?, a[2], a[3])
    }

    fn listxattr(&mut self, of: Of, a: [u64; 6]) -> SysResult {
        let names = self.attributed(of)?.map(|(meta, _)| {
            let attributes = meta.lock();
            let names = attributes.extended.keys();
            names.flat_map(|name| name.bytes().chain([0])).collect()
        });
        let names: Vec<u8> = names.unwrap_or_default();
        self.put_sized(&names, a[1], a[2])
    }

    fn removexattr(&mut self, of: Of, a: [u64; 6]) -> SysResult {
        let name = self.xattr_name(a[1])?;
        let meta = self.keeper(of, &name, Errno::EPERM)?;
        let mut attributes = meta.lock();
        attributes.extended.remove(&name).ok_or(Errno::ENODATA)?;
        attributes.ctime = Timestamp::now();
        Ok(0)
    }

    /// With no room at all it is only said how much there is (getxattr(2)).
    fn put_sized(&mut self, bytes: &[u8], to: u64, max: u64) -> SysResult {
        if max > 0 {
            if (bytes.len() as u64) > max {
                return Err(Errno::ERANGE.into());
            }
            self.cx.memory.write(to, bytes)?;
        }
        Ok(bytes.len() as u64)
    }

    /// statfs(2) of the one file system, or of what has no name in it.
    fn tell_file_system(&mut self, to: u64, of: Option<Description>) -> SysResult {
        const RAM: u64 = 0x0102_1994;
        let kind: u64 = match of {
            Some(Description::Pipe { .. }) => 0x5049_5045,
            Some(Description::Socket) => 0x534f_434b,
            Some(description) if is_anonymous(&description) => 0x0904_1934,
            _ => RAM,
        };
        let (total, free) = match kind {
            RAM => (self.vfs.memory().bytes(), self.vfs.memory().free_bytes()),
            _ => (0, 0),
        };
        let files = match kind {
            RAM => (1 << 17, 1 << 16),
            _ => (0, 0),
        };
        // f_type, f_bsize, f_blocks, f_bfree, f_bavail, f_files, f_ffree, f_fsid, f_namelen,
        // f_frsize, f_flags (ST_VALID, ST_RELATIME).
        let (total, free) = (total / 4096, free / 4096);
        let words = [
            kind, 4096, total, free, free, files.0, files.1, 0, 255, 4096, 0x1020,
        ];
        let mut bytes = [0; 120];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        self.cx.memory.write(to, &bytes)?;
        Ok(0)
    }
}

/// Whether a kind of file shares one inode with all others of the kind.
pub fn is_anonymous(description: &Description) -> bool {
    matches!(
        description,
        Description::Event { .. }
            | Description::Epoll
            | Description::Timer { .. }
            | Description::Signals { .. }
            | Description::Process
    )
}

/// Whether there can be an attribute of this name; `none` is why there is none of a file of this type
/// (xattr(7)).
fn check_name(name: &str, kind: u32, none: Errno) -> Result<(), Errno> {
    let kinds = ["user.", "trusted.", "security."];
    let found = kinds.iter().find(|kind| name.starts_with(**kind));
    let is_list = name.starts_with("system.posix_acl_") && none == Errno::ENODATA;
    match found {
        Some(&"user.") if ![libc::S_IFREG, libc::S_IFDIR].contains(&kind) => Err(none),
        Some(kind) if name.len() == kind.len() => Err(Errno::EINVAL),
        Some(_) => Ok(()),
        // Nobody has an access control list.
        None if is_list => Err(Errno::ENODATA),
        None => Err(Errno::EOPNOTSUPP),
    }
}

#[cfg(test)]
mod tests {
    use snaprig_card_driver::errno::Errno;

    use crate::test_kit::{Kit, error};

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
